"""What the page shows, read from the store. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_segments.core.deletion.messages import UnreadableLetters
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import StoredGuard
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.names import is_entry_id
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import EntryNotFoundError, RefusedError, SegmentsError, TableDroppedError
from airflow_provider_segments.hooks.settings import SegmentsConnection
from airflow_provider_segments.plugins.models import (
    Author,
    DeadLetter,
    EntryRow,
    LeaseRow,
    LockRow,
    Operations,
    Preview,
    Running,
    SegmentRow,
    Segments,
    TableDetail,
    TableRow,
    Tables,
)

MOST_DEAD_LETTERS = 100
"""Dead letters that the page lists; the command line lists all."""


def list_tables(settings: SegmentsConnection, store: SegmentStore, *, search: str, offset: int, limit: int) -> Tables:
    """The tables whose name contains ``search``, a part of them in full. One that cannot be read says why."""
    names = [name for name in store.tables() if search.lower() in name.lower()]
    rows = [_row_or_error(settings, store, name) for name in names[offset : offset + limit]]
    return Tables(total=len(names), tables=rows)


def _row_or_error(settings: SegmentsConnection, store: SegmentStore, name: str) -> TableRow:
    try:
        return describe_table(settings, store.table(name))
    except SegmentsError as error:
        return TableRow(name=name, error=str(error))


def describe_table(settings: SegmentsConnection, table: Table) -> TableRow:
    """What readers see of a table, since when, and by whom. Raises what reading it raises."""
    config, lineage = table.config(), table.lineage()
    row = TableRow(name=table.name, kind=_kind(config), dropped_by=lineage.dropped_by)
    running = list(lineage.in_state(EntryState.IN_PROGRESS))
    latest = _latest(table)
    known = [entry.entry_id for entry in running] + ([latest] if latest else [])
    guards = table.context.records.guards(known)
    row.running = [
        Running(entry_id=entry.entry_id, since_ms=entry.timestamp_ms, by=_author(settings, guards.get(entry.entry_id)))
        for entry in running
    ]
    if latest:
        entry = lineage.entries[latest]
        row.entry_id, row.since_ms = latest, entry.timestamp_ms
        row.by = _author(settings, guards.get(latest))
        if not lineage.is_cleaning(latest):
            row.rollback_until_ms = entry.timestamp_ms + config.replaced_retention_ms
    try:
        seen = table.snapshot()
    except TableDroppedError:
        return row
    row.rows, row.bytes, row.segments = seen.rows, seen.bytes, len(seen)
    return row


def describe_lineage(
    settings: SegmentsConnection, store: SegmentStore, name: str, *, offset: int, limit: int
) -> TableDetail:
    """A table with a part of its lineage, newest first. Raises what reading it raises."""
    table = store.table(name)
    lineage = table.lineage()
    newest = lineage.newest_first()
    chosen = newest[offset : offset + limit]
    return TableDetail(
        table=describe_table(settings, table),
        config=table.config().to_json(),
        entries_total=len(newest),
        entries=_entries(settings, table, lineage, chosen),
    )


def _entries(
    settings: SegmentsConnection, table: Table, lineage: Lineage, chosen: Iterable[LineageEntry]
) -> list[EntryRow]:
    entries = {entry.entry_id: entry for entry in chosen}
    guards = table.context.records.guards(entries)
    rows, size = dict.fromkeys(entries, 0), dict.fromkeys(entries, 0)
    for shard in table.context.registry.shards_of(entries):
        rows[shard.name.entry_id] += sum(record.rows for record in shard.records)
        size[shard.name.entry_id] += sum(record.bytes for record in shard.records)
    latest = _latest(table)
    return [
        EntryRow(
            entry_id=entry_id,
            state=entry.state.value,
            since_ms=entry.timestamp_ms,
            by=_author(settings, guards.get(entry_id)),
            segments_from=len(entry.segments_from),
            segments_to=len(entry.segments_to),
            rows=rows[entry_id],
            bytes=size[entry_id],
            overwrites=sum(overwrite.entry_id == entry_id for overwrite in lineage.overwrites),
            is_latest=entry_id == latest,
            is_cleaning=lineage.is_cleaning(entry_id),
        )
        for entry_id, entry in entries.items()
    ]


def list_segments(
    store: SegmentStore, name: str, *, start_ms: int | None, end_ms: int | None, offset: int, limit: int
) -> Segments:
    """The registered segments of a stretch of time, a part of them. Raises what reading them raises."""
    found = store.table(name).segment_states(start_ms, end_ms)
    return Segments(
        total=len(found),
        segments=[
            SegmentRow(
                name=status.segment.name,
                state=status.state.value,
                start_ms=status.segment.interval.start_ms,
                end_ms=status.segment.interval.end_ms,
                version=status.segment.version,
                partition=status.segment.partition,
                rows=status.segment.rows,
                bytes=status.segment.bytes,
                entry_id=status.segment.entry_id,
            )
            for status in found[offset : offset + limit]
        ],
    )


def preview_change(store: SegmentStore, name: str, entry_id: str) -> Preview:
    """What rolling an entry back, or bringing a rolled-back one back, would do; or the words that would refuse it."""
    table = store.table(name)
    entry = table.lineage().find(entry_id)
    back = entry.state is EntryState.REVERTED
    try:
        done = (table.preview_unrevert if back else table.preview_revert)(entry_id, allow_empty=True)
    except RefusedError as refused:
        return Preview(entry_id=entry_id, brings_back=back, refused=str(refused), rule=refused.rule)
    preview = Preview(entry_id=entry_id, brings_back=back, reappearing=len(done.reappeared), hidden=len(done.hidden))
    if done.before is not None and done.after is not None:
        preview.rows_before, preview.rows_after = done.before.rows, done.after.rows
        preview.bytes_before, preview.bytes_after = done.before.bytes, done.after.bytes
    return preview


def describe_operations(store: SegmentStore) -> Operations:
    """Deletions, locks and leases of a cluster."""
    backlog = store.queue.backlog()
    tables = [store.table(name) for name in store.tables()]
    return Operations(
        pending=backlog.pending,
        waiting=backlog.retry,
        next_due_ms=backlog.next_due_ms,
        sweeps=backlog.sweeps,
        dead=backlog.dead,
        dead_letters=_dead_letters(store),
        locks=[
            LockRow(
                table=table.name,
                lock_id=lock.lock_id,
                lock_type=lock.lock_type.value,
                start_ms=lock.start_ms,
                end_ms=lock.end_ms,
                group=lock.group,
                priority=lock.priority,
                lease_until_ms=lock.lease_until_ms,
                revoked_by=lock.revoked.by if lock.revoked else None,
            )
            for table in tables
            for lock in table.locks.locks()
        ],
        leases=[
            LeaseRow(table=table.name, owner=lease.owner, taken_ms=lease.taken_ms)
            for table in tables
            for lease in table.leases()
        ],
    )


def _dead_letters(store: SegmentStore) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    for dead_id, dead in store.queue.dead_letters():
        if len(found) == MOST_DEAD_LETTERS:
            break
        if isinstance(dead, UnreadableLetters):
            found.append(DeadLetter(dead_id=dead_id, table="", messages=0, dead_ms=0, error=str(dead.error)))
            continue
        errors = {ledger.error for ledger in dead.batch.ledgers if ledger.error}
        found.append(
            DeadLetter(
                dead_id=dead_id,
                table=dead.batch.table,
                messages=len(dead.batch.ledgers),
                dead_ms=dead.dead_ms,
                error=min(errors, default=""),
            )
        )
    return found


def _kind(config: TableConfig) -> str:
    return "UPSERT" if config.upsert is not None else config.ingestion_type


def _latest(table: Table) -> str | None:
    try:
        return table.resolve_entry("latest")
    except EntryNotFoundError:
        return None


def _author(settings: SegmentsConnection, stored: StoredGuard | None) -> Author | None:
    """Whose work an entry is. The identity of a DAG run's task is ``deployment/dag/run/task``."""
    identity = stored.guard.identity if stored is not None else None
    if identity is None or is_entry_id(identity):  # a push that was given no name has a random one
        return None
    deployment, _, work = identity.partition("/")
    parts = work.split("/")
    if deployment != settings.deployment or len(parts) < 3:
        return Author(identity=identity)
    return Author(identity=identity, dag_id=parts[0], run_id=parts[1])
