"""The time of a row and its chunk."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_provider_segments.arrow.writing import chunk_starts
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import MAX_MS, MIN_MS, Granularity, parse_time
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.spark.times import chunk_start, time_ms

_BORDERS = [
    "1969-12-29",
    "1970-01-01",
    "2012-12-31",
    "2013-01-01",
    "2016-02-29",
    "2020-03-01",
    "2021-01-03",
    "1000-01-01",
]
_EDGES = [MIN_MS, MIN_MS + 1, -1, 0, MAX_MS - 1, *(parse_time(day) + off for day in _BORDERS for off in (-1, 0, 1))]


def _times(spark: SparkSession, rows: list[Any], ddl: str, time_format: str = "TIMESTAMP") -> list[int | None]:
    config = TableConfig("t", time_column="at", time_format=time_format)
    source = spark.createDataFrame([(row,) for row in rows], f"at {ddl}")
    column = time_ms(config, source.schema)
    assert column is not None
    return [row[0] for row in source.select(column).collect()]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(MIN_MS, MAX_MS - 1) | st.sampled_from(_EDGES), min_size=1, max_size=200))
@example(_EDGES)
def test_spark_and_numpy_put_every_time_into_the_chunk_the_model_does(spark: SparkSession, times: list[int]) -> None:
    """For all granularities, over the years 1 to 9999, borders of weeks, months and years included."""
    frame = spark.createDataFrame([(at,) for at in times], "ms long")
    columns = [chunk_start(granularity, F.col("ms")).alias(granularity.name) for granularity in Granularity]
    found = frame.select(*columns).collect()
    for granularity in Granularity:
        expected = [granularity.floor(at) for at in times]
        assert [row[granularity.name] for row in found] == expected
        assert chunk_starts(numpy.array(times), granularity).tolist() == expected


def test_text_without_a_zone_is_utc_whatever_the_sessions_zone(spark: SparkSession) -> None:
    """02:30 on the day clocks go forward does not exist in the session's zone, and still is 02:30 UTC."""
    texts = [
        "2013-03-10 02:30:00",
        "2013-03-10T02:30:00.999999",
        "2013-11-03 01:30:00",
        "2013-01-01",
        "1969-12-31 23:59:59.9999",
    ]
    assert _times(spark, texts, "string") == [parse_time(text) for text in texts]


def test_text_with_a_zone_is_that_instant(spark: SparkSession) -> None:
    """Offsets, Z and names."""
    texts = ["2013-03-10T02:30:00Z", "2013-03-10 02:30:00+05:30", "2013-07-01 00:00:00 Europe/Paris"]
    assert _times(spark, texts, "string") == [
        parse_time("2013-03-10T02:30:00"),
        parse_time("2013-03-09T21:00:00"),
        parse_time("2013-06-30T22:00:00"),
    ]


def test_what_is_no_time_is_null(spark: SparkSession) -> None:
    """Among them a time of day alone, which Spark itself would read as today's."""
    texts = [None, "", "yesterday", "T12:30", "12:30:00", "2013-02-30", "20130101", "0000-12-31", "10000-01-01"]
    assert _times(spark, texts, "string") == [None] * len(texts)


def test_timestamps_without_a_zone_are_utc(spark: SparkSession) -> None:
    """TIMESTAMP_NTZ, in the gap and before 1970; fractions are rounded down."""
    times = [datetime.datetime(2013, 3, 10, 2, 30), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_900)]
    assert _times(spark, times, "timestamp_ntz") == [parse_time("2013-03-10T02:30"), -1]


def test_timestamps_are_instants(spark: SparkSession) -> None:
    """TIMESTAMP, also before 1970."""
    times = [
        datetime.datetime(2013, 3, 10, 2, 30, tzinfo=datetime.UTC),
        datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC),
    ]
    assert _times(spark, times, "timestamp") == [parse_time("2013-03-10T02:30"), parse_time("1960-01-01")]


def test_dates_start_at_midnight_utc(spark: SparkSession) -> None:
    """DATE."""
    assert _times(spark, [datetime.date(1969, 12, 31), datetime.date(2016, 2, 29)], "date") == [
        -86_400_000,
        parse_time("2016-02-29"),
    ]


@pytest.mark.parametrize(
    ("time_format", "ddl", "value", "expected"),
    [
        ("EPOCH_SECONDS", "long", -1, -1000),
        ("EPOCH_SECONDS", "int", 1_362_882_600, 1_362_882_600_000),
        ("EPOCH_SECONDS", "double", -0.0001, -1),
        ("EPOCH_SECONDS", "double", float("nan"), None),
        ("EPOCH_SECONDS", "double", float("inf"), None),
        ("EPOCH_SECONDS", "long", 2**62, None),
        ("EPOCH_SECONDS", "decimal(12,2)", decimal.Decimal("1.25"), 1250),
        ("EPOCH_MILLIS", "long", MAX_MS, None),
        ("EPOCH_MILLIS", "long", MIN_MS, MIN_MS),
        ("EPOCH_MILLIS", "string", "1500", 1500),
        ("EPOCH_MILLIS", "string", "soon", None),
        ("EPOCH_MICROS", "long", -1, -1),
        ("EPOCH_MICROS", "long", 1_999, 1),
        ("dd/MM/yyyy HH:mm", "string", "10/03/2013 02:30", parse_time("2013-03-10T02:30")),
        ("dd/MM/yyyy HH:mm", "string", "2013-03-10", None),
        ("yyyyMMdd", "int", 20130310, parse_time("2013-03-10")),
        ("yyyy-MM-dd'Z'HH:mm", "string", "2013-03-10Z02:30", parse_time("2013-03-10T02:30")),
        ("yyyy-MM-dd HH:mm XXX", "string", "2013-03-10 02:30 +01:00", parse_time("2013-03-10T01:30")),
    ],
)
def test_numbers_and_patterns(
    spark: SparkSession, time_format: str, ddl: str, value: Any, expected: int | None
) -> None:
    """Epochs in three units of any number type, and Spark's datetime patterns, in UTC unless they hold a zone."""
    assert _times(spark, [value], ddl, time_format) == [expected]


@pytest.mark.parametrize(
    ("ddl", "time_format"),
    [("long", "TIMESTAMP"), ("array<int>", "EPOCH_MILLIS"), ("date", "EPOCH_MILLIS"), ("double", "yyyy")],
)
def test_a_type_the_format_cannot_be_read_from_is_refused(spark: SparkSession, ddl: str, time_format: str) -> None:
    """With the column, its type and what to set."""
    with pytest.raises(SourceDataError, match=r"table 't': time column 'at' is .* set segmentBuildConfig.timeFormat"):
        _times(spark, [], ddl, time_format)


def test_an_absent_time_column_is_refused(spark: SparkSession) -> None:
    """With the columns there are."""
    schema = spark.range(1).schema
    with pytest.raises(SourceDataError, match="the input has no time column 'at'; it has id"):
        time_ms(TableConfig("t", time_column="at"), schema)
