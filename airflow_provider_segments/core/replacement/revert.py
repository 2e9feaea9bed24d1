"""``revert``: undo a replacement in one transaction, whatever its size. Nothing is copied, moved or deleted."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import Guard, GuardState, StoredGuard
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.model.names import describe_names
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.forecast import Forecast, Totals
from airflow_provider_segments.core.replacement.rules import Force, check_revert
from airflow_provider_segments.core.zookeeper import Op
from airflow_provider_segments.exceptions import RevertRefusedError
from airflow_provider_segments.text import count


@dataclass(frozen=True, slots=True)
class RevertedEntry:
    """A reverted entry (or one that would be). ``reappeared`` are the names readers see again and ``hidden`` those
    they no longer see; both empty when the push had not been completed. ``before`` and ``after`` are totals of what
    readers of the table see; ``None`` for a push that they did not see (in progress, or waiting in an upsert table),
    and when ``already`` says that an earlier call had reverted the entry."""

    entry: LineageEntry
    was: EntryState
    already: bool
    switch_ms: float
    before: Totals | None = None
    after: Totals | None = None

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


@dataclass(frozen=True, slots=True)
class _Planned:
    """What a revert is about to write."""

    lineage: Lineage
    checks: tuple[Op, ...]
    outcome: RevertedEntry


def revert(
    context: TableContext,
    entry_id: str,
    *,
    force: Force = Force.NEVER,
    allow_empty: bool = False,
    identity: str | None = None,
) -> RevertedEntry:
    """Revert the entry. ``force`` says whether a push in progress is aborted, ``allow_empty`` whether the table may be
    left without visible rows. ``identity`` names the work, so that a retry of it finds that it has reverted the entry
    already; without one, a reverted entry is refused.

    Raises :class:`EntryNotFoundError`, :class:`RevertRefusedError` with the rule, and what ``Retry.run`` raises.
    """
    who = identity or context.clock.new_id()
    forecast = Forecast(context, entry_id)
    planned: list[_Planned] = []

    def attempt() -> RevertedEntry:
        stored = context.records.read()
        guard = context.records.guard(entry_id)
        if done := _done_by(stored, guard, entry_id, who):
            return planned[-1].outcome if planned else done
        plan = _plan(forecast, stored, force=force, allow_empty=allow_empty)
        planned.append(plan)
        ops = [context.records.write(stored, plan.lineage), *plan.checks, *_settle(context, entry_id, guard, who)]
        before = context.clock.monotonic()
        context.commit(ops, "reverted", entry_id, identity)
        took = (context.clock.monotonic() - before) * 1000
        if guard is not None:
            context.release(entry_id, guard.guard)
        outcome = plan.outcome
        return RevertedEntry(outcome.entry, outcome.was, False, took, outcome.before, outcome.after)

    return context.retried("revert", attempt)


def preview(
    context: TableContext, entry_id: str, *, force: Force = Force.NEVER, allow_empty: bool = False
) -> RevertedEntry:
    """What ``revert`` would do now, or the error it would raise. Changes nothing."""
    forecast = Forecast(context, entry_id)

    def attempt() -> RevertedEntry:
        return _plan(forecast, context.records.read(), force=force, allow_empty=allow_empty).outcome

    return context.retried("revert", attempt)


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


def _plan(forecast: Forecast, stored: StoredLineage, *, force: Force, allow_empty: bool) -> _Planned:
    """The lineage after the revert, or the error that refuses it. What never was completed can never be brought back,
    so it is marked for clean-up at once. The same holds for the drop of a table, and for a push that waits in an upsert
    table: no reader sees that."""
    context, now_ms = forecast.context, forecast.context.clock.now_ms()
    entry = check_revert(stored.lineage, forecast.entry_id, force=force)
    reverted = stored.lineage.put(entry.moved_to(EntryState.REVERTED, now_ms))
    if stored.lineage.dropped_by == entry.entry_id:  # whatever is pushed from now on must not lie beneath it
        reverted = reverted.without_overwrite(entry.entry_id).with_cleaning(entry.entry_id, now_ms)
    if entry.state is EntryState.IN_PROGRESS or stored.lineage.upsert is not None:
        aborted = reverted.with_cleaning(entry.entry_id, now_ms)
        return _Planned(aborted, (), RevertedEntry(entry, entry.state, already=False, switch_ms=0.0))
    forecast.look(stored)
    _check_alone(forecast, stored, entry)
    _check_registered(forecast, stored, entry)
    before = forecast.totals(stored.lineage, stored.zxid)
    after = forecast.totals(reverted, stored.zxid)
    if before.rows and not after.rows and not allow_empty:
        raise RevertRefusedError(
            "would-be-empty",
            f"revert refused: readers see {count(before.rows, 'row')} now, and would see none",
            table=context.table,
            entry_id=entry.entry_id,
            hint="If that is meant, allow an empty table (--allow-empty, allow_empty=True).",
        )
    outcome = RevertedEntry(entry, entry.state, already=False, switch_ms=0.0, before=before, after=after)
    return _Planned(reverted, (forecast.unremoved(),), outcome)


def _check_alone(forecast: Forecast, stored: StoredLineage, entry: LineageEntry) -> None:
    """A removal of all that a REFRESH table shows can be reverted while the table is empty: what was pushed since would
    be visible beside what comes back."""
    if entry.joined_to or not entry.joined_from or not forecast.context.config().is_refresh:
        return
    if visible := forecast.totals(stored.lineage, stored.zxid).segments:
        raise RevertRefusedError(
            "refresh-pushed-since",
            f"revert refused: the REFRESH table shows {count(visible, 'segment')} pushed since, "
            "and would show them beside what comes back",
            table=stored.lineage.table,
            entry_id=entry.entry_id,
            hint="Revert that push first.",
        )


def _is_anothers(forecast: Forecast, entry: LineageEntry) -> bool:
    """Return True if another tool made the entry: then segments that are not registered never were ours."""
    return forecast.context.records.guard(entry.entry_id) is None


def _has_fallen_back(forecast: Forecast, stored: StoredLineage, entry: LineageEntry) -> bool:
    """Return True if the entry counts as rolled back for readers already: then its revert changes nothing they see, and
    it is the way back for a rewrite that was built upon a lost segment."""
    fallen_back, _ = forecast.context.reader.fallen_back(stored.lineage)
    return entry.entry_id in fallen_back


def _check_registered(forecast: Forecast, stored: StoredLineage, entry: LineageEntry) -> None:
    """Every ``from`` and ``to`` is still registered. A ``to`` that is gone was replaced by an entry that has been
    cleaned up and dropped: with the ``from`` back, readers would see old data beside what replaced its replacement."""
    registered = forecast.registered()
    if registered.isdisjoint((*entry.segments_from, *entry.segments_to)) and _is_anothers(forecast, entry):
        return
    # What a rewrite brought stays registered for as long as readers may fall back from it: then it was not replaced.
    brought = () if stored.lineage.can_fall_back(entry.entry_id) else entry.segments_to
    for rule, names, what in (
        ("from-gone", entry.segments_from, "that it replaced is gone"),
        ("to-gone", brought, "that it brought was replaced by a later push, and is gone"),
    ):
        gone = [name for name in names if name not in registered]
        if gone and not _has_fallen_back(forecast, stored, entry):
            raise RevertRefusedError(
                rule,
                f"revert refused: {describe_names(gone)} {what}",
                table=stored.lineage.table,
                entry_id=entry.entry_id,
                hint="Push the old data again.",
            )
