"""Ingestion, ZooKeeper and S3 are killed in turn while readers count: no read is wrong, nothing is lost or there twice.

Money is moved between accounts, so the total is the same at every version. The source is a list of events; a run of
ingestion is a process that goes on at the table's positions, and the next one takes over from one that was killed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from airflow_provider_segments.dev.s3 import S3Server
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.exceptions import (
    LeaseLostError,
    LockDeniedError,
    LockLostError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    StorageError,
    UpsertRefusedError,
)
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.owner import own_key_partitions
from tests.support.children import exit_codes, spawn
from tests.support.owned import settle
from tests.support.sessions import settings, store_on
from tests.upsert.test_together import balances
from tests.upsert.world import Event, to_arrow, upsert_config

ACCOUNTS, START = 20, 100
TRANSFERS = 160
STRIKES = 6
OUTAGES = (
    MetadataUnavailableError,
    OutcomeUnknownError,
    StorageError,
    LeaseLostError,
    LockDeniedError,
    LockLostError,
)
"""What may be raised while something is down; whoever meets it begins anew."""
WAIT_S = 400.0


def transfers() -> tuple[list[Event], list[int]]:
    """The events of all transfers, two each, and every account's money in the end."""
    chance, money = random.Random(9), [START] * ACCOUNTS
    events = [Event(0, 0, at, f"k{at}", str(START), False) for at in range(ACCOUNTS)]
    for _ in range(TRANSFERS):
        one, other, amount = *chance.sample(range(ACCOUNTS), 2), chance.randint(1, 50)
        money[one] -= amount
        money[other] += amount
        for account in (one, other):
            events.append(Event(len(events), 0, len(events), f"k{account}", str(money[account]), False))
    return events, money


class Site:
    """A ZooKeeper and an S3 server of its own, and processes that work on a table there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zookeeper = EmbeddedZooKeeper(folder / "zookeeper")
        self.s3 = S3Server(folder / "s3")

    def store(self) -> SegmentStore:
        session = ZooKeeperSession.connect(settings(self.zookeeper.hosts))
        return store_on(session, "c", open_store("s3://bucket/p", **self.s3.options))

    def again_and_again(self, work: Callable[[Table], bool]) -> None:
        """Call ``work`` on a table of a new session until it returns true, whatever is down meanwhile."""
        while True:
            try:
                store = self.store()
                try:
                    if work(store.table("t")):
                        return
                finally:
                    store.close()
            except OUTAGES:
                time.sleep(0.2)

    def ingest(self) -> None:
        events, _ = transfers()

        def run(table: Table) -> bool:
            with own_key_partitions(table, "run", lease_ms=3_000, wait_s=60) as lock:
                ingestor = UpsertIngestor(table, cache=self.folder / f"cache{os.getpid()}", locks=(lock,))
                ingestor.take_over()
                while (at := ingestor.positions().get("/0", 0)) < len(events):
                    size = ACCOUNTS if not at else 4
                    done = ingestor.ingest(to_arrow(events[at : at + size]), base={"/0": at} if at else None)
                    if done.version % 10 == 0:
                        UpsertCompactor(table).run(floor=done.version - 5)
            return True

        self.again_and_again(run)

    def read(self, number: int) -> None:
        """Until somebody makes the file ``stop``."""
        done = 0

        def run(table: Table) -> bool:
            nonlocal done
            while not (self.folder / "stop").exists():
                if not require_record(table.lineage()).clock:
                    continue
                try:
                    assert sum(balances(table, None)) == ACCOUNTS * START
                except UpsertRefusedError as refused:
                    assert refused.rule == "below-floor"
                done += 1
            return True

        self.again_and_again(run)
        (self.folder / f"reads{number}").write_text(str(done))

    def clock(self) -> int:
        clock = 0

        def run(table: Table) -> bool:
            nonlocal clock
            clock = require_record(table.lineage()).clock
            return True

        self.again_and_again(run)
        return clock


def wait_for(clock: int, site: Site) -> None:
    deadline = time.monotonic() + WAIT_S
    while site.clock() < clock:
        assert time.monotonic() < deadline, f"version {clock} was not reached"
        time.sleep(0.1)


def strike(site: Site, kind: int, child: int) -> int:
    """Kill -9 ingestion, ZooKeeper or S3, and start it again; returns the process that ingests now."""
    if kind == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return spawn(site.ingest)
    server = site.zookeeper if kind == 1 else site.s3
    server.kill()
    server.start()
    return child


@pytest.mark.slow
def test_no_read_is_wrong_and_nothing_is_lost_whatever_is_killed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    events, money = transfers()
    with site.zookeeper, site.s3:
        site.s3.create_bucket("bucket")
        store = site.store()
        store.apply_config(upsert_config(deleteRecordColumn=None))
        store.close()
        readers = [spawn(lambda number=number: site.read(number)) for number in range(2)]  # type: ignore[misc]
        child = spawn(site.ingest)
        for number in range(STRIKES):
            wait_for(site.clock() + 4, site)
            child = strike(site, number % 3, child)
        assert exit_codes([child]) == [0]
        (tmp_path / "stop").touch()
        assert exit_codes(readers) == [0, 0]
        store = site.store()
        table = store.table("t")
        assert sorted(balances(table, None)) == sorted(money)
        assert require_record(table.lineage()).positions == {"/0": len(events)}
        settle(store, "t")
        store.close()
    reads = [int((tmp_path / f"reads{number}").read_text()) for number in range(2)]
    print(f"{reads} reads beside {STRIKES} kills")
    assert min(reads) > 5
