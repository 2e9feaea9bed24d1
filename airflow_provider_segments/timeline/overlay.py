"""The timeline as the second filter of what readers see: over what a lineage shows, and over what it lets go back.

Lineage and timeline agree as long as nothing is lost: a rewrite (a compaction) replaces its inputs in the lineage, and
its segments overshadow them in the timeline. They differ when a segment of a rewrite is gone. Then readers go back:
nothing that the rewrite brought is visible, and its inputs, which the lineage alone would go on hiding, show the same
rows. What rewrote other segments of it is gone back from, too: its rows are among those of the inputs. What others
appended to a version that the rewrite founded stays visible, and hides nothing any more.

Going back must never bring rows back that were replaced on purpose. So it ends where any of what the rewrite brought,
or what became of that, was replaced by an entry that is no rewrite: then the rows of the lost segment are gone. And a
rewrite can be gone back from only until the clean-up gives that up, in the lineage, before the first segment of either
side leaves the registry (``lineage/decide.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_segments.exceptions import CorruptRecordError, TimelineRefusedError
from airflow_provider_segments.model.interval import Interval
from airflow_provider_segments.model.lineage import EntryState, Lineage, LineageEntry
from airflow_provider_segments.model.ranges import expand
from airflow_provider_segments.model.segment import SegmentRecord, TimelinePlace
from airflow_provider_segments.timeline.segment import SegmentState, VersionedSegment
from airflow_provider_segments.timeline.timeline import Timeline


class Placed(NamedTuple):
    """A registered segment with its entry, its time chunk, and its place in the timeline."""

    entry_id: str
    interval: Interval
    record: SegmentRecord
    place: TimelinePlace


@dataclass(frozen=True, slots=True)
class Overlay:
    """What the timeline says of a table's segments. ``visible`` has those that readers see: where that is only a part
    of their time, in which intervals; else nothing."""

    timeline: Timeline[str]
    ids: _Ids
    visible: Mapping[str, tuple[Interval, ...]]
    back: _Back

    def state_of(self, placed: Placed) -> SegmentState:
        """Where a segment that was given stands."""
        if placed.record.name in self.visible:
            return SegmentState.VISIBLE
        if placed.entry_id in self.back.entries:
            return SegmentState.STANDBY
        state = self.timeline.state_of(_segment(placed, self.ids, (), falls_back=False))
        return SegmentState.STANDBY if state is SegmentState.STANDBY else SegmentState.OVERSHADOWED


def overlay(table: str, lineage: Lineage, hidden: Collection[str], placed: Iterable[Placed]) -> Overlay:
    """What of ``placed`` is visible: the registered segments with a place whose entries are settled in ``lineage``,
    all of every time chunk that is asked about. ``hidden`` are the names that the lineage hides.

    Raises :class:`CorruptRecordError` when the records contradict each other.
    """
    found = list(placed)
    back = _Back.of(lineage, found)
    standing = [one for one in found if one.entry_id not in back.entries]
    loose = {one.record.name: one for one in standing if _version(one) in back.versions}
    going_back = {entry.entry_id for entry in lineage.rewrites()}
    ids = _Ids.of(one for one in standing if one.entry_id in going_back)
    timeline = _timeline(table, [one for one in standing if one.record.name not in loose], ids, going_back)
    if len({(*_version(one), one.place.partition) for one in found}) != len(found):
        raise CorruptRecordError(f"registry of table {table!r}: {_twice(found)}")
    parts: dict[str, list[Interval]] = {}
    for piece in timeline.pieces():
        for segment in piece.segments:
            name = segment.payload
            if name not in hidden or name in back.names:
                parts.setdefault(name, [])
                if piece.cut:
                    parts[name].append(piece.interval)
    for name, one in loose.items():
        if (name not in hidden or name in back.names) and (free := _free(timeline, one)):
            parts[name] = [] if free == [one.interval] else free
    return Overlay(timeline, ids, {name: tuple(cuts) for name, cuts in parts.items()}, back)


def _timeline(table: str, placed: Collection[Placed], ids: _Ids, going_back: Collection[str]) -> Timeline[str]:
    there: dict[_Version, set[int]] = {}
    for one in placed:
        there.setdefault(_version(one), set()).add(one.place.partition)
    timeline: Timeline[str] = Timeline(table)
    try:
        timeline.add_all(
            _segment(one, ids, there[_version(one)], falls_back=one.entry_id in going_back) for one in placed
        )
    except TimelineRefusedError as error:
        raise CorruptRecordError(f"registry of table {table!r}: {error}") from error
    return timeline


def _free(timeline: Timeline[str], placed: Placed) -> list[Interval]:
    """The time of a segment that no newer version holds."""
    found: list[Interval] = []
    at = placed.interval.start_ms
    for piece in timeline.lookup(placed.interval):
        if piece.version > placed.place.version:
            if at < piece.interval.start_ms:
                found.append(Interval(at, piece.interval.start_ms))
            at = piece.interval.end_ms
    if at < placed.interval.end_ms:
        found.append(Interval(at, placed.interval.end_ms))
    return found


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
            if one.place.founds:
                known = numbers.setdefault((one.interval, one.place.version), {})
                known.setdefault(one.place.partition, len(known))
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


@dataclass(frozen=True, slots=True)
class _Back:
    """What readers have gone back from: ``entries`` that miss a segment, and rewrites of what else those brought.
    ``names`` is what they replaced. ``versions`` are those that they founded: what others added there does not hide
    what is beneath."""

    entries: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    versions: frozenset[_Version] = frozenset()

    @classmethod
    def of(cls, lineage: Lineage, found: Collection[Placed]) -> _Back:
        """All that an entry brought is in one time chunk, which holds all that it replaced: so all of it is in
        ``found``, or nothing."""
        rewrites = {entry.entry_id: entry for entry in lineage.rewrites()}
        if not rewrites:
            return cls()
        registered = {one.record.name for one in found}
        above = {name: entry for entry in lineage.in_state(EntryState.COMPLETED) for name in entry.segments_from}
        asked = [one for one in rewrites.values() if not registered.isdisjoint((*one.segments_from, *one.segments_to))]
        gaps = [(one, missing) for one in asked if (missing := set(one.segments_to) - registered)]
        entries: set[str] = set()
        before = -1
        while before != len(entries):  # what one that counts no longer had replaced may be missed beneath it
            before = len(entries)
            for entry, missing in gaps:
                if any(name not in above or above[name].entry_id in entries for name in missing):
                    over = _built_upon(entry, above)
                    if over <= rewrites.keys():  # else rows would come back that were replaced on purpose
                        entries |= over
        names = _left_to_the_timeline(lineage, entries)
        versions = {_version(one) for one in found if one.entry_id in entries and one.place.founds}
        return cls(frozenset(entries), names, frozenset(versions | _without_founder(found, entries, names)))


def _without_founder(found: Collection[Placed], back: Collection[str], names: Collection[str]) -> set[_Version]:
    """Versions above what readers have gone back to, of whose founding segments none is left."""
    founded = {_version(one) for one in found if one.place.founds and one.entry_id not in back}
    above = {_version(one) for one in found} - founded if names else set()
    beneath = [one for one in found if one.record.name in names] if above else []
    return {(at, version) for at, version in above if any(_is_beneath(one, at, version) for one in beneath)}


def _is_beneath(one: Placed, at: Interval, version: str) -> bool:
    inside = at.start_ms <= one.interval.start_ms and one.interval.end_ms <= at.end_ms
    return inside and one.place.version < version


def _left_to_the_timeline(lineage: Lineage, back: Collection[str]) -> frozenset[str]:
    """Names that the lineage hides although readers have gone back to them."""
    return frozenset(name for entry_id in back for name in lineage.entries[entry_id].segments_from)


def _built_upon(entry: LineageEntry, above: Mapping[str, LineageEntry]) -> set[str]:
    """The entry, and all that replaced what it brought, what those brought, and so on."""
    found: set[str] = set()
    todo = [entry]
    while todo:
        one = todo.pop()
        if one.entry_id not in found:
            found.add(one.entry_id)
            todo += [above[name] for name in one.segments_to if name in above]
    return found


def _version(placed: Placed) -> _Version:
    return placed.interval, placed.place.version


def _segment(placed: Placed, ids: _Ids, there: Collection[int], *, falls_back: bool) -> VersionedSegment[str]:
    """A segment whose entry can no longer fall back is there for good, whatever was once made together with it. Of a
    group that counts, what is not ``there`` was replaced: otherwise readers have gone back."""
    place, name = placed.place, placed.record.name
    [partition] = ids.translated(placed, [place.partition])
    if not falls_back:
        return VersionedSegment(placed.interval, place.version, partition, name)
    over = ids.translated(placed, expand(place.overshadowed))
    group = ids.translated(placed, [one for one in expand(place.group) if one in there])
    core = ids.core_of(placed) if place.founds else 0
    return VersionedSegment(placed.interval, place.version, partition, name, over, tuple(sorted(group)), core)


def _twice(found: Collection[Placed]) -> str:
    seen: dict[tuple[Interval, str, int], str] = {}
    for one in found:
        key = (one.interval, one.place.version, one.place.partition)
        if key in seen:
            return f"{seen[key]!r} and {one.record.name!r} are both partition {key[2]} of {key[0]}, version {key[1]}"
        seen[key] = one.record.name
    return "segments contradict each other"
