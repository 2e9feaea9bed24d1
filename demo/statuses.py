"""Status changes of flights into an upsert table: scheduled, departed, arrived or cancelled, one row a flight."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import ZooKeeperSettings
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.owner import own_key_partitions
from airflow_provider_segments.upsert.reading import read_rows

TABLE = "flight_status"
READERS = 2
START_SECONDS = 300.0
"""How long a reader may take to load its libraries and connect."""

BATCH = 10_000

_EVENTS = """
WITH january AS (
    SELECT concat_ws(' ', carrier, flight, origin, tailnum, CAST(time_hour AS DATE), sched_dep_time) AS flight,
        time_hour + to_minutes(minute) AS planned, try_cast(dep_delay AS INT) AS delay, try_cast(air_time AS INT) AS air
    FROM read_csv(?, nullstr='NA', timestampformat='%Y-%m-%dT%H:%M:%SZ', types={'time_hour': 'TIMESTAMP'})
    WHERE time_hour < TIMESTAMP '2013-02-01'
), changes AS (
    SELECT flight, planned - INTERVAL 1 DAY AS changed_at, 'scheduled' AS status FROM january
    UNION ALL SELECT flight, planned + to_minutes(delay), 'departed' FROM january WHERE delay IS NOT NULL
    UNION ALL SELECT flight, planned + to_minutes(delay + air), 'arrived' FROM january WHERE air IS NOT NULL
    UNION ALL SELECT flight, planned, 'cancelled' FROM january WHERE delay IS NULL
)
SELECT flight, changed_at, status, CAST(hash(flight) % 3 AS INT) AS "$partition",
    row_number() OVER (PARTITION BY hash(flight) % 3 ORDER BY changed_at, flight, status) AS "$offset"
FROM changes ORDER BY changed_at, flight, status
"""
_NEWEST = """
SELECT status, count(*) FROM (
    SELECT arg_max(status, (changed_at, "$offset")) AS status FROM events GROUP BY flight
) GROUP BY status
"""


@dataclass(frozen=True, slots=True)
class Work:
    """Where a reader reads."""

    zookeeper: ZooKeeperSettings
    storage: ObjectStore


def config() -> TableConfig:
    """One row a flight; of several, the last change is seen."""
    return TableConfig.from_json(
        {
            "tableName": TABLE,
            "schema": {"primaryKeyColumns": ["flight"]},
            "segmentsConfig": {"timeColumnName": "changed_at"},
            "upsertConfig": {"mode": "FULL", "keyPartitions": 2},
        }
    )


def write_events(flights: Path) -> tuple[pa.Table, dict[str, int]]:
    """The changes of January in the order of time, and how many flights end in which status."""
    with duckdb.connect() as connection:
        events: pa.Table = connection.sql(_EVENTS, params=[str(flights)]).to_arrow_table()
        connection.register("events", events)
        ends = dict(connection.execute(_NEWEST).fetchall())
    return events, ends


def ingest(store: SegmentStore, events: pa.Table, cache: Path) -> Iterator[tuple[int, Counter[str]]]:
    """Ingest all events, a batch at a time; yields each version with the statuses that are seen at it."""
    table = store.table(TABLE)
    with own_key_partitions(table, "demo") as lock:
        ingestor = UpsertIngestor(table, name="demo", cache=cache, locks=(lock,))
        for start in range(0, events.num_rows, BATCH):
            version = ingestor.ingest(events.slice(start, BATCH)).version
            seen = read_rows(table, mark=version, columns=["status"])
            yield version, Counter(seen.column("status").to_pylist())


def read_meanwhile(work: Work, ready: threading.Barrier, stop: threading.Event) -> int:
    """Read the newest mark from when all are ``ready`` until ``stop``; returns how often. Every time there is one
    row a flight, and no flight that was there is gone."""
    reads, before = 0, 0
    with SegmentStore.connect(zookeeper=work.zookeeper, storage=work.storage) as store:
        table = store.table(TABLE)
        ready.wait(START_SECONDS)
        while not stop.is_set():
            if not table.snapshot().segments:
                time.sleep(0.05)
                continue
            flights = read_rows(table, columns=["flight"]).column("flight")
            if len(flights.unique()) != len(flights) or len(flights) < before:
                raise AssertionError(f"{len(flights)} rows of {len(flights.unique())} flights, after {before}")
            reads, before = reads + 1, len(flights)
    return reads


def run(store: SegmentStore, flights: Path, cache: Path) -> tuple[Counter[str], dict[str, int], int]:
    """Ingest beside two readers; returns what is seen at the end, what should be, and how often was read."""
    events, ends = write_events(flights)
    store.apply_config(config())
    context = multiprocessing.get_context("spawn")
    seen: Counter[str] = Counter()
    with context.Manager() as manager, ProcessPoolExecutor(READERS, context) as pool:
        ready, stop = manager.Barrier(READERS + 1), manager.Event()
        work = Work(store.session.settings, store.storage)
        readers = [pool.submit(read_meanwhile, work, ready, stop) for _ in range(READERS)]
        try:
            ready.wait(START_SECONDS)
            print("   version  flights  scheduled  departed  arrived  cancelled")
            for version, seen in ingest(store, events, cache):
                counts = [seen[name] for name in ("scheduled", "departed", "arrived", "cancelled")]
                print(f"   {version:7} {seen.total():8,} " + "{:10,} {:9,} {:8,} {:10,}".format(*counts), flush=True)
        finally:
            stop.set()
        reads = sum(reader.result() for reader in readers)
    return seen, ends, reads
