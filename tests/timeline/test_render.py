"""The timeline as lines of text and as a picture."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree

import pytest

from airflow_provider_segments.core.model.interval import Granularity, Interval, parse_chunk, parse_time
from airflow_provider_segments.core.model.ranges import ranges_of
from airflow_provider_segments.core.model.segment import Segment, TimelinePlace
from airflow_provider_segments.core.timeline import SegmentState, as_svg, ranges_text, timeline_lines
from airflow_provider_segments.core.timeline.stacks import place, stacks_of

VISIBLE, STANDBY, OVERSHADOWED = SegmentState.VISIBLE, SegmentState.STANDBY, SegmentState.OVERSHADOWED
OLD, NEW = "1970-01-01T00:00:00.000Z", "2026-11-21T10:00:00.000Z"
DAY, HOUR = "2013-01-31", "2013-01-31T07"
SPACE = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Stands:
    segment: Segment
    state: SegmentState


def stands(
    state: SegmentState,
    partition: int,
    *,
    chunk: str = DAY,
    version: str = OLD,
    over: Iterable[int] = (),
    group: Iterable[int] = (),
    visible_in: tuple[Interval, ...] = (),
) -> Stands:
    """A segment of 10 rows and 1,000 bytes; without a version it has no place in the timeline."""
    where = TimelinePlace(version, partition, ranges_of(over), ranges_of(group)) if version else None
    name = f"orders_{chunk}_{version}_{partition}"
    more = {"place": where, "visible_in": visible_in}
    return Stands(Segment(name, name, chunk, "e", 1, 10, 1000, 0, None, None, None, **more), state)  # type: ignore[arg-type]


def example() -> list[Stands]:
    """A day of appends: 0, 1 and 3 became 5 and 6, 2 waits for the rest of a group, 4 is new. An hour was rewritten."""
    day, hour = parse_chunk(DAY), parse_chunk(HOUR)
    cut = (Interval(day.start_ms, hour.start_ms), Interval(hour.end_ms, day.end_ms))
    return [
        *(stands(OVERSHADOWED, one) for one in (0, 1, 3)),
        *(stands(VISIBLE, one, visible_in=cut) for one in (2, 4)),
        *(stands(VISIBLE, one, over=(0, 1, 3), group=(5, 6), visible_in=cut) for one in (5, 6)),
        stands(STANDBY, 7, over=(2,), group=(7, 8)),
        stands(VISIBLE, 0, chunk=HOUR, version=NEW),
    ]


def drawn(standings: Iterable[Stands], **options: str) -> ElementTree.Element:
    return ElementTree.fromstring(as_svg(standings, **options))


def cells(root: ElementTree.Element) -> list[ElementTree.Element]:
    """The cells of segments, without those of the legend."""
    return [one for one in root.findall(f"{SPACE}rect") if one.get("class") in _STATES and len(one)]


_STATES = {"visible", "standby", "overshadowed"}


def about(cell: ElementTree.Element) -> str:
    return cell.findtext(f"{SPACE}title") or ""


def edges(cell: ElementTree.Element) -> tuple[float, float, float]:
    x, width, y = (float(cell.get(name, "")) for name in ("x", "width", "y"))
    return x, x + width, y


def test_there_is_a_line_for_each_interval_version_and_state() -> None:
    """With counts, totals, ids, and the parts of the time that are visible."""
    found = [
        (one.chunk, one.version, one.state, one.segments, one.rows, one.bytes, one.partitions, len(one.cuts))
        for one in timeline_lines(reversed(example()))
    ]
    assert found == [
        (DAY, OLD, VISIBLE, 4, 40, 4000, (2, 4, 5, 6), 2),
        (DAY, OLD, STANDBY, 1, 10, 1000, (7,), 0),
        (DAY, OLD, OVERSHADOWED, 3, 30, 3000, (0, 1, 3), 0),
        (HOUR, NEW, VISIBLE, 1, 10, 1000, (0,), 0),
    ]


def test_what_replaces_stands_on_what_it_replaced() -> None:
    """Also where that is not consecutive: 0, 1 and 3 lie side by side beneath the group of 5 and 6."""
    [stack] = stacks_of([one for one in example() if one.segment.chunk == DAY])
    places, frames = place(stack.shown)
    at = {one.shown.segment.partition: one for one in places}
    assert {partition: one.level for partition, one in at.items()} == {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 1, 6: 1, 7: 1}
    assert [(one.group, one.level) for one in frames] == [(((7, 9),), 1), (((5, 7),), 1)]
    group = next(one for one in frames if one.group == ((5, 7),))
    assert (at[5].left, at[6].right) == pytest.approx((group.left, group.right))
    assert (at[0].left, at[3].right) == pytest.approx((group.left, group.right))
    assert (at[7].left, at[7].right) == pytest.approx((at[2].left, at[2].right))


def test_each_moment_of_a_stack_has_its_lowest_segments_side_by_side() -> None:
    """They fill the chunk and do not overlap, however often they were replaced, in part or as a whole."""
    shown = [stands(OVERSHADOWED, one) for one in range(8)]
    shown += [stands(OVERSHADOWED, one, over=range(4), group=(8, 9)) for one in (8, 9)]
    shown += [stands(VISIBLE, 10, over=(8, 5)), stands(VISIBLE, 11, over=(6,)), stands(VISIBLE, 12, over=(6,))]
    places, _ = place(shown)
    for level in range(3):
        row = [one for one in places if one.level == level]
        assert all(one.right <= two.left + 1e-9 for one, two in itertools.pairwise(row)), level
    assert max(one.level for one in places) == 2
    assert {one.over for one in places if one.shown.segment.partition == 9} == {()}
    assert 0 <= min(one.left for one in places) < max(one.right for one in places) <= 1 + 1e-9


def test_a_chain_of_thousands_of_replacements_is_drawn() -> None:
    """Without recursion; records at odds with themselves do not go round in circles."""
    chain = [stands(OVERSHADOWED, one, over=(one - 1,) if one else (one + 1,)) for one in range(5000)]
    assert max(one.level for one in place(chain)[0]) == 4999
    assert len(cells(drawn(chain))) == 5000


def test_the_picture_has_a_row_a_version_with_the_newest_on_top() -> None:
    """Names are escaped. Hover titles say what a cell is, what it replaces and what replaces it."""
    root = drawn(example(), title="a & b")
    texts = [one.text or "" for one in root.findall(f"{SPACE}text")]
    assert texts[0] == root.findtext(f"{SPACE}title") == "a & b"
    assert [text for text in texts if text in (OLD, NEW)] == [NEW, OLD]
    assert "9 segments in 2 time chunks: 5 visible, 1 standby, 3 overshadowed; 50 rows in visible segments" in texts
    titles = [about(one) for one in cells(root)]
    assert len(titles) == 9
    [fifth] = [one for one in titles if "segment 5," in one]
    assert fifth.startswith(f"{DAY}, version {OLD}\nvisible: segment 5, 10 rows, 1,000 bytes\n")
    assert "replaces 0-1, 3\natomic group 5-6\nvisible in 2013-01-31T00:00:00Z/2013-01-31T07:00:00Z" in fifth
    assert "replaced by 5-6" in next(one for one in titles if "segment 3," in one)
    assert len([one for one in root.findall(f"{SPACE}rect") if one.get("class") == "group"]) == 2


def test_time_that_belongs_to_a_newer_version_is_hatched() -> None:
    """Exactly beneath the newer segment."""
    root = drawn(example())
    [hatch] = [one for one in root.findall(f"{SPACE}rect") if one.get("fill") == "url(#hidden)" and len(one)]
    [newer] = [one for one in cells(root) if about(one).startswith(HOUR)]
    assert edges(hatch)[:2] == pytest.approx(edges(newer)[:2], abs=1.1)
    assert edges(hatch)[2] > edges(newer)[2]


def test_segments_without_a_version_have_a_row_for_each_state() -> None:
    """The lineage says what replaced what; a dash stands for the version."""
    states = [VISIBLE] * 3 + [OVERSHADOWED] * 2 + [STANDBY]
    plain = [stands(state, at, version="") for at, state in enumerate(states)]
    assert [(one.version, one.partitions) for one in timeline_lines(plain)] == [("", ())] * 3
    root = drawn(plain)
    rows = {state: {edges(one)[2] for one in cells(root) if one.get("class") == state} for state in _STATES}
    assert all(len(heights) == 1 for heights in rows.values())
    assert max(rows["standby"]) < max(rows["visible"]) < max(rows["overshadowed"])
    assert [one.text for one in root.findall(f"{SPACE}text")].count("-") == 3


def test_overlapping_chunks_without_a_version_do_not_lie_on_each_other() -> None:
    """A month that was compacted, and days that were appended to it later."""
    chunks = ["2013-01", "2013-01-05", "2013-01-06", "2013-02-01"]
    found = {
        about(one)[:10]: edges(one) for one in cells(drawn([stands(VISIBLE, 0, chunk=c, version="") for c in chunks]))
    }
    month, *days = (found[chunk[:10] if len(chunk) > 7 else f"{chunk}, v"] for chunk in chunks)
    assert [day[2] < month[2] for day in days] == [True, True, False]


def hours(number: int) -> list[str]:
    start = parse_time("2013-01-01")
    return [Granularity.HOUR.chunk_name(start + at * 3_600_000) for at in range(number)]


@pytest.mark.parametrize(
    "standings",
    [
        [stands(OVERSHADOWED if at < 3000 else VISIBLE, at) for at in range(5000)],
        [stands(VISIBLE, 0, chunk=chunk) for chunk in hours(5000)],
        [stands(VISIBLE, 0, version=f"2026-01-01T00:00:{at // 100:02d}.{at % 100:03d}Z") for at in range(5000)],
    ],
    ids=["one chunk", "a chunk each", "a version each"],
)
def test_thousands_of_segments_are_one_small_picture(standings: list[Stands]) -> None:
    """Neighbours that are too narrow share a cell or a column; what there is no room for is counted."""
    began = time.process_time()
    root = drawn(standings)
    assert time.process_time() - began < 5
    assert len(cells(root)) < 1000
    assert int(root.get("height", "")) < 1200
    counted = [one.text or "" for one in root.findall(f"{SPACE}text") if "not drawn" in (one.text or "")]
    versions = len({one.segment.version for one in standings})
    assert counted == ([f"{versions - 40:,} segments of older versions are not drawn"] if versions > 40 else [])


def test_many_versions_of_different_days_share_rows() -> None:
    """Each chunk lies on top of the older ones of its time."""
    days = [f"2013-01-{day:02d}" for day in range(1, 31)]
    twice = [
        stands(VISIBLE if second else OVERSHADOWED, 0, chunk=day, version=f"2026-01-{at + 1:02d}T0{second}:00:00.000Z")
        for at, day in enumerate(days)
        for second in (0, 1)
    ]
    root = drawn(twice)
    heights = {state: {edges(one)[2] for one in cells(root) if one.get("class") == state} for state in _STATES}
    assert len(heights["visible"]) == len(heights["overshadowed"]) == 1
    assert max(heights["visible"]) < min(heights["overshadowed"])
    assert "and 29 older" in [one.text for one in root.findall(f"{SPACE}text")]


def test_an_empty_timeline_has_no_lines_and_a_picture() -> None:
    """Nothing to divide by."""
    assert timeline_lines([]) == []
    assert "no segments" in as_svg([])
    assert drawn([]).tag.endswith("svg")


@pytest.mark.parametrize("others", [[], [stands(VISIBLE, 0)]])
def test_a_chunk_of_all_time_leaves_room_for_the_others(others: list[Stands]) -> None:
    """It would squeeze them into a part of a pixel."""
    root = drawn([stands(VISIBLE, 0, chunk="ALL", version=NEW), *others])
    widths = [right - left for left, right, _ in map(edges, cells(root))]
    assert len(widths) == 1 + len(others)
    assert min(widths) > 800


def test_ids_are_shown_as_ranges() -> None:
    """Runs of ids are joined."""
    assert ranges_text([0, 1, 2, 4, 7, 8]) == "0-2, 4, 7-8"
    assert ranges_text([]) == ""
