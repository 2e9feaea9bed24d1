"""Random histories of a lock box beside an obvious model: locks as sets of days, ids as a set of all that were given.

After every step: no two active incompatible locks of different groups, leases included; only strictly lower priorities
and lapsed leases were revoked, and none of the asking group's own; a request that was not granted changed nothing; the
same request again is the same lock; no id of a time chunk twice, ever, under whatever lock; a retried allocation has
its ids; every lock's version is above all that were given before, whatever the clock does; the fences are those of the
active locks.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.locking import allocation, holding
from airflow_provider_segments.core.locking import compatibility as rules
from airflow_provider_segments.core.locking import counters as ids
from airflow_provider_segments.core.locking import state as boxes
from airflow_provider_segments.core.locking.box import LockBox
from airflow_provider_segments.core.locking.types import (
    Allocated,
    AllocationRequest,
    Denied,
    Granted,
    Lock,
    LockGranularity,
    LockRequest,
    LockType,
    Revoked,
)
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.zookeeper import Create, Delete, SetData
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.exceptions import LockLostError, LockRefusedError
from tests.locking.helpers import KINDS, LEASE_MS, START_MS, PureBox, days, segments, wanted
from tests.support.machines import run_machine

GROUPS = st.sampled_from("abcd")
TASKS = st.sampled_from(["t1", "t2"])
PRIORITIES = {"a": 0, "b": 25, "c": 25, "d": 75}
TYPES = st.sampled_from([kind for kind in KINDS if kind != "SEGMENT"])
DAYS = st.tuples(st.integers(0, 5), st.integers(1, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))
PARTITIONS = st.frozensets(st.integers(0, 4), min_size=1, max_size=3)


@dataclass
class Held:
    """What the model knows of a lock. ``kind`` is its type, or ``SEGMENT`` when it is on the ids ``parts``."""

    group: str
    kind: str
    days: frozenset[int]
    parts: set[int]
    priority: int
    lease_until: int
    revoked: bool


def about_the_same(one: Held, other: Held) -> bool:
    """Whether two locks are on the same data."""
    if not one.days & other.days:
        return False
    if one.kind == other.kind == "SEGMENT" and one.days == other.days:
        return bool(one.parts & other.parts)
    return True


def get_along(one: Held, other: Held) -> bool:
    """Whether they may both be active."""
    if one.group == other.group:
        return True
    return {one.kind, other.kind} in ({"SHARED"}, {"APPEND"}, {"APPEND", "REPLACE"}, {"APPEND", "SEGMENT"})


def covers(one: Held, other: Held) -> bool:
    """Whether a group that holds the one lock and asks for the other has it already."""
    if (one.group, one.kind) != (other.group, other.kind):
        return False
    if one.kind == "SEGMENT":
        return one.days == other.days and other.parts <= one.parts
    return other.days <= one.days


def held(lock: Lock) -> Held:
    """A stored lock in the model's words."""
    return Held(
        group=lock.group,
        kind="SEGMENT" if lock.granularity is LockGranularity.SEGMENT else lock.lock_type.value,
        days=days_of(lock.interval),
        parts={one for first, end in lock.partitions for one in range(first, end)},
        priority=lock.priority,
        lease_until=lock.lease_until_ms,
        revoked=not lock.active,
    )


def wished(request: LockRequest) -> Held:
    """A request in the model's words."""
    return Held(
        group=request.group,
        kind="SEGMENT" if request.granularity is LockGranularity.SEGMENT else request.lock_type.value,
        days=days_of(request.interval),
        parts=set(request.partitions),
        priority=request.priority,
        lease_until=0,
        revoked=False,
    )


def days_of(where: Interval) -> frozenset[int]:
    return frozenset(range((where.start_ms - START_MS) // 86_400_000, (where.end_ms - START_MS) // 86_400_000))


class BoxMachine(RuleBasedStateMachine):
    """One table's box."""

    def __init__(self) -> None:
        super().__init__()
        self.pure = PureBox()
        self.taken: set[tuple[Interval, int]] = set()
        self.given_to: dict[tuple[str, str], Any] = {}
        self.asked: list[AllocationRequest] = []
        self.last_version = 0
        self.fences: dict[str, int] = {}

    # --- requests

    @rule(group=GROUPS, task=TASKS, kind=TYPES, where=DAYS, priority=st.sampled_from([None, None, None, 50]))
    def lock_chunk(self, group: str, task: str, kind: str, where: tuple[int, int], priority: int | None) -> None:
        rank = PRIORITIES[group] if priority is None else priority
        self.ask(wanted(group, *where, kind, task=task, priority=rank))

    @rule(group=GROUPS, task=TASKS, where=DAYS, parts=PARTITIONS)
    def lock_segments(self, group: str, task: str, where: tuple[int, int], parts: frozenset[int]) -> None:
        first, end = where
        self.ask(segments(group, *parts, first=first, end=end, task=task, priority=PRIORITIES[group]))

    @precondition(lambda self: self.pure.active())
    @rule(data=st.data(), task=TASKS)
    def join(self, data: st.DataObject, task: str) -> None:
        """A task of the group asks for a lock that its group holds."""
        lock = data.draw(st.sampled_from(self.pure.active()))
        self.ask(replace(LockRequest.of_held(lock, task), lease_ms=LEASE_MS))

    def ask(self, request: LockRequest) -> None:
        before, now = self.pure.box, self.pure.now_ms
        expected, victims = self.expected(request)
        try:
            result = self.pure.acquire(request)
        except LockRefusedError as error:
            assert error.rule in expected and self.pure.box == before
            return
        if not isinstance(result, Granted):
            assert self.pure.box == before, "a request that was not granted changed something"
            assert {Denied: "denied", Revoked: "revoked"}[type(result)] in expected
            return
        assert "granted" in expected
        assert {lock.lock_id for lock in result.revoked} == victims
        self.check_granted(before, request, result.lock, victims, now)
        again = self.pure.acquire(request)
        assert isinstance(again, Granted) and again.lock.lock_id == result.lock.lock_id and not again.new

    def expected(self, request: LockRequest) -> tuple[set[str], set[str]]:
        """What the rules say: the answer, and which locks it revokes. Two answers are right only when two own locks, as
        narrow as each other, are of different priorities."""
        mine = wished(request)
        all_locks = [(lock.lock_id, held(lock)) for lock in self.pure.box.locks]
        own = [one for _, one in all_locks if covers(one, mine)]
        if own:
            if any(one.revoked for one in own):
                return {"revoked"}, set()
            width = min(len(one.days) for one in own)
            narrowest = [one for one in own if len(one.days) == width]
            return {"granted" if one.priority == mine.priority else "priority-differs" for one in narrowest}, set()
        near = [(name, one) for name, one in all_locks if not one.revoked and about_the_same(one, mine)]
        bad = {name: one for name, one in near if not get_along(one, mine)}
        if any(one.priority >= mine.priority and one.lease_until > self.pure.now_ms for one in bad.values()):
            return {"denied"}, set()
        return {"granted"}, set(bad)

    def check_granted(self, before: boxes.Box, request: LockRequest, lock: Lock, victims: set[str], now: int) -> None:
        """What a grant does to the other locks, and which version it gives."""
        found = set()
        for one in before.locks:
            after = self.pure.box.find(one.lock_id)
            if one.active and after is not None and not after.active:
                assert one.priority < request.priority or one.lease_until_ms <= now
                assert one.group != request.group and request.group in str(after.revoked)
                found.add(one.lock_id)
        assert found == victims
        stood = before.find(lock.lock_id)
        if stood is not None:
            assert lock.version == stood.version and self.pure.box.version_ms == before.version_ms
            return
        assert lock.version > self.last_version and lock.version >= now
        self.last_version = lock.version
        self.taken |= {(lock.interval, one) for one in held(lock).parts}

    # --- ids

    @rule(
        group=GROUPS,
        task=TASKS,
        kind=st.sampled_from(KINDS),
        where=DAYS,
        part=st.integers(-1, 3),
        key=st.sampled_from(["s1", "s2", "s3"]),
        count=st.integers(1, 3),
    )
    def allocate(
        self, group: str, task: str, kind: str, where: tuple[int, int], part: int, key: str, count: int
    ) -> None:
        """In a day of what is locked, or in all of it; under a segment lock on the first ids. One sequence key means
        one request here; wrong repetitions have a test of their own."""
        first, end = where
        asked = {"task": task, "priority": PRIORITIES[group]}
        if kind == "SEGMENT":
            lock = segments(group, *range(count), first=first, end=end, **asked)
        else:
            lock = wanted(group, first, end, kind, **asked)
        day = first + part % (end - first)
        chunk = lock.interval if part < 0 else days(day, day + 1)
        name = f"{key}/{kind}/{where}/{chunk}/{count}"
        self.ask_ids(AllocationRequest(lock=lock, key=name, chunk=chunk, count=count))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), task=TASKS)
    def allocate_again(self, data: st.DataObject, task: str) -> None:
        """A retried task, or another of its group, asks with a sequence key that was used before."""
        request = data.draw(st.sampled_from(self.asked[-6:]))
        self.ask_ids(replace(request, lock=replace(request.lock, task=task)))

    def ask_ids(self, request: AllocationRequest) -> None:
        before, now, group = self.pure.box, self.pure.now_ms, request.lock.group
        standing = [lock for lock in before.locks if lock.group == group and request.key in lock.allocated]
        assert len(standing) < 2, "a sequence key has ids under two locks"
        expected, victims = self.expected(request.lock)
        if standing:
            is_same = standing[0].priority == request.lock.priority
            joined = "granted" if is_same else "priority-differs"
            expected, victims = {joined if standing[0].active else "revoked"}, set()
        try:
            result = self.pure.allocate(request)
        except LockRefusedError as error:
            assert error.rule in expected and self.pure.box == before
            return
        if not isinstance(result, Allocated):
            assert self.pure.box == before, "a request that was not granted changed something"
            assert {Denied: "denied", Revoked: "revoked"}[type(result)] in expected
            return
        assert "granted" in expected
        self.asked.append(request)
        self.check_granted(before, request.lock, result.lock, victims, now)
        assert result.chunk == request.chunk and len(result.partitions) == request.count
        assert result.again == bool(standing)
        if standing:
            assert result.partitions == self.given_to[group, request.key], "a retry got other ids"
            return
        fresh = {(result.chunk, one) for one in result.partitions}
        assert not fresh & self.taken, "an id was given out twice, or to a segment that is there"
        self.taken |= fresh
        self.given_to[group, request.key] = result.partitions

    # --- the rest

    @precondition(lambda self: self.pure.box.locks)
    @rule(data=st.data(), whole=st.booleans())
    def release(self, data: st.DataObject, whole: bool) -> None:
        lock = data.draw(st.sampled_from(self.pure.box.locks))
        task = None if whole else lock.tasks[0]
        chosen = {one.lock_id for one in self.pure.box.locks if one.group == lock.group} if whole else {lock.lock_id}
        self.pure.box = boxes.release(self.pure.box, lambda one: one.lock_id in chosen, task)
        left = self.pure.box.find(lock.lock_id)
        assert left is None or left.fence > lock.fence, "what the leaving task has under way could still publish"
        assert left is None if whole or len(lock.tasks) == 1 else left is not None and task not in left.tasks

    @rule(group=GROUPS, task=TASKS)
    def remove_task(self, group: str, task: str) -> None:
        self.pure.box = boxes.remove_task(self.pure.box, group, task, 0, self.pure.turn())
        assert not any(lock.held_by(group, task) for lock in self.pure.box.locks)

    @precondition(lambda self: self.pure.active())
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        lock = data.draw(st.sampled_from(self.pure.active()))
        self.pure.box = boxes.revoke(self.pure.box, [lock.lock_id], "a person", self.pure.turn())
        with pytest.raises(LockLostError, match="a person"):
            holding.require_held(self.pure.box, [lock.lock_id], lock.group, lock.tasks[0], self.pure.turn())

    @rule(group=GROUPS, task=TASKS)
    def renew(self, group: str, task: str) -> None:
        before = self.pure.box
        mine = [lock for lock in before.locks if lock.held_by(group, task)]
        try:
            self.pure.box, renewed = holding.renew(before, group, task, LEASE_MS, self.pure.turn())
        except LockLostError:
            assert not mine or not all(lock.active for lock in mine)
            return
        assert len(renewed) == len(mine)
        assert all(lock.lease_until_ms >= self.pure.now_ms + LEASE_MS for lock in renewed)

    @rule(milliseconds=st.sampled_from([0, 1, 1000, LEASE_MS, -5000, boxes.KEPT_MS]))
    def time_passes(self, milliseconds: int) -> None:
        """Clocks also go back."""
        self.pure.now_ms += milliseconds

    @rule()
    def prune(self) -> None:
        self.pure.box = boxes.prune(self.pure.box, self.pure.now_ms)

    @rule()
    def fold(self) -> None:
        """As if there were too many counters."""
        short = ids.fold(self.pure.box.counters, 2, 1)
        self.pure.box = msgspec.structs.replace(self.pure.box, counters=short)

    # --- always

    @invariant()
    def counted(self) -> None:
        COUNT["steps"] += 1
        COUNT["locks"] += len(self.pure.box.locks)

    @invariant()
    def no_incompatible_locks(self) -> None:
        active = [held(lock) for lock in self.pure.box.locks if lock.active]
        for one, other in itertools.combinations(active, 2):
            if one.group != other.group and about_the_same(one, other):
                assert get_along(one, other), f"{one} and {other}"

    @invariant()
    def versions_and_ids_are_remembered(self) -> None:
        box = self.pure.box
        versions = [lock.version for lock in box.locks]
        assert versions == sorted(set(versions)) and box.version_ms == self.last_version
        next_ids = {chunk: ids.next_id(box.counters, chunk) for chunk in {chunk for chunk, _ in self.taken}}
        assert all(one < next_ids[chunk] for chunk, one in self.taken)

    @invariant()
    def stored_and_fenced(self) -> None:
        assert boxes.decode(boxes.encode(self.pure.box), "here") == self.pure.box
        for op in FENCES(self.before_fences, self.pure.box):
            name = op.path.rpartition("/")[2]
            if isinstance(op, Create):
                assert name not in self.fences
                self.fences[name] = 0
            elif isinstance(op, Delete):
                assert self.fences.pop(name) == op.version
            elif isinstance(op, SetData):
                assert self.fences[name] == op.version
                self.fences[name] += 1
        self.before_fences = self.pure.box
        assert self.fences == {lock.lock_id: lock.fence for lock in self.pure.box.locks if lock.active}

    before_fences = boxes.Box.empty()


FENCES = LockBox(Cluster(None, ClusterPaths("c"), None), "t")._fence_changes  # type: ignore[arg-type]


COUNT: Counter[str] = Counter()


def test_random_histories_agree_with_the_model() -> None:
    COUNT.clear()
    run_machine(BoxMachine, 150, 50)
    assert COUNT["steps"] >= 5_000, COUNT


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_long_random_histories_agree_with_the_model() -> None:
    COUNT.clear()
    run_machine(BoxMachine, 1200, 100)
    assert COUNT["steps"] >= 100_000, COUNT


def decide_for(monkeypatch: pytest.MonkeyPatch, change: Callable[[LockRequest], LockRequest]) -> None:
    """Decide about another request than the one that was asked, unless the group has the lock already."""
    decide = rules.decide

    def changed(locks: Sequence[Lock], request: LockRequest, now_ms: int) -> rules.Decision:
        decision = decide(locks, request, now_ms)
        return decision if isinstance(decision, rules.Reuse) else decide(locks, change(request), now_ms)

    monkeypatch.setattr(boxes, "decide", changed)


def ignore_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    decide_for(monkeypatch, lambda request: replace(request, priority=1_000))


def stand_in_ones_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    decide_for(monkeypatch, lambda request: replace(request, group=f"not {request.group}"))


def ignore_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lock, "abandoned", lambda *_: True)


def share_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "compatible", lambda *_: True)


def share_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "ranges_overlap", lambda *_: False)


def keep_appends_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Druid does: a REPLACE lock coexists only with the APPEND locks that it contains."""
    compatible = rules.compatible

    def contained(one: Lock, request: LockRequest) -> bool:
        if (one.lock_type, request.lock_type) == (LockType.REPLACE, LockType.APPEND):
            return one.interval.contains(request.interval)
        if (one.lock_type, request.lock_type) == (LockType.APPEND, LockType.REPLACE):
            return request.interval.contains(one.interval)
        return compatible(one, request)

    monkeypatch.setattr(rules, "compatible", contained)


def forget_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "advance", lambda counters, *_: counters)


def forget_locked_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that somebody locks are not taken for given out."""
    monkeypatch.setattr(boxes, "ids", SimpleNamespace(advance=lambda counters, *_: counters))


def trust_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    new_lock = boxes._new_lock

    def clocked(box: boxes.Box, request: LockRequest, turn: boxes.Turn) -> tuple[boxes.Box, Lock]:
        return new_lock(msgspec.structs.replace(box, version_ms=0), request, turn)

    monkeypatch.setattr(boxes, "_new_lock", clocked)


def give_appends_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Druid does: they all have one."""
    new_lock = boxes._new_lock

    def unversioned(box: boxes.Box, request: LockRequest, turn: boxes.Turn) -> tuple[boxes.Box, Lock]:
        after, lock = new_lock(box, request, turn)
        if lock.lock_type is not LockType.APPEND:
            return after, lock
        return msgspec.structs.replace(after, version_ms=box.version_ms), msgspec.structs.replace(lock, version=0)

    monkeypatch.setattr(boxes, "_new_lock", unversioned)


def forget_sequence_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_find_again", lambda *_: None)


def keep_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    without = boxes._without
    monkeypatch.setattr(
        boxes, "_without", lambda lock, task: msgspec.structs.replace(without(lock, task), fence=lock.fence - 1)
    )


@pytest.mark.parametrize(
    "revert",
    [
        ignore_priorities,
        stand_in_ones_own_way,
        ignore_leases,
        share_everything,
        share_ids,
        keep_appends_inside,
        forget_counters,
        forget_locked_segments,
        trust_the_clock,
        give_appends_no_version,
        forget_sequence_keys,
        keep_the_fence,
    ],
)
def test_each_guard_switched_off_is_noticed(
    monkeypatch: pytest.MonkeyPatch, revert: Callable[[pytest.MonkeyPatch], None]
) -> None:
    revert(monkeypatch)
    with pytest.raises(AssertionError):
        run_machine(BoxMachine, 200, 50, phases=(Phase.generate,))


def test_the_day_helper_is_a_day() -> None:
    assert days_of(days(2, 4)) == {2, 3}
