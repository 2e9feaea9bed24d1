"""Small event files, as our builds write them: the input of the benchmarks of compaction and appends."""

from __future__ import annotations

import datetime
import functools
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from airflow_provider_segments.arrow.writing import TaskWriter, WriteJob
from airflow_provider_segments.core.model.interval import Granularity
from airflow_provider_segments.core.model.segment import StagedSegment
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.storage.local import LocalStore

DAY_MS = 86_400_000
FIRST_MS = 1_356_998_400_000
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("us", "UTC")),
        ("customer", pa.int64()),
        ("value", pa.float64()),
        ("kind", pa.string()),
        ("items", pa.int32()),
    ]
)
_KINDS = pa.array(["view", "search", "order", "return"])
_TAG = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Input:
    """Files below ``root``, one a record, spread evenly over ``days`` days."""

    root: Path
    files: tuple[StagedSegment, ...]
    days: int
    rows: int
    bytes: int
    fingerprint: tuple[int, int]
    columns: int = len(SCHEMA)

    def path(self, segment: StagedSegment) -> Path:
        """Where a file is."""
        return self.root / "in" / segment.record.file


def events(rng: np.random.Generator, rows: int, day: int) -> pa.Table:
    """Random events of one day, in no order."""
    at = FIRST_MS + day * DAY_MS + rng.integers(0, DAY_MS, rows)
    columns = [
        pa.array(at * 1000).cast(SCHEMA.field("at").type),
        pa.array(rng.integers(0, 100_000, rows)),
        pa.array(rng.random(rows) * 100),
        _KINDS.take(pa.array(rng.integers(0, len(_KINDS), rows))),
        pa.array(rng.integers(0, 1000, rows).astype(np.int32)),
    ]
    return pa.table(columns, schema=SCHEMA)


def write_job(table: str, store: ObjectStore, prefix: str, *, entry: str = _TAG, attempt: int = 1) -> WriteJob:
    """A build's own job for these columns: sorted by time, zstd."""
    return WriteJob(
        table=table, entry_id=entry, stager="build", attempt=attempt, prefix=prefix, generation="g",
        granularity=Granularity.DAY, sort_columns=(), columns=tuple(SCHEMA.names), has_time=True, target_rows=1 << 40,
        compression="zstd", statistics_columns=(), spark_schema=spark_schema(), slices=_Identity(), storage=store,
    )  # fmt: skip


@functools.cache
def spark_schema() -> str:
    """Spark's own schema for the columns, which builds keep in the footer."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return str(from_arrow_schema(SCHEMA).toNullable().json())


class _Identity(dict[int, int]):
    """Each partition is its own slice."""

    def get(self, key: int, default: int = 0) -> int:  # type: ignore[override]
        return key


def write(job: WriteJob, data: pa.Table, number: int, folder: Path) -> list[StagedSegment]:
    """Write rows as a build's task ``number`` would."""
    times = pa.array(data.column("at").cast(pa.int64()).to_numpy() // 1000)
    batches = data.append_column("ms", times).to_batches()
    return list(TaskWriter(job, folder, number, number).write(batches))


def make_input(root: Path, files: int, rows: int, days: int) -> Input:
    """``files`` files of equal size, each of one day; all rows differ from run to run in nothing."""
    rng = np.random.default_rng(4)
    job = write_job("events", LocalStore(root), "in/")
    found: list[StagedSegment] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files):
            count = rows * (number + 1) // files - rows * number // files
            found += write(job, events(rng, count, number * days // files), number, Path(folder))
    assert len(found) == files
    paths = [root / "in" / one.record.file for one in found]
    return Input(root, tuple(found), days, rows, sum(one.record.bytes for one in found), fingerprint(paths))


def fingerprint(paths: list[Path]) -> tuple[int, int]:
    """Rows of all files, and a sum of their hashes."""
    names = ", ".join(f'"{name}"' for name in SCHEMA.names)
    query = f"SELECT count(*), sum(hash({names})::HUGEINT) FROM read_parquet($files, hive_partitioning = false)"
    with duckdb.connect() as database:
        rows, total = database.execute(query, {"files": [str(path) for path in paths]}).fetchall()[0]
    return int(rows), int(total)


def order_of(paths: list[Path]) -> str:
    """Whether each file is sorted by time, and whether files share some of their time."""
    query = """SELECT min("at"), max("at"), bool_and("at" >= before) FROM (
        SELECT "at", lag("at") OVER (ORDER BY file_row_number) AS before
        FROM read_parquet($file, file_row_number = true, hive_partitioning = false))"""
    bounds: list[tuple[datetime.datetime, datetime.datetime]] = []
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        for path in paths:
            low, high, ordered = database.execute(query, {"file": str(path)}).fetchall()[0]
            if ordered is False:
                return "no"
            bounds.append((low, high))
    bounds.sort()
    apart = all(one[1] <= other[0] for one, other in pairwise(bounds))
    return "yes" if apart else "in files"
