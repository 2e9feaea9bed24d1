"""Key partitions of one table, each with its key store: what a batch is resolved against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import pyarrow

from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.upsert.record import Head, require_record
from airflow_provider_segments.upsert.columns import SOURCE_COLUMNS, BulkPlace, event_columns, events_of
from airflow_provider_segments.upsert.events import IngestionUpsertEvents
from airflow_provider_segments.upsert.key_store import KeyStore, SortedRuns, cache_folder
from airflow_provider_segments.upsert.keys import key_partitions
from airflow_provider_segments.upsert.reading import read_ends, read_segment, require_mark
from airflow_provider_segments.upsert.validity import NO_ENDS, RowEnds


@dataclass(slots=True)
class KeyPartitions:
    """The key stores of a table below ``root``, which no other process uses."""

    table: Table
    config: UpsertConfig
    root: Path
    _stores: dict[int, SortedRuns] = field(default_factory=dict)

    def at(self, partition: int, head: Head) -> KeyStore | None:
        """The key store of a key partition in the state of ``head``; ``None`` when the partition has moved on from
        there, so that a publish under that head would be refused."""
        store = self._stores.setdefault(partition, SortedRuns(cache_folder(self.root, self.table.name, partition)))
        return store if store.open(head) or self._rebuild(store, partition, head) else None

    def stores(self) -> Iterator[tuple[int, SortedRuns]]:
        """The key stores that were used so far."""
        return iter(self._stores.items())

    def _rebuild(self, store: KeyStore, partition: int, head: Head) -> bool:
        if head == Head():
            store.rebuild(head, IngestionUpsertEvents.of(), ())
            return True
        with self.table.snapshot() as taken:
            assert taken.lineage is not None
            if require_record(taken.lineage).heads[partition] != head:
                return False
            names, rows = newest_rows(taken, partition, self.config)
        store.rebuild(head, rows, names)
        return True


def newest_rows(taken: Snapshot, partition: int, config: UpsertConfig) -> tuple[list[str], IngestionUpsertEvents]:
    """The newest row of each key of a key partition, delete records included: without those a late event would bring
    a deleted key back. Their segment numbers are places in the list of names."""
    mark, ends = require_mark(taken), read_ends(taken)
    names: list[str] = []
    found = [IngestionUpsertEvents.of()]
    for segment in taken.segments:
        if segment.key_partition not in (partition, -1):
            continue
        rows = _valid(segment_events(taken, segment, config, len(names)), ends.get(segment.name, NO_ENDS), mark)
        if segment.key_partition == -1:
            rows = rows.take(key_partitions(rows.low, config.key_partitions) == partition)
        names.append(segment.name)
        found.append(rows)
    return names, IngestionUpsertEvents.concat(found)


def segment_events(taken: Snapshot, segment: Segment, config: UpsertConfig, number: int) -> IngestionUpsertEvents:
    """An event for each row of a segment, which gets that number."""
    rows = read_segment(taken, segment, [*event_columns(config), *SOURCE_COLUMNS])
    absent = [name for name in SOURCE_COLUMNS if pyarrow.types.is_null(rows.column(name).type)]
    return events_of(rows.drop_columns(absent), config, number, BulkPlace(segment.born))


def _valid(rows: IngestionUpsertEvents, ends: RowEnds, mark: int) -> IngestionUpsertEvents:
    kept = numpy.ones(len(rows), bool)
    kept[ends.dead_rows(mark)] = False
    return rows.take(kept)
