"""The lock box in ZooKeeper: fences, waiting, lost replies, kills at every write, and processes that race."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_segments.clock import Clock, system_now_ms
from airflow_provider_segments.core.locking import box as lock_store
from airflow_provider_segments.core.locking.box import LockBox
from airflow_provider_segments.core.locking.state import KEPT_MS
from airflow_provider_segments.core.locking.types import (
    Allocated,
    AllocationRequest,
    Denied,
    Granted,
    Lock,
    LockRequest,
    Revoked,
    granted_lock,
)
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import (
    Check,
    CommitConflictError,
    Create,
    Delete,
    SetData,
    ZooKeeperSession,
)
from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    LockLostError,
    LockRevokedError,
    OutcomeUnknownError,
    RecordTooLargeError,
)
from tests.locking.helpers import KINDS, LEASE_MS, days, new_ids, of_kind, segments, until, wanted
from tests.support.children import dies
from tests.support.sessions import CountingSession, DyingSession, LossySession, settings
from tests.support.tables import QUICK, HandClock
from tests.support.tcp_proxy import TcpProxy

FORK = multiprocessing.get_context("fork")
PROCESSES = 8
ROUNDS = 25


@pytest.fixture
def box(store: SegmentStore) -> LockBox:
    """An empty box."""
    return LockBox(store.cluster, "t")


@pytest.fixture
def target(store: SegmentStore) -> str:
    """A znode that stands for what is published."""
    path = f"/{store.paths.cluster}/published"
    store.session.ensure([path])
    return path


def lock(box: LockBox, *request: Any, **other: Any) -> Lock:
    """Acquire what must be granted."""
    return granted_lock("t", box.acquire(wanted(*request, **other)))


def ids(box: LockBox, group: str, key: str, count: int = 1, **other: Any) -> Allocated:
    """Allocate what must be given."""
    result = box.allocate(new_ids(group, key, count, **other))
    assert isinstance(result, Allocated), result
    return result


def publish(session: ZooKeeperSession, target: str, checks: list[Check]) -> None:
    """The transaction of a push: its fences, and what becomes visible."""
    session.commit([*checks, SetData(target, b"published", 0)])


def check_fences(box: LockBox, session: ZooKeeperSession) -> None:
    """The fences are those of the active locks, at the versions that the box says."""
    active = [one for one in box.locks() if one.active]
    assert set(session.children(box.path)) == {one.lock_id for one in active}
    nodes = session.get_many([box.fence_path(one.lock_id) for one in active])
    assert [node.version for node in nodes if node] == [one.fence for one in active]


# --- fencing


def test_a_push_whose_locks_all_hold_publishes(store: SegmentStore, box: LockBox, target: str) -> None:
    locks = [lock(box, "g", day, day + 1) for day in range(3)]
    publish(store.session, target, box.fence([one.lock_id for one in locks], group="g", task="g"))


LOSSES: dict[str, Callable[[LockBox, Lock], object]] = {
    "revoked by a higher priority": lambda box, _: lock(box, "thief", 2, 3, priority=99),
    "revoked by a person": lambda box, lost: box.revoke([lost.lock_id], "thief"),
    "released": lambda box, _: box.release("g", "g"),
    "released with its group": lambda box, _: box.release_group("g"),
    "removed with its task": lambda box, _: box.remove_task("g", "g", 1),
    "released for this task only": lambda box, lost: (
        lock(box, "g", 2, 3, task="other"),
        box.release("g", "g", lock_ids=[lost.lock_id]),
    ),
    "released and acquired again": lambda box, _: (box.release("g", "g"), lock(box, "g", 2, 3)),
}


@pytest.mark.parametrize("how", LOSSES)
def test_a_push_that_lost_any_of_its_locks_cannot_publish(
    store: SegmentStore, box: LockBox, target: str, how: str
) -> None:
    """One of three is lost after the push has looked: the transaction is refused, and the next look says why."""
    locks = [lock(box, "g", day, day + 1) for day in range(3)]
    names = [one.lock_id for one in locks]
    checks = box.fence(names, group="g", task="g")
    LOSSES[how](box, locks[2])
    with pytest.raises(CommitConflictError):
        publish(store.session, target, checks)
    with pytest.raises(LockLostError) as caught:
        box.fence(names, group="g", task="g")
    assert isinstance(caught.value, LockRevokedError) == ("revoked" in how)
    assert "thief" in str(caught.value) or "revoked" not in how
    node = store.session.get(target)
    assert node is not None and node.version == 0
    check_fences(box, store.session)


def test_without_the_fence_a_push_that_lost_its_lock_publishes(store: SegmentStore, box: LockBox, target: str) -> None:
    """Revert test: the checks are what refuses it."""
    names = [lock(box, "g").lock_id]
    checks = box.fence(names, group="g", task="g")
    box.release("g", "g")
    assert checks
    publish(store.session, target, [])


def test_a_push_that_took_too_long_loses_to_who_took_its_lock(store: SegmentStore, target: str) -> None:
    hand = HandClock()
    box = LockBox(store.replace(clock=hand.clock()).cluster, "t")
    mine = lock(box, "g", priority=99)
    hand.advance(LEASE_MS)
    checks = box.fence([mine.lock_id], group="g", task="g")
    lock(box, "next", priority=0)
    with pytest.raises(CommitConflictError):
        publish(store.session, target, checks)
    with pytest.raises(LockRevokedError, match=r"by next of next .* after its lease had ended"):
        box.fence([mine.lock_id], group="g", task="g")


def test_a_lease_that_is_over_still_protects_a_push_until_somebody_takes_the_lock(
    store: SegmentStore, target: str
) -> None:
    hand = HandClock()
    box = LockBox(store.replace(clock=hand.clock()).cluster, "t")
    mine = lock(box, "g")
    hand.advance(10 * LEASE_MS)
    publish(store.session, target, box.fence([mine.lock_id], group="g", task="g"))


def test_what_happens_to_other_locks_does_not_refuse_a_push(store: SegmentStore, box: LockBox, target: str) -> None:
    mine = lock(box, "g")
    ids(box, "h", "first", first=7, end=8)
    checks = box.fence([mine.lock_id], group="g", task="g")
    lock(box, "other", 3, 4)
    ids(box, "h", "s", first=7, end=8)
    box.release("other", "other")
    box.renew("g", "g", 9 * LEASE_MS)
    lock(box, "g", 0, 1, task="second")
    publish(store.session, target, checks)


def test_a_task_that_leaves_does_not_refuse_the_others_for_good(store: SegmentStore, box: LockBox, target: str) -> None:
    mine = lock(box, "g", task="one")
    lock(box, "g", task="two")
    late = box.fence([mine.lock_id], group="g", task="one")
    box.release("g", "one")
    with pytest.raises(CommitConflictError):
        publish(store.session, target, late)
    publish(store.session, target, box.fence([mine.lock_id], group="g", task="two"))


def test_new_segments_are_fenced_by_the_locks_that_their_ids_came_with(
    store: SegmentStore, box: LockBox, target: str
) -> None:
    """A compaction's by the lock on the segments it replaces, an append's by its own."""
    old = granted_lock("t", box.acquire(segments("g", 0, 1, 2)))
    out = box.allocate(AllocationRequest(lock=LockRequest.of_held(old, "g"), key="out", chunk=days(0, 1), count=2))
    assert isinstance(out, Allocated) and (out.partitions, out.lock.lock_id) == (range(3, 5), old.lock_id)
    late = ids(box, "g", "late", first=5, end=6)
    names = [old.lock_id, late.lock.lock_id]
    checks = box.fence(names, group="g", task="g")
    assert {check.path for check in checks} == {box.fence_path(one) for one in names}
    with pytest.raises(LockLostError) as caught:
        box.fence([*names, "never granted"], group="g", task="g")
    assert caught.value.rule == "lock-lost"
    box.revoke([late.lock.lock_id], "a person")
    with pytest.raises(CommitConflictError):
        publish(store.session, target, checks)
    publish(store.session, target, box.fence(names[:1], group="g", task="g"))


def test_each_of_a_group_s_own_overlapping_locks_has_a_fence_of_its_own(
    store: SegmentStore, box: LockBox, target: str
) -> None:
    """Losing the EXCLUSIVE day refuses what relies on it, not what relies on the APPEND month around it."""
    month, day = lock(box, "g", 0, 31, "APPEND"), lock(box, "g", 3, 4)
    both = box.fence([month.lock_id, day.lock_id], group="g", task="g")
    box.revoke([day.lock_id], "a person")
    with pytest.raises(CommitConflictError):
        publish(store.session, target, both)
    publish(store.session, target, box.fence([month.lock_id], group="g", task="g"))
    check_fences(box, store.session)


# --- requests


def test_a_denied_request_writes_nothing(store: SegmentStore, box: LockBox) -> None:
    lock(box, "g")
    before = store.session.get(box.path)
    assert isinstance(box.acquire(wanted("h")), Denied)
    assert box.release("h", "h") == 0 and box.release_group("h") == 0
    assert store.session.get(box.path) == before


def test_the_box_of_a_table_needs_no_config(store: SegmentStore, box: LockBox) -> None:
    held = lock(store.table("t").locks, "g")
    assert box.locks() == (held,) and box.path == store.paths.lock_box("t")


def test_several_allocations_are_one_change_or_none(store: SegmentStore, box: LockBox) -> None:
    lock(box, "other", 2, 3)
    before = store.session.get(box.path)
    wants = [new_ids("g", f"s{day}", first=day, end=day + 1) for day in range(5)]
    results = box.allocate_all(wants)
    assert [type(result) for result in results] == [Denied] and store.session.get(box.path) == before
    box.release_group("other")
    given = box.allocate_all(wants)
    assert [one.partitions for one in given if isinstance(one, Allocated)] == [range(1)] * 5
    versions = [one.version for one in box.locks()]
    assert len(versions) == 5 and versions == sorted(set(versions)), "a version each"
    node = store.session.get(box.path)
    assert node is not None and node.version == 2, "one write each, not one a lock"
    check_fences(box, store.session)


def test_versions_go_up_though_the_clocks_of_the_processes_differ(store: SegmentStore, box: LockBox) -> None:
    hands = [HandClock(now_ms) for now_ms in (1_700_000_000_000, 1_699_999_970_000, 1_700_000_000_500)]
    boxes = [store.replace(clock=hand.clock()).table("t").locks for hand in hands]
    versions = []
    for number in range(12):
        kind = ("EXCLUSIVE", "APPEND", "SHARED", "REPLACE")[number % 4]
        versions.append(lock(boxes[number % 3], f"g{number}", number, number + 1, kind).version)
        versions.append(ids(boxes[number % 3], f"h{number}", "s", first=50 + number, end=51 + number).lock.version)
        hands[number % 3].advance(-number)
        if number % 5 == 4:
            box.release_group(f"g{number}")
    assert versions == sorted(set(versions))


def test_a_full_box_says_what_to_do(box: LockBox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_store, "MAX_BOX_BYTES", 2_000)
    with pytest.raises(RecordTooLargeError, match=r"table 't': its lock box .* Release locks"):
        for day in range(100):
            lock(box, f"g{day}", day, day + 1)
    assert box.release_group("g0") == 1


def test_as_many_locks_as_fit_can_be_revoked_and_released_at_once(store: SegmentStore, box: LockBox) -> None:
    with pytest.raises(RecordTooLargeError):
        for start in itertools.count(0, 100):
            box.allocate_all(
                [
                    new_ids("group", f"{day}", first=day, end=day + 1, kind="EXCLUSIVE", priority=0, task="task")
                    for day in range(start, start + 100)
                ]
            )
    held = len(box.locks())
    assert held > 1000
    box.revoke([one.lock_id for one in box.locks()], "a person")
    assert store.session.children(box.path) == []
    assert box.release_group("group") == held and not box.locks()


def test_a_damaged_box_is_never_taken_for_an_empty_one(store: SegmentStore, box: LockBox) -> None:
    lock(box, "g")
    node = store.session.get(box.path)
    assert node is not None
    store.session.commit([SetData(box.path, b"{", node.version)])
    for call in (box.locks, lambda: lock(box, "h"), lambda: box.release("g", "g")):
        with pytest.raises(CorruptRecordError, match="LOCKS/t"):
            call()


def test_what_a_dead_holder_left_goes_a_day_after_its_lease(store: SegmentStore) -> None:
    """Any write by anybody takes it away, fence and all; the holder that comes back late is told."""
    hand = HandClock()
    box = LockBox(store.replace(clock=hand.clock()).cluster, "t")
    mine = lock(box, "dead")
    lock(box, "low", 2, 3, priority=0)
    lock(box, "high", 2, 3, priority=9)
    hand.advance(KEPT_MS + LEASE_MS)
    lock(box, "other", 5, 6)
    assert [one.group for one in box.locks()] == ["other"]
    check_fences(box, store.session)
    with pytest.raises(LockLostError, match="dropped long after its lease"):
        box.fence([mine.lock_id], group="dead", task="dead")


def test_a_thousand_chunks_leave_a_small_record(store: SegmentStore, box: LockBox) -> None:
    """Appends to 1,000 daily chunks, released: what stays are the counters, folded, and no id is given twice."""
    for start in range(0, 1000, 100):
        box.allocate_all(
            [new_ids("g", f"s{day}", 1 + day % 3, first=day, end=day + 1) for day in range(start, start + 100)]
        )
        box.release_group("g")
    node = store.session.get(box.path)
    assert node is not None and len(node.data) < 40_000 and not store.session.children(box.path)
    assert all(
        ids(box, "h", f"s{day}", first=day, end=day + 1).partitions.start > day % 3 for day in range(0, 1000, 97)
    )


# --- waiting


def test_a_wait_ends_when_the_lock_is_released(store: SegmentStore, box: LockBox) -> None:
    lock(box, "g")
    timer = threading.Timer(0.3, box.release, ("g", "g"))
    timer.start()
    began = time.monotonic()
    result = box.acquire_blocking(wanted("h"), 30)
    assert isinstance(result, Granted) and 0.25 < time.monotonic() - began < 9, "it would look again after 10 s"
    timer.join()


def test_a_wait_ends_when_the_lease_does(box: LockBox) -> None:
    gone = lock(box, "gone", lease_ms=400)
    began = time.monotonic()
    assert isinstance(box.acquire_blocking(wanted("next"), 30), Granted)
    assert system_now_ms() >= gone.lease_until_ms
    assert time.monotonic() - began < 9, "it would look again after 10 s"


def test_a_wait_that_is_over_says_who_is_in_the_way(box: LockBox) -> None:
    lock(box, "g")
    began = time.monotonic()
    result = box.acquire_blocking(wanted("h"), 0.3)
    assert isinstance(result, Denied) and [one.group for one in result.blockers] == ["g"]
    assert 0.25 < time.monotonic() - began < 9


def test_a_revoked_lock_is_not_waited_for(box: LockBox) -> None:
    lock(box, "low", priority=0)
    lock(box, "high", priority=9)
    assert isinstance(box.acquire_blocking(wanted("low", priority=0), 30), Revoked)


# --- lost replies


def test_a_lost_reply_neither_doubles_nor_loses_anything(store: SegmentStore, zk_hosts: str) -> None:
    """The same random calls on two boxes, one over a connection that breaks before and after writes: at the end, and at
    every moment, the two hold the same, down to the ids."""
    dice = random.Random(7)
    with LossySession.connect(settings(zk_hosts)) as session:
        losing = [False]
        session.decide = lambda: dice.choice(["", "before", "after", "after"]) if losing[0] else ""
        hand = HandClock()
        pair = [
            LockBox(
                store.replace(session=one, clock=replace(hand.clock(), new_id=_numbers())).cluster, name, retry=QUICK
            )
            for one, name in ((session, "lossy"), (store.session, "plain"))
        ]
        for number in range(250):
            call = _random_call(dice, number)
            losing[0] = True
            found = [call(pair[0])]
            losing[0] = False
            found.append(call(pair[1]))
            assert pair[0].read() == pair[1].read(), f"call {number}"
            assert found[0] == found[1]
            hand.advance(dice.choice([0, 1000, LEASE_MS]))
        check_fences(pair[0], store.session)
        assert session.writes > 150, "too few calls changed anything"


def _numbers() -> Callable[[], str]:
    counter = itertools.count(1)
    return lambda: f"lock-{next(counter)}"


def _random_call(dice: random.Random, number: int) -> Callable[[LockBox], Any]:
    """A call and what it answers, without what only says whether this attempt or an earlier one did it."""
    group, day, kind = dice.choice("abc"), dice.randrange(4), dice.choice(KINDS)
    rank = {"a": 0, "b": 50, "c": 50}[group]
    match dice.randrange(6):
        case 0 | 1:
            return lambda box: getattr(box.acquire(of_kind(kind, group, day, day + 2, priority=rank)), "lock", None)
        case 2 | 3:
            ask = new_ids(group, f"s{number % 5}/{day}", first=day, end=day + 1, priority=rank)
            return lambda box: getattr(box.allocate(ask), "partitions", None)
        case 4:
            return lambda box: (box.release_group(group), None)[1]  # how many went is known to the try that did it
    return lambda box: box.remove_task(group, group, number)


@pytest.mark.parametrize("fault", ["reply dropped", "connection cut"])
def test_a_connection_that_breaks_during_a_write_gives_each_id_once(
    store: SegmentStore, zk_hosts: str, fault: str
) -> None:
    """A real connection through a proxy that swallows the reply of every third write, or is cut at it."""
    with TcpProxy(zk_hosts) as proxy:
        how = settings(proxy.hosts, session_timeout=2.0, operation_timeout=20.0)
        with CountingSession.connect(how) as session:
            box = LockBox(store.replace(session=session).cluster, "t")
            box.locks()
            given: list[int] = []
            for number in range(6):
                if number % 3 == 0:
                    _break(proxy, session, fault)
                given += ids(box, "g", f"s{number}", 2).partitions
    assert given == list(range(12))
    assert [len(one.allocated) for one in store.table("t").locks.locks()] == [6]


def _break(proxy: TcpProxy, session: CountingSession, fault: str) -> None:
    """At the next write, once."""

    def before() -> None:
        session.before = lambda: None  # type: ignore[method-assign]
        if fault == "connection cut":
            threading.Timer(0.001, proxy.cut).start()
            return
        proxy.drop_replies()
        threading.Timer(0.3, recover).start()

    def recover() -> None:
        proxy.heal()
        proxy.cut()

    session.before = before  # type: ignore[method-assign]


def test_an_outcome_that_nobody_can_tell_is_said_to_be_unknown(store: SegmentStore, zk_hosts: str) -> None:
    with LossySession.connect(settings(zk_hosts)) as session:
        box = LockBox(store.replace(session=session).cluster, "t", retry=replace(QUICK, attempts=1))
        lock(box, "first")
        session.decide = lambda: "after"
        with pytest.raises(OutcomeUnknownError):
            lock(box, "g", 3, 4)
        session.decide = lambda: ""
        assert lock(box, "g", 3, 4).tasks == ("g",)
        assert len(box.locks()) == 2


# --- kills


def _steal(box: LockBox) -> Any:
    return box.acquire(wanted("thief", 0, 3, priority=99))


KILLED: dict[str, Callable[[LockBox], Any]] = {
    "first lock": lambda box: lock(box, "new", 7, 8),
    "revoking three locks": _steal,
    "allocating": lambda box: ids(box, "new", "s", 3, first=7, end=8),
    "allocating in several chunks": lambda box: box.allocate_all(
        [new_ids("new", f"s{day}", 2, first=day, end=day + 1) for day in (7, 8, 9)]
    ),
    "a wider append lock": lambda box: lock(box, "a", 10, 14, "APPEND"),
    "releasing": lambda box: box.release("g", "g"),
    "releasing a group": lambda box: box.release_group("g"),
    "removing a task": lambda box: box.remove_task("g", "g", 4),
    "renewing": lambda box: box.renew("h", "h", 10 * LEASE_MS),
    "revoking on request": lambda box: box.revoke([one.lock_id for one in box.locks()], "a person"),
}


@pytest.mark.parametrize("landed", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("step", KILLED)
def test_a_step_killed_at_any_write_leaves_old_or_new_and_can_be_run_again(
    store: SegmentStore, zk_hosts: str, step: str, landed: bool
) -> None:
    for at in range(1, 20):
        hand = HandClock()
        box = LockBox(store.replace(clock=hand.clock()).cluster, f"t{at}")
        if step != "first lock":
            for day in range(3):
                lock(box, "g", day, day + 1, priority=0)
            lock(box, "h", 5, 6)
            lock(box, "a", 11, 12, "APPEND")
        before = box.read()
        died = _killed(step, zk_hosts, store, f"t{at}", hand.clock(), at, landed)
        check_fences(box, store.session)
        assert died or box.read() != before
        KILLED[step](box)
        once = _without_names(box.read())
        check_fences(box, store.session)
        KILLED[step](box)
        assert _without_names(box.read()) == once, "running it again changes nothing"
        if not died:
            assert at > 1
            return
    raise AssertionError("the step never ran out of writes")


def _without_names(box: Any) -> Any:
    return [(one.group, one.tasks, one.interval, one.partitions, one.active) for one in box.locks], box.counters


def _killed(step: str, hosts: str, store: SegmentStore, table: str, clock: Clock, at: int, landed: bool) -> bool:
    def work() -> None:
        with DyingSession.connect(settings(hosts)) as session:
            session.writes, session.at, session.landed = 0, at, landed
            KILLED[step](LockBox(store.replace(session=session, clock=clock).cluster, table, retry=QUICK))

    return dies(work)


class Worker:
    """A process of its own with a lock box of its own; it is told what to do over a pipe."""

    def __init__(self, hosts: str, store: SegmentStore, work: Callable[..., Any], *arguments: Any) -> None:
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_work, args=(hosts, store, theirs, work, arguments), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def hear(self) -> Any:
        assert self.pipe.poll(240), "the worker says nothing"
        answer = self.pipe.recv()
        assert not isinstance(answer, BaseException), answer
        return answer

    def end(self) -> None:
        if self.process.is_alive():
            os.kill(self.pid, signal.SIGKILL)
        self.process.join(20)


def _work(hosts: str, store: SegmentStore, pipe: Any, work: Callable[..., Any], arguments: Any) -> None:
    try:
        with ZooKeeperSession.connect(settings(hosts)) as session:
            box = LockBox(store.replace(session=session).cluster, "t")
            pipe.send(work(box, session, pipe, *arguments))
    except BaseException as error:
        pipe.send(RuntimeError(repr(error)))


@pytest.fixture
def workers(zk_hosts: str, store: SegmentStore) -> Iterator[Callable[..., Worker]]:
    """Starts processes; ends those that are left."""
    made: list[Worker] = []

    def start(work: Callable[..., Any], *arguments: Any) -> Worker:
        made.append(Worker(zk_hosts, store, work, *arguments))
        return made[-1]

    yield start
    for worker in made:
        worker.end()


def _hold_and_publish(box: LockBox, session: ZooKeeperSession, pipe: Any, target: str) -> Any:
    """Looks at its locks, is stopped right before it publishes, and tries."""
    mine = [lock(box, "g", day, day + 1, lease_ms=700, priority=99) for day in range(2)]
    names = [one.lock_id for one in mine]
    checks = box.fence(names, group="g", task="g")
    pipe.send("ready")
    pipe.recv()
    try:
        publish(session, target, checks)
    except CommitConflictError as refused:
        try:
            box.fence(names, group="g", task="g")
        except LockRevokedError as lost:
            return refused.reason, str(lost)
    return "published", ""


def test_a_holder_stopped_past_its_lease_cannot_publish(
    store: SegmentStore, box: LockBox, target: str, workers: Callable[..., Worker]
) -> None:
    """SIGSTOP; another takes one of the two locks once the lease is over; SIGCONT."""
    holder = workers(_hold_and_publish, target)
    assert holder.hear() == "ready"
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        taken = box.acquire_blocking(wanted("next", 1, 2, priority=0), 60)
    finally:
        holder.pipe.send("go")
        os.kill(holder.pid, signal.SIGCONT)
    assert isinstance(taken, Granted) and [one.group for one in taken.revoked] == ["g"]
    reason, why = holder.hear()
    assert reason == "no-node" and "next of next" in why and "after its lease" in why
    node = store.session.get(target)
    assert node is not None and node.version == 0


def test_a_holder_stopped_past_its_lease_publishes_when_nobody_took_its_locks(
    store: SegmentStore, box: LockBox, target: str, workers: Callable[..., Worker]
) -> None:
    holder = workers(_hold_and_publish, target)
    assert holder.hear() == "ready"
    os.kill(holder.pid, signal.SIGSTOP)
    until(lambda: all(one.abandoned(system_now_ms()) for one in box.locks()))
    os.kill(holder.pid, signal.SIGCONT)
    holder.pipe.send("go")
    assert holder.hear() == ("published", "")


def _hold(box: LockBox, session: ZooKeeperSession, pipe: Any, lease_ms: int) -> None:
    lock(box, "dead", 0, 5, lease_ms=lease_ms, priority=99)
    ids(box, "dead", "s", first=7, end=8, lease_ms=lease_ms, priority=99)
    pipe.send("ready")
    pipe.recv()


def test_a_holder_killed_leaves_nothing_locked_for_longer_than_its_lease(
    store: SegmentStore, box: LockBox, workers: Callable[..., Worker]
) -> None:
    holder = workers(_hold, 5_000)
    assert holder.hear() == "ready"
    os.kill(holder.pid, signal.SIGKILL)
    assert isinstance(box.acquire(wanted("next", 1, 2)), Denied)
    ended_ms = max(one.lease_until_ms for one in box.locks())
    assert isinstance(box.acquire_blocking(wanted("next", 0, 9), 60), Granted)
    assert 0 <= system_now_ms() - ended_ms < 9_000
    check_fences(box, store.session)


# --- races


def _race(
    box: LockBox, session: ZooKeeperSession, pipe: Any, number: int
) -> tuple[list[tuple[Interval, int]], dict[str, int], int]:
    """Allocate for itself in time chunks that all share, under its own locks, and retry one allocation in four. Returns
    the ids, the versions of the locks, and how often it was alone."""
    pipe.recv()
    mine: list[tuple[Interval, int]] = []
    versions: dict[str, int] = {}
    held = 0
    for step in range(ROUNDS):
        ask = new_ids(f"p{number}", f"s{step}", 1 + step % 2, first=step % 3, end=step % 3 + 1)
        given = box.allocate(ask)
        assert isinstance(given, Allocated), given
        if step % 4 == 0:
            again = box.allocate(ask)
            assert isinstance(again, Allocated) and again.partitions == given.partitions and again.again
        mine += [(given.chunk, one) for one in given.partitions]
        versions[given.lock.lock_id] = given.lock.version
        if step % 8 == 7:
            assert box.release(f"p{number}", f"p{number}") >= 1
        held += _exclusive_turn(box, session, number)
    return mine, versions, held


def _exclusive_turn(box: LockBox, session: ZooKeeperSession, number: int) -> int:
    """Whoever holds the one exclusive lock makes a znode that must not be there, and removes it."""
    result = box.acquire(wanted(f"p{number}", 20, 21, task="turn"))
    if not isinstance(result, Granted):
        return 0
    alone = f"{box.path.rpartition('/')[0]}/alone"
    checks = box.fence([result.lock.lock_id], group=f"p{number}", task="turn")
    session.commit([*checks, Create(alone)])
    session.commit([*checks, Delete(alone, 0)])
    assert box.release(f"p{number}", "turn") == 1
    return 1


def test_eight_processes_get_no_id_and_no_version_twice_and_lose_no_lock(
    store: SegmentStore, box: LockBox, workers: Callable[..., Worker]
) -> None:
    crew = [workers(_race, number) for number in range(PROCESSES)]
    for worker in crew:
        worker.pipe.send("go")
    answers = [worker.hear() for worker in crew]
    given = [segment for mine, _, _ in answers for segment in mine]
    assert len(given) == len(set(given)) == PROCESSES * (ROUNDS + ROUNDS // 2)
    assert sum(held for *_, held in answers) > 0
    versions = [version for _, own, _ in answers for version in own.values()]
    assert len(versions) == len(set(versions)) > PROCESSES and max(versions) <= box.read().version_ms
    counters = {(one.start_ms, one.next) for one in box.read().counters}
    expected = {(at.start_ms, 1 + max(one for chunk, one in given if chunk == at)) for at in {at for at, _ in given}}
    assert counters == expected, "an id was skipped or lost"
    assert {one.group for one in box.locks()} == {f"p{number}" for number in range(PROCESSES)}, "a lock was lost"
    check_fences(box, store.session)


def _contend(box: LockBox, session: ZooKeeperSession, pipe: Any, number: int, target: str) -> int:
    """Increment a number under the exclusive lock, read and written in separate steps: only the lock keeps it right."""
    pipe.recv()
    for step in range(10):
        ask = wanted(f"p{number}", 0, 1, task=f"s{step}", lease_ms=120_000)
        granted_lock("t", box.acquire_blocking(ask, 120))
        node = session.get(target)
        assert node is not None
        session.commit([SetData(target, str(int(node.data or b"0") + 1).encode(), node.version)])
        box.release(f"p{number}", f"s{step}")
    return 10


def test_processes_that_wait_for_one_lock_each_get_it(
    store: SegmentStore, box: LockBox, target: str, workers: Callable[..., Worker]
) -> None:
    crew = [workers(_contend, number, target) for number in range(4)]
    for worker in crew:
        worker.pipe.send("go")
    assert [worker.hear() for worker in crew] == [10] * 4
    node = store.session.get(target)
    assert node is not None and node.data == b"40" and not box.locks()
