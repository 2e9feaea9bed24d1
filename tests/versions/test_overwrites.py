"""The time filter, against what a person would do with a ruler: look at every moment by itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry, Overwrite
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.versions.overwrites import WHOLE, TimeFilter, merge_touching
from airflow_provider_segments.exceptions import CorruptRecordError

TIMES = st.integers(0, 40)
SPANS = st.tuples(st.integers(0, 39), st.integers(1, 20)).map(lambda span: (span[0], min(sum(span), 40)))
OVERWRITES = st.lists(st.builds(lambda span, version: Overwrite("e", *span, version), SPANS, st.integers(1, 9)))


def visible_moments(overwrites: Sequence[Overwrite], interval: Interval, version: int) -> set[int]:
    """The moments of the interval that no overwrite of a later version holds."""
    return {
        at
        for at in range(interval.start_ms, interval.end_ms)
        if not any(one.start_ms <= at < one.end_ms and one.version > version for one in overwrites)
    }


@given(OVERWRITES, st.lists(st.tuples(SPANS, st.integers(0, 10)), min_size=1))
def test_a_segment_is_visible_exactly_where_no_later_overwrite_holds_its_time(
    overwrites: list[Overwrite], segments: list[tuple[tuple[int, int], int]]
) -> None:
    times = TimeFilter(overwrites)
    for span, version in segments:
        interval = Interval(*span)
        parts = times.window(interval).visible_parts(version)
        expected = visible_moments(overwrites, interval, version)
        if parts == WHOLE:
            assert len(expected) == interval.end_ms - interval.start_ms
            continue
        shown = [] if parts is None else [at for part in parts for at in range(part.start_ms, part.end_ms)]
        assert shown == sorted(expected), "in order, and no moment twice"
        assert parts is None or all(one.end_ms < two.start_ms for one, two in itertools.pairwise(parts))


@given(OVERWRITES)
def test_merging_what_touches_changes_nothing_that_is_hidden(overwrites: list[Overwrite]) -> None:
    merged = merge_touching(overwrites)
    whole = Interval(0, 41)
    for version in range(10):
        assert visible_moments(merged, whole, version) == visible_moments(overwrites, whole, version)
    assert len(merged) <= len(overwrites)


def test_time_that_touches_is_one_stretch() -> None:
    day, next_day, later = Overwrite("e", 0, 24, 5), Overwrite("e", 24, 48, 5), Overwrite("e", 48, 72, 6)
    assert merge_touching([next_day, later, day]) == (Overwrite("e", 0, 48, 5), later)


def test_marks_come_back_as_they_were_made_and_leave_with_their_entry() -> None:
    held = [Overwrite("e", -5, 7, 3), Overwrite("e", 10, 12, 4)]
    entry = LineageEntry.of("e", (), (), EntryState.COMPLETED, 1)
    lineage = Lineage("t").put(entry).with_overwrite(held)
    assert lineage.overwrites == lineage.overwrites_in_force == lineage.unsettled_overwrites == tuple(held)
    reverted = lineage.put(entry.moved_to(EntryState.REVERTED, 2))
    assert reverted.overwrites_in_force == () and reverted.unsettled_overwrites == tuple(held)
    assert lineage.with_cleaning("e", 3).unsettled_overwrites == ()
    assert lineage.without("e").overwrites == () and lineage.without("e").custom_map is None


@pytest.mark.parametrize("text", ["1/2", "1/2/x", "1/2/3/4", "now", "\u0661/2/3"])
def test_a_damaged_mark_is_an_error_and_never_no_overwrite(text: str) -> None:
    lineage = Lineage("t", {"e": LineageEntry.of("e", (), (), EntryState.COMPLETED, 1)}, {"segments.overwrite.e": text})
    with pytest.raises(CorruptRecordError, match=r"table 't'.*segments\.overwrite\.e"):
        _ = lineage.overwrites
