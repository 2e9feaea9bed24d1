"""How far a build is: rows, files and bytes written, and the time that is left. Said when it has changed.

Through Spark Connect tasks cannot add to a sum of the driver's; there the log tells how many tasks are done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from pyspark import AccumulatorParam
from pyspark.sql import SparkSession

from airflow_provider_segments.spark.connect import is_remote
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


class Report(Protocol):
    """To which tasks add what they have written."""

    def add(self, term: Written) -> None:
        """Add what one file has."""


def logged_progress(spark: SparkSession, table: str, rows: int) -> AbstractContextManager[Report]:
    """While rows are written, the log tells when it has become more."""
    return _tasks_logged(spark, table) if is_remote(spark) else _rows_logged(spark, table, rows)


@contextmanager
def _rows_logged(spark: SparkSession, table: str, rows: int) -> Iterator[Report]:
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


class _Unread:
    """What is added here, nobody reads."""

    def add(self, term: Written) -> None:
        """Forget it."""


@contextmanager
def _tasks_logged(spark: SparkSession, table: str) -> Iterator[Report]:
    said, said_at = "", time.monotonic()

    def tell(stages: Iterable[Any] | None, **_: Any) -> None:
        nonlocal said, said_at
        done, tasks = (
            sum(getattr(stage, name) for stage in stages or ()) for name in ("num_completed_tasks", "num_tasks")
        )
        now = f"{done} of {count(tasks, 'task')} done"
        if not tasks or now == said or time.monotonic() < said_at + _SECONDS:
            return
        said, said_at = now, time.monotonic()
        _LOG.info("table %r: %s", table, said)

    remote: Any = spark
    remote.registerProgressHandler(tell)
    try:
        yield _Unread()
    finally:
        remote.removeProgressHandler(tell)


def _rounded(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{round(seconds)} s" if seconds < 120 else f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"
