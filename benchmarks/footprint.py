"""What tables, segments and pushes cost ZooKeeper: znodes, bytes, memory, and bytes of its log.

    python -m benchmarks.footprint [--tables 10 100] [--segments 1000 10000] [--pushes 100]

A table has its segments in 365 daily chunks, staged by one push, as after compaction. Bytes are those of all znodes'
data; memory is what lives in the server's heap after a collection, less what lived there before (it needs ``jcmd``).
Pushes bring 10 segments to 10 days each, and each is ended; the log is what ZooKeeper has written meanwhile.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from benchmarks.report import machine, table

DAY_MS = 86_400_000
FIRST_MS = 1_735_689_600_000
DAYS = 365
CONFIG = {"segmentsConfig": {"timeColumnName": "at"}, "segmentBuildConfig": {"segmentGranularity": "DAY"}}
APPEND = {"ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "APPEND"}}}


def main() -> None:
    """Print a table of sizes and one of pushes."""
    arguments = _arguments()
    print(machine())
    rows = [_stored(tables, count) for tables in arguments.tables for count in arguments.segments]
    print(table(["tables", "segments each", "znodes", "bytes", "a segment", "heap MB", "snapshot MB"], rows))
    print()
    print(table(["pushes", "log bytes a push", "transactions a push", "ms a push"], [_pushed(arguments.pushes)]))


def _stored(tables: int, count: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder, EmbeddedZooKeeper(Path(folder) / "zk", sync=False) as server:
        heap = _heap(server)
        with SegmentStore.connect(server.hosts, storage_uri=(Path(folder) / "store").as_uri()) as store:
            for number in range(tables):
                made = _make(store, f"table{number}")
                ticket = made.open_stage(made.start().entry_id)
                made.stage(ticket, [_segment(f"events_{day:05}_{number:03}", day % DAYS) for day in range(count)])
            znodes, size = _walk(store)
        kept = _heap(server) - heap
        server.stop()
        server.start()  # it writes a snapshot when it has loaded its log
        snapshot = max(path.stat().st_size for path in Path(folder).rglob("snapshot.*"))
    each = f"{size / tables / count:,.0f}"
    sizes = [f"{kept / 1e6:,.0f}", f"{snapshot / 1e6:,.1f}"]
    return [f"{tables:,}", f"{count:,}", f"{znodes:,}", f"{size:,}", each, *sizes]


def _pushed(count: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder, EmbeddedZooKeeper(Path(folder) / "zk") as server:
        with SegmentStore.connect(server.hosts, storage_uri=(Path(folder) / "store").as_uri()) as store:
            made = _make(store, "events")
            _push(made, 0)
            before, zxid, began = _log_bytes(folder), _zxid(server), time.perf_counter()
            for number in range(1, count + 1):
                _push(made, number)
            took, transactions = time.perf_counter() - began, _zxid(server) - zxid
        written = _log_bytes(folder) - before
    return [f"{count:,}", f"{written / count:,.0f}", f"{transactions / count:.1f}", f"{1000 * took / count:.1f}"]


def _make(store: SegmentStore, name: str) -> Table:
    store.apply_config(TableConfig.from_json({"tableName": name, **CONFIG, **APPEND}))
    return store.table(name)


def _push(made: Table, number: int) -> None:
    entry = made.start().entry_id
    ticket = made.open_stage(entry)
    staged = [_segment(f"events_{number:05}_{day:03}", day) for day in range(10)]
    with tempfile.NamedTemporaryFile() as body:
        for one in staged:
            owner = owner_metadata(made.name, one.record.name, ticket.generation)
            made.storage.put_file(Path(body.name), ticket.prefix + one.record.file, owner=owner)
    made.stage(ticket, staged)
    made.end(entry)


def _segment(name: str, day: int) -> StagedSegment:
    at = FIRST_MS + day * DAY_MS
    chunk = time.strftime("%Y-%m-%d", time.gmtime(at / 1000))
    return StagedSegment(chunk, SegmentRecord(name, f"{name}.1.parquet", 5_000_000, 0, 0, at, at + DAY_MS - 1))


def _walk(store: SegmentStore) -> tuple[int, int]:
    """Znodes and bytes of their data, below the cluster's root."""
    count, size, paths = 0, 0, [store.paths.root]
    while paths:
        path = paths.pop()
        read = store.session.get(path)
        count, size = count + 1, size + len(read.data if read else b"")
        paths += [f"{path}/{child}" for child in store.session.children(path)]
    return count, size


def _zxid(server: EmbeddedZooKeeper) -> int:
    """The last transaction."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"srvr")
        text = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    found = re.search("Zxid: (0x[0-9a-f]+)", text)
    assert found, text
    return int(found[1], 16)


def _log_bytes(folder: str) -> int:
    """Without the zeros that a log file ends with: ZooKeeper makes its files longer in large steps."""
    return sum(len(path.read_bytes().rstrip(b"\0")) for path in Path(folder).rglob("log.*"))


def _heap(server: EmbeddedZooKeeper) -> int:
    """Bytes that live in the server's heap."""
    command = ["jcmd", str(server.pid), "GC.class_histogram"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"^Total\s+\d+\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint", description=__doc__)
    parser.add_argument("--tables", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--segments", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--pushes", type=int, default=100)
    return parser.parse_args()


if __name__ == "__main__":
    main()
