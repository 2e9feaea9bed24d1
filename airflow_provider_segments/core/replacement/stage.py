"""``stage``: a build reports its segments. They are registered, hidden, each under its entry; the lineage is not
touched.

``open_stage`` comes first, before any object is written: it hands out an attempt number, and from then on only that
attempt may stage for its stager. A zombie of an earlier attempt is refused by the guard, whatever it does and however
late it is; its objects carry its own attempt in their keys and are swept with the entry's prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_segments.core.lineage.guard import GuardState, Stage, StoredGuard
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.model.ledger import generation_of
from airflow_provider_segments.core.model.names import check_segment_names, check_stager_name, entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.replacement.placement import place, stage_task
from airflow_provider_segments.core.replacement.quota import check_quota
from airflow_provider_segments.core.replacement.rules import check_to_names, describe
from airflow_provider_segments.core.storage.base import check_keys, entry_prefix
from airflow_provider_segments.core.zookeeper import Check, CommitConflictError, Op
from airflow_provider_segments.exceptions import InvalidNameError, StageRefusedError


@dataclass(frozen=True, slots=True)
class StageTicket:
    """The right to stage into an entry: objects go below ``prefix``, with ``attempt`` in their names."""

    table: str
    entry_id: str
    born: int
    stager: str
    attempt: int
    prefix: str

    @property
    def generation(self) -> str:
        """Tells this attempt's objects from those of every other push and attempt, whatever their names."""
        return generation_of(self.entry_id, self.born, self.stager, self.attempt)


@dataclass(frozen=True, slots=True)
class StagedPush:
    """Totals of what one stager has staged."""

    entry_id: str
    segments: int
    rows: int
    bytes: int


def open_stage(context: Context, entry_id: str, stager: str = "build") -> StageTicket:
    """Begin an attempt of ``stager``. Earlier attempts of it can no longer stage, and what they staged will not count.

    Raises :class:`EntryNotFoundError`, :class:`StageRefusedError` when the entry is completed or reverted, and
    :class:`InvalidNameError`.
    """
    check_stager_name(stager)

    def attempt() -> StageTicket:
        stored = context.guard(entry_id)
        _check_open(context, entry_id, stored, GuardState.OPEN, GuardState.SEALED)
        before = stored.guard.stages.get(stager)
        number = 1 if before is None else before.attempt + 1
        opened = stored.guard.with_stage(stager, Stage(number)).without_locks_of(stage_task(entry_id, stager))
        context.session.commit([context.records.write_guard(entry_id, stored, opened)])
        return StageTicket(context.table, entry_id, stored.born, stager, number, entry_prefix(context.table, entry_id))

    return context.retried("open_stage", attempt)


def stage(context: Context, ticket: StageTicket, segments: Sequence[StagedSegment]) -> StagedPush:
    """Register ``segments`` for the ticket's entry; all of them count, or none.

    Repeating a call that succeeded, with the same segments, succeeds. Raises :class:`InvalidNameError`,
    :class:`EntryNotFoundError`, :class:`StageRefusedError` and :class:`RecordTooLargeError`.
    """
    _check_segments(ticket, segments)
    totals = StagedPush(
        ticket.entry_id,
        len(segments),
        sum(item.record.rows for item in segments),
        sum(item.record.bytes for item in segments),
    )
    opened = context.retried("stage", lambda: _current(context, ticket)).guard
    if opened.stages[ticket.stager].done:
        _check_same(ticket, opened.stages[ticket.stager], totals)
        return totals
    _check_names(context, ticket, segments)
    if opened.has_quota:
        check_quota(context, ticket.entry_id, ticket.stager, totals.bytes)
    if opened.placed and segments:
        placed = place(context, ticket.entry_id, opened, ticket.stager, ticket.attempt, segments)
        segments = placed.segments
        context.retried("stage", lambda: _rely_on(context, ticket, placed.locks))
    payloads = _payloads(context, ticket, segments)
    creates = context.registry.in_one_request(payloads)
    if creates:
        context.registry.make_chunks(payloads)
        context.retried("stage", lambda: _finish(context, ticket, totals, creates))
        return totals
    context.retried("stage", lambda: _begin(context, ticket))
    context.retried("stage", lambda: _register(context, ticket, payloads))
    context.retried("stage", lambda: _finish(context, ticket, totals))
    return totals


def _rely_on(context: Context, ticket: StageTicket, taken: Sequence[HeldLock]) -> None:
    """Have the guard remember the locks before anything is registered under them: whatever is from now on written or
    switched checks that they are still held."""
    stored = _current(context, ticket)
    relying = stored.guard.with_locks(taken)
    if relying != stored.guard:
        write = context.records.write_guard(ticket.entry_id, stored, relying)
        context.session.commit([write, *context.fence(relying)])


def _begin(context: Context, ticket: StageTicket) -> None:
    """Mark that segments may be registered from now on."""
    stored = _current(context, ticket)
    mine = stored.guard.stages[ticket.stager]
    if not mine.begun:
        begun = stored.guard.with_stage(ticket.stager, Stage(ticket.attempt, begun=True))
        write = context.records.write_guard(ticket.entry_id, stored, begun)
        context.session.commit([write, *context.fence(begun)])


def _register(context: Context, ticket: StageTicket, payloads: dict[str, bytes]) -> None:
    """Create every shard under the guard's present version. Shards that stand already were created by a try whose reply
    was lost: only this attempt writes under these names, and the same segments give the same bytes."""
    missing = payloads
    while missing:
        stored = _current(context, ticket)
        fence = Check(context.records.guard_path(ticket.entry_id), stored.version)
        unsure = context.registry.create_shards(missing, fence)
        if not unsure:
            return
        standing = context.registry.standing(unsure)
        if different := [path for path, data in standing.items() if data != unsure[path]]:
            raise _refused(ticket, "staged-differently", f"other segments were staged by this attempt: {different[0]}")
        left = {path: data for path, data in unsure.items() if path not in standing}
        if len(left) == len(missing):
            raise CommitConflictError(fence, "no progress")  # let the retry loop wait and count
        missing = left


def _finish(context: Context, ticket: StageTicket, totals: StagedPush, creates: Sequence[Op] = ()) -> None:
    """Say that all of it is staged. ``creates`` are the shards of a push so small that the same transaction makes them:
    then either everything is staged or nothing is, and the guard tells a try whose reply was lost that it landed."""
    stored = _current(context, ticket)
    mine = stored.guard.stages[ticket.stager]
    if mine.done:
        _check_same(ticket, mine, totals)
        return
    done = Stage(ticket.attempt, begun=True, done=True, segments=totals.segments, rows=totals.rows, bytes=totals.bytes)
    write = context.records.write_guard(ticket.entry_id, stored, stored.guard.with_stage(ticket.stager, done))
    context.session.commit([write, *creates, *context.fence(stored.guard)])


def _current(context: Context, ticket: StageTicket) -> StoredGuard:
    """The guard, when the ticket still is the one that may stage."""
    stored = context.guard(ticket.entry_id)
    _check_open(context, ticket.entry_id, stored, GuardState.OPEN)
    if stored.born != ticket.born:
        raise _refused(ticket, "other-entry", "the entry was dropped and made anew since this stage was opened")
    mine = stored.guard.stages.get(ticket.stager)
    if mine is None or mine.attempt != ticket.attempt:
        newest = "none" if mine is None else str(mine.attempt)
        raise _refused(
            ticket,
            "superseded",
            f"attempt {ticket.attempt} of {ticket.stager!r} was superseded; the newest is {newest}",
        )
    return stored


def _check_open(context: Context, entry_id: str, stored: StoredGuard, *allowed: GuardState) -> None:
    state = stored.guard.state
    if state in allowed:
        return
    rule = {GuardState.SEALED: "sealed", GuardState.COMPLETED: "completed"}.get(state, "reverted")
    raise StageRefusedError(
        rule,
        f"stage refused: the entry is {state.value} and takes no more segments",
        table=context.table,
        entry_id=entry_id,
        hint="" if state is GuardState.SEALED else "Start a new replacement.",
    )


def _check_segments(ticket: StageTicket, segments: Sequence[StagedSegment]) -> None:
    check_segment_names(item.record.name for item in segments)
    files = [item.record.file for item in segments]
    if len(set(files)) != len(files):
        raise InvalidNameError(f"two staged segments of entry {ticket.entry_id} name the same file")
    check_keys(files)
    for chunk in {item.chunk for item in segments}:
        parse_chunk(chunk)
    for item in segments:
        record = item.record
        if record.rows < 0 or record.bytes < 0 or record.crc32 < 0:
            raise InvalidNameError(f"segment {record.name!r}: rows, bytes and crc32 must not be negative")
        placed = record.place is not None or bool(record.upgrades)
        if record.chunk is not None or record.offload is not None or not record.primary or placed:
            raise InvalidNameError(
                f"segment {record.name!r}: its chunk, its place and where it lives are not the build's to say"
            )


def _check_names(context: Context, ticket: StageTicket, segments: Sequence[StagedSegment]) -> None:
    """Names that carry the entry's tag cannot be anybody else's; all others are compared with what stands."""
    tag = entry_tag(ticket.entry_id)
    plain = {item.record.name for item in segments if tag not in item.record.name}
    if not plain:
        return
    stored, visible = context.visible()
    if present := plain.intersection(visible):
        raise _refused(ticket, "to-visible", f"{describe(present)} is already visible in the table")
    entry = stored.lineage.get(ticket.entry_id)
    if entry is not None and entry.joined_to and (extra := plain.difference(entry.segments_to)):
        raise _refused(
            ticket, "not-announced", f"{describe(extra)} was not announced in 'to' when the entry was started"
        )
    if conflict := check_to_names(stored.lineage, ticket.entry_id, plain):
        raise _refused(ticket, *conflict)


def _check_same(ticket: StageTicket, mine: Stage, totals: StagedPush) -> None:
    if (mine.segments, mine.rows, mine.bytes) != (totals.segments, totals.rows, totals.bytes):
        raise _refused(
            ticket,
            "staged-differently",
            f"this attempt has already staged {mine.segments} segments with {mine.rows} rows",
        )


def _payloads(context: Context, ticket: StageTicket, segments: Sequence[StagedSegment]) -> dict[str, bytes]:
    by_chunk: dict[str, list[SegmentRecord]] = {}
    for item in segments:
        by_chunk.setdefault(item.chunk, []).append(item.record)
    return context.registry.shard_payloads(ticket.entry_id, ticket.born, ticket.stager, ticket.attempt, by_chunk)


def _refused(ticket: StageTicket, rule: str, detail: str) -> StageRefusedError:
    return StageRefusedError(rule, f"stage refused: {detail}", table=ticket.table, entry_id=ticket.entry_id)
