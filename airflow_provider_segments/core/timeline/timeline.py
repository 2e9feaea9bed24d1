"""Which segments of a table readers see at each moment of time."""

from __future__ import annotations

import gc
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Generic

from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.timeline.axis import Axis, IntervalIndex, Span, drop, envelope, merge, union
from airflow_provider_segments.core.timeline.chunk import ChunkVersion
from airflow_provider_segments.core.timeline.segment import (
    Identified,
    P,
    SegmentState,
    TimelinePiece,
    VersionedSegment,
)
from airflow_provider_segments.exceptions import TimelineRefusedError

_Id = tuple[int, int, str]
_ONE_BY_ONE = 2
"""Changed chunks up to which each is put in its place alone; beyond, the time they touch is swept once."""

_MANY = 4
"""When the changed stretches are more than one in so many intervals, everything between is swept with them."""


class Timeline(Generic[P]):
    """The segments of one table by interval, version and partition id, and what of them is visible.

    Within one interval and version: a group is complete while all its members are in service; hidden is everything
    reached from the overshadowed ids of complete groups, transitively through every segment whose metadata is known,
    in service or not; visible are the members of complete groups that are not hidden (Druid #6319, corrected:
    :meth:`ChunkVersion.refresh` says how). Any set of segments may be replaced together; a replaced group should be
    replaced whole, else what is left of it cannot fall back.

    Across versions: at each moment the highest complete version is visible. A version is complete when it shows
    something and its core set is whole. Wider older segments are cut at its edges.

    *Known and in service are two things.* ``add(..., online=False)`` makes a segment known only, ``remove`` takes it
    out of service and keeps it known, ``remove(..., forget=True)`` drops it. Keep known whatever is still recorded:
    a replaced segment whose object is gone still tells what it had replaced itself. Forgetting is safe too: whoever
    replaced the forgotten segment inherits its edges (:meth:`segments` tells them, so that the caller can store
    them). Only a segment that arrives after what it replaced was forgotten must name the older ones itself.

    ``strict=False`` is Druid's preference for something over nothing: the newest incomplete group, or version, is
    visible where no complete one covers what it replaced.

    Pure and in memory; not safe for threads. ``table`` is for error messages.
    """

    def __init__(self, table: str = "", *, strict: bool = True) -> None:
        self.table = table
        self.strict = strict
        self._chunks: dict[_Id, ChunkVersion[P]] = {}
        self._at: dict[Span, list[ChunkVersion[P]]] = {}
        self._index = IntervalIndex()
        self._versions: dict[str, list[Span]] = {}
        self._axis: Axis[ChunkVersion[P], TimelinePiece[P]] = Axis()

    # -- changes -------------------------------------------------------------------------------------------------

    def add(self, segment: VersionedSegment[P], *, online: bool = True) -> bool:
        """Make a segment known, and in service unless ``online`` is false; whether that changed anything.

        Adding a known segment again puts it in service, with the new payload; it may name more overshadowed ids than
        before. Raises :class:`TimelineRefusedError`, changing nothing, when it contradicts what is known, or when its
        interval overlaps another one of the same version.
        """
        chunk = self._chunks.get(_id(segment))
        if chunk is None:
            return bool(self.add_all((segment,), online=online))
        changed = chunk.add(segment, online)
        if changed:
            self._refresh([chunk])
        return changed

    def add_all(self, segments: Iterable[VersionedSegment[P]], *, online: bool = True) -> int:
        """As :meth:`add` for each, all or none, with each touched chunk computed once; how many changed anything."""
        with _collector_paused():
            return self._add_all(segments, online)

    def _add_all(self, segments: Iterable[VersionedSegment[P]], online: bool) -> int:
        grouped: defaultdict[_Id, list[VersionedSegment[P]]] = defaultdict(list)
        for segment in segments:
            interval = segment.interval
            grouped[interval.start_ms, interval.end_ms, segment.version].append(segment)
        changed = 0
        staged: list[tuple[_Id, ChunkVersion[P] | None, ChunkVersion[P]]] = []
        # In order of time, so that chunks that are read together lie together in memory: a lookup in a large table
        # is otherwise mostly waiting for it.
        for name in sorted(grouped):
            some, old = grouped[name], self._chunks.get(name)
            new: ChunkVersion[P]
            new = ChunkVersion(self.table, some[0].interval, name[2]) if old is None else old.copy()
            changed += new.extend(some, online)
            staged.append((name, old, new))
        self._check_versions([name for name, old, _ in staged if old is None])
        self._refresh(self._commit(staged))
        return changed

    def remove(self, segment: Identified, *, forget: bool = False) -> bool:
        """Take a segment out of service; whether that changed anything. An unknown one is not an error.

        It stays known unless ``forget`` (see the class).
        """
        return bool(self.remove_all((segment,), forget=forget))

    def remove_all(self, segments: Iterable[Identified], *, forget: bool = False) -> int:
        """As :meth:`remove` for each, with each touched stretch of time computed once; how many changed anything."""
        touched: dict[_Id, ChunkVersion[P]] = {}
        changed = 0
        for segment in segments:
            name = _id(segment)
            chunk = self._chunks.get(name)
            if chunk is not None and chunk.remove(segment.partition, forget) is not None:
                touched[name] = chunk
                changed += 1
        self._refresh(list(touched.values()))
        if forget:
            self._drop([name for name, chunk in touched.items() if not chunk.known])
        return changed

    def _check_versions(self, names: Sequence[_Id]) -> None:
        by_version: dict[str, list[Span]] = {}
        for start, end, version in names:
            by_version.setdefault(version, []).append((start, end))
        for version, spans in by_version.items():
            spans.sort()
            for one, two in pairwise(spans):
                if two[0] < one[1]:
                    raise self._overlap(one, two, version)
            old = self._versions.get(version)
            if old:
                self._check_against(old, spans, version)

    def _check_against(self, old: list[Span], spans: list[Span], version: str) -> None:
        for span in spans:
            at = bisect_left(old, span)
            if at and old[at - 1][1] > span[0]:
                raise self._overlap(old[at - 1], span, version)
            if at < len(old) and old[at][0] < span[1]:
                raise self._overlap(old[at], span, version)

    def _overlap(self, one: Span, two: Span, version: str) -> TimelineRefusedError:
        detail = f"{Interval(*one)} and {Interval(*two)} overlap and have the same version {version!r}"
        hint = "Nothing was changed; a change of granularity needs a new version."
        return TimelineRefusedError("same-version-overlaps", detail, table=self.table, hint=hint)

    def _commit(self, staged: list[tuple[_Id, ChunkVersion[P] | None, ChunkVersion[P]]]) -> list[ChunkVersion[P]]:
        touched: list[ChunkVersion[P]] = []
        by_version: dict[str, list[Span]] = {}
        spans: list[Span] = []
        for name, old, new in staged:
            if old is not None:
                old.adopt(new)
                touched.append(old)
                continue
            span = name[:2]
            self._chunks[name] = new
            touched.append(new)
            by_version.setdefault(name[2], []).append(span)
            here = self._at.get(span)
            if here is None:
                here = self._at[span] = []
                spans.append(span)
            here.append(new)
        for version, some in by_version.items():
            merge(self._versions.setdefault(version, []), some)
        self._index.add_all(spans)
        return touched

    def _drop(self, names: Sequence[_Id]) -> None:
        by_version: dict[str, list[Span]] = {}
        spans: list[Span] = []
        for name in names:
            span = name[:2]
            chunk = self._chunks.pop(name)
            by_version.setdefault(name[2], []).append(span)
            self._at[span].remove(chunk)
            if not self._at[span]:
                del self._at[span]
                spans.append(span)
        for version, some in by_version.items():
            drop(self._versions[version], some)
            if not self._versions[version]:
                del self._versions[version]
        self._index.discard_all(spans)

    def _refresh(self, touched: Sequence[ChunkVersion[P]]) -> None:
        """Compute the touched chunks, then the time whose holder may have changed."""
        raised, lowered = [], []
        for chunk in touched:
            before = chunk.rank
            chunk.refresh(self.strict)
            if chunk.rank > before:
                raised.append(chunk)
            elif chunk.rank < before:
                lowered.append(chunk)
            else:
                self._axis.changed(chunk)
        if len(raised) + len(lowered) > _ONE_BY_ONE:
            self._sweep(union((chunk.start, chunk.end) for chunk in [*raised, *lowered]))
            return
        # First those that fell: what they held goes to the best of all, whoever rises afterwards only takes more.
        for chunk in lowered:
            self._lower(chunk)
        for chunk in raised:
            self._axis.replace(chunk.start, chunk.end, self._axis.raised(chunk))

    def _lower(self, chunk: ChunkVersion[P]) -> None:
        new: list[tuple[int, int, ChunkVersion[P]]] = []
        for start, end, holder in self._axis.clipped(chunk.start, chunk.end):
            if holder is chunk:
                new.extend(envelope(self._candidates(start, end), start, end))
            else:
                new.append((start, end, holder))
        self._axis.replace(chunk.start, chunk.end, new)

    def _sweep(self, spans: list[Span]) -> None:
        if len(spans) > len(self._at) // _MANY:
            spans = [(spans[0][0], spans[-1][1])]
        self._axis.replace_all([(*span, envelope(self._candidates(*span), *span)) for span in spans])

    def _candidates(self, start: int, end: int) -> list[ChunkVersion[P]]:
        at = self._at
        return [chunk for span in self._index.overlapping(start, end) for chunk in at[span] if chunk.rank]

    # -- answers -------------------------------------------------------------------------------------------------

    def lookup(self, interval: Interval) -> list[TimelinePiece[P]]:
        """What is visible within ``interval``, by time; the first and the last piece are cut to it.

        Two bisections and one step a piece, whatever the number of chunks.
        """
        return self.lookup_between(interval.start_ms, interval.end_ms)

    def lookup_between(self, start_ms: int, end_ms: int) -> list[TimelinePiece[P]]:
        """As :meth:`lookup` for ``[start_ms, end_ms)``; nothing for an empty or reversed one."""
        if start_ms >= end_ms:
            return []
        axis = self._axis
        first, last = axis.window(start_ms, end_ms)
        found = [self._piece(at) if piece is None else piece for at, piece in self._answers(first, last)]
        for end in {0, len(found) - 1} if found else ():
            start, stop = axis.starts[first + end], axis.ends[first + end]
            if start < start_ms or end_ms < stop:
                found[end] = axis.holders[first + end].piece(max(start, start_ms), min(stop, end_ms))
        return found

    def _answers(self, first: int, last: int) -> Iterable[tuple[int, TimelinePiece[P] | None]]:
        return enumerate(self._axis.answers[first:last], first)

    def _piece(self, at: int) -> TimelinePiece[P]:
        axis = self._axis
        piece = axis.answers[at] = axis.holders[at].piece(axis.starts[at], axis.ends[at])
        return piece

    def pieces(self) -> list[TimelinePiece[P]]:
        """Everything that is visible, by time."""
        return [self._piece(at) if piece is None else piece for at, piece in self._answers(0, len(self._axis))]

    def find(self, segment: Identified) -> VersionedSegment[P] | None:
        """The segment in service of this version and id whose interval contains the given one, visible or not."""
        chunk = self._holding(segment.interval, segment.version)
        if chunk is None or not chunk.is_online(segment.partition):
            return None
        return chunk.get(segment.partition)

    def is_overshadowed(self, segment: Identified) -> bool:
        """Whether newer visible segments hold all of its time, or all of what it held. It need not be known."""
        interval, version = segment.interval, segment.version
        chunk = self._holding(interval, version)
        if chunk is not None and chunk.hides(segment.partition):
            return True
        return self._is_covered(interval, version, chunk)

    def state_of(self, segment: Identified) -> SegmentState | None:
        """Its state; ``None`` when it is not in service (unknown, known only, or removed)."""
        chunk = self._chunks.get(_id(segment))
        if chunk is None or not chunk.is_online(segment.partition):
            return None
        if self.is_overshadowed(segment):
            return SegmentState.OVERSHADOWED
        if chunk.shown and chunk.shows(segment.partition):
            return SegmentState.VISIBLE
        return SegmentState.STANDBY

    def find_fully_overshadowed(self) -> list[VersionedSegment[P]]:
        """Every segment in service that is overshadowed, by interval, version and id: what clean-up may look at."""
        found: list[VersionedSegment[P]] = []
        for name in sorted(self._chunks):
            chunk = self._chunks[name]
            mask = chunk.online & chunk.hidden
            if not chunk.shown and chunk.online and self._is_covered(chunk.interval, chunk.version, chunk):
                mask = chunk.online
            if mask:
                found.extend(chunk.select(mask))
        return found

    def states(self) -> Iterator[tuple[VersionedSegment[P], SegmentState | None]]:
        """Every known segment by interval, version and id, with its state."""
        for name in sorted(self._chunks):
            for segment in self._chunks[name].segments():
                yield segment, self.state_of(segment)

    def segments(self) -> Iterator[VersionedSegment[P]]:
        """Every known segment, with the overshadowed ids that it inherited from forgotten ones."""
        for name in sorted(self._chunks):
            yield from self._chunks[name].segments()

    def is_online(self, segment: Identified) -> bool:
        """Whether it is known and in service."""
        chunk = self._chunks.get(_id(segment))
        return chunk is not None and chunk.is_online(segment.partition)

    def __len__(self) -> int:
        """How many segments are known."""
        return sum(chunk.known.bit_count() for chunk in self._chunks.values())

    def _holding(self, interval: Interval, version: str) -> ChunkVersion[P] | None:
        """The chunk of this version whose interval contains ``interval``: at most one, a version never overlaps."""
        spans = self._versions.get(version)
        if not spans:
            return None
        at = bisect_right(spans, (interval.start_ms, 1 << 80)) - 1
        if at < 0 or spans[at][1] < interval.end_ms:
            return None
        return self._chunks[*spans[at], version]

    def _is_covered(self, interval: Interval, version: str, chunk: ChunkVersion[P] | None) -> bool:
        """Whether each moment belongs to a higher version."""
        at = interval.start_ms
        for start, end, holder in self._axis.clipped(interval.start_ms, interval.end_ms):
            if start > at or holder.version <= version:
                break
            at = end
        if at == interval.end_ms:
            return True
        # Druid's preference is for the newest incomplete version; older incomplete ones beneath it do not count.
        if self.strict or chunk is None or chunk.complete:
            return False
        newer = [
            (one.start, one.end)
            for span in self._index.overlapping(interval.start_ms, interval.end_ms)
            for one in self._at[span]
            if one.online and one.version > version
        ]
        return any(start <= interval.start_ms and interval.end_ms <= end for start, end in union(newer))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A load makes many objects and no garbage: each search for cycles among them would be in vain, and a full one
    touches whatever else the process holds (a quarter of the time of a large load)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _id(segment: Identified) -> _Id:
    interval = segment.interval
    return interval.start_ms, interval.end_ms, segment.version
