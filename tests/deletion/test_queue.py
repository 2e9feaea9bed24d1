"""The queue in ZooKeeper: claims, settlements, retries and dead letters, with several consumers and bad connections."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from airflow_provider_segments.core.deletion.messages import Backlog, Settlement, UnreadableLetters
from airflow_provider_segments.core.deletion.queue import DeletionQueue
from airflow_provider_segments.core.model import ledger as ledgers
from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.model.ledger import DeletionBatch, PendingDeleteLedgerInfo
from airflow_provider_segments.core.zookeeper import Op, ZooKeeperSession
from airflow_provider_segments.exceptions import CorruptRecordError
from tests.deletion.support import LATER, FaultyStore, World, batch_of
from tests.support.sessions import LossySession, expire, settings
from tests.support.tables import contents
from tests.support.tcp_proxy import TcpProxy

ENTRY = "00000000-0000-4000-8000-000000000001"
GENERATION = f"{ENTRY}:7:build:1"


def some(count: int = 1, table: str = "t", first: int = 0) -> DeletionBatch:
    """A batch of messages about objects that are not there."""
    return batch_of(table, ENTRY, GENERATION, *(f"s{number}" for number in range(first, first + count)))


def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


# --- claims


def test_a_batch_is_for_one_consumer_until_it_is_settled(local: World) -> None:
    for number in range(6):
        local.enqueue(some(1, first=number))
    one, two = (DeletionQueue(local.store.cluster) for _ in range(2))
    mine, yours = one.receive(4), two.receive(4)
    assert len(mine) == 4 and len(yours) == 2
    assert not {d.batch_id for d in mine} & {d.batch_id for d in yours}
    assert not one.receive(4) and not two.receive(4)
    assert one.settle([(delivery, Settlement()) for delivery in mine]) == [True] * 4
    two.release(yours)
    assert {d.batch_id for d in one.receive(4)} == {d.batch_id for d in yours}


def drain_in_child(world: World, hosts: str, ready: int, go: int) -> int:
    """A process that drains; its report goes through ``ready``."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(90)
        os.read(go, 1)
        with ZooKeeperSession.connect(settings(hosts)) as session:
            report = world.on_session(session).drain()
        os.write(ready, (json.dumps(report.as_dict()) + "\n").encode())
        code = 0
    finally:
        os._exit(code)


def test_consumers_in_several_processes_settle_every_message_once(
    make_world: Callable[..., World], zk_hosts: str
) -> None:
    world = make_world("files", batches_at_once=2)
    table = world.table()
    names = [f"s{number}" for number in range(60)]
    world.push(table, names)
    for start in range(0, 60, 3):
        world.mark(table, set(names[start : start + 3]))
    reading, writing = os.pipe()
    go, start_them = os.pipe()
    children = [drain_in_child(world, zk_hosts, writing, go) for _ in range(4)]
    os.write(start_them, b"gggg")
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(writing)
    with os.fdopen(reading) as pipe:
        reports = [json.loads(line) for line in pipe]
    assert codes == [0] * 4 and len(reports) == 4
    assert sum(report["deleted"] for report in reports) == 60
    assert sum(report["acknowledged"] for report in reports) == 60
    assert sum(report["open"] for report in reports) == 0 and not world.stored() and not world.batches()
    world.check(table)


def test_the_claims_of_a_killed_consumer_come_back_by_themselves(
    make_world: Callable[..., World], zk_hosts: str
) -> None:
    """kill -9 after the claim: nobody can have its batches until its session times out, and then somebody does."""
    world = make_world("files")
    table = world.table()
    world.push(table, ["a", "b"])
    world.mark(table, {"a", "b"})
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            session = ZooKeeperSession.connect(settings(zk_hosts, session_timeout=1.5))
            got = world.on_session(session).store.queue.receive(10)
            os.write(writing, str(len(got)).encode())
            signal.pause()
        finally:
            os._exit(1)
    assert int(os.read(reading, 10)) > 0
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert world.drain().deliveries == 0 and world.store.queue.backlog().in_flight == 2
    claims = world.store.paths.deletion_claims
    until(lambda: not [name for name in world.store.session.children(claims) if "consumer" not in name])
    assert world.drain().total("deleted") == 2
    world.check(table)


# --- settling


@pytest.mark.parametrize("reclaimed", [False, True], ids=["free again", "claimed by another"])
def test_a_consumer_whose_session_ended_settles_nothing(
    make_world: Callable[..., World], zk_hosts: str, reclaimed: bool
) -> None:
    """C14. A claim that another consumer has made since looks just like one's own: only the seat tells."""
    world = make_world("files")
    world.enqueue(some(3))
    with ZooKeeperSession.connect(settings(zk_hosts)) as session:
        slow = world.on_session(session)
        deliveries = slow.store.queue.receive(10)
        expire(slow.store.session)
        quick = world.store.queue.receive(10) if reclaimed else []
        before = contents(world.store)
        assert slow.store.queue.settle([(delivery, Settlement()) for delivery in deliveries]) == [False]
        slow.store.queue.release(deliveries)
        assert contents(world.store) == before
        if reclaimed:
            assert world.store.queue.settle([(quick[0], Settlement())]) == [True]
        else:
            assert slow.drain().total("already_gone") == 3, "it takes a new seat"
    assert world.store.queue.backlog() == Backlog()


def test_a_drain_whose_session_ends_in_the_middle_counts_its_messages_as_open(
    make_world: Callable[..., World], zk_hosts: str
) -> None:
    world = make_world("files")
    table = world.table()
    world.push(table, ["a", "b"])
    world.mark(table, {"a", "b"})
    with ZooKeeperSession.connect(settings(zk_hosts)) as session:
        slow = world.on_session(session)
        first = iter([True])
        storage = FaultyStore(
            world.store.storage, after=lambda _: expire(slow.store.session) if next(first, False) else None
        )
        report = slow.with_storage(storage).drain()
    assert report.open == 2 and report.bytes == 20
    assert report.total("already_gone") == report.acknowledged == 2 and report.deliveries == 4
    assert not world.batches() and not world.stored()


def test_messages_that_only_wait_are_not_written_again(local: World) -> None:
    table = local.table()
    local.push(table, ["a", "b"])
    with table.snapshot():
        local.mark(table, {"a", "b"})
        local.drain()
        (path, *_) = local.pending_paths()
        node = local.store.session.get(path)
        assert node is not None and node.version == 0 and local.store.queue.backlog().retry == 2
    assert local.drain_all().total("deleted") == 2


def test_a_batch_that_is_too_large_to_write_back_goes_on_in_smaller_ones(local: World) -> None:
    """Somebody's messages with 880,000 bytes: half of them fail for the last time, and half are put off."""
    listed = tuple(
        PendingDeleteLedgerInfo(f"s{n}", f"f{n}", error="x" * 840, attempts=10 * (n % 2), first_ms=1)
        for n in range(980)
    )
    local.enqueue(some().with_ledgers(listed), "b.980")
    queue = local.store.queue
    (delivery,) = queue.receive(1)
    batch, _ = ledgers.decode_batch(delivery.payload, "x")
    half = batch.with_ledgers(batch.ledgers[::2])
    big = batch.with_ledgers(tuple(replace_error(one, "y" * 1500) for one in batch.ledgers[1::2]))
    assert queue.settle([(delivery, Settlement(half, local.hand.now_ms + 1, big))]) == [True]
    assert queue.backlog().retry == 490 and queue.backlog().dead == 490 and queue.backlog().pending == 0
    local.hand.advance(LATER)
    assert local.drain().total("already_gone") == 490


def replace_error(one: PendingDeleteLedgerInfo, error: str) -> PendingDeleteLedgerInfo:
    import msgspec

    return msgspec.structs.replace(one, error=error)


# --- unknown outcomes


def test_lost_replies_change_nothing_about_what_a_drain_counts(make_world: Callable[..., World], zk_hosts: str) -> None:
    """Any write of claim, settlement or seat may be lost before or after it landed, one or two in a row."""
    with LossySession.connect(settings(zk_hosts)) as session:
        for pattern in ("b", "a", "bb", "aa", "ab", "ba", "-b", "-a", "--b", "--a", "--ba", "--ab", "---a", "---b"):
            world = make_world("files")
            table = world.table()
            world.push(table, ["a", "b"])
            world.mark(table, {"a"})
            world.mark(table, {"b"})
            losses = iter({"b": "before", "a": "after", "-": ""}[letter] for letter in pattern)
            session.decide = lambda losses=losses: next(losses, "")  # type: ignore[misc,method-assign]
            lossy = world.on_session(session)
            report = lossy.drain()
            for _ in range(2):  # what an unknown claim has left is claimed by this very session: it ends with it
                if world.batches():
                    expire(lossy.store.session)
                    report.merge(lossy.drain())
            assert report.total("deleted") == 2, pattern
            assert report.acknowledged == 2 and report.open == 0, pattern
            assert not world.batches() and not world.stored()


@pytest.mark.parametrize("fate", ["before", "after"])
def test_a_redrive_or_purge_whose_reply_is_lost_can_be_repeated(
    make_world: Callable[..., World], zk_hosts: str, fate: str
) -> None:
    from airflow_provider_segments.exceptions import OutcomeUnknownError

    for purge in (False, True):
        world = dead_world(make_world, 3)
        (name, _) = next(iter(world.store.queue.dead_letters()))
        with LossySession.connect(settings(zk_hosts)) as session:
            queue = world.on_session(session).store.queue
            queue.prepare()
            act = queue.purge if purge else queue.redrive
            session.decide = lambda: fate  # type: ignore[method-assign]
            with pytest.raises(OutcomeUnknownError):
                act(name)
            session.decide = lambda: ""  # type: ignore[method-assign]
            assert act(name) == (0 if fate == "after" else 3)
        assert world.store.queue.backlog() == Backlog(pending=0 if purge else 3, next_due_ms=None if purge else 0)


def test_a_drain_survives_connections_that_are_cut(make_world: Callable[..., World], zk_hosts: str) -> None:
    """A real connection, cut again and again while a consumer is at work."""
    world = make_world("files", batches_at_once=1)
    table = world.table()
    names = [f"s{number}" for number in range(12)]
    world.push(table, names)
    for name in names:
        world.mark(table, {name})
    with TcpProxy(zk_hosts) as proxy, ZooKeeperSession.connect(settings(proxy.hosts)) as session:
        count = iter(range(1000))
        storage = FaultyStore(world.store.storage, before=lambda _: proxy.cut() if next(count) % 3 == 0 else None)
        report = world.on_session(session, storage).drain()
    while world.batches():
        until(
            lambda: (
                not [one for one in world.store.session.children(world.store.paths.deletion_claims) if one[0] != "c"]
            )
        )
        report.merge(world.drain())
    assert report.total("deleted", "already_gone") >= 12 - report.open
    assert not world.stored()
    world.check(table)


# --- backlog, partitions, names


def test_the_backlog_counts_messages_from_names_alone(local: World) -> None:
    queue = local.store.queue
    local.table()
    assert queue.backlog() == Backlog() and not queue.receive(3)
    queue.send([some(3), some(4)])
    assert queue.backlog() == Backlog(pending=7, next_due_ms=0)
    deliveries = queue.receive(2)
    assert queue.backlog().pending == 7, "what is being worked on is in flight"
    due = local.hand.now_ms + 500
    three = next(one for one in deliveries if one.batch_id.endswith(".3"))
    four = next(one for one in deliveries if one.batch_id.endswith(".4"))
    queue.settle([(three, Settlement(some(2), due)), (four, Settlement(dead=some(4)))])
    assert queue.backlog() == Backlog(retry=2, dead=4, next_due_ms=due)
    assert queue.backlog().in_flight == 2
    local.hand.advance(499)
    assert not queue.receive(5)
    local.hand.advance(1)
    (again,) = queue.receive(5)
    assert again.batch_id == three.batch_id and again.marked == three.marked
    assert len(ledgers.decode_batch(again.payload, "x")[0].ledgers) == 2


def test_partitions_spread_batches_and_may_change_at_any_time(local: World) -> None:
    def queue(partitions: int) -> DeletionQueue:
        return local.store.replace(deletion=DeletionSettings(parallelism=partitions)).queue

    queue(8).send([some(1, first=number) for number in range(60)])
    parents = [f"{local.store.paths.pending_deletions}/{number}" for number in range(8)]
    assert min(len(names) for names in local.store.session.children_many(parents)) >= 1
    queue(2).send([some(1, first=60)])
    assert queue(1).backlog().pending == 61
    assert len(queue(3).receive(100)) == 61


def test_ids_that_are_no_numbers_make_names_too(local: World) -> None:
    clock = replace(local.store.clock, new_id=iter(f"id-{n}" for n in range(99)).__next__)
    queue = local.store.replace(clock=clock).queue
    queue.send([some(2), some(3)])
    assert queue.backlog().pending == 5 and len(queue.receive(5)) == 2


def test_messages_with_the_longest_names_fit_into_their_transactions(local: World) -> None:
    """The longest names, two storages, many shards: a mark is cut into as many transactions as it needs."""
    from airflow_provider_segments.core.deletion.mark import Marker
    from airflow_provider_segments.core.model.ledger import OffloadContext
    from airflow_provider_segments.core.model.segment import SegmentRecord, encode_record
    from airflow_provider_segments.core.registry import shard as shards
    from airflow_provider_segments.core.zookeeper import Create
    from airflow_provider_segments.core.zookeeper.operations import MAX_REQUEST, request_size

    table = local.table()
    context = OffloadContext("s3", "b" * 60, ENTRY)
    parent = f"{local.store.paths.registry('t')}/2013-01-01"
    local.store.session.ensure([parent])
    for number in range(300):
        records = [
            encode_record(SegmentRecord(f"{n:0200}", f"{n:0250}", 1, 1, 1, offload=context))
            for n in range(number * 5, number * 5 + 5)
        ]
        path = f"{parent}/{ENTRY}.{'s' * 190}.1.{number}"
        local.store.session.commit([Create(path, shards.encode(ENTRY, 7, records))])
    sizes: list[int] = []

    class Measured(ZooKeeperSession):
        def commit_many(self, transactions: Sequence[Sequence[Op]]):  # type: ignore[no-untyped-def]
            sizes.extend(request_size(ops) for ops in transactions)
            return super().commit_many(transactions)

    with Measured.connect(local.store.session.settings) as session:
        marker = Marker(local.store.replace(session=session).cluster, "t")
        assert marker.mark(local.shards(table), lambda _: False, reason="r" * 5000) == 1500
    assert max(sizes) <= MAX_REQUEST and local.store.queue.backlog().pending == 3000
    assert not local.shards(table) and all(len(batch.reason) == 200 for batch in local.batches())
    local.store = local.store.replace(tiered=local.store.storage)
    report = local.drain()  # wrong tiered storage: 1,500 long errors go into the batches
    assert report.total("already_gone") == 1500 and report.total("failed") == 1500


# --- retry arithmetic


def failing(world: World, times: int) -> World:
    """The same cluster with a store whose first deletes fail."""
    count = iter(range(times))
    return world.with_storage(
        FaultyStore(world.store.storage, lambda *_: "503" if next(count, None) is not None else "")
    )


@pytest.mark.parametrize("failures", range(11))
def test_after_so_many_failures_a_success_is_still_a_success(local: World, failures: int) -> None:
    table = local.table()
    local.push(table, ["a"])
    local.mark(table, {"a"})
    world = failing(local, failures)
    for number in range(failures):
        report = world.drain()
        assert (report.total("failed"), report.in_flight) == (1, 1)
        (batch,) = local.batches()
        assert batch.ledgers[0].attempts == number + 1
        assert report.next_due_ms == local.hand.now_ms + 600_000
        local.hand.advance(600_000)
    assert world.drain().total("deleted") == 1
    assert not local.stored() and local.store.queue.backlog() == Backlog()


def dead_world(make_world: Callable[..., World], messages: int) -> World:
    world = make_world("files", max_retry_delete_count=0)
    table = world.table()
    names = [f"s{number}" for number in range(0, 2 * messages, 2)]
    world.push(table, [f"s{number}" for number in range(2 * messages)])
    world.mark(table, set(names))
    assert failing(world, 10**6).drain().total("dead") == messages
    return world


def test_always_failing_is_eleven_attempts_and_one_dead_letter(local: World) -> None:
    """Scenario 21; T9: max 10 means 11 attempts."""
    table = local.table()
    local.push(table, ["a"])
    local.mark(table, {"a"})
    world = failing(local, 10**6)
    begun = local.hand.now_ms
    reports = [world.drain()]
    while world.store.queue.backlog().in_flight:
        local.hand.advance(LATER)
        reports.append(world.drain())
    assert len(reports) == 11
    assert [report.total("failed") for report in reports] == [1] * 10 + [0]
    assert [report.total("dead") for report in reports] == [0] * 10 + [1]
    (letters,) = local.dead()
    (one,) = letters.batch.ledgers
    assert (one.attempts, one.first_ms, letters.dead_ms) == (11, begun, local.hand.now_ms) and "503" in one.error
    local.hand.advance(10 * LATER)
    assert local.drain().deliveries == 0 and len(local.stored()) == 1
    assert local.store.queue.backlog() == Backlog(dead=1)


def test_redriven_dead_letters_begin_anew_and_are_deleted(make_world: Callable[..., World]) -> None:
    world = dead_world(make_world, 3)
    queue = world.store.queue
    assert sum(queue.redrive(name) for name, _ in list(queue.dead_letters())) == 3
    assert queue.redrive("gone") == 0 and queue.backlog() == Backlog(pending=3, next_due_ms=0)
    assert all(one.attempts == 0 and not one.error for batch in world.batches() for one in batch.ledgers)
    assert world.drain().total("deleted") == 3 and queue.backlog() == Backlog()


def test_purged_dead_letters_are_forgotten_and_their_objects_stay(make_world: Callable[..., World]) -> None:
    world = dead_world(make_world, 2)
    queue = world.store.queue
    assert sum(queue.purge(name) for name, _ in list(queue.dead_letters())) == 2
    assert queue.purge("gone") == 0 and queue.backlog() == Backlog() and len(world.stored()) == 4


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"\xff", b"[" * 50_000, b'{"dead_ms":1}', b'{"dead_ms":1,"batch":{},"format":1}']
)
def test_dead_letters_that_cannot_be_decoded_are_shown_and_can_only_be_purged(local: World, payload: bytes) -> None:
    from airflow_provider_segments.core.zookeeper import Create

    local.store.queue.prepare()
    local.store.session.commit([Create(f"{local.store.paths.dead_letters}/broken.7", payload)])
    ((name, letters),) = local.store.queue.dead_letters()
    assert isinstance(letters, UnreadableLetters) and (name, letters.payload) == ("broken.7", payload)
    with pytest.raises(CorruptRecordError, match=r"broken\.7"):
        local.store.queue.redrive("broken.7")
    assert local.store.queue.backlog().dead == 7 and local.store.queue.purge("broken.7") == 7
    assert local.store.queue.backlog().dead == 0


def test_without_the_seat_a_consumer_settles_what_another_has_claimed(
    make_world: Callable[..., World], zk_hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert test of the seat: the other's claim is taken for one's own."""
    real = DeletionQueue._settlement_ops
    monkeypatch.setattr(DeletionQueue, "_settlement_ops", lambda *arguments: real(*arguments)[1:])
    world = make_world("files")
    world.enqueue(some(3))
    with ZooKeeperSession.connect(settings(zk_hosts)) as session:
        slow = world.on_session(session)
        (delivery,) = slow.store.queue.receive(10)
        expire(slow.store.session)
        assert world.store.queue.receive(10)
        assert slow.store.queue.settle([(delivery, Settlement())]) == [True]
