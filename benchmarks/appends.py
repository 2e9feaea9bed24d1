"""Appends of many processes to one table at once, each to time chunks of its own: ours and delta-rs, in one run.

python -m benchmarks.appends [--processes 8] [--appends 20] [--rows 1000] [--rounds 3] [--only ...] [--folder F]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.exceptions import SegmentsError
from benchmarks.events import events, fingerprint, write, write_job
from benchmarks.places import cluster_of
from benchmarks.report import end_properly, machine, median, show, table

WAIT_S = 300.0
MOST_CONFLICTS = 1000
"""Lost appends of one process after which a benchmark ends: then it is no conflict that stands in the way."""
FORK = multiprocessing.get_context("forkserver")  # delta-rs has threads, which a plain fork would lose
FORK.set_forkserver_preload(
    ["benchmarks.events", "airflow_provider_segments.core.table", "deltalake", "pyspark.sql.pandas.types", "pandas"]
)

NOTES = """\
Each append writes one new Parquet file of {rows:,} rows (zstd) and publishes it; process k appends to day k only. The
clock runs from the moment all processes are ready (libraries loaded, connected, rows made) until the last is done.
"to the caller" counts errors that an append raised and that the caller answered by doing it again. All rows of all
appends are read afterwards and counted.

segments         start, a file by our segment writer, uploaded (copied, fsync) with CRC and owner metadata, publish: two
                 synced ZooKeeper transactions an append and one for a new day, each reads its state anew, and publish
                 checks the object. "locking" takes an APPEND lock for each append, with a version and ids, and gives
                 it back: two more.
delta-rs         write_deltalake(uri, mode="append"), partitioned by day: opens the table, writes the file, commits one
                 file by a rename that fails when the name is taken. It syncs nothing. By default it retries a lost
                 commit itself (15 times), without saying so.
delta-rs, told   the same with max_commit_retries=0: every lost commit is an error, and the caller appends anew at once.
                 This shows how many conflicts there are."""

Append = Callable[[int], None]


@dataclass(frozen=True)
class Plan:
    """What each process does."""

    system: str
    place: str
    hosts: str
    processes: int
    appends: int
    rows: int


@dataclass(frozen=True)
class Worked:
    """What one process saw: milliseconds of each append, and errors that reached it."""

    times: tuple[float, ...]
    conflicts: int


@dataclass(frozen=True)
class Round:
    """All processes together."""

    seconds: float
    times: tuple[float, ...]
    conflicts: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8, help="processes that append")
    parser.add_argument("--appends", type=int, default=20, help="appends of each")
    parser.add_argument("--rows", type=int, default=1000, help="rows of an append")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, after one to warm up")
    parser.add_argument("--only", default=",".join(SYSTEMS), help="systems, joined by commas")
    parser.add_argument("--folder", help="where files are made (default: a temporary folder)")
    args = parser.parse_args()
    end_properly()
    print(machine(), flush=True)
    names = args.only.split(",")
    found: dict[str, list[Round]] = {name: [] for name in names}
    folder = Path(tempfile.mkdtemp(prefix="appends-", dir=args.folder))
    try:
        with EmbeddedZooKeeper(folder / "zookeeper") as server:
            for number in range(args.rounds + 1):
                for at in range(len(names)):
                    name = names[(at + number) % len(names)]
                    place = folder / f"{name.replace(' ', '_').replace(',', '')}_{number}"
                    plan = Plan(name, str(place), server.hosts, args.processes, args.appends, args.rows)
                    found[name].append(_round(plan))
                    shutil.rmtree(place)
    finally:
        shutil.rmtree(folder)
    print(_table(found, args.processes * args.appends))
    print("\n".join(["Targets:", *_verdicts(found)]))
    print(NOTES.format(rows=args.rows))


def _round(plan: Plan) -> Round:
    """A new table, and all processes at once."""
    SYSTEMS[plan.system].make(plan)
    barrier, results = FORK.Barrier(plan.processes + 1), FORK.Queue()
    crew = [FORK.Process(target=_work, args=(plan, k, barrier, results), daemon=True) for k in range(plan.processes)]
    for process in crew:
        process.start()
    try:
        with contextlib.suppress(threading.BrokenBarrierError):  # then the results say why
            barrier.wait(WAIT_S)
        began = time.perf_counter()
        found = [results.get(timeout=WAIT_S) for _ in crew]
        seconds = time.perf_counter() - began
    except queue.Empty as error:
        raise TimeoutError(f"{plan.system}: a process did not answer for {WAIT_S:.0f} s") from error
    finally:
        for process in crew:
            process.join(10)
            if process.is_alive():
                process.kill()
    if errors := [one for one in found if isinstance(one, str)]:
        raise RuntimeError("\n".join(errors))
    paths = SYSTEMS[plan.system].files(plan)
    rows, _ = fingerprint(paths)
    wanted = plan.processes * plan.appends
    assert (len(paths), rows) == (wanted, wanted * plan.rows), f"{len(paths)} files, {rows} rows"
    return Round(seconds, tuple(ms for one in found for ms in one.times), sum(one.conflicts for one in found))


def _work(plan: Plan, process: int, barrier: Any, results: Any) -> None:
    try:
        results.put(SYSTEMS[plan.system].work(plan, process, lambda: barrier.wait(WAIT_S)))
    except BaseException as error:
        barrier.abort()
        results.put(f"{plan.system}: {error!r}, because of {error.__cause__!r}")


def _timed(appends: int, append: Append, lost: type[Exception]) -> Worked:
    """``append`` is called until it succeeds, once for each."""
    times: list[float] = []
    conflicts = 0
    for number in range(appends):
        began = time.perf_counter()
        while True:
            try:
                append(number)
                break
            except lost as error:
                conflicts += 1
                if conflicts > MOST_CONFLICTS:
                    raise RuntimeError(f"given up after {conflicts} lost appends") from error
        times.append((time.perf_counter() - began) * 1000)
    return Worked(tuple(times), conflicts)


def _rows(plan: Plan, process: int) -> list[pa.Table]:
    rng = np.random.default_rng(process)
    return [events(rng, plan.rows, process) for _ in range(plan.appends)]


@dataclass(frozen=True)
class Segments:
    """Ours."""

    locking: bool

    def _name(self, plan: Plan) -> str:
        return Path(plan.place).name

    def _store(self, plan: Plan) -> SegmentStore:
        uri = Path(plan.place).as_uri()
        return SegmentStore.connect(plan.hosts, cluster_of(uri), uri)

    def make(self, plan: Plan) -> None:
        Path(plan.place).mkdir()
        build: dict[str, Any] = {"segmentGranularity": "DAY"}
        if self.locking:
            build["segmentLocking"] = True
        document = {
            "tableName": self._name(plan),
            "segmentsConfig": {"timeColumnName": "at"},
            "segmentBuildConfig": build,
            "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "APPEND"}},
        }
        with self._store(plan) as store:
            store.apply_config(TableConfig.from_json(document))

    def work(self, plan: Plan, process: int, ready: Callable[[], object]) -> Worked:
        pushes = _rows(plan, process)
        with self._store(plan) as store, tempfile.TemporaryDirectory() as folder:
            opened = store.table(self._name(plan))
            objects = LocalStore(plan.place)

            def append(number: int) -> None:
                ticket = opened.start(stager="append").ticket
                assert ticket is not None
                job = write_job(opened.name, objects, ticket.prefix, attempt=ticket.attempt, entry=ticket.entry_id)
                opened.publish(ticket, write(job, pushes[number], process, Path(folder)))

            opened.snapshot()
            write(write_job("warm_up", LocalStore(folder), "t/"), pushes[0], process, Path(folder))
            ready()
            return _timed(plan.appends, append, SegmentsError)

    def files(self, plan: Plan) -> list[Path]:
        with self._store(plan) as store:
            return [Path(plan.place) / one.key for one in store.table(self._name(plan)).snapshot().segments]


@dataclass(frozen=True)
class Delta:
    """delta-rs, with its own retries or without."""

    retries: bool

    def make(self, plan: Plan) -> None:
        from deltalake import DeltaTable

        schema = events(np.random.default_rng(0), 0, 0).schema.append(pa.field("day", pa.string()))
        DeltaTable.create(plan.place, schema, partition_by=["day"])

    def work(self, plan: Plan, process: int, ready: Callable[[], object]) -> Worked:
        from deltalake import CommitProperties, DeltaTable, WriterProperties, write_deltalake
        from deltalake.exceptions import DeltaError

        day = pa.array([f"day {process}"] * plan.rows)
        pushes = [rows.sort_by("at").append_column("day", day) for rows in _rows(plan, process)]
        send = functools.partial(
            write_deltalake, plan.place, mode="append", writer_properties=WriterProperties(compression="ZSTD")
        )
        if not self.retries:
            send = functools.partial(send, commit_properties=CommitProperties(max_commit_retries=0))
        DeltaTable(plan.place).file_uris()
        ready()
        return _timed(plan.appends, lambda number: send(pushes[number]), DeltaError)

    def files(self, plan: Plan) -> list[Path]:
        from deltalake import DeltaTable

        return [Path(uri.removeprefix("file://")) for uri in DeltaTable(plan.place).file_uris()]


SYSTEMS: dict[str, Segments | Delta] = {
    "segments": Segments(locking=False),
    "segments locking": Segments(locking=True),
    "delta-rs": Delta(retries=True),
    "delta-rs told": Delta(retries=False),
}


def _table(found: dict[str, list[Round]], appends: int) -> str:
    head = ["", "seconds", "rounds", "appends a second", "median ms", "p95 ms", "max ms", "to the caller"]
    rows = []
    for name, rounds in found.items():
        measured = rounds[1:]
        seconds = median([one.seconds for one in measured])
        times = sorted(ms for one in measured for ms in one.times)
        each = " ".join(f"{one.seconds:.2f}" for one in measured)
        spread = [show(median(times)), show(times[int(len(times) * 0.95)]), show(times[-1])]
        conflicts = ", ".join(str(one.conflicts) for one in measured)
        rows.append([name, f"{seconds:.2f}", each, f"{appends / seconds:,.0f}", *spread, conflicts])
    return table(head, rows)


def _verdicts(found: dict[str, list[Round]]) -> list[str]:
    lines = []
    seconds = {name: median([one.seconds for one in rounds[1:]]) for name, rounds in found.items()}
    theirs = min((taken for name, taken in seconds.items() if name.startswith("delta")), default=None)
    for name, rounds in found.items():
        if not name.startswith("segments"):
            continue
        conflicts = sum(one.conflicts for one in rounds)
        lines.append(f"  {'met' if not conflicts else 'MISSED':<7}{name}: {conflicts} conflicts reached a caller")
        if theirs is not None:
            met = "met" if seconds[name] < theirs else "MISSED"
            lines.append(f"  {met:<7}{name}: {seconds[name]:.2f} s, the faster delta-rs {theirs:.2f} s")
    return lines


if __name__ == "__main__":
    main()
