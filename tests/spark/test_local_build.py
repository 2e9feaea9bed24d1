"""The engine without Spark beside Spark: the same segments, the same refusals, and nothing half done."""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from airflow_provider_segments.arrow.inputs import Source
from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import NeedsSparkError, SourceDataError, StageRefusedError
from airflow_provider_segments.local import build as local
from airflow_provider_segments.spark import build as with_spark
from tests.spark.conftest import MakeTable, document

ROOT = Path(__file__).resolve().parents[2]
INFERRED = {"header": "true", "inferSchema": "true"}
UTC = datetime.UTC


@pytest.fixture(scope="module")
def utc(spark: SparkSession) -> SparkSession:
    """Spark as a job has it: times without a zone are UTC's."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def files_of(root: Path) -> dict[str, bytes]:
    """Bytes of each segment by its name: keys also name the task that wrote them."""
    return {path.name.split(".")[0]: path.read_bytes() for path in root.rglob("*.parquet")}


def build_both(spark: SparkSession, config: TableConfig, source: Source, tmp_path: Path) -> list[dict[str, bytes]]:
    """One attempt's segments as Spark writes them, and as the engine without Spark does."""
    ticket = StageTicket(config.name, "0123456789abcdef", 7, "build", 1, f"{config.name}/0123456789abcdef/")
    stores = [LocalStore(tmp_path / name) for name in ("spark", "local")]
    rows = with_spark.read_source(spark, source.path, source.format, source.options)
    theirs = with_spark._Build(spark, config, ticket, rows, stores[0], None).run(allow_empty=False)
    timed = local.timed_rows(config, local.read_source(source))
    ours = local.write_rows(config, ticket, stores[1], timed)
    records = [
        {part.record.name: (part.chunk, msgspec.structs.replace(part.record, file="")) for part in written.segments}
        for written in (theirs, ours)
    ]
    assert records[0] == records[1]
    return [files_of(tmp_path / name) for name in ("spark", "local")]


def table_config(*, time: str | None = "at", sort: Any = (), **build: Any) -> TableConfig:
    """A config without a table."""
    return TableConfig.from_json(document("events", time=time, sort=sort, kind="APPEND", **build))


@pytest.mark.parametrize("granularity", ["DAY", "MONTH"])
@pytest.mark.parametrize("null", ["NA", ""])
def test_flights_become_the_same_segments_byte_for_byte(
    utc: SparkSession, flights_csv: Path, tmp_path: Path, granularity: str, null: str
) -> None:
    """27,000 rows with many of the same time: their order within a segment is that of the file."""
    january = tmp_path / "january.csv"
    with flights_csv.open("rb") as whole:
        january.write_bytes(b"".join(itertools.islice(whole, 27_001)))
    config = table_config(time="time_hour", sort=["time_hour"], segmentGranularity=granularity)
    source = Source(str(january), "csv", {**INFERRED, "nullValue": null})
    theirs, ours = build_both(utc, config, source, tmp_path)
    assert len(ours) == (32 if granularity == "DAY" else 2)
    assert ours == theirs


@pytest.mark.slow
def test_a_year_of_flights_becomes_the_same_segments_byte_for_byte(
    utc: SparkSession, flights_csv: Path, tmp_path: Path
) -> None:
    """Several tasks read and shuffle them, so the sort columns have to tell all rows apart."""
    keys = ["time_hour", "carrier", "flight", "origin", "sched_dep_time", "dep_time", "tailnum"]
    config = table_config(time="time_hour", sort=keys, segmentGranularity="MONTH")
    theirs, ours = build_both(utc, config, Source(str(flights_csv), "csv", INFERRED), tmp_path)
    assert len(ours) == 13
    assert ours == theirs


def every_type() -> pa.Table:
    """300 rows of three days, in each type that both engines read, with nulls and NaN."""
    at = [datetime.datetime(2026, 1, 1 + row % 3, 5, tzinfo=UTC) for row in range(300)]
    columns: dict[str, pa.Array] = {
        "at": pa.array(at, pa.timestamp("us", "Europe/Berlin")),
        "naive": pa.array([time.replace(tzinfo=None) for time in at], pa.timestamp("ms")),
        "day": pa.array([time.date() for time in at], pa.date32()),
        "flag": pa.array([None if row % 7 == 0 else row % 2 == 0 for row in range(300)]),
        "double": pa.array([math.nan if row == 1 else row / 7 for row in range(300)]),
        "float": pa.array([None if row % 5 == 0 else row / 3 for row in range(300)], pa.float32()),
        "price": pa.array([decimal.Decimal(row) / 4 for row in range(300)], pa.decimal128(12, 2)),
        "text": pa.array([f"ä{row % 9}" for row in range(300)], pa.large_string()),
        "kind": pa.array([f"k{row % 4}" for row in range(300)]).dictionary_encode(),
        "blob": pa.array([bytes([row % 256]) for row in range(300)]),
        "nothing": pa.array([None] * 300, pa.string()),
    }
    whole = {f"int{bits}": pa.array(range(300), pa.int64()).cast(f"int{bits}", safe=False) for bits in (8, 16, 32, 64)}
    return pa.table(columns | whole)


@pytest.mark.parametrize("sort", [(), ("kind", "int64"), ("double",), ("text", "blob")])
@pytest.mark.parametrize("target", [1_000_000, 100])
def test_every_type_of_parquet_becomes_the_same_segments_byte_for_byte(
    utc: SparkSession, tmp_path: Path, sort: tuple[str, ...], target: int
) -> None:
    """A NaN in one segment does not take the statistics of another one's footer."""
    path = tmp_path / "in.parquet"
    pq.write_table(every_type(), path)
    config = table_config(sort=sort, targetRowsPerSegment=target, statisticsColumns=["price", "day"])
    theirs, ours = build_both(utc, config, Source(str(path), "parquet", {}), tmp_path)
    assert len(ours) == 3
    assert ours == theirs


def test_what_spark_has_written_becomes_the_same_segments_byte_for_byte(utc: SparkSession, tmp_path: Path) -> None:
    """Times in the old 96-bit format, Spark's schema in the footer, a ``_SUCCESS`` beside it."""
    source = utc.range(1_000).selectExpr(
        "timestamp_millis(id * 60000) AS at", "cast(id AS decimal(20, 3)) AS price", "cast(id AS string) AS text"
    )
    folder = tmp_path / "in"
    source.coalesce(1).write.option("compression", "gzip").parquet(str(folder))
    theirs, ours = build_both(utc, table_config(), Source(str(folder), "parquet", {}), tmp_path)
    assert ours == theirs


CELLS = (
    "", "NA", "0", "7", "-3", "+3", "007", "2147483647", "2147483648", "-9223372036854775808", "99999999999999999999",
    "1.5", "-0.0", "1.", ".5", "1e3", "1d", "0x10", "NaN", "Inf", "-Infinity", "true", "FALSE", "yes", "x", "T7",
    "2026-01-31", "2026-02-30", "2026-1-1", "2026-01-31 10:00:00", "2026-01-31T10:00:00Z", "2026-01-31T10:00:00.123456",
    "T1:02", "2026-01-31T10:00:00+01:00", "10:00:00", "now", "today", "ä", " 7", "x y", '"q"', '"a,b"', '""', "a\\b",
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.sampled_from(CELLS), st.sampled_from(CELLS)), min_size=1, max_size=4)
    | st.lists(st.sampled_from(CELLS).map(lambda cell: (cell, "x")), min_size=2, max_size=2),
    null=st.sampled_from(["", "NA"]),
    infer=st.booleans(),
)
def test_a_csv_that_is_read_is_read_as_spark_reads_it(
    utc: SparkSession, tmp_path: Path, rows: list[tuple[str, str]], null: str, infer: bool
) -> None:
    """Names, types and values; whatever else there is, is left to Spark."""
    path = tmp_path / "in.csv"
    path.write_text("a,b\n" + "".join(f"{left},{right}\n" for left, right in rows))
    options = {"header": "true", "inferSchema": str(infer).lower(), "nullValue": null}
    try:
        ours = local.read_source(Source(str(path), "csv", options))
    except NeedsSparkError:
        event("left to Spark")
        return
    event("read")
    theirs = with_spark.read_source(utc, str(path), "csv", options)
    assert local.spark_schema(ours.schema) == theirs.schema.json()
    assert repr(ours.to_pylist()) == repr(theirs.toArrow().cast(ours.schema).to_pylist())


@pytest.mark.parametrize("cell", CELLS)
def test_each_kind_of_value_alone(utc: SparkSession, tmp_path: Path, cell: str) -> None:
    """As above, without chance; and plain values are not left to Spark."""
    path = tmp_path / "in.csv"
    path.write_text(f"a,b\n{cell},x\n")
    try:
        ours = local.read_source(Source(str(path), "csv", INFERRED))
    except NeedsSparkError:
        assert cell not in ("", "7", "-3", "2147483648", "1.5", "true", "x", "2026-01-31", "2026-01-31T10:00:00Z")
        return
    theirs = with_spark.read_source(utc, str(path), "csv", INFERRED)
    assert local.spark_schema(ours.schema) == theirs.schema.json()
    assert repr(ours.to_pylist()) == repr(theirs.toArrow().cast(ours.schema).to_pylist())


def csv(rows: str, **options: str) -> Callable[[Path], Source]:
    """A CSV file of ``rows``."""

    def write(path: Path) -> Source:
        path.write_text(rows)
        return Source(str(path), "csv", {**INFERRED, **options})

    return write


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (csv("at,x\n"), "no rows"),
        (csv("x\n1\n"), "no time column 'at'; it has x"),
        (csv("at,y\n2026-01-01 00:00:00,1\n"), "no sort column 'x'"),
        (csv("at,x,__segments_a\n2026-01-01 00:00:00,1,2\n"), "'__segments_a' cannot be a column's name"),
        (csv("at,x\n2026-01-01 00:00:00,1\n,2\n,3\n"), '2 rows without a usable time.*{"at":null,"x":2}'),
    ],
)
def test_refusals_are_the_same(
    utc: SparkSession, make_table: MakeTable, tmp_path: Path, source: Callable[[Path], Source], says: str
) -> None:
    """Word for word, and neither stages anything."""
    given = source(tmp_path / "in.csv")
    table = make_table(sort=["x"])
    entry = table.start().entry_id
    rows = with_spark.read_source(utc, given.path, given.format, given.options)
    with pytest.raises(SourceDataError, match=says) as theirs:
        with_spark.build_segments(utc, table, entry, rows)
    with pytest.raises(SourceDataError, match=says) as ours:
        local.build_segments(table, entry, given)
    assert str(ours.value) == str(theirs.value)
    assert len(table.staged(entry)) == 0


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("in.json", {}, "format 'json'"),
        ("absent.csv", {}, "no file .* at .*absent.csv"),
        ("in.csv,absent.csv", {}, "no file .* at .*absent.csv"),
        ("in.csv.gz", {}, "compressed"),
        ("gone/in.csv", {}, "cannot be seen from here .FileNotFoundError"),
        ("day=1/in.csv", {}, "folders give columns"),
        ("in.csv", {"password": "geheim"}, "option 'password'"),
        ("in.csv", {"header": "geheim"}, "option 'header'"),
        ("large.csv", {}, "more than 100"),
    ],
)
def test_what_is_not_surely_read_alike_is_left_to_spark(
    make_table: MakeTable, tmp_path: Path, name: str, options: dict[str, str], says: str
) -> None:
    """Before anything was announced; and no value of an option is shown."""
    table = make_table(time=None)
    entry = table.start().entry_id
    first, *others = (tmp_path / one for one in name.split(","))
    path = first
    path.parent.mkdir(exist_ok=True)
    if name.startswith("gone"):
        path.symlink_to(tmp_path / "nowhere")
        path = path.parent
    elif not name.startswith("absent"):
        path.write_text("a\n1\n" * (100 if name.startswith("large") else 1))
    source = Source(",".join(map(str, [path, *others])), "json" if name.endswith("json") else "csv", options)
    with pytest.raises(NeedsSparkError, match=says) as refused:
        local.build_segments(table, entry, source, most_bytes=100)
    assert "geheim" not in str(refused.value)
    assert not list(table.storage.list(f"{table.name}/"))
    assert table.open_stage(entry).attempt == 1, "no attempt was opened"


def write_csv(path: Path, days: int = 2, rows: int = 300) -> Source:
    """Rows of several days."""
    lines = (f"2026-01-{1 + row % days:02d} 00:00:00,{row}\n" for row in range(rows))
    path.write_text("at,x\n" + "".join(lines))
    return Source(str(path), "csv", INFERRED)


def test_a_push_shows_its_rows_once_it_is_ended(make_table: MakeTable, tmp_path: Path) -> None:
    """And the attempt before it can no longer stage."""
    table = make_table(segmentGranularity="DAY", targetRowsPerSegment=100)
    entry = table.start().entry_id
    zombie = table.open_stage(entry)
    built = local.build_segments(table, entry, write_csv(tmp_path / "in.csv"))
    assert (built.segments, built.rows, built.rejected) == (4, 300, 0)
    with pytest.raises(StageRefusedError):
        table.stage(zombie, [])
    assert table.snapshot().rows == 0
    table.end(entry)
    assert table.snapshot().rows == 300
    xs = [x for file in table.snapshot().files for x in pq.read_table(table.storage.open(file))["x"].to_pylist()]
    assert sorted(xs) == list(range(300))


@pytest.mark.parametrize("calls", range(5))
def test_a_build_that_is_cancelled_stages_nothing(make_table: MakeTable, tmp_path: Path, calls: int) -> None:
    """Before it begins to write, after each segment, and right before it would stage."""
    table = make_table(segmentGranularity="DAY", targetRowsPerSegment=150)
    entry = table.start().entry_id
    left = iter(range(calls))

    def cancelled() -> None:
        if next(left, None) is None:
            raise InterruptedError("the lock is lost")

    source = write_csv(tmp_path / "in.csv")
    if calls == 4:  # all that there are: before, two segments, before the stage
        assert local.build_segments(table, entry, source, check_cancelled=cancelled).rows == 300
        return
    with pytest.raises(InterruptedError):
        local.build_segments(table, entry, source, check_cancelled=cancelled)
    assert len(table.staged(entry)) == 0


def test_a_build_killed_at_any_write_shows_nothing_and_can_be_run_again(
    store: SegmentStore, make_table: MakeTable, tmp_path: Path
) -> None:
    """Killed before and after each write to ZooKeeper and to the store, enumerated."""
    source = write_csv(tmp_path / "in.csv")
    deaths = dict.fromkeys(("zookeeper", "store"), 0)
    for where, landed in itertools.product(deaths, (False, True)):
        for at in range(1, 20):
            table = make_table(f"{where}{landed:d}_{at}", segmentGranularity="DAY")
            entry = table.start().entry_id
            code = _build_in_a_process(store, table, entry, source.path, where, at, landed)
            if code == 0:
                break
            assert code == 9
            deaths[where] += 1
            assert len(table.snapshot()) == 0
            assert table.lineage().entries[entry].state is EntryState.IN_PROGRESS
            assert all(found.key.startswith(f"{table.name}/{entry}/") for found in table.storage.list(f"{table.name}/"))
            local.build_segments(table, entry, source)
            table.end(entry)
            assert table.snapshot().rows == 300
    assert deaths["zookeeper"] >= 4
    assert deaths["store"] == 4, "two files, before and after"


def _build_in_a_process(
    store: SegmentStore, table: Table, entry: str, source: str, where: str, at: int, landed: bool
) -> int:
    place = [store.session.settings.hosts, store.paths.cluster, store.storage.uri, table.name, entry]
    command = [sys.executable, "-m", "tests.spark.dying_local_build", *place, source, where, str(at), str(landed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=180, text=True)
    assert done.returncode in (0, 9), done.stderr
    return done.returncode
