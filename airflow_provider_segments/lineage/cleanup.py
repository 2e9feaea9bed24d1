"""Clean-up of the lineage in two cycles (Pinot RetentionManager): one marks segments, a later one drops the entry.

An entry may only leave the lineage when the segments it hides have left the registry: otherwise they would appear.
Every decision is a compare-and-set on the lineage it was made on, and is made again from what a lost one reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from airflow_provider_segments.lineage.context import Context
from airflow_provider_segments.lineage.guard import StoredGuard
from airflow_provider_segments.lineage.records import StoredLineage
from airflow_provider_segments.lineage.routing import is_settled
from airflow_provider_segments.model.lineage import EntryState, Lineage, LineageEntry
from airflow_provider_segments.registry.registry import Root, StoredRoot
from airflow_provider_segments.registry.shard import Shard
from airflow_provider_segments.zookeeper import Check, Delete, Op, SetData

WRITE_GRACE_MS = 3_600_000
"""How long a reverted entry is kept as a tombstone: longer than the longest write to the store can take, so that an
object that lands late (a blocked PUT, a speculative task) still lies under the prefix of an entry that will be swept
again."""


@dataclass(slots=True)
class CleanedUp:
    """What one pass did: entries aborted for their age, segments marked for deletion, entries dropped."""

    aborted: list[str] = field(default_factory=list)
    marked: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)


def run(context: Context) -> CleanedUp:
    """One pass over all entries of the table. Raises what ``Retry.run`` raises; a pass that was cut off is run
    again."""
    config = context.config()
    report = CleanedUp()
    for entry_id, entry in list(context.records.read().lineage.entries.items()):
        age = context.clock.now_ms() - entry.timestamp_ms
        if entry.state is EntryState.COMPLETED and age > config.replaced_retention_ms:
            _completed(context, entry_id, report)
        elif entry.state is EntryState.IN_PROGRESS and age > config.entry_retention_ms:
            _abort(context, entry_id, report)
            _reverted(context, entry_id, report)
        elif entry.state is EntryState.REVERTED:
            _reverted(context, entry_id, report)
    return report


def remove_replaced(context: Context, entry_id: str) -> int:
    """Remove the segments a COMPLETED entry replaced from the registry and queue their objects; returns how many.

    The entry carries the mark that it can no longer be reverted before the first segment goes: a revert that looked
    before and wrote after would make deleted data visible.
    """

    def attempt() -> int:
        stored = context.records.read()
        entry = stored.lineage.get(entry_id)
        if entry is None or entry.state is not EntryState.COMPLETED:
            return 0
        if not stored.lineage.is_cleaning(entry_id):
            marked = stored.lineage.with_cleaning(entry_id, context.clock.now_ms())
            context.session.commit([context.records.write(stored, marked)])
            stored = context.records.read()
        guard = context.records.guard(entry_id)
        _remember_removal(context, stored, guard.changed if guard else stored.zxid)
        gone = set(entry.segments_from)
        found = _replaced_in(context, stored.lineage, entry_id)
        return context.marker.mark(found, lambda record: record.name not in gone, reason="replaced")

    return context.retried("cleanup", attempt)


def _completed(context: Context, entry_id: str, report: CleanedUp) -> None:
    """First cycle: mark ``from``. Second: nothing of it is left, the entry goes."""
    marked = remove_replaced(context, entry_id)
    if marked:
        report.marked[entry_id] = marked
        return
    if context.retried("cleanup", lambda: _drop(context, entry_id, EntryState.COMPLETED)):
        report.dropped.append(entry_id)


def _abort(context: Context, entry_id: str, report: CleanedUp) -> None:
    """A push nobody ended for too long is reverted first, by the same compare-and-set that fences its build."""
    config = context.config()

    def attempt() -> bool:
        stored = context.records.read()
        entry = stored.lineage.get(entry_id)
        if entry is None or entry.state is not EntryState.IN_PROGRESS:
            return False
        if context.clock.now_ms() - entry.timestamp_ms <= config.entry_retention_ms:
            return False
        reverted = stored.lineage.put(entry.moved_to(EntryState.REVERTED, context.clock.now_ms()))
        guard = context.records.guard(entry_id)
        ops = [context.records.write(stored, reverted)]
        if guard is not None:
            ops.append(context.records.write_guard(entry_id, guard, guard.reverted("cleanup")))
        context.session.commit(ops)
        return True

    if context.retried("cleanup", attempt):
        report.aborted.append(entry_id)


def _reverted(context: Context, entry_id: str, report: CleanedUp) -> None:
    marked = context.retried("cleanup", lambda: _remove_staged(context, entry_id))
    if marked:
        report.marked[entry_id] = marked
        return
    if context.retried("cleanup", lambda: _drop(context, entry_id, EntryState.REVERTED)):
        report.dropped.append(entry_id)


def _remove_staged(context: Context, entry_id: str) -> int:
    """Everything staged into a REVERTED entry leaves the registry, whoever staged it. Its guard lets nothing new in."""
    stored = context.records.read()
    entry = stored.lineage.get(entry_id)
    if entry is None or entry.state is not EntryState.REVERTED:
        return 0
    found = context.registry.of_entry(entry_id)
    if not found:
        return 0
    guard = context.records.guard(entry_id)
    if guard is not None and guard.guard.completed_at:
        _remember_removal(context, stored, guard.changed)
    return context.marker.mark(found, lambda _: False, reason="reverted")


def _drop(context: Context, entry_id: str, state: EntryState) -> bool:
    """Drop an entry that hides nothing any more: lineage, guard and the sweep of its prefix in one transaction.

    The registry's root is checked too, so the past that can still be read is known to end where this entry does.
    """
    stored = context.records.read()
    entry = stored.lineage.get(entry_id)
    if entry is None or entry.state is not state:
        return False
    if state is EntryState.REVERTED and context.clock.now_ms() - entry.timestamp_ms <= WRITE_GRACE_MS:
        return False
    if _still_hides(context, stored.lineage, entry):
        return False
    guard = context.records.guard(entry_id)
    ops = [context.records.write(stored, stored.lineage.without(entry_id))]
    if guard is not None:
        ops.append(Delete(context.records.guard_path(entry_id), guard.version))
    if state is EntryState.REVERTED:
        ops += context.marker.sweep_op(entry_id, reason="reverted")
    ops.append(_root_op(context, guard, context.registry.root()))
    context.session.commit(ops)
    return True


def _still_hides(context: Context, lineage: Lineage, entry: LineageEntry) -> bool:
    """Whether something in the registry would appear if the entry were gone."""
    if entry.state is EntryState.REVERTED:
        return bool(context.registry.of_entry(entry.entry_id))
    if not entry.joined_from:
        return False
    gone = set(entry.segments_from)
    found = _replaced_in(context, lineage, entry.entry_id)
    return any(record.name in gone for shard in found for record in shard.records)


def _replaced_in(context: Context, lineage: Lineage, entry_id: str) -> tuple[Shard, ...]:
    """The shards that can hold what an entry replaced. A push still in progress may have staged the same name: that one
    was never visible, and is for that push's own end to decide."""
    return context.registry.read(lambda name: name.entry_id != entry_id and is_settled(lineage, name.entry_id)).shards


def _remember_removal(context: Context, stored: StoredLineage, settled_at: int) -> None:
    """Tell readers before the first segment goes: one that read an older lineage takes a newer one."""
    root = context.registry.root()
    changed = Root(max(root.root.removed_at, stored.zxid), max(root.root.history_floor, settled_at))
    if changed != root.root:
        context.session.commit([_set_root(context, root, changed)])


def _root_op(context: Context, guard: StoredGuard | None, root: StoredRoot) -> Op:
    """The past can no longer be told apart at the zxid at which a dropped entry was settled."""
    changed = Root(root.root.removed_at, max(root.root.history_floor, guard.changed if guard else 0))
    if changed == root.root:
        return Check(context.registry.path, root.version)
    return _set_root(context, root, changed)


def _set_root(context: Context, root: StoredRoot, changed: Root) -> SetData:
    return SetData(context.registry.path, msgspec.json.encode(changed), root.version)
