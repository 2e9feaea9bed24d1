"""Overwrites beside compactions, appends and each other."""

from __future__ import annotations

import pytest

from airflow_provider_segments.core.locking import LockType
from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.table import SegmentStore, Table
from tests.regressions.helpers import (
    DAY,
    HOUR_9,
    MONTH,
    assert_refused,
    bring,
    lock,
    overwrite,
    placed_table,
    seen,
)
from tests.support.tables import HOUR_MS, HandClock, on_clock, registered, stage


@pytest.fixture
def hand() -> HandClock:
    """A clock moved by hand."""
    return HandClock()


@pytest.fixture
def table(store: SegmentStore, hand: HandClock) -> Table:
    """A table with locks, whose replaced segments are kept for two hours."""
    return placed_table(on_clock(store, hand.clock()), replacedSegmentsRetentionPeriod="2h")


def test_an_overwrite_between_the_plan_and_the_start_of_a_compaction_stays_in_force(table: Table) -> None:
    """A compaction plans on a snapshot; somebody overwrites an hour and gives the lock back; the compaction locks,
    writes what it had planned and ends: the overwritten rows were seen again."""
    bring(table, "a", DAY)
    planned = table.snapshot().names
    overwrite(table, "hour", HOUR_9)
    held = lock(table, DAY, LockType.REPLACE)
    assert_refused("overwrite-unsettled", table.start, planned, locks=[held], rewrite=DAY)
    assert seen(table) == {"a": 2, "hour": 0}


def test_an_overwrite_between_the_start_and_the_end_of_a_compaction_stays_in_force(table: Table) -> None:
    """The same without a lock that would keep the overwrite away: the rows that were read are no longer what is
    seen."""
    bring(table, "a", DAY)
    entry_id = table.start(["a"], rewrite=DAY).entry_id
    overwrite(table, "hour", HOUR_9)
    stage(table, entry_id, ["compacted"], chunks=[DAY])
    assert_refused("inputs-overwritten", table.end, entry_id)
    assert seen(table) == {"a": 2, "hour": 0}


def test_a_compaction_of_a_cut_day_never_takes_the_rollback_of_what_cuts_it_away(table: Table, hand: HandClock) -> None:
    """Append a day, overwrite hour 9, rewrite the cut day alone, revert the overwrite: the day's rows of hour 9 were
    gone for good once the inputs were cleaned. So the rewrite waits until that revert can no longer be."""
    bring(table, "a", DAY)
    hour = overwrite(table, "hour", HOUR_9)
    assert_refused("overwrite-unsettled", table.start, ["a"], rewrite=DAY)
    hand.advance(3 * HOUR_MS)
    table.cleanup()
    assert_refused("replaced-are-deleted", table.revert, hour)
    started = table.start(["a"], rewrite=DAY)
    assert len(started.cuts["a"]) == 2
    stage(table, started.entry_id, ["rewritten"], chunks=[DAY])
    table.end(started.entry_id)
    assert seen(table) == {"hour": 0, "rewritten": 0}


def test_rolled_back_before_the_rewrite_the_overwrite_gives_everything_back(table: Table) -> None:
    """The other order of the same."""
    bring(table, "a", DAY)
    table.revert(overwrite(table, "hour", HOUR_9))
    assert seen(table) == {"a": 0}


def test_an_overwritten_name_that_has_left_the_lineage_cannot_be_pushed_again(table: Table, hand: HandClock) -> None:
    """An untagged name was overwritten, its entry has left the lineage, and it is still registered: pushed again, its
    old and its new rows were both seen."""
    bring(table, "a", DAY)
    hand.advance(3 * HOUR_MS)
    table.cleanup()
    overwrite(table, "day", DAY)
    assert seen(table) == {"day": 0} and "a" in registered(table) and len(table.lineage()) == 1
    entry_id = table.start().entry_id
    assert_refused("to-registered", stage, table, entry_id, ["a"], chunks=[DAY])
    assert seen(table) == {"day": 0}


@pytest.mark.parametrize("lock_type", [LockType.SHARED, LockType.APPEND, LockType.REPLACE, LockType.EXCLUSIVE])
def test_locks_of_its_own_group_never_stand_in_the_way_of_a_push(table: Table, lock_type: LockType) -> None:
    """A push of a day was denied by its own SHARED or APPEND lock on the month."""
    held = lock(table, MONTH, lock_type)
    bring(table, "a", DAY, locks=[held])
    assert seen(table) == {"a": 0}


@pytest.mark.parametrize("lock_type", [LockType.SHARED, LockType.APPEND])
def test_an_append_leaves_the_locks_of_its_group_when_it_ends(table: Table, lock_type: LockType) -> None:
    """Its stage joined the group's APPEND lock and never left it: after the group had given the lock back, overwrites
    of that time were denied until the lease was over."""
    held = lock(table, MONTH, lock_type)
    bring(table, "a", DAY, locks=[held])
    assert [one.tasks for one in table.locks.locks()] == [("task",)]
    table.locks.release(held.group, held.task)
    assert table.locks.locks() == ()


def test_of_two_overwrites_under_one_lock_the_later_hides_the_earlier(table: Table) -> None:
    """A task of a DAG run that is cleared pushes once more under the lock that the run still holds. Both pushes had the
    lock's version, so the rows of both were seen."""
    held = lock(table, DAY)
    bring(table, "first", DAY, locks=[held])
    second = bring(table, "second", DAY, locks=[held])
    assert seen(table) == {"second": 0}
    table.revert(second)
    assert seen(table) == {"first": 0}


def test_of_two_overwrites_under_one_lock_the_one_that_began_first_cannot_end_last(table: Table) -> None:
    """Its rows would lie beneath those of the other one."""
    held = lock(table, DAY)
    entry_id = table.start(locks=[held]).entry_id
    stage(table, entry_id, ["first"], chunks=[DAY])
    bring(table, "second", DAY, locks=[held])
    assert_refused("overtaken", table.end, entry_id)
    assert seen(table) == {"second": 0}


def test_a_retried_start_keeps_the_version_of_what_is_staged(table: Table) -> None:
    """The same task under the same locks goes on with its entry, and need not build again."""
    held = lock(table, DAY)
    entry_id = table.start(locks=[held], identity="push").entry_id
    stage(table, entry_id, ["a"], chunks=[DAY])
    assert table.start(locks=[held], identity="push").entry_id == entry_id
    table.end(entry_id)
    assert seen(table) == {"a": 0}


def test_an_overwrite_cannot_end_beneath_a_rewrite_that_may_be_brought_back(table: Table) -> None:
    """A rewrite has the version of the newest of its inputs, so an overwrite of a lower one would hide a part of an
    older input and not of the rewrite: brought back, that would show what was overwritten."""
    bring(table, "a", DAY)
    hour = table.start(locks=[lock(table, HOUR_9)], overwrites=[parse_chunk(HOUR_9)]).entry_id
    bring(table, "b", "2013-01-01T10")
    entry_id = table.start(["a", "b"], rewrite=DAY, locks=[lock(table, DAY, LockType.REPLACE, task="other")]).entry_id
    stage(table, entry_id, ["rewritten"], chunks=[DAY])
    table.end(entry_id)
    table.revert(entry_id)
    assert_refused("overtaken", table.end, hour, allow_empty=True)
    table.unrevert(entry_id)
    assert seen(table) == {"rewritten": 0}
