"""Four ways to make few large files of many small ones. Each works on a fresh copy, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.segment import StagedSegment
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.spark.environment import spark_environment
from benchmarks.events import Input, fingerprint, order_of
from benchmarks.places import Place, key_of
from benchmarks.systems import open_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW_GROUP = 262_144


@dataclass(frozen=True)
class Setup:
    """What every system is given: the input, the rows an output file is to have, for those that keep a table a place
    for it, and for ours ZooKeeper."""

    source: Input
    target_rows: int
    hosts: str
    place: Place
    shape: str
    locking: bool

    @property
    def outputs(self) -> int:
        """How many files of the target size that makes."""
        per_day = self.source.rows // self.source.days
        return self.source.days * max(1, round(per_day / self.target_rows))


@dataclass(frozen=True)
class Done:
    """One round: what it took, and what was found afterwards. ``peak`` and ``bytes`` in bytes."""

    seconds: float
    cpu: float
    peak: int
    files: int
    bytes: int
    rows: int
    order: str


Rewrite = Callable[[int], Done]


@contextmanager
def segments(setup: Setup, folder: Path) -> Iterator[Rewrite]:
    """Ours, through Spark, with everything that it checks."""
    from airflow_provider_segments.spark.compact import compact_table

    place = setup.place.at(folder.name)
    with spark_session(folder) as spark, open_segments(setup.hosts, place) as store:

        def rewrite(number: int) -> Done:
            table = _our_table(store, setup, place, number)
            done = Timer()
            report = compact_table(spark, table, identity=f"round {number}")
            done.stop()
            if report.failed:
                raise RuntimeError(report.failed[0].error)
            found = place.paths([segment.key for segment in table.snapshot().segments], _copies(folder, number))
            return done.checked(setup, found)

        yield rewrite


def _our_table(store: SegmentStore, setup: Setup, place: Place, number: int) -> Table:
    """A table with the input's files as one push."""
    name = f"events_{setup.shape}_{number}"
    build: dict[str, Any] = {"segmentGranularity": "DAY", "targetRowsPerSegment": setup.target_rows}
    if setup.locking:
        build["segmentLocking"] = True
    document = {
        "tableName": name,
        "segmentsConfig": {"timeColumnName": "at"},
        "segmentBuildConfig": build,
        "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "APPEND"}},
    }
    store.apply_config(TableConfig.from_json(document))
    table = store.table(name)
    started = table.start()
    ticket = table.open_stage(started.entry_id)
    place.put((setup.source.path(one), ticket.prefix + one.record.file) for one in setup.source.files)
    table.stage(ticket, setup.source.files)
    table.end(started.entry_id)
    return table


@contextmanager
def spark(setup: Setup, folder: Path) -> Iterator[Rewrite]:
    """Plain Spark: read, sort, write."""
    with spark_session(folder) as session:
        session.conf.set("spark.sql.shuffle.partitions", str(setup.outputs))
        session.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")

        def rewrite(number: int) -> Done:
            source, out = folder / f"in-{number}", folder / f"out-{number}"
            _copy(setup, lambda _: source)
            done = Timer()
            session.read.parquet(str(source)).sort("at").write.option("compression", "zstd").parquet(str(out))
            done.stop()
            return done.checked(setup, list(out.glob("*.parquet")))

        yield rewrite


@contextmanager
def delta(setup: Setup, folder: Path) -> Iterator[Rewrite]:
    """delta-rs: its own compaction, which does not sort."""
    from deltalake import DeltaTable, Field, Schema, WriterProperties, convert_to_deltalake

    size = setup.source.bytes * 11 // 10 // setup.outputs  # it makes one file more when it is exact
    properties = WriterProperties(compression="ZSTD")

    options = setup.place.delta_options()

    def rewrite(number: int) -> Done:
        place = setup.place.at(f"{folder.name}-{number}")
        parted = setup.source.days > 1
        days = [f"day={one.chunk}/" if parted else "" for one in setup.source.files]
        place.put(
            (setup.source.path(one), day + one.record.file) for one, day in zip(setup.source.files, days, strict=True)
        )
        hive: Any = {"partition_by": Schema([Field("day", "string")]), "partition_strategy": "hive"} if parted else {}
        convert_to_deltalake(place.uri, storage_options=options, **hive)
        done = Timer()
        table = DeltaTable(place.uri, storage_options=options)
        metrics = table.optimize.compact(target_size=size, writer_properties=properties)
        done.stop()
        assert metrics["numFilesRemoved"] == len(setup.source.files)
        keys = [key_of(place, uri) for uri in DeltaTable(place.uri, storage_options=options).file_uris()]
        return done.checked(setup, place.paths(keys, _copies(folder, number)))

    yield rewrite


@contextmanager
def duckdb(setup: Setup, folder: Path) -> Iterator[Rewrite]:
    """DuckDB: one sorted file a chunk. Where it cuts files by size, it does not keep their order."""
    import duckdb

    with duckdb.connect() as database:
        database.execute("SET enable_progress_bar = false")

        def rewrite(number: int) -> Done:
            source, out = folder / f"in-{number}", folder / f"out-{number}"
            _copy(setup, lambda one: source / one.chunk)
            out.mkdir()
            done = Timer()
            for chunk in sorted(source.iterdir()):
                options = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP}"
                rows = f"""SELECT * FROM read_parquet('{chunk}/*.parquet', hive_partitioning = false) ORDER BY "at" """
                database.execute(f"COPY ({rows}) TO '{out / chunk.name}.parquet' ({options})")
            done.stop()
            return done.checked(setup, list(out.glob("*.parquet")))

        yield rewrite


REWRITERS: dict[str, Callable[[Setup, Path], contextlib.AbstractContextManager[Rewrite]]] = {
    "segments": segments,
    "spark": spark,
    "delta-rs": delta,
    "duckdb": duckdb,
}


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """Two cores, as both of our ways through Spark get it."""
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


class Timer:
    """Time, CPU time and peak memory of this process and all below it, from now until ``stop``."""

    def __init__(self) -> None:
        for process in _tree():
            with contextlib.suppress(OSError):
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")
        self._cpu = cpu_seconds()
        self._began = time.perf_counter()
        self._found = (0.0, 0.0, 0)

    def stop(self) -> None:
        """Keep the figures."""
        seconds = time.perf_counter() - self._began
        self._found = (seconds, cpu_seconds() - self._cpu, sum(_peak(process.pid) for process in _tree()))

    def checked(self, setup: Setup, paths: list[Path]) -> Done:
        """The round, if the files hold exactly the input's rows."""
        found = fingerprint(paths)
        if found != setup.source.fingerprint:
            raise RuntimeError(f"the rows are not the input's: {found} instead of {setup.source.fingerprint}")
        return Done(*self._found, len(paths), sum(path.stat().st_size for path in paths), found[0], order_of(paths))


def cpu_seconds() -> float:
    """CPU time of this process and all below it, ended children included."""
    found = 0.0
    for process in _tree():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += sum(process.cpu_times()[:4])
    return found


def _tree() -> list[Any]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def _peak(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _copies(folder: Path, number: int) -> Path:
    """Where files that are not on this disk are copied to, to be read."""
    copies = folder / f"copies-{number}"
    copies.mkdir()
    return copies


def _copy(setup: Setup, place: Callable[[StagedSegment], Path]) -> None:
    made: set[Path] = set()
    for one in setup.source.files:
        folder = place(one)
        if folder not in made:
            folder.mkdir(parents=True, exist_ok=True)
            made.add(folder)
        shutil.copyfile(setup.source.path(one), folder / one.record.file)
