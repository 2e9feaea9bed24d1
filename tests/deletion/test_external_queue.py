"""The protocol with a queue that is not in ZooKeeper: sending and the registry's update are two steps (traps T1, T5).

The queue is a test double that keeps batches in memory. Between the two steps anything may happen; each test stops
there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from airflow_provider_segments.core.deletion.consumer import LedgerDeleter
from airflow_provider_segments.core.deletion.in_use import Judge, Verdict
from airflow_provider_segments.core.deletion.mark import Marker
from airflow_provider_segments.core.deletion.messages import Backlog, Delivery, Settlement
from airflow_provider_segments.core.deletion.report import DeletionReport
from airflow_provider_segments.core.model import ledger as ledgers
from airflow_provider_segments.core.model.ledger import DeletionBatch, LedgerType
from airflow_provider_segments.core.zookeeper import CommitConflictError, Op, ZooKeeperSession
from tests.deletion.support import LATER, World, check_equation

UUID = "00000000-0000-4000-8000-000000000001"


class MemoryQueue:
    """Batches in memory, as another system would keep them: it cannot tell ZooKeeper's zxids."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.waiting: dict[str, tuple[int, bytes]] = {}
        self.claimed: set[str] = set()
        self.dead: list[DeletionBatch] = []
        self.sent = 0
        self.refuse: Callable[[DeletionBatch], bool] = lambda batch: False
        self.after_send: Callable[[], None] = lambda: None

    def send(self, batches: Sequence[DeletionBatch]) -> None:
        for batch in batches:
            if self.refuse(batch):
                raise ConnectionError("the broker does not answer")
            self.sent += 1
            self.waiting[f"m{self.sent}"] = (0, ledgers.encode(batch))
        self.after_send()

    def receive(self, limit: int, skip: Collection[str] = ()) -> list[Delivery]:
        taken = {*self.claimed, *skip}
        due = [name for name, (at, _) in self.waiting.items() if at <= self.now_ms() and name not in taken]
        self.claimed |= set(due[:limit])
        return [Delivery(name, self.waiting[name][1], None, self.waiting[name][0] > 0) for name in due[:limit]]

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> list[bool]:
        for delivery, settlement in settlements:
            self.claimed.discard(delivery.batch_id)
            del self.waiting[delivery.batch_id]
            if settlement.again is not None:
                self.waiting[delivery.batch_id] = (settlement.due_ms, ledgers.encode(settlement.again))
            if settlement.dead is not None:
                self.dead.append(settlement.dead)
        return [True] * len(settlements)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self.claimed -= {delivery.batch_id for delivery in deliveries}

    def backlog(self) -> Backlog:
        retry = [at for at, _ in self.waiting.values() if at]
        return Backlog(len(self.waiting) - len(retry), len(retry), next_due_ms=min(retry, default=None))


class Scene:
    """A table with two segments, and both phases over a queue elsewhere."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.table = world.table()
        self.entry_id = world.push(self.table, ["a", "b"])
        self.queue = MemoryQueue(lambda: world.hand.now_ms)
        self.registry = self.table._context.registry

    def mark(self, names: set[str], session: ZooKeeperSession | None = None) -> int:
        store = self.world.store
        marker = Marker(session or store.session, self.registry, self.queue, store.clock)
        found = self.world.shards(self.table)
        return marker.mark(found, lambda record: record.name not in names, reason="test")

    def drain(self) -> DeletionReport:
        store = self.world.store
        deleter = LedgerDeleter(
            store.session, store.paths, store.clock, self.queue, store.storage, store.tiered, store.deletion
        )
        report = deleter.drain()
        check_equation(report)
        return report

    def files(self) -> set[str]:
        return {key.rpartition("/")[2][0] for key in self.world.stored()}

    def registered(self) -> set[str]:
        return {record.name for shard in self.world.shards(self.table) for record in shard.records}


@pytest.fixture
def scene(world: World) -> Scene:
    return Scene(world)


class Stopped(Exception):  # noqa: N818 - the death of a process, for a test
    """The sender died between its two steps."""


class Between:
    """A session whose commits do something else first."""

    def __init__(self, session: ZooKeeperSession, act: Callable[[], None]) -> None:
        self._session = session
        self._act = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def commit_many(self, transactions: Sequence[Sequence[Op]]) -> Any:
        self._act()
        return self._session.commit_many(transactions)


def between(scene: Scene, act: Callable[[], None]) -> Any:
    return Between(scene.world.store.session, act)


def die() -> None:
    raise Stopped


def test_messages_are_sent_before_the_registry_changes_and_deleted_after(scene: Scene) -> None:
    seen: list[tuple[int, set[str]]] = []
    session = between(scene, lambda: seen.append((scene.queue.sent, scene.registered())))
    assert scene.mark({"a"}, session) == 1
    assert seen == [(2 - 1, {"a", "b"})]
    assert scene.drain().total("deleted") == 1
    assert scene.files() == {"b"} and scene.registered() == {"b"}


def test_a_quick_consumer_waits_for_an_update_that_lands_later(scene: Scene) -> None:
    """T1, the first way: the consumer has the message while the registry's update is still under way. PIP-186's text
    acknowledges it here, and the data is orphaned for ever."""
    reports: list[DeletionReport] = []
    session = between(scene, lambda: reports.append(scene.drain()))
    scene.mark({"a"}, session)
    assert (reports[0].total("waiting"), reports[0].acknowledged) == (1, 0)
    assert scene.files() == {"a", "b"} and scene.registered() == {"b"}
    scene.world.hand.advance(LATER)
    report = scene.drain()
    assert report.total("deleted") == 1 and scene.files() == {"b"}
    assert not scene.queue.waiting


def test_waiting_for_an_update_does_not_use_up_the_attempts(make_world: Callable[..., World], kind: str) -> None:
    scene = Scene(make_world(kind, max_retry_delete_count=0, uncommitted_grace_ms=10**9, reconsume_later_ms=1000))

    def wait() -> None:
        for _ in range(15):
            assert scene.drain().total("waiting") == 1
            scene.world.hand.advance(1000)

    scene.mark({"a"}, between(scene, wait))
    assert scene.drain().total("deleted") == 1 and not scene.queue.dead


def test_an_update_that_never_lands_ends_stale_and_deletes_nothing(scene: Scene) -> None:
    """T1, the second way: the sender died. After the grace period the shard is fenced and the message goes."""
    with pytest.raises(Stopped):
        scene.mark({"a"}, between(scene, die))
    assert scene.drain().total("waiting") == 1
    before = scene.world.objects()
    scene.world.hand.advance(LATER)
    report = scene.drain()
    assert (report.total("stale"), report.acknowledged) == (1, 1)
    assert not scene.queue.waiting and scene.world.objects() == before
    assert scene.registered() == {"a", "b"} and set(scene.table.snapshot().names) == {"a", "b"}
    # The next pass sends a message of its own, and that one is carried out.
    assert scene.mark({"a"}) == 1
    assert scene.drain().total("deleted") == 1 and scene.files() == {"b"}


def test_a_late_update_is_refused_once_its_message_was_given_up(scene: Scene) -> None:
    """The consumer may only drop the message when its removal can land no more: else the object has no message."""

    def give_up() -> None:
        assert scene.drain().total("waiting") == 1
        scene.world.hand.advance(LATER)
        assert scene.drain().total("stale") == 1

    with pytest.raises(CommitConflictError):
        scene.mark({"a"}, between(scene, give_up))
    assert scene.registered() == {"a", "b"} and scene.files() == {"a", "b"}
    assert not scene.queue.waiting


def test_the_messages_of_the_retried_mark_are_the_ones_that_count(scene: Scene) -> None:
    """A conflict makes the clean-up read and mark again; the first messages are stale intents then, and harmless."""
    first = iter([True])

    def give_up() -> None:
        if next(first, False):
            scene.drain()
            scene.world.hand.advance(LATER)
            scene.drain()

    with pytest.raises(CommitConflictError):
        scene.mark({"a"}, between(scene, give_up))
    scene.mark({"a"}, between(scene, give_up))
    report = scene.drain()
    assert report.total("deleted") == 1 and scene.files() == {"b"} and not scene.queue.waiting


def test_another_change_of_the_shard_makes_the_message_stale_at_once(scene: Scene) -> None:
    """The list still has the id, and its version is newer than the message's: the update lost its race."""
    scene.world.push(scene.table, ["x", "y", "z"])  # x and z share a shard
    with pytest.raises(Stopped):
        scene.mark({"x"}, between(scene, die))
    scene.mark({"z"})
    report = scene.drain()
    assert (report.total("deleted"), report.total("stale"), report.retried) == (1, 1, 0)
    assert scene.registered() == scene.files() == {"a", "b", "x", "y"}


def test_two_quick_consumers_give_the_same_message_up_once(scene: Scene) -> None:
    """Both fence the shard; the one that loses looks again. Duplicates end stale."""
    with pytest.raises(Stopped):
        scene.mark({"a"}, between(scene, die))
    scene.queue.send([ledgers.decode_batch(payload, "x")[0] for _, payload in scene.queue.waiting.values()])
    scene.world.hand.advance(LATER)
    total = scene.drain()
    scene.world.hand.advance(LATER)
    total.merge(scene.drain())
    assert total.total("stale") == 2 and not scene.queue.waiting and scene.registered() == {"a", "b"}


def test_when_one_of_a_pair_cannot_be_sent_nothing_leaves_the_registry(
    make_world: Callable[..., World], kind: str
) -> None:
    """T5: the segment lives in both storages, its second message is refused. The first one becomes a stale intent."""
    scene = Scene(make_world(kind, tiered=True))
    world = scene.world
    world.offload(scene.table, {"a"}, UUID)
    scene.queue.refuse = lambda batch: batch.ledger_type is LedgerType.OFFLOAD_LEDGER
    before = world.objects()
    with pytest.raises(ConnectionError):
        scene.mark({"a"})
    assert scene.queue.sent == 1 and scene.registered() == {"a", "b"}
    report = scene.drain()
    world.hand.advance(LATER)
    report.merge(scene.drain())
    assert report.total("stale") == 1 and world.objects() == before
    scene.queue.refuse = lambda batch: False
    assert scene.mark({"a"}) == 1
    report = scene.drain()
    assert {kind: report.counts["deleted", kind] for kind in LedgerType} == dict.fromkeys(LedgerType, 1)
    assert scene.files() == {"b"}
    world.check(scene.table)


def test_when_no_message_can_be_sent_the_registry_is_not_written(scene: Scene) -> None:
    """Scenario 3: all sends fail, no metadata write at all."""
    scene.queue.refuse = lambda batch: True
    versions = [shard.version for shard in scene.world.shards(scene.table)]
    with pytest.raises(ConnectionError):
        scene.mark({"a", "b"})
    assert [shard.version for shard in scene.world.shards(scene.table)] == versions


def test_a_message_without_a_zxid_waits_for_every_lease(scene: Scene) -> None:
    """Nobody can tell which readers are older than the mark, so all of them are waited for."""
    scene.mark({"a"})
    with scene.table.snapshot():
        assert scene.drain().total("waiting") == 1
        scene.world.hand.advance(LATER)
    assert scene.drain().total("deleted") == 1


def test_without_the_fence_a_late_update_orphans_the_object(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The revert test of the fence: the message is dropped, the removal lands after, and nothing knows the object."""
    monkeypatch.setattr(LedgerDeleter, "_give_up", lambda *_: True)

    def give_up() -> None:
        scene.drain()
        scene.world.hand.advance(LATER)
        scene.drain()

    scene.mark({"a"}, between(scene, give_up))
    assert scene.registered() == {"b"} and not scene.queue.waiting and scene.files() == {"a", "b"}


def test_without_rule_t1_a_quick_consumer_orphans_the_object(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The revert test of waiting: "in use" acknowledged at once is what PIP-186's final text says."""
    monkeypatch.setattr(Judge, "_registered", lambda *_: (Verdict.STALE, "in use"))
    scene.mark({"a"}, between(scene, lambda: scene.drain()))
    assert scene.registered() == {"b"} and not scene.queue.waiting and scene.files() == {"a", "b"}
