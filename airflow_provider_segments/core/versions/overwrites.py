"""Hide segments by time: what is older than an overwrite (Druid's overshadowing between versions).

An overwrite holds some time in a version of its own: it hides every segment of a lower version there. The lineage says
which overwrites there are; which of them are in force is the state of their entries. A segment that an overwrite holds
in part stays visible in the rest of its time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from airflow_provider_segments.core.lineage.entries import Overwrite
from airflow_provider_segments.core.model.interval import Interval

Parts = tuple[Interval, ...]
"""The parts of a segment's time in which it is visible; empty: all of its time."""

WHOLE: Parts = ()


@dataclass(slots=True)
class Window:
    """The time of one interval, cut where another overwrite begins to be the newest one.

    ``tops`` are the versions of the newest overwrites from each of ``starts`` on (0: none); ``newest`` and ``oldest``
    are the greatest and the smallest of them.
    """

    interval: Interval
    starts: Sequence[int]
    tops: Sequence[int]
    newest: int
    oldest: int
    _parts: dict[int, Parts] = field(default_factory=dict)

    def visible_parts(self, version: int) -> Parts | None:
        """Return the parts in which a segment of this interval and ``version`` is visible; ``None``: in none."""
        if version >= self.newest:
            return WHOLE
        if version < self.oldest:
            return None
        if version not in self._parts:
            self._parts[version] = self._cut(version)
        return self._parts[version]

    def _cut(self, version: int) -> Parts:
        ends = [*self.starts[1:], self.interval.end_ms]
        parts: list[tuple[int, int]] = []
        for start, end, top in zip(self.starts, ends, self.tops, strict=True):
            if top > version:
                continue
            if parts and parts[-1][1] == start:
                parts[-1] = (parts[-1][0], end)
            else:
                parts.append((start, end))
        return tuple(Interval(start, end) for start, end in parts)


class TimeFilter:
    """Which part of a segment's time the given overwrites leave visible.

    Building it takes n log n for n overwrites. An interval is looked up once, by bisection; then a segment of that
    interval costs a comparison.
    """

    def __init__(self, overwrites: Iterable[Overwrite]) -> None:
        self._starts, self._tops = _newest_by_time(sorted(overwrites, key=lambda overwrite: overwrite.start_ms))
        self._windows: dict[Interval, Window] = {}

    def __bool__(self) -> bool:
        return len(self._starts) > 1

    def window(self, interval: Interval) -> Window:
        """Return ``interval``, cut by the overwrites."""
        window = self._windows.get(interval)
        if window is None:
            window = self._windows[interval] = self._window(interval)
        return window

    def _window(self, interval: Interval) -> Window:
        first = bisect_right(self._starts, interval.start_ms) - 1
        last = bisect_left(self._starts, interval.end_ms)
        starts = [interval.start_ms, *self._starts[first + 1 : last]]
        tops = self._tops[first:last]
        return Window(interval, starts, tops, max(tops), min(tops))


def _newest_by_time(overwrites: Sequence[Overwrite]) -> tuple[list[int], list[int]]:
    """Return times, and the newest version from each of them on. The lists begin before all time, with version 0."""
    bounds = sorted({edge for overwrite in overwrites for edge in (overwrite.start_ms, overwrite.end_ms)})
    starts, tops = [_BEFORE], [0]
    heap: list[tuple[int, int]] = []
    at = 0
    for bound in bounds:
        while at < len(overwrites) and overwrites[at].start_ms <= bound:
            heappush(heap, (-overwrites[at].version, overwrites[at].end_ms))
            at += 1
        while heap and heap[0][1] <= bound:
            heappop(heap)
        top = -heap[0][0] if heap else 0
        if top != tops[-1]:
            starts.append(bound)
            tops.append(top)
    return starts, tops


_BEFORE = -(1 << 62)


def merge_touching(overwrites: Iterable[Overwrite]) -> tuple[Overwrite, ...]:
    """Return ``overwrites`` in order of time. Those of one entry and version that touch or overlap become one."""
    merged: list[Overwrite] = []
    for overwrite in sorted(overwrites, key=lambda item: (item.entry_id, item.version, item.start_ms, item.end_ms)):
        last = merged[-1] if merged else None
        if (
            last is not None
            and (last.entry_id, last.version) == (overwrite.entry_id, overwrite.version)
            and overwrite.start_ms <= last.end_ms
        ):
            merged[-1] = last._replace(end_ms=max(last.end_ms, overwrite.end_ms))
        else:
            merged.append(overwrite)
    return tuple(sorted(merged, key=lambda overwrite: (overwrite.start_ms, overwrite.end_ms)))
