"""Every way to read at a checkpoint gives what the version of the region's heartbeat holds, or refuses by name."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.spark.read import create_view, leased_table, read_table, register
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.floor import raise_floor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows, to_duckdb
from tests.replication.support import MINUTE, Log, arrow, region_config

SECOND = "1970-01-01T00:02:30Z"
"""Half a minute after the second heartbeat."""


@pytest.fixture
def filled(store: SegmentStore, tmp_path: Path) -> SegmentStore:
    """Region ``eu`` writes another value of the key ``a`` and a new key in each of three minutes."""
    store.apply_config(region_config(regions=["eu"]))
    log = Log("eu", 2)
    for minute in (1, 2, 3):
        log.event("a", f"v{minute}", minute)
        log.event(f"k{minute}", "new", minute, part=1)
        log.beat(minute * MINUTE)
    log.event("a", "unfinished", 9)
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path / "cache")
    held = None
    for at in range(0, len(log.rows), 3):
        _, held = ingest_to_barriers(ingestor, arrow(log.rows[at : at + 3]), held)
    assert held is None
    return store


WANTED = [("a", "v2"), ("k1", "new"), ("k2", "new")]


def pairs(rows: Any) -> list[tuple[str, str]]:
    return sorted((row["k"], row["v"]) for row in rows)


@pytest.mark.parametrize("through_arrow", [False, True])
@pytest.mark.parametrize("at", [SECOND, 2 * MINUTE, datetime.datetime(1970, 1, 1, 0, 2, 59, tzinfo=datetime.UTC)])
def test_a_frame_holds_what_the_region_had_written_by_the_last_heartbeat(
    spark: SparkSession, filled: SegmentStore, at: Any, through_arrow: bool
) -> None:
    frame = read_table(spark, filled, "t", checkpoint=at, region="eu", through_arrow=through_arrow)
    assert pairs(frame.collect()) == WANTED


def test_all_other_readers_take_a_checkpoint_alike(
    spark: SparkSession, filled: SegmentStore, zk_hosts: str, cluster: str, storage_uri: str
) -> None:
    table = filled.table("t")
    assert pairs(read_rows(table, checkpoint=SECOND, region="eu").to_pylist()) == WANTED
    with leased_table(spark, filled, "t", checkpoint=SECOND, region="eu") as frame:
        assert pairs(frame.collect()) == WANTED
    mark = create_view(spark, filled, "t", view="at_checkpoint", checkpoint=SECOND, region="eu")
    assert mark == table.checkpoint(SECOND, region="eu")
    assert pairs(spark.sql("SELECT * FROM at_checkpoint").collect()) == WANTED
    connection = duckdb.connect()
    assert to_duckdb(connection, table, checkpoint=SECOND, region="eu") == mark
    assert connection.sql("SELECT k, v FROM t ORDER BY k").fetchall() == WANTED
    register(spark)
    options = {"zk_hosts": zk_hosts, "cluster": cluster, "storage_uri": storage_uri, "table": "t"}
    options |= {"checkpoint": SECOND, "region": "eu"}
    assert pairs(spark.read.format("segments").options(**options).load().collect()) == WANTED


@pytest.mark.parametrize(
    ("at", "region", "rule"),
    [
        (MINUTE - 1, "eu", "no-checkpoint"),
        (3 * MINUTE, "eu", "checkpoint-too-early"),
        (2 * MINUTE, "asia", "no-region"),
    ],
)
def test_a_checkpoint_that_there_is_none_of_is_refused_by_name(
    spark: SparkSession, filled: SegmentStore, at: int, region: str, rule: str
) -> None:
    for read in (
        lambda: read_table(spark, filled, "t", checkpoint=at, region=region),
        lambda: read_rows(filled.table("t"), checkpoint=at, region=region),
    ):
        with pytest.raises(UpsertRefusedError) as refused:
            read()
        assert refused.value.rule == rule


def test_a_checkpoint_that_history_no_longer_reaches_is_refused_by_name(
    spark: SparkSession, filled: SegmentStore, zk_hosts: str, cluster: str, storage_uri: str
) -> None:
    table = filled.table("t")
    raise_floor(table.context, table.checkpoint(2 * MINUTE, region="eu"))
    assert pairs(read_table(spark, filled, "t", checkpoint=SECOND, region="eu").collect()) == WANTED
    raise_floor(table.context, table.checkpoint(2 * MINUTE, region="eu") + 1)
    with pytest.raises(UpsertRefusedError, match="below-floor"):
        read_table(spark, filled, "t", checkpoint=SECOND, region="eu")
    register(spark)
    options = {"zk_hosts": zk_hosts, "cluster": cluster, "storage_uri": storage_uri, "table": "t"}
    with pytest.raises(AnalysisException, match="below-floor"):
        spark.read.format("segments").options(**options, checkpoint=SECOND, region="eu").load()


@pytest.mark.parametrize(
    "asked", [{"checkpoint": MINUTE}, {"region": "eu"}, {"checkpoint": MINUTE, "region": "eu", "mark": 1}]
)
def test_a_time_without_a_region_or_beside_a_mark_is_an_error(
    spark: SparkSession, filled: SegmentStore, asked: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="a time and a region"):
        read_table(spark, filled, "t", **asked)


def test_a_table_that_expects_no_heartbeats_says_so(spark: SparkSession, store: SegmentStore) -> None:
    config = region_config()
    document = config.to_json()
    del document["upsertConfig"]["heartbeatInterval"]
    store.apply_config(type(config).from_json(document))
    with pytest.raises(UpsertRefusedError, match="no-heartbeats"):
        read_table(spark, store, "t", checkpoint=MINUTE, region="eu")
