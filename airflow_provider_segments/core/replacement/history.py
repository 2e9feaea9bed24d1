"""What readers saw of a table right after each of its entries, for one read of the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from airflow_provider_segments.core.lineage.guard import GuardState, StoredGuard
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.registry.registry import RegistryRead
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.forecast import Totals
from airflow_provider_segments.core.snapshot import Visibility, past_view
from airflow_provider_segments.core.zookeeper import Check, CommitConflictError


def totals_after(context: TableContext, entry_ids: Sequence[str]) -> Iterator[tuple[str, Totals | None]]:
    """Yield each of ``entry_ids`` with what readers saw right after it was completed, computed when it is asked for.

    ``None`` stands where that cannot be told: the entry never was completed, another tool made it, what was visible
    then has been cleaned up, or the table is an upsert table, whose rows the marks filter. Raises
    :class:`TableNotFoundError`, :class:`CorruptRecordError` and what ``Retry.run`` raises.
    """
    stored, guards, read = context.retried("history", lambda: _read(context))
    for entry_id in entry_ids:
        zxid = _completed_at(guards.get(entry_id))
        known = zxid and stored.lineage.upsert is None and read.root.root.history_floor <= zxid
        yield entry_id, _totals(stored, guards, read, zxid) if known else None


def _read(context: TableContext) -> tuple[StoredLineage, Mapping[str, StoredGuard], RegistryRead]:
    stored = context.records.read()
    guards = context.records.guards(stored.lineage.entries)
    read = context.registry.read(lambda _: True)
    if read.root.root.removed_at > stored.zxid:
        raise CommitConflictError(Check(context.registry.path, read.root.version), "removed meanwhile")
    return stored, guards, read


def _completed_at(stored: StoredGuard | None) -> int:
    """The zxid at which the entry was completed last; 0 when it never was."""
    if stored is None:
        return 0
    return stored.changed if stored.guard.state is GuardState.COMPLETED else stored.guard.completed_at


def _totals(stored: StoredLineage, guards: Mapping[str, StoredGuard], read: RegistryRead, zxid: int) -> Totals:
    view = past_view(stored.lineage, guards, zxid)
    shown = Visibility(view, [shard for shard in read.shards if view.may_show(shard.name)]).blocks
    return Totals.of(record for _, records in shown for record in records)
