"""Appends of many processes to one table at once, each to time chunks of its own: ours and delta-rs, in one run.

python -m benchmarks.appends [--processes 8] [--appends 20] [--rows 1000] [--rounds 5] [--only ...] [--folder F]
    [--store local|s3] [--servers 1|3]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import queue
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.exceptions import SegmentsError
from benchmarks.events import events, fingerprint, write, write_job
from benchmarks.meter import NOTES as COSTS
from benchmarks.meter import Costs, Meter, cost_table, mean
from benchmarks.places import Place, key_of
from benchmarks.report import end_properly, machine, median, show, table
from benchmarks.systems import add_surroundings, open_segments, surroundings

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
                 commit itself (15 times), without saying so. On S3 the name is taken by a conditional put.
delta-rs, told   the same with max_commit_retries=0: every lost commit is an error, and the caller appends anew at once.
                 This shows how many conflicts there are.
pyiceberg        Table.append, partitioned by day, catalog in SQLite (WAL): loads the table, writes data file, manifest
                 and its list, and the metadata, and swaps one row of the catalog. It retries a lost commit itself (4
                 times, after 0.1 s and more); then it is an error, and the caller appends anew. So is a locked
                 database.
What the S3 server counted is divided by the appends of all processes, as long as the first of them was at work."""

Append = Callable[[int], None]


@dataclass(frozen=True)
class Plan:
    """What each process does."""

    system: str
    place: Place
    folder: Path
    hosts: str
    processes: int
    appends: int
    rows: int


@dataclass(frozen=True)
class Worked:
    """What one process saw: milliseconds of each append, errors that reached it, and what the appends cost."""

    times: tuple[float, ...]
    conflicts: int
    costs: Costs


@dataclass(frozen=True)
class Round:
    """All processes together."""

    seconds: float
    times: tuple[float, ...]
    conflicts: int
    costs: Costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8, help="processes that append")
    parser.add_argument("--appends", type=int, default=20, help="appends of each")
    parser.add_argument("--rows", type=int, default=1000, help="rows of an append")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after one to warm up")
    parser.add_argument("--only", default=",".join(SYSTEMS), help="systems, joined by commas")
    add_surroundings(parser)
    args = parser.parse_args()
    end_properly()
    print(machine(), flush=True)
    names = args.only.split(",")
    found: dict[str, list[Round]] = {name: [] for name in names}
    folder = Path(tempfile.mkdtemp(prefix="appends-", dir=args.folder))
    try:
        with surroundings(folder, args.store, args.servers) as around:
            for number in range(args.rounds + 1):
                for at in range(len(names)):
                    name = names[(at + number) % len(names)]
                    below = f"{name.replace(' ', '_')}_{number}"
                    (folder / below).mkdir()
                    plan = Plan(
                        name, around.place.at(below), folder / below, around.hosts, args.processes, args.appends,
                        args.rows,
                    )  # fmt: skip
                    found[name].append(_round(plan))
    finally:
        shutil.rmtree(folder)
    print(f"Objects: {args.store}; ZooKeeper servers: {args.servers}")
    print(_table(found, args.processes * args.appends))
    costs = {name: mean([one.costs for one in rounds[1:]]) for name, rounds in found.items()}
    print(cost_table("What one append costs, its conflicts included", costs))
    print("\n".join(["Targets:", *_verdicts(found)]))
    print(f"{NOTES.format(rows=args.rows)}\n{COSTS}")


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
    with tempfile.TemporaryDirectory() as copies:
        paths = plan.place.paths(SYSTEMS[plan.system].files(plan), Path(copies))
        rows, _ = fingerprint(paths)
    wanted = plan.processes * plan.appends
    assert (len(paths), rows) == (wanted, wanted * plan.rows), f"{len(paths)} files, {rows} rows"
    times = tuple(ms for one in found for ms in one.times)
    costs = {name: sum(one.costs[name] for one in found) / wanted for name in found[0].costs}
    return Round(seconds, times, sum(one.conflicts for one in found), costs)


def _work(plan: Plan, process: int, barrier: Any, results: Any) -> None:
    try:
        results.put(SYSTEMS[plan.system].work(plan, process, lambda: barrier.wait(WAIT_S)))
    except BaseException as error:
        barrier.abort()
        results.put(f"{plan.system}: {error!r}, because of {error.__cause__!r}")


def _timed(appends: int, append: Append, lost: tuple[type[Exception], ...], meter: Meter) -> Worked:
    """``append`` is called until it succeeds, once for each."""
    times: list[float] = []
    conflicts = 0

    def all_of_them() -> None:
        nonlocal conflicts
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

    meter.timed(all_of_them)
    return Worked(tuple(times), conflicts, meter.taken())


def _rows(plan: Plan, process: int) -> list[pa.Table]:
    rng = np.random.default_rng(process)
    return [events(rng, plan.rows, process) for _ in range(plan.appends)]


class System(Protocol):
    """A table that many processes append to."""

    def make(self, plan: Plan) -> None:
        """An empty table."""

    def work(self, plan: Plan, process: int, ready: Callable[[], object]) -> Worked:
        """The appends of one process, after ``ready``."""

    def files(self, plan: Plan) -> list[str]:
        """The keys of all files of the table, as its readers find them."""


@dataclass(frozen=True)
class Segments:
    """Ours."""

    locking: bool

    def make(self, plan: Plan) -> None:
        build: dict[str, Any] = {"segmentGranularity": "DAY"}
        if self.locking:
            build["segmentLocking"] = True
        document = {
            "tableName": plan.folder.name,
            "segmentsConfig": {"timeColumnName": "at"},
            "segmentBuildConfig": build,
            "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "APPEND"}},
        }
        with open_segments(plan.hosts, plan.place) as store:
            store.apply_config(TableConfig.from_json(document))

    def work(self, plan: Plan, process: int, ready: Callable[[], object]) -> Worked:
        pushes = _rows(plan, process)
        with open_segments(plan.hosts, plan.place) as store, tempfile.TemporaryDirectory() as folder:
            opened = store.table(plan.folder.name)
            objects = store.storage

            def append(number: int) -> None:
                ticket = opened.start(stager="append").ticket
                assert ticket is not None
                job = write_job(opened.name, objects, ticket.prefix, attempt=ticket.attempt, entry=ticket.entry_id)
                opened.publish(ticket, write(job, pushes[number], process, Path(folder)))

            opened.snapshot()
            write(write_job("warm_up", LocalStore(folder), "t/"), pushes[0], process, Path(folder))
            assert objects.head("no/such") is None  # boto3 loads its models
            meter = Meter(plan.place if process == 0 else None, store.session)
            ready()
            return _timed(plan.appends, append, (SegmentsError,), meter)

    def files(self, plan: Plan) -> list[str]:
        with open_segments(plan.hosts, plan.place) as store:
            return [one.key for one in store.table(plan.folder.name).snapshot().segments]


@dataclass(frozen=True)
class Delta:
    """delta-rs, with its own retries or without."""

    retries: bool

    def make(self, plan: Plan) -> None:
        from deltalake import DeltaTable

        schema = _days(_no_rows(), 0).schema
        DeltaTable.create(plan.place.uri, schema, partition_by=["day"], storage_options=plan.place.delta_options())

    def work(self, plan: Plan, process: int, ready: Callable[[], object]) -> Worked:
        from deltalake import CommitProperties, DeltaTable, WriterProperties, write_deltalake
        from deltalake.exceptions import DeltaError

        pushes = [_days(rows, process) for rows in _rows(plan, process)]
        options = plan.place.delta_options()
        send = functools.partial(
            write_deltalake, plan.place.uri, mode="append", writer_properties=WriterProperties(compression="ZSTD"),
            storage_options=options,
        )  # fmt: skip
        if not self.retries:
            send = functools.partial(send, commit_properties=CommitProperties(max_commit_retries=0))
        DeltaTable(plan.place.uri, storage_options=options).file_uris()
        ready()
        meter = Meter(plan.place if process == 0 else None)
        return _timed(plan.appends, lambda number: send(pushes[number]), (DeltaError,), meter)

    def files(self, plan: Plan) -> list[str]:
        from deltalake import DeltaTable

        found = DeltaTable(plan.place.uri, storage_options=plan.place.delta_options()).file_uris()
        return [key_of(plan.place, uri) for uri in found]


class Iceberg:
    """pyiceberg, with its own retries."""

    def make(self, plan: Plan) -> None:
        catalog = self._catalog(plan)
        catalog.create_namespace("bench")
        with sqlite3.connect(plan.folder / "catalog.db") as database:
            database.execute("PRAGMA journal_mode=WAL")
        table = catalog.create_table("bench.t", _days(_no_rows(), 0).schema)
        with table.update_spec() as spec:
            spec.add_identity("day")

    def work(self, plan: Plan, process: int, ready: Callable[[], object]) -> Worked:
        from pyiceberg.exceptions import CommitFailedException
        from sqlalchemy.exc import OperationalError

        pushes = [_days(rows, process) for rows in _rows(plan, process)]
        catalog = self._catalog(plan)
        catalog.load_table("bench.t")
        ready()
        meter = Meter(plan.place if process == 0 else None)
        append = lambda number: catalog.load_table("bench.t").append(pushes[number])  # noqa: E731
        return _timed(plan.appends, append, (CommitFailedException, OperationalError), meter)

    def files(self, plan: Plan) -> list[str]:
        tasks = self._catalog(plan).load_table("bench.t").scan().plan_files()
        return [key_of(plan.place, one.file.file_path) for one in tasks]

    def _catalog(self, plan: Plan) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        where = plan.place
        return SqlCatalog(
            "bench", uri=f"sqlite:///{plan.folder}/catalog.db", warehouse=where.uri, **where.iceberg_options()
        )


def _days(rows: pa.Table, process: int) -> pa.Table:
    """Rows as the peers get them: sorted, with the column by which their tables are partitioned."""
    return rows.sort_by("at").append_column("day", pa.array([f"day-{process}"] * len(rows), pa.string()))


def _no_rows() -> pa.Table:
    return events(np.random.default_rng(0), 0, 0)


SYSTEMS: dict[str, System] = {
    "segments": Segments(locking=False),
    "segments locking": Segments(locking=True),
    "delta-rs": Delta(retries=True),
    "delta-rs told": Delta(retries=False),
    "pyiceberg": Iceberg(),
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
