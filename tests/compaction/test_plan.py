"""What a compaction takes on, in which order, and what it leaves alone."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_segments.core.compaction.plan import make_plan
from airflow_provider_segments.core.compaction.settings import CompactionSettings, Policy
from airflow_provider_segments.core.lineage.entries import Overwrite
from airflow_provider_segments.core.model.interval import Granularity, Interval, parse_chunk
from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.exceptions import InvalidConfigError

SETTINGS = CompactionSettings(target_rows=100, granularity=Granularity.DAY)
DAY_MS = 86_400_000


def segment(name: str, rows: int, chunk: str = "2013-01-01", *, done: bool = False, size: int = 10) -> Segment:
    start = parse_chunk(chunk).start_ms
    fingerprint = SETTINGS.fingerprint if done else None
    return Segment(name, name, chunk, "e", 1, rows, size, 0, start, start + 1, None, fingerprint=fingerprint)


def settings(**changes: Any) -> CompactionSettings:
    return CompactionSettings(**{"target_rows": 100, "granularity": Granularity.DAY} | changes)


def planned(*segments: Segment, **changes: Any) -> list[list[str]]:
    return [[one.name for one in group.segments] for group in make_plan(segments, settings(**changes)).groups]


def test_small_segments_of_a_chunk_are_merged_and_chunks_stay_apart() -> None:
    assert planned(
        segment("a", 10), segment("b", 10), segment("c", 10, "2013-01-02"), segment("d", 9, "2013-01-02")
    ) == [
        ["c", "d"],
        ["a", "b"],
    ]


def test_a_chunk_that_is_as_the_settings_want_it_is_left_alone() -> None:
    assert planned(segment("a", 100, done=True), segment("b", 80, done=True)) == []
    assert planned(segment("a", 100, done=True), segment("b", 5, done=True)) == []
    assert planned(segment("a", 55, done=True), segment("b", 55, done=True)) == []


def test_good_segments_are_not_rewritten_for_the_sake_of_new_small_ones() -> None:
    assert planned(segment("good", 100, done=True), segment("x", 5), segment("y", 5)) == [["x", "y"]]


def test_a_single_segment_is_rewritten_only_to_split_it() -> None:
    assert planned(segment("a", 10)) == []
    assert planned(segment("a", 120)) == []
    assert planned(segment("a", 126)) == [["a"]]


def test_other_settings_make_other_segments() -> None:
    old = [segment("a", 100, done=True), segment("b", 100, done=True)]
    assert planned(*old) == []
    assert planned(*old, sort_columns=("x",)) == [["a", "b"]]
    assert settings().fingerprint != settings(sort_columns=("x",)).fingerprint
    assert (
        settings().fingerprint
        == settings(max_groups=3, skip_offset_ms=5, policy=Policy.MOST_FRAGMENTED_FIRST).fingerprint
    )


def test_the_newest_chunk_or_the_most_fragmented_one_comes_first() -> None:
    old = [segment(f"old{number}", 1, "2013-01-01") for number in range(9)]
    new = [segment(f"new{number}", 1, "2013-01-09") for number in range(3)]
    assert [len(group) for group in planned(*old, *new)] == [3, 9]
    assert [len(group) for group in planned(*old, *new, policy=Policy.MOST_FRAGMENTED_FIRST)] == [9, 3]


def test_what_is_near_the_latest_segment_or_locked_is_skipped_and_said() -> None:
    chunks = [str(datetime.date(2013, 1, day)) for day in (1, 2, 3)]
    found = [segment(f"{chunk}{number}", 1, chunk) for chunk in chunks for number in range(2)]
    plan = make_plan(found, settings(skip_offset_ms=DAY_MS), locked=[parse_chunk("2013-01-01")])
    assert [group.chunk for group in plan.groups] == ["2013-01-02"]
    assert {(one.chunk, one.reason) for one in plan.skipped} == {
        ("2013-01-03", "within the offset from the latest segment"),
        ("2013-01-01", "locked"),
    }


def test_a_group_keeps_to_its_limits_and_takes_the_smallest() -> None:
    found = [segment(name, rows, size=40) for name, rows in (("a", 9), ("b", 1), ("c", 5), ("d", 3))]
    assert planned(*found, max_input_bytes=100) == [["b", "d"]]
    assert planned(*found, max_input_segments=3) == [["b", "c", "d"]]
    assert planned(*found, max_groups=1) == [["a", "b", "c", "d"]]


def test_a_coarser_granularity_gathers_chunks_and_a_finer_one_leaves_them_whole() -> None:
    days = [segment("a", 1, "2013-01-01"), segment("b", 1, "2013-01-31"), segment("c", 1, "2013-02-01")]
    groups = make_plan(days, settings(granularity=Granularity.MONTH)).groups
    assert [(group.chunk, len(group.segments)) for group in groups] == [("2013-02", 1), ("2013-01", 2)]
    month = [segment("m", 1, "2013-01"), segment("n", 1, "2013-01")]
    assert [group.chunk for group in make_plan(month, settings()).groups] == ["2013-01"]
    weeks = [segment("w", 1, "2013-W05"), segment("v", 1, "2013-W05")]  # a week that two months share
    assert [group.chunk for group in make_plan(weeks, settings(granularity=Granularity.MONTH)).groups] == ["2013-W05"]


def test_what_lies_beneath_an_overwrite_waits_until_that_cannot_be_rolled_back_and_is_rewritten_then() -> None:
    hour, day = parse_chunk("2013-01-01T05"), parse_chunk("2013-01-01")
    cut = msgspec.structs.replace(segment("day", 100, done=True), visible_in=(Interval(hour.end_ms, day.end_ms),))
    over = msgspec.structs.replace(segment("hour", 100, "2013-01-01T05", done=True), version=9)
    for granularity in (Granularity.DAY, Granularity.HOUR):
        overwrite = Overwrite("o", hour.start_ms, hour.end_ms, 9)
        waits = make_plan([cut, over], settings(granularity=granularity), overwrites=[overwrite])
        assert [one.name for group in waits.groups for one in group.segments if one.name == "day"] == []
        assert "beneath an overwrite that can still be rolled back" in {one.reason for one in waits.skipped}
    assert planned(cut) == [["day"]]
    assert planned(cut, over) == [["day", "hour"]]
    assert planned(cut, over, granularity=Granularity.HOUR) == [["day"]]


def test_rows_of_one_key_may_be_anywhere_so_joining_them_takes_the_whole_chunk() -> None:
    wanted = settings(deduplicate=("k",))
    done = [segment("a", 100, done=True)]
    assert [len(group.segments) for group in make_plan([*done, segment("b", 1)], wanted).groups] == [2]
    assert [len(group.segments) for group in make_plan([segment("b", 1)], wanted).groups] == [1]


@pytest.mark.parametrize(
    "changes",
    [
        {"target_rows": 0},
        {"max_input_bytes": 0},
        {"skip_offset_ms": -1},
        {"rollup": (("a", "avg"),)},
        {"rollup": (("a", "sum"),), "deduplicate": ("k",)},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError):
        settings(**changes)


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 3), st.booleans()), max_size=30))
def test_compacting_what_was_planned_leaves_nothing_to_compact(found: list[tuple[int, int, bool]]) -> None:
    """The plan comes to rest: its outputs, of equal size, beside what it left alone, are left alone."""
    segments = [
        segment(f"s{number}", rows, f"2013-01-0{day}", done=done) for number, (rows, day, done) in enumerate(found)
    ]
    for turn in range(3):
        plan = make_plan(segments, SETTINGS)
        taken = [one.name for group in plan.groups for one in group.segments]
        assert len(set(taken)) == len(taken)
        if not plan.groups:
            return
        segments = [one for one in segments if one.name not in taken]
        for group in plan.groups:
            count = group.outputs(SETTINGS.target_rows)
            sizes = [group.rows * (at + 1) // count - group.rows * at // count for at in range(count)]
            segments += [
                segment(f"o{turn}-{group.chunk}-{at}", size, group.chunk, done=True) for at, size in enumerate(sizes)
            ]
    raise AssertionError(f"still to be compacted after three turns: {make_plan(segments, SETTINGS).groups}")
