"""Ten minutes of ingestion, compaction and readers, each a process: what was read at one mark is the same everywhere.

Money is moved between accounts, so the total is the same at every version; and every reader keeps a hash of what it
read at each mark, so that in the end all of them can be compared. ``SEGMENTS_MINUTES`` says for how long.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from pathlib import Path

import pytest

from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import count_rows, read_rows
from tests.support.children import exit_codes, spawn
from tests.support.owned import settle
from tests.support.sessions import settings
from tests.support.tables import on_session
from tests.upsert.world import Event, to_arrow, upsert_config

ACCOUNTS, START = 2_000, 100
READERS = 3
MINUTES = float(os.environ.get("SEGMENTS_MINUTES", "10"))
KEPT = 20
"""Versions that the compaction leaves readable."""


class Site:
    """What the processes share: a store, each by a session of its own, and a folder for what they tell."""

    def __init__(self, store: SegmentStore, folder: Path) -> None:
        self.store = store
        self.folder = folder

    def table(self) -> Table:
        session = ZooKeeperSession.connect(settings(self.store.session.settings.hosts))
        return on_session(self.store, session).table("t")

    def goes_on(self) -> bool:
        return not (self.folder / "stop").exists()

    def tell(self, name: str, value: object) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps(value))

    def told(self, name: str) -> dict[str, str]:
        return dict(json.loads((self.folder / f"{name}.json").read_text()))

    def ingest(self) -> None:
        ingestor, rnd = UpsertIngestor(self.table(), cache=self.folder / "cache"), random.Random(7)
        money, offset = {f"k{at}": START for at in range(ACCOUNTS)}, ACCOUNTS
        ingestor.ingest(to_arrow(Event(0, 0, at, f"k{at}", str(START), False) for at in range(ACCOUNTS)))
        while self.goes_on():
            rows = []
            for _ in range(rnd.randint(1, 100)):
                source, target = rnd.sample([*money], 2)
                amount = rnd.randint(1, 50)
                money[source] -= amount
                money[target] += amount
                for account in (source, target):
                    rows.append(Event(offset, 0, offset, account, str(money[account]), False))
                    offset += 1
            ingestor.ingest(to_arrow(rows))
        self.tell("money", {key: str(value) for key, value in money.items()})

    def compact(self) -> None:
        table, done, attempts = self.table(), 0, 0
        while self.goes_on():
            clock = require_record(table.lineage()).clock
            if clock > KEPT:
                compacted = UpsertCompactor(table).run(floor=clock - KEPT)
                done += bool(compacted.entry_id)
                attempts += compacted.attempts
                table.cleanup()
            time.sleep(0.5)
        self.tell("compactions", {"done": str(done), "attempts": str(attempts)})

    def read(self, number: int) -> None:
        table, rnd, seen, reads = self.table(), random.Random(number), dict[str, str](), 0
        while self.goes_on():
            record = require_record(table.lineage())
            if not record.clock:
                continue
            mark = record.clock - rnd.choice([0, 0, 1, 2, rnd.randint(0, KEPT)])
            if not max(record.floor, 1) <= mark:
                continue
            try:
                rows = read_rows(table, mark=mark, columns=["k", "v"])
                assert count_rows(table, mark=mark) == rows.num_rows
            except UpsertRefusedError as refused:
                assert refused.rule == "below-floor"  # the compaction has given that mark up since
                continue
            pairs = sorted(zip(rows.column("k").to_pylist(), rows.column("v").to_pylist(), strict=True))
            assert len(dict(pairs)) == len(pairs) == ACCOUNTS, f"{len(pairs)} rows at mark {mark}"
            assert sum(int(value) for _, value in pairs) == ACCOUNTS * START, f"at mark {mark}"
            found = hashlib.sha256(repr(pairs).encode()).hexdigest()
            assert seen.setdefault(str(mark), found) == found, f"mark {mark} has changed"
            reads += 1
        self.tell(f"reader{number}", seen | {"reads": str(reads)})


@pytest.mark.slow
@pytest.mark.timeout(int(MINUTES * 60) + 900)
def test_readers_agree_at_every_mark_for_ten_minutes(store: SegmentStore, tmp_path: Path) -> None:
    store.apply_config(upsert_config(deleteRecordColumn=None, keyPartitions=2))
    site = Site(store, tmp_path)
    children = [spawn(site.ingest), spawn(site.compact)]
    children += [spawn(lambda number=number: site.read(number)) for number in range(READERS)]  # type: ignore[misc]
    time.sleep(MINUTES * 60)
    (tmp_path / "stop").touch()
    assert exit_codes(children) == [0] * len(children)
    readers = [site.told(f"reader{number}") for number in range(READERS)]
    reads = [int(seen.pop("reads")) for seen in readers]
    shared = 0
    for mark in set.union(*(set(seen) for seen in readers)):
        hashes = [seen[mark] for seen in readers if mark in seen]
        shared += len(hashes) > 1
        assert len(set(hashes)) == 1, f"readers differ at mark {mark}"
    table = store.table("t")
    rows = read_rows(table, columns=["k", "v"]).to_pylist()
    assert {row["k"]: row["v"] for row in rows} == site.told("money")
    settle(store, "t")
    record = require_record(table.lineage())
    compactions = site.told("compactions")
    print(
        f"{record.clock} versions, {compactions['done']} compactions in {compactions['attempts']} attempts, "
        f"{reads} reads, {shared} marks read by several"
    )
    assert min(reads) > 5 and int(compactions["done"]) >= MINUTES
