"""Pushes whose objects say what they are, in any kind of store: what deletion, tiering and reconciliation look at."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_segments.clock import system_now_ms
from airflow_provider_segments.core.deletion.report import DeletionReport
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.storage.base import ObjectStore, encode_owner
from airflow_provider_segments.core.table import SegmentStore, Table
from tests.support.tables import DAY_MS, DAYS, HOUR_MS, JANUARY_1, HandClock, on_clock


def build_owned(
    table: Table, ticket: StageTicket, names: Sequence[str], *, chunks: Sequence[str] = DAYS
) -> list[StagedSegment]:
    """Write an object for each name through the store, as a build does; chunks take turns."""
    staged = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "body"
        for number, name in enumerate(names):
            body = f"{name} of {ticket.entry_id}".encode()
            path.write_bytes(body)
            file = f"{name}.{ticket.attempt}.parquet"
            table.storage.put_file(
                path, ticket.prefix + file, owner=owner_metadata(table.name, name, ticket.generation)
            )
            at = JANUARY_1 + (number % len(chunks)) * DAY_MS
            record = SegmentRecord(name, file, 1, len(body), zlib.crc32(body), at, at + 1)
            staged.append(StagedSegment(chunks[number % len(chunks)], record))
    return staged


def push_owned(
    table: Table,
    names: Sequence[str],
    replaced: Sequence[str] | None = None,
    *,
    chunks: Sequence[str] = DAYS,
    end: bool = True,
) -> str:
    """A whole push; returns its entry id."""
    entry_id = table.start(replaced).entry_id
    ticket = table.open_stage(entry_id)
    table.stage(ticket, build_owned(table, ticket, names, chunks=chunks))
    if end:
        table.end(entry_id)
    return entry_id


def contents_of(table: Table) -> dict[str, bytes]:
    """What readers get: the bytes of every visible segment, from the store it is in."""
    found = {}
    snapshot = table.snapshot()
    for segment in snapshot.segments:
        with snapshot.store_of(segment.tiered).open(segment.key) as file:
            found[segment.name] = file.read()
    return found


def keys_in(storage: ObjectStore, table: Table) -> set[str]:
    """Keys of everything stored of the table."""
    return {one.key for one in storage.list(f"{table.name}/")}


def remove(storage: ObjectStore, *keys: str) -> None:
    """Delete objects behind the table's back, whatever they say of themselves."""
    infos = [info for key in keys if (info := storage.head(key)) is not None]
    outcome = storage.delete_owned({info.key: encode_owner(info.owner) for info in infos})
    assert len(outcome.deleted) == len(infos), outcome


def expected_keys(table: Table) -> tuple[set[str], set[str]]:
    """Keys of every registered segment in primary and in tiered storage."""
    primary, tiered = set(), set()
    for shard in table._context.registry.read(lambda _: True).shards:
        prefix = f"{table.name}/{shard.name.entry_id}/"
        for record in shard.records:
            if record.primary:
                primary.add(prefix + record.file)
            if record.offload is not None:
                tiered.add(f"{prefix}{record.offload.uuid}/{record.file}")
    return primary, tiered


def drain(store: SegmentStore, hand: HandClock | None = None) -> DeletionReport:
    """Drain, and once more when retries are due if there is a clock to move."""
    total = store.deleter().drain()
    if hand is not None:
        hand.advance(store.deletion.reconsume_later_ms + 1)
        total.merge(store.deleter().drain())
    return total


def settle(store: SegmentStore, table: str) -> None:
    """Let days pass with clean-up and deletion, until storage holds exactly what is registered of the table."""
    hand = HandClock(system_now_ms())
    timed = on_clock(store, hand.clock())
    for _ in range(4):
        hand.advance(30 * HOUR_MS)
        timed.table(table).cleanup()
        drain(timed, hand)
    assert keys_in(store.storage, store.table(table)) == expected_keys(store.table(table))[0]
