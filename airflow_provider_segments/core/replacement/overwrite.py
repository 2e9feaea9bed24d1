"""An overwrite without rows: "delete this hour"."""

from __future__ import annotations

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.locking import LockRequest, LockType, Priority, granted_lock
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.end import EndedEntry, end
from airflow_provider_segments.core.replacement.start import StartOptions, start


def delete_time(
    context: TableContext, interval: Interval, *, identity: str | None = None, priority: int = Priority.BATCH
) -> EndedEntry:
    """Remove the rows of ``interval`` from sight, in one entry however many segments they are in; a revert of it brings
    them back.

    The push holds an EXCLUSIVE lock of ``priority`` on the interval meanwhile. A retry under the same ``identity``
    finds that it is done, and removes nothing that came since.

    Raises :class:`LockDeniedError` when somebody else has the time, :class:`StartRefusedError`
    (``overwrite-not-locked`` on a table without ``segmentLocking``), :class:`EndRefusedError`, and what ``Retry.run``
    raises.
    """
    who = identity or context.clock.new_id()
    if done := _done_by(context, context.records.read().lineage, who):
        return EndedEntry(done.entry_id, (), (), 0, 0, already=True, switch_ms=0.0)
    request = LockRequest(group=who, task=who, interval=interval, lock_type=LockType.EXCLUSIVE, priority=priority)
    lock = granted_lock(context.table, context.locks.acquire(request))
    try:
        options = StartOptions(identity=who, locks=[HeldLock(lock.lock_id, who, who)], overwrites=[interval])
        started = start(context, (), (), options)
        return end(context, started.entry_id, allow_empty=True)
    finally:
        context.locks.release(who, who)


def _done_by(context: TableContext, lineage: Lineage, identity: str) -> LineageEntry | None:
    """The COMPLETED overwrite that ``identity`` made, if there is one."""
    overwrites = {one.entry_id for one in lineage.overwrites_in_force}
    for entry_id, stored in context.records.guards(overwrites).items():
        if stored.guard.identity == identity and lineage.entries[entry_id].state is EntryState.COMPLETED:
            return lineage.entries[entry_id]
    return None
