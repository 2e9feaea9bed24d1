"""Count a table's rows with Spark, and print the plan: ``python -m cluster.reader MASTER TABLE``.

The store is described by the environment, as for every job of the package.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from airflow_provider_segments.core.environment import connect
from airflow_provider_segments.spark.read import leased_table


def main(master: str, table: str) -> None:
    """Read, and print."""
    spark = SparkSession.builder.master(master).appName("reader").getOrCreate()
    with connect(os.environ["SEGMENTS_ZOOKEEPER"], os.environ["SEGMENTS_STORAGE"]) as store:
        spark.sparkContext.setLogLevel("INFO")
        with leased_table(spark, store, table) as rows:
            rows.explain("extended")
            print(f"rows {rows.count()}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
