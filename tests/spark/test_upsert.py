"""Upsert tables in Spark: every way to read gives the rows that Arrow reads at the same mark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.spark.read import read_table, register
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from tests.upsert.world import Event, to_arrow, upsert_config


@pytest.fixture
def filled(store: SegmentStore, tmp_path: Path) -> SegmentStore:
    """A table of 300 keys after eight versions, with dead rows and delete records in most of its files."""
    rnd = random.Random(11)
    store.apply_config(upsert_config())
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path / "cache")
    for version in range(8):
        rows = [
            Event(
                rnd.randrange(1000), 0, version * 200 + at, f"k{rnd.randrange(300)}", f"v{version}.{at}", at % 17 == 0
            )
            for at in range(200)
        ]
        ingestor.ingest(to_arrow(rows))
    return store


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def wanted(store: SegmentStore, mark: int | None = None) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in read_rows(store.table("t"), mark=mark).to_pylist())


@pytest.mark.parametrize("through_arrow", [False, True])
def test_a_frame_has_one_row_a_key_at_every_mark(
    spark: SparkSession, filled: SegmentStore, through_arrow: bool
) -> None:
    for mark in (1, 5, 8, None):
        frame = read_table(spark, filled, "t", mark=mark, through_arrow=through_arrow)
        assert frame.columns == ["k", "ts", "v", "deleted"]
        assert rows_of(frame) == wanted(filled, mark)


@pytest.mark.parametrize("through_arrow", [False, True])
def test_filters_and_aggregates_see_valid_rows_only(
    spark: SparkSession, filled: SegmentStore, through_arrow: bool
) -> None:
    rows = wanted(filled)
    frame = read_table(spark, filled, "t", through_arrow=through_arrow)
    assert frame.count() == len(rows)
    assert frame.agg(F.sum("ts")).first()[0] == sum(row[1] for row in rows)
    assert rows_of(frame.filter("ts < 300")) == [row for row in rows if row[1] < 300]
    assert rows_of(frame.filter("k = 'k7'").select("v")) == [(row[2],) for row in rows if row[0] == "k7"]


def test_the_format_reads_the_newest_mark_or_an_earlier_one(
    spark: SparkSession, filled: SegmentStore, zk_hosts: str, cluster: str, storage_uri: str
) -> None:
    register(spark)
    options = {"zk_hosts": zk_hosts, "cluster": cluster, "storage_uri": storage_uri, "table": "t"}
    assert rows_of(spark.read.format("segments").options(**options).load()) == wanted(filled)
    assert rows_of(spark.read.format("segments").options(**options, mark="3").load()) == wanted(filled, 3)


def test_a_mark_that_is_not_published_is_an_error(spark: SparkSession, filled: SegmentStore) -> None:
    with pytest.raises(UpsertRefusedError, match="above-clock"):
        read_table(spark, filled, "t", mark=99)


def test_a_frame_stays_right_while_batches_and_a_compaction_go_on(
    spark: SparkSession, filled: SegmentStore, tmp_path: Path
) -> None:
    before = wanted(filled)
    frame = read_table(spark, filled, "t")
    UpsertIngestor(filled.table("t"), name="b", cache=tmp_path / "b").ingest(
        to_arrow([Event(5000, 1, at, f"k{at}", "new", False) for at in range(300)])
    )
    UpsertCompactor(filled.table("t")).run(floor=9)
    filled.table("t").cleanup()
    assert rows_of(frame) == before
    after = read_table(spark, filled, "t")
    assert {row[2] for row in rows_of(after)} == {"new"}
    assert after.count() == 300
