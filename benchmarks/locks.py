"""Locks and allocations a second with 1 and 8 processes, beside kazoo's own Lock recipe, in the same run.

python -m benchmarks.locks [--processes 1,8] [--seconds 3] [--only "lock and release,allocate 1,..."] [--servers 1|3]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from airflow_provider_segments.core.locking import (
    Allocated,
    AllocationRequest,
    LockBox,
    LockGranularity,
    LockRequest,
    LockType,
    Priority,
    granted_lock,
)
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.table import SegmentStore
from benchmarks.report import end_properly, machine, median, show, table
from benchmarks.systems import add_servers, zookeeper

DAY_MS = 86_400_000
WAIT_S = 120.0
FORK = multiprocessing.get_context("fork")

NOTES = """\
One table, each operation from scratch: ours reads the lock box, decides, and writes box and fence
in one synced transaction; kazoo's Lock makes an ephemeral sequential znode, lists the queue, and deletes it. "own
chunk": each process locks a chunk of its own; on our side all of them still change the one box of the table, kazoo uses
a path for each chunk. "same chunk": all wait for one exclusive lock. "lock and release" counts the pair as one.
"allocate": one new id under an APPEND lock on a chunk that all append to; every 50 the locks are released. "append of
20 chunks": an APPEND lock and ids in 20 chunks in one change, and its release. "segment locks": the lock of a
compaction on ten segments of a chunk that all compact, and its release. kazoo's Lock has no revocation, lease,
priorities, sharing by group, fencing or ids. Medians of all operations of all processes; "a second" is all processes
together."""

Operation = Callable[[int], None]
Setup = Callable[[str, int, int], "contextlib.AbstractContextManager[Operation]"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="1,8", help="how many, joined by commas")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured time an operation")
    parser.add_argument("--only", default=",".join(OPERATIONS), help="operations, joined by commas")
    add_servers(parser)
    args = parser.parse_args()
    end_properly()
    print(machine(), flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="locks-") as folder, zookeeper(Path(folder), args.servers) as hosts:
        _measure(hosts, "allocate", 2, 1.5, 0)  # let the server's compiler see the work
        for run, name in enumerate(args.only.split(","), 1):
            for processes in map(int, args.processes.split(",")):
                times = _measure(hosts, name, processes, args.seconds, run * 100 + processes)
                rows.append(_row(name, processes, times, args.seconds))
    print(table(["operation", "processes", "a second", "median ms", "p95 ms", "max ms"], rows))
    print(NOTES)


def _row(name: str, processes: int, times: list[float], seconds: float) -> list[str]:
    ordered = sorted(times)
    p95 = ordered[int(len(ordered) * 0.95)]
    return [name, str(processes), f"{len(times) / seconds:,.0f}", show(median(ordered)), show(p95), show(ordered[-1])]


def _measure(hosts: str, name: str, processes: int, seconds: float, run: int) -> list[float]:
    """Milliseconds of each operation that began in the measured time."""
    barrier, results = FORK.Barrier(processes), FORK.Queue()
    crew = [
        FORK.Process(target=_work, args=(hosts, name, run, number, seconds, barrier, results), daemon=True)
        for number in range(processes)
    ]
    for process in crew:
        process.start()
    try:
        found = [results.get(timeout=seconds + WAIT_S) for _ in crew]
    finally:
        for process in crew:
            process.join(10)
            if process.is_alive():
                process.kill()
    if errors := [one for one in found if isinstance(one, str)]:
        raise RuntimeError(errors[0])
    return [one for times in found for one in times]


def _work(hosts: str, name: str, run: int, number: int, seconds: float, barrier: Any, results: Any) -> None:
    try:
        with OPERATIONS[name](hosts, run, number) as operation:
            operation(0)
            barrier.wait(WAIT_S)
            until = time.perf_counter() + seconds
            times, count = [], 0
            while (began := time.perf_counter()) < until:
                count += 1
                operation(count)
                times.append((time.perf_counter() - began) * 1000)
            barrier.wait(WAIT_S)
        results.put(times)
    except BaseException as error:
        barrier.abort()
        results.put(repr(error))


@contextlib.contextmanager
def _box(hosts: str, run: int) -> Iterator[LockBox]:
    with SegmentStore.connect(hosts, "bench", "file:///nowhere") as store:
        yield store.table(f"t{run}").locks


def _days(first: int, count: int = 1) -> Interval:
    return Interval(first * DAY_MS, (first + count) * DAY_MS)


def _append_lock(group: str, first: int, count: int = 1) -> LockRequest:
    return LockRequest(group=group, task=group, interval=_days(first, count), lock_type=LockType.APPEND)


@contextlib.contextmanager
def own_chunk(hosts: str, run: int, number: int) -> Iterator[Operation]:
    group = f"g{number}"
    with _box(hosts, run) as box:

        def pair(_: int) -> None:
            granted_lock("t", box.acquire(LockRequest(group=group, task=group, interval=_days(number))))
            box.release(group, group)

        yield pair


@contextlib.contextmanager
def same_chunk(hosts: str, run: int, number: int) -> Iterator[Operation]:
    group = f"g{number}"
    with _box(hosts, run) as box:

        def pair(_: int) -> None:
            request = LockRequest(group=group, task=group, interval=_days(0))
            granted_lock("t", box.acquire_blocking(request, WAIT_S))
            box.release(group, group)

        yield pair


@contextlib.contextmanager
def renew(hosts: str, run: int, number: int) -> Iterator[Operation]:
    group = f"g{number}"
    with _box(hosts, run) as box:
        box.acquire(_append_lock(group, number))
        yield lambda _: (box.renew(group, group), None)[1]


@contextlib.contextmanager
def allocate(hosts: str, run: int, number: int) -> Iterator[Operation]:
    group = f"g{number}"
    with _box(hosts, run) as box:

        def one(count: int) -> None:
            day = count % 3
            result = box.allocate(AllocationRequest(lock=_append_lock(group, day), key=f"s{count}", chunk=_days(day)))
            assert isinstance(result, Allocated), result
            if count % 50 == 49:
                box.release(group, group)

        yield one


@contextlib.contextmanager
def allocate_20(hosts: str, run: int, number: int) -> Iterator[Operation]:
    group = f"g{number}"
    with _box(hosts, run) as box:

        def many(count: int) -> None:
            lock = _append_lock(group, 0, 20)
            wants = [AllocationRequest(lock=lock, key=f"{count}/{day}", chunk=_days(day)) for day in range(20)]
            assert all(isinstance(result, Allocated) for result in box.allocate_all(wants))
            box.release(group, group)

        yield many


@contextlib.contextmanager
def segment_locks(hosts: str, run: int, number: int) -> Iterator[Operation]:
    group, partitions = f"g{number}", frozenset(range(number * 10, number * 10 + 10))
    with _box(hosts, run) as box:
        request = LockRequest(
            group=group,
            task=group,
            interval=_days(0),
            granularity=LockGranularity.SEGMENT,
            partitions=partitions,
            priority=Priority.COMPACTION,
        )

        def pair(_: int) -> None:
            granted_lock("t", box.acquire(request))
            box.release(group, group)

        yield pair


@contextlib.contextmanager
def fence(hosts: str, run: int, number: int) -> Iterator[Operation]:
    """What publishing adds: the look at the box; the check itself rides in the push's own transaction."""
    group = f"g{number}"
    with _box(hosts, run) as box:
        lock = granted_lock("t", box.acquire(LockRequest(group=group, task=group, interval=_days(number))))
        yield lambda _: (box.fence([lock.lock_id], group=group, task=group), None)[1]


@contextlib.contextmanager
def kazoo_own(hosts: str, run: int, number: int) -> Iterator[Operation]:
    with _kazoo_lock(hosts, f"/kazoo/{run}/{number}") as lock:
        yield lock


@contextlib.contextmanager
def kazoo_same(hosts: str, run: int, number: int) -> Iterator[Operation]:
    with _kazoo_lock(hosts, f"/kazoo/{run}/all") as lock:
        yield lock


@contextlib.contextmanager
def _kazoo_lock(hosts: str, path: str) -> Iterator[Operation]:
    client = KazooClient(hosts=hosts)
    client.start()
    lock = client.Lock(path)

    def pair(_: int) -> None:
        lock.acquire(timeout=WAIT_S)
        lock.release()

    try:
        yield pair
    finally:
        client.stop()
        client.close()


OPERATIONS: dict[str, Setup] = {
    "lock and release: own chunk": own_chunk,
    "kazoo Lock: own chunk": kazoo_own,
    "lock and release: same chunk": same_chunk,
    "kazoo Lock: same chunk": kazoo_same,
    "allocate": allocate,
    "append of 20 chunks": allocate_20,
    "segment locks": segment_locks,
    "renew": renew,
    "fence (read)": fence,
}


if __name__ == "__main__":
    main()
