"""The places that a table's segments have in the timeline, for decisions that are made under one lineage.

What a reader sees of them is not decided here (``snapshot.py``), but what becomes of them when an entry is completed or
reverted: which versions there will be, and what lies beneath one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from airflow_provider_segments.core.lineage.hiding import is_settled
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.segment import SegmentRecord, TimelinePlace, Upgrade
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.timeline.axis import Span, union

Version = tuple[Interval, str]
"""A time chunk and a version of it."""


@dataclass(frozen=True)
class Known:
    """A registered segment with a place in the timeline, and the shard that it is in. ``settled`` says that its entry
    is COMPLETED or has left the lineage."""

    shard: Shard
    record: SegmentRecord
    place: TimelinePlace
    settled: bool

    @property
    def name(self) -> str:
        """The segment's name."""
        return self.record.name

    @property
    def entry_id(self) -> str:
        """The entry that brought it."""
        return self.shard.name.entry_id

    @property
    def chunk(self) -> str:
        """Its own time chunk, which holds all its rows."""
        return self.shard.chunk_of(self.record)

    @cached_property
    def interval(self) -> Interval:
        """The interval of that chunk."""
        return parse_chunk(self.chunk)

    @property
    def version(self) -> Version:
        """The version that it has its own place in."""
        return self.interval, self.place.version


@dataclass(slots=True)
class Looked:
    """What the tries of one switch have seen of the registry. While appends go on, each try would else be overtaken by
    another one before it had read everything again.

    The shards of a settled entry change in two ways only. Every removal changes the registry's root first: then all is
    read again. And whoever holds a REPLACE lock on their time gives them further places: that is us, and we forget
    what we write; somebody else whose shard ours shares makes our write fail, and then all is forgotten, too.
    ``whole_at`` is the root's version at which all that the push replaces was there.
    """

    root_version: int = -1
    whole_at: int = -1
    shards: dict[str, Shard] = field(default_factory=dict)

    def read(self, context: Context, stored: StoredLineage, interval: Interval) -> list[Shard]:
        """All shards of the interval."""
        root_version = context.registry.root().version  # before the look, so that no removal falls between
        if root_version != self.root_version:
            self.forget()
        self.root_version = root_version
        known = [shard for shard in self.shards.values() if shard.name.interval.overlaps(interval)]
        found = context.registry.read(lambda name: name.path not in self.shards, interval).shards
        settled = (shard for shard in found if is_settled(stored.lineage, shard.name.entry_id))
        self.shards.update((shard.name.path, shard) for shard in settled if shard.born <= stored.zxid)
        return [*known, *found]

    def forget(self, paths: Iterable[str] | None = None) -> None:
        """Read those shards again, or all of them."""
        for path in list(self.shards) if paths is None else paths:
            self.shards.pop(path, None)


def registered(
    context: Context, stored: StoredLineage, interval: Interval, looked: Looked | None = None
) -> list[Known]:
    """The segments with a place in the timeline that share time with ``interval``, of entries that ``stored`` has or
    has had. Raises :class:`CorruptRecordError`."""
    shards = (looked or Looked()).read(context, stored, interval)
    return [
        Known(shard, record, record.place, is_settled(stored.lineage, shard.name.entry_id))
        for shard in shards
        if shard.born <= stored.zxid
        for record in shard.records
        if record.place is not None and parse_chunk(shard.chunk_of(record)).overlaps(interval)
    ]


class Versions:
    """The versions that are there: those in which a segment has its own place."""

    def __init__(self, known: Iterable[Known]) -> None:
        self._own: dict[Version, list[Known]] = {}
        for one in known:
            self._own.setdefault(one.version, []).append(one)
        self._by_width: dict[int, list[tuple[int, str, Interval]]] = {}
        for interval, version in self._own:
            same = self._by_width.setdefault(interval.end_ms - interval.start_ms, [])
            same.append((interval.start_ms, version, interval))
        for same in self._by_width.values():
            same.sort(key=lambda one: one[:2])

    def has(self, upgrade: Upgrade, without: Collection[str] = ()) -> bool:
        """Whether the version of a further place is there."""
        return self._owner((parse_chunk(upgrade.chunk), upgrade.version), without) is not None

    def above(self, one: Known, without: Collection[str] = (), *, among: Versions | None = None) -> Known | None:
        """What holds time of a segment in a newer version than it has a place in (of those ``among`` which its further
        places count; these, by default), if anything does; leaving out what the entries ``without`` brought. Of the
        widest such version."""
        newer = self._newer(one, without, among or self)
        return max(newer, key=lambda top: top.interval.end_ms - top.interval.start_ms, default=None)

    def cover(self, one: Known, without: Collection[str] = ()) -> list[Span]:
        """The parts of a segment's time that newer versions hold than it has a place in."""
        own = one.interval
        held = (top.interval for top in self._newer(one, without, self))
        return union((max(each.start_ms, own.start_ms), min(each.end_ms, own.end_ms)) for each in held)

    def hide(self, one: Known, without: Collection[str] = ()) -> bool:
        """Whether newer versions hold all of a segment's time."""
        return self.cover(one, without) == [(one.interval.start_ms, one.interval.end_ms)]

    def _newer(self, one: Known, without: Collection[str], counting: Versions) -> Iterator[Known]:
        """A segment of each newer version that holds time of ``one``."""
        reached = max([one.place.version, *(up.version for up in one.record.upgrades if counting.has(up, without))])
        for interval, version in self._overlapping(one.interval):
            if version > reached and (owner := self._owner((interval, version), without)) is not None:
                yield owner

    def _overlapping(self, interval: Interval) -> Iterator[Version]:
        """Time chunks are of few widths, so those that overlap are found by their starts."""
        for width, same in self._by_width.items():
            first = bisect_left(same, (interval.start_ms - width + 1, ""), key=lambda one: one[:2])
            for start, version, chunk in islice(same, first, None):
                if start >= interval.end_ms:
                    break
                yield chunk, version

    def _owner(self, version: Version, without: Collection[str]) -> Known | None:
        return next((one for one in self._own.get(version, ()) if one.entry_id not in without), None)
