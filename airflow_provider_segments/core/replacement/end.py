"""``end``: the switch. After every check, one transaction completes the entry, and readers see ``to`` instead of
``from``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry, Overwrite
from airflow_provider_segments.core.lineage.guard import GuardState, StoredGuard
from airflow_provider_segments.core.lineage.hiding import is_settled
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.names import check_segment_names, describe_names, entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.rules import check_to_names
from airflow_provider_segments.core.replacement.staged import Staged, sort_out
from airflow_provider_segments.core.storage.base import entry_prefix
from airflow_provider_segments.core.upsert.record import Switch, Waiting
from airflow_provider_segments.core.versions.order import (
    SegmentTime,
    find_newer,
    find_overtaken,
    overwrites_above,
)
from airflow_provider_segments.core.versions.overwrites import merge_touching
from airflow_provider_segments.core.zookeeper import Check, CommitConflictError, Op
from airflow_provider_segments.exceptions import EndRefusedError, EntryNotFoundError
from airflow_provider_segments.text import count

INPUTS_OVERWRITTEN = "inputs-overwritten"
"""The rule that refuses a rewrite when what readers see of its inputs has changed since they were read."""

NOT_BUILT = "not-built"
"""The rule that refuses an entry into which nothing was built, of work that has completed another one."""


@dataclass(frozen=True, slots=True)
class EndedEntry:
    """A completed replacement. ``switch_ms`` is how long the switching transaction took; ``already`` says that the
    entry had been completed before this call (then ``rows`` and ``bytes`` are those that were staged)."""

    entry_id: str
    segments_from: tuple[str, ...]
    segments_to: tuple[str, ...]
    rows: int
    bytes: int
    already: bool
    switch_ms: float


def end(
    context: TableContext,
    entry_id: str,
    segments_to: Sequence[str] | None = None,
    *,
    allow_empty: bool = False,
    switch: Switch | None = None,
) -> EndedEntry:
    """Complete the entry. ``segments_to`` may name a part of what was staged; the rest is marked for deletion.
    ``switch`` says what the end means to the versions of an upsert table; without one, its rows wait.

    Ending a completed entry succeeds and changes nothing. Raises :class:`EntryNotFoundError`, :class:`EndRefusedError`
    with the rule that refuses (then nothing was changed), storage errors, and what ``Retry.run`` raises.
    """
    wanted = None if segments_to is None else check_segment_names(segments_to)

    def attempt() -> EndedEntry:
        stored = context.records.read()
        entry = stored.lineage.get(entry_id)
        if entry is None:
            return _cleaned_away(context, stored.lineage, entry_id)
        if entry.state is EntryState.COMPLETED:
            return already(context, entry)
        prepared = _prepare(context, entry, wanted, allow_empty=allow_empty)
        prepared = replace(prepared, switch=switch)
        try:
            ended = context.retried("end", lambda: switch_on(context, prepared))
        except GuardChangedError as broken:
            raise broken.conflict from broken
        _finish(context, prepared.guard)
        return ended

    return context.retried("end", attempt)


@dataclass(slots=True)
class _Seen:
    """What the tries of one switch have seen of the registry. While appends go on, each try would else be overtaken by
    another one before it had read everything again.

    ``root_version`` is the registry root's version at which all that the push replaces was there: every removal changes
    the root first. ``times`` are segments in the time of an overwrite, by shard: a shard of a settled entry only ever
    loses segments, and one that was lost hides nothing.
    """

    root_version: int = -1
    times: dict[str, list[SegmentTime]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A push that may be switched on as long as its guard stays at the version that sealed it. ``records`` become its
    ``to``, with ``times`` their time chunks and versions. ``attempts`` brought them; ``None`` where nothing else is
    registered. ``creates`` register them, where they are not staged yet (else ``None``)."""

    guard: StoredGuard
    records: dict[str, SegmentRecord]
    times: tuple[SegmentTime, ...]
    attempts: frozenset[str] | None
    creates: tuple[Op, ...] | None = None
    seen: _Seen = field(default_factory=_Seen)
    switch: Switch | None = None

    def overwrites(self) -> tuple[Overwrite, ...]:
        """The time that the push overwrites: what it was started for, and the time chunks of what it brings under an
        EXCLUSIVE lock."""
        guard, entry_id = self.guard.guard, self.guard.entry_id
        brought = (
            Overwrite(entry_id, one.interval.start_ms, one.interval.end_ms, one.version)
            for one in self.times
            if guard.exclusive and guard.version_over(one.interval) == one.version
        )
        asked = (Overwrite(entry_id, one.start_ms, one.end_ms, one.version) for one in guard.overwrites)
        return merge_touching((*asked, *brought))


class GuardChangedError(Exception):
    """The guard has changed since it was sealed or read: what was checked may no longer be what is staged."""

    def __init__(self, conflict: CommitConflictError) -> None:
        super().__init__(str(conflict))
        self.conflict = conflict


def _prepare(
    context: TableContext, entry: LineageEntry, wanted: tuple[str, ...] | None, *, allow_empty: bool
) -> Prepared:
    """Seal the entry, then check everything that cannot change while it stays sealed."""
    _check_not_reverted(context, entry)
    guard = _seal(context, entry.entry_id)
    staged = sort_out(guard.guard, context.registry.of_entry(entry.entry_id))
    records = _chosen(context, entry, guard, staged, wanted)
    if not records:
        check_may_be_empty(context, entry, guard, allow_empty=allow_empty)
    check_objects(context, entry.entry_id, records)
    times = [
        SegmentTime(record.name, parse_chunk(shard.chunk_of(record)), record.version)
        for shard in staged.current
        for record in shard.records
        if record.name in records
    ]
    is_partial = bool(staged.leftover) or sum(len(shard.records) for shard in staged.current) > len(records)
    attempts = frozenset(shard.name.attempt_name for shard in staged.current) if is_partial else None
    return Prepared(guard, records, tuple(times), attempts)


def check_may_be_empty(context: TableContext, entry: LineageEntry, guard: StoredGuard, *, allow_empty: bool) -> None:
    """Nothing is staged. That may be meant; but an entry into which nothing was ever built, of work that has built and
    completed another one, is the trace of a start that was run again without its build: to end it would take away what
    the other one has brought."""
    earlier = None if guard.guard.stages else _completed_by(context, guard.guard.identity)
    if earlier is not None:
        raise _refused(
            context,
            entry.entry_id,
            NOT_BUILT,
            f"nothing was built into this entry: the same work has completed entry {earlier} before, "
            "and was started again without its build",
            "Run the build again, too, and not only what follows it; or leave everything as it is.",
        )
    if allow_empty:
        return
    replaced = len(entry.segments_from)
    hint = f"An empty end, if it is allowed, only removes what the entry replaces ({count(replaced, 'segment')})."
    if not guard.guard.stages:
        hint = f"Run the build first. {hint}"
    raise _refused(context, entry.entry_id, "nothing-staged", "no segment was staged", hint)


def _completed_by(context: TableContext, identity: str | None) -> str | None:
    """A COMPLETED entry into which ``identity`` has built."""
    completed = [entry.entry_id for entry in context.records.read().lineage.in_state(EntryState.COMPLETED)]
    guards = context.records.guards(completed) if identity else {}
    found = (one for one, stored in guards.items() if stored.guard.identity == identity and stored.guard.stages)
    return next(found, None)


def _seal(context: TableContext, entry_id: str) -> StoredGuard:
    """From here on nothing is staged, and no other ``end`` of the entry can go on, without breaking the seal: each
    changes the guard, and everything that this ``end`` writes checks the guard's version."""
    stored = context.guard(entry_id)
    if stored.guard.state is not GuardState.OPEN:
        raise CommitConflictError(Check(context.records.guard_path(entry_id), stored.version), "settled meanwhile")
    sealed = stored.guard.sealed(context.clock.new_id())
    written = context.session.commit([context.records.write_guard(entry_id, stored, sealed)])[0]
    return StoredGuard(entry_id, sealed, written.version, stored.born, written.mzxid)


def _chosen(
    context: TableContext, entry: LineageEntry, guard: StoredGuard, staged: Staged, wanted: tuple[str, ...] | None
) -> dict[str, SegmentRecord]:
    """The staged records that become ``to``, by name."""
    by_name = _by_name(context, entry, staged)
    if wanted is None:
        _check_stages_done(context, entry, guard)
        if not entry.joined_to:
            _check_complete(context, entry, guard, len(by_name))
        wanted = entry.segments_to or tuple(by_name)
    elif entry.joined_to and (extra := set(wanted).difference(entry.segments_to)):
        raise _refused(
            context,
            entry.entry_id,
            "not-announced",
            f"{describe_names(extra)} was not announced when the entry was started",
        )
    if guard.guard.rewrite is not None and len(set(wanted)) < len(by_name):
        raise _refused(
            context,
            entry.entry_id,
            "rewrite-in-part",
            f"the rows of what it replaces are in {count(len(by_name), 'segment')}, "
            f"and only {len(set(wanted))} of them would be visible",
            "End it with all of them.",
        )
    if absent := [name for name in wanted if name not in by_name]:
        raise _refused(
            context,
            entry.entry_id,
            "not-staged",
            f"{describe_names(absent)} of 'to' was not staged",
            "Run the build again.",
        )
    return {name: by_name[name] for name in wanted}


def _by_name(context: TableContext, entry: LineageEntry, staged: Staged) -> dict[str, SegmentRecord]:
    """The staged records by name. Two of one name would both become visible, whichever was chosen."""
    by_name: dict[str, SegmentRecord] = {}
    total = 0
    for record in staged.records():
        by_name[record.name] = record
        total += 1
    if len(by_name) != total:
        raise _refused(
            context,
            entry.entry_id,
            "staged-twice",
            f"{count(total, 'segment')} were staged under {count(len(by_name), 'name')}",
            "Give each stager names of its own and run the builds again.",
        )
    return by_name


def _check_complete(context: TableContext, entry: LineageEntry, guard: StoredGuard, found: int) -> None:
    """What is registered is what the stages say they have staged: no leftover of a failed call, nothing lost."""
    staged = sum(stage.segments for stage in guard.guard.stages.values())
    if staged != found:
        raise _refused(
            context,
            entry.entry_id,
            "staged-incomplete",
            f"{staged} segments were staged, {found} are registered",
            "Run the build again, or name the segments that are to become visible.",
        )


def _check_stages_done(context: TableContext, entry: LineageEntry, guard: StoredGuard) -> None:
    for stager, stage in guard.guard.stages.items():
        if not stage.done:
            raise _refused(
                context,
                entry.entry_id,
                "stage-unfinished",
                f"attempt {stage.attempt} of {stager!r} was opened but has not staged its segments",
                "Run the build again, or revert the entry.",
            )


def switch_on(context: TableContext, prepared: Prepared) -> EndedEntry:
    """The one compare-and-set. The lineage is read anew for every try; the guard's version vouches for the rest.

    Raises :class:`GuardChangedError`, :class:`EndRefusedError`, and what the session's ``commit`` does.
    """
    guard, records = prepared.guard, prepared.records
    stored = context.records.read()
    entry = stored.lineage.find(guard.entry_id)
    if entry.state is EntryState.COMPLETED:
        if prepared.creates is not None:  # by this attempt, whose reply was lost, or by another one: the guard tells
            check = Check(context.records.guard_path(entry.entry_id), guard.version)
            raise GuardChangedError(CommitConflictError(check, "settled meanwhile"))
        return already(context, entry)
    _check_not_reverted(context, entry)
    context.check_not_dropped(stored.lineage, EndRefusedError, "end")
    fence = context.fence(guard.guard)  # before what follows from a lost lock is told
    _check_names(context, stored, entry, records)
    _check_order(context, stored.lineage, entry, prepared)
    _check_inputs(context, stored.lineage, entry, prepared)
    _check_replaces_all(context, stored, entry, guard)
    checks = _check_from(context, stored, entry, prepared)
    _check_seen(context, stored.lineage, entry)
    changed = _completed(stored.lineage, entry, prepared, context.clock.now_ms())
    settled = guard.guard.moved_to(GuardState.COMPLETED, context.clock.new_id())
    write = context.records.write(stored, changed)
    before = context.clock.monotonic()
    try:
        own = [context.records.write_guard(entry.entry_id, guard, settled), *(prepared.creates or ())]
        context.commit([write, *own, *checks, *fence], "ended", entry.entry_id, guard.guard.identity)
    except CommitConflictError as conflict:
        if conflict.op in own:
            raise GuardChangedError(conflict) from conflict
        raise
    took = (context.clock.monotonic() - before) * 1000
    rows, size = _totals(records.values())
    return EndedEntry(entry.entry_id, entry.segments_from, tuple(records), rows, size, already=False, switch_ms=took)


def _completed(lineage: Lineage, entry: LineageEntry, prepared: Prepared, now_ms: int) -> Lineage:
    """The lineage after the switch, with the marks of the entry."""
    changed = lineage.put(entry.moved_to(EntryState.COMPLETED, now_ms, prepared.records))
    changed = changed.with_overwrite(prepared.overwrites())
    rewrite = prepared.guard.guard.rewrite
    if rewrite is not None:
        changed = changed.with_rewrite(entry.entry_id, rewrite.interval)
    if lineage.upsert is not None:
        changed = (prepared.switch or Waiting(entry.entry_id)).switch(lineage, changed)
    return changed if prepared.attempts is None else changed.with_partial(entry.entry_id, prepared.attempts)


def _check_not_reverted(context: TableContext, entry: LineageEntry) -> None:
    if entry.state is EntryState.REVERTED:
        raise _refused(context, entry.entry_id, "reverted", "the entry was REVERTED", "Start a new replacement.")


def _check_names(
    context: TableContext, stored: StoredLineage, entry: LineageEntry, records: dict[str, SegmentRecord]
) -> None:
    """The lineage may have moved since the names were staged, so the rules of start are asked once more."""
    tag = entry_tag(entry.entry_id)
    plain = {name for name in records if tag not in name}
    if not plain:
        return
    hint = "Build again under new names."
    if conflict := check_to_names(stored.lineage, entry.entry_id, plain):
        raise _refused(context, entry.entry_id, conflict[0], conflict[1], hint)
    if present := plain & context.settled_names(stored.lineage, entry.entry_id):
        raise _refused(
            context,
            entry.entry_id,
            "to-registered",
            f"{describe_names(present)} is already registered in the table",
            hint,
        )


def _check_order(context: TableContext, lineage: Lineage, entry: LineageEntry, prepared: Prepared) -> None:
    """The push is the latest wherever it shares time with an overwrite: see :mod:`..versions.order`."""
    if prepared.guard.guard.rewrite is not None:
        return  # it brings no rows of its own, and its inputs are in their places
    overwrites = prepared.overwrites()
    again = "Abort it, and push again under an EXCLUSIVE lock: a new entry has a later version."
    own = [SegmentTime("what it overwrites", Interval(one.start_ms, one.end_ms), one.version) for one in overwrites]
    if overtaken := find_overtaken(lineage, [*prepared.times, *own]):
        raise _refused(
            context,
            entry.entry_id,
            "overtaken",
            f"{overtaken.name!r} of {overtaken.interval} would lie beneath an overwrite that was completed meanwhile",
            again if overwrites else "Run the build again: it takes a new lock, and with it a later version.",
        )
    if overwrites and (newer := find_newer(overwrites, _registered_times(context, lineage, overwrites, prepared))):
        raise _refused(
            context,
            entry.entry_id,
            "overtaken",
            f"{newer.name!r} of {newer.interval} was pushed under a later version than this overwrite has",
            again,
        )


def _registered_times(
    context: TableContext, lineage: Lineage, overwrites: Sequence[Overwrite], prepared: Prepared
) -> Iterable[SegmentTime]:
    """All segments in the time of ``overwrites`` whose push was completed, also those that were rolled back."""
    start = min(one.start_ms for one in overwrites)
    interval = Interval(start, max(one.end_ms for one in overwrites))
    running = {one.entry_id for one in lineage.in_state(EntryState.IN_PROGRESS)}
    times = prepared.seen.times
    read = context.registry.read(lambda name: name.entry_id not in running and name.path not in times, interval)
    for shard in read.shards:
        times[shard.name.path] = [
            SegmentTime(record.name, parse_chunk(shard.chunk_of(record)), record.version) for record in shard.records
        ]
    return (one for some in times.values() for one in some)


def _check_inputs(context: TableContext, lineage: Lineage, entry: LineageEntry, prepared: Prepared) -> None:
    """What a rewrite has read of its inputs is what readers see of them. It has waited for every overwrite that could
    be rolled back, so only one that has come or was rolled back meanwhile could have changed that."""
    rewrite = prepared.guard.guard.rewrite
    if rewrite is None:
        return
    if overwrites_above(lineage, rewrite.interval, rewrite.oldest).difference(rewrite.overwrites):
        raise _refused(
            context,
            entry.entry_id,
            INPUTS_OVERWRITTEN,
            f"an overwrite in {rewrite.interval} was completed or rolled back since its inputs were read",
            "Run the work again.",
        )


def _check_replaces_all(context: TableContext, stored: StoredLineage, entry: LineageEntry, guard: StoredGuard) -> None:
    """A push of a REFRESH table that replaces nothing took the table for empty. Something may have been brought back
    since: two snapshots would be visible."""
    if entry.joined_from or not guard.guard.refreshes:
        return
    if visible := context.visible_under(stored):
        raise _refused(
            context,
            entry.entry_id,
            "refresh-must-replace",
            f"the REFRESH table shows {count(len(visible), 'segment')} not there when the entry was started",
            "Start a new replacement.",
        )


def check_objects(context: TableContext, entry_id: str, records: Mapping[str, SegmentRecord]) -> None:
    """Every object of ``to`` exists with the recorded size, by one listing of the entry's prefix."""
    if not records:
        return
    prefix = entry_prefix(context.table, entry_id)
    sizes = {one.key: one.bytes for one in context.cluster.storage.list(prefix)}
    expected = {prefix + record.file: record.bytes for record in records.values()}
    if expected.items() <= sizes.items():
        return
    if missing := [key for key in expected if key not in sizes]:
        detail = f"{len(missing)} of {len(expected)} objects do not exist: {describe_names(missing)}"
        raise _refused(context, entry_id, "object-missing", detail, "Run the build again.")
    wrong = [key for key, size in expected.items() if sizes[key] != size]
    detail = (
        f"{len(wrong)} of {len(expected)} objects have another size than was staged: "
        f"{wrong[0]!r} has {sizes[wrong[0]]:,} bytes, not {expected[wrong[0]]:,}"
    )
    raise _refused(context, entry_id, "object-size", detail, "Run the build again.")


def _check_from(context: TableContext, stored: StoredLineage, entry: LineageEntry, prepared: Prepared) -> list[Op]:
    """Every ``from`` is still registered. It was visible when the entry was born: only a removal since can have
    changed that, and the root remembers the last one, so the names are read only when there was one that no earlier
    try has seen. The root's version is checked in the switching transaction."""
    if not entry.joined_from:
        return []
    root = context.registry.root()
    if root.changed <= prepared.guard.born or root.version == prepared.seen.root_version:
        return [Check(context.registry.path, root.version)]
    read = context.registry.read(lambda name: is_settled(stored.lineage, name.entry_id))
    registered = {record.name for shard in read.shards for record in shard.records}
    if gone := [name for name in entry.segments_from if name not in registered]:
        raise _refused(
            context,
            entry.entry_id,
            "from-gone",
            f"{describe_names(gone)} of 'from' was removed from the table",
            "Abort the entry: revert it with --force (force=True).",
        )
    prepared.seen.root_version = root.version
    return [Check(context.registry.path, read.root.version)]


def _check_seen(context: TableContext, lineage: Lineage, entry: LineageEntry) -> None:
    """No ``from`` is of a rewrite that readers have fallen back from since the entry was started: its rows are seen in
    the inputs of that rewrite, and this entry does not replace those."""
    replaced = frozenset(entry.segments_from) if lineage.rewrites else frozenset()
    rewrites = [one for one in lineage.rewrites if not replaced.isdisjoint(lineage.entries[one].segments_to)]
    if not rewrites:
        return
    fallen_back, _ = context.reader.fallen_back(lineage)
    if lost := fallen_back.intersection(rewrites):
        raise _refused(
            context,
            entry.entry_id,
            "from-not-seen",
            f"segments of the rewrite {min(lost)} were lost since, so readers see what that replaced instead of 'from'",
            "Abort the entry (revert it with --force, force=True), revert that rewrite, and start a new replacement.",
        )


def _finish(context: TableContext, guard: StoredGuard) -> None:
    """What follows the switch: remove what was staged beside ``to``, and give back the locks that stages took."""
    remove_rest(context, guard.entry_id)
    context.release(guard.entry_id, guard.guard)


def remove_rest(context: TableContext, entry_id: str) -> None:
    """Remove what was staged into a COMPLETED entry and is not in its ``to``, queue its objects, and take the mark off
    that hides it. Readers never saw it."""

    def attempt() -> None:
        stored = context.records.read()
        entry = stored.lineage.get(entry_id)
        attempts = stored.lineage.partial.get(entry_id)
        if entry is None or attempts is None or entry.state is not EntryState.COMPLETED:
            return
        brought = frozenset(entry.segments_to)
        found = context.registry.of_entry(entry_id)
        current = [shard for shard in found if shard.name.attempt_name in attempts]
        leftover = [shard for shard in found if shard.name.attempt_name not in attempts]
        context.marker.mark(leftover, lambda _: False, reason="superseded-attempt")
        context.marker.mark(current, lambda record: record.name in brought, reason="not-in-to")
        context.session.commit([context.records.write(stored, stored.lineage.without_partial(entry_id))])

    context.retried("end", attempt)


def already(context: TableContext, entry: LineageEntry) -> EndedEntry:
    """What an earlier attempt has completed. It may not have come to what follows, so that is done here."""
    guard = context.records.guard(entry.entry_id)
    if guard is not None:
        _finish(context, guard)
    stages = guard.guard.stages.values() if guard is not None else ()
    rows, size = sum(stage.rows for stage in stages), sum(stage.bytes for stage in stages)
    return EndedEntry(entry.entry_id, entry.segments_from, entry.segments_to, rows, size, already=True, switch_ms=0.0)


def _cleaned_away(context: TableContext, lineage: Lineage, entry_id: str) -> EndedEntry:
    """An entry that has left the lineage and still has segments was completed: one that was reverted leaves after
    them. Raises :class:`EntryNotFoundError` where nothing tells."""
    shards: Sequence[Shard] = context.registry.of_entry(entry_id)
    records = [record for shard in shards for record in shard.records]
    if not records:
        raise EntryNotFoundError(
            f"table {context.table!r} has no lineage entry {entry_id}: it was never made, or was cleaned up; "
            f"the lineage has {count(len(lineage), 'entry', 'entries')}"
        )
    rows, size = _totals(records)
    return EndedEntry(entry_id, (), tuple(one.name for one in records), rows, size, already=True, switch_ms=0.0)


def _totals(records: Collection[SegmentRecord]) -> tuple[int, int]:
    return sum(record.rows for record in records), sum(record.bytes for record in records)


def _refused(context: TableContext, entry_id: str, rule: str, detail: str, hint: str = "") -> EndRefusedError:
    return EndRefusedError(rule, f"end refused: {detail}", table=context.table, entry_id=entry_id, hint=hint)
