"""``unrevert``: bring back what was rolled back, in one transaction. It returns to its old place."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import Guard, StoredGuard
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.model.names import describe_names
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.forecast import Forecast, Totals
from airflow_provider_segments.core.replacement.rules import check_unrevert
from airflow_provider_segments.core.zookeeper import Op
from airflow_provider_segments.exceptions import UnrevertRefusedError
from airflow_provider_segments.text import count


@dataclass(frozen=True, slots=True)
class UnrevertedEntry:
    """An entry that was brought back (or would be). ``before`` and ``after`` are totals of what readers of the table
    see; ``None`` when ``already`` says that an earlier call had brought it back."""

    entry: LineageEntry
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
        return self.entry.segments_to

    @property
    def hidden(self) -> tuple[str, ...]:
        """Segments that are replaced again."""
        return self.entry.segments_from


@dataclass(frozen=True, slots=True)
class _Planned:
    """What an unrevert is about to write."""

    lineage: Lineage
    checks: tuple[Op, ...]
    outcome: UnrevertedEntry


def unrevert(
    context: TableContext, entry_id: str, *, allow_empty: bool = False, identity: str | None = None
) -> UnrevertedEntry:
    """Complete the REVERTED entry once more: readers see what it brought, in place of what it replaced.

    Possible until clean-up has marked the entry, after ``revertedSegmentsRetentionPeriod``, and as long as nothing was
    built since upon what it replaced. ``allow_empty`` says whether the table may be left without visible rows (by an
    entry that only removes). ``identity`` names the work, so that a retry of it finds that it is done.

    Raises :class:`EntryNotFoundError`, :class:`UnrevertRefusedError` with the rule, and what ``Retry.run`` raises.
    """
    who = identity or context.clock.new_id()
    forecast = Forecast(context, entry_id)
    planned: list[_Planned] = []

    def attempt() -> UnrevertedEntry:
        stored = context.records.read()
        guard = context.records.guard(entry_id)
        entry = stored.lineage.find(entry_id)
        if entry.state is EntryState.COMPLETED and guard is not None and guard.guard.settled_by == who:
            return planned[-1].outcome if planned else UnrevertedEntry(entry, already=True, switch_ms=0.0)
        plan = _plan(forecast, stored, guard, allow_empty=allow_empty)
        planned.append(plan)
        assert guard is not None, "an entry without a guard is refused"
        settle = context.records.write_guard(entry_id, guard, guard.unreverted(who))
        before = context.clock.monotonic()
        ops = [context.records.write(stored, plan.lineage), settle, *plan.checks]
        context.commit(ops, "unreverted", entry_id, identity)
        took = (context.clock.monotonic() - before) * 1000
        return UnrevertedEntry(entry, False, took, plan.outcome.before, plan.outcome.after)

    return context.retried("unrevert", attempt)


def preview(context: TableContext, entry_id: str, *, allow_empty: bool = False) -> UnrevertedEntry:
    """What ``unrevert`` would do now, or the error it would raise. Changes nothing."""
    forecast = Forecast(context, entry_id)

    def attempt() -> UnrevertedEntry:
        stored, guard = context.records.read(), context.records.guard(entry_id)
        return _plan(forecast, stored, guard, allow_empty=allow_empty).outcome

    return context.retried("unrevert", attempt)


def _plan(forecast: Forecast, stored: StoredLineage, guard: StoredGuard | None, *, allow_empty: bool) -> _Planned:
    """The lineage after the unrevert, or the error that refuses it."""
    lineage = stored.lineage
    entry = check_unrevert(lineage, forecast.entry_id)
    if guard is None or not guard.guard.completed_at:
        raise _refused(entry, lineage, "never-completed", "the push had not been completed", "Push the data again.")
    forecast.look(stored)
    _check_registered(forecast, lineage, entry)
    _check_visible(forecast, stored, entry)
    _check_alone(forecast, stored, entry, guard.guard)
    back = lineage.put(entry.moved_to(EntryState.COMPLETED, forecast.context.clock.now_ms()))
    before = forecast.totals(lineage, stored.zxid)
    after = forecast.totals(back, stored.zxid)
    if before.rows and not after.rows and not allow_empty:
        raise _refused(
            entry,
            lineage,
            "would-be-empty",
            f"readers see {count(before.rows, 'row')} now, and would see none",
            "If that is meant, allow an empty table (--allow-empty, allow_empty=True).",
        )
    outcome = UnrevertedEntry(entry, already=False, switch_ms=0.0, before=before, after=after)
    return _Planned(back, (forecast.unremoved(),), outcome)


def _check_registered(forecast: Forecast, lineage: Lineage, entry: LineageEntry) -> None:
    """All that the entry brought is still registered."""
    registered = forecast.registered()
    if gone := [name for name in entry.segments_to if name not in registered]:
        raise _refused(
            entry, lineage, "to-gone", f"{describe_names(gone)} that it brought is gone", "Push the data again."
        )


def _check_visible(forecast: Forecast, stored: StoredLineage, entry: LineageEntry) -> None:
    """Readers see all that the entry would replace again: else somebody has replaced, removed or overwritten it."""
    if not entry.joined_from:
        return
    shown = forecast.visible(stored.lineage, stored.zxid).blocks
    visible = {record.name for _, records in shown for record in records}
    if absent := [name for name in entry.segments_from if name not in visible]:
        raise _refused(
            entry,
            stored.lineage,
            "from-not-visible",
            f"readers no longer see {describe_names(absent)} that it replaced: it was replaced, overwritten or removed "
            "since",
            "Push the data again.",
        )


def _check_alone(forecast: Forecast, stored: StoredLineage, entry: LineageEntry, guard: Guard) -> None:
    """A push of a REFRESH table that replaced nothing was the whole table. What was pushed since would be visible
    beside it."""
    if entry.joined_from or not guard.refreshes:
        return
    shown = forecast.visible(stored.lineage, stored.zxid).blocks
    if others := sorted({shard.name.entry_id for shard, _ in shown}):
        raise _refused(
            entry,
            stored.lineage,
            "refresh-pushed-since",
            f"the REFRESH table shows what entry {others[0]} has pushed since",
            f"Revert entry {others[0]} first.",
        )


def _refused(entry: LineageEntry, lineage: Lineage, rule: str, detail: str, hint: str) -> UnrevertRefusedError:
    return UnrevertRefusedError(
        rule, f"unrevert refused: {detail}", table=lineage.table, entry_id=entry.entry_id, hint=hint
    )
