"""A build whose driver ends, as ``kill -9`` would end it, at its ``at``-th write to ZooKeeper.

``python -m tests.spark.dying_build HOSTS CLUSTER STORAGE TABLE ENTRY AT LANDED``
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.spark.build import build_segments
from airflow_provider_segments.spark.environment import spark_environment
from tests.support.sessions import DyingSession, settings, store_on


def main(hosts: str, cluster: str, storage: str, table: str, entry: str, at: str, landed: str) -> None:
    """Build 300 rows of two days."""
    os.environ.update(spark_environment() | {"SPARK_LOCAL_IP": "127.0.0.1"})
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    with DyingSession.connect(settings(hosts)) as session:
        session.at, session.landed = int(at), landed == "True"
        store = store_on(session, cluster, open_store(storage))
        source = spark.range(300).selectExpr("timestamp_millis(id % 2 * 86400000) AS at", "id AS x")
        build_segments(spark, store.table(table), entry, source)


if __name__ == "__main__":
    main(*sys.argv[1:])
