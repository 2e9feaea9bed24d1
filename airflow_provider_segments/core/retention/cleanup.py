"""Clean-up of the lineage in two cycles (Pinot RetentionManager): one marks segments, a later one drops the entry.

An entry may only leave the lineage when the segments it hides have left the registry: otherwise they would appear.
What is done with an entry is decided in ``decide.py``, and what becomes of segments that newer versions hide in
``beneath.py``. Every decision is a compare-and-set on the lineage it was made on, and is made again from what a lost
one reads.

An entry's prefix is swept twice if it was reverted (in the transaction that reverts it, and when its tombstone goes),
and once if it was completed (when it leaves, and not before the longest late write is over): a build that was killed
before it staged, a superseded attempt and a zombie leave objects that no record names. Asking early is safe: a sweep
only queues what is not registered of an entry that is not IN_PROGRESS, and from the transaction that completes or
reverts an entry on its guard lets nothing be registered any more, so what is not registered then never will be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import GuardState, StoredGuard
from airflow_provider_segments.core.lineage.hiding import is_settled
from airflow_provider_segments.core.model.interval import ALL_TIME, Interval
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.registry import Root, StoredRoot
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.replacement.places import Known
from airflow_provider_segments.core.replacement.rules import describe
from airflow_provider_segments.core.replacement.start import StartedEntry
from airflow_provider_segments.core.retention.beneath import Beneath
from airflow_provider_segments.core.retention.decide import (
    WRITE_GRACE_MS,
    Action,
    Decision,
    Freed,
    applied,
    decide,
    hidden_by,
    needs_look,
    rule_for,
    wanted_shards,
)
from airflow_provider_segments.core.retention.removal import remember_removal, set_root
from airflow_provider_segments.core.timeline import SegmentState
from airflow_provider_segments.core.zookeeper import Check, Delete, Op

_LOG = logging.getLogger(__name__)
_GONE_BACK = "readers have gone back from it: segments were lost; revert it"
_HIDDEN = "all of its time is held by newer versions that nobody can roll back any more"


@dataclass(slots=True)
class CleanedUp:
    """What one pass did, or would do: entries aborted for their age, segments marked for deletion and their bytes,
    entries dropped. ``reasons`` has every entry that was there, the ones that were left alone included, and those that
    had left and had brought something that is hidden for good."""

    aborted: list[str] = field(default_factory=list)
    marked: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    bytes: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def mark(self, entry_id: str, freed: Freed) -> None:
        """Note what of an entry was marked, if anything was."""
        if freed.segments:
            self.marked[entry_id] = freed.segments
            self.bytes[entry_id] = freed.bytes

    def mark_hidden(self, entry_id: str, freed: Freed) -> None:
        """Note what an entry that has left the lineage had brought, and newer versions hide for good."""
        self.mark(entry_id, freed)
        self.reasons[entry_id] = _HIDDEN


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pass would do with each entry, and the lineage as it would be then. ``needed`` has, by rewrites that are
    old enough and stay because readers have gone back from them, what stays with them; ``hidden`` what is hidden for
    good, by the entries that had brought it."""

    decisions: tuple[Decision, ...]
    outcome: Lineage
    needed: Mapping[str, Collection[str]]
    hidden: Mapping[str, Freed]

    def report(self) -> CleanedUp:
        """The plan as what it would come to."""
        report = CleanedUp()
        for decision in self.decisions:
            report.reasons[decision.entry_id] = decision.reason
            if decision.action is Action.ABORT:
                report.aborted.append(decision.entry_id)
            if decision.action is Action.DROP:
                report.dropped.append(decision.entry_id)
            if decision.action not in (Action.KEEP, Action.HOLD):
                report.mark(decision.entry_id, decision.freed)
        for entry_id, freed in self.hidden.items():
            report.mark_hidden(entry_id, freed)
        return report


def plan(context: Context) -> Plan:
    """What :func:`run` would do now. Writes nothing. Raises :class:`TableNotFoundError` and
    :class:`CorruptRecordError`."""
    config, now_ms = context.config(), context.clock.now_ms()
    stored = context.records.read()
    lineage = stored.lineage
    look = needs_look(lineage, config, now_ms)
    shards = context.registry.stream(wanted_shards(lineage, look)) if look else ()
    hidden = hidden_by(lineage, look, shards)
    rewrites = {one.entry_id for one in lineage.rewrites()}
    needed = {one.entry_id: seen for one in look if one.entry_id in rewrites if (seen := _gone_back_to(context, one))}
    beneath = Beneath.read(context, stored)
    decisions: list[Decision] = []
    for one in decide(lineage, hidden, config, now_ms):  # each under what those before it will have left
        if one.entry_id in needed:
            one = Decision(one.entry, Action.KEEP, _GONE_BACK)
        elif one.action is Action.MARK and one.entry.state is EntryState.COMPLETED:
            if names := beneath.uncovered_by(applied(lineage, one, now_ms), one.entry):
                one = Decision(one.entry, Action.HOLD, _still_hides(names))
            else:
                beneath = beneath.without(one.entry.segments_from)
        decisions.append(one)
        lineage = applied(lineage, one, now_ms)
    return Plan(tuple(decisions), lineage, needed, _freed_by_entry(beneath.hidden_for_good(lineage)))


def _still_hides(names: Collection[str]) -> str:
    return f"what it replaced hides {describe(sorted(names))}, which would be seen again: compact or replace that"


def _freed_by_entry(found: Iterable[Known]) -> dict[str, Freed]:
    freed: dict[str, Freed] = {}
    for one in found:
        freed[one.entry_id] = freed.get(one.entry_id, Freed()) + Freed.of([one.record])
    return freed


def _gone_back_to(context: Context, rewrite: LineageEntry) -> list[str]:
    """What readers see because they have gone back from ``rewrite``, which can fall back; empty when they have not. Of
    a rewrite of which something is left, that is kept out of sight as long as the entry is there: so it says so, too,
    when all that it had replaced is lost. What joined the version beneath meanwhile would else be hidden by it."""
    guard = context.records.guard(rewrite.entry_id)
    standings, replaced = context.standings(_time_of(guard)), set(rewrite.segments_from)
    return [one.name for one, state in standings if state is SegmentState.VISIBLE and one.name in replaced] or [
        one.name for one, state in standings if state is SegmentState.STANDBY and one.entry_id == rewrite.entry_id
    ]


def _time_of(guard: StoredGuard | None) -> Interval:
    """All the time in which an entry replaced something, as far as its guard knows."""
    return ALL_TIME if guard is None or guard.guard.rewrite is None else guard.guard.rewrite.interval


def run(context: Context) -> CleanedUp:
    """One pass over all entries of the table. Raises what ``Retry.run`` raises; a pass that was cut off is run
    again."""
    context.retried("cleanup", lambda: _settle_guards(context))
    report = CleanedUp()
    planned = plan(context)
    for entry_id, names in planned.needed.items():
        _warn_of_loss(context, entry_id, names)
    for decision in planned.decisions:
        report.reasons[decision.entry_id] = decision.reason
        _act(context, decision, report)
    for entry_id, freed in context.retried("cleanup", lambda: _remove_hidden(context)).items():
        report.mark_hidden(entry_id, freed)
    return report


def _remove_hidden(context: Context) -> dict[str, Freed]:
    """Remove what is hidden for good from the registry and queue its objects; returns what went, by entry.

    The history of the time when it was visible is over: what hides it has left the lineage, which forgets it. And it
    stays hidden, whatever is written meanwhile: what hides it can neither be rolled back nor, before this has gone, be
    removed, and nobody can replace what he does not see.
    """
    stored = context.records.read()
    found = Beneath.read(context, stored).hidden_for_good(stored.lineage)
    if not found:
        return {}
    remember_removal(context, stored, 0)
    names, shards = {one.name for one in found}, {one.shard.name.path: one.shard for one in found}
    context.marker.mark(shards.values(), lambda record: record.name not in names, reason="overwritten")
    return _freed_by_entry(found)


def remove_replaced(context: Context, entry_id: str) -> Freed:
    """Remove the segments a COMPLETED entry replaced from the registry and queue their objects; returns what went.

    The entry carries the mark that it can no longer be reverted before the first segment goes: a revert that looked
    before and wrote after would make deleted data visible.
    """

    def attempt() -> Freed:
        stored = context.records.read()
        entry = stored.lineage.get(entry_id)
        if entry is None or entry.state is not EntryState.COMPLETED:
            return Freed()
        if stored.lineage.can_fall_back(entry_id) and (seen := _gone_back_to(context, entry)):
            _warn_of_loss(context, entry_id, seen)
            return Freed()
        if not stored.lineage.is_cleaning(entry_id):
            marked = stored.lineage.with_cleaning(entry_id, context.clock.now_ms())
            context.session.commit([context.records.write(stored, marked)])
            stored = context.records.read()
        guard = context.records.guard(entry_id)
        if hides := Beneath.read(context, stored, _time_of(guard)).uncovered_by(stored.lineage, entry):
            _LOG.info("Table %r: entry %s stays: %s.", context.table, entry_id, _still_hides(hides))
            return Freed()
        remember_removal(context, stored, guard.changed if guard else stored.zxid)
        gone = set(entry.segments_from)
        found = _replaced_in(context, stored.lineage, entry_id)
        return _mark(context, found, lambda record: record.name in gone, reason="replaced")

    return context.retried("cleanup", attempt)


def _warn_of_loss(context: Context, entry_id: str, needed: Collection[str]) -> None:
    """Readers have gone back to what a rewrite replaced: without it the rows would be gone."""
    _LOG.warning(
        "Table %r: entry %s, or what it was made from, has lost segments, so readers have gone back from it: %s stays. "
        "Revert the entry, and compact the table again.",
        context.table,
        entry_id,
        describe(needed),
    )


def remove_staged(context: Context, entry_id: str) -> Freed:
    """Remove everything staged into a REVERTED entry, whoever staged it, and queue its objects; returns what went.

    Its guard lets nothing new in.
    """

    def attempt() -> Freed:
        stored = context.records.read()
        entry = stored.lineage.get(entry_id)
        if entry is None or entry.state is not EntryState.REVERTED:
            return Freed()
        found = context.registry.of_entry(entry_id)
        if not found:
            return Freed()
        guard = context.records.guard(entry_id)
        if guard is not None and guard.guard.completed_at:
            remember_removal(context, stored, guard.changed)
        return _mark(context, found, lambda _: True, reason="reverted")

    return context.retried("cleanup", attempt)


def finish_forced_start(context: Context, started: StartedEntry) -> None:
    """Mark what a forced start has let go. An attempt that was killed before it came to that has left nothing but the
    entries' states, so its retry looks at all of them."""
    reverted = list(started.reverted)
    if started.resumed:
        reverted += [entry.entry_id for entry in context.records.read().lineage.in_state(EntryState.REVERTED)]
    for entry_id in started.cleaning:
        remove_replaced(context, entry_id)
    for entry_id in reverted:
        remove_staged(context, entry_id)


def _act(context: Context, decision: Decision, report: CleanedUp) -> None:
    """Carry a decision out. Each step looks again whether it still holds."""
    entry_id = decision.entry_id
    match decision.action:
        case Action.ABORT:
            if context.retried("cleanup", lambda: _abort(context, entry_id)):
                report.aborted.append(entry_id)
            report.mark(entry_id, remove_staged(context, entry_id))
        case Action.MARK | Action.HOLD:
            completed = decision.entry.state is EntryState.COMPLETED
            report.mark(entry_id, (remove_replaced if completed else remove_staged)(context, entry_id))
        case Action.DROP:
            if context.retried("cleanup", lambda: _drop(context, entry_id, decision.entry.state)):
                report.dropped.append(entry_id)


def _abort(context: Context, entry_id: str) -> bool:
    """A push nobody ended for too long is reverted first, by the same compare-and-set that fences its build."""
    stored = context.records.read()
    entry = stored.lineage.get(entry_id)
    now_ms = context.clock.now_ms()
    if entry is None or entry.state is not EntryState.IN_PROGRESS:
        return False
    if not rule_for(stored.lineage, entry, context.config(), now_ms).may_mark:
        return False
    ops = [context.records.write(stored, stored.lineage.put(entry.moved_to(EntryState.REVERTED, now_ms)))]
    guard = context.records.guard(entry_id)
    if guard is not None:
        ops += context.close_guard(guard, "cleanup")
    context.session.commit(ops)
    return True


def _settle_guards(context: Context) -> None:
    """Another tool that writes Pinot's lineage may end or revert our entry, and knows nothing of its guard. Until the
    guard says the same a build may go on staging, so nothing of the entry is removed or dropped before."""
    stored = context.records.read()
    settled = {entry.entry_id: entry.state for entry in stored.lineage if entry.state is not EntryState.IN_PROGRESS}
    for entry_id, guard in context.records.guards(settled).items():
        if guard.guard.state.value == settled[entry_id].value:
            continue
        ops: list[Op] = [Check(context.records.path, stored.version or 0)]
        if settled[entry_id] is EntryState.REVERTED:
            ops += context.close_guard(guard, "cleanup")
        else:
            ops.append(context.records.write_guard(entry_id, guard, guard.guard.moved_to(GuardState.COMPLETED)))
        context.session.commit(ops)


def _drop(context: Context, entry_id: str, state: EntryState) -> bool:
    """Drop an entry that hides nothing any more: lineage, guard and the sweep of its prefix in one transaction.

    The registry's root is checked too, so the past that can still be read is known to end where this entry does.
    """
    stored = context.records.read()
    entry = stored.lineage.get(entry_id)
    if entry is None or entry.state is not state:
        return False
    if not rule_for(stored.lineage, entry, context.config(), context.clock.now_ms()).may_drop:
        return False
    guard = context.records.guard(entry_id)
    if guard is not None and guard.guard.state.value != state.value:
        return False
    found = context.registry.stream(wanted_shards(stored.lineage, [entry]))
    if hidden_by(stored.lineage, [entry], found):
        return False
    if stored.lineage.can_fall_back(entry_id) and _gone_back_to(context, entry):
        return False
    ops = [context.records.write(stored, stored.lineage.without(entry_id))]
    if guard is not None:
        ops.append(Delete(context.records.guard_path(entry_id), guard.version))
    ended = entry.timestamp_ms + WRITE_GRACE_MS if state is EntryState.COMPLETED else 0
    ops += context.sweep(entry_id, guard, reason=state.value.lower(), not_before_ms=ended)
    ops.append(_root_op(context, guard, context.registry.root()))
    context.session.commit(ops)
    return True


def _mark(context: Context, found: Iterable[Shard], unwanted: Callable[[SegmentRecord], bool], *, reason: str) -> Freed:
    freed = Freed()

    def keep(record: SegmentRecord) -> bool:
        nonlocal freed
        if not unwanted(record):
            return True
        freed += Freed.of([record])
        return False

    context.marker.mark(found, keep, reason=reason)
    return freed


def _replaced_in(context: Context, lineage: Lineage, entry_id: str) -> Iterator[Shard]:
    """The shards that can hold what an entry replaced. A push still in progress may have staged the same name: that one
    was never visible, and is for that push's own end to decide."""
    return context.registry.stream(lambda name: name.entry_id != entry_id and is_settled(lineage, name.entry_id))


def _root_op(context: Context, guard: StoredGuard | None, root: StoredRoot) -> Op:
    """The past can no longer be told apart at the zxid at which a dropped entry was settled."""
    changed = Root(root.root.removed_at, max(root.root.history_floor, guard.changed if guard else 0))
    if changed == root.root:
        return Check(context.registry.path, root.version)
    return set_root(context, root, changed)
