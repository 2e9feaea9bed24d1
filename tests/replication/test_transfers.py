"""Money is moved from an account of one table to an account of another, and read in two regions while it moves.

The writer of each region sends both halves of a transfer to the sources of two tables, and heartbeats between
transfers. Both regions have both tables, each fed by a process with batches and restarts of its own, and compacted by
another. The total of both tables is right at every checkpoint, and only there: whoever reads the tables at unrelated
versions sees money on its way twice or not at all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from airflow_provider_segments.core.replication.emission import HeartbeatEmitter
from airflow_provider_segments.core.replication.heartbeat import Heartbeat
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.event_source import write_heartbeat
from airflow_provider_segments.upsert.file_source import FileSource
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from tests.replication.support import arrow, region_config
from tests.support.children import exit_codes, spawn

REGIONS, TABLES, STORES = ("eu", "us"), ("left", "right"), ("a", "b")
PARTITIONS = 2
ACCOUNTS, START = 4, 100
BEATS, TRANSFERS = 8, 6
PATIENCE_S = 300
KEPT = 3
"""Checkpoints that the compaction leaves to be read once more at the end."""
TOTAL = len(TABLES) * ACCOUNTS * START

Rows = list[dict[str, Any]]
Place = tuple[str, str]
"""A store and a table."""


class Bank:
    """Everything that the processes share: two clusters, folders with sources, and notes in files."""

    def __init__(self, hosts: str, cluster: str, folder: Path) -> None:
        self.hosts, self.cluster, self.folder = hosts, cluster, folder
        self.stop = folder / "stop"

    def connect(self, store: str) -> SegmentStore:
        storage = (self.folder / f"storage_{store}").as_uri()
        return SegmentStore.connect(self.hosts, f"{self.cluster}_{store}", storage)

    def source(self, table: str, region: str) -> Path:
        return self.folder / "source" / table / region

    def times(self, region: str) -> Path:
        """The file with the times of the region's heartbeats."""
        return self.folder / f"times_{region}"

    def time(self, region: str, number: int) -> int:
        """The time of a heartbeat."""
        return int(self.times(region).read_text().splitlines()[number])

    def seen(self, region: str) -> Path:
        """The file with the time of the oldest checkpoint that is still to be read."""
        return self.folder / f"seen_{region}"


def write(bank: Bank, region: str, seed: int) -> None:
    """Transfers between the region's accounts, a few files each, with a heartbeat after every ``TRANSFERS``."""
    rnd, number = random.Random(seed), 0
    money = {(table, at): START for table in TABLES for at in range(ACCOUNTS)}

    def event(table: str, at: int) -> dict[str, Any]:
        nonlocal number
        number += 1
        key = f"{region}{at}"
        return {"k": key, "ts": number, "v": str(money[table, at]), "$region": region, "$partition": at % PARTITIONS}

    def send(table: str, rows: Rows) -> None:
        FileSource(bank.source(table, region)).add_events("events", arrow(rows))

    def beat(heartbeat: Heartbeat) -> None:
        for table in TABLES:
            write_heartbeat(FileSource(bank.source(table, region)), region, heartbeat)

    with bank.connect("a") as store:
        emitter = HeartbeatEmitter(store.cluster, "left", region, f"writer of {region}")
        for table in TABLES:
            send(table, [event(table, at) for at in range(ACCOUNTS)])
        for _ in range(BEATS):
            heartbeat = emitter.emit(PARTITIONS, beat)
            with bank.times(region).open("a") as file:
                file.write(f"{heartbeat.time_ms}\n")
            for _ in range(TRANSFERS):
                halves = {table: rnd.randrange(ACCOUNTS) for table in TABLES}
                amount = rnd.randint(1, 20)
                money["left", halves["left"]] -= amount
                money["right", halves["right"]] += amount
                for table in rnd.sample(TABLES, 2):
                    send(table, [event(table, halves[table])])
        emitter.emit(PARTITIONS, beat)


def arrivals(bank: Bank, table: str) -> Iterator[list[Rows]]:
    """New rows of each source partition, in the order of their offsets, until the last heartbeat is in all of them."""
    read: set[Path] = set()
    after: dict[str, int] = {}
    early: Rows = []
    beats, until = 0, time.monotonic() + PATIENCE_S
    while beats < len(REGIONS) * PARTITIONS * (BEATS + 1):
        assert time.monotonic() < until, f"{beats} heartbeats in the sources of {table}"
        paths = {path for region in REGIONS for path in bank.source(table, region).glob("[!.]*.parquet")} - read
        rows = early + [row for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()]
        read |= paths
        ready: dict[str, Rows] = {}
        early = []  # a listing may have missed the file before
        for row in sorted(rows, key=lambda row: int(row["$offset"])):
            source = f"{row['$region']}/{row['$partition']}"
            if row["$offset"] == after.get(source, 0):
                after[source] = row["$offset"] + 1
                ready.setdefault(source, []).append(row)
                beats += row.get("$heartbeat") is not None
            else:
                early.append(row)
        yield list(ready.values())


def feed(bank: Bank, store: str, name: str, seed: int) -> None:
    """Ingest a table's sources in random batches; now and then another process goes on with an empty cache."""
    rnd, held, cache = random.Random(seed), None, 0
    with bank.connect(store) as opened:
        table = opened.table(name)
        for queues in arrivals(bank, name):
            while any(queues):
                batch: Rows = []
                for _ in range(rnd.randint(1, 12)):
                    if left := [rows for rows in queues if rows]:
                        batch.append(rnd.choice(left).pop(0))
                cache += rnd.random() < 0.2
                ingestor = UpsertIngestor(table, name="i", cache=bank.folder / f"cache_{store}_{name}_{cache}")
                _, held = ingest_to_barriers(ingestor, arrow(batch), held)
            time.sleep(0.02)
    assert held is None


def compact(bank: Bank, store: str) -> None:
    """Compact both tables, and give up the versions below the checkpoints that were read, until somebody stops it."""
    done = 0
    with bank.connect(store) as opened:
        while not bank.stop.exists():
            for table in map(opened.table, TABLES):
                floors = [floor for region in REGIONS if (floor := oldest_wanted(bank, table, region)) is not None]
                if len(floors) == len(REGIONS):
                    done += bool(UpsertCompactor(table).run(floor=min(floors)).entry_id)
            time.sleep(0.05)
    (bank.folder / f"compactions_{store}").write_text(str(done))


def oldest_wanted(bank: Bank, table: Table, region: str) -> int | None:
    if not bank.seen(region).exists():
        return None
    try:
        return table.checkpoint(int(bank.seen(region).read_text()), region=region)
    except UpsertRefusedError as refused:
        assert refused.rule == "below-floor", refused
        return require_record(table.lineage()).floor


def balances(table: Table, region: str, mark: int) -> dict[str, int]:
    rows = read_rows(table, mark=mark).to_pylist()
    return {row["k"]: int(row["v"]) for row in rows if row["k"].startswith(region)}


def checked_total(tables: dict[Place, Table], region: str, at_ms: int) -> dict[Place, int]:
    """Check both tables in both regions at one checkpoint; returns the money in each."""
    shown = {place: balances(table, region, table.checkpoint(at_ms, region=region)) for place, table in tables.items()}
    for name in TABLES:
        assert shown["a", name] == shown["b", name], f"{name} at {at_ms}: the regions differ"
        assert len(shown["a", name]) == ACCOUNTS
    money = {place: sum(found.values()) for place, found in shown.items()}
    for left, right in product(STORES, STORES):
        assert money[left, "left"] + money[right, "right"] == TOTAL, f"{region} at {at_ms}: {money}"
    return money


def wait_for(look: Callable[[], Any]) -> Any:
    """What ``look`` gives as soon as it does not say that it is too early."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return look()
        except (UpsertRefusedError, FileNotFoundError, IndexError) as error:
            if isinstance(error, UpsertRefusedError) and error.rule not in ("checkpoint-too-early", "no-checkpoint"):
                raise
            assert time.monotonic() < until, f"nothing for {PATIENCE_S} s: {error}"
            time.sleep(0.05)


@pytest.fixture
def bank(zk_hosts: str, cluster: str, tmp_path: Path) -> Bank:
    made = Bank(zk_hosts, cluster, tmp_path)
    for name in STORES:
        with made.connect(name) as store:
            for table in TABLES:
                store.apply_config(region_config(table, deleteRecordColumn=None))
    for table in TABLES:
        for region in REGIONS:
            made.source(table, region).mkdir(parents=True)
    return made


def test_money_in_two_tables_adds_up_at_every_checkpoint_in_both_regions(bank: Bank) -> None:
    children = {f"write {region}": spawn(partial(write, bank, region, n)) for n, region in enumerate(REGIONS)}
    for number, (store, name) in enumerate(product(STORES, TABLES)):
        children[f"feed {store} {name}"] = spawn(partial(feed, bank, store, name, number))
    for store in STORES:
        children[f"compact {store}"] = spawn(partial(compact, bank, store))
    opened = {name: bank.connect(name) for name in STORES}
    tables = {(store, name): opened[store].table(name) for store, name in product(STORES, TABLES)}
    money: dict[str, list[dict[Place, int]]] = {region: [] for region in REGIONS}
    times: dict[str, list[int]] = {region: [] for region in REGIONS}
    try:
        for number in range(BEATS):
            for region in REGIONS:
                times[region].append(wait_for(partial(bank.time, region, number)))
                money[region].append(wait_for(partial(checked_total, tables, region, times[region][-1])))
                if number >= KEPT:
                    replace_text(bank.seen(region), str(times[region][number - KEPT + 1]))
    finally:
        bank.stop.touch()
        codes = dict(zip(children, exit_codes(children.values()), strict=True))
    assert set(codes.values()) == {0}, codes
    compactions = [int((bank.folder / f"compactions_{store}").read_text()) for store in STORES]
    floors = [require_record(table.lineage()).floor for table in tables.values()]
    for region in REGIONS:
        for at_ms in times[region][-KEPT:]:
            checked_total(tables, region, at_ms)
    broken, pairs = unrelated(tables)
    print(f"floors {floors}, {compactions} compactions, {broken} of {pairs} unrelated pairs of versions do not add up")
    assert min(compactions) and min(floors), "nothing was compacted while money moved"
    for region in REGIONS:
        apart = [
            one["a", "left"] + two["a", "right"] for one, two in zip(money[region], money[region][1:], strict=False)
        ]
        assert any(total != TOTAL for total in apart), "tables at checkpoints of different times add up, too"
    assert broken
    for store in opened.values():
        store.close()


def unrelated(tables: dict[Place, Table]) -> tuple[int, int]:
    """How many pairs of readable versions of both tables do not add up for some region, and how many pairs there
    are."""
    shown: list[list[tuple[int, ...]]] = []
    for name in TABLES:
        table = tables["a", name]
        record = require_record(table.lineage())
        marks = range(record.floor, record.clock + 1)
        shown.append([tuple(sum(balances(table, r, mark).values()) for r in REGIONS) for mark in marks])
    pairs = [(left, right) for left in shown[0] for right in shown[1]]
    broken = [pair for pair in pairs if any(one + other != TOTAL for one, other in zip(*pair, strict=True))]
    return len(broken), len(pairs)


def replace_text(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)
