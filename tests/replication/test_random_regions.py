"""Random histories of two regions: nothing is found in healthy tables, and each fault that was put in is found.

Healthy tables differ in batches and in the order in which source partitions arrive; their ingestion is killed at random
writes and taken over, rolled back and compacted. One table of each seed gets one fault.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.core.replication.leapfrog import Kind
from airflow_provider_segments.core.replication.stream import VersionStream, differing_digests
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.rollback import roll_back
from tests.replication.comparing import compare, last_rows
from tests.replication.support import MINUTE, Log, arrow, region_config
from tests.replication.test_ingest import interleaved
from tests.support.tables import on_session
from tests.upsert.world import InterruptedSession, Killed

Rows = list[dict[str, Any]]

TROUBLES = ("kill", "takeover", "rollback", "compaction")
FAULTS = ("lost", "doubled", "altered", "reordered", "last write lost", "delete record lost")
MINUTES, EVENTS, KEYS = 3, 8, 20


def history(rnd: random.Random) -> tuple[Log, Log]:
    """Two regions; each writes some events a minute, and a heartbeat after each minute."""
    logs = Log("eu", 2), Log("us", 1)
    for minute in range(1, MINUTES + 1):
        for log in logs:
            for _ in range(EVENTS):
                value = None if rnd.random() < 0.25 else f"{log.region}{sum(log.sizes)}"
                log.event(
                    f"k{rnd.randrange(KEYS)}", value, 10 * minute + rnd.randrange(15), rnd.randrange(log.partitions)
                )
            log.beat(minute * MINUTE)
    return logs


class Feeder:
    """Ingests a region's table as a troubled deployment does; ``made`` counts what happened."""

    def __init__(self, table: Table, folder: Path, rnd: random.Random) -> None:
        self.folder, self.rnd = folder, rnd
        self.session = InterruptedSession.connect(table.store.session.settings)
        self.table = on_session(table.store, self.session).table(table.name)
        self.made: Counter[str] = Counter()

    def feed(self, rows: Rows, look: Callable[[], None] = lambda: None) -> None:
        """Ingest ``rows`` in random batches; ``look`` is called after each."""
        left, held, number = rows, None, 0
        while left:
            size = self.rnd.randrange(3, 25)
            ingestor = UpsertIngestor(self.table, cache=self.folder / f"{self.table.name}{number}")
            if self.rnd.random() < 0.15:
                self.session.arm(self.rnd.randrange(1, 9), landed=self.rnd.random() < 0.5, interrupt=_kill)
            try:
                ingestor.take_over()
                _, held = ingest_to_barriers(ingestor, arrow(left[:size]), held)
                left = left[size:]
            except Killed:
                self.made["kill"] += 1
                number, left, held = number + 1, self._unread(rows), None
            finally:
                self.session.at = 0
            look()
            if self.rnd.random() < 0.1:
                self.made["takeover"] += 1
                number, left, held = number + 1, self._unread(rows), None
            published = require_record(self.table.lineage()).published
            if self.rnd.random() < 0.1 and len(published) > 1 and not published[-1].is_rollback:
                self.made["rollback"] += 1
                roll_back(self.table.context, published[-1].version - 1)
                number, left, held = number + 1, self._unread(rows), None
            elif self.rnd.random() < 0.1:
                self.made["compaction"] += 1
                UpsertCompactor(self.table).run()
        assert held is None, "every heartbeat came to all partitions"
        self.session.close()

    def _unread(self, rows: Rows) -> Rows:
        """What another process reads that knows the table's positions and nothing else."""
        positions = require_record(self.table.lineage()).positions
        return [row for row in rows if row["$offset"] >= positions.get(source_of(row), 0)]


def _kill() -> None:
    raise Killed


def source_of(row: dict[str, Any]) -> str:
    return f"{row['$region']}/{row['$partition']}"


def injected(rows: Rows, fault: str, rnd: random.Random) -> tuple[Rows, str]:
    """``rows`` with one fault, and the source partition that it is in."""
    events = [at for at, row in enumerate(rows) if row.get("k") is not None]
    newest = {row["k"]: at for at, row in sorted(enumerate(rows), key=lambda one: _order(one[1])) if row.get("k")}
    if fault == "last write lost":
        at = rnd.choice(sorted(newest.values()))
    elif fault == "delete record lost":
        at = rnd.choice(
            [at for at in sorted(newest.values()) if rows[at]["deleted"]]
            or [at for at in events if rows[at]["deleted"]]
        )
    else:
        at = rnd.choice(events)
    row, source = rows[at], source_of(rows[at])
    broken = list(rows)
    if fault == "doubled":
        broken.insert(at, row)
    elif fault == "altered":
        broken[at] = {**row, "v": "altered", "deleted": False}
    elif fault == "reordered":
        others = [one for one in events if source_of(rows[one]) == source and rows[one]["v"] != row["v"]]
        other = rnd.choice(others)
        broken[at], broken[other] = ({**rows[x], "$offset": rows[y]["$offset"]} for x, y in ((other, at), (at, other)))
    else:
        del broken[at]
    return broken, source


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row.get("ts") or 0, row["$region"], row["$partition"], row["$offset"])


def feed_whole(table: Table, folder: Path, rows: Rows) -> None:
    """Ingest in one batch, so that an event that comes twice is read twice."""
    _, held = ingest_to_barriers(UpsertIngestor(table, cache=folder / f"{table.name} whole"), arrow(rows))
    assert held is None


def made(store: SegmentStore, name: str) -> Table:
    store.apply_config(region_config(name))
    return store.table(name)


def digests_that_differ(a: Table, b: Table) -> set[str]:
    one, other = (require_record(table.lineage()).stream or VersionStream() for table in (a, b))
    return {*differing_digests(one, other)}


@pytest.mark.parametrize(
    "seeds",
    [6, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
    ids=lambda seeds: f"{seeds} seeds",
)
def test_nothing_is_invented_and_every_fault_is_found(store: SegmentStore, tmp_path: Path, seeds: int) -> None:
    done: Counter[str] = Counter()
    for seed in range(seeds):
        done += run(store, tmp_path, seed)
    print(f"{seeds} healthy runs: {dict(done)}")
    assert {*done} >= {*TROUBLES, *FAULTS}, "each kind was made"


def run(store: SegmentStore, folder: Path, seed: int) -> Counter[str]:
    """Two healthy tables and a broken one, compared at the end and, while the second is fed, after every batch. Returns
    how much of what was made."""
    rnd, fault = random.Random(seed), FAULTS[seed % len(FAULTS)]
    a, b, broken = (made(store, f"{name}{seed}") for name in ("a", "b", "broken"))
    logs = history(rnd)
    first, second = (Feeder(table, folder, rnd) for table in (a, b))
    first.feed(interleaved(rnd, logs))

    def look() -> None:
        second.made["comparison"] += 1
        assert set(compare(a, b).values()) <= {Kind.UNDECIDED}, seed
        assert not digests_that_differ(a, b), seed

    second.feed(interleaved(rnd, logs), look)
    assert compare(a, b) == {} and last_rows(a)[1] == last_rows(b)[1], seed

    rows, source = injected(interleaved(rnd, logs), fault, rnd)
    feed_whole(broken, folder, rows)
    shown = [{key: row.value for key, row in last_rows(one)[0].items() if not row.is_delete} for one in (a, broken)]
    differing = {key for key in {*shown[0]} | {*shown[1]} if shown[0].get(key) != shown[1].get(key)}
    found = compare(a, broken)
    assert {*found} == differing and Kind.UNDECIDED not in found.values(), seed
    assert digests_that_differ(a, broken) == {source}, seed
    return first.made + second.made + Counter({fault: 1, "key that differs": len(differing)})
