"""What a batch has read from its source: positions, heartbeats and digests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy
import pyarrow
import pyarrow.compute

from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.core.replication.heartbeat import TakenHeartbeat
from airflow_provider_segments.core.replication.stream import Digest
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION, REGION
from airflow_provider_segments.upsert.events import Column
from airflow_provider_segments.upsert.keys import HASH_BYTES

HEARTBEAT = "$heartbeat"
"""The column of events that is null in every event but a heartbeat, which it has as JSON."""

SOURCE = "$source"
"""The source partition of an event, as positions name it: ``<region>/<partition>``."""

_PLACE = (REGION, PARTITION, SOURCE)


@dataclass(frozen=True, slots=True, eq=False)
class SourceRead:
    """Where in the source the events of a batch were. ``events`` are all of them that say so: rejected ones, losers and
    heartbeats too, for they were read. ``ends`` are, by source partition, the offsets after the last one; ``hashes``,
    on a table that expects heartbeats, the halves of the events' hashes."""

    events: pyarrow.Table
    ends: Mapping[str, int]
    heartbeats: Sequence[TakenHeartbeat] = ()
    hashes: tuple[Column, Column] | None = None

    @classmethod
    def of(cls, events: pyarrow.Table, config: UpsertConfig, heartbeats: Sequence[TakenHeartbeat] = ()) -> SourceRead:
        """What ``events`` have read; an event that does not say its place is not among it."""
        events = with_sources(events, config)
        placed = events.filter(events.column(SOURCE).is_valid())
        last = placed.group_by(SOURCE).aggregate([(OFFSET, "max")])
        offsets = last.column(f"{OFFSET}_max").to_pylist()
        ends = {source: end + 1 for source, end in zip(last.column(SOURCE).to_pylist(), offsets, strict=True)}
        return cls(placed, ends, heartbeats, None if config.heartbeat_ms is None else _event_hashes(placed))

    def digests(self, base: Mapping[str, int | None]) -> dict[str, Digest] | None:
        """By source partition, the digest of the events from offset ``base`` on: those before it were read, and
        counted, by an earlier version. ``None`` on a table that expects no heartbeats."""
        if self.hashes is None:
            return None
        sources, offsets = self.events.column(SOURCE).to_numpy(), self.events.column(OFFSET).to_numpy()
        found: dict[str, Digest] = {}
        for source, at in base.items():
            new = (sources == source) & (offsets >= (at or 0))
            high, low = self.hashes[0][new], self.hashes[1][new]
            half = numpy.uint64(32)
            carried = (int((low >> half).sum()) << 32) + int((low & numpy.uint64(2**32 - 1)).sum())
            found[source] = Digest.of(at or 0, int(new.sum()), (int(high.sum()) << 64) + carried)
        return found


def without_heartbeats(events: pyarrow.Table) -> pyarrow.Table:
    """The events that are rows."""
    if HEARTBEAT not in events.column_names:
        return events
    return events.filter(events.column(HEARTBEAT).is_null()).drop_columns([HEARTBEAT])


def _event_hashes(events: pyarrow.Table) -> tuple[Column, Column]:
    """Both halves of a 128-bit hash of each event: its offset and all its columns. A column that is null, or is not
    there, is the same; so is a number, whatever the width of its type."""
    names = sorted(set(events.column_names) - {*_PLACE})
    pieces = [_piece(name, events.column(name)) for name in names]
    joined = pyarrow.compute.binary_join_element_wise(*pieces, _text(""), null_handling="skip")
    blake = hashlib.blake2b
    digests = b"".join([blake(one, digest_size=HASH_BYTES).digest() for one in joined.to_pylist()])
    halves = numpy.frombuffer(digests, "<u8").reshape(-1, 2)
    return halves[:, 1], halves[:, 0]


def with_sources(events: pyarrow.Table, config: UpsertConfig) -> pyarrow.Table:
    """The events with the column ``$source``, which is null in one that does not say its place."""
    region = pyarrow.scalar(config.regions[0])
    if REGION in events.column_names:
        region = events.column(REGION).cast(pyarrow.string()).fill_null(config.regions[0])
    part = events.column(PARTITION).cast(pyarrow.string())
    sources = pyarrow.compute.binary_join_element_wise(region, part, "/")
    is_placed = events.column(OFFSET).is_valid()
    return events.append_column(SOURCE, pyarrow.compute.if_else(is_placed, sources, None))


def _piece(name: str, column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Name, length and value of each event, null where the value is: no two different events are joined alike."""
    values = _bytes(column)
    length = pyarrow.compute.binary_length(values).cast(pyarrow.string()).cast(pyarrow.large_binary())
    return pyarrow.compute.binary_join_element_wise(_text(f"{name}="), length, values, _text(":"))


def _text(text: str) -> pyarrow.Scalar:
    return pyarrow.scalar(text.encode(), pyarrow.large_binary())


def _bytes(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    types, kind = pyarrow.types, column.type
    if types.is_dictionary(kind):
        return _bytes(column.cast(kind.value_type))
    if types.is_timestamp(kind):
        return _bytes(column.cast(pyarrow.timestamp("us", kind.tz)).cast(pyarrow.int64()))
    if types.is_nested(kind):
        told = [None if value is None else repr(value).encode() for value in column.to_pylist()]
        return pyarrow.chunked_array([pyarrow.array(told, pyarrow.large_binary())])
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return column.cast(pyarrow.large_binary())
    return column.cast(pyarrow.large_string()).cast(pyarrow.large_binary())
