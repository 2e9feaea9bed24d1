"""The timeline of a table for people: the lines of a text table, and an SVG picture that needs nothing but a browser.

Both are made from where each registered segment stands (``Table.standings``), versioned or not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from airflow_provider_segments.core.model.interval import ALL_TIME, MAX_MS, MIN_MS, Interval
from airflow_provider_segments.core.model.ranges import expand, ranges_of
from airflow_provider_segments.core.timeline.segment import SegmentState
from airflow_provider_segments.core.timeline.stacks import Frame, Place, SegmentStanding, Stack, place, stacks_of
from airflow_provider_segments.core.timeline.svg import DIM, FILL, GRID, INK, cropped, rect, svg_head, text, ticks

_ORDER = (SegmentState.VISIBLE, SegmentState.STANDBY, SegmentState.OVERSHADOWED)

_WIDTH, _LEFT, _RIGHT = 1100, 190, 46
_TOP, _FOOT, _GAP = 58, 62, 12
_PLOT = _WIDTH - _LEFT - _RIGHT
_LEVELS_HEIGHT, _LEVEL_MOST, _LEVEL_LEAST = 420, 22, 5
_CELL = 2.5  # pixels; narrower segments of one state are drawn as one
_COLUMN = 4.0  # pixels; narrower time chunks are drawn as one
_FEW_VERSIONS, _MOST_LANES = 24, 40


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """The segments of one interval, version and state: how many, their rows and bytes, their partition ids (without
    those that have none), and the parts of the time they are visible in (none: all, or nothing, as the state says)."""

    chunk: str
    interval: Interval
    version: str
    state: SegmentState
    segments: int
    rows: int
    bytes: int
    partitions: tuple[int, ...]
    cuts: tuple[Interval, ...]


def timeline_lines(standings: Iterable[SegmentStanding]) -> list[TimelineLine]:
    """One line for each interval, version and state, in order of time and version."""
    return [
        _line(stack, state, shown)
        for stack in stacks_of(standings)
        for state in _ORDER
        if (shown := [one for one in stack.shown if one.state is state])
    ]


def ranges_text(ids: Iterable[int]) -> str:
    """Ids as ``0-4, 7``."""
    return ", ".join(f"{first}" if first + 1 == end else f"{first}-{end - 1}" for first, end in ranges_of(ids))


def as_svg(standings: Iterable[SegmentStanding], *, title: str = "timeline") -> str:
    """A picture: time to the right, one row a version with the newest on top, and in it one cell a segment.

    What lies above hides what lies below: a segment stands on those that it replaces, newer versions stand above older
    ones, and hatched time belongs to a newer version. Frames hold atomic groups. Segments without a version have a row
    for each state. Where there is no room for single segments, those of one state are drawn as one; what was drawn
    says what it is when the mouse is over it.
    """
    stacks = stacks_of(standings)
    lanes, left_out = _lanes(stacks)
    start, end = _bounds(stacks)
    scale = _Scale(start, end, _PLOT / (end - start))
    level = _level_height(lanes)
    tops = list(accumulate((lane.levels * level + _GAP for lane in lanes), initial=_TOP))
    body = [*_head(stacks, title), *_axis(scale, tops[-1])]
    for lane, top in zip(lanes, tops, strict=False):
        body.extend(_draw(lane, scale, top, level))
    if not stacks:
        body.append(text(12, 40, "no segments", fill=DIM))
    height = tops[-1] + _FOOT
    body.extend(_legend(stacks, height, left_out))
    return "\n".join([*svg_head(_WIDTH, height, title), *body, "</svg>\n"])


# -- what is drawn where -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scale:
    start_ms: int
    end_ms: int
    pixels: float

    def span(self, interval: Interval) -> tuple[float, float]:
        """Left and right edge, within the plot."""
        left = max(interval.start_ms, self.start_ms) - self.start_ms
        right = min(interval.end_ms, self.end_ms) - self.start_ms
        return _LEFT + left * self.pixels, _LEFT + right * self.pixels


@dataclass(frozen=True, slots=True)
class _Lane:
    """One row of the picture: stacks that do not overlap in time, and where their segments stand."""

    label: str
    note: str
    stacks: list[Stack]
    places: list[list[Place]]
    frames: list[list[Frame]]

    @property
    def levels(self) -> int:
        return 1 + max((one.level for places in self.places for one in places), default=0)


def _bounds(stacks: Sequence[Stack]) -> tuple[int, int]:
    """The time to draw. A chunk of all time takes what the others leave it: it would squeeze them into one pixel."""
    spans = [stack.interval for stack in stacks if stack.interval != ALL_TIME] or [ALL_TIME]
    return min(one.start_ms for one in spans), max(one.end_ms for one in spans)


def _lanes(stacks: Sequence[Stack]) -> tuple[list[_Lane], int]:
    """The rows from top to bottom, and how many segments of older versions there is no room for."""
    versions = sorted({stack.version for stack in stacks if stack.version}, reverse=True)
    if len(versions) <= _FEW_VERSIONS:
        found = [_lane(version, "", [one for one in stacks if one.version == version]) for version in versions]
    else:
        found = [_layer(layer) for layer in reversed(_layers([one for one in stacks if one.version]))]
    left_out = sum(len(stack.shown) for lane in found[_MOST_LANES:] for stack in lane.stacks)
    return [*found[:_MOST_LANES], *_unversioned([one for one in stacks if not one.version])], left_out


def _unversioned(stacks: Sequence[Stack]) -> Iterator[_Lane]:
    """Segments without a version, a row for each state: the lineage alone says what replaced what."""
    for state in (SegmentState.STANDBY, SegmentState.VISIBLE, SegmentState.OVERSHADOWED):
        chosen = [
            Stack(stack.interval, "", shown)
            for stack in stacks
            if (shown := [one for one in stack.shown if one.state is state])
        ]
        for layer in reversed(_layers(chosen)):  # without versions, chunks of several granularities may overlap
            yield _lane("-", state.value, layer)


def _layers(stacks: Sequence[Stack]) -> list[list[Stack]]:
    """Many versions, packed: each chunk goes on top of the older, or wider, ones of its time."""
    layers: list[list[Stack]] = []
    for stack in sorted(stacks, key=lambda one: (one.version, one.interval.start_ms - one.interval.end_ms)):
        depth = len(layers)
        while depth and not _meets(layers[depth - 1], stack.interval):
            depth -= 1
        if depth == len(layers):
            layers.append([])
        at = bisect_left(layers[depth], stack.interval, key=lambda one: one.interval)
        layers[depth].insert(at, stack)
    return layers


def _meets(layer: Sequence[Stack], interval: Interval) -> bool:
    """Whether one of the layer's stacks, which are in order of time and apart, overlaps ``interval``."""
    at = bisect_left(layer, interval.end_ms, key=lambda one: one.interval.start_ms)
    return at > 0 and layer[at - 1].interval.overlaps(interval)


def _layer(stacks: list[Stack]) -> _Lane:
    versions = sorted({stack.version for stack in stacks})
    return _lane(versions[-1], f"and {len(versions) - 1:,} older" if len(versions) > 1 else "", stacks)


def _lane(label: str, note: str, stacks: list[Stack]) -> _Lane:
    places: list[list[Place]] = []
    frames: list[list[Frame]] = []
    for stack in stacks:
        placed, framed = place(stack.shown)
        places.append(placed)
        frames.append(framed)
    return _Lane(label, note, stacks, places, frames)


def _level_height(lanes: Sequence[_Lane]) -> int:
    levels = sum(lane.levels for lane in lanes)
    return max(_LEVEL_LEAST, min(_LEVEL_MOST, _LEVELS_HEIGHT // max(levels, 1)))


# -- drawing -----------------------------------------------------------------------------------------------------------


def _draw(lane: _Lane, scale: _Scale, top: int, level: int) -> Iterator[str]:
    bottom = top + lane.levels * level
    yield text(12, bottom - 4, lane.label if len(lane.label) <= 26 else lane.label[:25] + "…", mono=True)
    if lane.note:
        where = (12 + 11, bottom - 4) if lane.label == "-" else (12, bottom + 8)
        yield text(*where, lane.note, fill=DIM)
    yield f'<line x1="{_LEFT}" y1="{bottom}.5" x2="{_WIDTH - _RIGHT}" y2="{bottom}.5" stroke="{DIM}"/>'
    narrow: list[tuple[Stack, list[Place], float, float]] = []
    for stack, places, frames in zip(lane.stacks, lane.places, lane.frames, strict=True):
        left, right = scale.span(stack.interval)
        if right - left < _COLUMN:
            narrow.append((stack, places, left, right))
            continue
        yield from _cells(stack, places, left + 0.5, right - 0.5, bottom, level)
        for frame in frames:
            yield from _outline(frame, left + 0.5, right - 0.5, bottom, level)
        for part in stack.hidden():
            yield _hatch(*scale.span(part), bottom, level * (1 + places[-1].level))
    yield from _columns(narrow, bottom, level)


def _cells(stack: Stack, places: Sequence[Place], left: float, right: float, bottom: int, level: int) -> Iterator[str]:
    """One cell a segment, or one for neighbours of one state where they would be too narrow to see."""
    width = right - left
    for run in _runs(places, width):
        x, y = left + run[0].left * width, bottom - (run[0].level + 1) * level
        wide = (run[-1].right - run[0].left) * width
        state = run[0].shown.state.value
        yield rect(x, y + 1, wide, level - 1, state, _about(stack, run))
        label = _label(run) if level >= 13 else ""
        if label and wide >= 6.3 * len(label) + 6:
            ink = "#fff" if state == "visible" else INK
            yield text(x + wide / 2, y + level / 2 + 4.5, label, fill=ink, anchor="middle", quiet=True)


def _runs(places: Sequence[Place], width: float) -> Iterator[list[Place]]:
    run: list[Place] = []
    for one in places:
        if run and not (_alike(run[-1], one) and (one.right - one.left) * width < _CELL):
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _alike(one: Place, two: Place) -> bool:
    same = one.level == two.level and one.shown.state is two.shown.state
    return same and abs(two.left - one.right) < 1e-9


def _columns(narrow: Sequence[tuple[Stack, list[Place], float, float]], bottom: int, level: int) -> Iterator[str]:
    """Time chunks that are too narrow to be seen one by one: neighbours share a column, and at each level the states
    share its height."""
    column: list[tuple[Stack, list[Place], float, float]] = []
    for item in narrow:
        if column and (item[3] - column[0][2] > _COLUMN or item[2] - column[-1][3] > 1):
            yield from _column(column, bottom, level)
            column = []
        column.append(item)
    if column:
        yield from _column(column, bottom, level)


def _column(column: Sequence[tuple[Stack, list[Place], float, float]], bottom: int, level: int) -> Iterator[str]:
    left, right = column[0][2], max(column[-1][3], column[0][2] + 1)
    inset = 0.25 if right - left > 2 else 0.0
    found: dict[tuple[int, SegmentState], list[SegmentStanding]] = {}
    for _, places, _, _ in column:
        for one in places:
            found.setdefault((one.level, one.shown.state), []).append(one.shown)
    versions = sorted({stack.version for stack, _, _, _ in column})
    where = f"{_chunks_text([stack for stack, _, _, _ in column])}, version {_versions_text(versions)}"
    for at in sorted({at for at, _ in found}):
        parts = [(state, found[at, state]) for state in _ORDER if (at, state) in found]
        total = sum(len(shown) for _, shown in parts)
        y = float(bottom - (at + 1) * level + 1)
        for state, shown in parts:
            high = (level - 1) * len(shown) / total
            about = f"{where}\n{state.value}: {_amount(shown)}"
            yield rect(left + inset, y, right - left - 2 * inset, high, state.value, about, line=False)
            y += high


def _hatch(left: float, right: float, bottom: int, height: int) -> str:
    return (
        f'<rect x="{left:.1f}" y="{bottom - height}" width="{right - left:.1f}" height="{height}" '
        'fill="url(#hidden)"><title>here a newer version is visible</title></rect>'
    )


def _outline(frame: Frame, left: float, right: float, bottom: int, level: int) -> Iterator[str]:
    x, wide = left + frame.left * (right - left), (frame.right - frame.left) * (right - left)
    if wide >= _COLUMN:
        yield (
            f'<rect class="group" x="{x + 0.7:.1f}" y="{bottom - (frame.level + 1) * level + 1.7:.1f}" '
            f'width="{wide - 1.4:.1f}" height="{level - 2.4:.1f}" rx="2" fill="none" stroke="{INK}" '
            'stroke-width="1.4" pointer-events="none"/>'
        )


# -- words -------------------------------------------------------------------------------------------------------------


def _line(stack: Stack, state: SegmentState, shown: Sequence[SegmentStanding]) -> TimelineLine:
    segments = [one.segment for one in shown]
    return TimelineLine(
        segments[0].chunk,
        stack.interval,
        stack.version,
        state,
        len(segments),
        sum(one.rows for one in segments),
        sum(one.bytes for one in segments),
        tuple(one.partition for one in segments if one.partition >= 0),
        tuple(sorted({cut for one in segments for cut in one.visible_in})),
    )


def _label(run: Sequence[Place]) -> str:
    segment = run[0].shown.segment
    if len(run) > 1:
        return f"{len(run):,} segments"
    return f"{segment.partition}" if segment.partition >= 0 else f"{segment.rows:,} rows"


def _about(stack: Stack, run: Sequence[Place]) -> str:
    where = f"{run[0].shown.segment.chunk}, version {stack.version or '-'}"
    shown = [one.shown for one in run]
    lines = [where, f"{shown[0].state.value}: {_amount(shown)}", *(_about_one(run[0]) if len(run) == 1 else ())]
    return "\n".join(lines)


def _about_one(one: Place) -> Iterator[str]:
    segment = one.shown.segment
    yield segment.name
    if segment.overshadowed:
        yield f"replaces {ranges_text(segment.overshadowed)}"
    if one.over:
        yield f"replaced by {ranges_text(expand(one.over))}"
    if len(segment.group) > 1:
        yield f"atomic group {ranges_text(segment.group)}"
    for cut in segment.visible_in:
        yield f"visible in {cut}"


def _amount(shown: Sequence[SegmentStanding]) -> str:
    """``segments 0-3, 27,004 rows, 1,024 bytes``"""
    ids = [one.segment.partition for one in shown if one.segment.partition >= 0]
    one = len(shown) == 1
    what = "segment" if one else f"{len(shown):,} segments"
    names = f" {cropped(ranges_text(ids))}" if ids else ""
    rows, size = sum(each.segment.rows for each in shown), sum(each.segment.bytes for each in shown)
    return f"{what}{names}, {rows:,} rows, {size:,} bytes"


def _chunks_text(stacks: Sequence[Stack]) -> str:
    first, last = stacks[0].shown[0].segment.chunk, stacks[-1].shown[0].segment.chunk
    return first if len(stacks) == 1 else f"{len(stacks):,} time chunks, {first} to {last}"


def _versions_text(versions: Sequence[str]) -> str:
    return (versions[-1] or "-") if len(versions) == 1 else f"{versions[-1]} and {len(versions) - 1:,} older"


# -- around the plot ---------------------------------------------------------------------------------------------------


def _head(stacks: Sequence[Stack], title: str) -> Iterator[str]:
    yield text(12, 22, cropped(title, 120), bold=True)
    shown = [one for stack in stacks for one in stack.shown]
    chunks = len({stack.interval for stack in stacks})
    counts = {state: sum(one.state is state for one in shown) for state in _ORDER}
    parts = [f"{number:,} {state.value}" for state, number in counts.items() if number]
    seen = sum(one.segment.rows for one in shown if one.state is SegmentState.VISIBLE)
    some = (
        f"{len(shown):,} segment{'' if len(shown) == 1 else 's'} in {chunks:,} time chunk{'' if chunks == 1 else 's'}"
    )
    if shown:
        yield text(12, 40, f"{some}: {', '.join(parts)}; {seen:,} rows in visible segments", fill=DIM)


def _axis(scale: _Scale, bottom: int) -> Iterator[str]:
    """A grid behind the rows, with the names of the times below."""
    if (scale.start_ms, scale.end_ms) == (MIN_MS, MAX_MS):
        yield text(_LEFT, bottom + 12, "all time", fill=DIM)
        return
    for at, name in ticks(scale.start_ms, scale.end_ms):
        x = _LEFT + (at - scale.start_ms) * scale.pixels
        yield f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>'
        yield text(x, bottom + 12, name, fill=DIM, anchor="middle")


def _legend(stacks: Sequence[Stack], height: int, left_out: int) -> Iterator[str]:
    y, x = height - 26, _LEFT
    for state in _ORDER:
        yield rect(x, y, 12, 12, state.value, "")
        yield text(x + 17, y + 10, state.value)
        x += 32 + 7 * len(state.value)
    if any(len(one.segment.group) > 1 for stack in stacks for one in stack.shown):
        edge = f'fill="none" stroke="{INK}" stroke-width="1.4"'
        yield f'<rect x="{x + 0.5}" y="{y + 0.5}" width="18" height="11" rx="2" {edge}/>'
        yield text(x + 24, y + 10, "atomic group")
        x += 110
    if any(stack.hidden() for stack in stacks):
        yield f'<rect x="{x}" y="{y}" width="14" height="12" fill="{FILL["visible"]}"/>'
        yield f'<rect x="{x}" y="{y}" width="14" height="12" fill="url(#hidden)"/>'
        yield text(x + 20, y + 10, "hidden there by a newer version")
        x += 215
    yield text(x, y + 10, "what lies above hides what lies below", fill=DIM)
    if left_out:
        yield text(12, height - 44, f"{left_out:,} segments of older versions are not drawn", fill=DIM)


__all__ = ["TimelineLine", "as_svg", "ranges_text", "timeline_lines"]
