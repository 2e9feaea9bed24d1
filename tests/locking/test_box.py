"""The rules of the lock box, one by one, on the pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_segments.core.locking import allocation, holding
from airflow_provider_segments.core.locking import compatibility as rules
from airflow_provider_segments.core.locking import state as boxes
from airflow_provider_segments.core.locking.allocation import LocalRecord
from airflow_provider_segments.core.locking.counters import MAX_COUNTERS, Counter, folded, next_id, raised
from airflow_provider_segments.core.locking.state import Box
from airflow_provider_segments.core.locking.types import (
    Allocated,
    AllocationRequest,
    Denied,
    Granted,
    Lock,
    LockRequest,
    LockType,
    Revoked,
    SegmentKey,
    granted_lock,
)
from airflow_provider_segments.core.locking.versions import APPEND_VERSION, version_ms, version_of
from airflow_provider_segments.core.model.interval import Granularity
from airflow_provider_segments.core.model.ranges import join_ranges, ranges_contain, ranges_of, ranges_overlap
from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    InvalidLockRequestError,
    LockDeniedError,
    LockLostError,
    LockRefusedError,
    LockRevokedError,
)
from tests.locking.helpers import LEASE_MS, NOW_MS, PureBox, days, segments, wanted

TYPES = ("EXCLUSIVE", "SHARED", "APPEND", "REPLACE", "KILL")
COEXIST_INSIDE = {
    ("SHARED", "SHARED"),
    ("APPEND", "APPEND"),
    ("REPLACE", "APPEND"),
    *((other, "KILL") for other in TYPES if other != "KILL"),
    *(("KILL", other) for other in TYPES if other != "KILL"),
}


def granted(result: Any) -> Lock:
    assert isinstance(result, Granted), result
    return result.lock


def allocated(result: Any) -> Allocated:
    assert isinstance(result, Allocated), result
    return result


def refused(rule: str, ask: Callable[[], object]) -> LockRefusedError:
    with pytest.raises(LockRefusedError) as caught:
        ask()
    assert caught.value.rule == rule
    return caught.value


# --- locks


@pytest.mark.parametrize(("held", "asked"), list(itertools.product(TYPES, TYPES)))
def test_the_compatibility_table(held: str, asked: str) -> None:
    """The asked-for lock lies inside the held one."""
    pure = PureBox()
    granted(pure.acquire(wanted("a", 0, 4, held, internal=True)))
    result = pure.acquire(wanted("b", 1, 2, asked, internal=True))
    assert isinstance(result, Granted) == ((held, asked) in COEXIST_INSIDE)


@pytest.mark.parametrize(
    ("held", "asked", "coexist"),
    [((0, 4), (1, 2), False), ((1, 2), (0, 4), True), ((0, 4), (0, 4), True), ((0, 2), (1, 3), False)],
)
def test_a_replace_lock_coexists_with_the_append_locks_it_contains(
    held: tuple[int, int], asked: tuple[int, int], coexist: bool
) -> None:
    for first, second in (("APPEND", "REPLACE"), ("REPLACE", "APPEND")):
        pure = PureBox()
        one, two = (held, asked) if first == "APPEND" else (asked, held)
        granted(pure.acquire(wanted("a", *one, first)))
        assert isinstance(pure.acquire(wanted("b", *two, second)), Granted) is coexist


def test_segment_locks_of_different_overlapping_intervals_always_conflict() -> None:
    pure = PureBox()
    granted(pure.acquire(segments("a", 0, first=0, end=2)))
    assert isinstance(pure.acquire(segments("b", 7, first=1, end=2)), Denied)


def test_a_segment_lock_conflicts_with_a_time_chunk_lock_both_ways() -> None:
    pure = PureBox()
    granted(pure.acquire(segments("a", 0)))
    assert isinstance(pure.acquire(wanted("b", 0, 3)), Denied)
    other = PureBox()
    granted(other.acquire(wanted("b", 0, 3)))
    assert isinstance(other.acquire(segments("a", 0)), Denied)


def test_a_group_may_change_the_granularity_of_its_lock_of_the_same_interval() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("g", 0, 2)))
    granted(pure.acquire(segments("g", 0, first=0, end=2)))
    assert isinstance(pure.acquire(segments("g", 9, first=0, end=1)), Denied)
    assert len(pure.active()) == 2


def test_a_group_may_change_the_type_of_its_lock_of_the_same_interval() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("g", 0, 2, "SHARED")))
    granted(pure.acquire(wanted("g", 0, 2, "EXCLUSIVE")))
    assert isinstance(pure.acquire(wanted("g", 0, 1, "REPLACE")), Denied)


def test_a_group_may_not_change_the_type_when_others_share_the_lock() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("g", 0, 2, "SHARED")))
    granted(pure.acquire(wanted("h", 0, 2, "SHARED")))
    assert isinstance(pure.acquire(wanted("g", 0, 2, "EXCLUSIVE")), Denied)


def test_revocation_is_all_or_nothing() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("low", 0, 1, priority=10)))
    granted(pure.acquire(wanted("high", 1, 2, priority=30)))
    before = pure.box
    result = pure.acquire(wanted("mid", 0, 2, priority=20))
    assert isinstance(result, Denied) and [lock.group for lock in result.blockers] == ["high"]
    assert pure.box == before
    granted(pure.acquire(wanted("top", 0, 2, priority=31)))
    assert {lock.group for lock in pure.revoked()} == {"low", "high"}


def test_equal_priority_never_revokes() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("a", priority=25)))
    assert isinstance(pure.acquire(wanted("b", priority=25)), Denied)


def test_compatible_locks_are_never_revoked_whatever_their_priority() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("low", 0, 1, "SHARED", priority=0)))
    granted(pure.acquire(wanted("high", 0, 1, "SHARED", priority=99)))
    assert not pure.revoked()


def test_a_revoked_lock_says_who_revoked_it_and_why() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("compact", priority=25)))
    result = pure.acquire(wanted("kafka", priority=75))
    assert isinstance(result, Granted) and [lock.group for lock in result.revoked] == ["compact"]
    again = pure.acquire(wanted("compact", priority=25))
    assert isinstance(again, Revoked)
    with pytest.raises(LockRevokedError, match=r"table 't': .*revoked by kafka of kafka .*higher priority") as caught:
        granted_lock("t", again)
    assert caught.value.rule == "lock-revoked"


def test_a_denied_lock_says_who_is_in_the_way() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("holder")))
    with pytest.raises(LockDeniedError, match=r"EXCLUSIVE 2013-01-01.* of holder \(priority 50\)"):
        granted_lock("t", pure.acquire(wanted("other")))


def test_a_revoked_lock_is_gone_once_its_owner_releases_it() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("low", priority=0)))
    granted(pure.acquire(wanted("high", priority=9)))
    pure.box = boxes.release(pure.box, lambda lock: lock.group == "high")
    assert isinstance(pure.acquire(wanted("low", priority=0)), Revoked)
    pure.box = boxes.release(pure.box, lambda lock: lock.group == "low")
    assert granted(pure.acquire(wanted("low", priority=0))).active


def test_tasks_of_a_group_share_a_lock_and_it_goes_with_the_last_of_them() -> None:
    pure = PureBox()
    one = granted(pure.acquire(wanted("g", task="one")))
    two = granted(pure.acquire(wanted("g", task="two")))
    assert one.lock_id == two.lock_id and two.tasks == ("one", "two")
    pure.box = boxes.release(pure.box, lambda lock: True, "one")
    assert [lock.tasks for lock in pure.active()] == [("two",)] and pure.active()[0].fence == 1
    pure.box = boxes.release(pure.box, lambda lock: True, "two")
    assert not pure.box.locks


def test_a_narrower_request_of_the_group_is_the_wider_lock() -> None:
    pure = PureBox()
    wide = granted(pure.acquire(wanted("g", 0, 7)))
    assert granted(pure.acquire(wanted("g", 2, 3))).lock_id == wide.lock_id


def test_a_group_with_several_locks_that_cover_a_request_gets_the_same_one_each_time() -> None:
    """Druid fails then, and a retried task with it."""
    pure = PureBox()
    narrow = granted(pure.acquire(wanted("g", 1, 2, "SHARED")))
    granted(pure.acquire(wanted("g", 0, 4, "SHARED")))
    for _ in range(3):
        assert granted(pure.acquire(wanted("g", 1, 2, "SHARED"))).lock_id == narrow.lock_id


def test_tasks_of_a_group_ask_with_one_priority() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("g", task="one", priority=0)))
    refused("priority-differs", lambda: pure.acquire(wanted("g", task="two", priority=7)))


def test_append_and_replace_locks_are_for_time_chunks_only() -> None:
    for kind in ("APPEND", "REPLACE", "SHARED"):
        result = PureBox().acquire(_segment_of(kind))
        assert isinstance(result, Denied) and not result.blockers and kind in result.reason


def _segment_of(kind: str) -> LockRequest:
    made = segments("a", 0)
    return LockRequest(
        group=made.group,
        task=made.task,
        interval=made.interval,
        lock_type=LockType[kind],
        granularity=made.granularity,
        partitions=made.partitions,
    )


def test_a_wider_append_lock_supersedes_the_narrower_ones_of_the_task() -> None:
    pure = PureBox()
    narrow = granted(pure.acquire(wanted("g", 1, 2, "APPEND")))
    other = granted(pure.acquire(wanted("h", 1, 2, "APPEND")))
    wide = granted(pure.acquire(wanted("g", 0, 4, "APPEND")))
    assert {lock.lock_id for lock in pure.active()} == {wide.lock_id, other.lock_id}
    held = holding.require_held(pure.box, [narrow.lock_id], "g", "g", pure.turn())
    assert [lock.lock_id for lock in held] == [wide.lock_id], "a push that relies on the old one finds the new one"


def test_a_superseded_append_lock_stays_for_the_other_tasks_that_hold_it() -> None:
    pure = PureBox()
    narrow = granted(pure.acquire(wanted("g", 1, 2, "APPEND", task="one")))
    granted(pure.acquire(wanted("g", 1, 2, "APPEND", task="two")))
    wide = granted(pure.acquire(wanted("g", 0, 4, "APPEND", task="one")))
    assert [lock.tasks for lock in pure.active()] == [("two",), ("one",)]
    for task, lock_id in (("one", wide.lock_id), ("two", narrow.lock_id)):
        held = holding.require_held(pure.box, [narrow.lock_id], "g", task, pure.turn())
        assert [lock.lock_id for lock in held] == [lock_id]


def test_a_superseded_append_lock_s_sequence_keys_still_answer() -> None:
    pure = PureBox()
    first = allocated(pure.allocate(AllocationRequest(lock=wanted("g", 1, 2, "APPEND"), key="s")))
    granted(pure.acquire(wanted("g", 0, 4, "APPEND")))
    again = allocated(pure.allocate(AllocationRequest(lock=wanted("g", 1, 2, "APPEND"), key="s")))
    assert again.again and again.partitions == first.partitions


# --- leases


def test_a_lock_whose_lease_is_over_is_taken_whatever_its_priority() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("gone", priority=99)))
    assert isinstance(pure.acquire(wanted("next", priority=0)), Denied)
    pure.now_ms += LEASE_MS
    granted(pure.acquire(wanted("next", priority=0)))
    again = pure.acquire(wanted("gone", priority=99))
    assert isinstance(again, Revoked) and "after its lease" in str(again.lock.revoked)


def test_a_lease_is_renewed_by_its_holder_and_by_a_retried_task() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("g")))
    pure.now_ms += LEASE_MS // 2
    pure.box, _ = holding.renew(pure.box, "g", "g", LEASE_MS, pure.turn())
    pure.now_ms += LEASE_MS * 3 // 4
    granted(pure.acquire(wanted("g")))
    pure.now_ms += LEASE_MS * 3 // 4
    assert isinstance(pure.acquire(wanted("other")), Denied)


def test_a_lease_that_is_over_can_be_renewed_while_nobody_took_the_lock() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("g")))
    pure.now_ms += 10 * LEASE_MS
    pure.box, locks = holding.renew(pure.box, "g", "g", LEASE_MS, pure.turn())
    assert [lock.lease_until_ms for lock in locks] == [pure.now_ms + LEASE_MS]
    assert isinstance(pure.acquire(wanted("other")), Denied)


def test_renewing_a_revoked_lock_extends_nothing() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("low", 0, 1, priority=0)))
    granted(pure.acquire(wanted("low", 2, 3, priority=0)))
    granted(pure.acquire(wanted("high", 0, 1, priority=9)))
    with pytest.raises(LockRevokedError):
        holding.renew(pure.box, "low", "low", 10 * LEASE_MS, pure.turn())
    with pytest.raises(LockLostError, match="holds no lock"):
        holding.renew(pure.box, "low", "nobody", LEASE_MS, pure.turn())


def test_a_shared_lock_whose_lease_is_over_is_left_alone_by_those_who_share() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("a", kind="SHARED")))
    pure.now_ms += LEASE_MS
    granted(pure.acquire(wanted("b", kind="SHARED")))
    assert not pure.revoked()


def test_what_nobody_released_is_dropped_a_day_later() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("dead", 0, 1, priority=0)))
    granted(pure.acquire(wanted("dead", 2, 3, priority=0)))
    granted(pure.acquire(wanted("high", 0, 1, priority=9, lease_ms=10 * boxes.KEPT_MS)))
    pure.box = boxes.remove_task(pure.box, "x", "x", 1, pure.turn())
    later = boxes.pruned(pure.box, pure.now_ms + LEASE_MS + boxes.KEPT_MS)
    assert [lock.group for lock in later.locks] == ["high"] and not later.departed
    assert boxes.pruned(pure.box, pure.now_ms + LEASE_MS) == pure.box


def test_a_removed_task_may_ask_again_as_a_later_attempt() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("g", attempt=1)))
    pure.box = boxes.remove_task(pure.box, "g", "g", 1, pure.turn())
    error = refused("task-departed", lambda: pure.acquire(wanted("g", attempt=1)))
    assert "attempt 1 of g" in str(error)
    granted(pure.acquire(wanted("g", attempt=2)))
    pure.now_ms += boxes.DEPARTED_MS
    granted(pure.acquire(wanted("g", attempt=1)))


# --- versions


def test_a_lock_version_is_above_every_known_version_whatever_the_clock_says() -> None:
    pure = PureBox()
    versions = []
    for back in (0, 1, 3_600_000, -5, 86_400_000):
        pure.now_ms = NOW_MS - back
        versions.append(granted(pure.acquire(wanted("g"))).version)
        pure.box = boxes.release(pure.box, lambda lock: True)
    assert versions == sorted(set(versions))
    far = version_of(NOW_MS + 10**9)
    assert granted(pure.acquire(wanted("seen", newest=far))).version > far


def test_a_lock_version_is_above_versions_that_ids_were_given_out_at() -> None:
    pure = PureBox()
    far = version_of(NOW_MS + 10**9)
    granted(pure.acquire(segments("s", 3, version=far)))
    pure.box = boxes.release(pure.box, lambda lock: True)
    assert granted(pure.acquire(wanted("g", 0, 9))).version > far


def test_a_named_version_must_be_above_every_known_version() -> None:
    pure = PureBox()
    granted(pure.acquire(segments("s", 3, version=version_of(NOW_MS))))
    pure.box = boxes.release(pure.box, lambda lock: True)
    refused("version-not-newest", lambda: pure.acquire(wanted("g", version=version_of(NOW_MS))))
    assert granted(pure.acquire(wanted("g", version=version_of(NOW_MS + 1)))).version == version_of(NOW_MS + 1)


def test_append_locks_have_the_1970_version() -> None:
    assert granted(PureBox().acquire(wanted("g", kind="APPEND"))).version == APPEND_VERSION


def test_versions_are_text_whose_order_is_the_order_of_times() -> None:
    assert version_of(0) == APPEND_VERSION and version_ms(version_of(NOW_MS)) == NOW_MS
    for bad in ("9", "1970-01-01T00:00:00Z", "2013-13-01T00:00:00.000Z", "v1"):
        with pytest.raises(InvalidLockRequestError):
            version_ms(bad)
    with pytest.raises(ValueError, match="outside the years"):
        version_of(10**15)


# --- allocation


def asked(group: str, key: str, count: int = 1, **other: Any) -> AllocationRequest:
    given = {name: other.pop(name) for name in ("version", "at_least", "interval") if name in other}
    return AllocationRequest(lock=segments(group, **other), key=key, count=count, **given)


def test_new_ids_never_conflict_with_segment_locks_and_are_locked() -> None:
    pure = PureBox()
    granted(pure.acquire(segments("compact", 0, 1, 2)))
    late = allocated(pure.allocate(asked("kafka", "s0")))
    assert late.partitions == range(3, 4), "the ids that are locked exist"
    assert isinstance(pure.acquire(segments("thief", 3)), Denied)
    assert allocated(pure.allocate(asked("compact", "out", 2))).partitions == range(4, 6)


def test_new_ids_pass_over_ids_that_are_locked_at_any_version() -> None:
    pure = PureBox()
    granted(pure.acquire(segments("compact", 4, version="v1")))
    assert allocated(pure.allocate(asked("kafka", "s0"))).partitions == range(5, 6)


def test_all_new_ids_of_a_group_in_a_chunk_are_one_lock() -> None:
    pure = PureBox()
    for number in range(5):
        allocated(pure.allocate(asked("g", f"s{number}", 2)))
    assert [lock.partitions for lock in pure.active()] == [((0, 10),)]


def test_the_same_sequence_key_gets_the_same_ids() -> None:
    pure = PureBox()
    first = allocated(pure.allocate(asked("g", "s", 3, task="one")))
    allocated(pure.allocate(asked("h", "s", 3)))
    again = allocated(pure.allocate(asked("g", "s", 3, task="two")))
    assert again.partitions == first.partitions and again.again and again.lock.tasks == ("one", "two")
    refused("sequence-differs", lambda: pure.allocate(asked("g", "s", 4)))
    refused("sequence-differs", lambda: pure.allocate(asked("g", "s", 3, first=5, end=6)))


def test_ids_are_never_given_out_again_after_their_lock_is_released() -> None:
    pure = PureBox()
    seen: set[int] = set()
    for _ in range(10):
        given = set(allocated(pure.allocate(asked("g", "s", 3))).partitions)
        assert not given & seen
        seen |= given
        pure.box = boxes.release(pure.box, lambda lock: True)
    assert not pure.box.locks and len(pure.box.counters) == 1


def test_ids_of_a_revoked_lock_are_not_confirmed() -> None:
    pure = PureBox()
    allocated(pure.allocate(asked("low", "s", priority=0)))
    granted(pure.acquire(wanted("high", priority=9)))
    assert isinstance(pure.allocate(asked("low", "s", priority=0)), Revoked)
    assert isinstance(pure.allocate(asked("low", "other", priority=0)), Revoked)
    assert isinstance(pure.allocate(asked("third", "s", priority=0)), Denied)


def test_ids_under_a_time_chunk_lock_have_its_version() -> None:
    pure = PureBox()
    ask = AllocationRequest(lock=wanted("g", 0, 31, "REPLACE"), key="s", count=2, interval=days(3, 4))
    given = allocated(pure.allocate(ask))
    assert given.version == given.lock.version == version_of(NOW_MS) and given.partitions == range(2)
    assert given.segments[1] == SegmentKey(days(3, 4), version_of(NOW_MS), 1)
    refused("outside-lock", lambda: pure.allocate(_under(ask, interval=days(30, 32), key="o")))
    refused("version-over-lock", lambda: pure.allocate(_under(ask, version=version_of(NOW_MS + 1), key="v")))


def _under(ask: AllocationRequest, **other: Any) -> AllocationRequest:
    return AllocationRequest(**{"lock": ask.lock, "key": ask.key, "count": ask.count, **other})


def test_appends_may_allocate_at_the_version_that_is_visible() -> None:
    pure = PureBox()
    ask = AllocationRequest(lock=wanted("g", kind="APPEND"), key="s", version=version_of(NOW_MS), at_least=7)
    assert allocated(pure.allocate(ask)).segments == (SegmentKey(days(0, 1), version_of(NOW_MS), 7),)


def test_appends_may_allocate_in_a_wider_chunk_of_a_newer_version_and_nobody_else_may() -> None:
    """A further place of a segment: its lock is on its own chunk, and stays so."""
    pure = PureBox()
    newer = version_of(NOW_MS)
    append = AllocationRequest(lock=wanted("a", kind="APPEND"), key="s", interval=days(0, 31), version=newer)
    given = allocated(pure.allocate(append))
    assert (given.interval, given.lock.interval) == (days(0, 31), days(0, 1))
    for chunk, version in ((days(0, 31), APPEND_VERSION), (days(1, 31), newer)):
        ask = _under(append, key="o", interval=chunk, version=version)
        refused("outside-lock", lambda ask=ask: pure.allocate(ask))  # type: ignore[misc]
    replace = AllocationRequest(lock=wanted("r", 40, 41, "REPLACE"), key="s", interval=days(31, 62))
    refused("outside-lock", lambda: pure.allocate(replace))


def test_locally_counted_ids_are_known_before_they_can_be_published() -> None:
    pure = PureBox()
    lock = granted(pure.acquire(wanted("g", 0, 2, "REPLACE")))
    local = LocalRecord(lock.lock_id, "g", "g", "local", ((days(0, 1), 4),))
    mine = SegmentKey(days(0, 1), lock.version, 3)
    refused("id-not-allocated", lambda: allocation.check_given(pure.box, [mine], pure.turn()))
    pure.box = allocation.record_local(pure.box, local, pure.turn())
    pure.box = allocation.record_local(pure.box, local, pure.turn())
    allocation.check_given(pure.box, [mine], pure.turn())
    other = LocalRecord(lock.lock_id, "g", "g", "another push", ((days(0, 1), 4),))
    refused("ids-taken", lambda: allocation.record_local(pure.box, other, pure.turn()))
    outside = LocalRecord(lock.lock_id, "g", "g", "local", ((days(5, 6), 4),))
    refused("outside-lock", lambda: allocation.record_local(pure.box, outside, pure.turn()))
    pure.box = boxes.release(pure.box, lambda lock: True)
    later = AllocationRequest(lock=wanted("h", kind="APPEND"), key="s", version=lock.version)
    assert allocated(pure.allocate(later)).partitions == range(4, 5)


def test_only_the_holder_of_an_exclusive_or_replace_lock_counts_locally() -> None:
    pure = PureBox()
    lock = granted(pure.acquire(wanted("g", kind="APPEND")))
    record = LocalRecord(lock.lock_id, "g", "g", "local", ((days(0, 1), 1),))
    refused("not-local", lambda: allocation.record_local(pure.box, record, pure.turn()))


# --- fencing


def test_every_lock_that_covers_a_segment_must_hold() -> None:
    """Druid finds no single lock then, and takes the push for valid."""
    pure = PureBox()
    granted(pure.acquire(segments("g", 0, priority=0)))
    granted(pure.acquire(segments("g", 1, priority=0)))
    granted(pure.acquire(segments("thief", 1, priority=9)))
    keys = [SegmentKey(days(0, 1), APPEND_VERSION, partition) for partition in (0, 1)]
    assert len(holding.covering(pure.box, keys[:1], "g", "g", pure.turn())) == 1
    with pytest.raises(LockRevokedError, match="thief"):
        holding.covering(pure.box, keys, "g", "g", pure.turn())


def test_a_segment_under_no_lock_or_above_its_version_is_not_covered() -> None:
    pure = PureBox()
    lock = granted(pure.acquire(wanted("g", 0, 2)))
    holding.covering(pure.box, [SegmentKey(days(1, 2), lock.version, 0)], "g", "g", pure.turn())
    for bad in (SegmentKey(days(1, 3), lock.version, 0), SegmentKey(days(1, 2), version_of(NOW_MS + 1), 0)):
        with pytest.raises(LockLostError) as caught:
            holding.covering(pure.box, [bad], "g", "g", pure.turn())
        assert caught.value.rule == "not-covered"
    with pytest.raises(LockLostError):
        holding.covering_intervals(pure.box, [days(0, 1)], "g", "another task", pure.turn())


# --- what is stored


def test_counters_fold_and_promise_at_least_as_much() -> None:
    """1,500 hours of two versions: the list stays short, and no id is ever promised twice."""
    counters: tuple[Counter, ...] = ()
    promised: dict[Any, int] = {}
    for number in range(1500):
        chunk = Granularity.HOUR.chunk(NOW_MS + number * 3_600_000 * 7)
        version = version_of(NOW_MS + number % 2)
        first = next_id(counters, chunk, version)
        assert first >= promised.get((chunk, version), 0)
        promised[chunk, version] = first + 1 + number % 3
        counters = raised(counters, chunk, version, promised[chunk, version])
        assert len(counters) <= MAX_COUNTERS
    assert all(next_id(counters, *key) >= following for key, following in promised.items())


def test_counters_of_many_years_fold_into_one_if_they_must() -> None:
    many = tuple(
        Counter(chunk.start_ms, chunk.end_ms, APPEND_VERSION, number)
        for number in range(1, 1001)
        for chunk in [Granularity.DAY.chunk(number * 86_400_000 * 200)]
    )
    assert len(folded(many)) <= MAX_COUNTERS
    assert len(folded(many, 1, 1)) == 1 and folded(many, 1, 1)[0].next == 1000


def test_a_box_comes_back_as_it_was_stored() -> None:
    pure = PureBox()
    granted(pure.acquire(segments("g", 0, 1, 5, priority=0)))
    allocated(pure.allocate(asked("g", "s", 3, priority=0)))
    granted(pure.acquire(wanted("h", 0, 3, priority=9)))
    pure.box = boxes.remove_task(pure.box, "x", "y", 3, pure.turn())
    assert boxes.decode(boxes.encode(pure.box), "here") == pure.box
    assert boxes.encode(Box()) == b"{}"
    for bad in (b"", b"[]", b'{"format":2}', b'{"locks":[{}]}'):
        with pytest.raises(CorruptRecordError, match="here"):
            boxes.decode(bad, "here")


def test_ranges_are_sets() -> None:
    for left, right in itertools.product(
        itertools.chain(*(itertools.combinations(range(5), n) for n in range(4))), repeat=2
    ):
        a, b = ranges_of(left), ranges_of(right)
        assert join_ranges(a, b) == ranges_of({*left, *right})
        assert ranges_overlap(a, b) == bool(set(left) & set(right))
        assert ranges_contain(a, b) == (set(right) <= set(left))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: wanted(""),
        lambda: wanted("g", task="x" * 501),
        lambda: wanted("g", lease_ms=0),
        lambda: wanted("g", partitions=frozenset({1})),
        lambda: segments("g", -1),
        lambda: PureBox().acquire(segments("g")),
        lambda: AllocationRequest(lock=segments("g"), key=""),
        lambda: AllocationRequest(lock=segments("g"), key="s", count=0),
        lambda: AllocationRequest(lock=segments("g", 1), key="s"),
        lambda: PureBox().allocate(asked("g", "s", version="v1")),
    ],
)
def test_requests_that_make_no_sense_are_errors(ask: Callable[[], object]) -> None:
    with pytest.raises(InvalidLockRequestError):
        ask()


def test_switching_off_all_or_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Revert test: without the rule, a lock of higher priority is revoked, and the test above fails."""
    monkeypatch.setattr(rules, "all", any, raising=False)
    with pytest.raises(AssertionError):
        test_revocation_is_all_or_nothing()
