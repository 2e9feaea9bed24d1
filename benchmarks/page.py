"""How long the page of Airflow takes with many tables, and with a table of many entries.

python -m benchmarks.page [--tables 1000] [--entries 10000] [--segments 10] [--rounds 5]

A real ``airflow standalone``, an embedded ZooKeeper and Chromium (``CHROMIUM``, or the one on the path). The records of
the tables are written as pushes would have left them; no object is written, and the page reads none. "server" is the
answer of the route alone, first without anything known and then as a refresh; "reads" are the packets that ZooKeeper
received for it. "paint" is from the click on a link to the rows, "visit" from the address, Airflow's own interface
included, with its scripts in the browser's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import requests

from airflow_provider_segments.core.lineage import guard as guards
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import Guard, GuardState
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import Create
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from benchmarks.report import end_properly, machine, median, show, table, verdict
from tests.support.standalone import Airflow, standalone

if TYPE_CHECKING:
    from playwright.sync_api import Page

DAY_MS = 86_400_000
JANUARY_1 = 1_356_998_400_000
TARGET_MS = 1_000
PATIENCE_MS = 300_000
_BATCH = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1_000, help="small tables, of five entries each")
    parser.add_argument("--entries", type=int, default=10_000, help="lineage entries of the large table")
    parser.add_argument("--segments", type=int, default=10, help="segments of each of its entries")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds")
    args = parser.parse_args()
    end_properly()
    print(machine(), flush=True)
    home = Path(tempfile.mkdtemp(prefix="page-"))
    try:
        with EmbeddedZooKeeper(home / "zookeeper", sync=False) as zookeeper:
            _fill(zookeeper.hosts, home, args)
            with _airflow(home, zookeeper.hosts) as airflow:
                _measure(airflow, zookeeper.port, args)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _airflow(home: Path, hosts: str) -> Any:
    extra = {"storage_uri": (home / "objects").as_uri(), "cluster": "page"}
    connection = json.dumps({"conn_type": "segments", "host": hosts, "extra": extra})
    (home / "dags").mkdir()
    return standalone(home, dags=home / "dags", dag_count=0, variables={"AIRFLOW_CONN_SEGMENTS_DEFAULT": connection})


def _fill(hosts: str, home: Path, args: argparse.Namespace) -> None:
    begun = time.monotonic()
    with SegmentStore.connect(hosts, "page", (home / "objects").as_uri()) as store:
        for number in range(args.tables):
            write_table(store, f"table_{number:04}", 5, 4)
        write_table(store, "zz_large", args.entries, args.segments)
    print(
        f"{args.tables:,} small tables, and one of {args.entries:,} entries and {args.entries * args.segments:,} "
        f"segments, written in {time.monotonic() - begun:.0f} s",
        flush=True,
    )


def write_table(store: SegmentStore, name: str, entries: int, segments: int) -> None:
    """Make an APPEND table with the records that so many pushes would have left."""
    document = {"tableName": name, "segmentsConfig": {"timeColumnName": "ts"}}
    store.apply_config(TableConfig.from_json(document))
    context = store.table(name).context
    stored = context.records.read()
    made: dict[str, LineageEntry] = {}
    creates: list[Create] = []
    for number in range(entries):
        entry_id = str(uuid.uuid4())
        names = [f"{name}_{number}_{at}" for at in range(segments)]
        made[entry_id] = LineageEntry.of(entry_id, [], names, EntryState.COMPLETED, JANUARY_1 + number)
        guard = Guard.new(f"127.0.0.1/load/manual__{number}/start", GuardState.COMPLETED)
        creates.append(Create(context.records.guard_path(entry_id), guards.encode(guard)))
        day = JANUARY_1 + number % 365 * DAY_MS
        chunk = time.strftime("%Y-%m-%d", time.gmtime(day / 1000))
        records = [SegmentRecord(one, f"{one}.parquet", 1_000, 50_000, 7, day, day + 1) for one in names]
        shards = context.registry.shard_payloads(entry_id, stored.zxid, "build", 1, {chunk: records})
        creates += [Create(path, data) for path, data in shards.items()]
    context.registry.make_chunks(create.path for create in creates if "/SEGMENTS/" in create.path)
    for start in range(0, len(creates), _BATCH):
        store.session.commit(creates[start : start + _BATCH])
    full = Lineage(name, MappingProxyType(made))
    store.session.commit([context.records.write(stored, full)])


def _measure(airflow: Airflow, port: int, args: argparse.Namespace) -> None:
    base = f"{airflow.url}/segments/api/connections/segments_default/tables"
    rows = []
    for what, url in (
        ("50 of the tables", base),
        ("all, by rows", f"{base}?sort=rows"),
        ("the large table", f"{base}/zz_large"),
        ("its timeline", f"{base}/zz_large/timeline"),
        ("its history", f"{base}/zz_large/history?limit=1"),
        ("operations", base.removesuffix("tables") + "operations"),
    ):
        first, reads, size = _ask(airflow, url, port)
        again = [_ask(airflow, url, port) for _ in range(args.rounds)]
        rows.append(
            [what, show(first), f"{reads:,}", show(median([ms for ms, _, _ in again])), f"{again[0][1]:,}", f"{size:,}"]
        )
    print(table(["server", "first ms", "reads", "refresh ms", "reads", "bytes"], rows), flush=True)
    for line in _in_browser(airflow, args):
        print(line, flush=True)


def _ask(airflow: Airflow, url: str, port: int) -> tuple[float, int, int]:
    """Milliseconds of an answer, packets that ZooKeeper received meanwhile, and the answer's bytes."""
    headers = {"Authorization": f"Bearer {airflow.token}"}
    before, begun = _received(port), time.monotonic()
    answer = requests.get(url, headers=headers, timeout=120)
    took = (time.monotonic() - begun) * 1000
    answer.raise_for_status()
    return took, _received(port) - before, len(answer.content)


def _received(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as asked:
        asked.sendall(b"srvr")
        text = b"".join(iter(lambda: asked.recv(4096), b"")).decode()
    return next(int(line.split(":")[1]) for line in text.splitlines() if line.startswith("Received"))


def _in_browser(airflow: Airflow, args: argparse.Namespace) -> Iterator[str]:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        raise SystemExit("no chromium is installed: set CHROMIUM to its path")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        context.add_cookies([{"name": "_token", "value": airflow.token, "url": airflow.url}])
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        tables, large = f"{airflow.url}/plugin/segments", "#conn=segments_default&table=zz_large"
        _visit(page, tables, "table_0000")
        visits = [_visit(page, tables, "table_0000") for _ in range(args.rounds)]
        into = [_click(page, large, "Lineage") for _ in range(args.rounds)]
        out = [_click(page, "#conn=segments_default", "table_0000") for _ in range(args.rounds)]
        browser.close()
    yield verdict(f"paint of the list of {args.tables + 1:,} tables", median(out), TARGET_MS)
    yield verdict(f"paint of a table of {args.entries:,} entries", median(into), TARGET_MS)
    yield verdict("visit of the list, Airflow's own interface included", median(visits), TARGET_MS)


def _visit(page: Page, url: str, text: str) -> float:
    page.goto("about:blank")
    return _timed(lambda: page.goto(url, wait_until="commit"), page, text)


def _click(page: Page, place: str, text: str) -> float:
    """Go to a place of the page, from another one."""
    page.evaluate("location.hash = '#conn=segments_default&view=operations'")
    page.get_by_role("heading", name="Locks").wait_for()
    return _timed(lambda: page.evaluate(f"location.hash = {place!r}"), page, text)


def _timed(go: Callable[[], Any], page: Page, text: str) -> float:
    begun = time.monotonic()
    go()
    page.get_by_text(text, exact=True).first.wait_for()
    return (time.monotonic() - begun) * 1000


if __name__ == "__main__":
    main()
