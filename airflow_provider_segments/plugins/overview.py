"""The list of tables, and one table with its lineage. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_segments.core.lineage.entries import EntryState, LineageEntry
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.replacement.forecast import Totals as CoreTotals
from airflow_provider_segments.core.snapshot import Visibility
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import RefusedError, SegmentsError
from airflow_provider_segments.hooks.settings import SegmentsConnection
from airflow_provider_segments.plugins.authors import author_of
from airflow_provider_segments.plugins.facts import NOTHING, FactsCache, Stamp, TableFacts
from airflow_provider_segments.plugins.models import (
    Author,
    EntryDetail,
    EntryRow,
    Failed,
    Preview,
    Running,
    Storage,
    TableDetail,
    TableRow,
    Tables,
    Totals,
)
from airflow_provider_segments.plugins.secrets import without_secrets
from airflow_provider_segments.plugins.upserts import upsert_state

MOST_NAMES = 100
"""Names of segments that the page lists of an entry."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection of the page: its settings, its store, and what is known of the tables."""

    settings: SegmentsConnection
    store: SegmentStore
    facts: FactsCache


def list_tables(opened: Opened, *, search: str, sort: str, offset: int, limit: int) -> Tables:
    """The tables whose name contains ``search``, a part of them in full. One that cannot be read says why. By anything
    but the name, the largest come first, and every table has to be looked at."""
    names = [name for name in opened.store.tables() if search.lower() in name.lower()]
    waiting = opened.facts.waiting()
    chosen = names if sort != "name" else names[offset : offset + limit]
    waiting_bytes = waiting.bytes_of()
    rows = [
        _row_or_error(opened, name, stamp, waiting_bytes.get(name, 0))
        for name, stamp in zip(chosen, opened.facts.stamps(chosen), strict=True)
    ]
    if sort != "name":
        rows = sorted(rows, key=lambda row: -(getattr(row, sort) or -1))[offset : offset + limit]
    return Tables(total=len(names), tables=rows, problems=waiting.problems, dead=waiting.dead)


def _row_or_error(opened: Opened, name: str, stamp: Stamp, waiting_bytes: int) -> TableRow:
    try:
        row = table_row(opened, name, opened.facts.get(name, stamp))
    except SegmentsError as error:
        return TableRow(name=name, error=str(error), bytes_waiting=waiting_bytes)
    return row.model_copy(update={"bytes_waiting": waiting_bytes})


def table_row(opened: Opened, name: str, facts: TableFacts) -> TableRow:
    """What readers see of a table, since when, and by whom."""
    lineage, latest = facts.lineage, facts.latest
    row = TableRow(name=name, kind=_kind(facts.config), dropped_by=lineage.dropped_by)
    row.running = [
        Running(entry_id=entry.entry_id, since_ms=entry.timestamp_ms, by=_author(opened, facts, entry.entry_id))
        for entry in lineage.in_state(EntryState.IN_PROGRESS)
    ]
    if latest:
        entry = lineage.entries[latest]
        row.entry_id, row.since_ms = latest, entry.timestamp_ms
        row.by = _author(opened, facts, latest)
        row.rollback_until_ms = _until(facts, entry)
    row.failed = _failed(opened, facts)
    if facts.visible is not None:
        row.rows, row.bytes, row.segments = facts.visible.rows, facts.visible.bytes, facts.visible.segments
    if lineage.upsert is not None:
        row.upsert = upsert_state(opened.store, lineage)
    return row


def _failed(opened: Opened, facts: TableFacts) -> Failed | None:
    """The last push that never was completed, unless one was completed since."""
    newest = next((entry for entry in facts.lineage.newest_first() if entry.state is not EntryState.IN_PROGRESS), None)
    if newest is None or newest.state is not EntryState.REVERTED:
        return None
    stored = facts.guards.get(newest.entry_id)
    if stored is None or stored.guard.completed_at:
        return None
    return Failed(
        entry_id=newest.entry_id,
        since_ms=newest.timestamp_ms,
        by=_author(opened, facts, newest.entry_id),
        settled_by=_settler(opened, facts, newest),
    )


def describe_lineage(opened: Opened, name: str, *, offset: int, limit: int) -> TableDetail:
    """A table with a part of its lineage, newest first. Raises what reading it raises."""
    facts = opened.facts.get(opened.store.table(name).name)
    newest = facts.lineage.newest_first()
    table = table_row(opened, name, facts)
    if facts.lineage.upsert is not None:
        table.upsert = upsert_state(opened.store, facts.lineage, in_full=True)
    waiting = opened.facts.waiting().bytes_of().get(name, 0)
    return TableDetail(
        table=table.model_copy(update={"bytes_waiting": waiting}),
        config=without_secrets(facts.config.to_json()),
        entries_total=len(newest),
        entries=_entries(opened, name, facts, newest[offset : offset + limit]),
        storage=Storage(
            visible=totals(facts.shown),
            replaced=totals(facts.hidden),
            rolled_back=totals(facts.rolled_back),
            waiting_bytes=waiting,
        ),
    )


def describe_entry(opened: Opened, name: str, entry_id: str) -> EntryDetail:
    """One entry: what it brought and replaced, what readers saw right after it, and what has become of it since. Raises
    :class:`EntryNotFoundError` and what reading the table raises."""
    facts = opened.facts.get(opened.store.table(name).name)
    entry = facts.lineage.find(entry_id)
    [row] = _entries(opened, name, facts, [entry])
    [(_, after)] = facts.read.totals_after([entry_id])
    by = dict.fromkeys(
        facts.lineage.replaced_by[name].entry_id for name in entry.segments_to if name in facts.lineage.replaced_by
    )
    shown = _shown_names(opened, facts)
    return EntryDetail(
        table=name,
        entry=row,
        after=None if after is None else totals(after),
        segments_from=list(entry.segments_from[:MOST_NAMES]),
        segments_to=list(entry.segments_to[:MOST_NAMES]),
        replaced_by=list(by)[:MOST_NAMES],
        visible_segments=sum(name in shown for name in entry.segments_to),
    )


def _shown_names(opened: Opened, facts: TableFacts) -> frozenset[str]:
    """Names of the segments that readers see."""
    if facts.lineage.dropped_by is not None:
        return frozenset()
    if facts.lineage.upsert is not None:
        return frozenset(opened.store.table(facts.lineage.table).snapshot().names)
    view = facts.read.view
    settled = [shard for shard in facts.read.registry.shards if view.may_show(shard.name)]
    return frozenset(record.name for _, records in Visibility(view, settled).blocks for record in records)


def _entries(opened: Opened, name: str, facts: TableFacts, chosen: Iterable[LineageEntry]) -> list[EntryRow]:
    entries = list(chosen)
    running = [entry.entry_id for entry in entries if entry.state is EntryState.IN_PROGRESS]
    staged = _staged(opened, name, running)
    overwrites = [overwrite.entry_id for overwrite in facts.lineage.overwrites]
    return [
        EntryRow(
            entry_id=entry.entry_id,
            state=entry.state.value,
            since_ms=entry.timestamp_ms,
            by=_author(opened, facts, entry.entry_id),
            settled_by=_settler(opened, facts, entry),
            segments_from=len(entry.segments_from),
            segments_to=len(entry.segments_to),
            brought=totals(staged.get(entry.entry_id) or facts.brought.get(entry.entry_id, NOTHING)),
            replaced=None if (gone := facts.replaced[entry.entry_id]) is None else totals(gone),
            overwrites=overwrites.count(entry.entry_id),
            is_latest=entry.entry_id == facts.latest,
            is_cleaning=facts.lineage.is_cleaning(entry.entry_id),
            until_ms=_until(facts, entry),
        )
        for entry in entries
    ]


def _staged(opened: Opened, name: str, running: list[str]) -> dict[str, CoreTotals]:
    """What pushes in progress have staged so far: that changes while the table does not."""
    guards = opened.store.table(name).context.records.guards(running)
    return {
        entry_id: CoreTotals(
            sum(stage.segments for stage in stored.guard.stages.values()),
            sum(stage.rows for stage in stored.guard.stages.values()),
            sum(stage.bytes for stage in stored.guard.stages.values()),
        )
        for entry_id, stored in guards.items()
    }


def preview_change(opened: Opened, name: str, entry_id: str) -> Preview:
    """What rolling an entry back, or bringing a rolled-back one back, would do; or the words that would refuse it."""
    table = opened.store.table(name)
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


def totals(counted: CoreTotals) -> Totals:
    """Totals as a route answers them."""
    return Totals(segments=counted.segments, rows=counted.rows, bytes=counted.bytes)


def _kind(config: TableConfig) -> str:
    return "UPSERT" if config.upsert is not None else config.ingestion_type


def _until(facts: TableFacts, entry: LineageEntry) -> int | None:
    """Until when the entry can be rolled back or brought back at least; ``None`` when it is too late, or in
    progress."""
    if entry.state is EntryState.IN_PROGRESS or facts.lineage.is_cleaning(entry.entry_id):
        return None
    config, is_completed = facts.config, entry.state is EntryState.COMPLETED
    return entry.timestamp_ms + (config.replaced_retention_ms if is_completed else config.reverted_retention_ms)


def _author(opened: Opened, facts: TableFacts, entry_id: str) -> Author | None:
    stored = facts.guards.get(entry_id)
    return None if stored is None else author_of(opened.settings, stored.guard.identity)


def _settler(opened: Opened, facts: TableFacts, entry: LineageEntry) -> Author | None:
    stored = facts.guards.get(entry.entry_id)
    if stored is None or entry.state is not EntryState.REVERTED:
        return None
    return author_of(opened.settings, stored.guard.settled_by)
