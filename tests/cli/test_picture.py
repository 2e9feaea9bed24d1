"""The timeline as lines of text and as a picture."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from xml.etree import ElementTree

import pytest

from airflow_provider_segments.cli.picture import as_svg, ranges_text, timeline_lines, versions_text
from airflow_provider_segments.cli.svg import ticks
from airflow_provider_segments.core.model.interval import Granularity, Interval, format_ms, parse_chunk, parse_time
from airflow_provider_segments.core.model.segment import Segment, SegmentState
from airflow_provider_segments.core.snapshot import SegmentStatus

VISIBLE, STANDBY, OVERSHADOWED = SegmentState.VISIBLE, SegmentState.STANDBY, SegmentState.OVERSHADOWED
OLD, NEW = parse_time("2026-01-01T10:00:00Z"), parse_time("2026-11-21T10:00:00Z")
DAY, HOUR = "2013-01-31", "2013-01-31T07"
SPACE = "{http://www.w3.org/2000/svg}"
HOUR_MS = 3_600_000
STATES = ("standby", "visible", "overshadowed")


def status(
    state: SegmentState,
    partition: int,
    *,
    chunk: str = DAY,
    version: int = OLD,
    visible_in: tuple[Interval, ...] = (),
) -> SegmentStatus:
    """A segment of 10 rows and 1,000 bytes; without a version it has no id either."""
    place = {"version": version, "partition": partition if version else -1, "visible_in": visible_in}
    name = f"orders_{chunk}_{version}_{partition}"
    return SegmentStatus(Segment(name, name, chunk, "e", 1, 10, 1000, 0, None, None, None, **place), state)  # type: ignore[arg-type]


def around(chunk: str, hole: str) -> tuple[Interval, ...]:
    """The time of ``chunk`` before and after ``hole``."""
    whole, part = parse_chunk(chunk), parse_chunk(hole)
    return (Interval(whole.start_ms, part.start_ms), Interval(part.end_ms, whole.end_ms))


def example() -> list[SegmentStatus]:
    """A day of appends: 0, 1 and 3 were rewritten as 5 and 6, 7 is being pushed. Then an hour was overwritten."""
    cut = around(DAY, HOUR)
    return [
        *(status(OVERSHADOWED, one) for one in (0, 1, 3)),
        *(status(VISIBLE, one, version=OLD + one, visible_in=cut) for one in (2, 4, 5, 6)),
        status(STANDBY, 7, version=NEW),
        status(VISIBLE, 0, chunk=HOUR, version=NEW),
    ]


def drawn(statuses: Iterable[SegmentStatus], **options: str) -> ElementTree.Element:
    return ElementTree.fromstring(as_svg(statuses, **options))


def cells(root: ElementTree.Element, state: str | None = None) -> list[ElementTree.Element]:
    """The cells of segments, of one state or of all, without those of the legend."""
    wanted = STATES if state is None else (state,)
    return [one for one in root.findall(f"{SPACE}rect") if one.get("class") in wanted and len(one)]


def hatches(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Hatched parts of the plot, without that of the legend."""
    return [one for one in root.findall(f"{SPACE}rect") if one.get("fill") == "url(#hidden)" and len(one)]


def texts(root: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in root.findall(f"{SPACE}text")]


def about(cell: ElementTree.Element) -> str:
    """What is shown when the mouse is over it."""
    return cell.findtext(f"{SPACE}title") or ""


def edges(cell: ElementTree.Element) -> tuple[float, float, float]:
    """Left, right, top."""
    x, width, y = (float(cell.get(name, "")) for name in ("x", "width", "y"))
    return x, x + width, y


def hours(number: int, every: int = 1) -> list[str]:
    start = parse_time("2013-01-01")
    return [Granularity.HOUR.chunk_name(start + at * every * HOUR_MS) for at in range(number)]


def days(number: int) -> list[str]:
    start = parse_time("2013-01-01")
    return [Granularity.DAY.chunk_name(start + at * 24 * HOUR_MS) for at in range(number)]


def in_hours(*spans: tuple[int, int]) -> tuple[Interval, ...]:
    """Hours of the day."""
    start = parse_chunk(DAY).start_ms
    return tuple(Interval(start + one * HOUR_MS, start + two * HOUR_MS) for one, two in spans)


# -- lines -------------------------------------------------------------------------------------------------------------


def test_there_is_a_line_for_each_time_chunk_and_state() -> None:
    """Give each its counts, totals, versions, ids, and the parts of the time that are visible."""
    found = [
        (one.chunk, one.state, len(one.segments), one.rows, one.bytes, one.versions, one.partitions, one.cuts)
        for one in timeline_lines(reversed(example()))
    ]
    assert found == [
        (DAY, STANDBY, 1, 10, 1000, (NEW,), (7,), ()),
        (DAY, VISIBLE, 4, 40, 4000, tuple(OLD + one for one in (6, 5, 4, 2)), (2, 4, 5, 6), around(DAY, HOUR)),
        (DAY, OVERSHADOWED, 3, 30, 3000, (OLD,), (0, 1, 3), ()),
        (HOUR, VISIBLE, 1, 10, 1000, (NEW,), (0,), ()),
    ]


def test_segments_without_a_version_have_neither_version_nor_id() -> None:
    """Show a dash for what a table without segment locking does not have."""
    lines = timeline_lines([status(VISIBLE, one, version=0) for one in range(3)])
    assert [(len(one.segments), one.versions, one.partitions) for one in lines] == [(3, (), ())]
    assert versions_text(lines[0].versions) == "-"


def test_versions_are_shown_as_the_newest_and_how_many_are_older() -> None:
    """Show a version as the time at which its lock was granted."""
    assert versions_text([NEW]) == "2026-11-21T10:00:00Z"
    assert versions_text([NEW, OLD]) == f"{format_ms(NEW)} and 1 older"
    assert versions_text(range(NEW, NEW - 5000, -1)) == f"{format_ms(NEW)} and 4,999 older"


def test_ids_are_shown_as_ranges() -> None:
    """Join runs of ids."""
    assert ranges_text([0, 1, 2, 4, 7, 8]) == "0-2, 4, 7-8"
    assert ranges_text([]) == ""


# -- the picture -------------------------------------------------------------------------------------------------------


def test_the_picture_has_a_row_a_state_with_its_name() -> None:
    """Draw what is not visible yet above what is visible, and what no longer is below it."""
    root = drawn(example())
    heights = [{edges(one)[2] for one in cells(root, state)} for state in STATES]
    assert max(heights[0]) < min(heights[1]) and max(heights[1]) < min(heights[2])
    labels = [(one.text, float(one.get("y", ""))) for one in root.findall(f"{SPACE}text") if one.get("x") == "12.0"]
    for state, of_state in zip(STATES, heights, strict=True):
        assert [any(height < y < height + 26 for height in of_state) for name, y in labels if name == state]


def test_the_picture_is_headed_by_its_title_and_what_is_in_it() -> None:
    """Escape the title; count segments by state, and the rows of the visible ones."""
    root = drawn(example(), title="a & b < c")
    assert texts(root)[0] == root.findtext(f"{SPACE}title") == "a & b < c"
    counts = "9 segments in 2 time chunks: 3 overshadowed, 5 visible, 1 standby; 50 rows in visible segments"
    assert counts in texts(root)
    assert "1 segment in 1 time chunk: 1 visible; 10 rows in visible segments" in texts(drawn([status(VISIBLE, 0)]))


def test_segments_stand_side_by_side_in_their_time_chunk() -> None:
    """Give each the same width, in the order of version and id, so that they fill the chunk without an overlap."""
    chunks = ["2013-01-30", "2013-01-31", "2013-02-01"]
    root = drawn(reversed([status(VISIBLE, one, chunk=chunk) for chunk in chunks for one in range(4)]))
    found = sorted(cells(root), key=edges)
    assert [about(one).splitlines()[2] for one in found] == [
        f"orders_{chunk}_{OLD}_{one}" for chunk in chunks for one in range(4)
    ]
    widths = {round(right - left, 1) for left, right, _ in map(edges, found)}
    assert len(widths) == 1
    third = (edges(found[-1])[1] - edges(found[0])[0]) / 3
    assert 4 * widths.pop() == pytest.approx(third, abs=2)
    assert all(edges(one)[1] <= edges(two)[0] + 0.02 for one, two in itertools.pairwise(found))


def test_a_cell_says_what_it_is_when_the_mouse_is_over_it() -> None:
    """Name chunk, version, state, id, size and the segment, and the part of its time in which it is visible."""
    titles = {about(one).splitlines()[2]: about(one) for one in cells(drawn(example()))}
    assert len(titles) == 9
    assert titles[f"orders_{DAY}_{OLD}_3"] == (
        f"{DAY}, version {format_ms(OLD)}\novershadowed: segment 3, 10 rows, 1,000 bytes\norders_{DAY}_{OLD}_3"
    )
    assert titles[f"orders_{DAY}_{OLD + 5}_5"].splitlines() == [
        f"{DAY}, version {format_ms(OLD + 5)}",
        "visible: segment 5, 10 rows, 1,000 bytes",
        f"orders_{DAY}_{OLD + 5}_5",
        "visible in 2013-01-31T00:00:00Z/2013-01-31T07:00:00Z",
        "visible in 2013-01-31T08:00:00Z/2013-02-01T00:00:00Z",
    ]
    [plain] = cells(drawn([status(VISIBLE, 0, version=0)]))
    assert about(plain).splitlines()[:2] == [f"{DAY}, version -", "visible: segment, 10 rows, 1,000 bytes"]


def test_time_that_an_overwrite_holds_is_hatched_over_what_it_hides() -> None:
    """Hatch exactly the time of the overwrite's own segments, and explain the hatching in the legend."""
    root = drawn(example())
    [hatch] = hatches(root)
    [newer] = [one for one in cells(root) if about(one).startswith(HOUR)]
    assert edges(hatch)[:2] == pytest.approx(edges(newer)[:2], abs=1.1)
    hidden = {edges(one)[2] for one in cells(root, "visible") if about(one).startswith(f"{DAY},")}
    assert hidden == {edges(hatch)[2] + 1} != {edges(newer)[2]}
    assert "hides" in about(hatch)
    assert "hidden there by an overwrite" in texts(root)
    nothing_hidden = drawn([status(VISIBLE, 0)])
    assert not hatches(nothing_hidden)
    assert "hidden there by an overwrite" not in texts(nothing_hidden)


@pytest.mark.parametrize(
    ("visible_in", "hidden"),
    [
        ([(0, 6)], [(6, 24)]),
        ([(6, 24)], [(0, 6)]),
        ([(2, 6), (12, 20)], [(0, 2), (6, 12), (20, 24)]),
    ],
)
def test_hatching_is_the_rest_of_the_time_chunk(
    visible_in: list[tuple[int, int]], hidden: list[tuple[int, int]]
) -> None:
    """Hatch before, between and after the visible parts, and nowhere else."""
    [line] = timeline_lines([status(VISIBLE, 0, visible_in=in_hours(*visible_in)), status(VISIBLE, 1)])
    assert tuple(line.hidden()) == in_hours(*hidden)


def test_hatching_covers_what_is_hidden_of_any_segment() -> None:
    """Hatch what an older overwrite hides of the older segment, and what a newer one hides of both."""
    older, newer = in_hours((2, 6)), in_hours((0, 12))
    both = [status(VISIBLE, 0, visible_in=older), status(VISIBLE, 1, version=NEW, visible_in=newer)]
    [line] = timeline_lines(both)
    assert tuple(line.hidden()) == in_hours((0, 2), (6, 24))


def test_overlapping_time_chunks_do_not_lie_on_each_other() -> None:
    """Draw a month and days within it in rows of their own, the month above; days beside it share its row."""
    chunks = ["2013-01", "2013-01-05", "2013-01-06", "2013-02-01"]
    root = drawn([status(VISIBLE, 0, chunk=chunk) for chunk in reversed(chunks)])
    found = {about(one).partition(",")[0]: edges(one) for one in cells(root)}
    month, *days = (found[chunk] for chunk in chunks)
    assert [day[2] > month[2] for day in days] == [True, True, False]
    assert days[0][2] == days[1][2]
    assert texts(root).count("visible") == 3, "two rows and the legend"


def test_narrow_time_chunks_are_joined_in_columns() -> None:
    """Draw neighbours as one where they are too narrow to be seen; say how many and which they are."""
    chunks = hours(2000)
    root = drawn([status(VISIBLE, 0, chunk=chunk) for chunk in chunks])
    columns = sorted(cells(root), key=edges)
    assert 150 < len(columns) < 500
    words = [about(one).splitlines() for one in columns]
    assert sum(int(second.split()[1].replace(",", "")) for _, second in words) == len(chunks)
    assert words[0][0].endswith(f"time chunks, {chunks[0]} to {chunks[int(words[0][0].split()[0]) - 1]}")
    assert words[-1][0].endswith(f" to {chunks[-1]}")
    assert all(edges(one)[1] <= edges(two)[0] + 0.02 for one, two in itertools.pairwise(columns))


def test_time_without_segments_stays_empty_between_columns() -> None:
    """Join only chunks that are beside each other."""
    root = drawn([status(VISIBLE, 0, chunk=chunk) for chunk in (*hours(200), *hours(20, 1000)[1:])])
    alone = [one for one in cells(root) if "time chunks" not in about(one)]
    assert len(alone) == 19
    assert max(right - left for left, right, _ in map(edges, alone)) <= 1
    assert len({round(edges(one)[0]) for one in alone}) == 19


@pytest.mark.parametrize(
    "statuses",
    [
        [status(OVERSHADOWED if at < 3000 else VISIBLE, at) for at in range(5000)],
        [status(VISIBLE, 0, chunk=chunk) for chunk in hours(5000)],
        [status(VISIBLE, at, version=OLD + at) for at in range(5000)],
        [status(state, 0, chunk=chunk) for chunk in hours(5000) for state in (VISIBLE, STANDBY, OVERSHADOWED)],
        [status(VISIBLE, at, chunk=day, visible_in=around(day, f"{day}T07")) for day in days(300) for at in range(30)],
    ],
    ids=["one chunk", "a chunk each", "a version each", "three states", "cut chunks"],
)
def test_thousands_of_segments_are_one_small_picture(statuses: list[SegmentStatus]) -> None:
    """Let neighbours that are too narrow share a cell or a column, and count all of them."""
    began = time.process_time()
    document = as_svg(statuses)
    assert time.process_time() - began < 5
    root = ElementTree.fromstring(document)
    assert len(cells(root)) < 1500
    assert len(document) < 500_000
    assert int(root.get("height", "")) < 400
    assert f"{len(statuses):,} segments" in texts(root)[1]
    assert not [text for text in texts(root) if "not drawn" in text]


def test_an_empty_timeline_has_no_lines_and_a_picture() -> None:
    """Divide by nothing."""
    assert timeline_lines([]) == []
    assert "no segments" in texts(drawn([]))
    assert drawn([]).tag.endswith("svg")


@pytest.mark.parametrize("others", [[], [status(VISIBLE, 0)]])
def test_a_chunk_of_all_time_leaves_room_for_the_others(others: list[SegmentStatus]) -> None:
    """Draw it as wide as the others, which it would squeeze into a part of a pixel."""
    root = drawn([status(VISIBLE, 0, chunk="ALL", version=NEW), *others])
    widths = [right - left for left, right, _ in map(edges, cells(root))]
    assert len(widths) == 1 + len(others)
    assert min(widths) > 800
    assert ("all time" in texts(root)) is not others


@pytest.mark.parametrize("length_ms", [HOUR_MS * 10**power for power in range(7)])
@pytest.mark.parametrize("start", ["2013-01-01", "2013-05-17T13:45", "0001-01-01"])
def test_the_axis_has_a_few_round_times(start: str, length_ms: int) -> None:
    """Name so few times that their names have room, all of them within the picture and in order."""
    first = parse_time(start)
    found = ticks(first, first + length_ms)
    assert 1 <= len(found) <= 12
    assert [at for at, _ in found] == sorted({at for at, _ in found})
    assert all(first <= at <= first + length_ms for at, _ in found)
    assert all(parse_chunk(name).start_ms == at for at, name in found if length_ms > HOUR_MS)
