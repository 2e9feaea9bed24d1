"""The timeline as the second filter of what readers see: over what a lineage shows, and over what it lets go back.

Lineage and timeline agree as long as nothing is lost: a rewrite (a compaction) replaces its inputs in the lineage, and
its segments overshadow them in the timeline. They differ when a segment of a rewrite is gone. Then readers go back:
nothing that the rewrite brought is visible, and its inputs, which the lineage alone would go on hiding, show the same
rows. So the atomic update group of a rewrite is all that its entry brought, and the lineage says what lies beneath it:

* A rewrite **misses** a segment that is not registered, unless an entry that counts replaced that one, too.
* Readers go back from each rewrite that misses a segment **and from all that was built upon it**: whatever replaced
  something that it brought, what replaced something of that, and so on. The rows of those are among what they go back
  to, and would otherwise be seen twice. So what one that no longer counts had replaced may be missed beneath it, and
  they go back further, until nothing is missed or there is nothing to go back to.
* Going back must never bring rows back that were **replaced on purpose**. So there is no going back from a rewrite if
  an entry that is no rewrite is among what was built upon it: then the rows of the lost segment are gone, and
  what else it brought is seen.
* A rewrite can be gone back from only until the clean-up gives that up, in the lineage, before the first segment of
  either side leaves the registry (``lineage/decide.py``).

Within a version that is all. Between versions the timeline decides: a newer one hides what is beneath it in its time.
A version that was founded by a rewrite which readers have gone back from hides nothing: what others appended to it is
seen beside what is beneath. All of this follows from the segments of the asked time: what is built upon a rewrite is
of its time chunk or of a wider one.

A segment may have further places, in newer versions (``lineage/upgrade.py``). Such a place counts while there is
somebody whose own place is in that version: else nothing of that version hides what is beneath, either, and the
segment stands where it stood before. So what was carried into the version of a rewrite is seen there, and goes back
with the rewrite, by a revert or a loss, without anything being written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_segments.core.lineage.entries import Lineage, LineageEntry
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.segment import SegmentRecord, TimelinePlace
from airflow_provider_segments.core.timeline.axis import union
from airflow_provider_segments.core.timeline.segment import SegmentState, TimelinePiece, VersionedSegment
from airflow_provider_segments.core.timeline.timeline import Timeline
from airflow_provider_segments.exceptions import CorruptRecordError, TimelineRefusedError


class Placed(NamedTuple):
    """A registered segment with its entry, and a place of it in the timeline with the time chunk of that place. For a
    further place than its own, ``within`` is its own time chunk, which holds all its rows."""

    entry_id: str
    interval: Interval
    record: SegmentRecord
    place: TimelinePlace
    within: Interval | None = None


def places_of(entry_id: str, interval: Interval, record: SegmentRecord) -> Iterator[Placed]:
    """All places of a segment of time chunk ``interval``, its own first; none for one without a place."""
    if record.place is None:
        return
    own = Placed(entry_id, interval, record, record.place)
    yield own
    for one in record.upgrades:
        yield own._replace(interval=parse_chunk(one.chunk), place=one.place, within=interval)


@dataclass(frozen=True, slots=True)
class Overlay:
    """What the timeline says of a table's segments. ``visible`` has those that readers see: where that is only a part
    of their time, in which intervals; else nothing. ``back`` are the entries that readers have gone back from.
    ``moved`` has the version in which they are seen, for those with several places that count."""

    visible: Mapping[str, tuple[Interval, ...]]
    back: Collection[str]
    moved: Mapping[str, str]

    def state_of(self, placed: Placed) -> SegmentState:
        """Where a segment that was given stands."""
        if placed.record.name in self.visible:
            return SegmentState.VISIBLE
        return SegmentState.STANDBY if placed.entry_id in self.back else SegmentState.OVERSHADOWED


def overlay(table: str, lineage: Lineage, hidden: Collection[str], placed: Iterable[Placed]) -> Overlay:
    """What of ``placed`` is visible: the registered segments with a place whose entries are settled in ``lineage``,
    all of every time chunk that is asked about. ``hidden`` are the names that the lineage hides.

    Raises :class:`CorruptRecordError` when the records contradict each other.
    """
    found = list(placed)
    _check_apart(table, found)
    further = [one for one in found if one.within is not None]
    if further:
        found = [one for one in found if one.within is None]
    back = gone_back_from(lineage, found)
    loose: list[Placed] = []
    if back:
        hidden = set(hidden) - _left_to_the_timeline(lineage, back)
        founded = _founded(lineage, back)
        standing = [one for one in found if one.entry_id not in back]
        loose = [one for one in standing if _is_of(one, founded)]
        found = [one for one in standing if not _is_of(one, founded)]
    carried = _Carried.of(further, found, back) if further else _Carried()
    timeline = _timeline(table, [*found, *carried.places])
    parts: dict[str, list[Interval]] = {}
    for piece in timeline.pieces():
        for segment in piece.segments:
            name = segment.payload
            if name not in hidden:
                parts.setdefault(name, [])
                if name in carried.within:
                    carried.see(piece, name, parts[name])
                elif piece.cut:
                    parts[name].append(piece.interval)
    carried.join(parts)
    for one in loose:
        if one.record.name not in hidden and (free := _free(timeline, one)):
            parts[one.record.name] = [] if free == [one.interval] else free
    return Overlay({name: tuple(cuts) for name, cuts in parts.items()}, back, carried.moved)


@dataclass(frozen=True, slots=True)
class _Carried:
    """The further ``places`` that count, and of each segment that has one, ``within`` which time it has rows. There it
    may be seen in one version and hidden in another, in each part of its time."""

    places: Sequence[Placed] = ()
    within: Mapping[str, Interval] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, further: Iterable[Placed], standing: Iterable[Placed], back: Collection[str]) -> _Carried:
        """``standing`` are the segments, by their own places, that make versions be there."""
        there = {(one.interval, one.place.version) for one in standing}
        places = [one for one in further if (one.interval, one.place.version) in there and one.entry_id not in back]
        return cls(places, {one.record.name: one.within for one in places if one.within is not None})

    def see(self, piece: TimelinePiece[str], name: str, parts: list[Interval]) -> None:
        """Note that the segment is seen in ``piece``, and in which version."""
        own = self.within[name]
        if piece.interval.overlaps(own):
            start, end = max(piece.interval.start_ms, own.start_ms), min(piece.interval.end_ms, own.end_ms)
            parts.append(Interval(start, end))
            self.moved[name] = max(self.moved.get(name, ""), piece.version)

    def join(self, parts: dict[str, list[Interval]]) -> None:
        """Make of the parts in which a segment is seen what :class:`Overlay` says of it."""
        for name in self.within.keys() & parts.keys():
            joined = [Interval(start, end) for start, end in union((one.start_ms, one.end_ms) for one in parts[name])]
            if not joined:
                del parts[name]  # only time in which it has no rows
            else:
                parts[name] = [] if joined == [self.within[name]] else joined


def gone_back_from(lineage: Lineage, found: Collection[Placed]) -> frozenset[str]:
    """The rewrites that readers have gone back from, by the rule above. All that an entry brought is in one time chunk,
    which holds all that it replaced: so all of it is in ``found``, or nothing."""
    rewrites = {entry.entry_id: entry for entry in lineage.rewrites()}
    if not rewrites:
        return frozenset()
    registered = {one.record.name for one in found}
    here = [one for one in rewrites.values() if not registered.isdisjoint((*one.segments_from, *one.segments_to))]
    gaps = {one.entry_id: gap for one in here if (gap := _gap(one, registered))}
    if not gaps:
        return frozenset()
    above = lineage.replaced_by
    todo = [above[name] for gap in gaps.values() for name in gap if name in above]
    while todo:  # nothing at all may be left of what rewrote a segment that is missing
        entry = todo.pop()
        if entry.entry_id in rewrites and entry.entry_id not in gaps and (gap := _gap(entry, registered)):
            gaps[entry.entry_id] = gap
            todo += [above[name] for name in gap if name in above]
    back: set[str] = set()
    before = -1
    while before != len(back):  # what one that counts no longer had replaced may be missed beneath it
        before = len(back)
        for entry_id, gap in gaps.items():
            if any(name not in above or above[name].entry_id in back for name in gap):
                over = lineage.built_upon(rewrites[entry_id])
                if over <= rewrites.keys():  # else rows would come back that were replaced on purpose
                    back |= over
    return frozenset(back)


def _gap(entry: LineageEntry, registered: Collection[str]) -> list[str]:
    return [name for name in entry.segments_to if name not in registered]


def _left_to_the_timeline(lineage: Lineage, back: Collection[str]) -> set[str]:
    """Names that the lineage hides although readers have gone back to them."""
    return {name for entry_id in back for name in lineage.entries[entry_id].segments_from}


def _founded(lineage: Lineage, back: Collection[str]) -> dict[str, list[Interval]]:
    """The versions that what readers have gone back from had founded, and in which time."""
    found: dict[str, list[Interval]] = {}
    for entry_id in back:
        if founded := lineage.founded_by(entry_id):
            found.setdefault(founded[1], []).append(founded[0])
    return found


def _is_of(one: Placed, founded: Mapping[str, Collection[Interval]]) -> bool:
    return one.interval in founded.get(one.place.version, ())


def _timeline(table: str, placed: Iterable[Placed]) -> Timeline[str]:
    timeline: Timeline[str] = Timeline(table)
    try:
        timeline.add_all(
            VersionedSegment(one.interval, one.place.version, one.place.partition, one.record.name) for one in placed
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


def _check_apart(table: str, placed: Collection[Placed]) -> None:
    """Every place is one segment's."""
    if len({(one.interval, one.place.version, one.place.partition) for one in placed}) == len(placed):
        return
    seen: dict[tuple[Interval, str, int], str] = {}
    for one in placed:
        key = (one.interval, one.place.version, one.place.partition)
        if key in seen:
            both = f"{seen[key]!r} and {one.record.name!r} are both partition {key[2]} of {key[0]}, version {key[1]}"
            raise CorruptRecordError(f"registry of table {table!r}: {both}")
        seen[key] = one.record.name
