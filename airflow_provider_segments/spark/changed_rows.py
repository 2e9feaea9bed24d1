"""The changed rows of objects, as the tasks of Spark read them: those rows and no others, through Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy
import pyarrow

from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.upsert.changes import HAS_BEGUN, ChangedRows
from airflow_provider_segments.upsert.reading import read_object_rows

_ROWS_AT_A_TIME = 262_144  # as many as a row group has, at most


class Work(NamedTuple):
    """Changed rows of one object: its key, whether it is in tiered storage, the numbers of the rows (64-bit) and
    whether they have begun."""

    key: str
    is_tiered: bool
    rows: bytes
    has_begun: bool


def work_of(changed: Iterable[ChangedRows]) -> Iterator[Work]:
    """The work of reading changed rows, in parts that fit a task's memory."""
    for segment, rows, has_begun in changed:
        for first in range(0, len(rows), _ROWS_AT_A_TIME):
            numbers = rows[first : first + _ROWS_AT_A_TIME].tobytes()
            yield Work(segment.key, segment.tiered is not None, numbers, has_begun)


def read_work(work: Work, storage: ObjectStore, tiered: ObjectStore | None, schema: pyarrow.Schema) -> pyarrow.Table:
    """Those rows with the columns of ``schema``, one of which says whether they have begun."""
    store = tiered if work.is_tiered and tiered is not None else storage
    rows = read_object_rows(store, work.key, numpy.frombuffer(work.rows, numpy.int64))
    rows = rows.append_column(HAS_BEGUN, pyarrow.repeat(work.has_begun, rows.num_rows))
    return pyarrow.Table.from_arrays([_column(rows, field) for field in schema], schema=schema)


def _column(rows: pyarrow.Table, field: pyarrow.Field) -> pyarrow.ChunkedArray:
    if field.name not in rows.column_names:  # an older segment has no such column
        return pyarrow.chunked_array([pyarrow.nulls(rows.num_rows, field.type)])
    return rows.column(field.name).cast(field.type)
