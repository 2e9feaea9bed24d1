"""Segments with several places, as values: in which version readers see them."""

from __future__ import annotations

import pytest

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.locking import APPEND_VERSION
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.segment import SegmentRecord, TimelinePlace
from airflow_provider_segments.core.timeline import Overlay, Placed, overlay
from airflow_provider_segments.exceptions import CorruptRecordError

NINE, DAY, MONTH = "2013-01-01T09", "2013-01-01", "2013-01"
NEW, NEWER = "2013-02-01T00:00:00.000Z", "2013-02-02T00:00:00.000Z"


def own(name: str, partition: int, chunk: str = DAY, version: str = APPEND_VERSION) -> Placed:
    """A segment in its own place; its entry is the first letter of its name."""
    return Placed(name[0], parse_chunk(chunk), SegmentRecord(name, "f", 1, 1, 1), TimelinePlace(version, partition))


def further(placed: Placed, partition: int, chunk: str = DAY, version: str = NEW) -> Placed:
    """Another place of it."""
    place = TimelinePlace(version, partition)
    return placed._replace(interval=parse_chunk(chunk), place=place, within=placed.interval)


def seen(*placed: Placed, hidden: tuple[str, ...] = (), lineage: Lineage | None = None) -> Overlay:
    return overlay("t", lineage or Lineage("t"), hidden, placed)


A, R = own("a", 0), own("r", 0, version=NEW)


def test_a_segment_is_seen_in_a_newer_version_that_is_there_and_without_it_where_it_was() -> None:
    carried = further(A, 1)
    assert (dict(seen(A, carried, R).visible), dict(seen(A, carried, R).moved)) == ({"a": (), "r": ()}, {"a": NEW})
    assert (dict(seen(A, carried).visible), dict(seen(A, carried).moved)) == ({"a": ()}, {})
    assert set(seen(A, R).visible) == {"r"}


def test_a_version_is_there_as_long_as_a_segment_of_it_is_registered_and_hidden() -> None:
    assert set(seen(A, further(A, 1), R, hidden=("r",)).visible) == {"a"}
    assert dict(seen(A, further(A, 1), R, hidden=("r",)).moved) == {"a": NEW}


def test_of_several_versions_the_newest_counts_also_where_an_older_one_is_wider() -> None:
    """The month holds the time around the day, where the segment has no rows."""
    month, day = own("m", 0, MONTH, NEW), own("d", 0, DAY, NEWER)
    shown = seen(A, further(A, 1, MONTH, NEW), further(A, 1, DAY, NEWER), month, day)
    assert shown.visible["a"] == () and shown.moved["a"] == NEWER
    assert shown.visible["m"] == (Interval(parse_chunk(DAY).end_ms, parse_chunk(MONTH).end_ms),)


def test_a_part_that_a_newer_version_holds_is_cut_and_the_rest_is_in_one_piece() -> None:
    nine, day = parse_chunk(NINE), parse_chunk(DAY)
    month, hour = own("m", 0, MONTH, NEW), own("h", 0, NINE, NEWER)
    shown = seen(A, further(A, 1, MONTH, NEW), month, hour)
    assert shown.visible["a"] == (Interval(day.start_ms, nine.start_ms), Interval(nine.end_ms, day.end_ms))
    hidden = own("b", 0, NINE)
    assert "b" not in seen(hidden, further(hidden, 1, MONTH, NEW), month, hour).visible


def test_a_version_that_readers_have_gone_back_from_does_not_count() -> None:
    """One of its two segments is lost: the input is seen again, and what was carried where it was."""
    rewrite = LineageEntry.of("r", ["a"], ["r", "r2"], EntryState.COMPLETED, 1)
    made = Lineage("t", {"r": rewrite}).with_rewrite("r", 1, (parse_chunk(DAY), NEW))
    c = own("c", 1)
    shown = seen(A, c, further(c, 2), R, hidden=("a",), lineage=made)
    assert set(shown.visible) == {"a", "c"} and not shown.moved
    whole = seen(A, c, further(c, 2), R, own("r2", 1, version=NEW), hidden=("a",), lineage=made)
    assert set(whole.visible) == {"c", "r", "r2"} and whole.moved == {"c": NEW}


def test_a_further_place_that_somebody_has_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="'a' and 'r' are both partition 0"):
        seen(A, further(A, 0), R)
