"""How far a build is: rows, files and bytes written, and the time that is left. Said when it has changed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import Accumulator, AccumulatorParam
from pyspark.sql import SparkSession

from airflow_provider_segments.spark.tasks import Written
from airflow_provider_segments.text import count

_LOG = logging.getLogger(__name__)
_SECONDS = 5.0


class _Sums(AccumulatorParam[Written]):
    def zero(self, value: Written) -> Written:  # noqa: ARG002 - Spark asks by an example
        return Written()

    def addInPlace(self, value1: Written, value2: Written) -> Written:  # noqa: N802 - Spark's name
        return Written(*map(sum, zip(value1, value2, strict=True)))


def describe_progress(table: str, written: Written, rows: int, seconds: float) -> str:
    """The line for the log, ``seconds`` after the first of ``rows`` rows was due."""
    done = min(written.rows, rows)
    share = 100 * done // max(rows, 1)
    left = seconds * (rows - done) / max(done, 1)
    return (
        f"table {table!r}: {done:,} of {count(rows, 'row')} written ({share} %) in {count(written.files, 'file')}, "
        f"{count(written.bytes, 'byte')}" + (f", about {_rounded(left)} left" if done < rows else "")
    )


@contextmanager
def logged_progress(spark: SparkSession, table: str, rows: int) -> Iterator[Accumulator[Written]]:
    """An accumulator to which tasks add what they have written; the log tells when it has grown."""
    total = spark.sparkContext.accumulator(Written(), _Sums())
    done = threading.Event()
    began = time.monotonic()

    def watch() -> None:
        said = Written()
        while not done.wait(_SECONDS):
            if (now := total.value) != said:
                said = now
                _LOG.info("%s", describe_progress(table, now, rows, time.monotonic() - began))

    watcher = threading.Thread(target=watch, name="segments-progress", daemon=True)
    watcher.start()
    try:
        yield total
    finally:
        done.set()
        watcher.join()


def _rounded(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{round(seconds)} s" if seconds < 120 else f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"
