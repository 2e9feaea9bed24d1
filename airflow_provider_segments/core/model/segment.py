"""Segments as they are staged, stored and read."""

from __future__ import annotations

from typing import Any

import msgspec

from airflow_provider_segments.core.model.identity import SegmentKey
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.ledger import OffloadContext
from airflow_provider_segments.core.model.ranges import Ranges, expand
from airflow_provider_segments.exceptions import CorruptRecordError


class TimelinePlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a segment stands in its table's timeline (Druid #6319). Its interval is its time chunk.

    ``version`` and ``partition`` are its id there. ``overshadowed`` are the ids of the segments it was made from, of
    the same interval and version; ``group`` those of its atomic update group (empty: it is alone). A group that
    overshadows nothing founds its version: it is that version's core set.
    """

    version: str
    partition: int
    overshadowed: Ranges = ()
    group: Ranges = ()

    @property
    def founds(self) -> bool:
        """Whether it is of the core set of its version."""
        return bool(self.group) and not self.overshadowed


class Upgrade(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A further place of a segment: partition id ``partition`` of a newer version of the timeline, whose time chunk
    ``chunk`` holds its own (Druid 28's concurrent append and replace). It counts for readers who see that version: see
    :mod:`airflow_provider_segments.core.timeline.overlay`."""

    chunk: str
    version: str
    partition: int

    @property
    def place(self) -> TimelinePlace:
        """The place."""
        return TimelinePlace(self.version, self.partition)


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a build reports of one segment and the registry keeps, as one JSON array.

    ``file`` is the object's name below its entry's prefix; ``rows`` and ``bytes`` are counts; ``crc32`` is the CRC-32
    of the object's bytes; ``min_time_ms`` and ``max_time_ms`` bound the time column, both ends inclusive, ``None``
    without one. ``columns`` maps a column to ``[min, max, null count]`` where the build was asked for it.
    ``chunk`` names the segment's time chunk where the registry keeps it with others under a coarser one; ``None`` says
    that it is the chunk it is kept under. ``offload`` says where the copy in tiered storage is, and ``primary`` whether
    the one in primary storage still counts: readers use it as long as it does. ``offloaded_ms`` is the wall clock at
    which ``offload`` was recorded. ``fingerprint`` names the compaction settings that would write the segment just so.
    ``place`` is its place in the timeline; ``None`` where only the lineage decides. ``upgrades`` are further places of
    the same segment in newer versions, oldest version first. One record with several places, and not several records
    that share an object (as in Druid): so there is one ledger, and deletion has nothing to count.
    Encoded positionally: new fields go to the end and need a default.
    """

    name: str
    file: str
    rows: int
    bytes: int
    crc32: int
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    columns: dict[str, list[Any]] | None = None
    chunk: str | None = None
    offload: OffloadContext | None = None
    primary: bool = True
    offloaded_ms: int = 0
    fingerprint: str | None = None
    place: TimelinePlace | None = None
    upgrades: tuple[Upgrade, ...] = ()

    @property
    def location(self) -> OffloadContext | None:
        """Where readers find the object: ``None`` is primary storage."""
        return None if self.primary else self.offload

    def stores(self) -> list[OffloadContext | None]:
        """Where the segment has objects: ``None`` is primary storage."""
        found: list[OffloadContext | None] = [None] if self.primary else []
        return found if self.offload is None else [*found, self.offload]


class StagedSegment(msgspec.Struct, frozen=True, gc=False):
    """One segment a build hands to ``stage``: its time chunk (see ``model.interval``) and its record."""

    chunk: str
    record: SegmentRecord


class Segment(msgspec.Struct, frozen=True, gc=False):
    """One registered segment as readers see it.

    ``key`` is the object's key in the store that readers use, which is primary storage, or the tiered one when
    ``tiered`` says where. ``chunk`` is its time chunk's name, ``born`` the zxid of the lineage write that created its
    entry; the other fields as in :class:`SegmentRecord`. ``visible_in`` is the part of its time in which it is visible;
    empty: all of it. Rows outside of that must not be read: a newer version holds them.
    """

    name: str
    key: str
    chunk: str
    entry_id: str
    born: int
    rows: int
    bytes: int
    crc32: int
    min_time_ms: int | None
    max_time_ms: int | None
    columns: dict[str, list[Any]] | None
    tiered: OffloadContext | None = None
    fingerprint: str | None = None
    place: TimelinePlace | None = None
    visible_in: tuple[Interval, ...] = ()

    @property
    def interval(self) -> Interval:
        """The interval of the segment's time chunk."""
        return parse_chunk(self.chunk)

    @property
    def key_in_timeline(self) -> SegmentKey | None:
        """Its identity in the timeline; ``None`` where only the lineage decides."""
        return None if self.place is None else SegmentKey(self.interval, self.place.version, self.place.partition)

    @property
    def version(self) -> str:
        """Its version in the timeline; empty where only the lineage decides."""
        return "" if self.place is None else self.place.version

    @property
    def partition(self) -> int:
        """Its partition id in the timeline; -1 where only the lineage decides."""
        return -1 if self.place is None else self.place.partition

    @property
    def overshadowed(self) -> tuple[int, ...]:
        """Partition ids of the segments it was made from."""
        return () if self.place is None else expand(self.place.overshadowed)

    @property
    def group(self) -> tuple[int, ...]:
        """Partition ids of its atomic update group; empty when it is alone."""
        return () if self.place is None else expand(self.place.group)


_ENCODER = msgspec.json.Encoder()


def _defaults_from(name: str) -> bytes:
    """The end of an encoded record whose fields from ``name`` on have their defaults."""
    at = SegmentRecord.__struct_fields__.index(name) - len(SegmentRecord.__struct_fields__)
    return b"," + _ENCODER.encode(SegmentRecord.__struct_defaults__[at:])[1:]


_ENDS = (_defaults_from("columns"), _defaults_from("place"), _defaults_from("upgrades"))
_RECORDS = msgspec.json.Decoder(list[SegmentRecord])


def encode_record(record: SegmentRecord) -> bytes:
    """The record as the registry stores it: without the fields at the end that most records have no use for."""
    encoded = _ENCODER.encode(record)
    end = next((end for end in _ENDS if encoded.endswith(end)), b"")
    return encoded[: -len(end)] + b"]" if end else encoded


def decode_records(payload: bytes | msgspec.Raw, where: str) -> list[SegmentRecord]:
    """Records from a JSON array. Raises :class:`CorruptRecordError` naming ``where`` they were read from."""
    try:
        return _RECORDS.decode(payload)
    except msgspec.DecodeError as error:
        raise CorruptRecordError(f"{where}: segment records cannot be decoded: {error}") from error
