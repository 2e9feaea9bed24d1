"""A table with concurrent locks whose rows are known by the names of the appends that brought them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_provider_segments.core.lineage.guard import Rewrite
from airflow_provider_segments.core.locking import (
    LockRequest,
    LockType,
    Priority,
    granted_lock,
)
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.model.segment import (
    SegmentRecord,
    StagedSegment,
)
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.table import SegmentStore, Table
from tests.support.owned import build_owned
from tests.support.tables import (
    DAY_MS,
    HOUR_MS,
    HandClock,
    named,
    object_path,
    on_clock,
    visible,
)

DAY = "2013-01-01"
NEXT_DAY = "2013-01-02"
MONTH = "2013-01"
CONFIG = {
    "tableName": "t",
    "segmentsConfig": {"timeColumnName": "ts", "replacedSegmentsRetentionPeriod": "1h"},
    "segmentBuildConfig": {"segmentLocking": "concurrent"},
}


@dataclass
class Open:
    """A push that was staged and not ended."""

    entry_id: str
    names: list[str]


@dataclass
class Lab:
    """A table with concurrent locks, and which rows each of its segments has."""

    store: SegmentStore
    hand: HandClock
    table: Table
    rows: dict[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def make(cls, store: SegmentStore, name: str = "t") -> Lab:
        hand = HandClock()
        mine = on_clock(store, hand.clock())
        mine.apply_config(TableConfig.from_json({**CONFIG, "tableName": name}))
        return cls(mine, hand, mine.table(name))

    def prepare(self, count: int = 1, chunks: Sequence[str] = (DAY,), **start: Any) -> Open:
        """An append up to its end."""
        entry_id = self.table.start(**start).entry_id
        names = named(self.table, entry_id, count)
        ticket = self.table.open_stage(entry_id)
        self.table.stage(ticket, build(self.table, ticket, names, chunks))
        self.rows |= {name: frozenset([name]) for name in names}
        return Open(entry_id, names)

    def append(self, count: int = 1, chunks: Sequence[str] = (DAY,)) -> Open:
        """A whole append."""
        made = self.prepare(count, chunks)
        self.table.end(made.entry_id)
        return made

    def lock(self, chunk: str = DAY, lock_type: LockType = LockType.REPLACE, group: str = "compaction") -> HeldLock:
        """A time-chunk lock with the priority of compaction."""
        request = LockRequest(
            group=group, task="c", interval=parse_chunk(chunk), lock_type=lock_type, priority=Priority.COMPACTION
        )
        lock = granted_lock("t", self.table.locks.acquire(request))
        return HeldLock(lock.lock_id, group, "c")

    def rewrite(self, inputs: Sequence[str], held: HeldLock, chunk: str = DAY, count: int = 1, **start: Any) -> Open:
        """A compaction of ``inputs`` up to its end; its segments share their rows."""
        at = parse_chunk(chunk)
        started = self.table.start(inputs, locks=[held], rewrite=Rewrite(at.start_ms, at.end_ms), **start)
        names = named(self.table, started.entry_id, count)
        ticket = self.table.open_stage(started.entry_id)
        self.table.stage(ticket, build(self.table, ticket, names, (chunk,)))
        rows = sorted(row for name in inputs for row in self.rows[name])
        self.rows |= {name: frozenset(rows[number::count]) for number, name in enumerate(names)}
        return Open(started.entry_id, names)

    def end(self, push: Open, held: HeldLock | None = None) -> None:
        """End, and give the lock back."""
        self.table.end(push.entry_id)
        if held is not None:
            self.release(held)

    def release(self, held: HeldLock) -> None:
        self.table.locks.release(held.group, held.task)

    def compact(self, inputs: Sequence[str], chunk: str = DAY, count: int = 1) -> Open:
        """A whole compaction."""
        held = self.lock(chunk)
        made = self.rewrite(inputs, held, chunk, count)
        self.end(made, held)
        return made

    def overwrite(self, chunk: str = DAY) -> Open:
        """A push under an EXCLUSIVE lock that replaces nothing by name."""
        held = self.lock(chunk, LockType.EXCLUSIVE)
        made = self.prepare(1, (chunk,), locks=[held])
        self.end(made, held)
        return made

    def apply(self, **build: Any) -> None:
        """Change the table's config."""
        self.store.apply_config(TableConfig.from_json({**CONFIG, "segmentBuildConfig": build}))

    def seen(self) -> list[str]:
        """The rows of a snapshot of everything, sorted; the same as day by day."""
        whole = sorted(row for name in visible(self.table) for row in self.rows[name])
        by_day: set[str] = set()
        for chunk in (DAY, NEXT_DAY):
            at = parse_chunk(chunk)
            by_day.update(self.table.snapshot(at.start_ms, at.end_ms).names)
        assert by_day == set(self.table.snapshot().names)
        return whole

    def appended(self) -> list[str]:
        """All rows that were ever appended."""
        return sorted(name for name, rows in self.rows.items() if rows == {name})

    def places(self) -> dict[str, tuple[str, str, int]]:
        """Chunk, version and id of each visible segment."""
        return {one.name: (one.chunk, one.version, one.partition) for one in self.table.snapshot().segments}

    def records(self) -> dict[str, SegmentRecord]:
        shards = self.table._context.registry.read(lambda _: True).shards
        return {record.name: record for shard in shards for record in shard.records}

    def settle(self) -> None:
        """Clean up until nothing is left to do, and delete what was let go."""
        for _ in range(4):
            self.hand.advance(3 * HOUR_MS)
            self.table.cleanup()
        self.hand.advance(DAY_MS)
        self.store.deleter().drain()
        name = self.table.name
        folder = object_path(self.table, name)
        there = (
            {str(path.relative_to(folder.parent)) for path in folder.rglob("*.parquet")} if folder.exists() else set()
        )
        shards = self.table._context.registry.read(lambda _: True).shards
        assert there == {f"{name}/{shard.name.entry_id}/{one.file}" for shard in shards for one in shard.records}


def build(table: Table, ticket: StageTicket, names: Sequence[str], chunks: Sequence[str]) -> list[StagedSegment]:
    """An object that says whose it is for each name; chunks take turns, and times are those of the chunk."""
    staged = build_owned(table, ticket, names, chunks=chunks)
    at = [parse_chunk(one.chunk).start_ms for one in staged]
    return [
        StagedSegment(one.chunk, msgspec.structs.replace(one.record, min_time_ms=start, max_time_ms=start + 1))
        for one, start in zip(staged, at, strict=True)
    ]
