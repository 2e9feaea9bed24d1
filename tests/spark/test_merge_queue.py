"""Merges of many groups in few Spark jobs: each answers for itself, as soon as it is done."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql import SparkSession

from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.spark import merge_queue as queue_module
from airflow_provider_segments.spark.merge_queue import MergeFailedError, MergeQueue, merge_queue
from airflow_provider_segments.spark.merging import Merged, MergeInput, MergeJob
from tests.spark.test_merging import at, make_job

WAIT_S = 120.0


class _Waits:
    """A store whose objects come once a file is there."""

    def __init__(self, store: ObjectStore, gate: Path) -> None:
        self._store = store
        self._gate = gate

    def open(self, key: str) -> Any:
        until = time.monotonic() + WAIT_S
        while not self._gate.exists() and time.monotonic() < until:
            time.sleep(0.02)
        return self._store.open(key)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._store, name)


class _Kills:
    """A store that ends the process that opens an object."""

    def open(self, key: str) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def rows_of(merged: Merged) -> int:
    """Rows of the new segments."""
    return sum(segment.record.rows for segment in merged.segments)


@pytest.fixture
def jobs(tmp_path: Path) -> Callable[[str], MergeJob]:
    """Makes a job with one input of one row."""

    def make(name: str) -> MergeJob:
        folder = tmp_path / name
        folder.mkdir()
        return make_job(folder, pyarrow.table({"at": [at(1)], "v": [1]}))

    return make


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many groups each Spark job had."""
    found: list[int] = []
    results = MergeQueue._results

    def counted(self: MergeQueue, batch: Any) -> Any:
        found.append(len(batch))
        return results(self, batch)

    monkeypatch.setattr(MergeQueue, "_results", counted)
    return found


@pytest.fixture
def queue(spark: SparkSession) -> Iterator[MergeQueue]:
    with merge_queue(spark.sparkContext) as made:
        yield made


def with_store(job: MergeJob, store: Any) -> MergeJob:
    """``job``, with inputs from ``store``, as tiered storage is."""
    return MergeJob(
        job.write, tuple(MergeInput(one.key, True) for one in job.inputs), job.time_column, job.time_format,
        job.deduplicate, job.rollup, job.memory_bytes, store,
    )  # fmt: skip


def test_groups_that_wait_go_to_spark_together(
    spark: SparkSession, queue: MergeQueue, jobs: Callable[[str], MergeJob], batches: list[int], tmp_path: Path
) -> None:
    gate, cores = tmp_path / "gate", spark.sparkContext.defaultParallelism
    with ThreadPoolExecutor(cores + 6) as pool:
        held = [jobs(f"held{number}") for number in range(cores + 1)]
        first = [pool.submit(queue.merge, with_store(one, _Waits(one.write.storage, gate))) for one in held]
        until = time.monotonic() + WAIT_S
        while sum(batches) < len(held) and time.monotonic() < until:
            time.sleep(0.02)
        rest = [pool.submit(queue.merge, jobs(f"rest{number}")) for number in range(5)]
        while len(queue._waiting) < 5 and time.monotonic() < until:
            time.sleep(0.02)
        gate.touch()
        assert [rows_of(one.result()) for one in [*first, *rest]] == [1] * (cores + 6)
    assert batches[-1] == 5


def test_a_group_is_answered_while_others_of_its_job_are_at_work(
    queue: MergeQueue, jobs: Callable[[str], MergeJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    slow, quick = jobs("slow"), jobs("quick")
    slow = with_store(slow, _Waits(slow.write.storage, gate))
    together = threading.Barrier(2)
    give = MergeQueue._give

    def after_both(self: MergeQueue) -> None:
        if self._waiting:
            together.wait(WAIT_S)
        give(self)

    monkeypatch.setattr(MergeQueue, "_give", after_both)
    with ThreadPoolExecutor(2) as pool:
        last, first = pool.submit(queue.merge, slow), pool.submit(queue.merge, quick)
        try:
            assert rows_of(first.result(WAIT_S)) == 1
            assert not last.done()
        finally:
            gate.touch()
        assert rows_of(last.result(WAIT_S)) == 1


def test_an_error_is_its_own_groups_alone(queue: MergeQueue, jobs: Callable[[str], MergeJob]) -> None:
    broken = jobs("broken")
    path = Path(broken.write.storage.url(broken.inputs[0].key).removeprefix("file://"))
    path.write_bytes(b"not Parquet")
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(queue.merge, one) for one in (jobs("one"), broken, jobs("two"))]
        with pytest.raises(MergeFailedError, match="ArrowInvalid"):
            found[1].result(WAIT_S)
        assert [rows_of(found[at].result(WAIT_S)) for at in (0, 2)] == [1, 1]


def test_a_worker_that_dies_takes_no_other_group_with_it(
    queue: MergeQueue, jobs: Callable[[str], MergeJob], batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are in one job, which fails as a whole."""
    together, give = threading.Barrier(4), MergeQueue._give

    def after_all(self: MergeQueue) -> None:
        if self._waiting and not self._given:
            together.wait(WAIT_S)
        give(self)

    monkeypatch.setattr(MergeQueue, "_give", after_all)
    with ThreadPoolExecutor(4) as pool:
        dying = pool.submit(queue.merge, with_store(jobs("dying"), _Kills()))
        others = [pool.submit(queue.merge, jobs(f"other{number}")) for number in range(3)]
        with pytest.raises(Exception, match=r"crashed|exited|EOF"):
            dying.result(WAIT_S)
        assert [rows_of(one.result(WAIT_S)) for one in others] == [1, 1, 1]
    assert batches[0] == 4


def test_an_error_that_may_be_the_workers_own_is_left_to_spark_to_try_again(
    jobs: Callable[[str], MergeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Here:
        """A task of Spark's."""

        number = 0

        def taskAttemptId(self) -> int:  # noqa: N802
            return 7

        def attemptNumber(self) -> int:  # noqa: N802
            return self.number

    def fails(job: MergeJob, task: int) -> Any:
        raise OSError("disk full")

    here = Here()
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: here)
    monkeypatch.setattr(queue_module, "merge", fails)
    with pytest.raises(OSError, match="disk full"):
        queue_module.attempt(jobs("one"), retries=1)
    here.number = 1
    found = queue_module.attempt(jobs("two"), retries=1)
    assert isinstance(found, queue_module.Failed)
    assert found.error == "OSError: disk full"
