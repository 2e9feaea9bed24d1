"""The timeline over a lineage, as values: what readers see of registered segments, and when they go back."""

from __future__ import annotations

import pytest

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.hiding import hidden_names
from airflow_provider_segments.core.locking import APPEND_VERSION
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.ranges import Ranges
from airflow_provider_segments.core.model.segment import SegmentRecord, TimelinePlace
from airflow_provider_segments.core.timeline import Placed, SegmentState, overlay
from airflow_provider_segments.exceptions import CorruptRecordError

NINE, DAY = "2013-01-01T09", "2013-01-01"
NEW = "2013-02-01T00:00:00.000Z"


def one(
    name: str,
    partition: int,
    over: Ranges = (),
    group: Ranges = (),
    *,
    chunk: str = NINE,
    version: str = APPEND_VERSION,
) -> Placed:
    """A registered segment; its entry is the first letter of its name."""
    record = SegmentRecord(name, f"{name}.parquet", 1, 1, 1)
    return Placed(name[0], parse_chunk(chunk), record, TimelinePlace(version, partition, over, group))


def entry(entry_id: str, replaced: str, brought: str) -> LineageEntry:
    """A completed entry; names are separated by blanks."""
    return LineageEntry.of(entry_id, replaced.split(), brought.split(), EntryState.COMPLETED, 1)


def lineage(*entries: LineageEntry, rewrites: str = "", cleaning: str = "", founding: str = "") -> Lineage:
    """A lineage and the marks of its entries. Those in ``founding`` have founded the version ``NEW`` of the day."""
    made = Lineage("t", {one.entry_id: one for one in entries})
    for entry_id in rewrites + founding:
        made = made.with_rewrite(entry_id, 1, (parse_chunk(DAY), NEW) if entry_id in founding else None)
    for entry_id in cleaning:
        made = made.with_cleaning(entry_id, 1)
    return made


def shown(made: Lineage, *placed: Placed) -> str:
    """The visible names in order."""
    return " ".join(sorted(overlay("t", made, hidden_names(made), placed).visible))


A1, A2 = one("a1", 0), one("a2", 1)
R1, R2 = (one(f"r{at}", at + 1, ((0, 2),), ((2, 4),)) for at in (1, 2))
REWRITE = entry("r", "a1 a2", "r1 r2")


def test_a_whole_group_is_seen_instead_of_what_it_replaced() -> None:
    assert shown(lineage(REWRITE, rewrites="r"), A1, A2, R1, R2) == "r1 r2"


@pytest.mark.parametrize("left", [[R1], [R2], []])
def test_a_group_that_misses_a_segment_shows_nothing_and_its_inputs_show_all(left: list[Placed]) -> None:
    assert shown(lineage(REWRITE, rewrites="r"), A1, A2, *left) == "a1 a2"


def test_without_the_mark_of_a_rewrite_only_the_lineage_decides() -> None:
    assert shown(lineage(REWRITE), A1, A2, R1) == "r1"


def test_once_its_inputs_are_cleaned_a_group_is_seen_segment_by_segment() -> None:
    assert shown(lineage(REWRITE, rewrites="r", cleaning="r"), A1, R1) == "r1"


def test_a_group_of_which_a_segment_was_replaced_is_not_incomplete() -> None:
    expired = entry("x", "r1", "")
    assert shown(lineage(REWRITE, expired, rewrites="r"), A1, A2, R1, R2) == "r2"


def test_rows_that_were_replaced_on_purpose_do_not_come_back_with_a_loss() -> None:
    corrected = entry("c", "r1", "c1")
    assert shown(lineage(REWRITE, corrected, rewrites="r"), A1, A2, R1, one("c1", 4)) == "c1"


def test_a_rewrite_of_a_part_of_a_group_is_gone_back_from_with_it() -> None:
    part = entry("s", "r1", "s1")
    s1 = one("s1", 4, ((2, 3),), ((4, 5),))
    assert shown(lineage(REWRITE, part, rewrites="rs"), A1, A2, R1, R2, s1) == "r2 s1"
    assert shown(lineage(REWRITE, part, rewrites="rs"), A1, A2, R1, s1) == "a1 a2"


def test_a_rewrite_of_a_rewrite_goes_back_one_step_at_a_time() -> None:
    again = lineage(REWRITE, entry("s", "r1 r2", "s1"), rewrites="rs")
    s1 = one("s1", 4, ((2, 4),), ((4, 5),))
    assert shown(again, A1, A2, R1, R2, s1) == "s1"
    assert shown(again, A1, A2, R1, s1) == "s1"
    assert shown(again, A1, A2, R1, R2) == "r1 r2"
    assert shown(again, A1, A2, R1) == "a1 a2"


def test_readers_go_back_over_rewrites_of_which_nothing_is_left() -> None:
    once = lineage(REWRITE, entry("s", "r1 r2", "s1"), entry("u", "s1", "u1"), rewrites="rsu")
    assert shown(once, A1, A2, R1, R2) == "r1 r2"
    assert shown(once, A1, A2) == "a1 a2"


def test_what_a_lost_rewrite_had_replaced_is_missed_beneath_it() -> None:
    """Two generations of two: each falls back for a reason of its own, or because of what is beneath."""
    again = lineage(REWRITE, entry("s", "r1", "s1 s2"), rewrites="rs")
    s1, s2 = (one(f"s{at}", at + 3, ((2, 3),), ((4, 6),)) for at in (1, 2))
    assert shown(again, A1, A2, R1, R2, s1) == "r1 r2"
    assert shown(again, A1, A2, R2, s1) == "a1 a2"
    assert shown(again, A1, A2, R1, s1, s2) == "a1 a2"


def test_a_loss_behind_a_correction_takes_nothing_with_it() -> None:
    """What was corrected must not come back; the rows of a further rewrite are its own to go back from."""
    corrected = lineage(REWRITE, entry("c", "r1", "c1"), entry("s", "r2", "s1 s2"), rewrites="rs")
    c1 = one("c1", 4)
    s1, s2 = (one(f"s{at}", at + 4, ((3, 4),), ((5, 7),)) for at in (1, 2))
    assert shown(corrected, A1, A2, R1, R2, c1, s1, s2) == "c1 s1 s2"
    assert shown(corrected, A1, A2, R1, R2, c1, s1) == "c1 r2"
    assert shown(corrected, A1, A2, R1, c1, s1) == "c1"


def founded(*partitions: int) -> list[Placed]:
    """Segments of a new version of the day."""
    group = ((partitions[0], partitions[-1] + 1),)
    return [one(f"f{at}", at, (), group, chunk=DAY, version=NEW) for at in partitions]


@pytest.mark.parametrize("first", [0, 3])
def test_a_new_version_hides_what_it_replaced_whatever_its_first_id_is(first: int) -> None:
    new = founded(first, first + 1)
    made = lineage(entry("f", "a1 a2", " ".join(placed.record.name for placed in new)), founding="f")
    joined = one("j1", 7, chunk=DAY, version=NEW)
    assert shown(made, A1, A2, *new, joined).split()[-1] == "j1"
    assert "a1" not in shown(made, A1, A2, *new, joined)
    assert shown(made, A1, A2, new[0]) == "a1 a2"


def test_what_joined_a_new_version_is_seen_beside_what_that_replaced_when_it_misses_a_segment() -> None:
    made = lineage(entry("f", "a1 a2", "f0 f1"), founding="f")
    assert shown(made, A1, A2, founded(0, 1)[0], one("j1", 2, chunk=DAY, version=NEW)) == "a1 a2 j1"


def test_a_version_of_which_only_what_joined_it_is_left_hides_nothing() -> None:
    made = lineage(entry("f", "a1 a2", "f0 f1"), founding="f")
    joined = one("j1", 2, chunk=DAY, version=NEW)
    assert shown(made, A1, A2, joined) == "a1 a2 j1"
    assert shown(lineage(), A1, A2, joined) == "j1"
    assert shown(lineage(entry("r", "a1", "r1"), rewrites="r"), A1, A2, joined) == "j1"


def test_two_versions_of_one_time_are_gone_back_from_one_by_one() -> None:
    newer = "2013-03-01T00:00:00.000Z"
    made = lineage(entry("f", "a1 a2", "f0 f1"), entry("g", "f0 f1 j1", "g0 g1"), founding="f")
    made = made.with_rewrite("g", 1, (parse_chunk("2013-01"), newer))
    f0, f1 = founded(0, 1)
    j1 = one("j1", 2, chunk=DAY, version=NEW)
    g0, g1, k1 = (one(name, at, chunk="2013-01", version=newer) for at, name in enumerate(("g0", "g1", "k1")))
    assert shown(made, A1, A2, f0, f1, j1, g0, g1, k1) == "g0 g1 k1"
    assert shown(made, A1, A2, f0, f1, j1, g0, k1) == "f0 f1 j1 k1"
    assert shown(made, A1, A2, f1, j1, k1) == "a1 a2 j1 k1"


def test_a_wider_segment_is_cut_where_a_newer_version_holds_the_time() -> None:
    day, nine = parse_chunk(DAY), parse_chunk(NINE)
    seen = overlay("t", Lineage("t"), (), [one("d1", 0, chunk=DAY), one("n1", 0, version=NEW)])
    parts = (Interval(day.start_ms, nine.start_ms), Interval(nine.end_ms, day.end_ms))
    assert dict(seen.visible) == {"d1": parts, "n1": ()}


def test_states_follow_what_readers_see() -> None:
    made = lineage(REWRITE, rewrites="r")

    def states(*placed: Placed) -> list[SegmentState]:
        seen = overlay("t", made, hidden_names(made), placed)
        return [seen.state_of(each) for each in placed]

    waits, seen, over = SegmentState.STANDBY, SegmentState.VISIBLE, SegmentState.OVERSHADOWED
    assert states(A1, A2, R1, R2) == [over, over, seen, seen]
    assert states(A1, A2, R1) == [seen, seen, waits]


@pytest.mark.parametrize("group", [(), ((0, 2),)])
def test_two_segments_of_one_place_are_refused_and_both_are_named(group: Ranges) -> None:
    with pytest.raises(CorruptRecordError, match=r"table 't'.*'a1' and 'b1' are both partition 0"):
        overlay("t", lineage(rewrites=""), (), [A1, one("b1", 0, (), group)])


def test_overlapping_chunks_of_one_version_are_refused() -> None:
    with pytest.raises(CorruptRecordError, match="same-version-overlaps"):
        overlay("t", Lineage("t"), (), [A1, one("d1", 0, chunk=DAY)])
