"""The build job, end to end: real Spark, real ZooKeeper, real files."""

from __future__ import annotations

import datetime
import decimal
import logging
import math
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_provider_segments.core.model.interval import Granularity, parse_time
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.exceptions import (
    EntryNotFoundError,
    InvalidConfigError,
    SourceDataError,
    StageRefusedError,
    TableNotFoundError,
)
from airflow_provider_segments.spark import build
from airflow_provider_segments.spark.build import build_segments, read_source
from tests.spark import faults
from tests.spark.conftest import MakeTable

DAY = 86_400_000


def events(spark: SparkSession, rows: list[tuple[Any, Any]], ddl: str = "at long, x int") -> DataFrame:
    """A source of times and numbers."""
    return spark.createDataFrame(rows, ddl)


def push(spark: SparkSession, table: Table, source: DataFrame, **options: Any) -> build.BuiltPush:
    """Start, build, end."""
    entry = table.start().entry_id
    built = build_segments(spark, table, entry, source, **options)
    table.end(entry)
    return built


def contents(table: Table, entry: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """Rows of each visible (or staged) segment by name, read with Arrow."""
    snapshot = table.snapshot() if entry is None else table.staged(entry)
    return {
        segment.name: pyarrow.parquet.read_table(table.storage.open(segment.key)).to_pylist()
        for segment in snapshot.segments
    }


def objects(table: Table) -> list[str]:
    """Every object below the table's folder."""
    return [found.key for found in table.storage.list(f"{table.name}/")]


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.integers(-400 * DAY, 400 * DAY), st.integers(-5, 5) | st.none()), min_size=1, max_size=300
    ),
    granularity=st.sampled_from(list(Granularity)),
    target=st.integers(3, 200),
)
def test_all_rows_arrive_once_in_their_chunk_sorted_and_within_the_target(
    spark: SparkSession,
    make_table: MakeTable,
    rows: list[tuple[int, int | None]],
    granularity: Granularity,
    target: int,
) -> None:
    """Ties, nulls, chunks that have to be split and chunks that share a task."""
    table = make_table(
        sort=["x"], timeFormat="EPOCH_MILLIS", segmentGranularity=granularity.name, targetRowsPerSegment=target
    )
    entry = table.start().entry_id
    built = build_segments(spark, table, entry, events(spark, rows))
    staged = table.staged(entry)
    found = contents(table, entry)
    assert sorted(((row["at"], row["x"]) for part in found.values() for row in part), key=str) == sorted(rows, key=str)
    assert (built.rows, built.segments, built.bytes) == (len(rows), len(staged), staged.bytes)
    for segment in staged.segments:
        times = [row["at"] for row in found[segment.name]]
        values = [row["x"] for row in found[segment.name]]
        assert {granularity.chunk_name(at) for at in times} == {segment.chunk}
        assert (segment.min_time_ms, segment.max_time_ms) == (min(times), max(times))
        assert segment.rows == len(times) <= target
        assert values == sorted(values, key=lambda value: (value is None, value or 0))
    table.revert(entry, force=True)


def test_slices_of_one_chunk_do_not_overlap_in_the_sort_column_and_are_even(
    spark: SparkSession, make_table: MakeTable
) -> None:
    """One value in half of the rows is spread over several slices, not heaped into one."""
    table = make_table(time=None, sort=["x", "y"], targetRowsPerSegment=2_000)
    source = spark.range(20_000).select(
        F.when(F.col("id") % 2 == 0, 7).otherwise(F.col("id") % 1000).cast("int").alias("x"), F.col("id").alias("y")
    )
    push(spark, table, source)
    ranges = sorted((part[0]["x"], part[-1]["x"], len(part)) for part in contents(table).values())
    assert all(left[1] <= right[0] for left, right in pairwise(ranges))
    assert sum(size for _, _, size in ranges) == 20_000
    assert max(size for _, _, size in ranges) <= 2_000
    assert len(ranges) <= 24


def test_without_time_and_sort_columns_rows_are_spread_evenly(spark: SparkSession, make_table: MakeTable) -> None:
    """By a hash of the row."""
    table = make_table(time=None, targetRowsPerSegment=500)
    built = push(spark, table, spark.range(3_000).withColumn("m", F.create_map(F.lit("k"), F.col("id"))))
    sizes = [len(part) for part in contents(table).values()]
    assert sum(sizes) == built.rows == 3_000
    assert max(sizes) <= 500
    assert {segment.chunk for segment in table.snapshot().segments} == {"ALL"}


def test_small_chunks_share_tasks(spark: SparkSession, make_table: MakeTable, caplog: pytest.LogCaptureFixture) -> None:
    """300 chunks of 10 rows are not 300 tasks."""
    caplog.set_level(logging.INFO)
    table = make_table(timeFormat="EPOCH_MILLIS", segmentGranularity="HOUR")
    source = spark.range(3_000).select((F.col("id") % 300 * 3_600_000).alias("at"), F.col("id").cast("int").alias("x"))
    assert push(spark, table, source).segments == 300
    assert "3,000 rows in 300 time chunks, 1 task\n" in caplog.text


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "orc", "table", "sql"])
def test_every_kind_of_input(spark: SparkSession, make_table: MakeTable, tmp_path: Path, kind: str) -> None:
    """The same rows from six places."""
    rows = spark.range(20).select((F.col("id") * DAY).alias("at"), F.col("id").cast("int").alias("x"))
    given, options, schema = str(tmp_path / "in"), {}, None
    match kind:
        case "csv":
            rows.write.option("header", True).csv(given)
            options, schema = {"header": "true"}, "at long, x int"
        case "table" | "sql":
            rows.createOrReplaceTempView("numbers")
            given = "numbers" if kind == "table" else "select * from numbers"
        case _:
            rows.write.format(kind).save(given)
    table = make_table(sort=["x"], timeFormat="EPOCH_MILLIS", segmentGranularity="DAY")
    push(spark, table, read_source(spark, given, kind, options, schema))
    found = [row for part in contents(table).values() for row in part]
    assert sorted(row["x"] for row in found) == list(range(20))
    assert len(table.snapshot()) == 20


@pytest.mark.parametrize(
    ("given", "kind"), [("/nowhere/at/all", "csv"), ("no_such_table", "table"), ("select oops", "sql")]
)
def test_an_input_that_cannot_be_read_is_named(spark: SparkSession, given: str, kind: str) -> None:
    """Path, table or query."""
    with pytest.raises(SourceDataError, match=given):
        read_source(spark, given, kind)


def test_all_types_pass_through(spark: SparkSession, make_table: MakeTable) -> None:
    """Decimal, binary, nested types, names with spaces and dots, and instants under the session's zone."""
    table = make_table(time="when it was", sort=["a.b", "when it was"])
    at = datetime.datetime(2013, 3, 10, 7, 30, tzinfo=datetime.UTC)
    row = (
        at,
        decimal.Decimal("1.50"),
        b"\x00\xff",
        {"k": [1, None]},
        (1, "é"),
        math.nan,
        datetime.date(1600, 2, 29),
        None,
    )
    ddl = (
        "`when it was` timestamp, `a.b` decimal(9,2), b binary, m map<string,array<int>>, s struct<i:int,t:string>, "
        "d double, day date, n string"
    )
    push(spark, table, spark.createDataFrame([row], ddl))
    [[found]] = contents(table).values()
    assert found["when it was"] == at
    assert (found["a.b"], found["b"], found["m"], found["s"]) == (
        row[1],
        row[2],
        [("k", [1, None])],
        {"i": 1, "t": "é"},
    )
    assert math.isnan(found["d"])
    assert (found["day"], found["n"]) == (row[6], None)
    [segment] = table.snapshot().segments
    assert segment.columns == {"a.b": ["1.50", "1.50", 0]}
    assert segment.min_time_ms == parse_time("2013-03-10T07:30")


BAD_ROWS = [("2013-01-01T10:00:00Z", 1), ("last tuesday", 2), (None, 3), ("2013-01-02", 4)]


def test_bad_times_are_refused_with_a_count_and_an_example(spark: SparkSession, make_table: MakeTable) -> None:
    """And nothing is staged or stored."""
    table = make_table()
    entry = table.start().entry_id
    with pytest.raises(
        SourceDataError, match=r"2 rows without a usable time in column 'at'.*for example \{\"at\":"
    ) as raised:
        build_segments(spark, table, entry, events(spark, BAD_ROWS, "at string, x int"))
    assert "nothing of this attempt is staged" in raised.value.__notes__[0]
    assert len(table.staged(entry)) == 0
    assert objects(table) == []


def test_bad_times_go_to_the_reject_folder_when_the_config_says_so(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    """Whole rows, below table and entry; the others are built."""
    table = make_table(onBadTime="reject")
    entry = table.start().entry_id
    built = build_segments(
        spark, table, entry, events(spark, BAD_ROWS, "at string, x int"), reject_folder=str(tmp_path / "bad")
    )
    assert (built.rows, built.rejected) == (2, 2)
    rejected = spark.read.schema("at string, x int").json(str(tmp_path / "bad" / "events" / f"{entry}.1"))
    assert sorted(row["x"] for row in rejected.collect()) == [2, 3]
    assert sorted(row["x"] for part in contents(table, entry).values() for row in part) == [1, 4]


def test_a_rejecting_table_needs_a_reject_folder(spark: SparkSession, make_table: MakeTable) -> None:
    """Before the attempt begins."""
    table = make_table(onBadTime="reject")
    with pytest.raises(InvalidConfigError, match="reject folder"):
        build_segments(spark, table, table.start().entry_id, events(spark, []))


def test_empty_input_is_refused_unless_allowed(spark: SparkSession, make_table: MakeTable) -> None:
    """Allowed, it stages nothing and the entry can be ended."""
    table = make_table(timeFormat="EPOCH_MILLIS")
    entry = table.start().entry_id
    with pytest.raises(SourceDataError, match="table 'events': the input has no rows"):
        build_segments(spark, table, entry, events(spark, []))
    assert build_segments(spark, table, entry, events(spark, []), allow_empty=True).segments == 0
    table.end(entry, allow_empty=True)


@pytest.mark.parametrize(
    ("config", "ddl", "message"),
    [
        ({"time": "then"}, "at long, x int", "the input has no time column 'then'; it has at, x"),
        ({"sort": ["y"]}, "at long, x int", "the input has no sort column 'y'"),
        ({"statisticsColumns": ["z"]}, "at long, x int", "the input has no statistics column 'z'"),
        ({"sort": ["x"]}, "at long, x array<int>", "sort column 'x' is array<int>"),
        ({}, "at long, X int, x int", "columns 'X' and 'x' are one name"),
        ({}, "at long, x interval day to second", "column 'x' has type interval day to second"),
        ({}, "at long, x struct<v:void>", "column 'x' has type void"),
    ],
)
def test_unfit_columns_are_refused(
    spark: SparkSession, make_table: MakeTable, config: dict[str, Any], ddl: str, message: str
) -> None:
    """By name, before anything is written."""
    table = make_table(**{"timeFormat": "EPOCH_MILLIS", **config})
    entry = table.start().entry_id
    with pytest.raises(SourceDataError, match=message.replace("[", r"\[")):
        build_segments(spark, table, entry, spark.createDataFrame([], ddl))
    assert objects(table) == []


def test_an_unknown_table_or_entry_is_refused(spark: SparkSession, make_table: MakeTable) -> None:
    """With the protocol's own errors."""
    table = make_table(timeFormat="EPOCH_MILLIS")
    with pytest.raises(EntryNotFoundError):
        build_segments(spark, table, "0b2f6c1e-8f5d-4c7a-9d35-1f0a2b3c4d5e", events(spark, [(1, 1)]))
    with pytest.raises(TableNotFoundError):
        build_segments(spark, table.store.table("nothing"), "0b2f6c1e-8f5d-4c7a-9d35-1f0a2b3c4d5e", events(spark, []))


@pytest.fixture
def break_uploads(tmp_path: Path) -> Callable[[Table, int], Table]:
    """The same table, of whose builds so many uploads arrive and then fail."""

    def arm(table: Table, times: int) -> Table:
        fuse = tmp_path / "fuse"
        fuse.mkdir()
        for number in range(times):
            (fuse / str(number)).touch()
        cloudpickle.register_pickle_by_value(sys.modules[faults.__name__])
        assert isinstance(table.storage, LocalStore)
        return table.store.replace(storage=faults.FailingStore(table.storage.root, fuse)).table(table.name)

    return arm


def test_a_failing_job_leaves_nothing_visible_and_its_objects_below_the_entry(
    spark: SparkSession, make_table: MakeTable, break_uploads: Callable[[Table, int], Table]
) -> None:
    """Every attempt of a task fails after its upload: the objects are there, and nobody knows them."""
    table = make_table(timeFormat="EPOCH_MILLIS", segmentGranularity="DAY")
    table = break_uploads(table, 100)
    entry = table.start().entry_id
    with pytest.raises(PythonException, match="failed on purpose") as raised:
        build_segments(spark, table, entry, events(spark, [(day * DAY, day) for day in range(4)]))
    assert entry in raised.value.__notes__[0]
    left = objects(table)
    assert left
    assert all(key.startswith(f"events/{entry}/") for key in left)
    assert (len(table.snapshot()), len(table.staged(entry))) == (0, 0)


def test_a_retried_task_yields_exactly_the_committed_objects(
    spark: SparkSession, make_table: MakeTable, break_uploads: Callable[[Table, int], Table]
) -> None:
    """What the first execution stored stays behind under a key of its own; rows are neither doubled nor lost."""
    table = make_table(timeFormat="EPOCH_MILLIS", segmentGranularity="DAY")
    table = break_uploads(table, 2)
    built = push(spark, table, events(spark, [(day * DAY, day) for day in range(4)]))
    assert (built.segments, built.rows) == (4, 4)
    assert sorted(row["x"] for part in contents(table).values() for row in part) == [0, 1, 2, 3]
    assert len(objects(table)) == 4 + 2
    assert set(table.snapshot().files) < set(objects(table))


def test_a_zombie_attempt_cannot_stage(
    spark: SparkSession, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer attempt was opened meanwhile: the older one writes all it likes and is refused at the end."""
    table = make_table(timeFormat="EPOCH_MILLIS")
    entry = table.start().entry_id
    old, new = table.open_stage(entry), table.open_stage(entry)
    monkeypatch.setattr(table, "open_stage", lambda *_: old)
    with pytest.raises(StageRefusedError, match="superseded"):
        build_segments(spark, table, entry, events(spark, [(1, 1)]))
    monkeypatch.setattr(table, "open_stage", lambda *_: new)
    assert build_segments(spark, table, entry, events(spark, [(1, 2)])).rows == 1
    assert [row["x"] for part in contents(table, entry).values() for row in part] == [2]


def test_a_rebuilt_stage_replaces_what_was_staged_before(spark: SparkSession, make_table: MakeTable) -> None:
    """The task of a DAG is retried: the second build counts, the first does not."""
    table = make_table(timeFormat="EPOCH_MILLIS")
    entry = table.start().entry_id
    build_segments(spark, table, entry, events(spark, [(1, 1), (2, 2)]))
    build_segments(spark, table, entry, events(spark, [(1, 3)]))
    table.end(entry)
    assert [row["x"] for part in contents(table).values() for row in part] == [3]


def test_two_stagers_share_an_entry(spark: SparkSession, make_table: MakeTable) -> None:
    """Their segments have different names, and both become visible."""
    table = make_table(timeFormat="EPOCH_MILLIS")
    entry = table.start().entry_id
    build_segments(spark, table, entry, events(spark, [(1, 1)]))
    build_segments(spark, table, entry, events(spark, [(1, 2)]), stager="late")
    table.end(entry)
    assert sorted(row["x"] for part in contents(table).values() for row in part) == [1, 2]


def test_a_source_that_is_more_than_a_scan_is_computed_once(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path
) -> None:
    """Random rows would otherwise differ between count and write."""
    table = make_table(time=None, sort=["x"], targetRowsPerSegment=50)
    built = push(spark, table, spark.range(400).select(F.rand().alias("x")).filter("x < 0.5"))
    assert built.rows == sum(len(part) for part in contents(table).values())
    files = tmp_path / "in"
    spark.range(3).write.parquet(str(files))
    scan = spark.read.parquet(str(files))
    assert build.is_cheap(scan.filter("id > 1").select((F.col("id") + 1).alias("next")))
    assert not build.is_cheap(scan.join(scan.withColumnRenamed("id", "other"), F.col("id") == F.col("other")))
    assert not build.is_cheap(scan.groupBy("id").count())
    assert not build.is_cheap(scan.filter(F.rand() < 0.5))


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_spark_reads_every_compression(spark: SparkSession, make_table: MakeTable, compression: str) -> None:
    """With its own Parquet reader."""
    table = make_table(timeFormat="EPOCH_MILLIS", compression=compression)
    push(spark, table, events(spark, [(1, 1), (2, 2)]))
    assert sorted(spark.read.parquet(*table.snapshot().urls).collect()) == [(1, 1), (2, 2)]
