"""The build job without Spark: the rows of Parquet or CSV files become hidden segments of a lineage entry.

The steps are those of :mod:`~.spark.build`, and so are the segments, byte for byte where the rows come in the same
order and a time chunk fits one segment (a chunk that does not is cut into equal parts here, and at sampled bounds
there). All rows are held in memory, about as much as Arrow needs for them, twice.

Whatever this engine does not surely read as Spark does, it leaves to Spark: :class:`NeedsSparkError`, raised before
anything is announced or written.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pyarrow

from airflow_provider_segments.arrow.columns import check_names, check_time_column, check_wanted
from airflow_provider_segments.arrow.inputs import InputFile, Source, files_at
from airflow_provider_segments.arrow.push import (
    BuiltPush,
    WrittenRows,
    bad_times,
    build_push,
    check_reject_folder,
    no_rows,
)
from airflow_provider_segments.arrow.times import arrow_times
from airflow_provider_segments.arrow.writing import TaskWriter, WriteJob, local_dir
from airflow_provider_segments.core.compaction.settings import CompactionSettings
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.names import DEFAULT_STAGER
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.exceptions import NeedsSparkError, SegmentsError
from airflow_provider_segments.local.csv import CsvOptions, read_csv, times_of_text, typed
from airflow_provider_segments.local.parquet import read_parquet
from airflow_provider_segments.local.schema import spark_schema
from airflow_provider_segments.text import count

_MOST_THREADS = 4
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate", ".xz")
_TIME = "__segments_time_ms"


def build_segments(
    table: Table,
    entry_id: str,
    source: Source,
    *,
    stager: str = DEFAULT_STAGER,
    allow_empty: bool = False,
    reject_folder: str | None = None,
    most_bytes: int | None = None,
    check_cancelled: Callable[[], None] = lambda: None,
) -> BuiltPush:
    """Build ``source`` into segments of ``table`` and stage them in ``entry_id``, in this process.

    ``check_cancelled`` is called before each step and after each segment: what it raises ends the build, and nothing is
    staged.

    Raises :class:`NeedsSparkError` for an input of more than ``most_bytes``, or one that is Spark's to read; otherwise
    what :func:`~.spark.build.build_segments` raises.
    """
    config = table.config()
    check_reject_folder(config, reject_folder)
    rows = timed_rows(config, read_source(source, most_bytes))
    check_cancelled()

    def write(ticket: StageTicket) -> WrittenRows:
        written = write_rows(
            config, ticket, table.storage, rows, allow_empty=allow_empty, check_cancelled=check_cancelled
        )
        check_cancelled()
        return written

    return build_push(table, config, entry_id, stager, write)


def read_source(source: Source, most_bytes: int | None = None) -> pyarrow.Table:
    """All rows of ``source``, in the types that Spark would give them. Raises :class:`NeedsSparkError`."""
    if source.format not in ("csv", "parquet"):
        raise NeedsSparkError(f"input format {source.format!r} is Spark's to read")
    files = _files(source)
    _check_files(files, most_bytes)
    if source.format == "parquet":
        return _together([_read(file, lambda opened: read_parquet(opened, source.options)) for file in files])
    options = CsvOptions.of(source.options)
    rows = _together([_read(file, lambda opened: read_csv(opened, options)) for file in files])
    return typed(rows) if options.infer_schema else rows


def timed_rows(config: TableConfig, rows: pyarrow.Table) -> TimedRows:
    """``rows`` with their times. Raises :class:`SourceDataError` for columns that are absent or cannot be called so,
    and :class:`NeedsSparkError` for times that only Spark can read."""
    check_names(config, rows.column_names)
    check_wanted(config, rows.column_names)
    check_time_column(config, rows.column_names)
    spark = spark_schema(rows.schema)
    if config.time_column is None:
        return TimedRows(rows, spark, 0)
    column = rows[config.time_column]
    bad = column.null_count
    times = _times(column.drop_null(), config.time_format)
    if times is None or (bad and config.on_bad_time == "reject"):
        raise NeedsSparkError(
            f"times of column {config.time_column!r} ({column.type}, timeFormat {config.time_format}) are Spark's to "
            f"{'read' if times is None else 'sort out'}"
        )
    return TimedRows(rows if bad else rows.append_column(_TIME, times), spark, bad)


@dataclass(frozen=True, slots=True)
class TimedRows:
    """Rows to write. If the table has a time column and no time is bad, the times are the last column."""

    rows: pyarrow.Table
    spark_schema: str
    bad: int


def write_rows(
    config: TableConfig,
    ticket: StageTicket,
    storage: ObjectStore,
    timed: TimedRows,
    *,
    allow_empty: bool = False,
    check_cancelled: Callable[[], None] = lambda: None,
) -> WrittenRows:
    """Write the segments. Raises :class:`SourceDataError` for rows without a usable time, or no rows at all."""
    rows = timed.rows
    if timed.bad:
        raise bad_times(config, timed.bad, _example(rows, config))
    if not rows.num_rows:
        if not allow_empty:
            raise no_rows(config, 0)
        return WrittenRows([])
    names = [name for name in rows.column_names if name != _TIME]
    job = replace(
        WriteJob.of(config, ticket, storage, CompactionSettings.of(config).fingerprint),
        columns=tuple(names),
        spark_schema=timed.spark_schema,
    )
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(prefix="segments-", dir=local_dir()) as folder:
        writer = TaskWriter(job, Path(folder), partition=0, task_attempt=0, threads=threads)
        segments = []
        for segment in writer.write(rows.to_batches()):
            segments.append(segment)
            check_cancelled()
    return WrittenRows(segments)


def _files(source: Source) -> list[InputFile]:
    """In the order of their names. What cannot be seen from here, executors with other rights may see."""
    try:
        found = {path: list(files_at(path, source)) for path in source.paths}
    except (OSError, SegmentsError) as error:
        raise NeedsSparkError(f"the input cannot be seen from here ({type(error).__name__}): {error}") from error
    for path, files in found.items():
        if not files:
            raise NeedsSparkError(f"no file of the input can be seen from here at {path}")
    return sorted((file for files in found.values() for file in files), key=lambda file: file.name)


def _check_files(files: Sequence[InputFile], most_bytes: int | None) -> None:
    if not files:
        raise NeedsSparkError("the input names no path")
    if any("=" in part for file in files for part in file.name.split("/")):
        raise NeedsSparkError("folders give columns to the input")
    stored = sum(file.bytes for file in files)
    if most_bytes is not None and stored > most_bytes:
        raise NeedsSparkError(f"the input has {count(stored, 'byte')}, more than {most_bytes:,}")


def _read(file: InputFile, read: Callable[[BinaryIO], pyarrow.Table]) -> pyarrow.Table:
    if file.name.endswith(_COMPRESSED):
        raise NeedsSparkError(f"{file.name}: it is compressed as a whole")
    try:
        with file.open() as opened:
            return read(opened)
    except (OSError, SegmentsError) as error:
        raise NeedsSparkError(f"{file.name}: {error}") from error


def _together(tables: Sequence[pyarrow.Table]) -> pyarrow.Table:
    if any(table.schema != tables[0].schema for table in tables):
        raise NeedsSparkError("the files of the input differ in their columns")
    return pyarrow.concat_tables(tables)


def _times(column: pyarrow.ChunkedArray, time_format: str) -> pyarrow.ChunkedArray | None:
    """Epoch milliseconds; ``None`` for what only Spark can read."""
    if time_format == "TIMESTAMP" and pyarrow.types.is_string(column.type):
        instants = times_of_text(column)
        return None if instants is None else arrow_times(instants, time_format)
    return arrow_times(column, time_format)


def _example(rows: pyarrow.Table, config: TableConfig) -> str:
    """The first row without a time, as JSON."""
    first = rows.filter(rows[config.time_column].is_null()).slice(0, 1).to_pylist()[0]
    return json.dumps(first, separators=(",", ":"), default=str, ensure_ascii=False)
