"""The timeline as the second filter of what readers see: over what a lineage shows, and over what it lets go back.

Lineage and timeline agree as long as nothing is lost: a rewrite (a compaction) replaces its inputs in the lineage, and
its segments overshadow them in the timeline. They differ when a segment of a rewrite is gone: then its atomic update
group, or the core set of its version, is incomplete and shows nothing, and the inputs, which the lineage alone would go
on hiding, show the same rows.

Going back must never bring rows back that were replaced on purpose. So what a rewrite replaced is left to the timeline
only as long as the rewrite's own segments are missed: those that another entry replaced are allowed to be gone. And a
group counts only while its entry can fall back: the clean-up gives that up, in the lineage, before the first segment of
either side leaves the registry (``lineage/decide.py``).

A segment may have several places: its own, and one in each newer version that it was carried into and that counts for
this reader. All of them are in the timeline. Their versions differ, and at each moment one version holds the time, so
it is never seen twice; and when a version is incomplete and shows nothing, the place beneath it counts again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_segments.exceptions import CorruptRecordError, TimelineRefusedError
from airflow_provider_segments.model.interval import Interval
from airflow_provider_segments.model.lineage import EntryState, Lineage
from airflow_provider_segments.model.ranges import Ranges, expand
from airflow_provider_segments.model.segment import SegmentRecord, TimelinePlace
from airflow_provider_segments.timeline.axis import union
from airflow_provider_segments.timeline.segment import SegmentState, TimelinePiece, VersionedSegment
from airflow_provider_segments.timeline.timeline import Timeline


class Placed(NamedTuple):
    """A registered segment with its entry, and a place of it in the timeline with the time chunk of that place.

    For a place that it was carried into, ``by`` is the entry whose version that is, and ``core`` are the ids that
    founded it. ``within`` is, where a segment has several places, its own time chunk, which holds all its rows."""

    entry_id: str
    interval: Interval
    record: SegmentRecord
    place: TimelinePlace
    by: str = ""
    core: Ranges = ()
    within: Interval | None = None

    @property
    def founding(self) -> Ranges:
        """The ids of its version's core set, as far as this place tells."""
        if self.by:
            return self.core
        return self.place.group if self.place.founds else ()

    @property
    def founder(self) -> str:
        """The entry whose core set that is."""
        return self.by or self.entry_id


@dataclass(frozen=True, slots=True)
class Overlay:
    """What the timeline says of a table's segments. ``visible`` has those that readers see: where that is only a part
    of their time, in which intervals; else nothing. ``versions`` has, for those of several places, the newest version
    in which they are visible."""

    timeline: Timeline[str]
    ids: _Ids
    visible: Mapping[str, tuple[Interval, ...]]
    versions: Mapping[str, str]

    def state_of(self, placed: Placed) -> SegmentState:
        """Where a segment that was given stands."""
        if placed.record.name in self.visible:
            return SegmentState.VISIBLE
        state = self.timeline.state_of(_segment(placed, self.ids, frozenset()))
        return SegmentState.STANDBY if state is SegmentState.STANDBY else SegmentState.OVERSHADOWED


def overlay(table: str, lineage: Lineage, hidden: Collection[str], placed: Iterable[Placed]) -> Overlay:
    """What of ``placed`` is visible: the registered segments with a place whose entries are settled in ``lineage``,
    all of every time chunk that is asked about. ``hidden`` are the names that the lineage hides.

    Raises :class:`CorruptRecordError` when the records contradict each other.
    """
    found = list(placed)
    going_back = frozenset(entry.entry_id for entry in lineage.rewrites())
    timeline: Timeline[str] = Timeline(table)
    ids = _Ids.of(one for one in found if one.founder in going_back)
    try:
        known = timeline.add_all(_segment(one, ids, going_back) for one in found)
    except TimelineRefusedError as error:
        raise CorruptRecordError(f"registry of table {table!r}: {error}") from error
    if known != len(found):
        raise CorruptRecordError(f"registry of table {table!r}: {_twice(found)}")
    left = _left_to_the_timeline(lineage, {one.entry_id for one in found}) if going_back else frozenset[str]()
    several = {one.record.name: one.within for one in found if one.within is not None}
    parts: dict[str, list[Interval]] = {}
    versions: dict[str, str] = {}
    for piece in timeline.pieces():
        for segment in piece.segments:
            name = segment.payload
            if name not in hidden or name in left:
                parts.setdefault(name, [])
                if name in several:
                    _see(piece, name, several[name], parts[name], versions)
                elif piece.cut:
                    parts[name].append(piece.interval)
    visible = {name: tuple(cuts) for name, cuts in parts.items() if name not in several}
    visible |= {name: _cuts(parts[name], within) for name, within in several.items() if parts.get(name)}
    return Overlay(timeline, ids, visible, versions)


def _see(
    piece: TimelinePiece[str], name: str, within: Interval, parts: list[Interval], versions: dict[str, str]
) -> None:
    """Note where a segment of several places is visible. Time outside of its own chunk, where it has no rows, does not
    count: there an older version may hold what a newer one does not reach."""
    start, end = max(piece.interval.start_ms, within.start_ms), min(piece.interval.end_ms, within.end_ms)
    if start < end:
        parts.append(Interval(start, end))
        versions[name] = max(versions.get(name, ""), piece.version)


def _cuts(parts: Iterable[Interval], within: Interval) -> tuple[Interval, ...]:
    """``parts`` of ``within``, joined where they touch; nothing when they are all of it."""
    found = [Interval(start, end) for start, end in union((one.start_ms, one.end_ms) for one in parts)]
    return () if found == [within] else tuple(found)


_Version = tuple[Interval, str]


@dataclass(frozen=True, slots=True)
class _Ids:
    """Partition ids as the timeline gets them. Its core sets begin at id 0; ours are whatever ids the founding push
    of a version got, so in such versions those are counted first, and all others after them."""

    counts: Mapping[_Version, int]
    numbers: Mapping[_Version, dict[int, int]]

    @classmethod
    def of(cls, founding: Iterable[Placed]) -> _Ids:
        """``founding`` are the segments whose groups count; those that found no version are passed over."""
        numbers: dict[_Version, dict[int, int]] = {}
        for one in founding:
            if one.founding:
                known = numbers.setdefault((one.interval, one.place.version), {})
                for partition in expand(one.founding):
                    known.setdefault(partition, len(known))
        return cls({version: len(known) for version, known in numbers.items()}, numbers)

    def core_of(self, placed: Placed) -> int:
        """Size of the core set of the segment's version; 0 when it has none."""
        return self.counts.get((placed.interval, placed.place.version), 0)

    def translated(self, placed: Placed, partitions: Iterable[int]) -> tuple[int, ...]:
        """Ids of the segment's version as the timeline gets them."""
        known = self.numbers.get((placed.interval, placed.place.version))
        if known is None:
            return tuple(partitions)
        return tuple(known.setdefault(partition, len(known)) for partition in partitions)


def _segment(placed: Placed, ids: _Ids, going_back: frozenset[str]) -> VersionedSegment[str]:
    """A segment whose entry can no longer fall back is there for good, whatever was once made together with it; and a
    version whose founder can no longer fall back has no core set."""
    place, name = placed.place, placed.record.name
    [partition] = ids.translated(placed, [place.partition])
    core = ids.core_of(placed) if placed.founding and placed.founder in going_back else 0
    if placed.entry_id not in going_back:
        return VersionedSegment(placed.interval, place.version, partition, name, core=core)
    over, group = ids.translated(placed, expand(place.overshadowed)), ids.translated(placed, expand(place.group))
    return VersionedSegment(placed.interval, place.version, partition, name, over, tuple(sorted(group)), core)


def _left_to_the_timeline(lineage: Lineage, registered: Collection[str]) -> frozenset[str]:
    """Names that a rewrite replaced, and that are for the timeline to hide. A rewrite without any registered segment
    hides by the lineage alone, unless one is missed: it is gone, and no entry has replaced it."""
    replaced: set[str] = set()
    for entry in lineage.in_state(EntryState.COMPLETED):
        replaced.update(entry.segments_from)
    return frozenset(
        name
        for entry in lineage.rewrites()
        if entry.entry_id in registered or not replaced.issuperset(entry.segments_to)
        for name in entry.segments_from
    )


def _twice(found: Collection[Placed]) -> str:
    seen: dict[tuple[Interval, str, int], str] = {}
    for one in found:
        key = (one.interval, one.place.version, one.place.partition)
        if key in seen:
            return f"{seen[key]!r} and {one.record.name!r} are both partition {key[2]} of {key[0]}, version {key[1]}"
        seen[key] = one.record.name
    return "segments contradict each other"
