"""Reading: pruning, exact filters, two readers that agree."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StructField, StructType

from airflow_provider_segments.core.model.interval import from_ms, parse_time
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.spark.build import build_segments
from airflow_provider_segments.spark.read import read_table, register
from tests.spark.conftest import MakeTable

DAY = 86_400_000
BOTH = pytest.mark.parametrize("through_arrow", [False, True], ids=["spark", "arrow"])


def push(spark: SparkSession, table: Table, source: DataFrame) -> str:
    """Start, build, end."""
    entry = table.start().entry_id
    build_segments(spark, table, entry, source)
    table.end(entry)
    return entry


def days(spark: SparkSession, count: int) -> DataFrame:
    """One row every six hours from the first of January 2013 on."""
    return spark.range(4 * count).select(
        F.timestamp_millis(F.lit(parse_time("2013-01-01")) + F.col("id") * 21_600_000).alias("at"),
        F.col("id").cast("int").alias("x"),
        F.when(F.col("id") % 3 > 0, F.col("id") / 2).alias("half"),
        F.array(F.col("id")).alias("list"),
    )


def files_read(frame: DataFrame) -> set[str]:
    """Names of the files that a scan by Spark's reader opens."""
    return {str(Path(name).name) for name in frame.inputFiles()}


@BOTH
def test_a_time_range_is_exact_and_reads_only_its_segments(
    spark: SparkSession, make_table: MakeTable, through_arrow: bool
) -> None:
    """From noon to noon: two days' segments of ten, and the rows in between."""
    table = make_table(segmentGranularity="DAY", sort=["at"])
    push(spark, table, days(spark, 10))
    start, end = "2013-01-03T12:00:00", "2013-01-04T12:00:00"
    frame = read_table(spark, table.store, "events", start=start, end=end, through_arrow=through_arrow)
    assert sorted(row["x"] for row in frame.collect()) == [10, 11, 12, 13]
    if not through_arrow:
        assert files_read(frame) == {Path(key).name for key in table.snapshot(parse_time(start), parse_time(end)).files}
        assert len(files_read(frame)) == 2
    else:
        assert frame.rdd.getNumPartitions() == 1


def test_both_readers_agree(spark: SparkSession, make_table: MakeTable) -> None:
    """Rows and schema, under filters that are pushed down and filters that are not."""
    table = make_table(segmentGranularity="WEEK", sort=["x"], statisticsColumns=["half"])
    push(spark, table, days(spark, 30))
    native, arrow = (read_table(spark, table.store, "events", through_arrow=one) for one in (False, True))
    assert native.schema == arrow.schema
    at = F.timestamp_millis(F.lit(parse_time("2013-01-12T06:00:00")).cast("bigint"))
    x, half, when = F.col("x"), F.col("half"), F.col("at")
    filters: list[Any] = [
        F.lit(True), x == 7, x.isin(1, 100, 1000), x > 110, x <= 3, half.isNull(), half.isNotNull(), half > 50.0,
        when >= at, when == at, when < at, (x % 2 == 0) & (x < 20), F.col("list")[0] == 5, x != 3,
    ]  # fmt: skip
    for one in filters:
        found = [sorted(map(str, frame.filter(one).collect())) for frame in (native, arrow)]
        assert found[0] == found[1], one
    assert arrow.filter("x = 7").rdd.getNumPartitions() == 1


@BOTH
def test_frames_of_several_tables_and_times_do_not_become_each_other(
    spark: SparkSession, make_table: MakeTable, through_arrow: bool
) -> None:
    """Each reads what it was made from, also when it is planned after the others were made: joined, or one by one."""
    one, two = make_table("one", segmentGranularity="DAY"), make_table("two", segmentGranularity="DAY")
    push(spark, one, days(spark, 3))
    push(spark, two, days(spark, 5))
    read = lambda name, **how: read_table(spark, one.store, name, through_arrow=through_arrow, **how)  # noqa: E731
    first, part, second = read("one"), read("one", start="2013-01-02", end="2013-01-03"), read("two")
    assert (second.count(), part.count(), first.count()) == (20, 4, 12)
    assert first.join(second.select("x"), "x").count() == 12
    assert second.join(part.select("x"), "x", "left_anti").count() == 16


def test_nan_is_greater_than_every_number_for_both_readers(spark: SparkSession, make_table: MakeTable) -> None:
    """So a filter on a floating column is not pushed to Arrow, whose NaN is not."""
    table = make_table(time=None, statisticsColumns=["v"])
    push(spark, table, spark.createDataFrame([(float("nan"),), (1.0,), (None,)], "v double"))
    for through_arrow in (False, True):
        frame = read_table(spark, table.store, "events", through_arrow=through_arrow)
        assert [str(row["v"]) for row in frame.filter("v > 5").collect()] == ["nan"]


@BOTH
def test_columns_and_schema_evolution(spark: SparkSession, make_table: MakeTable, through_arrow: bool) -> None:
    """The newest segment's schema; a column that older ones lack is null in them."""
    table = make_table(timeFormat="EPOCH_MILLIS", segmentGranularity="DAY")
    push(spark, table, spark.createDataFrame([(1, 1)], "at long, x int"))
    push(spark, table, spark.createDataFrame([(DAY, 2, "new")], "at long, x int, `a name` string"))
    frame = read_table(spark, table.store, "events", through_arrow=through_arrow)
    assert sorted(map(tuple, frame.collect())) == [(1, 1, None), (DAY, 2, "new")]
    some = read_table(
        spark, table.store, "events", start=1, end=2, columns=["a name", "x"], through_arrow=through_arrow
    )
    assert some.columns == ["a name", "x"]
    assert some.collect() == [(None, 1)]


@BOTH
@pytest.mark.parametrize(
    ("ddl", "time_format", "value"),
    [
        ("date", "TIMESTAMP", lambda at: from_ms(at).date()),
        ("timestamp_ntz", "TIMESTAMP", lambda at: from_ms(at).replace(tzinfo=None)),
        ("string", "TIMESTAMP", lambda at: from_ms(at).isoformat()),
        ("long", "EPOCH_SECONDS", lambda at: at // 1000),
        ("long", "EPOCH_MICROS", lambda at: at * 1000),
        ("string", "dd.MM.yyyy", lambda at: f"{from_ms(at):%d.%m.%Y}"),
    ],
    ids=["date", "ntz", "text", "seconds", "micros", "pattern"],
)
def test_the_filter_is_exact_for_every_kind_of_time(
    spark: SparkSession, make_table: MakeTable, through_arrow: bool, ddl: str, time_format: str, value: Any
) -> None:
    """Also where only the parsed time can be compared."""
    table = make_table(timeFormat=time_format, segmentGranularity="MONTH")
    source = [(value(day * DAY), day) for day in range(-3, 4)]
    push(spark, table, spark.createDataFrame(source, f"at {ddl}, x int"))
    frame = read_table(spark, table.store, "events", start=-2 * DAY, end=2 * DAY, through_arrow=through_arrow)
    assert sorted(row["x"] for row in frame.collect()) == [-2, -1, 0, 1]
    assert read_table(spark, table.store, "events", start=1, end=2, through_arrow=through_arrow).count() == 0


@BOTH
def test_an_earlier_snapshot_can_be_read(spark: SparkSession, make_table: MakeTable, through_arrow: bool) -> None:
    """As of an entry that is still kept; the frame holds on to the snapshot it was made from."""
    table = make_table(timeFormat="EPOCH_MILLIS", kind="REFRESH")
    first = push(spark, table, spark.createDataFrame([(1, 1)], "at long, x int"))
    before = read_table(spark, table.store, "events", through_arrow=through_arrow)
    push(spark, table, spark.createDataFrame([(1, 2)], "at long, x int"))
    read = lambda **options: read_table(spark, table.store, "events", through_arrow=through_arrow, **options).collect()  # noqa: E731
    assert read() == [(1, 2)]
    assert read(as_of=first) == before.collect() == [(1, 1)]


def test_a_table_without_segments_has_no_schema(spark: SparkSession, make_table: MakeTable) -> None:
    """Unless one is given; a time range without rows has the table's."""
    table = make_table(timeFormat="EPOCH_MILLIS", segmentGranularity="DAY")
    with pytest.raises(SourceDataError, match="table 'events' has no visible segments, and so no schema"):
        read_table(spark, table.store, "events")
    empty = read_table(spark, table.store, "events", schema=StructType([StructField("at", LongType())]))
    assert empty.collect() == []
    push(spark, table, spark.createDataFrame([(1, 1)], "at long, x int"))
    nothing = read_table(spark, table.store, "events", start=datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC))
    assert (nothing.columns, nothing.count()) == (["at", "x"], 0)


def test_the_data_source_reads_by_itself(
    spark: SparkSession, make_table: MakeTable, zk_hosts: str, cluster: str, storage_uri: str
) -> None:
    """``spark.read.format("segments")`` with nothing but its options."""
    table = make_table(segmentGranularity="DAY", sort=["at"])
    push(spark, table, days(spark, 10))
    register(spark)

    def load(**options: str) -> DataFrame:
        given = {"zk_hosts": zk_hosts, "cluster": cluster, "storage_uri": storage_uri, "table": "events"}
        return spark.read.format("segments").options(**given, **options).load()

    assert sorted(load().collect()) == sorted(days(spark, 10).collect())
    assert load(start="2013-01-05", end="2013-01-06").count() == 4
    assert load().filter("x between 3 and 5").count() == 3
    with pytest.raises(Exception, match="needs the option table"):
        spark.read.format("segments").options(zk_hosts=zk_hosts, storage_uri=storage_uri).load()
