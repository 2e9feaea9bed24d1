"""Builds through Spark Connect: a Spark that runs already, so that a push pays for no start of its own.

The server's Python workers need this package, as executors of any cluster do. What differs from a session with a JVM of
its own is here, and in :mod:`.progress`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

_MODE = "SPARK_CONNECT_MODE_ENABLED"
_ROWS = 1 << 16


@contextmanager
def connected(url: str) -> Iterator[SparkSession]:
    """A session of its own at the Spark Connect server ``url`` (``sc://host:port/;token=...``), ended with the block.

    As in our applications, times without a zone are UTC's. No other Spark session of this process may be used within:
    pyspark takes each for one of Spark Connect. Raises Spark's own errors when the server does not answer.
    """
    builder: Any = SparkSession.builder
    spark: SparkSession = builder.remote(url).create()
    try:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        yield spark
    finally:
        spark.stop()
        os.environ.pop(_MODE, None)  # else pyspark takes the next session for one of Spark Connect too


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect: without a JVM, so without ``sparkContext``."""
    return not hasattr(spark, "_jvm")


def parallelism(spark: SparkSession) -> int:
    """How many tasks Spark likes to run at once: it splits a range into so many."""
    if not is_remote(spark):
        return int(spark.sparkContext.defaultParallelism)
    last = spark.range(_ROWS).select(F.spark_partition_id().alias("id")).agg(F.max("id")).first()
    assert last is not None
    return int(last[0]) + 1
