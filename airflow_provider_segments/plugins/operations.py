"""Deletions, locks, leases, offloads, the doctor's last report and the audit trail of a cluster. What cannot be read is
said, and hides nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from airflow_provider_segments.core import audit
from airflow_provider_segments.core.deletion.messages import UnreadableLetters
from airflow_provider_segments.core.doctor.kept import read_report
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.tiering import records as offloads
from airflow_provider_segments.exceptions import CorruptRecordError, MetadataUnavailableError, SegmentsError
from airflow_provider_segments.plugins.authors import author_of
from airflow_provider_segments.plugins.models import (
    DeadLetter,
    Doctor,
    EventRow,
    Events,
    FindingRow,
    LeaseRow,
    LockRow,
    OffloadRow,
    Operations,
)
from airflow_provider_segments.plugins.overview import Opened
from airflow_provider_segments.text import mask

MOST_DEAD_LETTERS = 100
"""Dead letters that the page lists; the command line lists all."""

MOST_EVENTS = 3_000
"""Events that are read for one answer: they have to be read to be put in order."""

_T = TypeVar("_T")


def describe_operations(opened: Opened) -> Operations:
    """Deletions, locks and leases of a cluster."""
    store = opened.store
    backlog, waiting = store.queue.backlog(), opened.facts.waiting()
    problems = list(waiting.problems)
    tables = [store.table(name) for name in store.tables()]
    return Operations(
        waiting_tables=waiting.by_table(),
        is_whole=waiting.is_whole,
        pending=backlog.pending,
        waiting=backlog.retry,
        next_due_ms=backlog.next_due_ms,
        sweeps=backlog.sweeps,
        dead=backlog.dead,
        dead_letters=_dead_letters(store, problems),
        locks=_of_each(_with_locks(tables, store), lambda table: _locks(opened, table), problems),
        leases=_of_each(_with_leases(tables, store), _leases, problems),
        offloads=_of_each(_with_offloads(tables, store), _offloads, problems),
        doctor=_doctor(store, problems),
        problems=problems,
    )


def _with_locks(tables: list[Table], store: SegmentStore) -> list[Table]:
    """The tables that have a lock box."""
    boxes = {name: store.paths.lock_box(name) for name in (table.name for table in tables)}
    parents = {path.rpartition("/")[0] for path in boxes.values()}
    there = {f"{parent}/{name}" for parent in parents for name in store.session.children(parent)}
    return [table for table in tables if boxes[table.name] in there]


def _with_leases(tables: list[Table], store: SegmentStore) -> list[Table]:
    """The tables that have a lease."""
    return _with_children(tables, store, store.paths.readers)


def _with_offloads(tables: list[Table], store: SegmentStore) -> list[Table]:
    """The tables that have an offload under way."""
    return _with_children(tables, store, store.paths.offloads)


def _with_children(tables: list[Table], store: SegmentStore, parent: Callable[[str], str]) -> list[Table]:
    below = store.session.children_many([parent(table.name) for table in tables])
    return [table for table, names in zip(tables, below, strict=True) if names]


def _of_each(tables: Iterable[Table], read: Callable[[Table], list[_T]], problems: list[str]) -> list[_T]:
    """What ``read`` finds for each table; what cannot be read becomes a problem."""
    found: list[_T] = []
    for table in tables:
        try:
            found += read(table)
        except MetadataUnavailableError:
            raise
        except SegmentsError as error:
            problems.append(str(error))
    return found


def _locks(opened: Opened, table: Table) -> list[LockRow]:
    return [
        LockRow(
            table=table.name,
            lock_id=lock.lock_id,
            lock_type=lock.lock_type.value,
            start_ms=lock.start_ms,
            end_ms=lock.end_ms,
            group=lock.group,
            by=author_of(opened.settings, lock.group),
            priority=lock.priority,
            lease_until_ms=lock.lease_until_ms,
            revoked_by=lock.revoked.by if lock.revoked else None,
        )
        for lock in table.locks.locks()
    ]


def _leases(table: Table) -> list[LeaseRow]:
    return [LeaseRow(table=table.name, owner=lease.owner, taken_ms=lease.taken_ms) for lease in table.leases()]


def _offloads(table: Table) -> list[OffloadRow]:
    store = table.store
    parent = store.paths.offloads(table.name)
    paths = [f"{parent}/{name}" for name in store.session.children(parent)]
    claims = store.session.children_many(paths)
    rows = []
    for path, node, claim in zip(paths, store.session.get_many(paths), claims, strict=True):
        if node is None:
            continue
        record = offloads.decode(node.data, path)
        rows.append(
            OffloadRow(
                table=table.name,
                copies_to=mask(f"{record.context.driver}://{record.context.bucket}"),
                segments=sum(len(shard.ledgers) for shard in record.shards),
                since_ms=record.started_ms,
                is_claimed=bool(claim),
            )
        )
    return rows


def _doctor(store: SegmentStore, problems: list[str]) -> Doctor | None:
    try:
        kept = read_report(store.cluster)
    except CorruptRecordError as error:
        problems.append(str(error))
        return None
    if kept is None:
        return None
    findings = [
        FindingRow(severity=one.severity, check=one.check, subject=mask(one.subject), detail=mask(one.detail))
        for one in kept.findings
    ]
    return Doctor(
        at_ms=kept.at_ms,
        actor=kept.actor,
        tables=kept.tables,
        znodes=kept.znodes,
        objects=kept.objects,
        counts=kept.counts,
        findings=findings,
    )


def _dead_letters(store: SegmentStore, problems: list[str]) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    for dead_id, dead in store.queue.dead_letters():
        if len(found) == MOST_DEAD_LETTERS:
            break
        if isinstance(dead, UnreadableLetters):
            problems.append(f"dead letter {dead_id}: {dead.error}")
            continue
        errors = {ledger.error for ledger in dead.batch.ledgers if ledger.error}
        found.append(
            DeadLetter(
                dead_id=dead_id,
                table=dead.batch.table,
                messages=len(dead.batch.ledgers),
                dead_ms=dead.dead_ms,
                error=mask(min(errors, default="")),
            )
        )
    return found


def list_events(opened: Opened, table: str | None, limit: int) -> Events:
    """The newest events of a table, or of all tables where those are few enough to be put in order."""
    store = opened.store
    names = [store.table(table).name] if table else store.tables()
    below = store.session.children_many([store.paths.log(name) for name in names])
    if (number := sum(map(len, below))) > MOST_EVENTS and not table:
        return Events(events=[], hint=f"There are {number:,} events: choose a table to see its own.")
    found: list[tuple[int, EventRow]] = []
    problems: list[str] = []
    for name, logged in zip(names, below, strict=True):
        if not logged:
            continue
        try:
            found += [(one.zxid, _event(opened, name, one)) for one in audit.events(store.cluster, name)]
        except MetadataUnavailableError:
            raise
        except SegmentsError as error:
            problems.append(str(error))
    newest = sorted(found, key=lambda one: one[0], reverse=True)[:limit]
    return Events(events=[row for _, row in newest], hint=" ".join(problems) or None)


def _event(opened: Opened, table: str, logged: audit.LoggedEvent) -> EventRow:
    record = logged.record
    return EventRow(
        table=table,
        action=record.action,
        actor=record.actor,
        at_ms=record.at_ms,
        entry_id=record.entry_id,
        by=author_of(opened.settings, record.identity),
        detail=mask(record.detail),
    )
