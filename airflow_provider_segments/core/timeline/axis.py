"""The time axis: which version holds each moment, and which intervals overlap a stretch of time."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from airflow_provider_segments.core.timeline.chunk import Rank

Span = tuple[int, int]
"""``[start, end)`` in UTC milliseconds."""

_FEW = 64
"""Changes up to which a sorted list is changed in place; beyond, it is built again once."""


class Ranked(Protocol):
    """What competes for time: ``shown`` counts the stretches it has."""

    start: int
    end: int
    rank: Rank
    shown: int


R = TypeVar("R", bound=Ranked)
T = TypeVar("T")


class IntervalIndex:
    """Distinct intervals, found by overlap.

    Those of about equal length (within a factor of two) share one sorted list, so what overlaps ``[a, b)`` starts in a
    narrow range of each list. A table has a handful of lengths (hour, day, month): a search is a few bisections plus
    the hits, whatever the number of intervals, and the shape that is the worst for trees of splits (many sliding
    windows, Druid #8846) is an ordinary one.
    """

    def __init__(self) -> None:
        self._by_length: dict[int, list[Span]] = {}

    def add_all(self, spans: Sequence[Span]) -> None:
        """Add intervals that are not there yet."""
        for length, some in _by_length(spans).items():
            merge(self._by_length.setdefault(length, []), some)

    def discard_all(self, spans: Sequence[Span]) -> None:
        """Drop intervals that are there."""
        for length, some in _by_length(spans).items():
            drop(self._by_length[length], some)
            if not self._by_length[length]:
                del self._by_length[length]

    def overlapping(self, start: int, end: int) -> list[Span]:
        """Those that share time with ``[start, end)``."""
        found: list[Span] = []
        for length, spans in self._by_length.items():
            first = bisect_left(spans, (start - (1 << length) + 1,))
            last = bisect_left(spans, (end,), first)
            found.extend([span for span in spans[first:last] if span[1] > start])
        return found


class Axis(Generic[R, T]):
    """Who holds which stretch of time: sorted, disjoint, and never two neighbours of the same holder.

    ``answers`` has what a lookup made of a stretch, until the stretch or its holder changes.
    """

    def __init__(self) -> None:
        # Arrays, not lists: a bisection in a large table then reads one block of memory, not objects all over it.
        self.starts = array("q")
        self.ends = array("q")
        self.holders: list[R] = []
        self.answers: list[T | None] = []

    def __len__(self) -> int:
        return len(self.starts)

    def window(self, start: int, end: int) -> tuple[int, int]:
        """The range of stretches that share time with ``[start, end)``: two bisections."""
        first = bisect_right(self.starts, start) - 1
        if first < 0 or self.ends[first] <= start:
            first += 1
        return first, max(first, bisect_left(self.starts, end))

    def clipped(self, start: int, end: int) -> list[tuple[int, int, R]]:
        """The stretches within ``[start, end)``, the first and the last cut to it."""
        first, last = self.window(start, end)
        return [(max(self.starts[at], start), min(self.ends[at], end), self.holders[at]) for at in range(first, last)]

    def changed(self, holder: R) -> None:
        """What the holder answers has changed, though not its time."""
        if holder.shown:
            for at in range(*self.window(holder.start, holder.end)):
                if self.holders[at] is holder:
                    self.answers[at] = None

    def raised(self, holder: R) -> list[tuple[int, int, R]]:
        """How the holder's interval looks after its rank rose: it takes gaps and what is below it."""
        found: list[tuple[int, int, R]] = []
        at = holder.start
        for start, end, other in self.clipped(holder.start, holder.end):
            if start > at:
                found.append((at, start, holder))
            found.append((start, end, other if other.rank > holder.rank else holder))
            at = end
        if at < holder.end:
            found.append((at, holder.end, holder))
        return found

    def replace(self, start: int, end: int, new: list[tuple[int, int, R]]) -> None:
        """Put ``new`` in the place of ``[start, end)``."""
        first, last = self.window(start, end)
        around = self._edges(first, last, start, end, new)
        first, last = max(0, first - 1), min(len(self.starts), last + 1)
        fresh = joined(around)
        for holder in self.holders[first:last]:
            holder.shown -= 1
        for _, _, holder in fresh:
            holder.shown += 1
        self.starts[first:last] = array("q", [one[0] for one in fresh])
        self.ends[first:last] = array("q", [one[1] for one in fresh])
        self.holders[first:last] = [one[2] for one in fresh]
        self.answers[first:last] = [None] * len(fresh)

    def _edges(
        self, first: int, last: int, start: int, end: int, new: list[tuple[int, int, R]]
    ) -> list[tuple[int, int, R]]:
        """``new`` with its neighbours and with what sticks out of the replaced stretch at both ends."""
        found: list[tuple[int, int, R]] = []
        if first:
            found.append((self.starts[first - 1], self.ends[first - 1], self.holders[first - 1]))
        if first < last and self.starts[first] < start:
            found.append((self.starts[first], start, self.holders[first]))
        found.extend(new)
        if first < last and self.ends[last - 1] > end:
            found.append((end, self.ends[last - 1], self.holders[last - 1]))
        if last < len(self.starts):
            found.append((self.starts[last], self.ends[last], self.holders[last]))
        return found

    def replace_all(self, changes: list[tuple[int, int, list[tuple[int, int, R]]]]) -> None:
        """Many disjoint replacements in order of time: one by one when few, else everything is built once."""
        if len(changes) <= _FEW:
            for start, end, new in changes:
                self.replace(start, end, new)
            return
        fresh = joined(self._merged(changes))
        for holder in self.holders:
            holder.shown = 0
        for _, _, holder in fresh:
            holder.shown = 0
        for _, _, holder in fresh:
            holder.shown += 1
        self.starts = array("q", [one[0] for one in fresh])
        self.ends = array("q", [one[1] for one in fresh])
        self.holders = [one[2] for one in fresh]
        self.answers = [None] * len(fresh)

    def _merged(self, changes: list[tuple[int, int, list[tuple[int, int, R]]]]) -> list[tuple[int, int, R]]:
        found: list[tuple[int, int, R]] = []
        low = -(1 << 80)
        for start, end, new in changes:
            found.extend(self.clipped(low, start))
            found.extend(new)
            low = end
        found.extend(self.clipped(low, 1 << 80))
        return found


def envelope(holders: Sequence[R], start: int, end: int) -> list[tuple[int, int, R]]:
    """Who has the highest rank at each moment of ``[start, end)``: a sweep with a heap, n log n."""
    if not holders:
        return []
    best = max(holders, key=_rank)
    if best.start <= start and end <= best.end:
        return [(start, end, best)]
    by_start = sorted(holders, key=_start)
    if all(one.end <= two.start for one, two in pairwise(by_start)):
        return [(max(one.start, start), min(one.end, end), one) for one in by_start]
    place = {id(one): -at for at, one in enumerate(sorted(holders, key=_rank))}
    found: list[tuple[int, int, R]] = []
    heap: list[tuple[int, int, R]] = []
    at, now = 0, start
    while True:
        while at < len(by_start) and by_start[at].start <= now:
            one = by_start[at]
            heapq.heappush(heap, (place[id(one)], one.end, one))
            at += 1
        while heap and heap[0][1] <= now:
            heapq.heappop(heap)
        if not heap:
            if at == len(by_start):
                return found
            now = by_start[at].start
            continue
        until = min(heap[0][1], end) if at == len(by_start) else min(heap[0][1], end, by_start[at].start)
        if now >= until:
            return found
        top = heap[0][2]
        if found and found[-1][2] is top and found[-1][1] == now:
            found[-1] = (found[-1][0], until, top)
        else:
            found.append((now, until, top))
        now = until


def joined(stretches: Iterable[tuple[int, int, R]]) -> list[tuple[int, int, R]]:
    """Neighbours of one holder become one stretch."""
    found: list[tuple[int, int, R]] = []
    for one in stretches:
        if found and found[-1][2] is one[2] and found[-1][1] == one[0]:
            found[-1] = (found[-1][0], one[1], one[2])
        else:
            found.append(one)
    return found


def union(spans: Iterable[Span]) -> list[Span]:
    """The time they cover, as disjoint stretches in order; those that touch become one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def merge(into: list[Span], some: Sequence[Span]) -> None:
    """Insert into a sorted list."""
    if len(some) > _FEW:
        into.extend(some)
        into.sort()
        return
    for one in some:
        insort(into, one)


def drop(spans: list[Span], some: Sequence[Span]) -> None:
    """Take out of a sorted list what is in it."""
    if len(some) > _FEW:
        gone = set(some)
        spans[:] = [one for one in spans if one not in gone]
        return
    for one in some:
        del spans[bisect_left(spans, one)]


def _by_length(spans: Iterable[Span]) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = {}
    for span in spans:
        found.setdefault((span[1] - span[0]).bit_length(), []).append(span)
    return found


def _start(one: Ranked) -> int:
    return one.start


def _rank(one: Ranked) -> Rank:
    return one.rank
