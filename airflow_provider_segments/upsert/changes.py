"""Change capture: how an upsert table differs between two versions, at most one change a key.

A key that was changed several times in between counts once: what is told is the row before all of it and the row after.
Both are kept rows. One that ended in ``(since, to]`` was seen at ``since``, one that began there and is still valid is
seen at ``to``; a key that has both was updated. So only rows that changed are read, and the changes applied to the rows
at ``since`` give the rows at ``to``.

Versions are those of one table. A consumer whose version is gone, because it was rolled back, fell below the floor or
belonged to a table that was built anew, goes on from its *vector* instead: the source positions that it has read up to.
If events alone have made a table, its rows are a function of its positions, whatever the batches were. So a key has
changed since a vector if and only if the event of its newest row is not covered by it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy
import pyarrow
import pyarrow.compute

from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.core.replication.vectors import covers
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.upsert.record import NO_CUTOFF, UpsertRecord, require_record
from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION, SOURCE_COLUMNS
from airflow_provider_segments.upsert.events import BULK_PARTITION, Column
from airflow_provider_segments.upsert.keys import key_hashes
from airflow_provider_segments.upsert.reading import (
    newest_segment,
    read_ends,
    read_rows_at,
    read_segment,
    require_mark,
    segments_with_versions,
)
from airflow_provider_segments.upsert.source_read import SOURCE, with_sources
from airflow_provider_segments.upsert.validity import NO_ENDS

CHANGE = "$change"
"""The column that says of a row which :class:`Change` it is."""

Since = int | Mapping[str, int]
"""A version, or a vector: by source partition, the offset to read next."""

Rows = TypeVar("Rows")

HAS_BEGUN = "$hasBegun"
"""Of a changed row: see :class:`ChangedRows`."""

_NOTHING = numpy.empty(0, numpy.int64)


class Change(enum.StrEnum):
    """What became of a key. An update has a row of each of its two kinds; ``UPSERT`` is an insert or an update since a
    vector, which does not know which."""

    INSERT = "insert"
    BEFORE_UPDATE = "update_preimage"
    AFTER_UPDATE = "update_postimage"
    DELETE = "delete"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True)
class Changes(Generic[Rows]):
    """``rows`` are those that readers see, with the column ``$change``. ``to`` is the version that they lead to. It is
    what a consumer keeps together with what it makes of the rows, and gives as the next ``since``. ``vector`` are the
    source positions at it, for the case that the version is taken back; ``None`` when they do not tell its rows."""

    rows: Rows
    to: int
    vector: Mapping[str, int] | None


class ChangedRows(NamedTuple):
    """Rows of one segment, by number, that are seen at the end of a range of versions (``has_begun``) and not at its
    beginning, or the other way round."""

    segment: Segment
    rows: Column
    has_begun: bool


def read_changes(table: Table, *, since: Since, to: int | None = None) -> Changes[pyarrow.Table]:
    """What has changed in an upsert table after ``since``, up to version ``to`` or the newest.

    Since a version: inserts, updates (the row before and the row after) and deletes (the row before). Use
    :meth:`.Table.checkpoint` for the version of a time. Since a vector: upserts (the row after) and deletes (the delete
    record), each event at most once in all calls that go on from what the last one returned.

    Raises :class:`UpsertRefusedError`: the rules of :meth:`.UpsertRecord.check_mark` for either version,
    ``changes-backwards``, ``changes-behind`` (the table has not read as far as the vector), and ``changes-vector`` (its
    positions do not tell its rows). Raises :class:`SourceDataError` for a table without rows, which has no schema.
    """
    config = table.config().upsert
    with table.snapshot(mark=to, owner="change capture") as taken:
        record = check_since(taken, config, since)
        assert config is not None
        changed = changed_rows(taken, since) if isinstance(since, int) else _unread_rows(taken, config, since)
        images = _images(taken, changed)
        rows = paired(images, config) if isinstance(since, int) else _upserts(images, config)
        return Changes(rows, require_mark(taken), vector_of(taken, record, config))


def check_since(taken: Snapshot, config: UpsertConfig | None, since: Since) -> UpsertRecord:
    """The upsert record of the snapshot, whose changes can be read since then. Raises what :func:`read_changes`
    raises."""
    mark = require_mark(taken)
    assert taken.lineage is not None and config is not None
    record = require_record(taken.lineage)
    if isinstance(since, int):
        record.check_mark(since, taken.table)
        if since > mark:
            raise _refused("changes-backwards", f"version {since} comes after version {mark}", taken)
        return record
    own = vector_of(taken, record, config)
    if own is None:
        detail = f"the source positions of version {mark} do not tell its rows: it has rows of ordinary pushes, merged "
        raise _refused("changes-vector", detail + "rows or a retention", taken, "Read the table whole.")
    if not covers(own, {source: at for source, at in since.items() if at}):
        detail = f"version {mark} has not read all that the vector covers"
        raise _refused("changes-behind", detail, taken, "Ask again when ingestion has come as far.")
    return record


def vector_of(taken: Snapshot, record: UpsertRecord, config: UpsertConfig) -> Mapping[str, int] | None:
    """The source positions at the snapshot's mark, if they tell its rows: not those of merged rows, nor after a
    retention, nor beside ordinary pushes that may still be rolled back."""
    mark = require_mark(taken)
    bulks = [one for one in record.published if one.bulks and one.version <= mark]
    has_bulks = bulks or record.waiting or any(segment.key_partition < 0 for segment in taken.segments)
    if config.is_partial or record.cutoff_at(mark) != NO_CUTOFF or has_bulks:
        return None
    return record.positions_at(mark)


def changed_rows(taken: Snapshot, since: int) -> Iterator[ChangedRows]:
    """The rows of each segment that are seen at the snapshot's mark or at version ``since``, and not at both."""
    mark, ends = require_mark(taken), read_ends(taken)
    for segment, version in segments_with_versions(taken):
        own = ends.get(segment.name, NO_ENDS)
        if version > since:
            rows = numpy.flatnonzero(own.valid_mask(mark, segment.rows))
        else:
            rows = own.rows[(own.until > since) & (own.until <= mark)]
        if len(rows):
            yield ChangedRows(segment, rows, version > since)


def bulk_rows_refused(taken: Snapshot) -> UpsertRefusedError:
    """The error for rows of ordinary pushes that changes since a vector meet: no vector covers them."""
    detail = "it has rows of ordinary pushes, which have no place in a source"
    return _refused("changes-vector", detail, taken, "Read the table whole.")


def _unread_rows(taken: Snapshot, config: UpsertConfig, vector: Mapping[str, int]) -> Iterator[ChangedRows]:
    """The valid rows of each segment, delete records too, whose events the vector does not cover."""
    mark, ends = require_mark(taken), read_ends(taken)
    for segment in taken.segments:
        valid = numpy.flatnonzero(ends.get(segment.name, NO_ENDS).valid_mask(mark, segment.rows))
        places = read_segment(taken, segment, SOURCE_COLUMNS).take(pyarrow.array(valid))
        partitions = places.column(PARTITION)
        if partitions.null_count or pyarrow.compute.any(pyarrow.compute.equal(partitions, BULK_PARTITION)).as_py():
            raise bulk_rows_refused(taken)
        sources = with_sources(places, config).column(SOURCE).combine_chunks().dictionary_encode()
        read_up_to = numpy.array([vector.get(source, 0) for source in sources.dictionary.to_pylist()], numpy.int64)
        is_unread = places.column(OFFSET).to_numpy() >= read_up_to[sources.indices.to_numpy()]
        if is_unread.any():
            yield ChangedRows(segment, valid[is_unread], has_begun=True)


def _images(taken: Snapshot, changed: Iterable[ChangedRows]) -> pyarrow.Table:
    """The rows as readers see them, delete records too."""
    newest = newest_segment(taken)
    parts: list[pyarrow.Table] = []
    for segment, numbers, has_begun in (ChangedRows(newest, _NOTHING, has_begun=False), *changed):
        rows = read_rows_at(taken, segment, numbers)
        rows = rows.drop_columns([name for name in SOURCE_COLUMNS if name in rows.column_names])
        parts.append(rows.append_column(HAS_BEGUN, pyarrow.repeat(has_begun, rows.num_rows)))
    return pyarrow.concat_tables(parts, promote_options="permissive")


def paired(images: pyarrow.Table, config: UpsertConfig) -> pyarrow.Table:
    """The changes of rows before and after. A key that a delete record has taken away has no row after."""
    images = images.filter(pyarrow.compute.invert(_is_delete(images, config)))
    is_pair = _appears_twice(*key_hashes(images, config.primary_key))
    kinds = numpy.array([[Change.DELETE, Change.INSERT], [Change.BEFORE_UPDATE, Change.AFTER_UPDATE]], object)
    has_begun = images.column(HAS_BEGUN).to_numpy()
    return _told(images, pyarrow.array(kinds[is_pair.astype(int), has_begun.astype(int)], pyarrow.string()))


def _upserts(images: pyarrow.Table, config: UpsertConfig) -> pyarrow.Table:
    kinds = pyarrow.compute.if_else(_is_delete(images, config), str(Change.DELETE), str(Change.UPSERT))
    return _told(images, kinds)


def _told(images: pyarrow.Table, kinds: pyarrow.Array) -> pyarrow.Table:
    return images.drop_columns([HAS_BEGUN]).append_column(CHANGE, kinds)


def _is_delete(rows: pyarrow.Table, config: UpsertConfig) -> pyarrow.Array:
    if config.deletes is None or config.deletes not in rows.column_names:
        return pyarrow.repeat(False, rows.num_rows)
    return rows.column(config.deletes).fill_null(False)


def _appears_twice(high: Column, low: Column) -> Column:
    """For each key whether it is there twice: once before and once after."""
    order = numpy.lexsort((low, high))
    high, low = high[order], low[order]
    is_same = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    found = numpy.zeros(len(order), bool)
    found[order[1:][is_same]] = True
    found[order[:-1][is_same]] = True
    return found


def _refused(rule: str, detail: str, taken: Snapshot, hint: str = "") -> UpsertRefusedError:
    return UpsertRefusedError(rule, f"changes refused: {detail}", table=taken.table, hint=hint)
