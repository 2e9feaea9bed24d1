"""Merges of many groups, given to Spark several at a time: a job has its price, and so has every wait for one.

A group's thread asks for its merge and waits for it alone. What is waiting goes to Spark together as one job, a task a
group, as soon as Spark has no more tasks of ours than cores: so the cores never wait for a job, and groups that wait
for cores come together into the next one. Results come back task by task, by an accumulator, and not when the job ends.

A merge that fails does not fail its job: the error is its result. When a job fails as a whole (a worker was killed),
its groups that have no result yet get a job each, so that only the guilty one fails.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam

from airflow_provider_segments.exceptions import SegmentsError
from airflow_provider_segments.spark.merging import Merged, MergeJob, merge

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOG = logging.getLogger(__name__)


class MergeFailedError(SegmentsError, RuntimeError):
    """A worker could not merge a group. The message has the worker's error; nothing is published."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker's error, as a value: ``trace`` is for the log."""

    error: str
    trace: str


Result = Merged | Failed


@dataclass(frozen=True, slots=True)
class _Asked:
    number: int
    job: MergeJob
    answer: Future[Result]


class MergeQueue:
    """Give merges to Spark. Use it with :func:`merge_queue`; any thread may ask."""

    def __init__(self, context: SparkContext, jobs: ThreadPoolExecutor) -> None:
        self._context = context
        self._jobs = jobs
        self._cores = context.defaultParallelism
        self._retries = _retries(context)
        self._lock = threading.Lock()
        self._waiting: list[_Asked] = []
        self._given: dict[int, _Asked] = {}
        self._count = 0
        self._early = context.accumulator([], _Early(self._settle))

    def merge(self, job: MergeJob) -> Merged:
        """What became of the group. Raises :class:`MergeFailedError`, and what Spark raises when a worker dies."""
        answer: Future[Result] = Future()
        with self._lock:
            self._count += 1
            self._waiting.append(_Asked(self._count, job, answer))
        self._give()
        result = answer.result()
        if isinstance(result, Failed):
            _LOG.warning("a worker could not merge a group:\n%s", result.trace)
            raise MergeFailedError(result.error)
        return result

    def _give(self) -> None:
        with self._lock:
            if not self._waiting or len(self._given) > self._cores:
                return
            batch, self._waiting = self._waiting, []
            self._given.update((one.number, one) for one in batch)
        self._jobs.submit(self._run, batch)

    def _run(self, batch: Sequence[_Asked]) -> None:
        """One job. Whatever it raises becomes the answer of a group that was alone in it."""
        try:
            for number, result in self._results(batch):
                self._settle(number, result)
        except Exception as error:
            rest = [one for one in batch if not one.answer.done()]
            if len(batch) > 1:
                _LOG.warning("a Spark job for %d groups failed; %d get a job each: %s", len(batch), len(rest), error)
                for one in rest:
                    self._jobs.submit(self._run, [one])
            else:
                for one in rest:
                    self._settle(one.number, error)

    def _results(self, batch: Sequence[_Asked]) -> list[tuple[int, Result]]:
        early, retries = self._early, self._retries

        def run(asked: tuple[int, MergeJob]) -> tuple[int, Result]:
            found = asked[0], attempt(asked[1], retries)
            early.add([found])
            return found

        asked = [(one.number, one.job) for one in batch]
        return self._context.parallelize(asked, len(asked)).map(run).collect()

    def _settle(self, number: int, result: Result | Exception) -> None:
        """The first answer counts. A later one is of a task that ran twice, whose objects nobody records."""
        with self._lock:
            one = self._given.pop(number, None)
        if one is None:
            return
        if isinstance(result, Exception):
            one.answer.set_exception(result)
        else:
            one.answer.set_result(result)
        self._give()


@contextmanager
def merge_queue(context: SparkContext) -> Iterator[MergeQueue]:
    """A queue for as long as there are groups to merge."""
    with ThreadPoolExecutor(2 * context.defaultParallelism + 2, thread_name_prefix="merges") as jobs:
        yield MergeQueue(context, jobs)


def attempt(job: MergeJob, retries: int) -> Result:
    """The merge in this task. An error that may be this worker's own is raised as long as Spark tries again."""
    from pyspark import TaskContext

    here = TaskContext.get()
    assert here is not None
    try:
        return merge(job, here.taskAttemptId())
    except SegmentsError as error:
        return Failed(f"{type(error).__name__}: {error}", traceback.format_exc())
    except Exception as error:
        if here.attemptNumber() < retries:
            raise
        return Failed(f"{type(error).__name__}: {error}", traceback.format_exc())


def _retries(context: SparkContext) -> int:
    """How often Spark tries a task again: not at all within one process, whatever is configured."""
    if (context.master or "").startswith("local"):
        return 0
    return int(context.getConf().get("spark.task.maxFailures", "4") or 4) - 1


class _Early(AccumulatorParam[list[Any]]):
    """Results as they come: collected in a worker, handed on in the driver (on a thread of Spark's, which waits)."""

    def __init__(self, settle: Callable[[int, Result], None] | None = None) -> None:
        self._settle = settle

    def zero(self, value: list[Any]) -> list[Any]:  # noqa: ARG002 - Spark's own signature
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802 - Spark's own name
        if self._settle is None:
            return value1 + value2
        for number, result in value2:
            self._settle(number, result)
        return value1

    def __reduce__(self) -> tuple[Any, ...]:
        return _Early, ()
