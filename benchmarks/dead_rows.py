"""What rows that are not valid any more cost a reader of an upsert table.

    python -m benchmarks.dead_rows [KEYS [SHARE ...]]

For each share of dead rows, by default 0, 0.01, 0.1 and 0.5, the same four queries, by Spark and Arrow. All in one
process and a local folder, the three sources in turn, five rounds; CPU seconds of this process and its children
(Spark's JVM among them), medians, so times of others on the machine do not count.

======  ===========================================================================================
plain   the live rows alone, in a table without upsert, in files of the same number
files   the upsert table's own files, all their rows: what the reader would pay if it did not care
ours    ``read_table`` and ``read_rows``: the live rows of the upsert table
======  ===========================================================================================
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from airflow_provider_segments.arrow.inputs import Source
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.local.build import build_segments
from airflow_provider_segments.spark.read import read_table
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import count_rows, read_rows
from benchmarks.report import machine, median, table
from benchmarks.upsert import measured

SHARES = (0.0, 0.01, 0.1, 0.5)
ROUNDS = 5
BATCHES = 8
COLUMNS = ["k", "ts", "amount", "status", "note"]


class Reader(Protocol):
    """One way to read a table."""

    def count(self) -> int:
        """How many rows there are."""

    def grouped(self) -> Any:
        """The sum of a column for each of four values of another."""

    def few(self) -> Any:
        """The sum over one row in a hundred, picked by a column that files are not sorted by."""

    def whole(self) -> Any:
        """All rows of all columns."""


@dataclass(frozen=True)
class Spark:
    """A data frame, made anew for each query as a job would."""

    frame: Callable[[], DataFrame]

    def count(self) -> int:
        return self.frame().count()

    def grouped(self) -> Any:
        return self.frame().groupBy("status").agg(F.sum("amount"), F.count("*")).collect()

    def few(self) -> Any:
        return self.frame().filter("amount < 0.01").agg(F.sum("ts")).collect()

    def whole(self) -> Any:
        self.frame().select(*COLUMNS).write.format("noop").mode("overwrite").save()


@dataclass(frozen=True)
class Arrow:
    """Columns of all rows in memory."""

    read: Callable[[list[str]], pyarrow.Table]
    count_of: Callable[[], int]

    def count(self) -> int:
        return self.count_of()

    def grouped(self) -> Any:
        return self.read(["status", "amount"]).group_by("status").aggregate([("amount", "sum"), ("amount", "count")])

    def few(self) -> Any:
        rows = self.read(["amount", "ts"])
        return pyarrow.compute.sum(rows.filter(pyarrow.compute.less(rows.column("amount"), 0.01)).column("ts"))

    def whole(self) -> Any:
        return self.read(COLUMNS)


@dataclass(frozen=True)
class Tables:
    """The upsert table with a share of dead rows, and a plain one with its live rows."""

    ours: Table
    plain: Table


def rows(keys: numpy.ndarray, first: int, random: numpy.random.Generator) -> pyarrow.Table:
    """An event for each of ``keys``, from offset ``first`` on."""
    count = len(keys)
    at = numpy.arange(first, first + count)
    return pyarrow.table(
        {
            "k": [f"customer-{key:09d}" for key in keys.tolist()],
            "ts": at,
            "amount": random.random(count),
            "status": random.choice(["new", "paid", "sent", "back"], count),
            "note": [f"note {value:x}" for value in random.integers(0, 2**40, count).tolist()],
            "$partition": numpy.zeros(count, numpy.int32),
            "$offset": at,
        }
    )


def fill(store: SegmentStore, folder: Path, keys: int, share: float, number: int) -> Tables:
    """Two tables with the same live rows; of the rows that the first has stored, ``share`` are dead."""
    random = numpy.random.default_rng(number)
    config = {
        "schema": {"primaryKeyColumns": ["k"]},
        "upsertConfig": {"mode": "FULL", "comparisonColumns": ["ts"], "keyPartitions": 1},
    }
    store.apply_config(TableConfig.from_json({"tableName": f"upsert{number}", **config}))
    store.apply_config(TableConfig.from_json({"tableName": f"plain{number}"}))
    ours, plain = store.table(f"upsert{number}"), store.table(f"plain{number}")
    ingestor = UpsertIngestor(ours, cache=folder / f"cache{number}")
    changed = round(keys * share / (1 - share))
    order = [*numpy.array_split(numpy.arange(keys), BATCHES), random.permutation(keys)[:changed]]
    at = 0
    for some in order:
        if len(some):
            ingestor.ingest(rows(some, at, random))
            at += len(some)
    push_live_rows(plain, read_rows(ours, columns=COLUMNS), folder / f"live{number}.parquet")
    return Tables(ours, plain)


def push_live_rows(plain: Table, live: pyarrow.Table, path: Path) -> None:
    """Push ``live`` into a table without upsert, in as many files as its batches were."""
    size = -(-live.num_rows // BATCHES)
    for at in range(0, live.num_rows, size):
        pyarrow.parquet.write_table(live.slice(at, size), path)
        entry_id = plain.start().entry_id
        build_segments(plain, entry_id, Source(str(path), "parquet", {}))
        plain.end(entry_id)


def readers(spark: SparkSession, store: SegmentStore, tables: Tables) -> dict[str, dict[str, Reader]]:
    """For each engine the three sources."""
    ours, plain = tables.ours, tables.plain
    of_ours, of_plain = files(ours), files(plain)
    schema = read_table(spark, store, ours.name).schema  # told, as ours is: to find it is a job of its own

    def live(columns: list[str]) -> pyarrow.Table:
        return read_rows(ours, columns=columns)

    return {
        "Spark": {
            "plain": Spark(lambda: read_table(spark, store, plain.name)),
            "files": Spark(lambda: spark.read.schema(schema).parquet(*of_ours)),
            "ours": Spark(lambda: read_table(spark, store, ours.name)),
        },
        "Arrow": {
            "plain": Arrow(lambda columns: arrow_files(of_plain, columns), lambda: arrow_count(of_plain)),
            "files": Arrow(lambda columns: arrow_files(of_ours, columns), lambda: arrow_count(of_ours)),
            "ours": Arrow(live, lambda: count_rows(ours)),
        },
    }


def files(table: Table) -> list[str]:
    """The paths of what a table shows."""
    with table.snapshot() as taken:
        return [url.removeprefix("file://") for url in taken.urls]


def arrow_files(paths: list[str], columns: list[str]) -> pyarrow.Table:
    """Those columns of all rows, file after file."""
    return pyarrow.concat_tables([pyarrow.parquet.ParquetFile(path).read(columns=columns) for path in paths])


def arrow_count(paths: list[str]) -> int:
    """How many rows the files have, by their footers."""
    return sum(pyarrow.parquet.read_metadata(path).num_rows for path in paths)


def check(sources: dict[str, Reader], engine: str) -> None:
    """Ours and the plain table must give the same answers."""
    ours, plain = sources["ours"], sources["plain"]
    assert ours.count() == plain.count(), engine
    assert ours.few() == plain.few(), engine


def compare(sources: dict[str, Reader]) -> Iterator[tuple[str, dict[str, float]]]:
    """For each query the median CPU seconds of each source, which take turns."""
    for query in ("count", "grouped", "few", "whole"):
        taken: dict[str, list[float]] = {name: [] for name in sources}
        for _ in range(ROUNDS + 1):  # the first is for warming up
            for name, reader in sources.items():
                _, cpu, _ = measured(getattr(reader, query))
                taken[name].append(cpu)
        yield query, {name: median(seconds[1:]) for name, seconds in taken.items()}


def run(spark: SparkSession, store: SegmentStore, folder: Path, keys: int, shares: Sequence[float]) -> None:
    """Fill and compare for each share of dead rows."""
    lines = []
    for number, share in enumerate(shares):
        tables = fill(store, folder, keys, share, number)
        for engine, sources in readers(spark, store, tables).items():
            check(sources, engine)
            for query, cpu in compare(sources):
                more = [f"{cpu['ours'] / cpu[other] - 1:+.0%}" for other in ("plain", "files")]
                lines.append([f"{share:.0%}", engine, query, *(f"{cpu[name]:.3f}" for name in sources), *more])
                print(lines[-1], file=sys.stderr)
    print(table(["dead", "", "query", "plain s", "files s", "ours s", "to plain", "to files"], lines))


def main(keys: int = 2_000_000, shares: Sequence[float] = SHARES) -> None:
    """Everything in a folder that is removed."""
    print(machine())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dead-rows-")))
        server = stack.enter_context(EmbeddedZooKeeper(folder / "zookeeper", sync=False))
        store = stack.enter_context(SegmentStore.connect(server.hosts, "c", (folder / "objects").as_uri()))
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        run(spark, store, folder, keys, shares)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *([[float(share) for share in sys.argv[2:]]] if sys.argv[2:] else []))
