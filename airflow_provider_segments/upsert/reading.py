"""Upsert tables at a mark, through Arrow and DuckDB: every reader at one mark sees the same one row a key."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from airflow_provider_segments.core.model.interval import Time
from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.core.upsert.view import segment_versions
from airflow_provider_segments.exceptions import SnapshotRefusedError, SourceDataError
from airflow_provider_segments.upsert.columns import SOURCE_COLUMNS, VALID_FROM, VALID_UNTIL
from airflow_provider_segments.upsert.events import Column
from airflow_provider_segments.upsert.validity import NO_ENDS, RowEnds, ends_by_segment, with_versions

if TYPE_CHECKING:
    import duckdb

    from airflow_provider_segments.core.table import Table


def read_rows(
    table: Table,
    *,
    mark: int | None = None,
    checkpoint: Time | None = None,
    region: str | None = None,
    columns: Sequence[str] | None = None,
    with_validity: bool = False,
) -> pyarrow.Table:
    """The rows of an upsert table at version ``mark``, at the last heartbeat of ``region`` by the time ``checkpoint``
    (:meth:`.Table.checkpoint`), or at the newest version: one a key, and none of deleted keys.

    ``with_validity`` gives all rows that are kept, with ``$validFrom`` and ``$validUntil`` (both null: never visible)
    and where each was in its input. The snapshot is leased while it is read. Raises :class:`UpsertRefusedError` for a
    mark or checkpoint that cannot be read, and :class:`SourceDataError` for a table without rows, which has no schema.
    """
    deletes = _deletes(table)
    with table.snapshot(mark=table.mark_at(mark, checkpoint, region)) as taken:
        if with_validity:
            return _whole(table.name, [*rows_with_validity(taken, columns)])
        return _whole(table.name, [*valid_rows(taken, columns, deletes)])


def count_rows(
    table: Table, *, mark: int | None = None, checkpoint: Time | None = None, region: str | None = None
) -> int:
    """How many rows :func:`read_rows` would give, without reading them: from the registry and the update logs, and of a
    table with delete records from the column that tells them. Raises what :func:`read_rows` raises, but counts no rows
    in a table without any."""
    deletes = _deletes(table)
    with table.snapshot(mark=table.mark_at(mark, checkpoint, region)) as taken:
        if deletes is not None:
            return sum(rows.num_rows for rows in valid_rows(taken, [deletes], deletes))
        read_at, ends = require_mark(taken), read_ends(taken)
        dead = (ends.get(segment.name, NO_ENDS).dead_rows(read_at) for segment in taken.segments)
        return taken.rows - sum(map(len, dead))


def to_duckdb(
    connection: duckdb.DuckDBPyConnection,
    table: Table,
    *,
    view: str | None = None,
    mark: int | None = None,
    checkpoint: Time | None = None,
    region: str | None = None,
) -> int:
    """Make ``view`` (by default the table's name) in ``connection``, with the rows at the mark that :func:`read_rows`
    would read; returns the mark. The rows are in memory: every query of the connection sees the same ones."""
    deletes = _deletes(table)
    with table.snapshot(mark=table.mark_at(mark, checkpoint, region)) as taken:
        rows = _whole(table.name, [*valid_rows(taken, None, deletes)])
        read_at = require_mark(taken)
    connection.register(view or table.name, rows)
    return read_at


def valid_rows(taken: Snapshot, columns: Sequence[str] | None, deletes: str | None) -> Iterator[pyarrow.Table]:
    """The rows of each segment that are valid at the snapshot's mark, less delete records."""
    mark, ends = require_mark(taken), read_ends(taken)
    wanted = None if columns is None else list(dict.fromkeys([*columns, *([deletes] if deletes else [])]))
    for segment in taken.segments:
        rows = read_segment(taken, segment, wanted)
        valid = ends.get(segment.name, NO_ENDS).valid_mask(mark, segment.rows)
        if not valid.all():
            rows = rows.filter(pyarrow.array(valid))
        if deletes is not None and deletes in rows.column_names:
            rows = rows.filter(pyarrow.compute.invert(rows.column(deletes).fill_null(False)))
        kept = [name for name in rows.column_names if name not in SOURCE_COLUMNS] if columns is None else columns
        yield rows.select(list(kept))


def rows_with_validity(taken: Snapshot, columns: Sequence[str] | None = None) -> Iterator[pyarrow.Table]:
    """All rows of each segment, with the versions between which each is visible."""
    mark, ends = require_mark(taken), read_ends(taken)
    for segment, version in segments_with_versions(taken):
        rows = read_segment(taken, segment, columns)
        start, until = ends.get(segment.name, NO_ENDS).intervals(version, segment.rows)
        later = pyarrow.compute.greater(until, mark)
        until = pyarrow.compute.if_else(later, pyarrow.scalar(None, pyarrow.int64()), until)
        yield rows.append_column(VALID_FROM, start).append_column(VALID_UNTIL, until)


def segments_with_versions(taken: Snapshot) -> Iterator[tuple[Segment, int]]:
    """The snapshot's segments, each with the version that its rows begin with: see
    :func:`.upsert.view.segment_versions`."""
    assert taken.lineage is not None
    segments = taken.segments
    versions = segment_versions(require_record(taken.lineage), {one.entry_id for one in segments})
    return ((segment, versions[segment.entry_id]) for segment in segments)


def newest_segment(taken: Snapshot) -> Segment:
    """The segment that has the table's schema. Raises :class:`SourceDataError` when there is none."""
    if not len(taken):
        raise SourceDataError(f"table {taken.table!r} has no visible segments, and so no schema")
    return max(taken.segments, key=lambda segment: (segment.born, segment.name))


def require_mark(taken: Snapshot) -> int:
    """The mark that a snapshot was taken at. Raises :class:`SnapshotRefusedError` (``no-mark``) for one that has none:
    without a mark nobody knows which of its rows are valid, and all of them would be wrong."""
    if taken.mark is None:
        raise SnapshotRefusedError(
            "no-mark",
            "the snapshot has no mark, so nobody can tell which of its rows are valid",
            table=taken.table,
            hint="Take it from an upsert table with table.snapshot().",
        )
    return taken.mark


class UpdateLogs:
    """The update logs of one table, each read once, by whatever snapshots: a log never changes, nor does the version of
    its entry."""

    def __init__(self) -> None:
        self._logs: dict[tuple[str, int], pyarrow.Table] = {}

    def ends(self, taken: Snapshot, names: Collection[str] | None = None) -> dict[str, RowEnds]:
        """The ends of rows that the snapshot's update logs tell, all or those of ``names``, by segment."""
        require_mark(taken)
        assert taken.lineage is not None
        record = require_record(taken.lineage)
        logs, versions = taken.logs(), record.versions()
        wanted = [log for log in logs.segments if names is None or log.name in names]
        versioned = [(versions.get(log.entry_id, 0), log) for log in wanted]
        return ends_by_segment(((version, self._read(logs, log, version)) for version, log in versioned), record.voids)

    def _read(self, logs: Snapshot, log: Segment, version: int) -> pyarrow.Table:
        if (log.name, version) not in self._logs:
            self._logs[log.name, version] = with_versions(version, _parquet(logs, log, None))
        return self._logs[log.name, version]


def read_ends(taken: Snapshot) -> dict[str, RowEnds]:
    """The ends of rows that all update logs of the snapshot tell, by segment."""
    return UpdateLogs().ends(taken)


def read_segment(taken: Snapshot, segment: Segment, columns: Sequence[str] | None) -> pyarrow.Table:
    """All rows of one segment of the snapshot, valid or not, in the file's order."""
    return _parquet(taken, segment, columns)


def read_rows_at(taken: Snapshot, segment: Segment, rows: Column) -> pyarrow.Table:
    """The rows with these numbers, in this order. Only the row groups that they are in are read, one at a time."""
    return read_object_rows(taken.store_of(segment.tiered), segment.key, rows)


def read_object_rows(store: ObjectStore, key: str, rows: Column) -> pyarrow.Table:
    """:func:`read_rows_at` of an object."""
    with store.open(key) as file:
        opened = pyarrow.parquet.ParquetFile(file)
        if not len(rows):
            return opened.schema_arrow.remove_metadata().empty_table()
        sizes = [opened.metadata.row_group(number).num_rows for number in range(opened.num_row_groups)]
        begins = numpy.cumsum([0, *sizes])
        group_of = numpy.searchsorted(begins, rows, side="right") - 1
        groups = numpy.unique(group_of)
        parts = [
            opened.read_row_group(number).take(pyarrow.array(rows[group_of == number] - begins[number]))
            for number in groups.tolist()
        ]
    order = numpy.concatenate([numpy.flatnonzero(group_of == number) for number in groups])
    found = pyarrow.concat_tables(parts).take(pyarrow.array(numpy.argsort(order)))
    return found.replace_schema_metadata(None)


def _parquet(taken: Snapshot, segment: Segment, columns: Sequence[str] | None) -> pyarrow.Table:
    with taken.store_of(segment.tiered).open(segment.key) as file:
        opened = pyarrow.parquet.ParquetFile(file)
        present = None if columns is None else [name for name in columns if name in opened.schema_arrow.names]
        rows = opened.read(columns=present).replace_schema_metadata(None)
    if columns is None:
        return rows
    for name in columns:
        if name not in rows.column_names:  # an older segment has no such column
            rows = rows.append_column(name, pyarrow.nulls(rows.num_rows))
    return rows


def _deletes(table: Table) -> str | None:
    config = table.config().upsert
    return None if config is None else config.deletes


def _whole(name: str, parts: list[Any]) -> pyarrow.Table:
    if not parts:
        raise SourceDataError(f"table {name!r} has no visible segments, and so no schema")
    return pyarrow.concat_tables(parts, promote_options="permissive")
