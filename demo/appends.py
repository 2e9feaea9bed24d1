"""Many small appends to a table with segment locking: the flights of one month, a few hours' worth at a time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from airflow_provider_segments.cli.parquet import stage_files
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import Granularity, parse_time
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import ZooKeeperSettings

TABLE = "departures"
MONTH = ("2013-01-01", "2013-02-01")
APPENDS, PROCESSES = 200, 2
_TOGETHER = 25


@dataclass(frozen=True, slots=True)
class Work:
    """What one process appends, and where."""

    zookeeper: ZooKeeperSettings
    storage: ObjectStore
    files: tuple[Path, ...]


def config() -> TableConfig:
    """An APPEND table by week whose segments get versions and ids under locks."""
    return TableConfig.from_json(
        {
            "tableName": TABLE,
            "segmentsConfig": {"timeColumnName": "time_hour"},
            "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "APPEND"}},
            "tableIndexConfig": {"sortedColumn": ["carrier", "time_hour"]},
            "segmentBuildConfig": {
                "segmentGranularity": "WEEK",
                "segmentLocking": True,
                "targetRowsPerSegment": 4000,
            },
        }
    )


def write_slices(flights: Path, folder: Path) -> list[Path]:
    """The month's flights in the order of time as ``APPENDS`` Parquet files, each within one week."""
    folder.mkdir(parents=True, exist_ok=True)
    options = pyarrow.csv.ConvertOptions(timestamp_parsers=["%Y-%m-%dT%H:%M:%SZ", "ISO8601"])
    table = pyarrow.csv.read_csv(flights, convert_options=options)
    times = pc.cast(table["time_hour"], pa.timestamp("us", "UTC"))
    table = table.set_column(table.schema.get_field_index("time_hour"), "time_hour", times)
    first, end = (pa.scalar(parse_time(day) * 1000, pa.timestamp("us", "UTC")) for day in MONTH)
    month = table.filter(pc.and_(pc.greater_equal(times, first), pc.less(times, end))).sort_by("time_hour")
    files = []
    for number, part in enumerate(_slices(month)):
        files.append(folder / f"{number:03d}.parquet")
        pyarrow.parquet.write_table(part, files[-1])
    return files


def append_all(zookeeper: ZooKeeperSettings, storage: ObjectStore, files: list[Path]) -> tuple[float, int]:
    """Append each file by a push of its own, several processes at once. Seconds, and how many were appended."""
    began, done = time.monotonic(), 0
    parts = [Work(zookeeper, storage, tuple(files[at : at + _TOGETHER])) for at in range(0, len(files), _TOGETHER)]
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        for appended in pool.map(append, parts):
            done += appended
            if done % (2 * _TOGETHER) == 0:
                print(f"   {done:3} of {len(files)} after {time.monotonic() - began:.1f} s", flush=True)
    return time.monotonic() - began, done


def append(work: Work) -> int:
    """Start, stage and end one push a file; it takes the locks it needs by itself."""
    with SegmentStore.connect(zookeeper=work.zookeeper, storage=work.storage) as store:
        table = store.table(TABLE)
        for file in work.files:
            entry = table.start((), identity=f"append {file.name}").entry_id
            stage_files(table, entry, [file], stager="append")
            table.end(entry)
    return len(work.files)


def rows_and_sum(store: SegmentStore) -> tuple[int, int]:
    """Rows and the sum of the distances that a reader finds in the visible files."""
    rows = miles = 0
    with store.table(TABLE).snapshot(owner="demo") as snapshot:
        for key in snapshot.files:
            with snapshot.storage.open(key) as file:
                distances = pyarrow.parquet.read_table(file, columns=["distance"])["distance"]
            rows, miles = rows + len(distances), miles + int(pc.sum(distances).as_py())
    return rows, miles


def _slices(month: pa.Table) -> Iterator[pa.Table]:
    """``APPENDS`` runs of rows, none of them over the end of a week."""
    weeks = [Granularity.WEEK.floor(int(at.timestamp() * 1000)) for at in month["time_hour"].to_pylist()]
    starts = sorted({week: at for at, week in reversed(list(enumerate(weeks)))}.values())
    spans = list(zip(starts, [*starts[1:], len(weeks)], strict=True))
    for number, (start, end) in enumerate(spans):
        parts = APPENDS // len(spans) + (number < APPENDS % len(spans))
        edges = [start + (end - start) * at // parts for at in range(parts + 1)]
        yield from (month.slice(one, two - one) for one, two in pairwise(edges))
