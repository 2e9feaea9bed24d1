"""``end``: the switch. After every check, one transaction completes the entry, and readers see ``to`` instead of
``from``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from airflow_provider_segments.core.lineage.entries import EntryState, LineageEntry
from airflow_provider_segments.core.lineage.guard import GuardState, StoredGuard
from airflow_provider_segments.core.lineage.hiding import is_settled
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.locking import APPEND_VERSION
from airflow_provider_segments.core.locking.state import Box
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.names import check_segment_names, entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.replacement.places import Looked
from airflow_provider_segments.core.replacement.rules import check_to_names, describe, find
from airflow_provider_segments.core.replacement.staged import Staged, sort_out
from airflow_provider_segments.core.replacement.upgrade import Push, is_append, settle_places
from airflow_provider_segments.core.replacement.versions import (
    check_covers,
    check_joined,
    check_not_gone_back,
    founded_by,
)
from airflow_provider_segments.core.storage.base import entry_prefix
from airflow_provider_segments.core.zookeeper import Check, CommitConflictError, Op
from airflow_provider_segments.exceptions import EndRefusedError


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
    context: Context, entry_id: str, segments_to: Sequence[str] | None = None, *, allow_empty: bool = False
) -> EndedEntry:
    """Complete the entry. ``segments_to`` may name a part of what was staged; the rest is marked for deletion.

    Ending a completed entry succeeds and changes nothing. Raises :class:`EntryNotFoundError`, :class:`EndRefusedError`
    with the rule that refuses (then nothing has become visible), storage errors, and what ``Retry.run`` raises.
    """
    wanted = None if segments_to is None else check_segment_names(segments_to)

    def attempt() -> EndedEntry:
        stored = context.records.read()
        entry = find(stored.lineage, entry_id)
        if entry.state is EntryState.COMPLETED:
            return _already(context, entry)
        prepared = _prepare(context, entry, wanted, allow_empty=allow_empty)
        try:
            ended = context.retried("end", lambda: _switch(context, prepared))
        except _SealBroken as broken:
            raise broken.conflict from broken
        context.release(prepared.guard.guard)
        return ended

    return context.retried("end", attempt)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A push that may be switched on as long as its guard stays at the version that sealed it. ``shards`` hold its
    records; ``joined`` are the time chunks and versions that its segments have a place in and did not found.
    ``looked`` is what the tries of its switch have seen."""

    guard: StoredGuard
    records: dict[str, SegmentRecord]
    shards: tuple[Shard, ...]
    joined: frozenset[tuple[Interval, str]]
    looked: Looked = field(default_factory=Looked)


class _SealBroken(Exception):  # noqa: N818 - a signal inside this module
    """The guard has changed since the seal: what was checked may no longer be what is staged."""

    def __init__(self, conflict: CommitConflictError) -> None:
        super().__init__(str(conflict))
        self.conflict = conflict


def _prepare(context: Context, entry: LineageEntry, wanted: tuple[str, ...] | None, *, allow_empty: bool) -> _Prepared:
    """Seal the entry, then check everything that cannot change while it stays sealed."""
    _check_not_reverted(context, entry)
    guard = _seal(context, entry.entry_id)
    staged = sort_out(guard.guard, context.registry.of_entry(entry.entry_id))
    records = _chosen(context, entry, guard, staged, wanted)
    if not records and not allow_empty:
        raise _refused(
            context, entry, "nothing-staged", "no segment was staged", "Allow an empty end to remove 'from' only."
        )
    _check_objects(context, entry, records)
    _drop_rest(context, guard, staged, records)
    return _Prepared(guard, records, staged.current, _joined(staged, records))


def _joined(staged: Staged, records: Collection[str]) -> frozenset[tuple[Interval, str]]:
    return frozenset(
        (parse_chunk(shard.chunk_of(record)), record.place.version)
        for shard in staged.current
        for record in shard.records
        if record.place is not None and not record.place.founds and record.name in records
    )


def _seal(context: Context, entry_id: str) -> StoredGuard:
    """From here on nothing is staged, and no other ``end`` of the entry can go on: each seals anew, and the version
    of its own seal is checked by everything it writes. A new attempt that opens a stage breaks the seal the same
    way."""
    stored = context.guard(entry_id)
    sealed = stored.guard.moved_to(GuardState.SEALED, context.clock.new_id())
    if stored.guard.state not in (GuardState.OPEN, GuardState.SEALED):
        raise CommitConflictError(Check(context.records.guard_path(entry_id), stored.version), "settled meanwhile")
    written = context.session.commit([context.records.write_guard(entry_id, stored, sealed)])[0]
    return StoredGuard(entry_id, sealed, written.version, stored.born, written.mzxid)


def _chosen(
    context: Context, entry: LineageEntry, guard: StoredGuard, staged: Staged, wanted: tuple[str, ...] | None
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
            context, entry, "not-announced", f"{describe(extra)} was not announced when the entry was started"
        )
    if guard.guard.rewrite is not None and len(set(wanted)) < len(by_name):
        raise _refused(
            context,
            entry,
            "rewrite-in-part",
            f"{len(by_name)} segments hold the rows of what it replaces, and only {len(set(wanted))} are to be visible",
            "End it with all of them.",
        )
    if absent := [name for name in wanted if name not in by_name]:
        raise _refused(
            context, entry, "not-staged", f"{describe(absent)} of 'to' was not staged", "Run the build again."
        )
    return {name: by_name[name] for name in wanted}


def _by_name(context: Context, entry: LineageEntry, staged: Staged) -> dict[str, SegmentRecord]:
    """The staged records by name. Two of one name would both become visible, whichever was chosen."""
    by_name: dict[str, SegmentRecord] = {}
    total = 0
    for record in staged.records():
        by_name[record.name] = record
        total += 1
    if len(by_name) != total:
        raise _refused(
            context,
            entry,
            "staged-twice",
            f"{total} segments were staged under {len(by_name)} names",
            "Give each stager names of its own and run the builds again.",
        )
    return by_name


def _check_complete(context: Context, entry: LineageEntry, guard: StoredGuard, found: int) -> None:
    """What is registered is what the stages say they have staged: no leftover of a failed call, nothing lost."""
    staged = sum(stage.segments for stage in guard.guard.stages.values())
    if staged != found:
        raise _refused(
            context,
            entry,
            "staged-incomplete",
            f"{staged} segments were staged, {found} are registered",
            "Run the build again, or name the segments that are to become visible.",
        )


def _check_stages_done(context: Context, entry: LineageEntry, guard: StoredGuard) -> None:
    for stager, stage in guard.guard.stages.items():
        if not stage.done:
            raise _refused(
                context,
                entry,
                "stage-unfinished",
                f"attempt {stage.attempt} of {stager!r} was opened but has not staged its segments",
                "Run the build again, or revert the entry.",
            )


def _switch(context: Context, prepared: _Prepared) -> EndedEntry:
    """The one compare-and-set. The lineage is read anew for every try; the seal vouches for the rest."""
    guard, records = prepared.guard, prepared.records
    stored = context.records.read()
    entry = find(stored.lineage, guard.entry_id)
    if entry.state is EntryState.COMPLETED:
        return _already(context, entry)
    _check_not_reverted(context, entry)
    _check_names(context, stored, entry, records)
    fence = _checked_places(context, stored, entry, prepared)
    checks = _check_from(context, stored, entry, prepared)
    now_ms = context.clock.now_ms()
    changed = stored.lineage.put(entry.moved_to(EntryState.COMPLETED, now_ms, records))
    if guard.guard.rewrite is not None and guard.guard.placed:
        changed = changed.with_rewrite(entry.entry_id, now_ms, founded_by(guard.guard.rewrite, records.values()))
    settled = guard.guard.moved_to(GuardState.COMPLETED, context.clock.new_id())
    write = context.records.write(stored, changed)
    before = context.clock.monotonic()
    with _unless_broken(context, entry.entry_id):
        context.session.commit([write, context.records.write_guard(entry.entry_id, guard, settled), *checks, *fence])
    took = (context.clock.monotonic() - before) * 1000
    rows, size = _totals(records.values())
    return EndedEntry(entry.entry_id, entry.segments_from, tuple(records), rows, size, already=False, switch_ms=took)


def _checked_places(context: Context, stored: StoredLineage, entry: LineageEntry, prepared: _Prepared) -> list[Check]:
    """See to the timeline as it will be after the switch; returns the checks that the push still holds its locks."""
    guard = prepared.guard
    box = context.locks.read() if guard.guard.placed else Box()
    push = Push(entry, guard, prepared.shards)
    followed = {APPEND_VERSION} if is_append(push, box) else set()
    if joined := {one for one in prepared.joined if one[1] not in followed}:
        check_joined(context, stored, entry.entry_id, joined, box.counters, prepared.looked)
    fence = context.fence(guard.guard)  # before what follows from a lost lock is told
    check_not_gone_back(context, stored, entry, guard.guard, prepared.looked)
    with _unless_broken(context, entry.entry_id):
        carries = settle_places(context, stored, push, box, prepared.looked)
    if not carries:
        check_covers(context, stored, entry, guard.guard, prepared.looked)
    return fence


@contextmanager
def _unless_broken(context: Context, entry_id: str) -> Iterator[None]:
    """A write that is refused for the guard has lost its seal; any other refusal is for the next try."""
    try:
        yield
    except CommitConflictError as conflict:
        if conflict.op.path == context.records.guard_path(entry_id):
            raise _SealBroken(conflict) from conflict
        raise


def _check_not_reverted(context: Context, entry: LineageEntry) -> None:
    if entry.state is EntryState.REVERTED:
        raise _refused(context, entry, "reverted", "the entry was REVERTED", "Start a new replacement.")


def _check_names(
    context: Context, stored: StoredLineage, entry: LineageEntry, records: dict[str, SegmentRecord]
) -> None:
    """The lineage may have moved since the names were staged, so the rules of start are asked once more."""
    tag = entry_tag(entry.entry_id)
    plain = [name for name in records if tag not in name]
    if not plain:
        return
    if conflict := check_to_names(stored.lineage, entry.entry_id, plain):
        raise _refused(context, entry, conflict[0], conflict[1], "Build again under new names.")
    seen, visible = context.visible()
    if seen.zxid == stored.zxid and (present := set(plain).intersection(visible)):
        raise _refused(
            context, entry, "to-visible", f"{describe(present)} is already visible", "Build again under new names."
        )


def _check_objects(context: Context, entry: LineageEntry, records: dict[str, SegmentRecord]) -> None:
    """Every object of ``to`` exists with the recorded size, by one listing of the entry's prefix."""
    if not records:
        return
    prefix = entry_prefix(context.table, entry.entry_id)
    sizes = {one.key: one.bytes for one in context.storage.list(prefix)}
    expected = {prefix + record.file: record.bytes for record in records.values()}
    if expected.items() <= sizes.items():
        return
    if missing := [key for key in expected if key not in sizes]:
        detail = f"{len(missing)} of {len(expected)} objects do not exist: {describe(missing)}"
        raise _refused(context, entry, "object-missing", detail, "Run the build again.")
    wrong = [key for key, size in expected.items() if sizes[key] != size]
    detail = (
        f"{len(wrong)} of {len(expected)} objects have another size than was staged: "
        f"{wrong[0]!r} has {sizes[wrong[0]]:,} bytes, not {expected[wrong[0]]:,}"
    )
    raise _refused(context, entry, "object-size", detail, "Run the build again.")


def _check_from(context: Context, stored: StoredLineage, entry: LineageEntry, prepared: _Prepared) -> list[Op]:
    """Every ``from`` is still registered. It was visible when the entry was born: only a removal since can have
    changed that, and the root remembers the last one, so the names are read only when there was one that no earlier
    try has seen. The root's version is checked in the switching transaction."""
    if not entry.joined_from:
        return []
    root = context.registry.root()
    if root.changed <= prepared.guard.born or root.version == prepared.looked.whole_at:
        return [Check(context.registry.path, root.version)]
    read = context.registry.read(lambda name: is_settled(stored.lineage, name.entry_id))
    registered = {record.name for shard in read.shards for record in shard.records}
    if gone := [name for name in entry.segments_from if name not in registered]:
        raise _refused(
            context,
            entry,
            "from-gone",
            f"{describe(gone)} of 'from' was removed from the table",
            "Revert the entry with force.",
        )
    prepared.looked.whole_at = root.version
    return [Check(context.registry.path, read.root.version)]


def _drop_rest(context: Context, guard: StoredGuard, staged: Staged, records: Collection[str]) -> None:
    """What was staged and is not in ``to`` must be gone before the switch, or it would appear with it."""
    fence = [Check(context.records.guard_path(guard.entry_id), guard.version), *context.fence(guard.guard)]
    mark = partial(context.marker.mark, fence=fence)
    mark(staged.leftover, lambda _: False, reason="superseded-attempt")
    mark(staged.current, lambda record: record.name in records, reason="not-in-to")


def _already(context: Context, entry: LineageEntry) -> EndedEntry:
    guard = context.records.guard(entry.entry_id)
    if guard is not None:
        context.release(guard.guard)  # an attempt that was killed after the switch has not
    stages = guard.guard.stages.values() if guard is not None else ()
    rows, size = sum(stage.rows for stage in stages), sum(stage.bytes for stage in stages)
    return EndedEntry(entry.entry_id, entry.segments_from, entry.segments_to, rows, size, already=True, switch_ms=0.0)


def _totals(records: Collection[SegmentRecord]) -> tuple[int, int]:
    return sum(record.rows for record in records), sum(record.bytes for record in records)


def _refused(context: Context, entry: LineageEntry, rule: str, detail: str, hint: str = "") -> EndRefusedError:
    return EndRefusedError(rule, f"end refused: {detail}", table=context.table, entry_id=entry.entry_id, hint=hint)
