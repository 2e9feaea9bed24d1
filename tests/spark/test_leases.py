"""What Spark reads stays in the store until it has read it, and segments are read from where they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from airflow_provider_segments.dev.s3 import S3Server
from airflow_provider_segments.exceptions import LeaseLostError
from airflow_provider_segments.spark import leases
from airflow_provider_segments.spark.build import build_segments
from airflow_provider_segments.spark.leases import check_leases
from airflow_provider_segments.spark.read import leased_table, read_files, read_table
from airflow_provider_segments.spark.schema import schema_of
from tests.spark.conftest import document
from tests.support.owned import drain, keys_in
from tests.support.sessions import expire, settings, store_on
from tests.support.tables import DAY_MS, HandClock

BOTH = pytest.mark.parametrize("through_arrow", [False, True], ids=["spark", "arrow"])


@pytest.fixture
def hand() -> HandClock:
    """A clock to move by hand."""
    return HandClock()


@pytest.fixture
def own_session(zk_hosts: str) -> Iterator[ZooKeeperSession]:
    """A ZooKeeper session for one test: leases of Spark's session end with it."""
    with ZooKeeperSession.connect(settings(zk_hosts)) as session:
        yield session


@pytest.fixture
def table(own_session: ZooKeeperSession, cluster: str, tmp_path: Path, hand: HandClock) -> Table:
    """A table whose replaced segments may go at once, in a store with tiered storage."""
    hot, cold = (open_store((tmp_path / name).as_uri()) for name in ("hot", "cold"))
    store = store_on(own_session, cluster, hot, tiered=cold, clock=hand.clock())
    return made(store)


def made(store: SegmentStore) -> Table:
    """The table."""
    described = document(
        "events", time="at", sort=["x"], kind="APPEND", segmentGranularity="DAY", timeFormat="EPOCH_MILLIS"
    )
    described["segmentsConfig"]["replacedSegmentsRetentionPeriod"] = "0s"
    store.apply_config(TableConfig.from_json(described))
    return store.table("events")


def rows(spark: SparkSession, first: int, days: int = 3) -> DataFrame:
    """One row a day."""
    return spark.createDataFrame([(day * DAY_MS, first + day) for day in range(days)], "at long, x int")


def push(spark: SparkSession, table: Table, source: DataFrame, replaced: list[str] | None = None) -> None:
    """Start, build, end."""
    entry = table.start(replaced).entry_id
    build_segments(spark, table, entry, source)
    table.end(entry)


def replace_twice_and_drain(spark: SparkSession, table: Table, hand: HandClock) -> int:
    """Two replacements, each cleaned up, then everything that may be deleted is; returns how many objects were."""
    for first in (100, 200):
        push(spark, table, rows(spark, first), sorted(table.snapshot().names))
        hand.advance(1)
        table.cleanup()
    return drain(table.store, hand).total("deleted")


def xs(frame: DataFrame) -> list[int]:
    return sorted(row["x"] for row in frame.collect())


def until(true: Callable[[], bool]) -> None:
    """Wait for something that happens by itself."""
    limit = time.monotonic() + 20
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.02)


@BOTH
def test_a_frame_that_is_not_collected_yet_keeps_its_files_while_the_table_is_replaced_twice(
    spark: SparkSession, table: Table, hand: HandClock, through_arrow: bool
) -> None:
    """Replaced, cleaned, drained: in the block nothing goes, after it everything does."""
    push(spark, table, rows(spark, 0))
    before = keys_in(table.storage, table)
    with leased_table(spark, table.store, "events", through_arrow=through_arrow) as frame:
        scan = frame.toLocalIterator()
        assert next(scan)["x"] in range(3)
        assert replace_twice_and_drain(spark, table, hand) == 0
        assert len(list(scan)) == 2
        assert xs(frame) == [0, 1, 2]
        assert before <= keys_in(table.storage, table)
    hand.advance(table.store.deletion.reconsume_later_ms)
    assert drain(table.store).total("deleted") == 6
    assert keys_in(table.storage, table) == set(table.snapshot().files)


@BOTH
def test_the_plain_form_holds_its_lease_until_the_spark_session_stops(
    spark: SparkSession, table: Table, hand: HandClock, through_arrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two frames of one session share a lease. The end of the session is seen by the thread that looks for it."""
    monkeypatch.setattr(leases, "POLL_SECONDS", 0.05)
    push(spark, table, rows(spark, 0))
    frame = read_table(spark, table.store, "events", through_arrow=through_arrow)
    part = read_table(spark, table.store, "events", start=DAY_MS, end=2 * DAY_MS, through_arrow=through_arrow)
    (lease,) = table.leases()
    assert lease.owner.startswith("spark ")
    assert replace_twice_and_drain(spark, table, hand) == 0
    check_leases(spark)
    assert (xs(frame), xs(part)) == ([0, 1, 2], [1])
    with monkeypatch.context() as stopped:  # what SparkContext.stop() does, without stopping everybody's Spark
        stopped.setattr(spark.sparkContext, "_jsc", None)
        until(lambda: not table.leases())
    hand.advance(table.store.deletion.reconsume_later_ms)
    assert drain(table.store).total("deleted") == 6


def test_a_lease_that_is_lost_is_said_loudly(
    spark: SparkSession, table: Table, own_session: ZooKeeperSession, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its ZooKeeper session expired: the block raises at its end; the plain form logs it, and raises when asked."""
    monkeypatch.setattr(leases, "POLL_SECONDS", 0.05)
    push(spark, table, rows(spark, 0))
    with pytest.raises(LeaseLostError), leased_table(spark, table.store, "events") as frame:
        assert xs(frame) == [0, 1, 2]
        expire(own_session)
    read_table(spark, table.store, "events")
    expire(own_session)
    until(
        lambda: any(
            "the lease of this Spark session's data frames is gone" in one.getMessage() for one in caplog.records
        )
    )
    with pytest.raises(LeaseLostError, match="table 'events'"):
        check_leases(spark)
    check_leases(spark)
    again = read_table(spark, table.store, "events")
    assert len(table.leases()) == 1, "the new frame has a lease of its own"
    assert xs(again) == [0, 1, 2]


@BOTH
def test_a_table_in_both_storages_is_read_from_both(
    spark: SparkSession, table: Table, hand: HandClock, through_arrow: bool
) -> None:
    """Old segments from tiered storage only, new ones from the primary one; one of them is asked for by its key."""
    push(spark, table, rows(spark, 0))
    for _ in range(2):
        table.offload(older_than_ms=DAY_MS, primary_lag_ms=0, max_segments=2)
    drain(table.store)
    push(spark, table, rows(spark, 100, days=1))
    snapshot = table.snapshot()
    assert sorted(segment.tiered is None for segment in snapshot.segments) == [False, False, True, True]
    assert len(snapshot.stores()) == 2
    frame = read_table(spark, table.store, "events", through_arrow=through_arrow)
    assert xs(frame) == [0, 1, 2, 100]
    assert xs(frame.filter("x >= 1")) == [1, 2, 100]
    part = read_table(spark, table.store, "events", start=0, end=DAY_MS, through_arrow=through_arrow)
    assert xs(part) == [0, 100]
    cold = [segment.key for segment in snapshot.segments if segment.tiered][:1]
    assert len(xs(read_files(spark, snapshot, cold, schema_of(snapshot), table.config()))) == 1


def test_a_table_in_two_buckets_is_read_from_both(
    spark: SparkSession,
    own_session: ZooKeeperSession,
    cluster: str,
    hand: HandClock,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """On a real S3 server, through Arrow."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        for bucket in ("hot", "cold"):
            server.create_bucket(bucket)
        hot, cold = (open_store(f"s3://{bucket}/here", **server.options) for bucket in ("hot", "cold"))
        table = made(store_on(own_session, cluster, hot, tiered=cold, clock=hand.clock()))
        push(spark, table, rows(spark, 0))
        table.offload(older_than_ms=DAY_MS, primary_lag_ms=0)
        table.offload(older_than_ms=DAY_MS, primary_lag_ms=0)
        drain(table.store)
        push(spark, table, rows(spark, 100))
        assert not keys_in(hot, table) & keys_in(cold, table)
        assert xs(read_table(spark, table.store, "events")) == [0, 1, 2, 100, 101, 102]
        assert {segment.tiered is None for segment in table.snapshot().segments} == {True, False}
