"""``stage``: a build reports its segments. They are registered, hidden, each under its entry; the lineage is not
touched.

``open_stage`` comes first, before any object is written: it hands out an attempt number, and from then on only that
attempt may stage for its stager. A zombie of an earlier attempt is refused by the guard, whatever it does and however
late it is; its objects carry its own attempt in their keys and are swept with the entry's prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_segments.core.binding import StoreRole, check_store
from airflow_provider_segments.core.lineage.guard import Guard, GuardState, Stage, StoredGuard
from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.model.ledger import generation_of
from airflow_provider_segments.core.model.names import (
    DEFAULT_STAGER,
    check_segment_names,
    check_stager_name,
    describe_names,
    entry_tag,
)
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.quota import check_quota
from airflow_provider_segments.core.replacement.rules import check_to_names
from airflow_provider_segments.core.storage.base import check_keys, entry_prefix
from airflow_provider_segments.core.versions.places import StageOwner, place_segments, stage_task
from airflow_provider_segments.core.zookeeper import Check, CommitConflictError, Op
from airflow_provider_segments.exceptions import InvalidNameError, StageRefusedError
from airflow_provider_segments.text import count


@dataclass(frozen=True, slots=True)
class StageTicket:
    """The right to stage into an entry: objects go below ``prefix``, with ``attempt`` in their names."""

    table: str
    entry_id: str
    born: int
    stager: str
    attempt: int
    prefix: str

    @classmethod
    def of(cls, table: str, entry_id: str, born: int, stager: str, attempt: int) -> StageTicket:
        """The ticket of one attempt."""
        return cls(table, entry_id, born, stager, attempt, entry_prefix(table, entry_id))

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


def open_stage(context: TableContext, entry_id: str, stager: str = DEFAULT_STAGER) -> StageTicket:
    """Begin an attempt of ``stager``. Earlier attempts of it can no longer stage, and what they staged will not count.

    Raises :class:`EntryNotFoundError`, :class:`StageRefusedError` when the entry is completed or reverted,
    :class:`InvalidNameError`, and :class:`WrongStoreError`. The first stage of a cluster binds it to its storage.
    """
    check_stager_name(stager)
    check_store(context.cluster, StoreRole.PRIMARY, bind=True)

    def attempt() -> StageTicket:
        stored = context.guard(entry_id)
        _check_open(context, entry_id, stored)
        before = stored.guard.stages.get(stager)
        number = 1 if before is None else before.attempt + 1
        opened = stored.guard.with_stage(stager, Stage(number)).without_locks_of(stage_task(entry_id, stager))
        context.session.commit([context.records.write_guard(entry_id, stored, opened)])
        return StageTicket.of(context.table, entry_id, stored.born, stager, number)

    return context.retried("open_stage", attempt)


def stage(context: TableContext, ticket: StageTicket, segments: Sequence[StagedSegment]) -> StagedPush:
    """Register ``segments`` for the ticket's entry; all of them count, or none.

    Repeating a call with the same segments succeeds, however far the earlier one came. Raises
    :class:`InvalidNameError`, :class:`EntryNotFoundError`, :class:`StageRefusedError` and :class:`RecordTooLargeError`.
    """
    totals = check_segments(ticket, segments)
    opened = context.retried("stage", lambda: _current(context, ticket)).guard
    if opened.stages[ticket.stager].done:
        check_same(ticket, opened.stages[ticket.stager], totals)
        return totals
    segments, opened = place(context, ticket, opened, segments)
    payloads = shard_payloads(context, ticket, segments)
    creates = None if opened.stages[ticket.stager].begun else context.registry.in_one_request(payloads)
    if creates is None:
        context.retried("stage", lambda: _begin(context, ticket, opened))
        context.retried("stage", lambda: _register(context, ticket, opened, payloads))
    context.retried("stage", lambda: _finish(context, ticket, totals, opened, creates or ()))
    return totals


def place(
    context: TableContext, ticket: StageTicket, opened: Guard, segments: Sequence[StagedSegment]
) -> tuple[Sequence[StagedSegment], Guard]:
    """Check that the entry takes ``segments``, and give them their places; also returns the guard that relies on the
    locks taken for them. Raises what :func:`stage` does."""
    _check_rewrite(ticket, opened, segments)
    _check_names(context, ticket, opened, segments)
    if opened.has_quota:
        check_quota(context, ticket.entry_id, ticket.stager, sum(item.record.bytes for item in segments))
    has_version = opened.placed or (opened.rewrite is not None and opened.rewrite.version > 0)
    if not has_version or not segments:
        return segments, opened
    if opened.locks:
        context.fence(opened)  # a lock that was lost is what to tell, not who has the time now
    owner = StageOwner.of(ticket.entry_id, opened, ticket.stager, ticket.attempt)
    placed = place_segments(context.locks, opened, owner, segments)
    return placed.segments, opened.with_locks(placed.locks)


def _begin(context: TableContext, ticket: StageTicket, relying: Guard) -> None:
    """Mark that segments may be registered from now on, under the locks that ``relying`` has."""
    stored = _current(context, ticket)
    begun = stored.guard.with_locks(relying.own_locks).with_stage(ticket.stager, Stage(ticket.attempt, begun=True))
    if begun != stored.guard:
        write = context.records.write_guard(ticket.entry_id, stored, begun)
        context.session.commit([write, *context.fence(begun)])


def _register(context: TableContext, ticket: StageTicket, relying: Guard, payloads: dict[str, bytes]) -> None:
    """Create every shard under the guard's present version, which nobody has sealed: an ``end`` that has looked at what
    is staged must not miss them. Shards that stand already were created by a try whose reply was lost: only this
    attempt writes under these names, and the same segments give the same bytes."""
    _check_nothing_else(context, ticket, payloads)
    missing = payloads
    while missing:
        stored = _current(context, ticket)
        if stored.guard.seal:
            _begin(context, ticket, relying)
            continue
        fence = Check(context.records.guard_path(ticket.entry_id), stored.version)
        unsure = context.registry.create_shards(missing, fence)
        if not unsure:
            return
        standing = context.registry.standing(unsure)
        if different := [path for path, data in standing.items() if data != unsure[path]]:
            raise _staged_differently(ticket, f"other segments were staged by this attempt: {different[0]}")
        left = {path: data for path, data in unsure.items() if path not in standing}
        if len(left) == len(missing):
            raise CommitConflictError(fence, "no progress")  # let the retry loop wait and count
        missing = left


def _check_nothing_else(context: TableContext, ticket: StageTicket, payloads: dict[str, bytes]) -> None:
    """An earlier call of this attempt that was killed on the way has registered only what this one registers. Raises
    :class:`StageRefusedError` (``staged-differently``)."""
    mine = (ticket.entry_id, ticket.stager, ticket.attempt)
    names = context.registry.shard_names()
    if other := [
        one.path for one in names if (one.entry_id, one.stager, one.attempt) == mine if one.path not in payloads
    ]:
        raise _staged_differently(ticket, f"other segments were staged by this attempt: {other[0]}")


def _finish(
    context: TableContext, ticket: StageTicket, totals: StagedPush, relying: Guard, creates: Sequence[Op]
) -> None:
    """Say that all of it is staged. ``creates`` are the shards of a push so small that the same transaction makes them:
    then either everything is staged or nothing is, and the guard tells a try whose reply was lost that it landed."""
    stored = _current(context, ticket)
    mine = stored.guard.stages[ticket.stager]
    if mine.done:
        check_same(ticket, mine, totals)
        return
    finished = stored.guard.with_locks(relying.own_locks).with_stage(ticket.stager, finished_stage(ticket, totals))
    write = context.records.write_guard(ticket.entry_id, stored, finished)
    context.registry.make_chunks(create.path for create in creates)  # again in each attempt: an empty chunk may go
    context.session.commit([write, *creates, *context.fence(finished)])


def finished_stage(ticket: StageTicket, totals: StagedPush) -> Stage:
    """The progress of a stager whose attempt has staged all it has."""
    return Stage(ticket.attempt, begun=True, done=True, segments=totals.segments, rows=totals.rows, bytes=totals.bytes)


def _current(context: TableContext, ticket: StageTicket) -> StoredGuard:
    """The guard, when the ticket still is the one that may stage. Raises :class:`EntryNotFoundError` and
    :class:`StageRefusedError`."""
    stored = context.guard(ticket.entry_id)
    check_current(context, ticket, stored)
    return stored


def check_current(context: TableContext, ticket: StageTicket, stored: StoredGuard) -> None:
    """Raise :class:`StageRefusedError` unless the ticket still is the one that may stage."""
    _check_open(context, ticket.entry_id, stored)
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


def _check_open(context: TableContext, entry_id: str, stored: StoredGuard) -> None:
    state = stored.guard.state
    if state is not GuardState.OPEN:
        raise StageRefusedError(
            "completed" if state is GuardState.COMPLETED else "reverted",
            f"stage refused: the entry is {state.value} and takes no more segments",
            table=context.table,
            entry_id=entry_id,
            hint="Start a new replacement.",
        )


def check_segments(ticket: StageTicket, segments: Sequence[StagedSegment]) -> StagedPush:
    """Check what segments say of themselves; returns their totals. Raises :class:`InvalidNameError`."""
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
        placed = record.version != 0 or record.partition != -1
        if record.chunk is not None or record.offload is not None or not record.primary or placed:
            raise InvalidNameError(
                f"segment {record.name!r}: its chunk, its place and where it lives are not the build's to say"
            )
    rows, size = (sum(getattr(item.record, name) for item in segments) for name in ("rows", "bytes"))
    return StagedPush(ticket.entry_id, len(segments), rows, size)


def _check_rewrite(ticket: StageTicket, guard: Guard, segments: Sequence[StagedSegment]) -> None:
    if guard.rewrite is None:
        return
    if beyond := [item.record.name for item in segments if parse_chunk(item.chunk) != guard.rewrite.interval]:
        detail = f"{describe_names(beyond)} is not of the one time chunk {guard.rewrite.interval} of this rewrite"
        raise _refused(ticket, "outside-rewrite", detail)


def _check_names(context: TableContext, ticket: StageTicket, guard: Guard, segments: Sequence[StagedSegment]) -> None:
    """Names must be those that were announced, if any were. Names that carry the entry's tag cannot be anybody else's;
    all others are compared with what is registered and with the lineage."""
    names = {item.record.name for item in segments}
    tag = entry_tag(ticket.entry_id)
    plain = {name for name in names if tag not in name}
    if not plain and not guard.announced:
        return
    stored = context.records.read()
    entry = stored.lineage.get(ticket.entry_id)
    if guard.announced and entry is not None and (extra := names.difference(entry.segments_to)):
        raise _refused(
            ticket, "not-announced", f"{describe_names(extra)} was not announced in 'to' when the entry was started"
        )
    if not plain:
        return
    if conflict := check_to_names(stored.lineage, ticket.entry_id, plain):
        raise _refused(ticket, *conflict)
    if present := plain & context.settled_names(stored.lineage, ticket.entry_id):
        raise _refused(ticket, "to-registered", f"{describe_names(present)} is already registered in the table")


def check_same(ticket: StageTicket, mine: Stage, totals: StagedPush) -> None:
    """Raise :class:`StageRefusedError` (``staged-differently``) unless the finished ``mine`` has these totals."""
    if (mine.segments, mine.rows, mine.bytes) != (totals.segments, totals.rows, totals.bytes):
        raise _staged_differently(
            ticket, f"this attempt has already staged {count(mine.segments, 'segment')} with {count(mine.rows, 'row')}"
        )


def shard_payloads(context: TableContext, ticket: StageTicket, segments: Sequence[StagedSegment]) -> dict[str, bytes]:
    """Paths and contents of the shards that register ``segments``."""
    by_chunk: dict[str, list[SegmentRecord]] = {}
    for item in segments:
        by_chunk.setdefault(item.chunk, []).append(item.record)
    return context.registry.shard_payloads(ticket.entry_id, ticket.born, ticket.stager, ticket.attempt, by_chunk)


def _staged_differently(ticket: StageTicket, detail: str) -> StageRefusedError:
    return _refused(ticket, "staged-differently", detail, "Open a new stage: what this attempt staged will not count.")


def _refused(ticket: StageTicket, rule: str, detail: str, hint: str = "") -> StageRefusedError:
    return StageRefusedError(rule, f"stage refused: {detail}", table=ticket.table, entry_id=ticket.entry_id, hint=hint)
