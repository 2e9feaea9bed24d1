"""The executor's half of a compaction: the segments of one group become new, larger (or smaller) ones.

Everything happens in one Python worker, with Arrow: the inputs are small and sorted already, so a shuffle through the
JVM would cost several times the work itself. Before a file is decoded, its footer says how much memory it takes; a
group that is too large for a worker is left to Spark's own sort (:mod:`.compact`).

Nothing is lost on the way: what was written is read back, and its rows are counted and hashed, each row as a whole and
in no order, and compared with what was to be written.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from airflow_provider_segments.arrow.times import arrow_times
from airflow_provider_segments.arrow.writing import TaskWriter, WriteJob, in_utc, local_dir, row_order
from airflow_provider_segments.core.model.segment import StagedSegment
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.exceptions import SegmentsError, SourceDataError
from airflow_provider_segments.spark.schema import merged_schema

_WRITERS = 4  # threads that sort out, compress and upload outputs: each waits for Python's lock and the disk, too
_READERS = 8  # threads that fetch inputs from a store that takes its time for each
_AT_ONCE_S = 0.005  # a store that has a file in less needs no more threads than can decode
_DECODERS = 2  # threads that decode inputs; more of them wait for Python's lock
_MOST_VALUES = 4096  # of a text column that stays a dictionary from input to output
_WHOLE_BYTES = 1 << 20
_PATTERN = set("*?[]{}")  # of a path that DuckDB would take for several
_ROW = "__segments_row"


class MergeMismatchError(SegmentsError, ValueError):
    """What was written is not what was to be written: nothing of it may become visible."""


@dataclass(frozen=True, slots=True)
class MergeInput:
    """One segment to merge: its key, whether it is in tiered storage, and in which parts of time ``[start, end)`` (UTC
    milliseconds) its rows are visible; everywhere when there are none."""

    key: str
    tiered: bool = False
    visible_in: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MergeJob:
    """Everything the worker needs. ``memory_bytes`` bounds the decoded size of the inputs; ``inputs`` are in the order
    in which their rows were written first, which decides what a deduplication keeps."""

    write: WriteJob
    inputs: tuple[MergeInput, ...]
    time_column: str | None
    time_format: str
    deduplicate: tuple[str, ...]
    rollup: tuple[tuple[str, str], ...]
    memory_bytes: int
    tiered: ObjectStore | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of a group: the new segments, and the rows that were read. ``too_large`` says instead why the worker
    did not take it on."""

    segments: tuple[StagedSegment, ...] = ()
    rows_in: int = 0
    too_large: str = ""


def merge(job: MergeJob, task_attempt: int) -> Merged:
    """Read the inputs, sort, write, check. Raises :class:`MergeMismatchError`, :class:`SourceDataError`, and storage
    errors."""
    parts = _Inputs(job).read()
    if not parts:
        return Merged(too_large=f"too many bytes decoded: a worker may hold {job.memory_bytes:,}")
    footer = parts[-1].schema.metadata
    if not _cut(job, parts):
        return _unread_times(job)
    data = _one_table(parts)
    parts.clear()
    plain = _plain_schema(data.schema)
    write = replace(job.write, columns=tuple(plain.names), spark_schema=merged_schema(plain, footer))
    job = replace(job, write=write)
    rows_in = data.num_rows
    times = None
    if job.time_column is not None:
        times = arrow_times(data.column(job.time_column), job.time_format)
        if times is None:
            return _unread_times(job)
    data, times = _joined(job, data, times)
    return Merged(tuple(_written(job, data, times, task_attempt)), rows_in)


def _unread_times(job: MergeJob) -> Merged:
    return Merged(too_large=f"times of format {job.time_format} are Spark's to read")


def _cut(job: MergeJob, parts: list[pyarrow.Table]) -> bool:
    """Leave out the rows that newer versions hide; false where the times are not Arrow's to read."""
    for at, one in enumerate(job.inputs):
        if one.visible_in and job.time_column is not None:
            times = arrow_times(parts[at].column(job.time_column), job.time_format)
            if times is None:
                return False
            parts[at] = parts[at].filter(visible_rows(times, one.visible_in))
    return True


def visible_rows(times: pyarrow.ChunkedArray, visible_in: Sequence[tuple[int, int]]) -> pyarrow.Array:
    """Which rows are in one of those parts of time: booleans. ``times`` are as :func:`arrow_times` has them."""
    ms = times.to_numpy()
    return pyarrow.array(numpy.logical_or.reduce([(ms >= start) & (ms < end) for start, end in visible_in]))


def fingerprint_of(data: pyarrow.Table) -> tuple[int, int]:
    """Rows and a sum of row hashes: equal for the same rows in any order, and for no other rows but by chance."""
    with _database(os.getpid()).cursor() as database:
        names = [f"c{number}" for number in range(data.num_columns)]
        database.register("data", data.rename_columns(names))
        return _fingerprint(database, "data", names)


def file_fingerprint(path: Path) -> tuple[int, int]:
    """:func:`fingerprint_of` the file's rows, as a reader finds them.

    DuckDB reads and hashes them a piece at a time, where its types for the file's columns are those it has for
    Arrow's: so the file is read by other code than has written it. Arrow reads the others.
    """
    schema = pyarrow.parquet.read_schema(path)
    if not all(_is_plain(kind) for kind in schema.types) or _PATTERN & set(str(path)):
        read = pyarrow.parquet.read_table(path, partitioning=None)
        return fingerprint_of(in_utc(read.replace_schema_metadata(None)))
    with _database(os.getpid()).cursor() as database:
        names = [f"c{number}" for number in range(len(schema))]
        name = str(path).replace("'", "''")
        return _fingerprint(
            database, f"read_parquet('{name}', hive_partitioning = false) AS data({', '.join(names)})", names
        )


@functools.cache
def _database(_: int) -> Any:
    """This process's DuckDB, which holds no data: opening one costs as much as hashing half a million rows. A query
    runs in the thread that asks. A forked process has its own, and never closes its parent's: that would hang."""
    import duckdb

    database = duckdb.connect(config={"threads": 1, "preserve_insertion_order": False})
    with contextlib.suppress(duckdb.CatalogException):  # before 1.3 it kept no files
        database.execute("SET enable_external_file_cache = false")  # what is checked is what is in the file
    return database


def _fingerprint(database: Any, rows: str, names: Sequence[str]) -> tuple[int, int]:
    query = f"SELECT count(*), sum(hash({', '.join(names)})::HUGEINT) FROM {rows}"  # noqa: S608
    database.execute("SET enable_progress_bar = false")
    found = database.execute(query).fetchone()
    assert found is not None
    return int(found[0]), int(found[1] or 0)


def _is_plain(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or kind in (pyarrow.float32(), pyarrow.float64(), pyarrow.string(), pyarrow.binary(), pyarrow.date32())
        or (types.is_timestamp(kind) and kind.unit == "us")
    )


class _Inputs:
    """Fetches and decodes all inputs, each in one go, so that its bytes are let go before the next ones come."""

    def __init__(self, job: MergeJob) -> None:
        self._job = job
        self._decoding = threading.Semaphore(_DECODERS)
        self._lock = threading.Lock()
        self._size = 0
        self._dictionaries: list[str] = []

    def read(self) -> list[pyarrow.Table]:
        """The rows of each input; nothing as soon as it is clear that together they are too large."""
        began = time.perf_counter()
        first = self._opened(self._job.inputs[0])
        threads = _DECODERS if time.perf_counter() - began < _AT_ONCE_S else _READERS
        with first:
            self._dictionaries = _dictionaries(self._job, first)
        with ThreadPoolExecutor(threads) as readers:
            found = list(readers.map(self._read, self._job.inputs))
        return [one for one in found if one is not None] if self._size <= self._job.memory_bytes else []

    def _read(self, one: MergeInput) -> pyarrow.Table | None:
        if self._size > self._job.memory_bytes:
            return None
        with self._opened(one) as file:
            with self._lock:
                self._size += _decoded_bytes(file)
            if self._size > self._job.memory_bytes:
                return None
            with self._decoding:
                return file.read(use_threads=False)

    def _opened(self, one: MergeInput) -> pyarrow.parquet.ParquetFile:
        """A small file is read whole: that is one request, and less work than ranges of it."""
        store = self._job.tiered if one.tiered else self._job.write.storage
        if store is None:
            raise SourceDataError(f"{one.key} is in tiered storage, which this job was not given")
        raw = store.open(one.key)
        size = raw.seek(0, io.SEEK_END)
        raw.seek(0)
        if size > _WHOLE_BYTES:
            return self._parquet(pyarrow.PythonFile(raw, mode="r"), pre_buffer=True)
        with raw:
            return self._parquet(pyarrow.BufferReader(raw.read()))

    def _parquet(self, source: Any, **how: Any) -> pyarrow.parquet.ParquetFile:
        try:
            return pyarrow.parquet.ParquetFile(source, read_dictionary=self._dictionaries, **how)
        except KeyError:  # it lacks one of the columns
            source.seek(0)
            return pyarrow.parquet.ParquetFile(source, **how)


def _dictionaries(job: MergeJob, file: pyarrow.parquet.ParquetFile) -> list[str]:
    """Text columns that need not be decoded: nothing looks at their values, and the file has them as dictionaries.
    Only where Parquet's own types say all there is to say: such a file is written without Arrow's schema."""
    if job.deduplicate or job.rollup or not file.metadata.num_row_groups:
        return []
    schema, group = file.schema_arrow, file.metadata.row_group(0)
    if not all(_is_plain(kind) for kind in schema.types):
        return []
    looked_at = {job.time_column, *job.write.sort_columns, *job.write.statistics_columns}
    return [
        one.name
        for at, one in enumerate(schema)
        if one.type == pyarrow.string() and one.name not in looked_at and group.column(at).has_dictionary_page
    ]


def _decoded_bytes(file: pyarrow.parquet.ParquetFile) -> int:
    footer = file.metadata
    return sum(footer.row_group(at).total_byte_size for at in range(footer.num_row_groups))


def _one_table(parts: Sequence[pyarrow.Table]) -> pyarrow.Table:
    """All rows, as :func:`_schema` has them. Text stays a dictionary where all parts have it so, with few values."""
    parts = [part.replace_schema_metadata(None) for part in parts]
    if all(part.schema.equals(parts[0].schema) for part in parts):
        joined = pyarrow.concat_tables(parts).unify_dictionaries()
        few = {one.name: one.type for one in joined.schema if _is_dictionary(one.type) and _is_small(joined[one.name])}
        plain = [one.with_type(few.get(one.name, one.type)) for one in _schema([_plain_schema(joined.schema)])]
        return _as(joined, pyarrow.schema(plain))
    parts = [_as(part, _plain_schema(part.schema)) for part in parts]
    schema = _schema([part.schema for part in reversed(parts)])
    return pyarrow.concat_tables([_with_schema(part, schema) for part in parts])


def _is_dictionary(kind: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_dictionary(kind))


def _is_small(column: pyarrow.ChunkedArray) -> bool:
    """Whether the one dictionary of all chunks is small: a writer puts all of it into every row group."""
    return not column.num_chunks or len(column.chunk(0).dictionary) <= _MOST_VALUES


def _plain_schema(schema: pyarrow.Schema) -> pyarrow.Schema:
    """``schema`` with the values' types for dictionaries."""
    return pyarrow.schema([one.with_type(one.type.value_type) if _is_dictionary(one.type) else one for one in schema])


def _as(data: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    return data if data.schema.equals(schema) else data.cast(schema)


def _schema(schemas: Sequence[pyarrow.Schema]) -> pyarrow.Schema:
    """The columns of all inputs, as the first of ``schemas`` has them; one that a file lacks is null in its rows."""
    if all(schema.equals(schemas[0]) for schema in schemas):
        return in_utc_schema(schemas[0])
    schemas = [in_utc_schema(schema) for schema in schemas]
    if all(schema.equals(schemas[0]) for schema in schemas):
        return schemas[0]
    try:
        return pyarrow.unify_schemas(schemas, promote_options="permissive")
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise SourceDataError(f"the segments' schemas cannot be joined: {error}") from error


def in_utc_schema(schema: pyarrow.Schema) -> pyarrow.Schema:
    """``schema`` with every time zone replaced by UTC."""
    return in_utc(schema.empty_table()).schema


def _with_schema(found: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    if found.schema.equals(schema):
        return found
    found = in_utc(found)
    if found.schema.equals(schema):
        return found
    columns = [
        found.column(one.name).cast(one.type) if one.name in found.column_names else pyarrow.nulls(len(found), one.type)
        for one in schema
    ]
    return pyarrow.table(columns, schema=schema)


def _joined(
    job: MergeJob, data: pyarrow.Table, times: pyarrow.ChunkedArray | None
) -> tuple[pyarrow.Table, pyarrow.ChunkedArray | None]:
    """Rows of one key joined to one, where the job asks for it."""
    if job.deduplicate:
        keep = pyarrow.array(_last_of_each(data, times, job))
        return data.take(keep), None if times is None else times.take(keep)
    if job.rollup:
        rolled = _rolled_up(data, dict(job.rollup))
        return rolled, None if job.time_column is None else arrow_times(rolled.column(job.time_column), job.time_format)
    return data, times


def _last_of_each(data: pyarrow.Table, times: pyarrow.ChunkedArray | None, job: MergeJob) -> Any:
    """Row numbers of the last row of each key, in the order of the sort."""
    order = row_order(data, times, job.write.sort_columns)
    keys = data.select(list(job.deduplicate)).take(pyarrow.array(order))
    ranked = keys.append_column(_ROW, pyarrow.array(numpy.arange(len(order))))
    last = ranked.group_by(list(job.deduplicate), use_threads=False).aggregate([(_ROW, "max")])
    return order[numpy.sort(last.column(f"{_ROW}_max").to_numpy())]


def _rolled_up(data: pyarrow.Table, how: dict[str, str]) -> pyarrow.Table:
    keys = [name for name in data.column_names if name not in how]
    kinds = {name: "sum" if kind == "count" else kind for name, kind in how.items()}
    grouped = data.group_by(keys, use_threads=False).aggregate(list(kinds.items()))
    columns = [grouped.column(f"{name}_{kinds[name]}" if name in kinds else name) for name in data.column_names]
    try:
        cast = [column.cast(field.type) for column, field in zip(columns, data.schema, strict=True)]
        return pyarrow.table(cast, schema=data.schema)
    except pyarrow.ArrowInvalid as error:
        raise SourceDataError(f"a sum does not fit into its column any more: {error}") from error


def _written(
    job: MergeJob, data: pyarrow.Table, times: pyarrow.ChunkedArray | None, task_attempt: int
) -> list[StagedSegment]:
    found: list[tuple[int, int]] = []
    with ThreadPoolExecutor(1) as beside, tempfile.TemporaryDirectory(prefix="segments-", dir=local_dir()) as folder:
        writer = TaskWriter(
            job.write,
            Path(folder),
            0,
            task_attempt,
            on_written=lambda path: found.append(_look(path)),
            threads=_WRITERS,
        )
        hashed = beside.submit(fingerprint_of, data)  # what went in, before anything is done to it
        whole = data if times is None else data.append_column("__segments_time_ms", times)
        segments = list(writer.write(whole.to_batches()))
        expected = hashed.result()
    total = (sum(rows for rows, _ in found), sum(hashes for _, hashes in found))
    if total != expected:
        raise MergeMismatchError(
            f"table {job.write.table!r}, entry {job.write.entry_id}: {expected[0]} rows were to be written and "
            f"{total[0]} were read back{', with other values' if total[0] == expected[0] else ''}; nothing is published"
        )
    return segments


def _look(path: Path) -> tuple[int, int]:
    """What a reader finds in the file."""
    return file_fingerprint(path)
