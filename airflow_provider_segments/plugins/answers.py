"""Answers that take long: they are computed once for all who ask, and nobody waits longer than ``PATIENCE_S``.

A large table, or a ZooKeeper that answers slowly, must neither look like a fault nor hold a thread of Airflow's API
server. So the work goes on in a few threads of its own, and who has waited for long enough is told to ask again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

PATIENCE_S = 1.8
"""Longest wait for an answer; longer than that of :mod:`.stores` for ZooKeeper, whose message comes first."""

_KEPT_S = 10.0  # for how long an answer waits for somebody to ask again
_WORKERS = 8

_T = TypeVar("_T")


class StillWorkingError(Exception):
    """The answer is still being computed: ask again."""

    def __init__(self) -> None:
        super().__init__("Still reading: the table is large, or ZooKeeper answers slowly.")


@dataclass(slots=True)
class _Job:
    future: Future[Any]
    done_s: float | None = None


class Answers:
    """Computes answers. May be shared by threads."""

    def __init__(self, patience_s: float = PATIENCE_S, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._monotonic = monotonic
        self._jobs: dict[Hashable, _Job] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="segments-page")

    def get(self, key: Hashable, work: Callable[[], _T]) -> _T:
        """What ``work`` returns or raises; who asks with the same ``key`` meanwhile gets the same. Raises
        :class:`StillWorkingError` when it takes too long; the work goes on, and its answer waits to be asked for."""
        job = self._job(key, work)
        try:
            job.future.exception(self._patience_s)
        except TimeoutError:
            raise StillWorkingError from None
        with self._lock:
            if self._jobs.get(key) is job:
                del self._jobs[key]
        return cast("_T", job.future.result())

    def _job(self, key: Hashable, work: Callable[[], Any]) -> _Job:
        with self._lock:
            self._forget_old()
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = _Job(self._threads.submit(work))
                job.future.add_done_callback(lambda _: setattr(job, "done_s", self._monotonic()))
            return job

    def _forget_old(self) -> None:
        oldest = self._monotonic() - _KEPT_S
        for key in [key for key, job in self._jobs.items() if job.done_s is not None and job.done_s < oldest]:
            del self._jobs[key]
