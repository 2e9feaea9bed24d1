"""``revert``: undo a replacement in one transaction, whatever its size. Nothing is copied, moved or deleted."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_segments.core.lineage.entries import EntryState, LineageEntry
from airflow_provider_segments.core.lineage.guard import StoredGuard
from airflow_provider_segments.core.lineage.hiding import is_settled
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.replacement.rules import check_revert, describe, find
from airflow_provider_segments.core.replacement.versions import check_not_beneath, check_not_joined
from airflow_provider_segments.core.zookeeper import Check, Op
from airflow_provider_segments.exceptions import RevertRefusedError


@dataclass(frozen=True, slots=True)
class RevertedEntry:
    """A reverted entry (or one that would be). ``reappeared`` are the names readers see again and ``hidden`` those
    they no longer see; both empty when the push had not been completed. ``already`` says an earlier attempt had done
    it."""

    entry: LineageEntry
    was: EntryState
    already: bool
    switch_ms: float

    @property
    def entry_id(self) -> str:
        """The entry's id."""
        return self.entry.entry_id

    @property
    def reappeared(self) -> tuple[str, ...]:
        """Segments that are visible again."""
        return self.entry.segments_from if self.was is EntryState.COMPLETED else ()

    @property
    def hidden(self) -> tuple[str, ...]:
        """Segments that are hidden now."""
        return self.entry.segments_to if self.was is EntryState.COMPLETED else ()


def revert(context: Context, entry_id: str, *, force: bool = False, identity: str | None = None) -> RevertedEntry:
    """Revert the entry. ``force`` also aborts a push in progress. ``identity`` names the work, so that a retry of it
    finds that it has reverted the entry already; without one, a reverted entry is refused.

    Raises :class:`EntryNotFoundError`, :class:`RevertRefusedError` with the rule, and what ``Retry.run`` raises.
    """
    who = identity or context.clock.new_id()

    def attempt() -> RevertedEntry:
        stored = context.records.read()
        if done := _done_by(context, stored, entry_id, who):
            return done
        entry, guard, checks = _checked(context, stored, entry_id, force=force)
        reverted = stored.lineage.put(entry.moved_to(EntryState.REVERTED, context.clock.now_ms()))
        ops = [context.records.write(stored, reverted), *checks]
        if guard is not None:
            ops += context.close_guard(guard, who)
        before = context.clock.monotonic()
        context.session.commit(ops)
        took = (context.clock.monotonic() - before) * 1000
        if guard is not None:
            context.release(guard.guard)
        return RevertedEntry(entry, entry.state, already=False, switch_ms=took)

    return context.retried("revert", attempt)


def preview(context: Context, entry_id: str, *, force: bool = False) -> RevertedEntry:
    """What ``revert`` would do now, or the error it would raise. Changes nothing."""
    stored = context.records.read()
    entry, _, _ = _checked(context, stored, entry_id, force=force)
    return RevertedEntry(entry, entry.state, already=False, switch_ms=0.0)


def _done_by(context: Context, stored: StoredLineage, entry_id: str, who: str) -> RevertedEntry | None:
    entry = find(stored.lineage, entry_id)
    if entry.state is not EntryState.REVERTED:
        return None
    guard = context.records.guard(entry_id)
    if guard is None or guard.guard.settled_by != who:
        return None
    was = EntryState.COMPLETED if guard.guard.completed_at else EntryState.IN_PROGRESS
    return RevertedEntry(entry, was, already=True, switch_ms=0.0)


def _checked(
    context: Context, stored: StoredLineage, entry_id: str, *, force: bool
) -> tuple[LineageEntry, StoredGuard | None, list[Op]]:
    entry = check_revert(stored.lineage, entry_id, force=force)
    guard = context.records.guard(entry_id)
    if entry.state is EntryState.IN_PROGRESS:
        return entry, guard, []
    if guard is not None:
        check_not_joined(context, stored, entry_id, guard.guard)
        if guard.guard.placed:
            check_not_beneath(context, stored, entry, guard.guard)
    return entry, guard, [_check_registered(context, stored, entry, guard)]


def _check_registered(context: Context, stored: StoredLineage, entry: LineageEntry, guard: StoredGuard | None) -> Op:
    """Every ``from`` and ``to`` is still registered. A ``to`` that is gone was replaced by an entry that has been
    cleaned up and dropped: with the ``from`` back, readers would see old data beside what replaced its replacement.
    All were there when the entry completed; the registry is read only when something was removed since, and the
    transaction refuses if anything is removed meanwhile."""
    root = context.registry.root()
    if guard is not None and root.changed <= guard.born:
        return Check(context.registry.path, root.version)
    read = context.registry.read(lambda name: is_settled(stored.lineage, name.entry_id))
    registered = {record.name for shard in read.shards for record in shard.records}
    # What a rewrite brought stays registered for as long as readers may go back from it: then it was not replaced.
    brought = () if stored.lineage.can_fall_back(entry.entry_id) else entry.segments_to
    for rule, names, what in (
        ("from-gone", entry.segments_from, "that it replaced is gone"),
        ("to-gone", brought, "that it brought was replaced by a later push, and is gone"),
    ):
        if gone := [name for name in names if name not in registered]:
            raise RevertRefusedError(
                rule,
                f"revert refused: {describe(gone)} {what}",
                table=context.table,
                entry_id=entry.entry_id,
                hint="Push the old data again.",
            )
    return Check(context.registry.path, read.root.version)
