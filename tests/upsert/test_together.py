"""Readers in processes of their own beside ingestion and compaction: money is moved between accounts, and none is made.

Each batch has the new balances of both accounts of every transfer, so the total is the same at every version, and only
there: a reader who sees half a batch, a row twice or an old row beside its successor sees another total.
"""

from __future__ import annotations

import random
from pathlib import Path

from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import count_rows, read_rows
from tests.support.children import exit_codes, spawn
from tests.support.sessions import settings
from tests.support.tables import on_session
from tests.upsert.world import Event, to_arrow, upsert_config

ACCOUNTS, START = 20, 100
BATCHES = 60
READERS = 2


def balances(table: Table, mark: int | None) -> list[int]:
    rows = read_rows(table, mark=mark).to_pylist()
    assert len({row["k"] for row in rows}) == len(rows) == ACCOUNTS, f"{len(rows)} rows at mark {mark}"
    assert mark is None or count_rows(table, mark=mark) == ACCOUNTS
    return [int(row["v"]) for row in rows]


def read_until(table: Table, stop: Path, reads: Path, seed: int) -> None:
    """Read the newest mark and random earlier ones until somebody makes the file ``stop``; note how many reads."""
    rnd, done = random.Random(seed), 0
    while not stop.exists():
        record = require_record(table.lineage())
        mark = None if rnd.random() < 0.5 else rnd.randint(max(record.floor, 1), record.clock)
        try:
            assert sum(balances(table, mark)) == ACCOUNTS * START
        except UpsertRefusedError as refused:
            assert refused.rule == "below-floor"  # the compaction has given that mark up since
        done += 1
    reads.write_text(str(done))


def test_the_total_is_the_same_at_every_read_while_money_moves(store: SegmentStore, tmp_path: Path) -> None:
    store.apply_config(upsert_config(deleteRecordColumn=None, keyPartitions=3))
    table = store.table("t")
    ingestor = UpsertIngestor(table, cache=tmp_path / "cache")
    money = [START] * ACCOUNTS
    offset = ACCOUNTS
    ingestor.ingest(to_arrow(Event(0, 0, at, f"k{at}", str(START), False) for at in range(ACCOUNTS)))
    stop = tmp_path / "stop"

    def reader(number: int) -> None:
        session = ZooKeeperSession.connect(settings(store.session.settings.hosts))
        read_until(on_session(store, session).table("t"), stop, tmp_path / f"reads{number}", number)

    children = [spawn(lambda number=number: reader(number)) for number in range(READERS)]  # type: ignore[misc]
    rnd = random.Random(7)
    try:
        for batch in range(BATCHES):
            rows = []
            for _ in range(rnd.randint(1, 4)):
                one, other, amount = *rnd.sample(range(ACCOUNTS), 2), rnd.randint(1, 50)
                money[one] -= amount
                money[other] += amount
                for account in (one, other):
                    rows.append(Event(offset, 0, offset, f"k{account}", str(money[account]), False))
                    offset += 1
            ingestor.ingest(to_arrow(rows))
            if batch % 10 == 9:
                UpsertCompactor(table).run(floor=require_record(table.lineage()).clock - 5)
    finally:
        stop.touch()
        codes = exit_codes(children)
    assert codes == [0] * READERS
    assert sorted(balances(table, None)) == sorted(money)
    reads = [int((tmp_path / f"reads{number}").read_text()) for number in range(READERS)]
    print(f"{reads} reads beside {BATCHES} batches")
    assert min(reads) > 10
