"""What readers see after a registry record of a rewrite was lost, when other pushes and clean-up go on."""

from __future__ import annotations

import pytest

from airflow_provider_segments.core.table import SegmentStore, Table
from tests.regressions.helpers import DAY, assert_refused, bring, lose, overwrite, placed_table, rewrite, seen
from tests.support.tables import HOUR_MS, HandClock, on_clock, stage


@pytest.fixture
def hand() -> HandClock:
    """A clock moved by hand."""
    return HandClock()


@pytest.fixture
def table(store: SegmentStore, hand: HandClock) -> Table:
    """A table with locks, whose replaced segments are kept for two hours."""
    return placed_table(on_clock(store, hand.clock()), replacedSegmentsRetentionPeriod="2h")


def test_a_correction_of_what_readers_no_longer_see_is_refused(table: Table) -> None:
    """A push that replaces one segment of a rewrite is under way when the other one is lost. Readers go back to the
    input, which has the rows of both. Ended, the push would have made the rewrite what counts again, and the rows of
    the lost segment would have gone for good."""
    bring(table, "a", DAY)
    entry_id = rewrite(table, ["a"], "half", "rest")
    correction = table.start(["half"]).entry_id
    stage(table, correction, ["corrected"], chunks=[DAY])
    lose(table, entry_id, "rest")
    assert seen(table) == {"a": 0}
    assert_refused("from-not-seen", table.end, correction)
    assert seen(table) == {"a": 0}
    table.abort(correction)
    table.revert(entry_id)
    bring(table, "corrected_again", DAY, ["a"])
    assert seen(table) == {"corrected_again": 0}


def test_what_readers_fell_back_to_outlives_an_overwrite_that_can_be_rolled_back(table: Table, hand: HandClock) -> None:
    """All that a rewrite brought is lost, so readers see its input; that is overwritten. Clean-up found nothing visible
    of the input and marked the rewrite; after the roll back of the overwrite the rows were gone."""
    bring(table, "a", DAY)
    entry_id = rewrite(table, ["a"], "rewritten")
    lose(table, entry_id, "rewritten")
    hand.advance(1 * HOUR_MS)
    day = overwrite(table, "day", DAY)
    hand.advance(90 * 60_000)
    table.cleanup()
    table.revert(day)
    assert seen(table) == {"a": 0}


def test_what_was_built_upon_a_lost_rewrite_can_be_rolled_back(table: Table) -> None:
    """One registry record had both segments of a rewrite, of which another rewrite had replaced one. When it was lost,
    readers went back to the input. The upper rewrite could not be reverted (``from-gone``), so the lower one could not
    either, and the day could never be rewritten again."""
    bring(table, "a", DAY)
    lower = table.start(["a"], rewrite=DAY).entry_id
    stage(table, lower, ["half", "rest"], chunks=[DAY, DAY])
    table.end(lower)
    upper = rewrite(table, ["half"], "upper")
    lose(table, lower, "build")
    assert seen(table) == {"a": 0}
    for entry_id in (upper, lower):
        table.revert(entry_id)
        assert seen(table) == {"a": 0}
    rewrite(table, ["a"], "again")
    assert seen(table) == {"again": 0}
