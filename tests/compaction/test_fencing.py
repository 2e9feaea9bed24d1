"""A push that has lost a lock publishes nothing, wherever it was when it lost it, and says who took the lock.

Every write to ZooKeeper that a push or a compaction makes is enumerated, as in ``tests/core/test_crash.py``: the lock
is taken, the process stopped or killed, right before the k-th write is sent or right after it landed, for every k.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_segments.core.compaction import locks as compaction_locks
from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.locking import Granted, Lock, LockRequest, Priority, granted_lock
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.registry import registry
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import LockDeniedError, LockLostError, LockRevokedError
from airflow_provider_segments.spark import compact
from airflow_provider_segments.spark.compact import CompactedGroup
from tests.compaction.support import (
    FORK,
    HOUR_MS,
    ROWS,
    HookedSession,
    InProcess,
    append,
    compact_once,
    rows_in,
    settings_of,
    settle,
    versioned_table,
)
from tests.support.sessions import settings
from tests.support.tables import DAY_MS, JANUARY_1, build, named, on_session, registered, visible

MOST_WRITES = 60
LEASE_MS = 600
DAY = Interval(JANUARY_1, JANUARY_1 + DAY_MS)
WHENS = ["before", "after"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Failures of compactions are what is wanted here."""
    log = logging.getLogger(compact.__name__)
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compactions take their locks for a moment only."""
    monkeypatch.setattr(compact, "LEASE_MS", LEASE_MS)
    monkeypatch.setattr(compaction_locks, "LEASE_MS", LEASE_MS)


def steal(table: Table, interval: Interval = DAY, priority: int = Priority.REALTIME) -> Lock:
    """Take the whole time, with a priority that revokes everybody else."""
    request = LockRequest(group="thieves", task="thief", interval=interval, priority=priority)
    return granted_lock(table.name, table.locks.acquire(request))


def give_back(table: Table) -> None:
    table.locks.release("thieves", "thief")


class Push(ABC):
    """A push of rows of its own, and what readers see before it and after it."""

    granularity = "DAY"

    def __init__(self, store: SegmentStore, name: str) -> None:
        self.store = store
        self.table = versioned_table(store, name, granularity=self.granularity)
        append(self.table, range(ROWS))
        append(self.table, range(ROWS, 2 * ROWS), JANUARY_1 + HOUR_MS)
        self.before = visible(self.table)
        self.rows = list(range(2 * ROWS))

    @abstractmethod
    def act(self, table: Table) -> None:
        """The push; raises when it fails."""

    def published(self) -> bool:
        """Whether readers see something else than before."""
        return visible(self.table) != self.before

    def rows_after(self) -> list[int]:
        """The rows that readers find once it is published."""
        return self.rows


class Append(Push):
    """Under the lock that its stage takes."""

    def act(self, table: Table) -> None:
        append(table, range(100, 100 + ROWS), JANUARY_1)

    def rows_after(self) -> list[int]:
        return [*self.rows, *range(100, 100 + ROWS)]


class Compaction(Push):
    """Segment locks on the inputs."""

    def act(self, table: Table) -> None:
        outcomes = self.run(table)
        if not outcomes or outcomes[0].error or outcomes[0].left_alone:
            raise FailedCompaction(outcomes)

    def run(self, table: Table) -> list[CompactedGroup]:
        return compact_once(table, "compactor")


class ToDays(Compaction):
    """A lock on the whole time chunk."""

    granularity = "HOUR"

    def run(self, table: Table) -> list[CompactedGroup]:
        return compact_once(table, "compactor", settings_of(table, granularity="DAY"))


class FailedCompaction(Exception):  # noqa: N818 - says what it is
    """A group that was not published, or left alone because it is locked."""

    def __init__(self, outcomes: list[CompactedGroup]) -> None:
        super().__init__(outcomes[0].error if outcomes and outcomes[0].error else "denied")


PUSHES = [Append, Compaction, ToDays]


def attempted(push: Push, session: HookedSession) -> str:
    """Run the push through ``session``; what it failed with, or nothing."""
    try:
        push.act(on_session(push.store, session).table(push.table.name))
    except (FailedCompaction, LockRevokedError, LockDeniedError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("kind", PUSHES)
def test_a_push_whose_lock_is_taken_at_any_of_its_writes_publishes_all_or_nothing_and_says_who_took_it(
    store: SegmentStore, zk_hosts: str, kind: Callable[[SegmentStore, str], Push], when: str
) -> None:
    """Also: nothing of it stays once it was reverted, and the next push goes through."""
    failed = 0
    for at in range(1, MOST_WRITES):
        push = kind(store, f"t{at}")
        with HookedSession.connect(settings(zk_hosts)) as session:
            taken: list[Lock] = []
            session.hook(at, when, lambda push=push, taken=taken: taken.append(steal(push.table)))  # type: ignore[misc]
            problem = attempted(push, session)
            writes = session.writes
        if not taken:
            print(f"{kind.__name__}: lock taken {when} each of {writes} writes, {failed} did not publish")
            assert failed >= 2 and not problem
            return
        named_it = "of thieves" in problem or problem.endswith("denied")
        assert push.published() == (not problem), f"write {at}: {problem}"
        assert named_it or not problem, f"write {at}: {problem}"
        assert rows_in(push.table) == (push.rows_after() if push.published() else push.rows)
        failed += bool(problem)
        give_back(push.table)
        if problem:
            left = [one.entry_id for one in push.table.lineage().in_state(EntryState.IN_PROGRESS)]
            assert kind is Append or not left, (
                f"write {at}: the compaction has left {left}, whose inputs nobody can compact"
            )
            revert_leftovers(push.table)
            push.act(push.table)
        assert rows_in(push.table) == push.rows_after()
        settle(store, push.table.name, granularity=push.granularity)
        assert rows_in(push.table) == push.rows_after()
        assert registered(push.table) == visible(push.table)
    raise AssertionError("the push never ran out of writes")


def revert_leftovers(table: Table) -> None:
    """What the teardown of a failed push does."""
    for entry in list(table.lineage().in_state(EntryState.IN_PROGRESS)):
        table.revert(entry.entry_id, force=True)


@pytest.mark.parametrize("kind", PUSHES)
def test_without_its_fence_a_push_publishes_without_its_lock(
    store: SegmentStore, zk_hosts: str, kind: Callable[[SegmentStore, str], Push], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert test of the fence: the sweep above would see it."""
    monkeypatch.setattr(TableContext, "fence", lambda self, guard: [])
    violations = 0
    for at in range(1, MOST_WRITES):
        push = kind(store, f"t{at}")
        with HookedSession.connect(settings(zk_hosts)) as session:
            lost: list[bool] = []

            def take(push: Push = push, lost: list[bool] = lost) -> None:
                done = push.published()
                steal(push.table)
                lost.append(not done and any(not lock.active for lock in push.table.locks.locks()))

            session.hook(at, "before", take)
            attempted(push, session)
        if not lost:
            break
        violations += lost[0] and push.published()
    print(f"{kind.__name__}: {violations} violations without the fence")
    assert violations > 0


def two_locks(table: Table) -> list[HeldLock]:
    """Locks of one task on two days."""
    requests = [
        LockRequest(group="g", task="task", interval=Interval(DAY.start_ms + at, DAY.end_ms + at)) for at in (0, DAY_MS)
    ]
    locks = [granted_lock(table.name, table.locks.acquire(request)) for request in requests]
    return [HeldLock(lock.lock_id, "g", "task") for lock in locks]


@pytest.mark.parametrize(("at_once", "least"), [(False, 5), (True, 1)], ids=["in steps", "at once"])
@pytest.mark.parametrize("which", [0, 1])
def test_of_two_locks_either_one_that_is_revoked_stops_the_push(
    store: SegmentStore, zk_hosts: str, monkeypatch: pytest.MonkeyPatch, which: int, at_once: bool, least: int
) -> None:
    """Druid checks none when there are several. Here a push of many shards, whose stage is several transactions, or one
    that is published in one."""
    if not at_once:
        monkeypatch.setattr(registry.Registry, "in_one_request", lambda self, payloads: None)
    stopped = 0
    for at in range(1, MOST_WRITES):
        table = versioned_table(store, f"t{at}")
        held = two_locks(table)
        with HookedSession.connect(settings(zk_hosts)) as session:
            mine = on_session(store, session).table(table.name)
            taken: list[str] = []

            def take(table: Table = table, held: list[HeldLock] = held, taken: list[str] = taken) -> None:
                table.locks.revoke([held[which].lock_id], "an operator")
                taken.append("yes")

            session.hook(at, "before", take)
            problem = None
            try:
                ticket = mine.start(locks=held, stager="build").ticket
                assert ticket is not None
                mine.publish(ticket, build(mine, ticket, named(mine, ticket.entry_id, 6)))
            except LockRevokedError as error:
                problem = error
        if not taken:
            print(f"two locks, number {which} revoked: stopped at {stopped} of {at - 1} writes")
            assert stopped >= least
            return
        published = bool(visible(table))
        assert published == (problem is None), f"write {at}: {problem}"
        assert problem is None or "an operator" in str(problem)
        stopped += problem is not None
    raise AssertionError("the push never ran out of writes")


# --- processes that are stopped and killed


@dataclass
class Child:
    """A process that compacts, and stops or kills itself at a write."""

    process: Any
    answer: Any
    stopped: bool = False
    log: list[str] = field(default_factory=list)

    def wait(self) -> None:
        """Until it has stopped itself, or is gone."""
        _, status = os.waitpid(self.process, os.WUNTRACED)
        self.stopped = os.WIFSTOPPED(status)

    def go_on(self) -> str:
        """Let it go on; what became of it."""
        os.kill(self.process, signal.SIGCONT)
        return self.result()

    def result(self) -> str:
        """What it says at its end."""
        said: str = self.answer.recv() if self.answer.poll(60) else "nothing"
        os.waitpid(self.process, 0)
        return said


@contextmanager
def compacting_child(
    push: Push, hosts: str, at: int, when: str, how: signal.Signals, **session: Any
) -> Iterator[Child]:
    """Run the push in a process that sends itself ``how`` at its ``at``-th write."""
    mine, theirs = FORK.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            with HookedSession.connect(settings(hosts, **session)) as own:
                own.hook(at, when, lambda: os.kill(os.getpid(), how))
                theirs.send(attempted(push, own) or "published")
        except BaseException as error:
            theirs.send(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)
    theirs.close()
    child = Child(pid, mine)
    try:
        yield child
    finally:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def take_after_lease(table: Table, limit_s: float = 30.0) -> tuple[Lock, float]:
    """Wait for the lock of the whole time at the priority of a compaction; the lock, and how many seconds it took."""
    began = time.monotonic()
    request = LockRequest(group="thieves", task="thief", interval=DAY, priority=Priority.COMPACTION)
    result = table.locks.acquire_blocking(request, limit_s)
    assert isinstance(result, Granted), result
    return result.lock, time.monotonic() - began


def holds_inputs(table: Table) -> bool:
    """Whether the compaction holds its lock."""
    return any(lock.active and lock.group == "compactor" for lock in table.locks.locks())


def sweep_stops(store: SegmentStore, hosts: str, kind: Callable[[SegmentStore, str], Push], whens: list[str]) -> int:
    """Stop the compaction at every write after it has its lock; returns how often it was kept from publishing."""
    fenced = 0
    for at in range(1, MOST_WRITES):
        for when in whens:
            push = kind(store, f"t{at}{when}")
            with compacting_child(push, hosts, at, when, signal.SIGSTOP) as child:
                child.wait()
                if not child.stopped:
                    return fenced
                fenced += stopped_past_its_lease(push, child, f"{when} write {at}")
    raise AssertionError("the compaction never ran out of writes")


def stopped_past_its_lease(push: Push, child: Child, where: str) -> bool:
    """The rest of a round: whether the compaction was kept from publishing."""
    table = push.table
    held, done = holds_inputs(table), push.published()
    steal_or_wait(table)
    said = child.go_on()
    assert push.published() == done == (said == "published"), f"{where}: {said}"
    if held and not done:
        assert "thief of thieves" in said, f"{where}: {said}"
    assert rows_in(table) == push.rows
    give_back(table)
    if not done:
        revert_leftovers(table)
    settle(push.store, table.name, granularity=push.granularity)
    assert rows_in(table) == push.rows
    return held and not done


def steal_or_wait(table: Table) -> None:
    """Take the time chunk once the compaction's lease is over."""
    until = time.monotonic() + 30
    while [one for one in table.locks.locks() if one.active and not one.abandoned(wall_ms())]:
        assert time.monotonic() < until, "the lease never ends"
        time.sleep(0.02)
    take_after_lease(table)


def test_a_compaction_stopped_past_its_lease_whose_lock_was_taken_cannot_publish_and_says_who_took_it(
    store: SegmentStore, zk_hosts: str, short_lease: None
) -> None:
    """SIGSTOP, the lease ends, another takes the lock, SIGCONT."""
    push = Compaction(store, "t")
    writes = writes_of(push, zk_hosts)
    for number, at in enumerate((writes // 2, writes // 2 + 2)):
        push = Compaction(store, f"t{number}")
        with compacting_child(push, zk_hosts, at, "before", signal.SIGSTOP) as child:
            child.wait()
            assert child.stopped
            assert stopped_past_its_lease(push, child, f"write {at} of {writes}")


def wall_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def writes_of(push: Push, hosts: str) -> int:
    """How many writes it makes, renewals included; well past its middle, none of them publishes yet."""
    with HookedSession.connect(settings(hosts)) as session:
        assert attempted(push, session) == ""
        return session.writes


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Compaction, ToDays])
def test_a_compaction_stopped_past_its_lease_at_any_write_cannot_publish(
    store: SegmentStore, zk_hosts: str, short_lease: None, kind: Callable[[SegmentStore, str], Push]
) -> None:
    fenced = sweep_stops(store, zk_hosts, kind, WHENS)
    print(f"{kind.__name__}: kept from publishing {fenced} times")
    assert fenced >= 8


@pytest.mark.slow
def test_a_compaction_stopped_until_its_session_has_ended_cannot_publish_either(
    store: SegmentStore, zk_hosts: str, short_lease: None
) -> None:
    """Its reader's lease is gone, too."""
    push = Compaction(store, "t")
    writes = writes_of(push, zk_hosts)
    push = Compaction(store, "s")
    with compacting_child(push, zk_hosts, writes // 2 + 2, "before", signal.SIGSTOP, session_timeout=2.0) as child:
        child.wait()
        leases = len(push.table.leases())
        assert leases == 1
        until = time.monotonic() + 30
        while push.table.leases():
            assert time.monotonic() < until, "the session never ended"
            time.sleep(0.05)
        steal_or_wait(push.table)
        said = child.go_on()
    assert not push.published()
    assert "LeaseLostError" in said or "thief of thieves" in said, said
    assert rows_in(push.table) == push.rows


@pytest.mark.parametrize("kind", [Compaction, ToDays])
def test_a_compaction_killed_with_its_locks_leaves_nothing_locked_for_longer_than_the_lease(
    store: SegmentStore, zk_hosts: str, short_lease: None, kind: Callable[[SegmentStore, str], Push]
) -> None:
    push = kind(store, "t")
    writes = writes_of(push, zk_hosts)
    waits = []
    for at in range(2, writes - 1, 2):
        push = kind(store, f"t{at}")
        with compacting_child(push, zk_hosts, at, "before", signal.SIGKILL) as child:
            child.wait()
        done = push.published()
        lasts = max((lock.lease_until_ms for lock in push.table.locks.locks()), default=0) - wall_ms()
        assert lasts <= LEASE_MS
        waits.append(take_after_lease(push.table)[1])
        give_back(push.table)
        if not done:  # the next run finds everything as if nothing had been
            push.act(push.table)
        assert rows_in(push.table) == push.rows
    print(f"{kind.__name__}: free after {max(waits):.2f} s at most of {len(waits)}, lease {LEASE_MS / 1000} s")
    assert waits
    assert max(waits) < LEASE_MS / 1000 + 1


def test_a_renewal_that_lands_late_does_not_bring_a_taken_lock_back(
    store: SegmentStore, zk_hosts: str, short_lease: None
) -> None:
    """A compaction that is alive keeps its lock past its first lease; the moment it is taken it is gone for good."""
    push = Compaction(store, "t")
    waited: list[bool] = []

    class Slow(InProcess):
        __slots__ = ()

        def _merge(self, group: Any, started: Any, ticket: Any) -> Any:
            until = time.monotonic() + 3 * LEASE_MS / 1000
            while time.monotonic() < until:
                waited.append(holds_inputs(self.table))
                time.sleep(0.05)
            request = LockRequest(group="thieves", task="thief", interval=DAY, priority=Priority.COMPACTION)
            assert not isinstance(self.table.locks.acquire(request), Granted)
            steal(push.table)
            give_back(push.table)
            time.sleep(LEASE_MS / 1000)  # time for a renewal
            return super()._merge(group, started, ticket)

    [outcome] = compact_once(push.table, "compactor", run=Slow)
    assert all(waited)
    assert "LockRevokedError" in outcome.error and "thief of thieves" in outcome.error
    assert not push.published()


def test_a_compaction_that_has_published_is_not_taken_back_because_its_lock_was_lost_after_that(
    store: SegmentStore, short_lease: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal that finds the lock gone may come between the switch and the release."""
    push = Compaction(store, "t")
    whole = Table.end

    def end_then_lose(self: Table, *arguments: Any, **how: Any) -> Any:
        ended = whole(self, *arguments, **how)
        steal(push.table)
        time.sleep(LEASE_MS / 1000)  # a renewal comes and finds it
        return ended

    monkeypatch.setattr(Table, "end", end_then_lose)
    [outcome] = compact_once(push.table, "compactor")
    assert push.published(), outcome.error
    assert outcome.error == ""
    assert rows_in(push.table) == push.rows


def test_a_lock_that_was_released_under_a_push_stops_it_as_well(store: SegmentStore) -> None:
    table = versioned_table(store, "t")
    held = two_locks(table)
    entry_id = table.start(locks=held).entry_id
    ticket = table.open_stage(entry_id)
    table.stage(ticket, build(table, ticket, named(table, entry_id, 2)))
    table.locks.release("g", "task", lock_ids=[held[1].lock_id])
    with pytest.raises(LockLostError, match="does not hold lock"):
        table.end(entry_id)
    assert visible(table) == set()
