"""What a micro-batch of an upsert table and a read of it cost.

``python -m benchmarks.upsert [KEYS] [BATCH] [BATCHES]``.

Events of random keys, four fifths of them known, against a table of KEYS keys, in one process, with objects in a local
folder and metadata in an embedded ZooKeeper. CPU time of the process; the times of others on the machine do not count.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pyarrow

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows

CONFIG = {
    "tableName": "t",
    "schema": {"primaryKeyColumns": ["k"]},
    "upsertConfig": {"mode": "FULL", "comparisonColumns": ["ts"]},
}


def events(first: int, count: int, keys: int, random: numpy.random.Generator) -> pyarrow.Table:
    """``count`` events from offset ``first`` on, of ``keys`` keys."""
    at = numpy.arange(first, first + count)
    return pyarrow.table(
        {
            "k": [f"customer-{key:09d}" for key in random.integers(0, keys, count).tolist()],
            "ts": at,
            "amount": random.random(count),
            "status": random.choice(["new", "paid", "sent", "back"], count),
            "$partition": numpy.zeros(count, numpy.int32),
            "$offset": at,
        }
    )


def measure(what: str, count: int, work: Callable[[], Any]) -> Any:
    """Run ``work`` and print its CPU and wall time for each of ``count`` rows."""
    cpu, wall = time.process_time(), time.monotonic()
    result = work()
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    print(f"{what:<44} {cpu / count * 1e6:8.2f} us CPU a row {cpu:8.2f} s CPU {wall:8.2f} s")
    return result


def main(keys: int = 1_000_000, batch: int = 50_000, batches: int = 5) -> None:
    """Fill a table, ingest small batches, read, compact, read again, rebuild the key stores."""
    random = numpy.random.default_rng(1)
    folder = Path(tempfile.mkdtemp(prefix="upsert-benchmark-"))
    with (
        EmbeddedZooKeeper(folder / "zookeeper", sync=False) as server,
        SegmentStore.connect(server.hosts, "c", (folder / "objects").as_uri()) as store,
    ):
        store.apply_config(TableConfig.from_json(CONFIG))
        table = store.table("t")
        ingestor = UpsertIngestor(table, cache=folder / "cache")
        first = events(0, keys, keys, random)
        measure(f"first batch of {keys:,}", keys, lambda: ingestor.ingest(first))
        at, switches = keys, []
        for size in (1_000, batch):
            for _ in range(batches):
                rows = events(at, size, keys * 5 // 4, random)
                at += size
                done = measure(f"batch of {size:,}", size, lambda rows=rows: ingestor.ingest(rows))
                switches.append(done.switch_ms)
        print(f"the publishing transaction: {sorted(switches)[len(switches) // 2]:.1f} ms (median)")
        rows = measure("read all valid rows", keys, lambda: read_rows(table)).num_rows
        stored = table.snapshot().rows
        print(f"{rows:,} keys; {stored - rows:,} of {stored:,} stored rows are dead ({(stored - rows) / stored:.0%})")
        measure("compaction", stored, lambda: UpsertCompactor(table, dead_share=0.0).run(floor=table.snapshot().mark))
        measure("read all valid rows, compacted", keys, lambda: read_rows(table))
        again = UpsertIngestor(table, name="again", cache=folder / "cache")
        more = events(at, 1_000, keys, random)
        measure(f"key stores rebuilt, and a batch of 1,000 ({rows:,} keys)", rows, lambda: again.ingest(more))
        size_of = sum(one.bytes for _, one in again.partitions.stores())
        print(f"key stores: {size_of / rows:.1f} bytes a key on the disk")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
