"""The rules of the lock box, one by one, on the pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_segments.core.locking import compatibility as rules
from airflow_provider_segments.core.locking import holding
from airflow_provider_segments.core.locking import state as boxes
from airflow_provider_segments.core.locking.counters import MAX_COUNTERS, Counter, advance, fold, next_id
from airflow_provider_segments.core.locking.ranges import ranges_contain, ranges_of, ranges_overlap
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
    granted_lock,
)
from airflow_provider_segments.core.model.interval import Granularity
from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    InvalidLockRequestError,
    LockDeniedError,
    LockLostError,
    LockRefusedError,
    LockRevokedError,
)
from tests.locking.helpers import KINDS, LEASE_MS, NOW_MS, PureBox, days, new_ids, of_kind, segments, wanted

COEXIST = {
    frozenset({"SHARED"}),
    frozenset({"APPEND"}),
    frozenset({"APPEND", "REPLACE"}),
    frozenset({"APPEND", "SEGMENT"}),
}
SHAPES = {
    "inside": ((0, 31), (3, 4)),
    "around": ((3, 4), (0, 31)),
    "the same": ((0, 4), (0, 4)),
    "across": ((0, 2), (1, 3)),
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


def release_all(pure: PureBox) -> None:
    pure.box = boxes.release(pure.box, lambda lock: True)


# --- locks


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("held", "asked"), list(itertools.product(KINDS, KINDS)))
def test_the_compatibility_table_holds_whichever_lock_is_wider(held: str, asked: str, shape: str) -> None:
    """Both segment locks are on id 0."""
    one, two = SHAPES[shape]
    pure = PureBox()
    first = granted(pure.acquire(of_kind(held, "a", *one)))
    result = pure.acquire(of_kind(asked, "b", *two))
    if frozenset({held, asked}) in COEXIST:
        granted(result)
        assert len(pure.active()) == 2
    else:
        assert isinstance(result, Denied) and result.blockers == (first,)


@pytest.mark.parametrize(("held", "asked"), list(itertools.product(KINDS, KINDS)))
def test_locks_on_different_time_are_never_in_each_other_s_way(held: str, asked: str) -> None:
    pure = PureBox()
    granted(pure.acquire(of_kind(held, "a", 0, 3)))
    granted(pure.acquire(of_kind(asked, "b", 3, 4)))
    assert len(pure.active()) == 2


@pytest.mark.parametrize("priorities", [(0, 99), (99, 0), (50, 50)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("beside", ["REPLACE", "SEGMENT"])
def test_an_append_lock_stands_beside_a_rewrite_of_any_width_and_priority_whichever_came_first(
    beside: str, shape: str, priorities: tuple[int, int]
) -> None:
    for kinds in (("APPEND", beside), (beside, "APPEND")):
        pure = PureBox()
        for group, kind, where, priority in zip("ab", kinds, SHAPES[shape], priorities, strict=True):
            granted(pure.acquire(of_kind(kind, group, *where, priority=priority)))
        assert [lock.group for lock in pure.active()] == ["a", "b"] and not pure.revoked()


def test_many_appends_stand_beside_one_rewrite_and_a_second_rewrite_does_not() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("month", 0, 31, "REPLACE")))
    for day in range(5):
        granted(pure.acquire(wanted(f"append{day}", day, day + 2, "APPEND")))
    for other in (wanted("late", 3, 4, "REPLACE"), segments("late", 7, first=3, end=4)):
        result = pure.acquire(other)
        assert isinstance(result, Denied) and [lock.group for lock in result.blockers] == ["month"]


def test_segment_locks_of_one_time_chunk_conflict_only_when_they_share_an_id() -> None:
    pure = PureBox()
    granted(pure.acquire(segments("a", 0, 1, 2, 7)))
    granted(pure.acquire(segments("b", 3, 4, 9)))
    for shared in (0, 2, 7):
        result = pure.acquire(segments("c", 5, shared))
        assert isinstance(result, Denied) and [lock.group for lock in result.blockers] == ["a"]
    granted(pure.acquire(segments("c", 5, 6, 8)))


def test_segment_locks_of_different_overlapping_intervals_always_conflict() -> None:
    pure = PureBox()
    granted(pure.acquire(segments("a", 0, first=0, end=2)))
    assert isinstance(pure.acquire(segments("b", 7, first=1, end=2)), Denied)


@pytest.mark.parametrize("kind", ["EXCLUSIVE", "SHARED", "REPLACE"])
def test_a_segment_lock_conflicts_with_a_time_chunk_lock_both_ways(kind: str) -> None:
    pure = PureBox()
    granted(pure.acquire(segments("a", 0)))
    assert isinstance(pure.acquire(wanted("b", 0, 3, kind)), Denied)
    other = PureBox()
    granted(other.acquire(wanted("b", 0, 3, kind)))
    assert isinstance(other.acquire(segments("a", 0)), Denied)


# --- a group's own locks


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("held", "asked"), list(itertools.product(KINDS, KINDS)))
def test_a_group_s_own_locks_never_stand_in_its_way(held: str, asked: str, shape: str) -> None:
    """Whatever the two locks are and whichever task asks; a lock that covers the request is the answer itself. The same
    request of another group is denied unless the two are compatible."""
    one, two = SHAPES[shape]
    pure = PureBox()
    first = granted(pure.acquire(of_kind(held, "g", *one, task="one")))
    theirs = pure.acquire(of_kind(asked, "other", *two))
    assert isinstance(theirs, Granted) == (frozenset({held, asked}) in COEXIST)
    pure.box = boxes.release(pure.box, lambda lock: lock.group == "other")
    second = granted(pure.acquire(of_kind(asked, "g", *two, task="two")))
    is_covered = held == asked and (shape == "the same" or (shape == "inside" and held != "SEGMENT"))
    assert (second.lock_id == first.lock_id) == is_covered
    assert len(pure.active()) == (1 if is_covered else 2) and not pure.revoked()


def test_another_group_beside_an_own_lock_still_stands_in_the_way() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("g", 0, 31, "SHARED")))
    granted(pure.acquire(wanted("h", 0, 31, "SHARED")))
    for kind in ("EXCLUSIVE", "REPLACE", "APPEND", "SEGMENT"):
        result = pure.acquire(of_kind(kind, "g", 3, 4))
        assert isinstance(result, Denied) and [lock.group for lock in result.blockers] == ["h"]
    pure.box = boxes.release(pure.box, lambda lock: lock.group == "h")
    for kind in ("EXCLUSIVE", "REPLACE", "APPEND", "SEGMENT"):
        granted(pure.acquire(of_kind(kind, "g", 3, 4)))
    assert [lock.lock_type.value for lock in pure.active()] == ["SHARED", "EXCLUSIVE", "REPLACE", "APPEND", "EXCLUSIVE"]


def test_every_lock_of_a_group_keeps_others_out_by_itself() -> None:
    """An EXCLUSIVE day inside the group's APPEND month: others may append to the rest of the month, not to the day."""
    pure = PureBox()
    granted(pure.acquire(wanted("g", 0, 31, "APPEND")))
    day = granted(pure.acquire(wanted("g", 3, 4)))
    granted(pure.acquire(wanted("h", 10, 20, "APPEND")))
    result = pure.acquire(wanted("h", 2, 5, "APPEND"))
    assert isinstance(result, Denied) and result.blockers == (day,)
    pure.box = boxes.release(pure.box, lambda lock: lock.lock_id == day.lock_id)
    granted(pure.acquire(wanted("h", 2, 5, "APPEND")))


def test_a_group_revokes_and_takes_none_of_its_own_locks() -> None:
    """Neither for a higher priority nor after their lease; those of others that it meets on the way, it does."""
    pure = PureBox()
    granted(pure.acquire(wanted("g", 0, 1, "SHARED", priority=0)))
    granted(pure.acquire(wanted("h", 0, 1, "SHARED", priority=0)))
    granted(pure.acquire(wanted("g", 1, 2, "SHARED", priority=99)))
    pure.now_ms += LEASE_MS
    result = pure.acquire(wanted("g", 0, 2, "EXCLUSIVE", priority=50))
    assert isinstance(result, Granted) and [lock.group for lock in result.revoked] == ["h"]
    assert [lock.group for lock in pure.active()] == ["g", "g", "g"]


def test_a_revoked_lock_of_the_group_is_the_answer_before_an_active_one_that_is_narrower() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("g", 1, 2, "SHARED")))
    wide = granted(pure.acquire(wanted("g", 0, 4, "SHARED")))
    pure.box = boxes.revoke(pure.box, [wide.lock_id], "a person", pure.turn())
    result = pure.acquire(wanted("g", 1, 2, "SHARED"))
    assert isinstance(result, Revoked) and result.lock.lock_id == wide.lock_id
    granted(pure.acquire(wanted("g", 1, 2, "REPLACE")))


@pytest.mark.parametrize("kind", KINDS)
def test_the_request_of_a_held_lock_finds_that_lock_and_leaves_its_lease_as_it_is(kind: str) -> None:
    pure = PureBox()
    asked = segments("g", 0, 1, 5, 6) if kind == "SEGMENT" else wanted("g", 0, 2, kind)
    held = granted(pure.acquire(asked))
    for other in KINDS:
        granted(pure.acquire(of_kind(other, "g", 7, 9)))
    pure.now_ms += LEASE_MS // 2
    assert granted(pure.acquire(LockRequest.of_held(held, "g"))) == held
    pure.now_ms += LEASE_MS
    found = pure.allocate(AllocationRequest(lock=LockRequest.of_held(held, "g"), key="s", chunk=held.interval))
    assert allocated(found).lock.lock_id == held.lock_id


# --- revocation


def test_revocation_is_all_or_nothing() -> None:
    pure = PureBox()
    granted(pure.acquire(wanted("low", 0, 1, priority=10)))
    granted(pure.acquire(wanted("high", 1, 2, priority=30)))
    before = pure.box
    result = pure.acquire(wanted("mid", 0, 2, priority=20))
    assert isinstance(result, Denied) and [lock.group for lock in result.blockers] == ["high"]
    assert pure.box == before, "not even a version was used up"
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


def test_segment_locks_are_exclusive() -> None:
    for kind in ("APPEND", "REPLACE", "SHARED"):
        result = PureBox().acquire(replace(segments("a", 0), lock_type=LockType[kind]))
        assert isinstance(result, Denied) and not result.blockers and kind in result.reason


def test_a_wider_lock_leaves_the_narrower_ones_of_its_task_as_they_are() -> None:
    """Each protects what was granted under it, for as long as its own lease says."""
    pure = PureBox()
    narrow = allocated(pure.allocate(new_ids("g", "s", first=1, end=2)))
    wide = granted(pure.acquire(wanted("g", 0, 4, "APPEND", lease_ms=1)))
    assert [lock.lock_id for lock in pure.active()] == [narrow.lock.lock_id, wide.lock_id]
    assert pure.box.find(narrow.lock.lock_id) == narrow.lock
    again = allocated(pure.allocate(new_ids("g", "s", first=1, end=2)))
    assert again.again and again.partitions == narrow.partitions


def test_a_segment_lock_covers_segments_of_its_own_time_chunk_only() -> None:
    """Id 7 of a month and id 7 of one of its days are two segments."""
    pure = PureBox()
    month = granted(pure.acquire(segments("g", 7, first=0, end=31)))
    day = granted(pure.acquire(segments("g", 7, first=3, end=4)))
    assert day.lock_id != month.lock_id
    assert allocated(pure.allocate(new_ids("h", "s", first=3, end=4))).partitions == range(8, 9)


def test_ids_cannot_be_allocated_under_a_lock_on_no_segment() -> None:
    pure = PureBox()
    with pytest.raises(InvalidLockRequestError, match="names the partitions"):
        pure.allocate(AllocationRequest(lock=segments("g"), key="s", chunk=days(0, 1)))
    assert pure.box == Box.empty()


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
    later = boxes.prune(pure.box, pure.now_ms + LEASE_MS + boxes.KEPT_MS)
    assert [lock.group for lock in later.locks] == ["high"] and not later.departed
    assert boxes.prune(pure.box, pure.now_ms + LEASE_MS) == pure.box


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


def test_every_lock_of_whatever_type_gets_a_version_above_all_earlier_ones() -> None:
    """Held or released meanwhile, in the same time or elsewhere, for a request or for ids; the clock goes back a day
    and on again."""
    pure = PureBox()
    versions: list[int] = []
    for number, moved in enumerate((0, 1, -3_600_000, 5, -86_400_000, 86_400_000, 7_200_000)):
        pure.now_ms += moved
        for at, kind in enumerate(KINDS):
            day = 10 * number + at
            versions.append(granted(pure.acquire(of_kind(kind, f"g{day}", day, day + 1))).version)
            given = allocated(pure.allocate(new_ids(f"h{day}", "s", kind=kind, first=100 + day, end=101 + day)))
            versions.append(given.lock.version)
        if number % 2:
            release_all(pure)
    assert versions == sorted(set(versions)), "they only go up"
    assert versions[0] == NOW_MS and versions[-len(KINDS) * 2] == pure.now_ms, "and they are times"


def test_no_version_is_given_twice_after_all_that_remembered_it_is_gone() -> None:
    pure = PureBox()
    pure.now_ms += 10 * boxes.KEPT_MS
    before = granted(pure.acquire(wanted("g"))).version
    release_all(pure)
    pure.box = boxes.prune(boxes.decode(boxes.encode(pure.box), "here"), pure.now_ms + 10 * boxes.KEPT_MS)
    pure.now_ms = NOW_MS
    assert granted(pure.acquire(wanted("g"))).version == before + 1


def test_asking_again_and_joining_give_the_version_that_the_lock_has() -> None:
    pure = PureBox()
    held = granted(pure.acquire(wanted("g", 0, 4, "APPEND", task="one")))
    pure.now_ms += 1_000
    for ask in (wanted("g", 0, 4, "APPEND", task="one"), wanted("g", 1, 2, "APPEND", task="two")):
        assert granted(pure.acquire(ask)).version == held.version
    assert allocated(pure.allocate(new_ids("g", "s", first=1, end=2))).lock.version == held.version
    assert pure.box.version_ms == held.version


def test_a_request_that_is_not_granted_uses_up_no_version() -> None:
    pure = PureBox()
    lost = granted(pure.acquire(wanted("low", priority=0)))
    held = granted(pure.acquire(wanted("high", priority=9)))
    assert isinstance(pure.acquire(wanted("other", priority=9)), Denied)
    assert isinstance(pure.acquire(wanted("low", priority=0)), Revoked)
    assert isinstance(pure.allocate(new_ids("other", "s", priority=9)), Denied)
    assert (lost.version, held.version, pure.box.version_ms) == (NOW_MS, NOW_MS + 1, NOW_MS + 1)


# --- allocation


def test_new_ids_come_after_those_that_segment_locks_are_on() -> None:
    """Segments that are locked exist, so their ids are taken."""
    pure = PureBox()
    compact = granted(pure.acquire(segments("compact", 0, 1, 4)))
    assert allocated(pure.allocate(new_ids("kafka", "s0"))).partitions == range(5, 6)
    out = AllocationRequest(lock=LockRequest.of_held(compact, "compact"), key="out", chunk=days(0, 1), count=2)
    given = allocated(pure.allocate(out))
    assert given.partitions == range(6, 8) and given.lock.lock_id == compact.lock_id
    assert given.lock.partitions == compact.partitions, "the lock is on what it was asked for"
    granted(pure.acquire(segments("later", 9)))
    assert allocated(pure.allocate(new_ids("kafka", "s1"))).partitions == range(10, 11)
    assert allocated(pure.allocate(new_ids("kafka", "s2", first=1, end=2))).partitions == range(1), "another chunk"


def test_a_segment_lock_on_ids_that_were_given_out_skips_none() -> None:
    pure = PureBox()
    assert allocated(pure.allocate(new_ids("kafka", "s0", 5))).partitions == range(5)
    granted(pure.acquire(segments("compact", 1, 2)))
    assert allocated(pure.allocate(new_ids("kafka", "s1"))).partitions == range(5, 6)


def test_ids_of_one_chunk_are_unique_whatever_lock_they_were_given_under() -> None:
    """Locks of every kind and width in turn, held and released, with the clock going back: one counter."""
    pure = PureBox()
    given: list[int] = []
    for number in range(60):
        kind = KINDS[number % len(KINDS)]
        wide = kind != "SEGMENT" and number % 3
        first, end = (0, 31) if wide else (3, 4)
        lock = of_kind(kind, f"g{number}", first, end, priority=number)
        ask = AllocationRequest(lock=lock, key="s", chunk=days(3, 4), count=1 + number % 4)
        given += allocated(pure.allocate(ask)).partitions
        pure.now_ms -= 1_000
        if number % 7 == 6:
            release_all(pure)
    assert given == list(range(len(given))), "none twice, and none skipped"
    assert pure.box.counters == (Counter(days(3, 4).start_ms, days(3, 4).end_ms, len(given)),)


def test_time_chunks_are_counted_apart_also_when_one_contains_the_other() -> None:
    pure = PureBox()
    for number, chunk in enumerate((days(0, 31), days(3, 4), days(4, 5), days(3, 4), days(0, 31))):
        given = allocated(pure.allocate(new_ids("g", f"s{number}", 2, first=0, end=31, chunk=chunk)))
        assert given.chunk == chunk and given.partitions == (range(2) if number < 3 else range(2, 4))


def test_allocations_of_a_group_in_one_chunk_share_one_lock() -> None:
    pure = PureBox()
    for number in range(5):
        allocated(pure.allocate(new_ids("g", f"s{number}", 2)))
    assert [set(lock.allocated) for lock in pure.active()] == [{f"s{number}" for number in range(5)}]


def test_the_same_sequence_key_gets_the_same_ids() -> None:
    pure = PureBox()
    first = allocated(pure.allocate(new_ids("g", "s", 3, task="one")))
    allocated(pure.allocate(new_ids("h", "s", 3)))
    again = allocated(pure.allocate(new_ids("g", "s", 3, task="two")))
    assert again.partitions == first.partitions and again.again and again.lock.tasks == ("one", "two")
    refused("sequence-differs", lambda: pure.allocate(new_ids("g", "s", 4)))
    refused("sequence-differs", lambda: pure.allocate(new_ids("g", "s", 3, first=5, end=6)))


def test_ids_are_never_given_out_again_after_their_lock_is_released() -> None:
    pure = PureBox()
    seen: set[int] = set()
    for _ in range(10):
        given = set(allocated(pure.allocate(new_ids("g", "s", 3))).partitions)
        assert not given & seen
        seen |= given
        release_all(pure)
    assert not pure.box.locks and len(pure.box.counters) == 1


def test_ids_of_a_revoked_lock_are_not_confirmed() -> None:
    pure = PureBox()
    allocated(pure.allocate(new_ids("low", "s", priority=0)))
    granted(pure.acquire(wanted("high", priority=9)))
    assert isinstance(pure.allocate(new_ids("low", "s", priority=0)), Revoked)
    assert isinstance(pure.allocate(new_ids("low", "other", priority=0)), Revoked)
    assert isinstance(pure.allocate(new_ids("third", "s", priority=0)), Denied)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_of_a_chunk_inside_the_lock(kind: str) -> None:
    pure = PureBox()
    given = allocated(pure.allocate(new_ids("g", "s", 2, first=0, end=31, kind=kind, chunk=days(3, 4))))
    assert (given.chunk, given.lock.interval, given.partitions) == (days(3, 4), days(0, 31), range(2))
    before = pure.box
    for number, outside in enumerate((days(30, 32), days(31, 32), days(0, 32))):
        for group in ("g", "new"):
            ask = new_ids(group, f"o{number}", first=0, end=31, kind="APPEND", chunk=outside)
            if group == "g" or frozenset({kind, "APPEND"}) in COEXIST:
                refused("outside-lock", lambda ask=ask: pure.allocate(ask))  # type: ignore[misc]
    assert pure.box == before, "neither the lock nor the ids"


# --- holding


def test_every_lock_that_a_push_relies_on_must_hold() -> None:
    """Druid finds no single lock then, and takes the push for valid."""
    pure = PureBox()
    locks = [granted(pure.acquire(segments("g", partition, priority=0))) for partition in (0, 1)]
    granted(pure.acquire(segments("thief", 1, priority=9)))
    names = [lock.lock_id for lock in locks]
    assert holding.require_held(pure.box, names[:1], "g", "g", pure.turn()) == (locks[0],)
    with pytest.raises(LockRevokedError, match="thief"):
        holding.require_held(pure.box, names, "g", "g", pure.turn())


def test_a_lock_that_is_not_the_task_s_is_not_held() -> None:
    pure = PureBox()
    lock = granted(pure.acquire(wanted("g", task="one")))
    for names, group, task, rule in (
        ([lock.lock_id], "g", "two", "lock-lost"),
        ([lock.lock_id], "h", "one", "lock-lost"),
        ([lock.lock_id, "never granted"], "g", "one", "lock-lost"),
        ([], "g", "one", "no-lock"),
    ):
        with pytest.raises(LockLostError) as caught:
            holding.require_held(pure.box, names, group, task, pure.turn())
        assert caught.value.rule == rule and not isinstance(caught.value, LockRevokedError)


# --- what is stored


def test_counters_fold_and_promise_at_least_as_much() -> None:
    """1,500 hours, every third twice: the list stays short, and no id is ever promised twice."""
    counters: tuple[Counter, ...] = ()
    promised: dict[Any, int] = {}
    for number in range(1500):
        for at in (number, number // 2) if number % 3 == 0 else (number,):
            chunk = Granularity.HOUR.chunk(NOW_MS + at * 3_600_000 * 7)
            first = next_id(counters, chunk)
            assert first >= promised.get(chunk, 0)
            promised[chunk] = first + 1 + number % 3
            counters = advance(counters, chunk, promised[chunk])
            assert len(counters) <= MAX_COUNTERS
    assert all(next_id(counters, chunk) >= following for chunk, following in promised.items())


def test_counters_of_many_years_fold_into_one_if_they_must() -> None:
    many = tuple(
        Counter(chunk.start_ms, chunk.end_ms, number)
        for number in range(1, 1001)
        for chunk in [Granularity.DAY.chunk(number * 86_400_000 * 200)]
    )
    assert len(fold(many)) <= MAX_COUNTERS
    assert len(fold(many, 1, 1)) == 1 and fold(many, 1, 1)[0].next == 1000


def test_a_counter_never_goes_back() -> None:
    chunk = days(0, 1)
    counters = advance((), chunk, 5)
    assert advance(counters, chunk, 5) == advance(counters, chunk, 2) == counters
    assert next_id(advance(fold(counters, 0, 0), chunk, 3), chunk) == 5
    assert [next_id(advance(counters, chunk, 9), one) for one in (chunk, days(0, 2), days(1, 2))] == [9, 0, 0]


def test_a_box_comes_back_as_it_was_stored() -> None:
    pure = PureBox()
    granted(pure.acquire(segments("g", 0, 1, 5, priority=0)))
    allocated(pure.allocate(new_ids("g", "s", 3, priority=0)))
    granted(pure.acquire(wanted("h", 0, 3, priority=9)))
    pure.box = boxes.remove_task(pure.box, "x", "y", 3, pure.turn())
    assert boxes.decode(boxes.encode(pure.box), "here") == pure.box
    assert b'"format":2' in boxes.encode(Box.empty())
    with pytest.raises(CorruptRecordError, match="here"):
        boxes.decode(b"{}", "here")
    for bad in (b"", b"[]", b'{"format":1}', b'{"format":3}', b'{"locks":[{}]}', b'{"counters":[[0,1,"1970",2]]}'):
        with pytest.raises(CorruptRecordError, match="here"):
            boxes.decode(bad, "here")


def test_ranges_are_sets() -> None:
    for left, right in itertools.product(
        itertools.chain(*(itertools.combinations(range(5), n) for n in range(4))), repeat=2
    ):
        a, b = ranges_of(left), ranges_of(right)
        assert ranges_overlap(a, b) == bool(set(left) & set(right))
        assert ranges_contain(a, b) == (set(right) <= set(left))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: wanted(""),
        lambda: wanted("g", task="x" * 1_001),
        lambda: wanted("g", lease_ms=0),
        lambda: wanted("g", partitions=frozenset({1})),
        lambda: segments("g", -1),
        lambda: PureBox().acquire(segments("g")),
        lambda: new_ids("g", ""),
        lambda: new_ids("g", "s" * 1_001),
        lambda: new_ids("g", "s", 0),
    ],
)
def test_requests_that_make_no_sense_are_errors(ask: Callable[[], object]) -> None:
    with pytest.raises(InvalidLockRequestError):
        ask()


def test_switching_off_all_or_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Revert test: when those locks give way that can, whatever else stands in the way, the test above fails."""

    def grab(locks: Sequence[Lock], request: LockRequest, now_ms: int) -> rules.Decision:
        decision = rules.decide(locks, request, now_ms)
        if not isinstance(decision, rules.Deny):
            return decision
        return rules.decide([lock for lock in locks if lock not in decision.blockers], request, now_ms)

    monkeypatch.setattr(boxes, "decide", grab)
    with pytest.raises(AssertionError):
        test_revocation_is_all_or_nothing()


def test_own_locks_in_the_way_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Revert test: a group whose locks are looked at as a stranger's is denied."""

    def strict(locks: Sequence[Lock], request: LockRequest, now_ms: int) -> rules.Decision:
        return rules.decide(locks, replace(request, group="a stranger"), now_ms)

    monkeypatch.setattr(boxes, "decide", strict)
    with pytest.raises(AssertionError):
        test_every_lock_of_a_group_keeps_others_out_by_itself()
