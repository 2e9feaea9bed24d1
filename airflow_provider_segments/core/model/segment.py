"""Segments as they are staged, stored and read."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import msgspec

from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.ledger import OffloadContext
from airflow_provider_segments.core.model.records import decode_as
from airflow_provider_segments.exceptions import InvalidNameError


class SegmentState(enum.Enum):
    """State of a registered segment (Druid #6319).

    STANDBY: its push is in progress, or readers have fallen back from it. VISIBLE: readers see it, at least in a part
    of its time. OVERSHADOWED: it was replaced, or overwrites hold all of its time.
    """

    STANDBY = "standby"
    VISIBLE = "visible"
    OVERSHADOWED = "overshadowed"


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a build reports of one segment and the registry keeps, as one JSON array.

    ``file`` is the object's name below its entry's prefix; ``rows`` and ``bytes`` are counts; ``crc32`` is the CRC-32
    of the object's bytes; ``min_time_ms`` and ``max_time_ms`` bound the time column, both ends inclusive, ``None``
    without one. ``columns`` maps a column to ``[min, max, null count]`` where the build was asked for it.
    ``chunk`` names the segment's time chunk where the registry keeps it with others under a coarser one; ``None`` says
    that it is the chunk it is kept under. ``offload`` says where the copy in tiered storage is, and ``primary`` whether
    the one in primary storage still counts: readers use it as long as it does. ``offloaded_ms`` is the wall clock at
    which ``offload`` was recorded. ``fingerprint`` names the compaction settings that would write the segment just so.
    ``version`` is the version of its rows, by which overwrites hide them, and ``partition`` its id in its time chunk;
    0 and -1 on a table without segment locking. On an upsert table ``key_partition`` is the one that all of the rows
    belong to (-1: any), and ``is_update_log`` says that the object is no segment but lists ends of rows.
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
    version: int = 0
    partition: int = -1
    key_partition: int = -1
    is_update_log: bool = False

    @property
    def location(self) -> OffloadContext | None:
        """Where readers find the object: ``None`` is primary storage."""
        return None if self.primary else self.offload

    @property
    def stored_bytes(self) -> int:
        """Bytes of all objects of the segment."""
        return self.bytes * (self.primary + (self.offload is not None))

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
    version: int = 0
    partition: int = -1
    visible_in: tuple[Interval, ...] = ()
    key_partition: int = -1

    @property
    def interval(self) -> Interval:
        """The interval of the segment's time chunk."""
        return parse_chunk(self.chunk)


_ENCODER = msgspec.json.Encoder()


def _defaults_from(name: str) -> bytes:
    """The end of an encoded record whose fields from ``name`` on have their defaults."""
    at = SegmentRecord.__struct_fields__.index(name) - len(SegmentRecord.__struct_fields__)
    return b"," + _ENCODER.encode(SegmentRecord.__struct_defaults__[at:])[1:]


_ENDS = (_defaults_from("columns"), _defaults_from("version"), _defaults_from("key_partition"))
_RECORDS = msgspec.json.Decoder(list[SegmentRecord])
_POSITIONS = msgspec.json.Decoder(list[list[msgspec.Raw]])
_TEXT = msgspec.json.Decoder(str)
_FILE_AT = SegmentRecord.__struct_fields__.index("file")


def encode_record(record: SegmentRecord, newer: Sequence[msgspec.Raw] = ()) -> bytes:
    """The record as the registry stores it: without the fields at the end that most records have no use for. ``newer``
    are the fields that a newer version has written behind them. Raises :class:`InvalidNameError` for half of a
    surrogate pair."""
    try:
        encoded = _ENCODER.encode(record)
    except UnicodeEncodeError as error:
        raise InvalidNameError(f"segment {record.name!r}: its record holds text that is not valid Unicode") from error
    if newer:
        return encoded[:-1] + b"," + b",".join(map(bytes, newer)) + b"]"
    end = next((end for end in _ENDS if encoded.endswith(end)), b"")
    return encoded[: -len(end)] + b"]" if end else encoded


def decode_records(payload: bytes | msgspec.Raw, where: str) -> list[SegmentRecord]:
    """Records from a JSON array. Raises :class:`CorruptRecordError` naming ``where`` they were read from."""
    return decode_as(_RECORDS, payload, where, "list of segments")


def newer_fields(payload: bytes | msgspec.Raw, where: str) -> dict[str, list[msgspec.Raw]]:
    """What a newer version has written behind the fields of :class:`SegmentRecord`, by the segment's file; empty for
    nearly every shard. Raises :class:`CorruptRecordError`."""
    known = len(SegmentRecord.__struct_fields__)
    rows = decode_as(_POSITIONS, payload, where, "list of segments")
    longer = [row for row in rows if len(row) > known]
    return {decode_as(_TEXT, bytes(row[_FILE_AT]), where, "name of a file"): row[known:] for row in longer}
