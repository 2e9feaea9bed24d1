"""``publish``: stage and end in one transaction, for a push whose caller is one process and whose objects are few.

The transaction registers the segments, moves the guard and switches the lineage, after every check that ``stage`` and
``end`` make. It checks the guard at the version at which all that is registered under the entry was staged to its end,
so no seal is needed: whatever is staged meanwhile, by whomever, changes the guard first. Where another stager is not
done, an earlier attempt has left something, or one request cannot hold it all, ``publish`` is ``stage``, then ``end``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_segments.core.lineage.guard import Guard, GuardState, StoredGuard
from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.model.segment import StagedSegment
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.end import (
    EndedEntry,
    GuardChangedError,
    Prepared,
    already,
    check_may_be_empty,
    check_objects,
    end,
    switch_on,
)
from airflow_provider_segments.core.replacement.stage import (
    StagedPush,
    StageTicket,
    check_current,
    check_same,
    check_segments,
    finished_stage,
    place,
    shard_payloads,
    stage,
)
from airflow_provider_segments.core.replacement.staged import sort_out
from airflow_provider_segments.core.upsert.record import Switch
from airflow_provider_segments.core.versions.order import SegmentTime
from airflow_provider_segments.exceptions import RecordTooLargeError


def publish(
    context: TableContext,
    ticket: StageTicket,
    segments: Sequence[StagedSegment],
    *,
    allow_empty: bool = False,
    switch: Switch | None = None,
) -> EndedEntry:
    """Stage ``segments``, the last that the entry brings, and complete it.

    A call that is repeated with the same ticket succeeds. Raises what ``stage`` and ``end`` raise; when it is refused,
    readers see what they saw, and the entry can be published by another attempt, or aborted.
    """
    totals = check_segments(ticket, segments)

    def attempt() -> EndedEntry | None:
        stored = context.guard(ticket.entry_id)
        if _is_published(ticket, stored, totals):
            return already(context, context.records.read().lineage.find(ticket.entry_id))
        prepared = _prepare(context, ticket, stored, segments, totals)
        if prepared is None:
            return None
        if not prepared.records:
            entry = context.records.read().lineage.find(ticket.entry_id)
            check_may_be_empty(context, entry, prepared.guard, allow_empty=allow_empty)
        prepared = replace(prepared, switch=switch)
        try:
            ended = context.retried("publish", lambda: switch_on(context, prepared))
        except GuardChangedError as changed:
            raise changed.conflict from changed
        context.release(ticket.entry_id, prepared.guard.guard)
        return ended

    try:
        ended = context.retried("publish", attempt)
    except RecordTooLargeError:  # raised before anything is sent: without the segments, the lineage may have room
        ended = None
    if ended is not None:
        return ended
    stage(context, ticket, segments)
    return end(context, ticket.entry_id, allow_empty=allow_empty, switch=switch)


def _is_published(ticket: StageTicket, stored: StoredGuard, totals: StagedPush) -> bool:
    """Return True if an earlier try of this very attempt has published, although its reply was lost."""
    mine = stored.guard.stages.get(ticket.stager)
    if mine is None or stored.guard.state is not GuardState.COMPLETED or stored.born != ticket.born:
        return False
    if not mine.done or mine.attempt != ticket.attempt:
        return False
    check_same(ticket, mine, totals)
    return True


def _prepare(
    context: TableContext,
    ticket: StageTicket,
    stored: StoredGuard,
    segments: Sequence[StagedSegment],
    totals: StagedPush,
) -> Prepared | None:
    """Check what cannot change while the guard stays as it is. Returns ``None`` where one transaction will not do."""
    check_current(context, ticket, stored)
    rest = _staged_by_others(context, ticket, stored.guard)
    if rest is None:
        return None
    placed, relying = place(context, ticket, stored.guard, segments)
    payloads = shard_payloads(context, ticket, placed)
    creates = context.registry.in_one_request(payloads)
    if creates is None:
        return None
    brought = [(record, shard.chunk_of(record)) for shard in rest for record in shard.records]
    brought += [(item.record, item.chunk) for item in placed]
    records = {record.name: record for record, _ in brought}
    if len(records) < len(brought):
        return None  # end says which
    finished = stored.guard.with_locks(relying.own_locks).with_stage(ticket.stager, finished_stage(ticket, totals))
    guard = replace(stored, guard=finished)
    check_objects(context, ticket.entry_id, records)
    times = tuple(SegmentTime(record.name, parse_chunk(chunk), record.version) for record, chunk in brought)
    context.registry.make_chunks(payloads)
    return Prepared(guard, records, times, attempts=None, creates=tuple(creates))


def _staged_by_others(context: TableContext, ticket: StageTicket, guard: Guard) -> tuple[Shard, ...] | None:
    """What the other stagers have registered; ``None`` if that, or what this one has, can change while the guard stays.

    It cannot once the others are done and this attempt has not begun: both say so in the guard before they register
    anything. A try of an earlier attempt that is still under way checks a version of the guard that is gone; if one has
    landed before, it is seen here.
    """
    others = [stage for name, stage in guard.stages.items() if name != ticket.stager]
    mine = guard.stages[ticket.stager]
    if guard.announced or mine.begun or not all(one.done for one in others):
        return None
    if mine.attempt == 1 and not others:
        return ()
    staged = sort_out(guard, context.registry.shards_of([ticket.entry_id]))
    found = sum(len(shard.records) for shard in staged.current)
    return None if staged.leftover or found != sum(one.segments for one in others) else staged.current
