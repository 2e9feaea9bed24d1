"""Rows become the Parquet files of segments, in the object store: in Spark's tasks, or in the process that builds.

Imports little, for every Python worker that Spark starts imports it anew.

A task gathers at most about one segment's rows as Arrow batches, sorts them, cuts them where the time chunk changes and
where a segment would grow beyond the target, and writes and uploads one file a segment. It never trusts the plan: chunk
and size come from the rows themselves.

Every object key carries the stage attempt and Spark's task attempt, so two executions of one task (a retry, a
speculative copy, a zombie) never share a key. Only what the driver gets back from the winning execution is staged; the
others' objects lie under the entry's prefix and are swept with it. Nothing is deleted here: not even the objects of a
task that fails half way, for a delete that is decided on one executor's word could hit what another has reported.
"""

from __future__ import annotations

import logging
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from airflow_provider_segments.arrow.statistics import ColumnStatistics
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import MIN_MS, Granularity
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.names import DEFAULT_STAGER, check_segment_name, entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.exceptions import SourceDataError

ROW_GROUP_ROWS = 262_144
SPARK_SCHEMA_KEY = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark looks for its own schema in a Parquet footer."""

_SAMPLE = 16_384  # rows that tell how often values repeat
_HALF_ROWS = 500_000  # from here on a sort is worth a thread
_REPEATED, _REPEATED_TEXT = 0.25, 0.8  # most distinct values of a sample for which a dictionary pays
_MOST_BYTES = 2**31 - 2**20  # of one Arrow string array with 32-bit offsets
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Everything a task needs to know.

    ``columns`` names the columns, in the order of the batches, which may call them otherwise. ``slices`` gives
    partitions that hold one slice of a chunk its number.
    """

    table: str
    entry_id: str
    stager: str
    attempt: int
    prefix: str
    generation: str
    granularity: Granularity
    sort_columns: tuple[str, ...]
    columns: tuple[str, ...]
    has_time: bool
    target_rows: int
    compression: str
    statistics_columns: tuple[str, ...]
    spark_schema: str
    slices: Mapping[int, int]
    storage: ObjectStore = field(repr=False)
    fingerprint: str | None = None

    @classmethod
    def of(cls, config: TableConfig, ticket: StageTicket, storage: ObjectStore, fingerprint: str) -> WriteJob:
        """The job of one attempt of a stage, before it is known what the rows look like. A build that sorts by another
        column than the time keeps statistics of that, too."""
        first = [name for name in config.sort_columns[:1] if name != config.time_column]
        return cls(
            table=config.name,
            entry_id=ticket.entry_id,
            stager=ticket.stager,
            attempt=ticket.attempt,
            prefix=ticket.prefix,
            generation=ticket.generation,
            granularity=config.granularity,
            sort_columns=config.sort_columns,
            columns=(),
            has_time=config.time_column is not None,
            target_rows=config.target_rows,
            compression=config.compression,
            statistics_columns=tuple(dict.fromkeys([*config.statistics_columns, *first])),
            spark_schema="",
            slices={},
            storage=storage,
            fingerprint=fingerprint,
        )

    def segment_name(self, chunk: str, number: int, part: int = 0) -> str:
        """Name of a segment. ``part`` counts the pieces of what was planned as one segment and came out too large.

        Unique in the entry: a chunk's rows are in one partition, or its slices are numbered; and the stager is named.
        """
        stager = "" if self.stager == DEFAULT_STAGER else f"_{self.stager}"
        extra = f"-{part}" if part else ""
        return check_segment_name(f"{self.table}_{chunk}_{entry_tag(self.entry_id)}{stager}_{number:05d}{extra}")

    def owner(self, segment: str) -> dict[str, str]:
        """Owner metadata of an object, also kept in the file's footer: what deletion later checks before it deletes."""
        return owner_metadata(self.table, segment, self.generation)


def write_partition(
    job: WriteJob, batches: Iterable[pyarrow.RecordBatch], partition: int, task_attempt: int
) -> Iterator[StagedSegment]:
    """Write the rows of one task. If the job has a time, it is the batches' last column, in epoch milliseconds."""
    with tempfile.TemporaryDirectory(prefix="segments-", dir=local_dir()) as folder:
        writer = TaskWriter(job, Path(folder), partition, task_attempt)
        held: list[pyarrow.RecordBatch] = []
        rows, limit = 0, job.target_rows + job.target_rows // 4
        for batch in batches:
            for part in _parts(batch, limit - rows, limit):
                held.append(part)
                rows += part.num_rows
                if rows >= limit:
                    yield from writer.write(held)
                    held, rows = [], 0
        if rows:
            yield from writer.write(held)


def _parts(batch: pyarrow.RecordBatch, room: int, limit: int) -> Iterator[pyarrow.RecordBatch]:
    """``batch`` cut so that the first part has at most ``room`` rows and the others at most ``limit``."""
    at = 0
    while at < batch.num_rows:
        yield batch.slice(at, room)
        at, room = at + room, limit


@dataclass(frozen=True, slots=True)
class _Written:
    """A file in the local folder, and what is known of its segment so far."""

    path: Path
    segment: StagedSegment


@dataclass(slots=True)
class TaskWriter:
    """Sorts rows, cuts them into segments, writes and uploads each. ``on_written`` sees every file before its upload.
    ``threads`` are how many segments are written at once: one in a build, whose tasks fill the cores already."""

    job: WriteJob
    folder: Path
    partition: int
    task_attempt: int
    written: dict[str, int] = field(default_factory=dict)
    on_written: Callable[[Path], None] | None = None
    threads: int = 1

    def write(self, batches: list[pyarrow.RecordBatch]) -> Iterator[StagedSegment]:
        """Write what is held. Empties ``batches``, so that the sorted copy replaces the rows rather than joins them."""
        data = in_utc(pyarrow.Table.from_batches(batches))
        batches.clear()
        times = None
        if self.job.has_time:
            times = data.column(data.num_columns - 1)
            data = data.remove_column(data.num_columns - 1)
            if times.null_count:
                raise SourceDataError(
                    f"table {self.job.table!r}, entry {self.job.entry_id}: {times.null_count} rows had a usable time "
                    "when they were counted and have none now; the input changes while it is read"
                )
        starts = _starts(times, self.job.granularity, data.num_rows)
        data = data.rename_columns(list(self.job.columns))
        with ThreadPoolExecutor(self.threads) as pool:
            joined = [pool.submit(_one_array, data.column(index)) for index in range(data.num_columns)]
            order = row_order(data, times, self.job.sort_columns, starts)
            columns = [column.result() for column in joined]
        schema = pyarrow.schema(
            [field.with_type(column.type) for field, column in zip(data.schema, columns, strict=True)]
        )
        del data
        ordered = starts if len(starts) and starts.min() == starts.max() else starts[order]
        cuts = [order[first:end] for first, end in _cuts(ordered, self.job.target_rows)]
        named = [(self._next_name(int(starts[rows[0]])), rows) for rows in cuts]

        def write(one: tuple[tuple[str, str], Any]) -> _Written:
            (chunk, name), rows = one
            return self._written(chunk, name, schema, columns, rows, times)

        if self.threads == 1:
            yield from map(self._finished, map(write, named))
            return
        # Two pools, so that no core waits: files are checked and uploaded while others are written.
        with ThreadPoolExecutor(self.threads) as writers, ThreadPoolExecutor(self.threads) as finishers:
            files = [writers.submit(write, one) for one in named]
            try:
                yield from finishers.map(lambda file: self._finished(file.result()), files)
            finally:  # after a failure nothing more is begun
                for file in files:
                    file.cancel()

    def _next_name(self, start_ms: int) -> tuple[str, str]:
        """The chunk that begins at ``start_ms``, and the name of its next segment."""
        chunk = self.job.granularity.chunk_name(start_ms)
        part = self.written.get(chunk, 0)
        self.written[chunk] = part + 1
        return chunk, self.job.segment_name(chunk, self.job.slices.get(self.partition, 0), part)

    def _written(
        self, chunk: str, name: str, schema: pyarrow.Schema, columns: list[pyarrow.Array], rows: Any, times: Any
    ) -> _Written:
        """Write one segment's file."""
        path = self.folder / f"{name}.{self.job.attempt}.{self.task_attempt}.parquet"
        statistics = self._write_file(path, schema, columns, rows, self.job.owner(name))
        low, high = (None, None) if times is None else _bounds(times.take(pyarrow.array(rows)))
        record = SegmentRecord(
            name, path.name, len(rows), 0, 0, low, high, statistics or None, fingerprint=self.job.fingerprint
        )
        return _Written(path, StagedSegment(chunk, record))

    def _finished(self, written: _Written) -> StagedSegment:
        """Check and upload a file, and complete its segment's record."""
        path, record = written.path, written.segment.record
        if self.on_written is not None:
            self.on_written(path)
        record = msgspec.structs.replace(record, bytes=path.stat().st_size, crc32=_crc32(path))
        owner = self.job.owner(record.name)
        self.job.storage.put_file(path, self.job.prefix + record.file, owner=owner, consume=True)
        path.unlink()
        _LOG.info("segment %s: %d rows, %d bytes", record.name, record.rows, record.bytes)
        return StagedSegment(written.segment.chunk, record)

    def _write_file(
        self, path: Path, schema: pyarrow.Schema, columns: list[pyarrow.Array], rows: Any, owner: Mapping[str, str]
    ) -> dict[str, list[Any]]:
        footer = {f"segments.{key}".encode(): value.encode() for key, value in owner.items()}
        footer[SPARK_SCHEMA_KEY] = self.job.spark_schema.encode()
        found = {name: ColumnStatistics() for name in self.job.statistics_columns}
        dictionaries, encodings = encodings_of(schema, columns, rows)
        with pyarrow.parquet.ParquetWriter(
            path,
            schema.with_metadata(footer),
            compression="NONE" if self.job.compression == "none" else self.job.compression,
            write_statistics=[
                name for name, column in zip(schema.names, columns, strict=True) if _prunable(column, rows)
            ],
            write_page_index=True,
            use_dictionary=dictionaries,
            column_encoding=encodings or None,
            store_schema=not any(pyarrow.types.is_dictionary(kind) for kind in schema.types),
        ) as writer:
            for at in range(0, len(rows), ROW_GROUP_ROWS):
                taken = pyarrow.array(rows[at : at + ROW_GROUP_ROWS])
                group = pyarrow.RecordBatch.from_arrays([column.take(taken) for column in columns], schema=schema)
                writer.write_batch(group, row_group_size=ROW_GROUP_ROWS)
                for name, statistics in found.items():
                    statistics.add(group.column(schema.get_field_index(name)))
        return {name: statistics.as_list() for name, statistics in found.items()}


def encodings_of(
    schema: pyarrow.Schema, columns: Sequence[pyarrow.Array], rows: Any
) -> tuple[list[str], dict[str, str]]:
    """Columns (as paths in the file) to write with a dictionary, and encodings of the others, for these ``rows``.

    A dictionary of values that hardly repeat costs time and space; a sample tells. Whole numbers and times are then
    written as differences (``DELTA_BINARY_PACKED``, which Spark reads since 3.3), everything else plainly.
    """
    sample = pyarrow.array(rows[:: max(1, len(rows) // _SAMPLE)])
    dictionaries: list[str] = []
    encodings: dict[str, str] = {}
    for one, column in zip(schema, columns, strict=True):
        if pyarrow.types.is_nested(one.type):
            dictionaries += _leaves(one)
            continue
        if pyarrow.types.is_dictionary(one.type):
            dictionaries.append(one.name)
            continue
        distinct = pyarrow.compute.count_distinct(column.take(sample)).as_py() if _is_countable(one.type) else 0
        if distinct <= len(sample) * (_REPEATED if pyarrow.types.is_primitive(one.type) else _REPEATED_TEXT):
            dictionaries.append(one.name)
        elif _is_whole(one.type):
            encodings[one.name] = "DELTA_BINARY_PACKED"
    return dictionaries, encodings


def _leaves(field: pyarrow.Field) -> list[str]:
    """Paths of a nested column's leaves, as a file has them."""
    buffer = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.schema([field]).empty_table(), buffer)
    leaves = pyarrow.parquet.ParquetFile(buffer.getvalue()).schema
    return [leaves.column(at).path for at in range(len(leaves.names))]


def _is_countable(kind: pyarrow.DataType) -> bool:
    """Whether Arrow counts distinct values of the type."""
    types = pyarrow.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_temporal(kind)
        or types.is_decimal128(kind)
        or kind in (pyarrow.string(), pyarrow.binary(), pyarrow.large_string(), pyarrow.large_binary())
    )


def _is_whole(kind: pyarrow.DataType) -> bool:
    """Whether Parquet stores the type as signed whole numbers."""
    types = pyarrow.types
    return bool(types.is_signed_integer(kind) or types.is_timestamp(kind) or types.is_date32(kind))


def row_order(data: pyarrow.Table, times: Any, sort_columns: tuple[str, ...], starts: Any = ()) -> Any:
    """Row numbers by chunk (where ``starts`` says it), then by the sort columns, or by time. Stable; NaN and then null
    come last."""
    keys = [data.column(name) for name in sort_columns] or ([] if times is None else [times])
    if sort_columns and len(starts) and starts.min() != starts.max():  # in order of time, chunks are in order
        keys.insert(0, pyarrow.chunked_array([starts]))
    if not keys:
        return numpy.arange(data.num_rows, dtype=numpy.int64)
    packed = _packed_order(keys)
    if packed is not None:
        return packed
    names = [f"{index}" for index in range(len(keys))]
    keyed = pyarrow.table(keys, names=names)
    indices = pyarrow.compute.sort_indices(keyed, sort_keys=[(name, "ascending") for name in names])
    return indices.to_numpy()


def _packed_order(keys: Sequence[pyarrow.ChunkedArray]) -> Any:
    """The order of whole numbers and times whose ranges, with the row number, fit into 63 bits together: one sort of
    one array, which finds runs that are sorted already. ``None`` for other keys."""
    rows = len(keys[0])
    if not rows or any(column.null_count or not _is_whole(column.type) for column in keys):
        return None
    left = 63 - (rows - 1).bit_length()
    packed: Any = None
    for column in keys:
        values = column.cast(_int_of(column.type)).to_numpy().astype(numpy.int64, copy=False)
        low = int(values.min())
        bits = (int(values.max()) - low).bit_length()
        left -= bits
        if left < 0:
            return None
        above = values - low
        packed = above if packed is None else (packed << bits) | above
    shift = (rows - 1).bit_length()
    packed <<= shift
    packed |= numpy.arange(rows, dtype=numpy.int64)
    _sort_runs(packed)
    packed &= (1 << shift) - 1
    return packed


def _sort_runs(values: Any) -> None:
    """Sort in place, with two threads where that pays. To join two sorted halves takes an eighth of sorting them."""
    half = len(values) // 2
    if half >= _HALF_ROWS:
        with ThreadPoolExecutor(1) as beside:
            upper = beside.submit(values[half:].sort, kind="stable")
            values[:half].sort(kind="stable")
            upper.result()
    values.sort(kind="stable")


def _int_of(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The whole numbers that are stored for the type."""
    return pyarrow.int32() if kind.bit_width == 32 else kind if kind.bit_width < 32 else pyarrow.int64()


def _cuts(starts: Any, target_rows: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows that are one segment each: same chunk, at most ``target_rows``, equal within their chunk."""
    edges = [0, *(numpy.flatnonzero(starts[1:] != starts[:-1]) + 1).tolist(), len(starts)]
    for first, end in pairwise(edges):
        parts = -(-(end - first) // target_rows)
        for part in range(parts):
            yield first + (end - first) * part // parts, first + (end - first) * (part + 1) // parts


def _starts(times: Any, granularity: Granularity, rows: int) -> Any:
    if times is None:
        return numpy.full(rows, MIN_MS, dtype=numpy.int64)
    ms = times.to_numpy()
    low, high = (granularity.floor(int(found)) for found in (ms.min(), ms.max()))
    return numpy.full(rows, low, dtype=numpy.int64) if low == high else chunk_starts(ms, granularity)


def chunk_starts(ms: Any, granularity: Granularity) -> Any:
    """:meth:`Granularity.floor` of a whole numpy array."""
    match granularity:
        case Granularity.HOUR:
            return ms - ms % 3_600_000
        case Granularity.DAY:
            return ms - ms % 86_400_000
        case Granularity.WEEK:
            return numpy.maximum(MIN_MS, ms - (ms + 3 * 86_400_000) % (7 * 86_400_000))
        case Granularity.ALL:
            return numpy.full_like(ms, MIN_MS)
    unit = "M" if granularity is Granularity.MONTH else "Y"
    return ms.astype("datetime64[ms]").astype(f"datetime64[{unit}]").astype("datetime64[ms]").astype(numpy.int64)


def in_utc(data: pyarrow.Table) -> pyarrow.Table:
    """``data`` with every time zone called UTC: instants come labelled with the session's, and two sessions are to
    write the same schema."""
    fields = [field.with_type(utc(field.type)) for field in data.schema]
    schema = pyarrow.schema(fields)
    return data if schema.equals(data.schema) else data.cast(schema)


def utc(kind: pyarrow.DataType) -> pyarrow.DataType:
    """``kind`` with every time zone in it replaced by UTC: the same instants under another label."""
    if pyarrow.types.is_timestamp(kind) and kind.tz is not None:
        return pyarrow.timestamp(kind.unit, "UTC")
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([field.with_type(utc(field.type)) for field in kind])
    if pyarrow.types.is_map(kind):
        return pyarrow.map_(utc(kind.key_type), kind.item_field.with_type(utc(kind.item_type)))
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(utc(kind.value_type)))
    return kind


def _one_array(column: pyarrow.ChunkedArray) -> pyarrow.Array:
    """The column in one piece. Text of more than 2 GiB needs 64-bit offsets (the file is the same)."""
    large = {pyarrow.string(): pyarrow.large_string(), pyarrow.binary(): pyarrow.large_binary()}
    if column.type in large and column.nbytes > _MOST_BYTES:
        column = column.cast(large[column.type])
    combined = column.combine_chunks()
    return pyarrow.concat_arrays(combined.chunks) if isinstance(combined, pyarrow.ChunkedArray) else combined


def _prunable(column: pyarrow.Array, rows: Any) -> bool:
    """Whether minimum and maximum in the footer mislead nobody: Arrow leaves NaN out of them, and for Spark NaN is the
    greatest value, so its reader would skip the row group. Leaves of nested columns get none, for the same reason.

    Only the segment's own ``rows`` are asked: its bytes do not depend on what else its task holds."""
    if pyarrow.types.is_floating(column.type):
        return not _has_nan(column) or not _has_nan(column.take(pyarrow.array(rows)))
    return not pyarrow.types.is_nested(column.type)


def _has_nan(column: pyarrow.Array) -> bool:
    return bool(pyarrow.compute.any(pyarrow.compute.is_nan(column)).as_py())


def _bounds(times: Any) -> tuple[int, int]:
    found = pyarrow.compute.min_max(times).as_py()
    return found["min"], found["max"]


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def local_dir() -> str | None:
    """Where temporary files go: a folder that Spark clears when the application ends; outside of Spark, the system's
    temporary folder."""
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder and Path(folder).is_dir():
            return folder
    return None
