"""Ingestion of events with heartbeats: a version ends at each heartbeat, in all source partitions of its region.

Events behind a heartbeat that is not in all of them yet are held until it is, or until one of them has been silent for
too long. Whoever reads the source keeps what is held, and gives it again with the next events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy
import pyarrow

from airflow_provider_segments.core.replication.barrier import Cut, Placed, next_cut
from airflow_provider_segments.core.replication.heartbeat import SILENT_AFTER, decode
from airflow_provider_segments.core.replication.stream import VersionStream
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.exceptions import CorruptRecordError, SourceDataError
from airflow_provider_segments.upsert.columns import OFFSET
from airflow_provider_segments.upsert.events import Column
from airflow_provider_segments.upsert.ingest import IngestedBatch, UpsertIngestor
from airflow_provider_segments.upsert.source_read import HEARTBEAT, SOURCE, with_sources

_SINCE = "$heldSince"


def ingest_to_barriers(
    ingestor: UpsertIngestor, events: pyarrow.Table, held: pyarrow.Table | None = None
) -> tuple[list[IngestedBatch], pyarrow.Table | None]:
    """Make versions of ``held`` and ``events``, one more for each heartbeat; returns them, and what is held now.

    The events of each source partition come in the order of their offsets. Held events count as unread: give them
    again, also to another process. A table that expects no heartbeats holds nothing. Raises what
    :meth:`.UpsertIngestor.ingest` raises, and :class:`SourceDataError` for a heartbeat that cannot be read; versions
    that were made before stay.
    """
    interval = ingestor.upsert.heartbeat_ms
    if interval is None:
        return [ingestor.ingest(events)], None
    now_ms = ingestor.table.store.clock.now_ms()
    if HEARTBEAT not in events.column_names:
        events = events.append_column(HEARTBEAT, pyarrow.nulls(events.num_rows, pyarrow.string()))
    left = with_sources(events, ingestor.upsert).append_column(_SINCE, pyarrow.repeat(now_ms, events.num_rows))
    if held is not None:
        left = pyarrow.concat_tables([held, left], promote_options="default")
    done: list[IngestedBatch] = []
    while True:
        record = require_record(ingestor.table.lineage())
        waiting = _Waiting.of(left)
        cut = waiting.cut(record.stream or VersionStream(), now_ms - SILENT_AFTER * interval)
        is_now = _below(left, cut)
        batch = left.filter(pyarrow.array(is_now)).drop_columns([SOURCE, _SINCE])
        left = left.filter(pyarrow.array(~is_now))
        if batch.num_rows or not done:
            done.append(ingestor.ingest(batch, base=record.positions, heartbeats=cut.taken))
        if not cut.taken:
            return done, left if left.num_rows else None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Heartbeats among events that were not ingested yet, and since when each waits, by source partition and offset."""

    queues: Mapping[str, Mapping[int, list[Placed]]]
    since: Mapping[tuple[str, int, int], int]

    @classmethod
    def of(cls, events: pyarrow.Table) -> _Waiting:
        queues: dict[str, dict[int, list[Placed]]] = {}
        since: dict[tuple[str, int, int], int] = {}
        beats = events.filter(events.column(HEARTBEAT).is_valid()).select([SOURCE, OFFSET, HEARTBEAT, _SINCE])
        for row in beats.sort_by(OFFSET).to_pylist():
            source, offset = row[SOURCE], row[OFFSET]
            region, _, part = source.rpartition("/")
            try:
                heartbeat = decode(row[HEARTBEAT].encode(), f"offset {offset} of source partition {source!r}")
            except CorruptRecordError as error:
                raise SourceDataError(str(error)) from error
            queues.setdefault(region, {}).setdefault(int(part), []).append(Placed(offset, heartbeat))
            since[region, int(part), offset] = row[_SINCE]
        return cls(queues, since)

    def cut(self, stream: VersionStream, patient_ms: int) -> Cut:
        """The next cut; a heartbeat that waits since before ``patient_ms`` is taken without the missing partitions."""
        return next_cut(
            self.queues,
            stream.last(),
            lambda region, part, placed: self.since[region, part, placed.offset] < patient_ms,
        )


def _below(events: pyarrow.Table, cut: Cut) -> Column:
    """Which events a version may take."""
    sources, offsets = events.column(SOURCE).to_numpy(), events.column(OFFSET).fill_null(0).to_numpy()
    taken = numpy.ones(events.num_rows, bool)
    for (region, part), limit in cut.limits.items():
        taken &= (sources != f"{region}/{part}") | (offsets < limit)
    return taken
