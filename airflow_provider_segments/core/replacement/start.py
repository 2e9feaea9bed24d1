"""``start``: announce a replacement. One transaction makes the lineage entry and its guard."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import Guard, GuardState, Rewrite
from airflow_provider_segments.core.lineage.hiding import hidden_names
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import ALL_TIME, Interval
from airflow_provider_segments.core.model.names import check_segment_names, entry_id_for
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.replacement.rules import StartDecision, StartRequest, decide_start
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
    go.
    """

    entry_id: str
    born: int
    segments_from: tuple[str, ...]
    segments_to: tuple[str, ...]
    resumed: bool
    reverted: tuple[str, ...] = ()
    cleaning: tuple[str, ...] = ()


def start(
    context: Context,
    segments_from: Sequence[str] | AllVisible | None = None,
    segments_to: Sequence[str] = (),
    *,
    identity: str | None = None,
    force_cleanup: bool = False,
    locks: Sequence[HeldLock] = (),
    rewrite: Rewrite | None = None,
) -> StartedEntry:
    """Make the entry, or find the one an earlier attempt of ``identity`` made.

    ``segments_from`` of ``None`` is everything visible on a REFRESH table and nothing on an APPEND table. An empty
    ``segments_to`` means that the push stages its segments later. ``locks`` are those the push relies on: ``stage``
    and ``end`` fail when one of them is lost. With ``rewrite`` the push brings the rows of what it replaces, so that
    readers go back to that when a part of it is lost. Raises :class:`StartRefusedError`, :class:`InvalidNameError`,
    :class:`TableNotFoundError`, :class:`RecordTooLargeError`, :class:`LockLostError`, and what ``Retry.run`` raises.
    """
    config = context.config()
    if segments_from is None:
        segments_from = ALL_VISIBLE if config.is_refresh else ()
    given = segments_from if isinstance(segments_from, AllVisible) else check_segment_names(segments_from)
    announced = check_segment_names(segments_to)
    who = identity or context.clock.new_id()
    named = not announced and isinstance(given, tuple) and bool(given)
    # What has a place in the timeline may be hidden by others' ids; not what a rewrite holds locks on.
    alone = not config.segment_locking or bool(rewrite and locks)
    look = _Look(context, given, announced, rewrite, is_refresh=config.is_refresh, remembers=named and alone)

    def attempt() -> StartedEntry:
        stored, visible = look.take()
        for running in context.records.running_of(stored.lineage, who):
            _put_under(context, running.entry_id, locks, rewrite)
            return _resumed(context, stored.lineage, running, force_cleanup=force_cleanup)
        replaced = tuple(visible) if isinstance(given, AllVisible) else given
        request = StartRequest(
            context.table,
            entry_id_for(context.table, who, -1 if stored.version is None else stored.version),
            replaced,
            announced,
            visible,
            config.is_refresh,
            force_cleanup,
            context.clock.now_ms(),
        )
        guard = Guard(
            identity=who,
            has_quota=config.quota_bytes is not None,
            placed=config.segment_locking,
            locks=tuple(locks),
            rewrite=rewrite,
        )
        return _commit(context, stored, request, decide_start(stored.lineage, request), guard)

    return context.retried("start", attempt)


@dataclass(slots=True)
class _Look:
    """Looks at what is visible, for the attempts of one start.

    To look takes longer than many an append, so while those go on, each would be overtaken. What an earlier attempt
    saw is still true, less what the lineage hides since, as long as nothing was removed from the registry: every
    removal changes its root.
    """

    context: Context
    given: tuple[str, ...] | AllVisible
    announced: tuple[str, ...]
    rewrite: Rewrite | None
    _: KW_ONLY
    is_refresh: bool
    remembers: bool
    seen: frozenset[str] | None = None
    root_version: int = -1

    def take(self) -> tuple[StoredLineage, Collection[str]]:
        """The lineage, and the names that are visible under it. An append that announces nothing needs none."""
        if not self.given and not self.announced and not self.is_refresh:
            return self.context.records.read(), ()
        if not self.remembers:
            return self.context.visible(self._where())
        if self.seen is not None:
            stored = self.context.records.read()
            if self.context.registry.root().version == self.root_version:
                return stored, self.seen - hidden_names(stored.lineage)
        self.root_version = self.context.registry.root().version  # before the look, so that no removal falls between
        stored, visible = self.context.visible(self._where())
        self.seen = frozenset(visible)
        return stored, self.seen

    def _where(self) -> Interval:
        """A rewrite looks at its one time chunk only: most of a large table is no concern of it."""
        return self.rewrite.interval if self.rewrite is not None and not self.announced else ALL_TIME


def _resumed(context: Context, lineage: Lineage, entry: LineageEntry, *, force_cleanup: bool) -> StartedEntry:
    """The entry that an earlier attempt made, and the removals that attempt may not have come to."""
    born = context.guard(entry.entry_id).born
    cleaning = [one.entry_id for one in lineage.in_state(EntryState.COMPLETED) if lineage.is_cleaning(one.entry_id)]
    return StartedEntry(
        entry.entry_id,
        born,
        entry.segments_from,
        entry.segments_to,
        resumed=True,
        cleaning=tuple(cleaning) if force_cleanup else (),
    )


def _put_under(context: Context, entry_id: str, locks: Sequence[HeldLock], rewrite: Rewrite | None) -> None:
    """An attempt that comes back after its locks were lost brings others; those of before protect nothing."""
    if not locks:
        return
    stored = context.guard(entry_id)
    changed = stored.guard.under(locks, rewrite)
    if changed != stored.guard:
        write = context.records.write_guard(entry_id, stored, changed)
        context.session.commit([write, *context.fence(changed)])


def _commit(
    context: Context, stored: StoredLineage, request: StartRequest, decision: StartDecision, guard: Guard
) -> StartedEntry:
    changed, guard_ops = _close_guards(context, decision)
    made = context.records.make_guard(request.entry_id, guard)
    fence = context.fence(guard)
    written = context.session.commit([context.records.write(stored, changed), made, *guard_ops, *fence])[0]
    # The transaction that made the guard has also written the lineage, and a changed node's answer tells its zxid.
    born = context.guard(request.entry_id).born if stored.version is None else written.mzxid
    return StartedEntry(
        request.entry_id,
        born,
        request.segments_from,
        request.segments_to,
        resumed=False,
        reverted=tuple(entry.entry_id for entry in decision.reverted),
        cleaning=tuple(entry.entry_id for entry in decision.cleaning),
    )


def _close_guards(context: Context, decision: StartDecision) -> tuple[Lineage, list[Op]]:
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


__all__ = ["ALL_VISIBLE", "AllVisible", "StartRefusedError", "StartedEntry", "start"]
