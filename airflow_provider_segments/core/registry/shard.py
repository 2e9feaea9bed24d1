"""Registry shards: the segments one push has in one time chunk, as one znode.

``SEGMENTS/<table>/<chunk>/<entry id>.<stager>.<attempt>.<number>``, JSON. A shard is made once and never grows, so
pushes do not contend with each other on a chunk, and the segments of an entry are found by the names of znodes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
from msgspec import UNSET, UnsetType

from airflow_provider_segments.core.model.interval import Interval, coarser_chunk, parse_chunk
from airflow_provider_segments.core.model.ledger import generation_of
from airflow_provider_segments.core.model.names import is_number
from airflow_provider_segments.core.model.records import FORMAT, Record, RecordDecoder
from airflow_provider_segments.core.model.records import encode as encode_stored
from airflow_provider_segments.core.model.segment import SegmentRecord, decode_records, encode_record, newer_fields
from airflow_provider_segments.core.zookeeper import Delete, Op, SetData
from airflow_provider_segments.exceptions import CorruptRecordError, InvalidNameError

SHARD_BYTES = 500_000
"""A shard is closed when it has this many bytes: two fit into one ZooKeeper request."""

SHARED_RECORDS = 256
"""Most records that different time chunks keep in one shard: a reader of one of them decodes them all."""

_SHARING_CHUNKS = 8  # fewer would save little, and make readers of each chunk look at the others' segments


@dataclass(frozen=True, slots=True)
class ShardName:
    """What a shard's znode name says. ``path`` is the whole znode path."""

    chunk: str
    path: str
    entry_id: str
    stager: str
    attempt: int

    @property
    def address(self) -> str:
        """``<chunk>/<node>``: the shard within its table."""
        return f"{self.chunk}/{self.node}"

    @property
    def attempt_name(self) -> str:
        """``<stager>.<attempt>``: which attempt made the shard."""
        return f"{self.stager}.{self.attempt}"

    @property
    def node(self) -> str:
        """The znode's name below its chunk."""
        return self.path.rpartition("/")[2]

    @property
    def interval(self) -> Interval:
        """The time chunk's interval."""
        return parse_chunk(self.chunk)


@dataclass(frozen=True)
class Shard:
    """A shard as it was read; its records are decoded when first asked for."""

    name: ShardName
    version: int
    born: int
    payload: msgspec.Raw = field(repr=False)
    unknown: str | UnsetType = field(default=UNSET, repr=False)

    @cached_property
    def records(self) -> list[SegmentRecord]:
        """The segments. Raises :class:`CorruptRecordError`."""
        return decode_records(self.payload, self.name.path)

    @property
    def generation(self) -> str:
        """Tells the objects of the attempt that made the shard from those of every other."""
        return generation_of(self.name.entry_id, self.born, self.name.stager, self.name.attempt)

    def chunk_of(self, record: SegmentRecord) -> str:
        """The time chunk of one of the records."""
        return record.chunk or self.name.chunk

    def with_records(self, records: Iterable[SegmentRecord]) -> Op:
        """The compare-and-set that leaves ``records`` in the shard, and removes it when there are none."""
        tails = newer_fields(self.payload, self.name.path)
        left = [encode_record(record, tails.get(record.file, ())) for record in records]
        if not left:
            return Delete(self.name.path, self.version)
        return SetData(self.name.path, encode(self.name.entry_id, self.born, left, self.unknown), self.version)


class _Stored(Record, frozen=True, tag_field=FORMAT, tag=2):
    entry: str
    born: int
    segments: msgspec.Raw


_DECODER = RecordDecoder(_Stored, "registry shard")


def chunk_interval(parent: str, chunk: str) -> Interval:
    """The interval of the child ``chunk`` of a registry root. Raises :class:`CorruptRecordError` when it is no time
    chunk: left out, it could hide what a newer version keeps there."""
    try:
        return parse_chunk(chunk)
    except InvalidNameError as error:
        raise CorruptRecordError(f"{parent}/{chunk} is no time chunk of a registry: {error}") from None


def parse_name(chunk: str, parent: str, node: str) -> ShardName:
    """What the znode ``node`` below ``parent`` is. Raises :class:`CorruptRecordError` when it is no shard."""
    path = f"{parent}/{node}"
    parts = node.split(".")
    if len(parts) != 4 or not is_number(parts[2]):
        raise CorruptRecordError(f"{path} is not a registry shard; remove it by hand if you know what it is")
    return ShardName(chunk, path, parts[0], parts[1], int(parts[2]))


def decode(name: ShardName, payload: bytes, version: int) -> Shard:
    """The shard in ``payload``. Raises :class:`CorruptRecordError`."""
    stored = _DECODER.decode(payload, name.path)
    if stored.entry != name.entry_id:
        raise CorruptRecordError(f"{name.path}: the record belongs to entry {stored.entry}")
    return Shard(name, version, stored.born, stored.segments, stored.unknown)


def encode(entry_id: str, born: int, records: Iterable[bytes], unknown: str | UnsetType = UNSET) -> bytes:
    """A shard of already encoded records. ``unknown`` holds what a newer version has written into it."""
    segments = msgspec.Raw(b"[" + b",\n".join(records) + b"]")
    return encode_stored(_Stored(entry_id, born, segments, unknown=unknown))


def share(by_chunk: Mapping[str, Sequence[SegmentRecord]]) -> dict[str, list[SegmentRecord]]:
    """The records by the chunk that keeps them. A push of few segments over many chunks would otherwise cost a znode
    each: its chunks share the shards of a coarser one, as long as a read of a single chunk stays cheap."""
    kept = {chunk: list(records) for chunk, records in by_chunk.items()}
    for depth in range(3):  # hours into days, days into months, months into years
        groups: dict[str, list[str]] = {}
        for chunk in kept:
            if _depth(chunk) == depth and (wider := coarser_chunk(chunk)):
                groups.setdefault(wider, []).append(chunk)
        for wider, chunks in groups.items():
            if len(chunks) >= _SHARING_CHUNKS and sum(len(kept[chunk]) for chunk in chunks) <= SHARED_RECORDS:
                shared = [_kept_under(chunk, record) for chunk in chunks for record in kept.pop(chunk)]
                kept.setdefault(wider, []).extend(shared)
    return kept


def _depth(chunk: str) -> int:
    """0 for hours, 1 for days, 2 for months."""
    return 0 if "T" in chunk else 3 - chunk.count("-")


def _kept_under(chunk: str, record: SegmentRecord) -> SegmentRecord:
    return record if record.chunk else msgspec.structs.replace(record, chunk=chunk)


def split(records: Sequence[bytes]) -> list[list[bytes]]:
    """Encoded records in groups that each make a shard of at most about ``SHARD_BYTES``."""
    groups: list[list[bytes]] = []
    room = 0
    for encoded in records:
        if len(encoded) > room or not groups:
            groups.append([])
            room = SHARD_BYTES
        groups[-1].append(encoded)
        room -= len(encoded) + 2
    return groups
