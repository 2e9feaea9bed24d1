"""Both phases are killed at each of their ZooKeeper writes and at each storage call, on both storages.

A child process does the work and ends itself (``os._exit``, nothing is cleaned up) right before or right after its k-th
write, or before, in the middle of and after a delete. Then its session is ended, as ZooKeeper does after the time-out,
somebody else does the same, and storage, registry, queue and dead letters are compared:

* I1: what is registered has its object.
* I2: an object that is not registered has a message in the queue or the dead letters, or a sweep that will find it.
* I3: an object whose metadata differs from the message is there.
* I4: every message ends in exactly one of acknowledged and dead letters: the queue is empty in the end.

The failure matrix of the notes (C15, the lost queue, is reconciliation's):

| point | here |
| --- | --- |
| C1 before any send | ``Mark``, killed before its first write |
| C2 some sends done; C4 all sent, before the registry's update | cannot be with this queue: sends and update are one transaction. Elsewhere: ``test_external_queue``, ``..._never_lands_...`` and ``..._one_of_a_pair_...`` |
| C3 sent, the acknowledgement lost | ``test_c3_c5_...`` (the same transaction); elsewhere as C2 |
| C5 update sent, answer lost | ``test_c3_c5_a_mark_whose_answer_is_lost_...`` |
| C6 update refused | ``test_c6_...`` |
| C7 updated, before consumption | ``Mark``, killed after its write |
| C8 received, before the storage call | ``Drain``, killed after its claim; ``test_c8_to_c10_...[before]`` |
| C9 in the middle of the storage delete | ``test_c8_to_c10_...[middle]`` |
| C10 deleted, before the acknowledgement | ``test_c8_to_c10_...[after]``; ``Drain``, killed before it settles |
| C11 acknowledgement sent, its answer lost | ``Drain``, killed after it settles; ``test_queue``, ``..._unknown_...`` |
| C12 retry sent, origin not acknowledged | cannot be: one transaction. ``Retry`` is killed on both sides of it |
| C13 dead letter sent, origin not acknowledged | cannot be: one transaction. ``Die`` is killed on both sides of it; the two-step settlement fails ``test_the_harness_finds_...`` |
| C14 another owner meanwhile | ``test_queue``, ``test_a_consumer_whose_session_ended_settles_nothing`` |
"""  # noqa: E501

from __future__ import annotations

import ast
import os
import pickle
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from kazoo.client import KazooClient

from airflow_provider_segments.core.deletion.messages import Delivery, Settlement
from airflow_provider_segments.core.deletion.queue import DeletionQueue
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.storage.base import ObjectStore, OwnedOutcome
from airflow_provider_segments.core.zookeeper import CommitConflictError, SetData, ZooKeeperSession
from airflow_provider_segments.exceptions import OutcomeUnknownError
from tests.deletion.support import LATER, FaultyStore, World, batch_of
from tests.support.children import KILLED, dies
from tests.support.sessions import DyingSession, LossySession, settings

MOST_WRITES = 25


class DyingStore(FaultyStore):
    """Ends the process before, in the middle of, or after its ``at``-th delete."""

    at = 0
    when = ""

    def delete_owned(self, owners: Mapping[str, str]) -> OwnedOutcome:
        mine = self.calls.get("delete_owned", 0) + 1 == self.at
        if mine and self.when == "before":
            os._exit(KILLED)
        if mine and self.when == "middle":
            self.inner.delete_owned(dict(list(owners.items())[: len(owners) // 2]))
            os._exit(KILLED)
        outcome = super().delete_owned(owners)
        if mine and self.when == "after":
            os._exit(KILLED)
        return outcome


class Case(ABC):
    """A table of its own, work on it, and what must be true in the end. A foreign object and a message about it are
    always there."""

    most_attempts = 10

    def __init__(self, world: World, name: str) -> None:
        self.world = world.with_settings(max_retry_delete_count=self.most_attempts, batches_at_once=2)
        self.table = world.table(name)
        self.entry_id = world.push(self.table, ["a", "b", "c", "d"])
        self.generation = world.generation(self.table, self.entry_id)
        self.prefix = f"{name}/{self.entry_id}/"
        self.foreign = self.prefix + "x.build.1.parquet"
        world.put(world.store.storage, self.foreign, owner_metadata("u", "x", self.generation))
        self.prepare()
        self.check()

    def message(self, *names: str) -> None:
        self.world.enqueue(batch_of(self.table.name, self.entry_id, self.generation, *names))

    def prepare(self) -> None:
        """Bring everything to where the work begins."""

    @abstractmethod
    def act(self, world: World) -> None:
        """The work, as its task does it; the same for every attempt."""

    def storage(self, inner: ObjectStore) -> ObjectStore:
        """The store that the work sees."""
        return inner

    def finish(self) -> None:
        """What somebody does afterwards, until nothing is left to do."""
        self.act(self.world)
        self.world.drain_all()

    def check(self) -> None:
        self.world.check(self.table, foreign=[self.foreign])

    def check_done(self) -> None:
        left = {record.name for shard in self.world.shards(self.table) for record in shard.records}
        assert left == {"d"}
        keys = {self.prefix + "d.build.1.parquet", self.foreign}
        assert self.world.stored(self.table.name) == keys
        assert not self.world.dead() and not self.world.batches()


class Mark(Case):
    def act(self, world: World) -> None:
        world.mark(world.store.table(self.table.name), {"a", "b", "c"})


class Drain(Case):
    """A round of two batches and one of one; the last message is about the foreign object."""

    def prepare(self) -> None:
        self.world.mark(self.table, {"a", "b"})
        self.world.mark(self.table, {"c"})
        self.message("x")

    def act(self, world: World) -> None:
        world.drain()


class Retry(Case):
    """Some messages fail and are put off; then they are delivered again, and put off again."""

    def prepare(self) -> None:
        self.world.mark(self.table, {"a", "b", "c"})

    def act(self, world: World) -> None:
        for _ in range(2):
            world.drain()
            world.hand.advance(LATER)

    def storage(self, inner: ObjectStore) -> ObjectStore:
        return FaultyStore(inner, lambda operation, key: "503" if "/a." in key else "")

    def check_done(self) -> None:
        super().check_done()


class Die(Retry):
    """A message that fails for the last time, beside others that do not fail."""

    most_attempts = 0

    def act(self, world: World) -> None:
        world.drain()

    def finish(self) -> None:
        broken = self.world.with_storage(self.storage(self.world.store.storage))
        broken.drain_all()
        assert len(self.world.dead()) == 1, "one dead letter, however often its delivery was cut off"
        for name, _ in self.world.store.queue.dead_letters():
            self.world.store.queue.redrive(name)
        self.world.drain_all()


class Redrive(Case):
    """Dead letters are enqueued anew."""

    most_attempts = 0

    def prepare(self) -> None:
        self.world.mark(self.table, {"a", "b", "c"})
        broken = FaultyStore(self.world.store.storage, lambda operation, key: "403")
        assert self.world.with_storage(broken).drain().total("dead") == 3

    def act(self, world: World) -> None:
        for name, _ in list(world.store.queue.dead_letters()):
            world.store.queue.redrive(name)


class Sweep(Case):
    """What nobody registered is found, and what is found is deleted."""

    def prepare(self) -> None:
        for number in range(3):
            key = f"{self.prefix}left{number}.build.1.parquet"
            owner = owner_metadata(self.table.name, f"left{number}", self.generation)
            self.world.put(self.world.store.storage, key, owner)
        self.world.store.session.commit([self.table._context.marker.sweep_op(self.entry_id, reason="test")])
        self.world.mark(self.table, {"a", "b", "c"})

    def act(self, world: World) -> None:
        world.drain()


CASES = [Mark, Drain, Retry, Die, Redrive, Sweep]


@dataclass(frozen=True)
class Death:
    """Where the child dies: at a write of ZooKeeper, or in a storage call."""

    write: int = 0
    landed: bool = False
    call: int = 0
    when: str = ""


def killed(case: Case, hosts: str, death: Death) -> bool:
    """Do the case's work in a child that dies as told; whether it died. Its ZooKeeper session has ended after that."""
    reading, writing = os.pipe()

    def work() -> None:
        signal.alarm(60)
        with DyingSession.connect(settings(hosts)) as session:
            os.write(writing, repr(session._client.client_id).encode())
            session.writes, session.at, session.landed = 0, death.write, death.landed
            storage = DyingStore(case.storage(pickle.loads(pickle.dumps(case.world.store.storage))))
            storage.at, storage.when = death.call, death.when
            case.act(case.world.on_session(session, storage))

    died = dies(work)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        session_id = pipe.read()
    if died:
        end_session(hosts, ast.literal_eval(session_id.decode()))
    return died


def end_session(hosts: str, client_id: tuple[int, bytes]) -> None:
    """End a session of a process that is dead, as the server does after the time-out."""
    client = KazooClient(hosts=hosts, client_id=client_id)
    client.start()
    client.stop()
    client.close()


def on_both(fast: Sequence[type[Case]], steps: Sequence[type[Case]]) -> Any:
    """Every step on every storage; on S3, where each kill takes half a second, those of ``fast`` by default."""
    return pytest.mark.parametrize(
        ("kind", "step"),
        [
            pytest.param(
                kind,
                step,
                id=f"{step.__name__}-{kind}",
                marks=[pytest.mark.slow] if kind == "s3" and step not in fast else [],
            )
            for kind in ("files", "s3")
            for step in steps
        ],
    )


@pytest.mark.parametrize("landed", [False, True], ids=["before the write", "after the write"])
@on_both([Drain], CASES)
def test_killed_at_any_write_nothing_is_lost_and_nothing_orphaned(
    world: World, zk_hosts: str, step: Callable[[World, str], Case], landed: bool
) -> None:
    for at in range(1, MOST_WRITES):
        case = step(world, f"t{at}")
        died = killed(case, zk_hosts, Death(write=at, landed=landed))
        case.check()
        case.finish()
        case.check()
        case.check_done()
        if not died:
            print(f"{step.__name__}: killed at each of {at - 1} writes")
            assert at > 1
            return
    raise AssertionError("the work never ran out of writes")


@pytest.mark.parametrize("when", ["before", "middle", "after"])
@on_both([Drain, Die], [Drain, Retry, Die, Sweep])
def test_c8_to_c10_killed_around_and_within_any_delete_nothing_is_lost_and_nothing_orphaned(
    world: World, zk_hosts: str, step: Callable[[World, str], Case], when: str
) -> None:
    """A delete that was cut off has deleted some of its objects; each of them is missing next time, and missing is a
    success."""
    for call in range(1, MOST_WRITES):
        case = step(world, f"t{call}")
        died = killed(case, zk_hosts, Death(call=call, when=when))
        case.check()
        case.finish()
        case.check()
        case.check_done()
        if not died:
            assert call > 1
            return
    raise AssertionError("the work never ran out of deletes")


@pytest.mark.parametrize("fate", ["before", "after"])
def test_c3_c5_a_mark_whose_answer_is_lost_left_the_old_world_or_the_new(
    world: World, zk_hosts: str, fate: str
) -> None:
    with LossySession.connect(settings(zk_hosts)) as session:
        case = Mark(world, "t")
        session.decide = lambda: fate  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknownError):
            case.act(world.on_session(session))
    left = {record.name for shard in world.shards(case.table) for record in shard.records}
    assert (left == {"a", "b", "c", "d"}) == (fate == "before")
    assert bool(world.batches()) == (fate == "after")
    case.check()
    case.finish()
    case.check_done()


def test_c6_a_mark_that_was_refused_has_queued_nothing(world: World) -> None:
    """Another writer changed the shard: the messages are in the refused transaction too."""
    case = Mark(world, "t")
    found = world.shards(case.table)
    for shard in found:
        node = world.store.session.get(shard.name.path)
        assert node is not None
        world.store.session.commit([SetData(shard.name.path, node.data, node.version)])
    with pytest.raises(CommitConflictError):
        case.table._context.marker.mark(found, lambda record: record.name == "d", reason="test")
    assert not world.batches()
    case.finish()
    case.check_done()


def test_the_harness_finds_a_settlement_in_two_steps(
    make_world: Callable[..., World], zk_hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert test of C13: acknowledged first and buried after, a message is lost when the process dies between."""

    def in_two_steps(self: DeletionQueue, settlements: Sequence[tuple[Delivery, Settlement]]) -> list[bool]:
        for delivery, settlement in settlements:
            ops = self._settlement_ops(delivery, settlement)
            self._session.commit_many([ops[:3]])
            self._session.commit_many([ops[3:]])
        return [True] * len(settlements)

    monkeypatch.setattr(DeletionQueue, "settle", in_two_steps)
    world = make_world("files")
    with pytest.raises(AssertionError, match="I2: nobody knows of"):
        for at in range(1, MOST_WRITES):
            case = Die(world, f"t{at}")
            if not killed(case, zk_hosts, Death(write=at)):
                return
            case.check()
            world.drain_all()


def test_the_harness_counts_every_write(local: World, zk_hosts: str) -> None:
    """The number of writes that are enumerated is the number of zxids the work takes."""
    case = Drain(local, "t")
    probe = f"/{local.store.paths.cluster}/probe"
    with DyingSession.connect(settings(zk_hosts)) as session:
        before = made(session, probe)
        session.writes = 0
        case.act(local.on_session(session))
        counted = session.writes
        after = made(session, f"{probe}2")
    assert after - before == counted + 1


def made(session: ZooKeeperSession, path: str) -> int:
    session.ensure([path])
    node: Any = session.get(path)
    return int(node.czxid)
