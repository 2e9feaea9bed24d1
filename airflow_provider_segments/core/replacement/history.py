"""A whole table in one read, and what readers saw of it right after each of its entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage
from airflow_provider_segments.core.lineage.guard import GuardState, StoredGuard
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.registry.registry import Registry, RegistryRead
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.forecast import Totals
from airflow_provider_segments.core.snapshot import View, Visibility, past_view
from airflow_provider_segments.core.zookeeper import Check, CommitConflictError


@dataclass(frozen=True, slots=True)
class TableRead:
    """A table's lineage, the guards of its entries, and its registry, read so that they belong together."""

    stored: StoredLineage
    guards: Mapping[str, StoredGuard]
    registry: RegistryRead

    @property
    def view(self) -> View:
        """The lineage as it was read."""
        return View(self.stored.lineage, self.stored.zxid)

    def totals_after(self, entry_ids: Sequence[str]) -> Iterator[tuple[str, Totals | None]]:
        """Yield each of ``entry_ids`` with what readers saw right after it was completed, computed when it is asked
        for.

        ``None`` stands where that cannot be told: the entry never was completed, another tool made it, what was visible
        then has been cleaned up, or the table is an upsert table, whose rows the marks filter.
        """
        for entry_id in entry_ids:
            zxid = _completed_at(self.guards.get(entry_id))
            known = zxid and self.stored.lineage.upsert is None and self.registry.root.root.history_floor <= zxid
            yield entry_id, _totals(self, zxid) if known else None


def read_table(context: TableContext, before: TableRead | None = None) -> TableRead:
    """Read a table; of ``before``, an earlier read of it, keep what cannot have changed since.

    A shard never changes what it shows, and every removal of one changes the registry's root first. A guard changes
    together with its entry. Raises :class:`TableNotFoundError`, :class:`CorruptRecordError` and what ``Retry.run``
    raises.
    """
    return context.retried("read", lambda: _read(context, before))


def _read(context: TableContext, before: TableRead | None) -> TableRead:
    stored = context.records.read()
    guards = _read_guards(context, stored.lineage, before)
    registry = _read_registry(context.registry, before)
    if registry.root.root.removed_at > stored.zxid:
        raise CommitConflictError(Check(context.registry.path, registry.root.version), "removed meanwhile")
    return TableRead(stored, guards, registry)


def _read_guards(context: TableContext, lineage: Lineage, before: TableRead | None) -> dict[str, StoredGuard]:
    known: dict[str, StoredGuard] = {}
    if before is not None:
        entries = before.stored.lineage.entries
        known = {
            entry_id: guard
            for entry_id, guard in before.guards.items()
            if entries[entry_id].state is not EntryState.IN_PROGRESS and lineage.get(entry_id) == entries[entry_id]
        }
    return known | context.records.guards(entry_id for entry_id in lineage.entries if entry_id not in known)


def _read_registry(registry: Registry, before: TableRead | None) -> RegistryRead:
    if before is None:
        return registry.read(lambda _: True)
    known = {shard.name.path for shard in before.registry.shards}
    read = registry.read(lambda name: name.path not in known)
    if read.root != before.registry.root:
        return registry.read(lambda _: True)
    return RegistryRead((*before.registry.shards, *read.shards), read.root, before.registry.version)


def _completed_at(stored: StoredGuard | None) -> int:
    """The zxid at which the entry was completed last; 0 when it never was."""
    if stored is None:
        return 0
    return stored.changed if stored.guard.state is GuardState.COMPLETED else stored.guard.completed_at


def _totals(read: TableRead, zxid: int) -> Totals:
    view = past_view(read.stored.lineage, read.guards, zxid)
    shown = Visibility(view, [shard for shard in read.registry.shards if view.may_show(shard.name)]).blocks
    return Totals.of(record for _, records in shown for record in records)
