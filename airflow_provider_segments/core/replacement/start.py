"""``start``: announce a replacement. One transaction makes the lineage entry and its guard."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

from airflow_provider_segments.core.binding import StoreRole, check_store
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import Guard, GuardState, HeldTime, Rewrite, Stage
from airflow_provider_segments.core.lineage.hiding import hidden_names
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import ALL_TIME, Interval, parse_chunk
from airflow_provider_segments.core.model.names import (
    check_segment_names,
    check_stager_name,
    describe_names,
    entry_id_for,
)
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.rules import StartDecision, StartRequest, decide_start
from airflow_provider_segments.core.replacement.stage import StageTicket, open_stage
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.versions.order import (
    SegmentTime,
    find_unsettled,
    overwrites_above,
    rewritten_version,
)
from airflow_provider_segments.core.zookeeper import Delete, Op
from airflow_provider_segments.exceptions import StartRefusedError


class AllVisible(enum.Enum):
    """Stands for "whatever readers see when the entry is made" as the ``from`` of a start."""

    ALL_VISIBLE = "ALL_VISIBLE"


ALL_VISIBLE = AllVisible.ALL_VISIBLE


@dataclass(frozen=True, slots=True)
class StartedEntry:
    """A replacement in progress. ``resumed`` says that an earlier attempt of the same work had made it.

    ``reverted`` and ``cleaning`` are ids of entries that a forced start reverted, and whose replaced segments it let
    go. ``cuts`` has, for a rewrite, the parts of their time in which inputs are visible that an overwrite hides in
    part: only rows of those may be written. ``ticket`` is that of the stage that was opened with the start, if any.
    """

    entry_id: str
    born: int
    segments_from: tuple[str, ...]
    segments_to: tuple[str, ...]
    resumed: bool
    reverted: tuple[str, ...] = ()
    cleaning: tuple[str, ...] = ()
    cuts: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    ticket: StageTicket | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """How a push is started.

    ``identity`` names the work, so that a retry finds its entry; ``force_cleanup`` reverts pushes in progress that
    stand in the way. ``locks`` are those the push relies on: ``stage`` and ``end`` fail when one of them is lost.
    ``overwrites`` is time that the push overwrites whatever it brings there, inside EXCLUSIVE locks among ``locks``;
    the time chunks of what it brings under such a lock are overwritten anyway. ``rewrite`` names the time chunk into
    which the push writes the rows of what it replaces, and no others. ``moves_rows`` says that the push is a compaction
    of an upsert table: no other push may replace segments there, for the validity of their rows would be lost.
    ``stager`` opens a stage of that name at once, in the transaction that makes the entry.
    """

    identity: str | None = None
    force_cleanup: bool = False
    locks: Sequence[HeldLock] = ()
    overwrites: Sequence[Interval] = ()
    rewrite: str | None = None
    moves_rows: bool = False
    stager: str | None = None


def start(
    context: TableContext,
    segments_from: Sequence[str] | AllVisible | None,
    segments_to: Sequence[str],
    options: StartOptions,
) -> StartedEntry:
    """Make the entry, or find the one an earlier attempt of ``options.identity`` made.

    ``segments_from`` of ``None`` is everything visible on a REFRESH table and nothing on an APPEND table. An empty
    ``segments_to`` means that the push stages its segments later. Raises :class:`StartRefusedError`,
    :class:`InvalidNameError`, :class:`TableNotFoundError`, :class:`RecordTooLargeError`, :class:`LockLostError`, and
    what ``Retry.run`` raises.
    """
    config = context.config()
    if segments_from is None:
        segments_from = ALL_VISIBLE if config.is_refresh else ()
    given = segments_from if isinstance(segments_from, AllVisible) else check_segment_names(segments_from)
    announced = check_segment_names(segments_to)
    who = options.identity or context.clock.new_id()
    if options.stager is not None:
        check_stager_name(options.stager)
        check_store(context.cluster, StoreRole.PRIMARY, bind=True)
    look = _Look(context, given, announced, options.rewrite, is_refresh=config.is_refresh)
    tried: list[str] = []

    def running_in(lineage: Lineage) -> LineageEntry | None:
        """The entry of this work. A nameless one is known to nobody else: only an earlier try can have made it."""
        if options.identity is not None:
            return next(iter(context.records.running_of(lineage, who)), None)
        entries = (lineage.get(entry_id) for entry_id in tried)
        return next((entry for entry in entries if entry and entry.state is EntryState.IN_PROGRESS), None)

    def attempt() -> StartedEntry:
        stored, visible = look.take()
        context.check_not_dropped(stored.lineage, StartRefusedError, "start")
        running = running_in(stored.lineage)
        wanted = Guard.new(
            who,
            announced=bool(announced),
            refreshes=config.is_refresh,
            has_quota=config.quota_bytes is not None,
            placed=config.segment_locking,
            locks=tuple(options.locks),
            exclusive=_exclusive(context, options, running),
        )
        if options.overwrites:
            wanted = wanted.overwriting(_held(context, wanted, options.overwrites))
        if running is not None:
            return _resume(context, look, stored.lineage, running, wanted, options)
        if options.stager is not None:
            wanted = wanted.with_stage(options.stager, Stage(1))
        names = visible if isinstance(given, AllVisible) else given
        if names and stored.lineage.upsert is not None and not options.moves_rows:
            raise StartRefusedError(
                "upsert-replaces",
                "start refused: a push into an upsert table replaces rows by their keys, and no segments",
                table=context.table,
                hint="Push without 'from'; delete records remove keys, and a rollback takes versions back.",
            )
        guard, cuts = look.rewriting(wanted, stored.lineage, names)
        tried.append(entry_id_for(context.table, who, stored.version))
        request = StartRequest(
            context.table,
            tried[-1],
            tuple(names),
            announced,
            visible,
            config.is_refresh,
            options.force_cleanup,
            context.clock.now_ms(),
        )
        return _commit(context, stored, request, decide_start(stored.lineage, request), guard, cuts)

    started = context.retried("start", attempt)
    if options.stager is None:
        return started
    if started.resumed:  # whoever made the entry may be building into it: a new attempt shuts that one out
        return replace(started, ticket=open_stage(context, started.entry_id, options.stager))
    return replace(started, ticket=StageTicket.of(context.table, started.entry_id, started.born, options.stager, 1))


@dataclass(slots=True)
class _Look:
    """Looks at what is visible, for the attempts of one start.

    To look takes longer than many an append, so while those go on, each would be overtaken. What an earlier attempt
    saw is still true, less what the lineage hides since, as long as nothing was removed from the registry (every
    removal changes its root) and the overwrites are the same.
    """

    context: TableContext
    given: tuple[str, ...] | AllVisible
    announced: tuple[str, ...]
    rewrite: str | None
    _: KW_ONLY
    is_refresh: bool
    seen: Snapshot | None = None
    root_version: int = -1

    def take(self) -> tuple[StoredLineage, Collection[str]]:
        """The lineage, and the names that are visible under it. An append that announces nothing needs none."""
        if not self.given and not self.announced and not self.is_refresh:
            return self.context.records.read(), ()
        if self.seen is not None and isinstance(self.given, tuple) and not self.announced:
            stored = self.context.records.read()
            if self.context.registry.root().version == self.root_version and self._same_overwrites(stored):
                return stored, frozenset(self.seen.names) - hidden_names(stored.lineage)
        self.root_version = self.context.registry.root().version  # before the look, so that no removal falls between
        stored, self.seen = self.context.reader.visible(self._where())
        return stored, self.seen.names

    def rewriting(
        self, guard: Guard, lineage: Lineage, names: Collection[str]
    ) -> tuple[Guard, Mapping[str, tuple[Interval, ...]]]:
        """The guard of a rewrite of ``names``, and which parts of them are visible. Raises :class:`StartRefusedError`
        (``overwrite-unsettled``)."""
        if self.rewrite is None or self.seen is None:
            return guard, {}
        wanted, chunk = frozenset(names), parse_chunk(self.rewrite)
        inputs = [
            SegmentTime(segment.name, segment.interval, segment.version)
            for segment in self.seen.segments
            if segment.name in wanted
        ]
        if beyond := [segment.name for segment in inputs if not chunk.contains(segment.interval)]:
            raise self._refused(
                "outside-rewrite", f"{describe_names(beyond)} reaches beyond time chunk {self.rewrite}", ""
            )
        if unsettled := find_unsettled(lineage, inputs):
            raise self._refused(
                "overwrite-unsettled",
                f"{unsettled.name!r} lies beneath an overwrite that can still be rolled back or brought back",
                "Rewrite it once the retention period of that overwrite is over.",
            )
        oldest = min((segment.version for segment in inputs), default=0)
        rewrite = Rewrite(
            chunk.start_ms,
            chunk.end_ms,
            rewritten_version(lineage, inputs) if inputs else 0,
            oldest,
            tuple(sorted(overwrites_above(lineage, chunk, oldest))),
        )
        return guard.rewriting(rewrite), {name: cut for name, cut in self.seen.cuts.items() if name in wanted}

    def _same_overwrites(self, stored: StoredLineage) -> bool:
        assert self.seen is not None and self.seen.lineage is not None
        return stored.lineage.overwrites_in_force == self.seen.lineage.overwrites_in_force

    def _where(self) -> Interval:
        """A rewrite looks at its one time chunk only: most of a large table is no concern of it."""
        return parse_chunk(self.rewrite) if self.rewrite is not None and not self.announced else ALL_TIME

    def _refused(self, rule: str, detail: str, hint: str) -> StartRefusedError:
        return StartRefusedError(rule, f"start refused: {detail}", table=self.context.table, hint=hint)


def _exclusive(context: TableContext, options: StartOptions, running: LineageEntry | None) -> tuple[HeldTime, ...]:
    """The time of the EXCLUSIVE time-chunk locks among the push's, in a version of its own: pushes of one group share
    their locks, and of two that overwrite the same time the later one must hide the other.

    An entry that is ``running`` under the same locks keeps its version: what it has staged has that.
    """
    mine = {held.lock_id for held in options.locks}
    given = context.locks.locks() if mine else ()
    locks = [lock for lock in given if lock.lock_id in mine and lock.active and lock.overwrites]
    if not locks:
        return ()
    before = context.guard(running.entry_id).guard if running is not None else None
    if before is not None and before.locks == tuple(options.locks):
        return before.exclusive
    version = context.locks.draw_version()
    return tuple(HeldTime(lock.start_ms, lock.end_ms, version) for lock in locks)


def _held(context: TableContext, guard: Guard, wanted: Sequence[Interval]) -> tuple[HeldTime, ...]:
    """``wanted`` in the version of the push. Raises :class:`StartRefusedError`
    (``overwrite-not-locked``)."""
    found = [(interval, guard.version_over(interval)) for interval in wanted]
    for interval, version in found:
        if version is None or not guard.placed:
            raise StartRefusedError(
                "overwrite-not-locked",
                f"start refused: {interval} is to be overwritten, and is inside no EXCLUSIVE lock of the push",
                table=context.table,
                hint="Set segmentLocking in the table's config, and acquire an EXCLUSIVE lock on all of it first.",
            )
    return tuple(HeldTime(one.start_ms, one.end_ms, version) for one, version in found if version is not None)


def _resume(
    context: TableContext, look: _Look, lineage: Lineage, entry: LineageEntry, wanted: Guard, options: StartOptions
) -> StartedEntry:
    """The entry that an earlier attempt made, under the locks of this one; the removals that attempt may not have come
    to; and what a rewrite has to read."""
    stored = context.guard(entry.entry_id)
    wanted, cuts = look.rewriting(wanted, lineage, entry.segments_from)
    changed = stored.guard.restarted(wanted) if options.locks or options.rewrite else stored.guard
    if changed != stored.guard:
        write = context.records.write_guard(entry.entry_id, stored, changed)
        context.session.commit([write, *context.fence(changed)])
    cleaning = [one.entry_id for one in lineage.in_state(EntryState.COMPLETED) if lineage.is_cleaning(one.entry_id)]
    return StartedEntry(
        entry.entry_id,
        stored.born,
        entry.segments_from,
        entry.segments_to,
        resumed=True,
        cleaning=tuple(cleaning) if options.force_cleanup else (),
        cuts=cuts,
    )


def _commit(
    context: TableContext,
    stored: StoredLineage,
    request: StartRequest,
    decision: StartDecision,
    guard: Guard,
    cuts: Mapping[str, tuple[Interval, ...]],
) -> StartedEntry:
    changed, guard_ops = _close_guards(context, decision)
    made = context.records.make_guard(request.entry_id, guard)
    fence = context.fence(guard)
    # The transaction that makes the guard also writes the lineage, and a changed node's answer tells its zxid.
    ops = [context.records.write(stored, changed), made, *guard_ops, *fence]
    written = context.commit(ops, "started", request.entry_id, guard.identity)[0]
    return StartedEntry(
        request.entry_id,
        written.mzxid,
        request.segments_from,
        request.segments_to,
        resumed=False,
        reverted=tuple(entry.entry_id for entry in decision.reverted),
        cleaning=tuple(entry.entry_id for entry in decision.cleaning),
        cuts=cuts,
    )


def _close_guards(context: TableContext, decision: StartDecision) -> tuple[Lineage, list[Op]]:
    """The lineage and the guard operations for the entries a forced start reverts, all in the start's transaction.

    An entry with nothing left leaves the lineage at once (Pinot S7), but only when nobody ever asked to stage into
    it: an entry that is gone reads as settled, so one that may have staged segments must stay until they are cleaned
    up.
    """
    changed = decision.lineage
    ops: list[Op] = []
    guards = context.records.guards(entry.entry_id for entry in decision.reverted)
    for entry in decision.reverted:
        stored = guards.get(entry.entry_id)
        if stored is None:
            continue
        if not entry.joined_to and not stored.guard.stages:
            changed = changed.without(entry.entry_id)
            ops.append(Delete(context.records.guard_path(entry.entry_id), stored.version))
        elif stored.guard.state is not GuardState.REVERTED:
            ops += context.close_guard(stored, context.clock.new_id())
    return changed, ops
