"""What a caller of the timeline may rely on, one claim a test."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.timeline import (
    SegmentKey,
    SegmentState,
    Timeline,
    TimelineRefusedError,
    VersionedSegment,
)

Segment = VersionedSegment[str]


def segment(
    partition: int,
    over: tuple[int, ...] = (),
    group: tuple[int, ...] = (),
    *,
    span: tuple[int, int] = (0, 10),
    version: str = "1",
    core: int = 0,
) -> Segment:
    return VersionedSegment(Interval(*span), version, partition, f"{version}/{partition}", over, group, core)


def seen(timeline: Timeline[str], span: tuple[int, int] = (0, 1_000)) -> list[tuple[int, int, str, list[int]]]:
    """What is visible, piece by piece."""
    return [
        (piece.interval.start_ms, piece.interval.end_ms, piece.version, [one.partition for one in piece.segments])
        for piece in timeline.lookup(Interval(*span))
    ]


def test_any_set_of_segments_may_be_replaced_together() -> None:
    """Not only neighbours: 0 and 2 become 10, and 1 stays."""
    timeline: Timeline[str] = Timeline()
    timeline.add_all([segment(0), segment(1), segment(2), segment(10, (0, 2))])
    assert seen(timeline) == [(0, 10, "1", [1, 10])]


def test_an_old_chunk_is_cut_at_the_edges_of_a_newer_one_and_says_so() -> None:
    """The pieces know the stretch that a reader must keep to, and the payload is the caller's own object."""
    timeline: Timeline[str] = Timeline()
    old = segment(0)
    timeline.add_all([old, segment(0, span=(4, 6), version="2")])
    first, middle, last = timeline.pieces()
    assert (first.interval, first.chunk, first.cut) == (Interval(0, 4), Interval(0, 10), True)
    assert (middle.interval, middle.cut) == (Interval(4, 6), False)
    assert first.segments == last.segments == (old,)
    assert first.segments[0].payload is old.payload
    assert timeline.state_of(old) is SegmentState.VISIBLE
    assert not timeline.is_overshadowed(old)


def test_a_newer_version_shows_nothing_until_its_core_set_is_whole() -> None:
    """And steps back when it loses a part; segments above the core set neither help nor harm."""
    timeline: Timeline[str] = Timeline()
    new = [segment(id_, version="2", core=2) for id_ in range(3)]
    timeline.add_all([segment(0), new[0], new[2]])
    assert seen(timeline) == [(0, 10, "1", [0])]
    assert timeline.state_of(new[0]) is SegmentState.STANDBY
    timeline.add(new[1])
    assert seen(timeline) == [(0, 10, "2", [0, 1, 2])]
    timeline.remove(new[2])
    assert seen(timeline) == [(0, 10, "2", [0, 1])]
    timeline.remove(new[0])
    assert seen(timeline) == [(0, 10, "1", [0])]


def test_a_core_set_stays_whole_when_its_segments_are_replaced() -> None:
    """A compaction within a version takes the place of core segments."""
    timeline: Timeline[str] = Timeline()
    core = [segment(id_, version="2", core=2) for id_ in range(2)]
    timeline.add_all([segment(0), *core, segment(5, (0, 1), version="2", core=2)])
    timeline.remove_all(core, forget=True)
    assert seen(timeline) == [(0, 10, "2", [5])]


def test_a_segment_out_of_service_still_hides_what_it_had_replaced() -> None:
    """The grandparent must not come back beside its grandchild."""
    timeline: Timeline[str] = Timeline()
    middle = segment(10, (0, 1))
    timeline.add_all([segment(0), segment(1), middle, segment(20, (10,))])
    timeline.remove(middle)
    assert seen(timeline) == [(0, 10, "1", [20])]


def test_who_replaced_a_forgotten_segment_inherits_its_edges_and_says_so() -> None:
    """``segments`` tells them, so that a timeline loaded from what it says is the same one."""
    timeline: Timeline[str] = Timeline()
    middle = segment(10, (0, 1))
    timeline.add_all([segment(0), segment(1), middle, segment(20, (10,))])
    timeline.remove(middle, forget=True)
    assert seen(timeline) == [(0, 10, "1", [20])]
    told = {one.partition: one.overshadowed for one in timeline.segments()}
    assert told == {0: (), 1: (), 20: (0, 1, 10)}
    again: Timeline[str] = Timeline()
    again.add_all(timeline.segments())
    assert seen(again) == seen(timeline)


def test_known_is_not_in_service() -> None:
    """A record without service has no state and completes no group, but tells what it replaces."""
    timeline: Timeline[str] = Timeline()
    new = segment(5, (0,), (5, 6))
    assert timeline.add(new, online=False)
    assert not timeline.add(new, online=False)
    timeline.add_all([segment(0), segment(6, (0,), (5, 6))])
    assert timeline.state_of(new) is None
    assert timeline.state_of(segment(6)) is SegmentState.STANDBY
    assert seen(timeline) == [(0, 10, "1", [0])]
    assert timeline.add(new)
    assert seen(timeline) == [(0, 10, "1", [5, 6])]
    assert (len(timeline), timeline.is_online(new)) == (3, True)


def test_adding_twice_and_removing_what_is_not_there_change_nothing() -> None:
    """Both are told apart by what they return."""
    timeline: Timeline[str] = Timeline()
    assert timeline.add(segment(0))
    assert not timeline.add(segment(0))
    assert not timeline.remove(SegmentKey(Interval(0, 10), "1", 7))
    assert not timeline.remove(SegmentKey(Interval(0, 11), "1", 0))
    assert timeline.remove(segment(0))
    assert not timeline.remove(segment(0))
    assert timeline.remove(segment(0), forget=True)
    assert (len(timeline), list(timeline.segments()), timeline.pieces()) == (0, [], [])


def test_a_record_may_gain_edges_and_never_lose_one() -> None:
    """Inherited edges are stored again; a record that names less would bring back what it replaced."""
    timeline: Timeline[str] = Timeline()
    timeline.add_all([segment(0), segment(1), segment(5, (0,))])
    assert timeline.add(segment(5, (0, 1)))
    assert seen(timeline) == [(0, 10, "1", [5])]
    with pytest.raises(TimelineRefusedError) as refused:
        timeline.add(segment(5, (0,)))
    assert refused.value.rule == "metadata-differs"


REFUSED: dict[str, tuple[str, Callable[[], list[Segment]]]] = {
    "a negative id": ("bad-partition", lambda: [segment(-1)]),
    "a negative overshadowed id": ("bad-partition", lambda: [segment(3, (-1,))]),
    "a negative core": ("bad-partition", lambda: [segment(3, core=-1)]),
    "a group without itself": ("not-in-its-group", lambda: [segment(3, (), (4, 5))]),
    "a group that is another's": ("group-differs", lambda: [segment(21, (), (21, 22))]),
    "alone, and named by a group": ("group-differs", lambda: [segment(21)]),
    "a group that names one who is alone": ("group-differs", lambda: [segment(30, (), (0, 30))]),
    "another group than before": ("metadata-differs", lambda: [segment(20, (0,), (20, 23))]),
    "another core than before": ("metadata-differs", lambda: [segment(0, core=1)]),
    "overshadows itself": ("overshadows-itself", lambda: [segment(40, (40,))]),
    "overshadows one of its group": ("overshadows-itself", lambda: [segment(40, (41,), (40, 41))]),
    "a circle": ("overshadows-itself", lambda: [segment(50, (51,)), segment(51, (50,))]),
    "the same version over other time": ("same-version-overlaps", lambda: [segment(0, span=(5, 15))]),
    "the same version twice in a batch": (
        "same-version-overlaps",
        lambda: [segment(0, span=(50, 60)), segment(0, span=(55, 65))],
    ),
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_a_refusal_names_its_rule_and_changes_nothing(what: str) -> None:
    """Alone, in a batch after a segment that would be fine, and as the first of its chunk."""
    rule, made = REFUSED[what]
    before = [segment(0), segment(20, (0,), (20, 21)), segment(1, version="0", span=(90, 91))]
    timeline: Timeline[str] = Timeline("orders")
    timeline.add_all(before)
    fine = [segment(90), segment(0, span=(200, 210))]
    for batch in ([*fine, *made()], [*made(), *fine]):
        with pytest.raises(TimelineRefusedError) as refused:
            timeline.add_all(batch)
        assert refused.value.rule == rule
        assert "'orders'" in str(refused.value)
    assert sorted(one.key for one in timeline.segments()) == sorted(one.key for one in before)
    assert seen(timeline) == [(0, 10, "1", [0]), (90, 91, "0", [1])]
    *some, last = made()
    timeline.add_all(some)
    with pytest.raises(TimelineRefusedError):
        timeline.add(last)
    fresh: Timeline[str] = Timeline()
    with pytest.raises(TimelineRefusedError):
        fresh.add_all([*before, *made()])
    assert len(fresh) == 0


def test_a_lookup_is_cut_to_the_question() -> None:
    """First and last piece only; an empty question has no answer."""
    timeline: Timeline[str] = Timeline()
    timeline.add_all([segment(0, span=(at, at + 10)) for at in range(0, 40, 10)])
    assert seen(timeline, (5, 25)) == [(5, 10, "1", [0]), (10, 20, "1", [0]), (20, 25, "1", [0])]
    assert timeline.lookup_between(5, 5) == timeline.lookup_between(6, 5) == []
    assert seen(timeline, (40, 50)) == []


def test_find_takes_a_part_of_the_time_and_only_what_is_in_service() -> None:
    """As Druid's findChunk: interval within, exact version."""
    timeline: Timeline[str] = Timeline()
    timeline.add(segment(0))
    assert timeline.find(SegmentKey(Interval(2, 3), "1", 0)) == segment(0)
    assert timeline.find(SegmentKey(Interval(2, 11), "1", 0)) is None
    assert timeline.find(SegmentKey(Interval(2, 3), "2", 0)) is None
    timeline.remove(segment(0))
    assert timeline.find(SegmentKey(Interval(2, 3), "1", 0)) is None


def test_a_chunk_that_churns_for_long_keeps_its_size() -> None:
    """Bits of forgotten ids are given back."""
    timeline: Timeline[str] = Timeline()
    timeline.add(segment(0))
    for id_ in range(1, 5_000):
        timeline.add(segment(id_))
        timeline.remove(segment(id_), forget=True)
    assert seen(timeline) == [(0, 10, "1", [0])]
    (chunk,) = timeline._chunks.values()
    assert len(chunk._bits) < 1_100


def test_with_the_option_an_incomplete_version_fills_only_what_no_complete_one_has() -> None:
    """Half of version 2 is shown beside version 1, not over it."""
    timeline: Timeline[str] = Timeline(strict=False)
    timeline.add_all([segment(0), segment(0, (), (0, 1), span=(5, 15), version="2")])
    assert seen(timeline) == [(0, 10, "1", [0]), (10, 15, "2", [0])]
    timeline.add(segment(1, (), (0, 1), span=(5, 15), version="2"))
    assert seen(timeline) == [(0, 5, "1", [0]), (5, 15, "2", [0, 1])]


def sliding(count: int) -> list[Segment]:
    """Windows of a day, a minute apart, each of its own version (Druid #8846)."""
    return [segment(0, span=(at, at + 1_440), version=f"{at:06d}") for at in range(count)]


@pytest.mark.parametrize("batch", [True, False])
def test_five_thousand_overlapping_windows_load_and_leave_in_well_under_quadratic_time(batch: bool) -> None:
    """Generous bounds: the real cost is a tenth. Druid needs 25 s to remove 1,000 and never ends with 5,000."""
    windows = sliding(5_000)
    timeline: Timeline[str] = Timeline()
    started = time.process_time()
    if batch:
        assert timeline.add_all(windows) == 5_000
        assert timeline.remove_all(windows[1:]) == 4_999
    else:
        assert sum(timeline.add(one) for one in windows) == 5_000
        assert timeline.remove_all(windows[1:], forget=True) == 4_999
    assert time.process_time() - started < 3
    assert seen(timeline, (0, 10_000)) == [(0, 1_440, "000000", [0])]


def test_the_work_of_a_lookup_does_not_depend_on_the_number_of_chunks() -> None:
    """Counted, not timed: the stretches that are looked at are those of the answer."""
    for chunks in (100, 10_000):
        timeline: Timeline[str] = Timeline()
        timeline.add_all([segment(0, span=(at, at + 1)) for at in range(chunks)])
        assert timeline._axis.window(50, 74) == (50, 74)
        assert len(timeline.lookup_between(50, 74)) == 24
