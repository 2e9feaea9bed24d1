"""Time retention of APPEND tables (Pinot's TimeRetentionStrategy): segments that ended too long ago are replaced by
nothing.

One replacement with an empty ``to`` takes them out of sight, so an expiry is atomic, holds for readers and clean-up
what every replacement holds, and can be reverted until it is cleaned. Pinot deletes the segments one by one instead.
A lineage is one znode, so an expiry may fill at most half of it and leaves the rest to pushes: of more segments than
that the oldest go now, and the others once clean-up has dropped the entry of the first.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_segments.core.lineage import codec
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import OWN_IDENTITY
from airflow_provider_segments.core.model.interval import ALL_TIME, MIN_MS, format_ms
from airflow_provider_segments.core.model.period import format_period
from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.end import end
from airflow_provider_segments.core.replacement.revert import revert
from airflow_provider_segments.core.replacement.rules import Force
from airflow_provider_segments.core.replacement.start import StartOptions, start
from airflow_provider_segments.core.retention.rules import Freed
from airflow_provider_segments.core.zookeeper.znrecord import WRITE_LIMIT
from airflow_provider_segments.exceptions import (
    ContentionError,
    EndRefusedError,
    EntryNotFoundError,
    RecordTooLargeError,
    RevertRefusedError,
    StartRefusedError,
)

IDENTITY = OWN_IDENTITY + "time-retention"
"""Whose work an expiry is: the same for every pass, so that one that was killed is finished by the next."""

_ROOM = WRITE_LIMIT // 2  # bytes of the compressed lineage that an expiry may fill
_FEWEST = 1000  # a replacement of fewer is only made when these are all
_ROUNDS = 100  # each takes a part, or loses to another writer


@dataclass(frozen=True, slots=True)
class Expired:
    """One replacement with an empty ``to``: its segments are no longer visible, and come back with a revert until they
    are cleaned."""

    entry_id: str
    freed: Freed
    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """Segments that stay although they are old, or an expiry that cannot be, and why. ``entry_id`` is the lineage entry
    that holds them."""

    freed: Freed
    reason: str
    entry_id: str | None = None


@dataclass(frozen=True, slots=True)
class Aged:
    """Visible segments that the time retention no longer keeps. ``sizes`` has their bytes by name, oldest first;
    ``held`` those of them that a live lineage entry holds, by entry, ``running`` those in an expiry in progress."""

    reason: str
    sizes: Mapping[str, int]
    held: Mapping[str, Sequence[str]]
    running: frozenset[str]
    timeless: Freed

    def covers(self, entry: LineageEntry) -> bool:
        """Whether all that an expiry in progress wants to remove is still too old by the config of now."""
        return self.sizes.keys() >= set(entry.segments_from)

    def expired(self, entry_id: str, names: Collection[str]) -> Expired:
        """For the report."""
        return Expired(entry_id, self.freed(names), self.reason)

    def given_up(self, entry: LineageEntry) -> Skipped:
        """For the report."""
        reason = "an expiry in progress is reverted: the time retention keeps some of its segments by now"
        return Skipped(Freed(len(entry.segments_from), 0), reason, entry.entry_id)

    def freed(self, names: Collection[str]) -> Freed:
        """The totals of ``names``."""
        return Freed(len(names), sum(self.sizes.get(name, 0) for name in names))

    def free(self) -> list[str]:
        """The names that nothing holds."""
        held = self.running.union(*self.held.values())
        return [name for name in self.sizes if name not in held]

    def skipped(self, left: Collection[str]) -> Iterator[Skipped]:
        """Why some stay; the lineage has no room for the names ``left``."""
        if left:
            yield Skipped(self.freed(left), "no room in the lineage; the next passes go on as clean-up empties it")
        for entry_id, names in self.held.items():
            yield Skipped(self.freed(names), "held by a lineage entry that can still be ended or reverted", entry_id)
        if self.timeless.segments:
            yield Skipped(self.timeless, "in chunk ALL, and without a time of its own")


@dataclass(frozen=True, slots=True)
class _Window:
    """What the table's config says: segments that ended before ``cutoff_ms`` go."""

    cutoff_ms: int
    reason: str


def plan(context: TableContext, lineage: Lineage) -> tuple[list[Expired], list[Skipped]]:
    """What :func:`expire` would do under ``lineage``. Writes nothing; entries that would be made have no id yet."""
    window = _window(context)
    if not isinstance(window, _Window):
        return [], window
    own = context.records.running_of(lineage, IDENTITY)
    aged = _aged(context, window, lineage, own)
    expired = [aged.expired(entry.entry_id, entry.segments_from) for entry in own if aged.covers(entry)]
    skipped = [aged.given_up(entry) for entry in own if not aged.covers(entry)]
    for entry in own:
        state = EntryState.COMPLETED if aged.covers(entry) else EntryState.REVERTED
        lineage = lineage.put(entry.moved_to(state, context.clock.now_ms()))
    names = aged.free()
    while part := _part(lineage, names):
        entry_id = f"(new {len(expired) + 1})"
        lineage = lineage.put(LineageEntry.of(entry_id, part, (), EntryState.COMPLETED, context.clock.now_ms()))
        expired.append(aged.expired(entry_id, part))
        names = names[len(part) :]
    return expired, [*skipped, *aged.skipped(names)]


def expire(context: TableContext) -> tuple[list[Expired], list[Skipped]]:
    """Take what the time retention no longer keeps out of sight. Run again after it was killed, it ends its own
    replacement that was left IN_PROGRESS, or reverts it when the config keeps those segments by now.

    Raises :class:`ContentionError`, :class:`RecordTooLargeError`, and what ``Retry.run`` raises.
    """
    expired: dict[str, Expired] = {}
    skipped: list[Skipped] = []
    for _ in range(_ROUNDS):
        window = _window(context)
        if not isinstance(window, _Window):
            return list(expired.values()), window
        segments = _visible_before(context, window)
        lineage = context.records.read().lineage  # after them: what held one of them then is still in it, or let go
        own = context.records.running_of(lineage, IDENTITY)
        aged = _sorted_out(segments, window, lineage, own)
        for entry in own:
            done = _settle(context, entry, aged)
            if isinstance(done, Expired):
                expired[done.entry_id] = done
            else:
                skipped.append(done)
        if own:
            continue
        names = aged.free()
        part = _part(lineage, names)
        if not part:
            return list(expired.values()), [*skipped, *aged.skipped(names)]
        _announce(context, part)
    raise ContentionError(
        f"table {context.table!r}: other writers won all {_ROUNDS} rounds of its expiry; run it again"
    )


def _announce(context: TableContext, names: Sequence[str]) -> None:
    """The next round ends it. A pass beside this one may have been faster; then this one looks again."""
    with suppress(StartRefusedError):
        start(context, names, (), StartOptions(identity=IDENTITY))


def _settle(context: TableContext, entry: LineageEntry, aged: Aged) -> Expired | Skipped:
    """End a replacement that was announced, or revert it so that it does not stand in the way of others."""
    if not aged.covers(entry):
        _revert(context, entry)
        return aged.given_up(entry)
    try:
        end(context, entry.entry_id, allow_empty=True)
    except (EndRefusedError, EntryNotFoundError) as refused:  # such as a forced start that took some of them over
        _revert(context, entry)
        return Skipped(aged.freed(entry.segments_from), str(refused), entry.entry_id)
    return aged.expired(entry.entry_id, entry.segments_from)


def _revert(context: TableContext, entry: LineageEntry) -> None:
    with suppress(RevertRefusedError, EntryNotFoundError):  # somebody else has
        revert(context, entry.entry_id, force=Force.ONLY, identity=IDENTITY)


def _visible_before(context: TableContext, window: _Window) -> list[Segment]:
    """What readers see of chunks and segments that begin before the cut-off."""
    return context.reader.take(None, window.cutoff_ms).segments


def _window(context: TableContext) -> _Window | list[Skipped]:
    """What goes by the config, or why nothing does."""
    config = context.config()
    if config.time_retention_ms is None:
        return []
    if config.is_refresh:
        return [
            Skipped(Freed(), "time retention is for APPEND tables, as in Pinot; each push of this one replaces all")
        ]
    if config.upsert is not None:
        return [Skipped(Freed(), "its compaction ends the rows of an upsert table that are too old")]
    cutoff_ms = context.clock.now_ms() - config.time_retention_ms
    if cutoff_ms <= MIN_MS:
        return []
    period = format_period(config.time_retention_ms)
    return _Window(cutoff_ms, f"ended before {format_ms(cutoff_ms)}, longer ago than retentionTimeValue ({period})")


def _aged(context: TableContext, window: _Window, lineage: Lineage, own: Collection[LineageEntry]) -> Aged:
    return _sorted_out(_visible_before(context, window), window, lineage, own)


def _sorted_out(segments: Iterable[Segment], window: _Window, lineage: Lineage, own: Collection[LineageEntry]) -> Aged:
    """The segments that are too old, and which of them somebody else holds."""
    ends: dict[str, tuple[int, int]] = {}
    timeless: list[int] = []
    for segment in segments:
        last = _last_ms(segment)
        if last is None:
            timeless.append(segment.bytes)
        elif last < window.cutoff_ms:
            ends[segment.name] = (last, segment.bytes)
    oldest_first = sorted(ends, key=lambda name: (ends[name][0], name))
    ours = {entry.entry_id for entry in own}
    held = {
        entry.entry_id: names
        for entry in lineage.live()
        if entry.entry_id not in ours
        if (names := sorted(ends.keys() & {*entry.segments_from, *entry.segments_to}))
    }
    running = frozenset(name for entry in own for name in entry.segments_from)
    sizes = {name: ends[name][1] for name in oldest_first}
    return Aged(window.reason, sizes, held, running, Freed(len(timeless), sum(timeless)))


def _last_ms(segment: Segment) -> int | None:
    """The last millisecond that the segment can hold; ``None`` when nothing bounds it."""
    if segment.max_time_ms is not None:
        return segment.max_time_ms
    interval = segment.interval
    return None if interval == ALL_TIME else interval.end_ms - 1


def _part(lineage: Lineage, names: Sequence[str]) -> Sequence[str]:
    """As many of ``names`` as the lineage has room for. A few of many are not worth an entry."""
    part = names
    while part and not _has_room(lineage, part):
        part = part[: len(part) // 2]
    return part if len(part) >= min(len(names), _FEWEST) else ()


def _has_room(lineage: Lineage, names: Sequence[str]) -> bool:
    entry = LineageEntry.of("", names, (), EntryState.COMPLETED, 0)
    try:
        payload = codec.encode(lineage.put(entry))
    except RecordTooLargeError:
        return False
    return len(payload) <= _ROOM or len(zlib.compress(payload, 1)) <= _ROOM
