"""Dropping a table, in the manner of everything else: one switch hides it, and a revert brings it back.

A drop is an entry that overwrites all time in a version above every other (:data:`~..lineage.entries.DROP_VERSION`), so
readers see nothing from its one transaction on, and no push can end any more. Once ``replacedSegmentsRetentionPeriod``
is over, clean-up removes what lies beneath it as it does for any overwrite, through two-phase deletion. When nothing of
the table is registered, and its entry is the last of the lineage, the table's znodes go in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_segments.core.lineage.entries import DROP_VERSION, EntryState, Lineage, LineageEntry, Overwrite
from airflow_provider_segments.core.lineage.guard import Guard, GuardState
from airflow_provider_segments.core.model.interval import ALL_TIME
from airflow_provider_segments.core.model.names import entry_id_for
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.zookeeper import Delete
from airflow_provider_segments.exceptions import TableNotFoundError


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table that is dropped, or would be. ``entry_id`` is the entry to revert (empty in a preview); ``segments``,
    ``rows`` and ``bytes`` are what readers saw before, and ``running`` the pushes in progress, which can no longer end.
    ``already`` says that it had been dropped before this call."""

    table: str
    entry_id: str
    segments: int
    rows: int
    bytes: int
    running: tuple[str, ...]
    already: bool


def drop(context: TableContext, *, identity: str | None = None) -> DroppedTable:
    """Hide everything in the table and refuse new pushes, by one compare-and-set. Dropping it again is harmless.

    Raises :class:`TableNotFoundError`, :class:`CorruptRecordError`, and what ``Retry.run`` raises.
    """
    who = identity or context.clock.new_id()
    before = preview(context)

    def attempt() -> DroppedTable:
        stored = context.records.read()
        lineage = stored.lineage
        if lineage.dropped_by is not None:
            return _dropped(before, lineage.dropped_by, already=before.already)
        entry_id = entry_id_for(context.table, who, stored.version)
        entry = LineageEntry.of(entry_id, (), (), EntryState.COMPLETED, context.clock.now_ms())
        everything = Overwrite(entry_id, ALL_TIME.start_ms, ALL_TIME.end_ms, DROP_VERSION)
        guard = Guard.new(who, GuardState.COMPLETED)
        changed = lineage.put(entry).with_overwrite([everything])
        ops = [context.records.write(stored, changed), context.records.make_guard(entry_id, guard)]
        context.commit(ops, "dropped", entry_id, guard.identity)
        return _dropped(before, entry_id, already=False)

    return context.retried("drop", attempt)


def preview(context: TableContext) -> DroppedTable:
    """What :func:`drop` would do now. Writes nothing."""
    context.config()
    stored, seen = context.reader.visible()
    running = tuple(entry.entry_id for entry in stored.lineage.in_state(EntryState.IN_PROGRESS))
    by = stored.lineage.dropped_by
    return DroppedTable(context.table, by or "", len(seen), seen.rows, seen.bytes, running, already=by is not None)


def waits_for(context: TableContext, lineage: Lineage) -> str:
    """What of a dropped table is still there, or nothing when its znodes may go. Writes nothing."""
    if len(lineage) > 1:
        return f"{len(lineage) - 1} other entries of its lineage"
    if shards := context.registry.shard_names():
        return f"segments in {len(shards)} registry shards"
    paths, table = context.cluster.paths, context.table
    holders = {"reader leases": paths.readers(table), "locks": paths.lock_box(table), "offloads": paths.offloads(table)}
    below = context.session.children_many(list(holders.values()))
    held = [f"{len(names)} {what}" for what, names in zip(holders, below, strict=True) if names]
    return ", ".join(held)


def remove_table(context: TableContext, entry_id: str) -> bool:
    """Remove the znodes of a table that ``entry_id`` dropped, once nothing of it is left; returns whether it is gone.

    One transaction. ZooKeeper removes no znode with children, and the lineage and the config must be as they were read,
    so whatever is registered, leased, locked or configured meanwhile refuses it.
    """
    try:
        stored = context.records.read()
    except TableNotFoundError:
        return True  # by an attempt whose reply was lost
    if stored.lineage.dropped_by != entry_id or waits_for(context, stored.lineage):
        return False
    context.registry.remove_empty_chunks()
    known, table = context.cluster.paths, context.table
    parents = [known.held_versions(table), known.emissions(table)]
    below = context.session.children_many(parents)
    reports = [f"{parent}/{name}" for parent, names in zip(parents, below, strict=True) for name in names]
    paths = [context.records.guard_path(entry_id), *reports, *known.of_table(table)]
    nodes = context.session.get_many(paths)
    versions = {path: node.version for path, node in zip(paths, nodes, strict=True) if node is not None}
    versions[context.records.path] = stored.version
    context.session.commit([Delete(path, version) for path, version in versions.items()])
    return True


def _dropped(before: DroppedTable, entry_id: str, *, already: bool) -> DroppedTable:
    return replace(before, entry_id=entry_id, already=already)
