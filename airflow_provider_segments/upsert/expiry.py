"""Retention of an upsert table: rows that are older than the cutoff end, and older events are not taken any more.

Both is one version. So readers at earlier marks go on to see those rows, a rollback brings them back together with the
cutoff from before, and compaction drops them as it drops every row that has ended. Delete records end likewise: until
then they keep older events of their keys away.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy
import pyarrow

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.model.config import DAY_MS, TableConfig
from airflow_provider_segments.core.model.names import DEFAULT_STAGER
from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.upsert.record import Publication, UpsertRecord, require_record
from airflow_provider_segments.exceptions import ContentionError, EndRefusedError, OutcomeUnknownError, SegmentsError
from airflow_provider_segments.upsert.columns import comparison_values
from airflow_provider_segments.upsert.events import DELETE, Column
from airflow_provider_segments.upsert.keys import key_hashes, key_partitions
from airflow_provider_segments.upsert.reading import read_ends, read_segment
from airflow_provider_segments.upsert.rollback import INGESTION
from airflow_provider_segments.upsert.validity import NO_ENDS, log_of
from airflow_provider_segments.upsert.writing import SegmentWriter

IDENTITY = f"{INGESTION}/expiry/"
"""No ingestor has an empty name, so none takes this for its own."""

_ATTEMPTS = 20
_AGAIN = ("upsert-head", "upsert-cutoff")
_MS = {"EPOCH_SECONDS": (1, 1000), "EPOCH_MILLIS": (1, 1), "EPOCH_MICROS": (1000, 1)}


@dataclass(frozen=True, slots=True)
class Expired:
    """What an expiry did: ``rows`` have ended with ``version``. ``entry_id`` is empty when the cutoff stood there."""

    version: int
    cutoff: int
    entry_id: str = ""
    rows: int = 0


def expire(table: Table, cutoff: int) -> Expired:
    """End all rows whose comparison value is below ``cutoff``, and take no such events any more.

    It can run beside ingestion. The cutoff never falls, except by a rollback. Raises :class:`UpsertRefusedError` for a
    table that is no upsert table, what ``start``, ``stage`` and ``end`` raise, storage errors, and
    :class:`ContentionError` when ingestion was faster each time; then nothing has changed.
    """
    _take_over(table)
    record = require_record(table.lineage())
    if cutoff <= record.cutoff:
        return Expired(record.clock, record.cutoff)
    started = table.start((), identity=IDENTITY + table.store.clock.new_id(), stager=DEFAULT_STAGER)
    assert started.ticket is not None
    try:
        return _published(table, started.ticket, cutoff)
    except OutcomeUnknownError:
        raise
    except SegmentsError:
        _abort(table, started.entry_id)
        raise


def retention_cutoff(table: Table) -> int | None:
    """The cutoff that the table's config asks for now; ``None`` when it sets no time retention, or there are no rows
    yet."""
    config = table.config()
    if config.time_retention_ms is None or config.upsert is None:
        return None
    before_ms = table.store.clock.now_ms() - config.time_retention_ms
    if config.time_format in _MS:
        times, divisor = _MS[config.time_format]
        return -(-before_ms * times // divisor)
    with table.snapshot() as taken:
        if not len(taken):
            return None
        column = read_segment(taken, taken.segments[0], [config.upsert.comparison_column]).column(0)
    return -(-before_ms // DAY_MS) if pyarrow.types.is_date32(column.type) else before_ms * 1000


def _published(table: Table, ticket: StageTicket, cutoff: int) -> Expired:
    for _ in range(_ATTEMPTS):
        try:
            return _attempt(table, ticket, cutoff)
        except EndRefusedError as refused:
            if refused.rule not in _AGAIN:
                raise
            ticket = table.open_stage(ticket.entry_id)  # the objects of this one are written
    raise ContentionError(f"table {table.name!r}: its key partitions changed during all {_ATTEMPTS} attempts")


def _attempt(table: Table, ticket: StageTicket, cutoff: int) -> Expired:
    """One try; refused by one of ``_AGAIN`` when a key partition or the cutoff has changed meanwhile."""
    entry_id = ticket.entry_id
    config = table.config()
    with table.snapshot(owner="upsert expiry") as taken:
        assert taken.lineage is not None
        record = require_record(taken.lineage)
        if cutoff <= record.cutoff:
            _abort(table, entry_id)
            return Expired(record.clock, record.cutoff)
        ended, partitions = _old_rows(taken, config, cutoff)
    rows = sum(len(numbers) for _, numbers in ended)
    with tempfile.TemporaryDirectory(prefix="segments-upsert-") as folder:
        writer = SegmentWriter(config, ticket, table.storage, Path(folder))
        staged = [writer.update_log(_log(ended))] if rows else []
    switch = _publication(table, entry_id, record, partitions, cutoff)
    table.publish(ticket, staged, allow_empty=True, switch=switch)
    version = require_record(table.lineage()).versions().get(entry_id, record.clock + 1)
    return Expired(version, cutoff, entry_id, rows)


def _publication(table: Table, entry_id: str, record: UpsertRecord, partitions: set[int], cutoff: int) -> Publication:
    config = table.config().upsert
    assert config is not None
    return Publication(
        entry_id=entry_id,
        heads=dict(enumerate(record.heads)),  # an old event may have come to any of them since
        changed=partitions,
        cutoff=record.cutoff,
        raised_cutoff=cutoff,
        keep_versions=config.keep_versions,
        at_ms=table.store.clock.now_ms(),
    )


def _old_rows(taken: Snapshot, config: TableConfig, cutoff: int) -> tuple[list[tuple[str, Column]], set[int]]:
    """Of each segment the rows that are valid and too old, and the key partitions that they belong to."""
    assert taken.mark is not None
    ends = read_ends(taken)
    found: list[tuple[str, Column]] = []
    partitions: set[int] = set()
    for segment in taken.segments:
        numbers, those = _old_rows_of(taken, segment, config, cutoff, ends.get(segment.name, NO_ENDS).rows)
        if len(numbers):
            found.append((segment.name, numbers))
            partitions |= those
    return found, partitions


def _old_rows_of(
    taken: Snapshot, segment: Segment, config: TableConfig, cutoff: int, ended: Column
) -> tuple[Column, set[int]]:
    upsert = config.upsert
    assert upsert is not None
    is_any = segment.key_partition < 0
    rows = read_segment(taken, segment, [upsert.comparison_column, *(upsert.primary_key if is_any else ())])
    old = comparison_values(rows, upsert.comparison_column) < cutoff
    old[ended] = False
    numbers = numpy.flatnonzero(old)
    if not is_any or not len(numbers):
        return numbers, {segment.key_partition}
    _, low = key_hashes(rows.take(pyarrow.array(numbers)), upsert.primary_key)
    return numbers, set(key_partitions(low, upsert.key_partitions).tolist())


def _log(ended: list[tuple[str, Column]]) -> pyarrow.Table:
    rows = numpy.concatenate([numbers for _, numbers in ended])
    names = numpy.concatenate([numpy.full(len(numbers), name, object) for name, numbers in ended])
    return log_of(
        {
            "segment": pyarrow.array(names, pyarrow.string()).dictionary_encode(),
            "row": rows,
            "kind": numpy.full(len(rows), DELETE, numpy.uint8),
            "version": pyarrow.nulls(len(rows), pyarrow.int64()),
        }
    )


def _take_over(table: Table) -> None:
    """Revert what an expiry that was killed has left."""
    running = [entry.entry_id for entry in table.lineage().in_state(EntryState.IN_PROGRESS)]
    for entry_id, stored in table.context.records.guards(running).items():
        if (stored.guard.identity or "").startswith(IDENTITY):
            _abort(table, entry_id)


def _abort(table: Table, entry_id: str) -> None:
    with suppress(SegmentsError):
        table.abort(entry_id)
