"""The same on a real S3 server, with nothing but the wheels: no hadoop-aws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import parse_time
from airflow_provider_segments.core.model.variables import STORAGE_VARIABLES
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.s3 import S3Server
from airflow_provider_segments.spark.build import build_segments
from airflow_provider_segments.spark.read import read_table, register, spark_can_read
from tests.spark.conftest import document


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """SeaweedFS with a bucket."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        server.create_bucket("segments")
        yield server


def test_build_and_read_on_s3(
    spark: SparkSession, zk_hosts: str, cluster: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials given to the store in code reach the executors; the data source takes them from the environment."""
    storage = open_store("s3://segments/here", **s3.options)
    with SegmentStore.connect(zk_hosts, cluster, storage=storage) as store:
        store.apply_config(
            TableConfig.from_json(document("events", time="at", sort=["x"], kind="APPEND", segmentGranularity="DAY"))
        )
        table = store.table("events")
        entry = table.start().entry_id
        source = spark.range(100).select(
            F.timestamp_millis(F.lit(parse_time("2013-01-01")) + F.col("id") * 3_600_000).alias("at"),
            F.col("id").alias("x"),
        )
        assert build_segments(spark, table, entry, source).segments == 5
        table.end(entry)
        assert not spark_can_read(spark, storage.uri)
        frame = read_table(spark, store, "events", start="2013-01-02", end="2013-01-03T12:00:00")
        assert sorted(row["x"] for row in frame.collect()) == list(range(24, 60))

        for option, name in STORAGE_VARIABLES.items():
            monkeypatch.setenv(name, s3.options.get(option, ""))
        register(spark)
        given = {"zk_hosts": zk_hosts, "cluster": cluster, "storage_uri": storage.uri, "table": "events"}
        loaded = spark.read.format("segments").options(**given).load()
        assert loaded.filter("x >= 90").count() == 10
        plan = loaded._jdf.queryExecution().toString()
        assert s3.secret_key not in plan + frame._jdf.queryExecution().toString()


def test_an_installed_hadoop_aws_is_found(spark: SparkSession) -> None:
    """By its class; everything but S3 is Spark's own."""
    assert spark_can_read(spark, Path("/data").as_uri())
    assert spark_can_read(spark, "hdfs://namenode/data")
    assert not spark_can_read(spark, "s3://bucket/data")
