"""Delete n replaced files safely: ours, the raw floor, delta-rs and pyiceberg, on the same storage in the same run.

python -m benchmarks.delete [--sizes 10000,100000] [--stores local,s3] [--rounds 1]
    [--only raw,segments,delta-rs,pyiceberg] [--servers 1|3]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import itertools
import multiprocessing
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.names import entry_tag
from airflow_provider_segments.core.storage.base import encode_owner
from airflow_provider_segments.core.table import SegmentStore
from benchmarks.meter import requests
from benchmarks.places import Bucket, Place, place
from benchmarks.report import end_properly, machine, median, show, table, verdict
from benchmarks.systems import (
    add_action,
    add_servers,
    data_file,
    day_of,
    iceberg_table,
    milliseconds,
    open_segments,
    staged_segment,
    zookeeper,
)

DAYS = 365
LATER_MS = 3 * 86_400_000
_TABLES = itertools.count(1)
SYSTEMS = ("raw", "segments", "delta-rs", "pyiceberg")
FLAT = 1.5
"""Memory counts as flat when ten times the files take at most this many times as much."""

NOTES = """\
What is timed. raw: local files, unlink in a loop and one fsync of the folder; S3, delete_objects alone, 1,000 keys a
request, one after the other. segments: "mark" is the clean-up that takes the n replaced segments out of the registry
and queues a message for each, "drain" is the consumer that takes the messages, asks lineage, registry and leases,
compares the owner metadata of every object, deletes (files in 8 threads, where the raw loop has one), syncs and
settles; each in a process of its own, through the public API, ZooKeeper's writes synced. delta-rs: open the table and
vacuum(retention_hours=0) without its dry run; it lists the table's folder and looks at no object. pyiceberg:
expire_snapshots deletes no files (0.12), so "expire" is metadata only, and "+ files" adds the plan of the expired
snapshot and its catalog's own delete_files. Making the objects is in no timing. Requests are those sent to ZooKeeper,
pings apart; several are out at a time. Memory is the peak of the process above what it had before, in MiB (Linux,
/proc)."""


@dataclass
class Found:
    """Medians of one system at one place and size: milliseconds of each step, and what else there is to say."""

    steps: dict[str, float] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(self.steps.values())


Results = dict[tuple[str, str, int], Found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10000,100000", help="files to delete, joined by commas")
    parser.add_argument("--stores", default="local,s3", help="places, joined by commas")
    parser.add_argument("--rounds", type=int, default=1, help="measured rounds a size")
    parser.add_argument("--only", default=",".join(SYSTEMS), help="systems, joined by commas")
    add_servers(parser)
    parser.add_argument("--folder", help="where files are made (default: a temporary folder)")
    args = parser.parse_args()
    sizes, stores, names = [int(size) for size in args.sizes.split(",")], args.stores.split(","), args.only.split(",")
    end_properly()
    print(machine(), flush=True)
    results: Results = {}
    folder = Path(tempfile.mkdtemp(prefix="delete-", dir=args.folder))
    try:
        with zookeeper(folder, args.servers) as hosts:
            if "segments" in names:
                _warm_up(folder / "warm-up", hosts)
            for store in stores:
                (folder / store).mkdir()
                with place(store, folder / store) as where:
                    for size in sizes:
                        for name in names:
                            rounds = [_measure(name, where, size, hosts) for _ in range(args.rounds)]
                            results[name, store, size] = _median(rounds)
    finally:
        shutil.rmtree(folder)
    for store in stores:
        print(_table(store, sizes, results))
    print(_growth(stores, sizes, results))
    print("\n".join(["Targets:", *_verdicts(stores, sizes, results)]))
    print(NOTES)


def _median(rounds: list[Found]) -> Found:
    """Each step's median; requests and memory as in the last round."""
    steps = {step: median([one.steps[step] for one in rounds]) for step in rounds[0].steps}
    return Found(steps, rounds[-1].requests, rounds[-1].memory)


def _measure(name: str, where: Place, size: int, hosts: str) -> Found:
    match name:
        case "raw":
            return _raw(where, size)
        case "segments":
            return _segments(where, size, hosts)
        case "delta-rs":
            return _delta(where, size)
        case "pyiceberg":
            return _iceberg(where, size)
    raise SystemExit(f"system {name!r} is unknown: use {', '.join(SYSTEMS)}")


def _raw(where: Place, size: int) -> Found:
    keys = [f"raw/e/{number:06d}.parquet" for number in range(size)]
    owner = encode_owner(owner_metadata("raw", "raw_2013-01-01_0123456789ab_000000", "e:1:build:1"))
    where.fill((key, owner) for key in keys)
    os.sync()
    taken = milliseconds(lambda: where.remove(keys))
    assert where.count("raw/") == 0
    return Found({"raw": taken})


# --- ours


def _segments(where: Place, size: int, hosts: str) -> Found:
    name = f"{where.name}_{size}_{next(_TABLES)}"
    with open_segments(hosts, where) as store:
        _replace(store, where, name, size)
    before = where.count(f"{name}/")
    found = Found()
    for step in ("mark", "drain"):
        found.steps[step], found.requests[step], found.memory[step], done = _apart(step, where, name, hosts)
        assert done == size, f"{step}: {done} instead of {size}"
    assert before - where.count(f"{name}/") == size
    return found


def _replace(store: SegmentStore, where: Place, name: str, size: int) -> None:
    """A push of ``size`` files, and one of a single file that replaces it."""
    document = {
        "tableName": name,
        "segmentsConfig": {"timeColumnName": "at"},
        "segmentBuildConfig": {"segmentGranularity": "DAY"},
        "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "REFRESH"}},
    }
    store.apply_config(TableConfig.from_json(document))
    target = store.table(name)
    for files in (size, 1):
        started = target.start()
        ticket = target.open_stage(started.entry_id)
        tag = entry_tag(started.entry_id)
        segments = [staged_segment(name, tag, number, day_of(number, files, DAYS)) for number in range(files)]
        where.fill(
            (ticket.prefix + one.record.file, encode_owner(owner_metadata(name, one.record.name, ticket.generation)))
            for one in segments
        )
        target.stage(ticket, segments)
        target.end(started.entry_id)
    os.sync()
    assert len(target.snapshot()) == 1


def _apart(step: str, where: Place, name: str, hosts: str) -> tuple[float, int, float, int]:
    """Run one step in a fresh process: milliseconds, requests to ZooKeeper, MiB at the peak, segments dealt with."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_step, (step, hosts, where, name))


def _step(step: str, hosts: str, where: Place, name: str) -> tuple[float, int, float, int]:
    with open_segments(hosts, where) as store:
        assert store.storage.head("no/such") is None  # boto3 loads its models
        store.tables()
        later = store.clock.now_ms() + LATER_MS
        moved = store.replace(clock=dataclasses.replace(store.clock, now_ms=lambda: later))
        target, done = moved.table(name), Counter[str]()
        sent = requests(store.session)

        def mark() -> None:
            done["mark"] = sum(target.cleanup().marked.values())

        def drain() -> None:
            done["drain"] = moved.deleter().drain().total("deleted")

        taken: list[float] = []
        peak = _peak_memory(lambda: taken.append(milliseconds(mark if step == "mark" else drain)))
        return taken[0], sum(sent.values()), peak, done[step]


def _peak_memory(work: Callable[[], object]) -> float:
    """MiB that ``work`` takes at its peak."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def _warm_up(folder: Path, hosts: str) -> None:
    """Let the ZooKeeper server's compiler see the work before it is measured."""
    folder.mkdir()
    with place("local", folder) as where:
        for size in (1000, 1001, 1002):
            _segments(where, size, hosts)


# --- the others


def _delta(where: Place, size: int) -> Found:
    from deltalake import DeltaTable

    name = f"delta-{size}"
    options = where.delta_options()
    schema = pa.schema([("day", pa.string()), ("n", pa.int64())])
    uri = f"{where.uri}/{name}"
    with _vanishing(where, name):
        DeltaTable.create(uri, schema, partition_by=["day"], storage_options=options)
        days = [day_of(number, size, DAYS).isoformat() for number in range(size)]
        paths = [f"day={day}/part-{number:06d}.parquet" for number, day in enumerate(days)]
        where.fill((f"{name}/{path}", "") for path in paths)
        os.sync()
        actions = [add_action(path, day) for path, day in zip(paths, days, strict=True)]
        for push in (actions, []):
            handle = DeltaTable(uri, storage_options=options)
            handle.create_write_transaction(push, "overwrite", schema, partition_by=["day"])
        vacuumed: list[str] = []

        def vacuum() -> None:
            opened = DeltaTable(uri, storage_options=options)
            vacuumed.extend(opened.vacuum(0, dry_run=False, enforce_retention_duration=False))

        taken = milliseconds(vacuum)
        assert len(vacuumed) == size
    return Found({"vacuum": taken})


def _iceberg(where: Place, size: int) -> Found:
    from pyiceberg.catalog import delete_files

    name = f"iceberg-{size}"
    with _vanishing(where, name), tempfile.TemporaryDirectory(prefix="catalog-") as folder:
        catalog, handle = iceberg_table(Path(folder), f"{where.uri}/{name}", where.iceberg_options())
        files = [(f"{name}/data/{number:06d}.parquet", day_of(number, size, DAYS)) for number in range(size)]
        where.fill((key, "") for key, _ in files)
        os.sync()
        with handle.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for key, day in files:
                append.append_data_file(data_file(f"{where.uri}/{key}", day))
        old = handle.current_snapshot().snapshot_id
        handle.delete()
        doomed: set[str] = set()

        def plan() -> None:
            opened = catalog.load_table("bench.t")
            doomed.update(task.file.file_path for task in opened.scan(snapshot_id=old).plan_files())

        planned = milliseconds(plan)
        expired = milliseconds(lambda: catalog.load_table("bench.t").maintenance.expire_snapshots().by_id(old).commit())
        assert where.count(f"{name}/data/") == size, "expire_snapshots deletes files now: say so in the notes"
        taken = milliseconds(lambda: delete_files(handle.io, doomed, "data"))
        assert where.count(f"{name}/data/") == 0
    return Found({"expire": expired, "files": planned + taken})


@contextlib.contextmanager
def _vanishing(where: Place, name: str) -> Iterator[None]:
    """A table of another system, which leaves nothing for the next round."""
    try:
        yield
    finally:
        if isinstance(where, Bucket):
            where.empty(f"{name}/")
        else:
            shutil.rmtree(Path(where.uri.removeprefix("file://")) / name, ignore_errors=True)


# --- the report


def _table(store: str, sizes: list[int], results: Results) -> str:
    head = ["files", "raw", "mark", "drain", "segments", "files/s", "requests", "MiB mark", "MiB drain", "x raw"]
    head += ["vacuum", "expire", "+ files"]
    rows = []
    for size in sizes:
        raw, ours, delta, ice = (results.get((name, store, size)) for name in SYSTEMS)
        row = [f"{size:,}", show(raw and raw.total)]
        row += [show(ours and ours.steps[step]) for step in ("mark", "drain")]
        row += [show(ours and ours.total), show(ours and size / ours.total * 1000)]
        row += [f"{ours.requests['mark']} + {ours.requests['drain']}" if ours else "-"]
        row += [show(ours and ours.memory[step]) for step in ("mark", "drain")]
        row += [show(ours.total / raw.total if ours and raw else None), show(delta and delta.total)]
        row += [show(ice and ice.steps["expire"]), show(ice and ice.total)]
        rows.append(row)
    return f"\nDelete on {store}, ms\n{table(head, rows)}"


def _growth(stores: list[str], sizes: list[int], results: Results) -> str:
    lines = ["Cost of one more file (ms a thousand files):"]
    for store in stores:
        for name in SYSTEMS:
            parts = [
                f"{size:,}: {show(results[name, store, size].total / size * 1000)}"
                for size in sizes
                if (name, store, size) in results
            ]
            if parts:
                lines.append(f"  {store:<6}{name:<10}" + "   ".join(parts))
    return "\n".join(lines)


def _verdicts(stores: list[str], sizes: list[int], results: Results) -> Iterator[str]:
    for store in stores:
        for size in sizes:
            if (ours := results.get(("segments", store, size))) is None:
                continue
            what = f"{store}: mark + drain of {size:,} files"
            if raw := results.get(("raw", store, size)):
                allowed = 2.0 if store == "local" else 3.0
                yield verdict(what, ours.total, allowed * raw.total, where=f" ({allowed:.0f} x raw)")
            for peer in ("delta-rs", "pyiceberg"):
                if other := results.get((peer, store, size)):
                    yield verdict(what, ours.total, other.total, where=f" ({peer})")
        yield from _flat(store, sizes, results)


def _flat(store: str, sizes: list[int], results: Results) -> Iterator[str]:
    measured = [size for size in sizes if ("segments", store, size) in results]
    if len(measured) < 2:
        return
    small, large = measured[0], measured[-1]
    for step in ("mark", "drain"):
        first, last = (results["segments", store, size].memory[step] for size in (small, large))
        met = "met" if last <= FLAT * max(first, 1.0) else "MISSED"
        found = f"{show(first)} MiB for {small:,} files, {show(last)} MiB for {large:,}"
        yield f"  {met:<7}{store}: peak memory of {step}: {found}"


if __name__ == "__main__":
    main()
