"""Clean-up of the lineage in two cycles (Pinot RetentionManager): one marks segments, a later one drops the entry.

An entry may only leave the lineage when the segments it hides have left the registry: otherwise they would appear.
What is done with an entry is decided in ``rules.py``. Every decision is a compare-and-set on the lineage it was made
on, and is made again from what a lost one reads. An entry that cannot be dealt with does not hold up the others.

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

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry, Overwrite
from airflow_provider_segments.core.lineage.guard import CLEANUP, GuardState, StoredGuard
from airflow_provider_segments.core.lineage.hiding import is_settled
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.names import describe_names
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.registry import StoredRoot
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.end import remove_rest
from airflow_provider_segments.core.replacement.start import StartedEntry
from airflow_provider_segments.core.retention import drop
from airflow_provider_segments.core.retention.beneath import (
    HiddenSegment,
    hidden_for_good,
    lies_beneath,
    settled_overwrites,
)
from airflow_provider_segments.core.retention.rules import (
    WRITE_GRACE_MS,
    Action,
    Decision,
    Freed,
    apply_decision,
    decide,
    hidden_by,
    needs_look,
    rule_for,
    wanted_shards,
)
from airflow_provider_segments.core.upsert.record import without_waiting
from airflow_provider_segments.core.zookeeper import Check, Delete, Op
from airflow_provider_segments.exceptions import (
    ContentionError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    RecordTooLargeError,
)

_LOG = logging.getLogger(__name__)
_FALLEN_BACK = "readers have fallen back from it: segments were lost; revert it"
_HIDDEN = "overwrites that nobody can roll back any more hold all of its time"
_HIDES = "it overwrote time in which older segments are still registered; it stays until they are gone"


@dataclass(slots=True)
class CleanedUp:
    """What one pass did, or would do: entries aborted for their age, segments marked for deletion and their bytes,
    entries dropped. ``reasons`` has every entry that was there, the ones that were left alone included, and those that
    had left and had brought something that is hidden for good. ``removed`` says that the table itself, which had been
    dropped, is gone."""

    aborted: list[str] = field(default_factory=list)
    marked: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    bytes: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    removed: bool = False

    def mark(self, entry_id: str, freed: Freed) -> None:
        """Note what of an entry was marked, if anything was."""
        if freed.segments:
            self.marked[entry_id] = freed.segments
            self.bytes[entry_id] = freed.bytes

    def mark_hidden(self, entry_id: str, freed: Freed) -> None:
        """Note what an entry had brought, and overwrites hide for good."""
        self.mark(entry_id, freed)
        self.reasons[entry_id] = _HIDDEN


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """What a pass would do with each entry, and the lineage as it would be then. ``fallen_back`` has, by rewrites that
    are old enough and stay because readers have fallen back from them, what stays with them; ``hidden`` what is hidden
    for good, by the entries that had brought it."""

    decisions: tuple[Decision, ...]
    outcome: Lineage
    fallen_back: Mapping[str, Collection[str]]
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
            if decision.action not in (Action.KEEP, Action.SETTLE):
                report.mark(decision.entry_id, decision.freed)
        for entry_id, freed in self.hidden.items():
            report.mark_hidden(entry_id, freed)
        return report


def plan(context: TableContext) -> CleanupPlan:
    """What :func:`run` would do now. Writes nothing. Raises :class:`TableNotFoundError` and
    :class:`CorruptRecordError`."""
    config, now_ms = context.config(), context.clock.now_ms()
    stored = context.records.read()
    lineage = stored.lineage
    look = needs_look(lineage, config, now_ms)
    shards = context.registry.stream(wanted_shards(lineage, look)) if look else ()
    hidden = hidden_by(lineage, look, shards)
    back = {one.entry_id: seen for one in look if (seen := _fallen_back_to(context, lineage, one))}
    decisions: list[Decision] = []
    for decision in decide(lineage, hidden, config, now_ms):  # each under what those before it will have left
        if decision.entry_id in back:
            decision = Decision(decision.entry, Action.KEEP, _FALLEN_BACK)
        elif decision.action is Action.DROP and lineage.dropped_by == decision.entry_id:
            if left := drop.waits_for(context, lineage):
                decision = Decision(decision.entry, Action.KEEP, f"it dropped the table, and waits for {left}")
        elif decision.action is Action.DROP and _hides_something(context, lineage, decision.entry_id):
            decision = Decision(decision.entry, Action.KEEP, _HIDES)
        decisions.append(decision)
        lineage = apply_decision(lineage, decision, now_ms)
    return CleanupPlan(tuple(decisions), lineage, back, _freed_by_entry(_hidden_for_good(context, lineage)))


def _freed_by_entry(hidden: Iterable[HiddenSegment]) -> dict[str, Freed]:
    freed: dict[str, Freed] = {}
    for segment in hidden:
        freed[segment.entry_id] = freed.get(segment.entry_id, Freed()) + Freed.of([segment.record])
    return freed


def _fallen_back_to(context: TableContext, lineage: Lineage, entry: LineageEntry) -> list[str]:
    """What stays because readers have fallen back from ``entry``, a rewrite that can still fall back: the inputs that
    they see instead, or would once an overwrite is rolled back, and what is left of the rewrite itself, which the entry
    keeps out of sight."""
    chunk = lineage.rewrites.get(entry.entry_id)
    if chunk is None:
        return []
    fallen_back, registered = context.reader.fallen_back(lineage, chunk)
    if entry.entry_id not in fallen_back:
        return []
    return [name for name in (*entry.segments_from, *entry.segments_to) if name in registered]


def run(context: TableContext) -> CleanedUp:
    """One pass over all entries of the table. Raises what ``Retry.run`` raises; a pass that was cut off is run
    again."""
    context.retried("cleanup", lambda: _settle_guards(context))
    report = CleanedUp()
    planned = plan(context)
    for entry_id, names in planned.fallen_back.items():
        _warn_of_loss(context, entry_id, names)
    for decision in sorted(planned.decisions, key=_shrinking_first):
        report.reasons[decision.entry_id] = decision.reason
        try:
            _act(context, decision, report)
        except RecordTooLargeError as error:
            report.reasons[decision.entry_id] = f"put off: {error}"
            _LOG.warning("Table %r: clean-up of entry %s is put off: %s", context.table, decision.entry_id, error)
    if report.removed:
        return report
    for entry_id, freed in context.retried("cleanup", lambda: _remove_hidden(context)).items():
        report.mark_hidden(entry_id, freed)
    context.locks.prune()
    if report.dropped:  # by the time an entry is dropped, what it hid has left the registry
        context.registry.remove_empty_chunks()
    return report


def _shrinking_first(decision: Decision) -> int:
    """What makes the lineage smaller, or leaves its size, comes before what needs room in it for a mark."""
    return (Action.DROP, Action.ABORT, Action.KEEP, Action.SETTLE, Action.MARK).index(decision.action)


def _remove_hidden(context: TableContext) -> dict[str, Freed]:
    """Remove what is hidden for good from the registry and queue its objects; returns what went, by entry.

    It stays hidden, whatever is written meanwhile: what hides it can neither be rolled back nor, before this has gone,
    leave the lineage, and nobody can replace what he does not see. The history of the time when it was visible is over.
    """
    stored = context.records.read()
    hidden = _hidden_for_good(context, stored.lineage)
    if not hidden:
        return {}
    guards = context.records.guards({segment.entry_id for segment in hidden} & stored.lineage.entries.keys())
    context.registry.remember_removal(stored.zxid, max((guard.changed for guard in guards.values()), default=0))
    names = {segment.record.name for segment in hidden}
    shards = {segment.shard.name.path: segment.shard for segment in hidden}
    context.marker.mark(shards.values(), lambda record: record.name not in names, reason="overwritten")
    return _freed_by_entry(hidden)


def remove_replaced(context: TableContext, entry_id: str) -> Freed:
    """Remove the segments a COMPLETED entry replaced from the registry and queue their objects; returns what went.

    The entry carries the mark that it can no longer be reverted before the first segment goes: a revert that looked
    before and wrote after would make deleted data visible.
    """

    def attempt() -> Freed:
        stored = context.records.read()
        entry = stored.lineage.get(entry_id)
        if entry is None or entry.state is not EntryState.COMPLETED:
            return Freed()
        if seen := _fallen_back_to(context, stored.lineage, entry):
            _warn_of_loss(context, entry_id, seen)
            return Freed()
        stored = _marked(context, stored, entry)
        gone = set(entry.segments_from)
        if not gone:
            return Freed()
        guard = context.records.guard(entry_id)
        context.registry.remember_removal(stored.zxid, guard.changed if guard else stored.zxid)
        found = _replaced_in(context, stored.lineage, entry_id)
        return _mark(context, found, lambda record: record.name in gone, reason="replaced")

    return context.retried("cleanup", attempt)


def _marked(context: TableContext, stored: StoredLineage, entry: LineageEntry) -> StoredLineage:
    """The lineage once it says that what the entry hides is being deleted. Raises :class:`CommitConflictError` when the
    entry, or anything else, has changed since ``stored`` was read."""
    if stored.lineage.is_cleaning(entry.entry_id):
        return stored
    marked = stored.lineage.with_cleaning(entry.entry_id, context.clock.now_ms())
    written = context.session.commit([context.records.write(stored, marked)])[0]
    return StoredLineage(marked, written.version, written.mzxid)


def _warn_of_loss(context: TableContext, entry_id: str, needed: Collection[str]) -> None:
    """Readers have fallen back to what a rewrite replaced: without it the rows would be gone."""
    _LOG.warning(
        "Table %r: entry %s, or what it was made from, has lost segments, so readers have fallen back from it: "
        "%s stays. Revert the entry, and compact the table again.",
        context.table,
        entry_id,
        describe_names(needed),
    )


def remove_staged(context: TableContext, entry_id: str) -> Freed:
    """Remove everything staged into a REVERTED entry, whoever staged it, and queue its objects; returns what went.

    Its guard lets nothing new in. The entry carries the mark that it can no longer be brought back before the first
    segment goes: an unrevert that looked before and wrote after would miss some of them.
    """

    def attempt() -> Freed:
        stored = context.records.read()
        entry = stored.lineage.get(entry_id)
        if entry is None or entry.state is not EntryState.REVERTED:
            return Freed()
        if not rule_for(stored.lineage, entry, context.config(), context.clock.now_ms()).may_mark:
            return Freed()
        found = context.registry.of_entry(entry_id)
        if not found:
            return Freed()
        stored = _marked(context, stored, entry)
        guard = context.records.guard(entry_id)
        if guard is not None and guard.guard.completed_at:
            context.registry.remember_removal(stored.zxid, guard.changed)
        return _mark(context, found, lambda _: True, reason="reverted")

    return context.retried("cleanup", attempt)


def finish_forced_start(context: TableContext, started: StartedEntry) -> None:
    """Mark what a forced start has let go. An attempt that was killed before it came to that has left nothing but the
    entries' states, so its retry looks at all of them.

    Raises what ``Retry.run`` raises, in words that say that the entry is there.
    """
    try:
        _mark_let_go(context, started)
    except (ContentionError, MetadataUnavailableError, OutcomeUnknownError) as error:
        raise type(error)(
            f"start of table {context.table!r}: entry {started.entry_id} is made, but not all that it let go is marked "
            f"for deletion yet; a retry of the start goes on with that, and so does the next retention pass ({error})"
        ) from error


def _mark_let_go(context: TableContext, started: StartedEntry) -> None:
    reverted = list(started.reverted)
    if started.resumed:
        reverted += [entry.entry_id for entry in context.records.read().lineage.in_state(EntryState.REVERTED)]
    for entry_id in started.cleaning:
        remove_replaced(context, entry_id)
    for entry_id in reverted:
        remove_staged(context, entry_id)


def _act(context: TableContext, decision: Decision, report: CleanedUp) -> None:
    """Carry a decision out. Each step looks again whether it still holds."""
    entry_id = decision.entry_id
    match decision.action:
        case Action.ABORT:
            if context.retried("cleanup", lambda: _abort(context, entry_id)):
                report.aborted.append(entry_id)
            report.mark(entry_id, remove_staged(context, entry_id))
        case Action.MARK | Action.SETTLE:
            completed = decision.entry.state is EntryState.COMPLETED
            report.mark(entry_id, (remove_replaced if completed else remove_staged)(context, entry_id))
        case Action.DROP if context.records.read().lineage.dropped_by == entry_id:
            report.removed = context.retried("cleanup", lambda: drop.remove_table(context, entry_id))
            report.dropped += [entry_id] if report.removed else []
        case Action.DROP:
            remove_rest(context, entry_id)
            if context.retried("cleanup", lambda: _drop(context, entry_id, decision.entry.state)):
                report.dropped.append(entry_id)


def _abort(context: TableContext, entry_id: str) -> bool:
    """A push nobody ended for too long is reverted first, by the same compare-and-set that fences its build."""
    stored = context.records.read()
    entry = stored.lineage.get(entry_id)
    now_ms = context.clock.now_ms()
    if entry is None or entry.state is not EntryState.IN_PROGRESS:
        return False
    if not rule_for(stored.lineage, entry, context.config(), now_ms).may_mark:
        return False
    aborted = stored.lineage.put(entry.moved_to(EntryState.REVERTED, now_ms)).with_cleaning(entry_id, now_ms)
    ops: list[Op] = [context.records.write(stored, aborted)]
    guard = context.records.guard(entry_id)
    if guard is not None:
        ops += context.close_guard(guard, CLEANUP)
    context.session.commit(ops)
    if guard is not None:
        context.release(entry_id, guard.guard)
    return True


def _settle_guards(context: TableContext) -> None:
    """Another tool that writes Pinot's lineage may end or revert our entry, and knows nothing of its guard. Until the
    guard says the same a build may go on staging, so nothing of the entry is removed or dropped before."""
    stored = context.records.read()
    settled = {entry.entry_id: entry.state for entry in stored.lineage if entry.state is not EntryState.IN_PROGRESS}
    for entry_id, guard in context.records.guards(settled).items():
        if guard.guard.state.value == settled[entry_id].value:
            continue
        if settled[entry_id] is EntryState.COMPLETED:
            check = Check(context.records.path, stored.version)
            completed = context.records.write_guard(entry_id, guard, guard.guard.moved_to(GuardState.COMPLETED))
            context.session.commit([check, completed])
            continue
        lineage = stored.lineage
        if guard.guard.state is GuardState.OPEN:  # never completed: there is nothing to bring back
            lineage = lineage.with_cleaning(entry_id, context.clock.now_ms())
        close = context.close_guard(guard, CLEANUP)
        written = context.session.commit([context.records.write(stored, lineage), *close])[0]
        stored = StoredLineage(lineage, written.version, written.mzxid)


def _drop(context: TableContext, entry_id: str, state: EntryState) -> bool:
    """Drop an entry that hides nothing any more: lineage, guard and the sweep of its prefix in one transaction.

    The registry's root is checked too, so the past that can still be read is known to end where this entry does.
    """
    stored = context.records.read()
    lineage, entry = stored.lineage, stored.lineage.get(entry_id)
    if entry is None or entry.state is not state:
        return False
    if state is EntryState.COMPLETED and entry_id in lineage.partial:
        return False  # what it staged beside its ``to`` is not removed yet
    if not rule_for(lineage, entry, context.config(), context.clock.now_ms()).may_drop:
        return False
    guard = context.records.guard(entry_id)
    if guard is not None and guard.guard.state.value != state.value:
        return False
    if hidden_by(lineage, [entry], context.registry.stream(wanted_shards(lineage, [entry]))):
        return False
    if _fallen_back_to(context, lineage, entry) or _hides_something(context, lineage, entry_id):
        return False
    left = lineage.without(entry_id)
    if state is EntryState.REVERTED:
        left = without_waiting(left, entry_id)
    ops: list[Op] = [context.records.write(stored, left)]
    if guard is not None:
        ops.append(Delete(context.records.guard_path(entry_id), guard.version))
    ended = entry.timestamp_ms + WRITE_GRACE_MS if state is EntryState.COMPLETED else 0
    ops += context.sweep(entry_id, guard, reason=state.value.lower(), not_before_ms=ended)
    ops.append(_root_op(context, guard, context.registry.root()))
    context.session.commit(ops)
    return True


def _hidden_for_good(context: TableContext, lineage: Lineage) -> list[HiddenSegment]:
    """See :mod:`.beneath`. Reads nothing while no overwrite is settled."""
    return hidden_for_good(lineage, _shards_in(context, settled_overwrites(lineage)))


def _hides_something(context: TableContext, lineage: Lineage, entry_id: str) -> bool:
    """Return True if the COMPLETED entry is an overwrite that something still lies beneath."""
    held = [one for one in lineage.overwrites_in_force if one.entry_id == entry_id]
    return lies_beneath(held, _shards_in(context, held))


def _shards_in(context: TableContext, overwrites: Iterable[Overwrite]) -> Iterable[Shard]:
    """The shards that share time with one of ``overwrites``, each once."""
    found: dict[str, Shard] = {}
    for one in overwrites:
        interval = Interval(one.start_ms, one.end_ms)
        read = context.registry.read(lambda name: name.path not in found, interval)
        found.update((shard.name.path, shard) for shard in read.shards)
    return found.values()


def _mark(
    context: TableContext, found: Iterable[Shard], unwanted: Callable[[SegmentRecord], bool], *, reason: str
) -> Freed:
    sizes: list[int] = []

    def keep(record: SegmentRecord) -> bool:
        if not unwanted(record):
            return True
        sizes.append(record.stored_bytes)
        return False

    context.marker.mark(found, keep, reason=reason)
    return Freed(len(sizes), sum(sizes))


def _replaced_in(context: TableContext, lineage: Lineage, entry_id: str) -> Iterator[Shard]:
    """The shards that can hold what an entry replaced. A push still in progress may have staged the same name: that one
    was never visible, and is for that push's own end to decide."""
    return context.registry.stream(lambda name: name.entry_id != entry_id and is_settled(lineage, name.entry_id))


def _root_op(context: TableContext, guard: StoredGuard | None, root: StoredRoot) -> Op:
    """The past can no longer be told apart at the zxid at which a dropped entry was settled."""
    changed = root.root.with_floor(guard.changed if guard else 0)
    if changed == root.root:
        return Check(context.registry.path, root.version)
    return context.registry.write_root(root, changed)
