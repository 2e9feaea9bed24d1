"""What it costs to compare a table in two regions, and whether all that was done to one of them is found.

    python -m benchmarks.leapfrog [RECORDS]      20,000,000 records in each region

Two tables are filled by ingestion, from the same events: one of each record, and another one of every ninth, which
updates or deletes it. On its way into the second table, records are lost, doubled, altered and reordered, and last
writes and delete records are lost, at random. Then three Spark jobs take turns on the same session and the same rows,
after one that has read both tables once:

==================  ====================================================================================================
Leap Frog           ``compare_regions``: key, hash and place of each row are shuffled; findings are pushed
every column        a full outer join of whole rows, then column by column
join on the key     a full outer join of the keys alone, which finds what is missing and nothing else
==================  ====================================================================================================

It fails unless Leap Frog names exactly the keys that differ, and the digests the source partitions with a fault.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy
import psutil
import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.replication.heartbeat import Heartbeat
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.spark.environment import spark_environment
from airflow_provider_segments.spark.leapfrog import compare_regions, findings_table
from airflow_provider_segments.spark.read import read_table
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from benchmarks.report import end_properly, machine, table

SOURCES = (("eu", 0), ("eu", 1), ("us", 0), ("us", 1))
BATCH = 500_000
UPDATED = 9
"""Every ninth record has a second event; of these every fifth deletes."""
FAULTS = 20
"""Of each kind."""
COLUMNS = ["k", "ts", "amount", "status", "note"]
CONFIG = {
    "tableName": "t",
    "schema": {"primaryKeyColumns": ["k"]},
    "upsertConfig": {
        "mode": "FULL",
        "comparisonColumns": ["ts"],
        "deleteRecordColumn": "deleted",
        "keyPartitions": 4,
        "regions": ["eu", "us"],
        "heartbeatInterval": "1m",
    },
}
ALTERED = 2

Column = numpy.ndarray[Any, Any]


@dataclass(frozen=True)
class Faults:
    """Records by what is done to them. All but the doubled ones are in other source partitions than those."""

    lost: Column
    altered: Column
    last_write_lost: Column
    delete_lost: Column
    reordered: Column
    doubled: Column

    @classmethod
    def choose(cls, count: int, rnd: random.Random) -> Faults:
        """Choose them at random. A record's source partition is its number modulo 4."""

        def some(fits: Callable[[int], bool]) -> Column:
            chosen: set[int] = set()
            while len(chosen) < FAULTS:
                record = rnd.randrange(count)
                if fits(record) and record not in taken:
                    chosen.add(record)
                    taken.add(record)
            return numpy.array(sorted(chosen))

        def is_in(record: int, *, updated: bool) -> bool:
            return record % 4 != 3 and (record % UPDATED == 0) is updated

        taken: set[int] = set()
        return cls(
            lost=some(lambda one: is_in(one, updated=False)),
            altered=some(lambda one: is_in(one, updated=False)),
            last_write_lost=some(lambda one: is_in(one, updated=True) and not deletes(one)),
            delete_lost=some(lambda one: is_in(one, updated=True) and bool(deletes(one))),
            reordered=some(lambda one: is_in(one, updated=True) and not deletes(one) and one // UPDATED % 2 == 1),
            doubled=some(lambda one: one % 4 == 3 and one % UPDATED != 0),
        )

    def expected(self) -> dict[str, str]:
        """The findings of keys: a doubled record changes none."""
        differing = (self.altered, self.last_write_lost, self.delete_lost, self.reordered)
        found = {key_of(record): "mismatch" for records in differing for record in records.tolist()}
        return found | {key_of(record): "missing in b" for record in self.lost.tolist()}

    def apply(self, keys: Column, versions: Column, second: bool) -> tuple[Column, Column, Column]:
        """The rows of a batch that arrive, as numbers of its rows; and what they are, by row of the batch."""
        told = versions.copy()
        told[numpy.isin(keys, self.altered)] = ALTERED
        swapped = numpy.isin(keys, self.reordered)
        told[swapped] = 1 - told[swapped]
        gone = numpy.isin(keys, numpy.concatenate([self.last_write_lost, self.delete_lost]) if second else self.lost)
        times = numpy.where(gone, 0, numpy.where(numpy.isin(keys, self.doubled), 2, 1))
        rows = numpy.repeat(numpy.arange(len(keys)), times)
        return rows, keys, told


def deletes(record: Any) -> Any:
    """Whether the second event of a record deletes it; also of many."""
    return record // UPDATED % 5 == 0


def key_of(record: int) -> str:
    """The record's key, as findings have it."""
    return f'{{"k":"record-{record:012d}"}}'


def events(count: int, faults: Faults | None) -> Iterator[pyarrow.Table]:
    """All events of both regions, in batches; a heartbeat at the end."""
    updated = numpy.arange(0, count, UPDATED)
    for second, whole in ((False, numpy.arange(count)), (True, updated)):
        for low in range(0, len(whole), BATCH):
            keys = whole[low : low + BATCH]
            # The place among the events of its source partition: a fourth of the records are in each, in order.
            places = keys // 4 if not second else count // 4 + (keys // UPDATED) // 4
            versions = numpy.full(len(keys), int(second))
            rows = numpy.arange(len(keys))
            if faults is not None:
                rows, keys, versions = faults.apply(keys, versions, second)
            yield rows_of(keys[rows], versions[rows], places[rows])
    ends = [count // 4 + len(updated) // 4] * len(SOURCES)
    beat = records.encode(Heartbeat(1, 60_000, 0, 2)).decode()
    regions, parts = zip(*SOURCES, strict=True)
    yield pyarrow.table(
        {
            "$region": pyarrow.array(regions),
            "$partition": pyarrow.array(parts, pyarrow.int32()),
            "$offset": pyarrow.array(ends, pyarrow.int64()),
            "$heartbeat": pyarrow.array([beat] * len(SOURCES)),
        }
    )


def rows_of(keys: Column, versions: Column, places: Column) -> pyarrow.Table:
    """Events as ingestion takes them. Of every second updated record both events have one time: the place decides."""
    spread = keys * 2_654_435_761 % 1_000_003
    later = (versions == 1) & (keys // UPDATED % 2 == 0)
    source = keys % 4
    numbers = numpy.char.zfill(keys.astype("U12"), 12)
    return pyarrow.table(
        {
            "k": pyarrow.array(numpy.char.add("record-", numbers)),
            "ts": pyarrow.array(1_760_000_000_000 + keys // 1000 + later),
            "amount": pyarrow.array((spread + versions) / 7.0),
            "status": pyarrow.array(numpy.array(["new", "paid", "ALTERED"])[versions]),
            "note": pyarrow.array(numpy.char.add("note of some length ", spread.astype("U8"))),
            "deleted": pyarrow.array((versions == 1) & deletes(keys)),
            "$region": pyarrow.array(numpy.array(["eu", "eu", "us", "us"])[source]),
            "$partition": pyarrow.array(source % 2, pyarrow.int32()),
            "$offset": pyarrow.array(places, pyarrow.int64()),
        }
    )


def fill(of: Table, count: int, faults: Faults | None, cache: Path) -> None:
    """Ingest all events."""
    began, read = time.monotonic(), 0
    ingestor = UpsertIngestor(of, cache=cache)
    held: pyarrow.Table | None = None
    for batch in events(count, faults):
        _, held = ingest_to_barriers(ingestor, batch, held)
        read += batch.num_rows
    assert held is None
    took = time.monotonic() - began
    print(f"table {of.name}: {read:,} events in {took:.0f} s, {read / took:,.0f} a second", flush=True)


class Jobs:
    """Spark, and what its jobs have cost."""

    def __init__(self, folder: Path, memory: str) -> None:
        os.environ.update(spark_environment())
        self.spark = (
            SparkSession.builder.master("local[*]")
            .config("spark.driver.memory", memory)
            .config("spark.local.dir", str(folder / "spark"))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "OFF")
            .getOrCreate()
        )
        self.lines: list[list[str]] = []

    def shuffled(self) -> int:
        """Bytes that all tasks have written for others to read."""
        context = self.spark.sparkContext._jsc.sc()
        context.listenerBus().waitUntilEmpty()
        executors = context.statusStore().executorList(False)
        return sum(int(executors.apply(at).totalShuffleWrite()) for at in range(executors.size()))

    def measure(self, name: str, work: Callable[[], str]) -> None:
        """Run one job; ``work`` returns what it has found."""
        before, began = self.shuffled(), time.monotonic()
        found = work()
        took = time.monotonic() - began
        self.lines.append([name, f"{took:.1f}", f"{(self.shuffled() - before) / 2**20:,.1f}", found])


def join_on_the_key(spark: SparkSession, a: Table, b: Table) -> str:
    """Count the keys that one table lacks."""
    sides = [
        read_table(spark, one.store, one.name).select("k", F.lit(1).alias(name)) for one, name in ((a, "a"), (b, "b"))
    ]
    joined = sides[0].join(sides[1], "k", "full_outer")
    return f"{joined.filter(F.col('a').isNull() | F.col('b').isNull()).count():,} keys missing"


def every_column(spark: SparkSession, a: Table, b: Table) -> str:
    """Count the keys of which any column differs, or that one table lacks."""
    left, right = (read_table(spark, one.store, one.name).select(*COLUMNS) for one in (a, b))
    renamed = right.select(F.col("k"), *(F.col(name).alias(f"{name}_b") for name in COLUMNS[1:]))
    joined = left.join(renamed, "k", "full_outer")
    same = reduce(lambda x, y: x & y, (F.col(name).eqNullSafe(F.col(f"{name}_b")) for name in COLUMNS[1:]))
    return f"{joined.filter(~same).count():,} keys differ"


def leap_frog(spark: SparkSession, a: Table, b: Table, faults: Faults) -> str:
    """Compare, and check every finding."""
    findings = findings_table(a.store, "findings")
    done = compare_regions(spark, a, b, findings)
    rows = read_table(spark, findings.store, findings.name).select("kind", "key").collect()
    keys = {row["key"]: row["kind"] for row in rows if row["kind"] != "digest"}
    sources = {row["key"] for row in rows if row["kind"] == "digest"}
    if keys != faults.expected() or sources != {f"{region}/{part}" for region, part in SOURCES}:
        raise SystemExit(f"NOT ALL WAS FOUND, OR TOO MUCH: {done.counts}, digests of {sorted(sources)}")
    return ", ".join(f"{number:,} {kind}" for kind, number in done.counts.items())


def main(count: int = 20_000_000, memory: str = "6g") -> None:
    """Fill, break, compare."""
    end_properly()
    count -= count % (4 * UPDATED)
    print(f"{machine()}; {count:,} records in each region, {FAULTS} faults of each of 6 kinds", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leapfrog-benchmark-")))
        server = stack.enter_context(EmbeddedZooKeeper(folder / "zookeeper"))
        stores = [
            stack.enter_context(SegmentStore.connect(server.hosts, name, (folder / name).as_uri())) for name in "ab"
        ]
        faults = Faults.choose(count, random.Random(1))
        for store, broken in zip(stores, (None, faults), strict=True):
            store.apply_config(TableConfig.from_json(CONFIG))
            fill(store.table("t"), count, broken, folder / f"cache_{store.paths.cluster}")
        a, b = (store.table("t") for store in stores)
        jobs = Jobs(folder, memory)
        rows = [read_table(jobs.spark, one.store, one.name).agg(F.count("note")).collect()[0][0] for one in (a, b)]
        print(f"{rows[0]:,} and {rows[1]:,} rows", flush=True)
        jobs.measure("join on the key", lambda: join_on_the_key(jobs.spark, a, b))
        jobs.measure("every column", lambda: every_column(jobs.spark, a, b))
        jobs.measure("Leap Frog", lambda: leap_frog(jobs.spark, a, b, faults))
        print(table(["", "seconds", "MiB shuffled", "found"], jobs.lines))
        print(
            f"most memory of this process: {psutil.Process().memory_info().rss / 2**30:.1f} GiB now, JVM up to {memory}"
        )
        jobs.spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
