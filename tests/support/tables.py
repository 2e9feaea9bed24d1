"""Small tables with real objects, and a look at everything that is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from airflow_provider_segments.clock import Clock
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.ledger import DeletionBatch, SweepRequest, decode_batch, decode_sweep
from airflow_provider_segments.core.model.names import entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.replacement.stage import StagedPush, StageTicket
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Node, SetData, ZooKeeperSession
from airflow_provider_segments.core.zookeeper.retry import Retry

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
DAYS = ("2013-01-01", "2013-01-02")
JANUARY_1 = 1_356_998_400_000
QUICK = Retry(attempts=30, base=0.001, cap=0.02)


class HandClock:
    """A wall clock that a test moves by hand; everything else is real."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def clock(self) -> Clock:
        """The clock to give to a store."""
        return replace(Clock(), now_ms=lambda: self.now_ms)

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self.now_ms += milliseconds


def on_clock(store: SegmentStore, clock: Clock) -> SegmentStore:
    """The same store and session under another clock."""
    return store.replace(clock=clock)


def at_time(store: SegmentStore, now_ms: Callable[[], int]) -> SegmentStore:
    """The same store and session with another wall clock."""
    return store.replace(clock=replace(store.clock, now_ms=now_ms))


def on_session(store: SegmentStore, session: ZooKeeperSession, retry: Retry = QUICK) -> SegmentStore:
    """The same cluster and objects through another session."""
    return store.replace(session=session, retry=retry)


def make_table(store: SegmentStore, name: str = "t", kind: str = "APPEND", **segments_config: str) -> Table:
    """A table with daily chunks."""
    document: dict[str, Any] = {
        "tableName": name,
        "segmentsConfig": {"timeColumnName": "ts", **segments_config},
        "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": kind}},
    }
    store.apply_config(TableConfig.from_json(document))
    return store.table(name)


def object_path(table: Table, key: str) -> Path:
    """The file of an object in a local store."""
    return Path(unquote(urlparse(table.storage.uri).path)) / key


def build(
    table: Table,
    ticket: StageTicket,
    names: Iterable[str],
    *,
    chunks: Sequence[str] = DAYS,
    rows: int = 1,
) -> list[StagedSegment]:
    """Write a tiny object for each name, as the attempt that holds ``ticket``; chunks take turns."""
    staged = []
    object_path(table, ticket.prefix).mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        file = f"{name}.{ticket.stager}.{ticket.attempt}.parquet"
        object_path(table, ticket.prefix + file).write_bytes(name.encode())
        at = JANUARY_1 + (number % len(chunks)) * DAY_MS
        record = SegmentRecord(name, file, rows, len(name.encode()), 7, at, at + 1)
        staged.append(StagedSegment(chunks[number % len(chunks)], record))
    return staged


def stage(table: Table, entry_id: str, names: Iterable[str], stager: str = "build", **how: Any) -> StagedPush:
    """Open a stage, write the objects, stage them."""
    ticket = table.open_stage(entry_id, stager)
    return table.stage(ticket, build(table, ticket, names, **how))


def push(
    table: Table,
    names: Sequence[str] | int = 2,
    segments_from: Sequence[str] | None = None,
    *,
    announce: bool = False,
    end: bool = True,
    **start: Any,
) -> str:
    """A whole push; returns its entry id. A number of segments gives them names with the entry's tag."""
    announced = list(names) if announce and not isinstance(names, int) else []
    entry_id = table.start(segments_from, announced, **start).entry_id
    stage(table, entry_id, named(table, entry_id, names) if isinstance(names, int) else names)
    if end:
        table.end(entry_id)
    return entry_id


def named(table: Table, entry_id: str, count: int) -> list[str]:
    """Names with the entry's tag, as a build makes them."""
    return [f"{table.name}_{entry_tag(entry_id)}_{number}" for number in range(count)]


def visible(table: Table) -> set[str]:
    """Names in the snapshot; every name once, every object there with the recorded size."""
    snapshot = table.snapshot()
    assert len(set(snapshot.names)) == len(snapshot.names), f"a segment is visible twice: {snapshot.names}"
    for segment in snapshot.segments:
        assert object_path(table, segment.key).stat().st_size == segment.bytes, segment.key
    return set(snapshot.names)


def registered(table: Table) -> set[str]:
    """Names of all registered segments, hidden ones too."""
    shards = table._context.registry.read(lambda _: True).shards
    return {record.name for shard in shards for record in shard.records}


def states(table: Table) -> dict[str, str]:
    """State of every lineage entry."""
    return {entry.entry_id: entry.state.value for entry in table.lineage()}


def everything(session: ZooKeeperSession, path: str) -> dict[str, Node]:
    """Every znode below ``path`` with its data, versions and zxids: equal before and after means nothing was
    written."""
    found: dict[str, Node] = {}
    level = [path]
    while level:
        found |= {at: node for at, node in zip(level, session.get_many(level), strict=True) if node is not None}
        below = session.children_many(level)
        level = [f"{at}/{name}" for at, names in zip(level, below, strict=True) for name in names]
    return found


def alter_record(store: SegmentStore, path: str, **fields: Any) -> bytes:
    """Change fields of a record as somebody else would, and return what is stored then."""
    node = store.session.get(path)
    assert node is not None
    altered = json.dumps({**json.loads(node.data), **fields}).encode()
    store.session.commit([SetData(path, altered, node.version)])
    return altered


def contents(store: SegmentStore) -> dict[str, Node]:
    """Everything stored of the cluster."""
    return everything(store.session, f"/{store.paths.cluster}")


def queued_batches(store: SegmentStore) -> list[DeletionBatch]:
    """All batches of deletion messages that are pending or wait for a retry."""
    found = everything(store.session, store.paths.pending_deletions)
    return [decode_batch(node.data, path)[0] for path, node in found.items() if node.data]


def queued_keys(store: SegmentStore, table: str) -> set[str]:
    """Keys that the queue asks to delete."""
    batches = [batch for batch in queued_batches(store) if batch.table == table]
    return {batch.prefix + ledger.file for batch in batches for ledger in batch.ledgers}


def queued_sweeps(store: SegmentStore) -> list[SweepRequest]:
    """All requests to look under a prefix."""
    found = everything(store.session, store.paths.sweeps)
    return [decode_sweep(node.data, path) for path, node in found.items() if node.data]


def unchanged(store: SegmentStore, act: Callable[[], object]) -> None:
    """Run ``act`` and assert that it has not written one byte to ZooKeeper."""
    before = contents(store)
    act()
    assert contents(store) == before
