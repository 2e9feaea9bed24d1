"""``revert``: undo a replacement in one transaction, whatever its size. Nothing is copied, moved or deleted."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_segments.core.lineage.entries import EntryState, LineageEntry
from airflow_provider_segments.core.lineage.guard import Guard, GuardState, StoredGuard
from airflow_provider_segments.core.lineage.hiding import is_settled
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.model.names import describe_names
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.rules import Force, check_revert
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


def revert(
    context: TableContext, entry_id: str, *, force: Force = Force.NEVER, identity: str | None = None
) -> RevertedEntry:
    """Revert the entry. ``force`` says whether a push in progress is aborted. ``identity`` names the work, so that a
    retry of it finds that it has reverted the entry already; without one, a reverted entry is refused.

    Raises :class:`EntryNotFoundError`, :class:`RevertRefusedError` with the rule, and what ``Retry.run`` raises.
    """
    who = identity or context.clock.new_id()

    def attempt() -> RevertedEntry:
        stored = context.records.read()
        guard = context.records.guard(entry_id)
        if done := _done_by(stored, guard, entry_id, who):
            return done
        entry, checks = _checked(context, stored, entry_id, guard, force)
        reverted = stored.lineage.put(entry.moved_to(EntryState.REVERTED, context.clock.now_ms()))
        if stored.lineage.dropped_by == entry_id:  # whatever is pushed from now on must not lie beneath it
            reverted = reverted.without_overwrite(entry_id)
        ops = [context.records.write(stored, reverted), *checks, *_settle(context, entry_id, guard, who)]
        before = context.clock.monotonic()
        context.session.commit(ops)
        took = (context.clock.monotonic() - before) * 1000
        if guard is not None:
            context.release(entry_id, guard.guard)
        return RevertedEntry(entry, entry.state, already=False, switch_ms=took)

    return context.retried("revert", attempt)


def preview(context: TableContext, entry_id: str, *, force: Force = Force.NEVER) -> RevertedEntry:
    """What ``revert`` would do now, or the error it would raise. Changes nothing."""
    stored = context.records.read()
    entry, _ = _checked(context, stored, entry_id, context.records.guard(entry_id), force)
    return RevertedEntry(entry, entry.state, already=False, switch_ms=0.0)


def _done_by(stored: StoredLineage, guard: StoredGuard | None, entry_id: str, who: str) -> RevertedEntry | None:
    entry = stored.lineage.find(entry_id)
    if entry.state is not EntryState.REVERTED or guard is None or guard.guard.settled_by != who:
        return None
    was = EntryState.COMPLETED if guard.guard.completed_at else EntryState.IN_PROGRESS
    return RevertedEntry(entry, was, already=True, switch_ms=0.0)


def _settle(context: TableContext, entry_id: str, guard: StoredGuard | None, who: str) -> list[Op]:
    """The operations that say in the entry's guard who has reverted it. An entry of another tool gets a guard for that:
    else a retry could not tell its own work from somebody else's."""
    if guard is not None:
        return context.close_guard(guard, who)
    made = Guard.new(None, GuardState.REVERTED, settled_by=who)
    return [context.records.make_guard(entry_id, made)]


def _checked(
    context: TableContext, stored: StoredLineage, entry_id: str, guard: StoredGuard | None, force: Force
) -> tuple[LineageEntry, list[Op]]:
    entry = check_revert(stored.lineage, entry_id, force=force)
    if entry.state is EntryState.IN_PROGRESS:
        return entry, []
    _check_alone(context, stored, entry)
    return entry, [_check_registered(context, stored, entry, guard)]


def _check_alone(context: TableContext, stored: StoredLineage, entry: LineageEntry) -> None:
    """A removal of all that a REFRESH table shows can be reverted while the table is empty: what was pushed since would
    be visible beside what comes back."""
    if entry.joined_to or not entry.joined_from or not context.config().is_refresh:
        return
    if visible := context.visible_under(stored):
        raise RevertRefusedError(
            "refresh-pushed-since",
            f"revert refused: the REFRESH table shows {len(visible)} segments that were pushed since, "
            "and would show them beside what comes back",
            table=context.table,
            entry_id=entry.entry_id,
            hint="Revert that push first.",
        )


def _check_registered(
    context: TableContext, stored: StoredLineage, entry: LineageEntry, guard: StoredGuard | None
) -> Op:
    """Every ``from`` and ``to`` is still registered. A ``to`` that is gone was replaced by an entry that has been
    cleaned up and dropped: with the ``from`` back, readers would see old data beside what replaced its replacement.
    All were there when the entry completed; the registry is read only when something was removed since, and the
    transaction refuses if anything is removed meanwhile."""
    root = context.registry.root()
    if guard is not None and root.changed <= guard.born:
        return Check(context.registry.path, root.version)
    read = context.registry.read(lambda name: is_settled(stored.lineage, name.entry_id))
    registered = {record.name for shard in read.shards for record in shard.records}
    # What a rewrite brought stays registered for as long as readers may fall back from it: then it was not replaced.
    brought = () if stored.lineage.can_fall_back(entry.entry_id) else entry.segments_to
    for rule, names, what in (
        ("from-gone", entry.segments_from, "that it replaced is gone"),
        ("to-gone", brought, "that it brought was replaced by a later push, and is gone"),
    ):
        if gone := [name for name in names if name not in registered]:
            raise RevertRefusedError(
                rule,
                f"revert refused: {describe_names(gone)} {what}",
                table=context.table,
                entry_id=entry.entry_id,
                hint="Push the old data again.",
            )
    return Check(context.registry.path, read.root.version)
