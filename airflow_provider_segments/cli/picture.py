"""A table's segments for people: the lines of a text table, and an SVG picture that needs nothing but a browser.

Both are made from the state of each registered segment (``Table.segment_states``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from airflow_provider_segments.cli.svg import DIM, FILL, GRID, INK, cropped, rect, svg_head, text, ticks
from airflow_provider_segments.core.locking.ranges import ranges_of
from airflow_provider_segments.core.model.interval import ALL_TIME, MAX_MS, MIN_MS, Interval, format_ms
from airflow_provider_segments.core.model.segment import Segment, SegmentState
from airflow_provider_segments.core.snapshot import SegmentStatus
from airflow_provider_segments.text import count

_STATES = (SegmentState.STANDBY, SegmentState.VISIBLE, SegmentState.OVERSHADOWED)

_WIDTH, _LEFT, _RIGHT = 1100, 120, 46
_TOP, _FOOT, _GAP, _HEIGHT = 58, 62, 10, 26
_PLOT = _WIDTH - _LEFT - _RIGHT
_CELL = 2.5  # pixels; narrower segments of one time chunk are drawn as one
_COLUMN = 4.0  # pixels; narrower time chunks are drawn as one
_MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """The segments of one time chunk and state."""

    chunk: str
    interval: Interval
    state: SegmentState
    segments: tuple[Segment, ...] = field(repr=False)

    @property
    def rows(self) -> int:
        """Rows of all of them."""
        return sum(segment.rows for segment in self.segments)

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def versions(self) -> tuple[int, ...]:
        """Their versions, newest first; none on a table without segment locking."""
        return tuple(sorted({segment.version for segment in self.segments if segment.version}, reverse=True))

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partition ids of those that have one."""
        return tuple(sorted(segment.partition for segment in self.segments if segment.partition >= 0))

    @property
    def cuts(self) -> tuple[Interval, ...]:
        """The parts of their time in which those are visible that an overwrite hides in part."""
        return tuple(sorted({part for segment in self.segments for part in segment.visible_in}))

    def hidden(self) -> list[Interval]:
        """The parts of the time chunk in which overwrites hide some of them."""
        return _joined(gap for segment in self.segments for gap in _gaps(self.interval, segment.visible_in))


def timeline_lines(statuses: Iterable[SegmentStatus]) -> list[TimelineLine]:
    """One line for each time chunk and state, in order of time."""
    found: dict[tuple[Interval, str, int], list[Segment]] = {}
    for status in statuses:
        segment = status.segment
        found.setdefault((segment.interval, segment.chunk, _STATES.index(status.state)), []).append(segment)
    return [
        TimelineLine(chunk, interval, _STATES[state], tuple(sorted(segments, key=_by_place)))
        for (interval, chunk, state), segments in sorted(found.items(), key=lambda item: item[0])
    ]


def ranges_text(ids: Iterable[int]) -> str:
    """Ids as ``0-4, 7``."""
    return ", ".join(f"{first}" if first + 1 == end else f"{first}-{end - 1}" for first, end in ranges_of(ids))


def versions_text(versions: Sequence[int]) -> str:
    """The newest of ``versions`` as a time, and how many more there are."""
    if not versions:
        return "-"
    newest = format_ms(versions[0])
    return newest if len(versions) == 1 else f"{newest} and {len(versions) - 1:,} older"


def as_svg(statuses: Iterable[SegmentStatus], *, title: str = "timeline") -> str:
    """A picture: time to the right, one row a state, and in it one cell a segment, side by side in their time chunk.

    Time chunks of several granularities that overlap stand in rows of their own. Hatched time belongs to an overwrite.
    Where there is no room for single segments, those of one time chunk, and chunks beside each other, are drawn as
    one; what was drawn says what it is when the mouse is over it.
    """
    lines = timeline_lines(statuses)
    bands = [(state, layer) for state in _STATES for layer in _layers([one for one in lines if one.state is state])]
    rows, left_out = bands[:_MOST_ROWS], bands[_MOST_ROWS:]
    scale = _Scale.of(lines)
    tops = list(accumulate((_HEIGHT + _GAP for _ in rows), initial=_TOP))
    body = [*_head(lines, title), *_axis(scale, tops[-1])]
    for (state, layer), top in zip(rows, tops, strict=False):
        body.extend(_draw_row(state, layer, scale, top))
    if not lines:
        body.append(text(12, 40, "no segments", fill=DIM))
    height = tops[-1] + _FOOT
    body.extend(_legend(lines, height, sum(len(line.segments) for _, layer in left_out for line in layer)))
    return "\n".join([*svg_head(_WIDTH, height, title), *body, "</svg>\n"])


# -- what is drawn where -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scale:
    start_ms: int
    end_ms: int

    @classmethod
    def of(cls, lines: Sequence[TimelineLine]) -> _Scale:
        """The time to draw. A chunk of all time takes what the others leave it: it would squeeze them into a pixel."""
        spans = [line.interval for line in lines if line.interval != ALL_TIME] or [ALL_TIME]
        return cls(min(span.start_ms for span in spans), max(span.end_ms for span in spans))

    def at(self, ms: int) -> float:
        """The pixel of a time, within the plot."""
        inside = min(max(ms, self.start_ms), self.end_ms) - self.start_ms
        return _LEFT + inside * _PLOT / (self.end_ms - self.start_ms)

    def span(self, interval: Interval) -> tuple[float, float]:
        """Left and right edge."""
        return self.at(interval.start_ms), self.at(interval.end_ms)


def _layers(lines: Sequence[TimelineLine]) -> list[list[TimelineLine]]:
    """The lines in as few rows as keep overlapping time chunks apart, wide ones first."""
    layers: list[list[TimelineLine]] = []
    for line in sorted(lines, key=lambda one: (one.interval.start_ms - one.interval.end_ms, one.interval)):
        layer = next((layer for layer in layers if not _meets(layer, line.interval)), None)
        if layer is None:
            layers.append(layer := [])
        layer.insert(bisect_left(layer, line.interval, key=lambda one: one.interval), line)
    return layers


def _meets(layer: Sequence[TimelineLine], interval: Interval) -> bool:
    """Return True if one of the layer's lines, which are in order of time and apart, overlaps ``interval``."""
    at = bisect_left(layer, interval.end_ms, key=lambda one: one.interval.start_ms)
    return at > 0 and layer[at - 1].interval.overlaps(interval)


def _gaps(whole: Interval, parts: Sequence[Interval]) -> Iterator[Interval]:
    """The time of ``whole`` between ``parts``, which are in order of time and apart; no parts stand for all of it."""
    if not parts:
        return
    ends = [whole.start_ms, *(part.end_ms for part in parts)]
    starts = [*(part.start_ms for part in parts), whole.end_ms]
    yield from (Interval(end, start) for end, start in zip(ends, starts, strict=True) if end < start)


def _joined(parts: Iterable[Interval]) -> list[Interval]:
    """The same time in as few intervals as there can be, in order of time."""
    joined: list[Interval] = []
    for part in sorted(parts):
        if joined and part.start_ms <= joined[-1].end_ms:
            part = Interval(joined[-1].start_ms, max(joined.pop().end_ms, part.end_ms))
        joined.append(part)
    return joined


def _by_place(segment: Segment) -> tuple[int, int, str]:
    return (segment.version, segment.partition, segment.name)


# -- drawing -----------------------------------------------------------------------------------------------------------


def _draw_row(state: SegmentState, layer: Sequence[TimelineLine], scale: _Scale, top: int) -> Iterator[str]:
    bottom = top + _HEIGHT
    yield text(12, bottom - 9, state.value)
    yield f'<line x1="{_LEFT}" y1="{bottom}.5" x2="{_WIDTH - _RIGHT}" y2="{bottom}.5" stroke="{DIM}"/>'
    narrow: list[TimelineLine] = []
    for line in layer:
        left, right = scale.span(line.interval)
        if right - left < _COLUMN:
            narrow.append(line)
            continue
        yield from _draw_cells(line, left + 0.5, right - 0.5, top)
        for part in line.hidden():
            yield _draw_hatch(*scale.span(part), top)
    yield from _draw_columns(narrow, scale, top)


def _draw_cells(line: TimelineLine, left: float, right: float, top: int) -> Iterator[str]:
    """One cell a segment, or one for all where they would be too narrow to see."""
    step = (right - left) / len(line.segments)
    groups = [(segment,) for segment in line.segments] if step >= _CELL else [line.segments]
    wide = (right - left) / len(groups)
    for at, group in enumerate(groups):
        x = left + at * wide
        yield rect(x, top + 1, wide, _HEIGHT - 1, line.state.value, _describe(line, group))
        label = count(len(group), "segment") if len(group) > 1 else count(group[0].rows, "row")
        if wide >= 6.3 * len(label) + 6:
            ink = "#fff" if line.state is SegmentState.VISIBLE else INK
            yield text(x + wide / 2, top + _HEIGHT / 2 + 4.5, label, fill=ink, anchor="middle", quiet=True)


def _draw_columns(narrow: Sequence[TimelineLine], scale: _Scale, top: int) -> Iterator[str]:
    """Time chunks that are too narrow to be seen one by one: neighbours share a column."""
    column: list[TimelineLine] = []
    for line in narrow:
        left, right = scale.span(line.interval)
        if column:
            first, last = scale.at(column[0].interval.start_ms), scale.at(column[-1].interval.end_ms)
            if right - first > _COLUMN or left - last > 1:
                yield _draw_column(column, scale, top)
                column = []
        column.append(line)
    if column:
        yield _draw_column(column, scale, top)


def _draw_column(column: Sequence[TimelineLine], scale: _Scale, top: int) -> str:
    left = scale.at(column[0].interval.start_ms)
    wide = max(scale.at(column[-1].interval.end_ms) - left, 1.0)
    inset = 0.25 if wide > 2 else 0.0
    segments = [segment for line in column for segment in line.segments]
    chunks = (
        column[0].chunk if len(column) == 1 else f"{len(column):,} time chunks, {column[0].chunk} to {column[-1].chunk}"
    )
    about = f"{chunks}\n{column[0].state.value}: {_amount(segments)}"
    return rect(left + inset, top + 1, wide - 2 * inset, _HEIGHT - 1, column[0].state.value, about, line=False)


def _draw_hatch(left: float, right: float, top: int) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{_HEIGHT}" '
        'fill="url(#hidden)"><title>an overwrite hides these segments here</title></rect>'
    )


# -- words -------------------------------------------------------------------------------------------------------------


def _describe(line: TimelineLine, segments: Sequence[Segment]) -> str:
    lines = [f"{line.chunk}, version {versions_text(line.versions)}", f"{line.state.value}: {_amount(segments)}"]
    if len(segments) == 1:
        segment = segments[0]
        lines = [f"{line.chunk}, version {versions_text([segment.version] if segment.version else [])}", lines[1]]
        lines += [segment.name, *(f"visible in {part}" for part in segment.visible_in)]
    return "\n".join(lines)


def _amount(segments: Sequence[Segment]) -> str:
    """``3 segments 0-2, 27,004 rows, 1,024 bytes``"""
    ids = [segment.partition for segment in segments if segment.partition >= 0]
    what = "segment" if len(segments) == 1 else f"{len(segments):,} segments"
    names = f" {cropped(ranges_text(ids))}" if ids else ""
    rows, size = sum(segment.rows for segment in segments), sum(segment.bytes for segment in segments)
    return f"{what}{names}, {count(rows, 'row')}, {count(size, 'byte')}"


# -- around the plot ---------------------------------------------------------------------------------------------------


def _head(lines: Sequence[TimelineLine], title: str) -> Iterator[str]:
    yield text(12, 22, cropped(title, 120), bold=True)
    if not lines:
        return
    total, chunks = sum(len(line.segments) for line in lines), len({line.interval for line in lines})
    counts = {state: sum(len(line.segments) for line in lines if line.state is state) for state in reversed(_STATES)}
    parts = [f"{number:,} {state.value}" for state, number in counts.items() if number]
    seen = sum(line.rows for line in lines if line.state is SegmentState.VISIBLE)
    some = f"{total:,} segment{'' if total == 1 else 's'} in {chunks:,} time chunk{'' if chunks == 1 else 's'}"
    yield text(12, 40, f"{some}: {', '.join(parts)}; {seen:,} rows in visible segments", fill=DIM)


def _axis(scale: _Scale, bottom: int) -> Iterator[str]:
    """A grid behind the rows, with the names of the times below."""
    if (scale.start_ms, scale.end_ms) == (MIN_MS, MAX_MS):
        yield text(_LEFT, bottom + 12, "all time", fill=DIM)
        return
    for at, name in ticks(scale.start_ms, scale.end_ms):
        x = scale.at(at)
        yield f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="{GRID}"/>'
        yield text(x, bottom + 12, name, fill=DIM, anchor="middle")


def _legend(lines: Sequence[TimelineLine], height: int, left_out: int) -> Iterator[str]:
    y, x = height - 26, _LEFT
    for state in _STATES:
        yield rect(x, y, 12, 12, state.value, "")
        yield text(x + 17, y + 10, state.value)
        x += 32 + 7 * len(state.value)
    if any(line.cuts for line in lines):
        yield f'<rect x="{x}" y="{y}" width="14" height="12" fill="{FILL["visible"]}"/>'
        yield f'<rect x="{x}" y="{y}" width="14" height="12" fill="url(#hidden)"/>'
        yield text(x + 20, y + 10, "hidden there by an overwrite")
    if left_out:
        yield text(12, height - 44, f"{left_out:,} more segments are not drawn", fill=DIM)
