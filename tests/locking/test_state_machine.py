"""Random histories of a lock box beside an obvious model: locks as sets of days, ids as a set of all that were given.

After every step: no two active incompatible locks of different groups, leases included; only strictly lower priorities
and lapsed leases were revoked; a request that was not granted changed nothing; the same request again is the same lock;
no id twice, ever; a retried allocation has its ids; lock versions only go up, whatever the clock does; the fences are
those of the active locks.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
from airflow_provider_segments.core.locking.versions import APPEND_VERSION
from airflow_provider_segments.core.zookeeper import Create, Delete, SetData
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.exceptions import LockLostError, LockRefusedError
from tests.locking.helpers import LEASE_MS, START_MS, PureBox, days, wanted
from tests.support.machines import run_machine

GROUPS = st.sampled_from("abcd")
TASKS = st.sampled_from(["t1", "t2"])
PRIORITIES = {"a": 0, "b": 25, "c": 25, "d": 75}
TYPES = st.sampled_from(["EXCLUSIVE", "SHARED", "APPEND", "REPLACE", "KILL"])
DAYS = st.tuples(st.integers(0, 5), st.integers(1, 4)).map(lambda pair: (pair[0], pair[0] + pair[1]))
PARTITIONS = st.frozensets(st.integers(0, 4), min_size=1, max_size=3)


@dataclass
class Held:
    """What the model knows of a lock. ``parts`` is ``None`` for a whole time chunk."""

    group: str
    kind: str
    days: frozenset[int]
    parts: set[int] | None
    priority: int
    lease_until: int
    tasks: set[str]
    new: bool = False
    revoked: bool = False


def about_the_same(one: Held, other: Held) -> bool:
    """Whether two locks are on the same data."""
    if not one.days & other.days:
        return False
    if one.parts is None or other.parts is None:
        return True
    if one.new or other.new:  # fresh ids are nobody else's; of equal days, the ids decide
        return one.days == other.days and bool(one.parts & other.parts)
    return one.days != other.days or bool(one.parts & other.parts)


def get_along(one: Held, other: Held) -> bool:
    """Whether they may both be active."""
    if "KILL" in (one.kind, other.kind):
        return one.kind != other.kind
    if one.kind == other.kind:
        return one.kind in ("SHARED", "APPEND")
    if {one.kind, other.kind} == {"APPEND", "REPLACE"}:
        append, replace = (one, other) if one.kind == "APPEND" else (other, one)
        return append.days <= replace.days
    return False


def held(lock: Lock) -> Held:
    """A stored lock in the model's words."""
    parts = {one for first, end in lock.partitions for one in range(first, end)}
    return Held(
        group=lock.group,
        kind=lock.lock_type.value,
        days=frozenset(range((lock.start_ms - START_MS) // 86_400_000, (lock.end_ms - START_MS) // 86_400_000)),
        parts=parts if lock.granularity is LockGranularity.SEGMENT else None,
        priority=lock.priority,
        lease_until=lock.lease_until_ms,
        tasks=set(lock.tasks),
        new=lock.new_ids,
        revoked=not lock.active,
    )


class BoxMachine(RuleBasedStateMachine):
    """One table's box."""

    def __init__(self) -> None:
        super().__init__()
        self.pure = PureBox()
        self.given: set[tuple[str, str, int]] = set()
        self.given_to: dict[tuple[str, str], Any] = {}
        self.asked: list[AllocationRequest] = []
        self.last_version = ""
        self.fences: dict[str, int] = {}

    # --- requests

    @rule(group=GROUPS, task=TASKS, kind=TYPES, where=DAYS, priority=st.sampled_from([None, None, None, 50]))
    def lock_chunk(self, group: str, task: str, kind: str, where: tuple[int, int], priority: int | None) -> None:
        rank = PRIORITIES[group] if priority is None else priority
        self.ask(wanted(group, *where, kind, task=task, priority=rank, internal=True))

    @rule(group=GROUPS, task=TASKS, where=DAYS, parts=PARTITIONS)
    def lock_segments(self, group: str, task: str, where: tuple[int, int], parts: frozenset[int]) -> None:
        self.ask(
            wanted(
                group,
                *where,
                task=task,
                priority=PRIORITIES[group],
                granularity=LockGranularity.SEGMENT,
                partitions=parts,
            )
        )

    @precondition(lambda self: self.pure.active())
    @rule(data=st.data(), task=TASKS)
    def join(self, data: st.DataObject, task: str) -> None:
        """A task of the group asks for a lock that its group holds."""
        lock = data.draw(st.sampled_from(self.pure.active()))
        self.ask(
            LockRequest(
                group=lock.group,
                task=task,
                interval=lock.interval,
                lock_type=lock.lock_type,
                granularity=lock.granularity,
                partitions=frozenset(one for first, end in lock.partitions for one in range(first, end)),
                priority=lock.priority,
                lease_ms=LEASE_MS,
                internal=True,
            )
        )

    def ask(self, request: LockRequest) -> None:
        before, now = self.pure.box, self.pure.now_ms
        expected, victims = self.expected(request)
        try:
            result = self.pure.acquire(request)
        except LockRefusedError as error:
            assert expected == error.rule and self.pure.box == before
            return
        if not isinstance(result, Granted):
            assert self.pure.box == before, "a request that was not granted changed something"
            assert expected == {Denied: "denied", Revoked: "revoked"}[type(result)]
            return
        assert expected == "granted"
        self.check_revoked(before, request, now, victims)
        again = self.pure.acquire(request)
        assert isinstance(again, Granted) and again.lock.lock_id == result.lock.lock_id and not again.new
        self.check_version(result)

    def expected(self, request: LockRequest) -> tuple[str, set[str]]:
        """What the rules say: the answer, and whose locks it revokes."""
        mine = held(
            Lock(
                lock_id="",
                lock_type=request.lock_type,
                granularity=request.granularity,
                start_ms=request.interval.start_ms,
                end_ms=request.interval.end_ms,
                group=request.group,
                tasks=(request.task,),
                priority=request.priority,
                version="",
                granted_ms=0,
                lease_until_ms=0,
                partitions=request.ranges,
            )
        )
        all_locks = [(lock.lock_id, held(lock)) for lock in self.pure.box.locks]
        own = [one for _, one in all_locks if self.covers(one, mine)]
        if own:
            if any(one.revoked for one in own):
                return "revoked", set()
            narrowest = min(own, key=lambda one: len(one.days))
            return ("granted" if narrowest.priority == mine.priority else "priority-differs"), set()
        near = [(name, one) for name, one in all_locks if not one.revoked and self.in_the_way(one, mine)]
        bad = [(name, one) for name, one in near if not get_along(one, mine)]
        same = {name for name, one in near if one.group == mine.group and one.days == mine.days}
        lapsed = {name for name, one in bad if one.lease_until <= self.pure.now_ms} - same
        if all(one.priority < mine.priority for name, one in bad if name not in lapsed):
            return "granted", {name for name, _ in bad}
        if {name for name, _ in near} - lapsed <= same:
            return "granted", lapsed
        return "denied", set()

    @staticmethod
    def covers(one: Held, mine: Held) -> bool:
        same_kind = one.group == mine.group and one.kind == mine.kind and mine.days <= one.days
        if one.parts is None or mine.parts is None:
            return same_kind and one.parts is mine.parts
        return same_kind and mine.parts <= one.parts

    @staticmethod
    def in_the_way(one: Held, mine: Held) -> bool:
        """As the request sees it: existing ids of other, overlapping days always are."""
        if not one.days & mine.days:
            return False
        if one.parts is None or mine.parts is None or one.days != mine.days:
            return True
        return bool(one.parts & mine.parts)

    def check_revoked(self, before: boxes.Box, request: LockRequest, now: int, victims: set[str]) -> None:
        found = set()
        for lock in before.locks:
            after = self.pure.box.find(lock.lock_id)
            if lock.active and after is not None and not after.active:
                assert lock.priority < request.priority or lock.lease_until_ms <= now
                assert request.group in str(after.revoked)
                found.add(lock.lock_id)
        assert found == victims

    def check_version(self, result: Granted) -> None:
        lock = result.lock
        if result.new and lock.granularity is LockGranularity.TIME_CHUNK and lock.lock_type is not LockType.APPEND:
            assert lock.version > self.last_version
            self.last_version = lock.version

    # --- ids

    @rule(
        group=GROUPS,
        task=TASKS,
        kind=st.sampled_from(["SEGMENT", "APPEND", "REPLACE", "EXCLUSIVE"]),
        where=DAYS,
        key=st.sampled_from(["s1", "s2", "s3"]),
        count=st.integers(1, 3),
    )
    def allocate(self, group: str, task: str, kind: str, where: tuple[int, int], key: str, count: int) -> None:
        """One sequence key means one count and chunk here; wrong repetitions have a test of their own."""
        is_segment = kind == "SEGMENT"
        lock = wanted(
            group,
            *where,
            "EXCLUSIVE" if is_segment else kind,
            task=task,
            priority=PRIORITIES[group],
            granularity=LockGranularity.SEGMENT if is_segment else LockGranularity.TIME_CHUNK,
        )
        self.ask_ids(AllocationRequest(lock=lock, key=f"{key}/{kind}/{where}/{count}", count=count))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), task=TASKS)
    def allocate_again(self, data: st.DataObject, task: str) -> None:
        """A retried task, or another of its group, asks with a sequence key that was used before."""
        request = data.draw(st.sampled_from(self.asked[-6:]))
        self.ask_ids(replace(request, lock=replace(request.lock, task=task)))

    def ask_ids(self, request: AllocationRequest) -> None:
        before, group = self.pure.box, request.lock.group
        standing = [lock for lock in before.locks if lock.group == group and request.key in lock.allocated]
        try:
            result = self.pure.allocate(request)
        except LockRefusedError as error:
            assert error.rule == "priority-differs" and self.pure.box == before
            return
        if not isinstance(result, Allocated):
            assert self.pure.box == before, "a request that was not granted changed something"
            return
        self.asked.append(request)
        fresh = {(str(result.interval), result.version, one) for one in result.partitions}
        if standing:
            assert (result.interval, result.partitions) == self.given_to[group, request.key], "a retry got other ids"
        else:
            assert not fresh & self.given, "an id was given out twice"
            self.check_version(Granted(result.lock, before.find(result.lock.lock_id) is None))
        self.given |= fresh
        self.given_to[group, request.key] = (result.interval, result.partitions)

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
        self.pure.box = boxes.pruned(self.pure.box, self.pure.now_ms)

    @rule()
    def fold(self) -> None:
        """As if there were too many counters."""
        short = ids.folded(self.pure.box.counters, 2, 1)
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

    before_fences = boxes.Box()


FENCES = LockBox(None, ClusterPaths("c"), "t")._fence_changes  # type: ignore[arg-type]


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


def ignore_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "all", lambda found: True, raising=False)


def ignore_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lock, "abandoned", lambda *_: True)


def share_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "compatible", lambda *_: True)


def forget_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "raised", lambda counters, *_: counters)


def trust_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    version_for = boxes._version_for

    def clocked(box: Any, request: LockRequest, turn: Any) -> tuple[str, int]:
        version, latest = version_for(boxes.Box(), request, turn)
        return (version, box.version_ms) if version == APPEND_VERSION else (version, latest)

    monkeypatch.setattr(boxes, "_version_for", clocked)


def forget_sequence_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_found_again", lambda *_: None)


def keep_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    without = boxes._without
    monkeypatch.setattr(
        boxes, "_without", lambda lock, task: msgspec.structs.replace(without(lock, task), fence=lock.fence - 1)
    )


@pytest.mark.parametrize(
    "revert",
    [
        ignore_priorities,
        ignore_leases,
        share_everything,
        forget_counters,
        trust_the_clock,
        forget_sequence_keys,
        keep_the_fence,
    ],
)
def test_each_guard_switched_off_is_noticed(
    monkeypatch: pytest.MonkeyPatch, revert: Callable[[pytest.MonkeyPatch], None]
) -> None:
    revert(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 - which of its checks notices first is a matter of chance
        run_machine(BoxMachine, 200, 50, phases=(Phase.generate,))


def test_the_day_helper_is_a_day() -> None:
    assert held_days(days(2, 4)) == {2, 3}


def held_days(where: Any) -> set[int]:
    return set(range((where.start_ms - START_MS) // 86_400_000, (where.end_ms - START_MS) // 86_400_000))
