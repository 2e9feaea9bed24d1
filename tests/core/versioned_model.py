"""A versioned table beside a model of sets: segments hold rows, rows have times, and every live row is seen once.

The model knows nothing of timelines. A row is live when an entry that is completed brought it and no completed entry
replaced it; a rewrite brings the rows of what it replaced. When a segment of a rewrite is lost, the rewrite counts as
if it had never been, and so does every rewrite of its other segments: what they were made from is there and holds the
same rows. Only when there is nothing to go back to are the rows of a lost segment gone.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_segments.core.lineage.guard import Rewrite
from airflow_provider_segments.core.locking import (
    APPEND_VERSION,
    LockGranularity,
    LockRequest,
    LockType,
    Priority,
    granted_lock,
)
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.names import entry_tag
from airflow_provider_segments.core.model.ranges import ranges_of
from airflow_provider_segments.core.model.segment import Segment, SegmentRecord, StagedSegment, encode_record
from airflow_provider_segments.core.registry import shard as shards
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Delete, SetData
from tests.support.tables import DAY_MS, HOUR_MS, JANUARY_1, HandClock, object_path

LEASE_MS = 120_000


class Row(NamedTuple):
    """One row: ``id`` is unique in its table."""

    id: int
    at_ms: int


Rows = frozenset[Row]


@dataclass
class Push:
    """What the model knows of a lineage entry. ``kind`` is append, replace, rewrite or expire."""

    entry_id: str
    kind: str
    replaced: frozenset[str]
    at_ms: int
    locks: tuple[HeldLock, ...] = ()
    state: str = "IN_PROGRESS"
    brought: frozenset[str] = frozenset()
    stages: dict[str, frozenset[str]] = field(default_factory=dict)
    leftovers: frozenset[str] = frozenset()
    cleaning: bool = False
    dropped: bool = False
    order: int = 0
    before: tuple[str, ...] = ()
    """The entries that were completed when it was, itself included."""

    @property
    def staged(self) -> frozenset[str]:
        """What it would bring."""
        return frozenset().union(*self.stages.values())

    @property
    def names(self) -> frozenset[str]:
        """Everything that was ever registered for it."""
        return self.staged | self.leftovers | self.brought

    @property
    def falls_back(self) -> bool:
        """Whether what it replaced is there and holds the same rows."""
        return self.kind == "rewrite" and not self.cleaning and not self.dropped

    @property
    def counts(self) -> bool:
        """Whether what it brought is live unless something replaced it."""
        return self.state == "COMPLETED"


def hour_chunk(day: int, hour: int) -> str:
    """Name of an hour of January 2013; ``day`` and ``hour`` from 0."""
    return f"2013-01-{day + 1:02d}T{hour:02d}"


def day_chunk(day: int) -> str:
    """Name of a day of January 2013."""
    return f"2013-01-{day + 1:02d}"


def versioned_config(granularity: str = "HOUR", name: str = "t", **segments_config: str) -> TableConfig:
    """The config of a versioned table."""
    return TableConfig.from_json(
        {
            "tableName": name,
            "segmentsConfig": {"timeColumnName": "ts", **segments_config},
            "segmentBuildConfig": {"segmentLocking": True, "segmentGranularity": granularity},
        }
    )


@dataclass
class World:
    """A table, the rows of its segments, and what the model says of its entries."""

    table: Table
    hand: HandClock
    rows: dict[str, Rows] = field(default_factory=dict)
    pushes: dict[str, Push] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    count: itertools.count[int] = field(default_factory=itertools.count)
    density: int = 2
    """Rows of a new segment."""

    @classmethod
    def make(cls, store: SegmentStore, hand: HandClock, granularity: str = "HOUR", **segments_config: str) -> World:
        """A new versioned table ``t`` under a clock that is moved by hand."""
        timed = store.like(clock=hand.clock())
        timed.apply_config(versioned_config(granularity, **segments_config))
        return cls(timed.table("t"), hand)

    # --- pushes, step by step

    def start(
        self,
        kind: str,
        replaced: Iterable[str] = (),
        locks: Sequence[HeldLock] = (),
        rewrite: Rewrite | None = None,
    ) -> Push:
        """Announce a push."""
        names = sorted(replaced)
        identity = f"work {next(self.count)}"
        started = self.table.start(names, identity=identity, locks=locks, rewrite=rewrite)
        push = Push(started.entry_id, kind, frozenset(names), self.hand.now_ms, tuple(locks))
        self.pushes[push.entry_id] = push
        return push

    def stage(self, push: Push, parts: Sequence[tuple[str, Rows]], *, stager: str = "build") -> StageTicket:
        """Open a stage and stage a segment for each of ``parts`` (chunk, rows). What an earlier attempt staged is no
        longer the push's."""
        ticket = self.table.open_stage(push.entry_id, stager)
        push.leftovers |= push.stages.pop(stager, frozenset())
        names = [f"t_{entry_tag(push.entry_id)}_{ticket.attempt}{stager[:1]}_{at}" for at in range(len(parts))]
        segments = [staged_segment(self.table, ticket, name, *part) for name, part in zip(names, parts, strict=True)]
        self.rows.update({name: rows for name, (_, rows) in zip(names, parts, strict=True)})
        self.table.stage(ticket, segments)
        push.stages[stager] = frozenset(names)
        return ticket

    def end(self, push: Push, *, allow_empty: bool = False) -> None:
        """The switch."""
        self.table.end(push.entry_id, allow_empty=allow_empty)
        push.state, push.at_ms, push.brought = "COMPLETED", self.hand.now_ms, push.staged
        push.order = next(self.count)
        push.before = tuple(one.entry_id for one in self.in_order())
        self.release(push)

    def revert(self, push: Push, *, force: bool = False) -> None:
        """Roll it back."""
        self.table.revert(push.entry_id, force=force)
        push.state, push.at_ms = "REVERTED", self.hand.now_ms
        self.release(push)

    def release(self, push: Push) -> None:
        """What whoever started it does with its locks at last."""
        for lock in push.locks:
            self.table.locks.release(lock.group, lock.task)

    # --- whole pushes

    def new_rows(self, chunk: str) -> Rows:
        """Rows that nobody has, spread over the chunk."""
        interval = parse_chunk(chunk)
        step = (interval.end_ms - interval.start_ms) // self.density
        return frozenset(Row(next(self.count), interval.start_ms + at * step) for at in range(self.density))

    def append(self, *chunks: str, end: bool = True) -> Push:
        """A segment of new rows in each of ``chunks``."""
        push = self.start("append")
        self.stage(push, [(chunk, self.new_rows(chunk)) for chunk in chunks])
        if end:
            self.end(push)
        return push

    def replace(self, names: Collection[str], *chunks: str, end: bool = True) -> Push:
        """``names`` give way to segments of other rows: a correction."""
        push = self.start("replace", names)
        self.stage(push, [(chunk, self.new_rows(chunk)) for chunk in chunks])
        if end:
            self.end(push)
        return push

    def overwrite(self, chunk: str) -> Push:
        """New rows in the place of whatever is in ``chunk``, which nobody names."""
        push = self.start("replace", (), [self.time_lock(parse_chunk(chunk), newest=APPEND_VERSION)])
        self.stage(push, [(chunk, self.new_rows(chunk))])
        self.end(push)
        return push

    def expire(self, names: Collection[str]) -> Push:
        """``names`` give way to nothing."""
        push = self.start("expire", names)
        self.end(push, allow_empty=True)
        return push

    def start_rewrite(self, names: Collection[str]) -> Push:
        """A rewrite of segments of one chunk and version, under a segment lock."""
        inputs = [self.segment(name) for name in names]
        interval, version = inputs[0].interval, inputs[0].version
        partitions = frozenset(one.partition for one in inputs)
        group = f"compaction {next(self.count)}"
        request = LockRequest(
            group=group,
            task="c",
            interval=interval,
            granularity=LockGranularity.SEGMENT,
            partitions=partitions,
            version=version,
            priority=Priority.COMPACTION,
            lease_ms=LEASE_MS,
        )
        lock = granted_lock("t", self.table.locks.acquire(request))
        rewrite = Rewrite(interval.start_ms, interval.end_ms, version, ranges_of(partitions))
        return self._start_under(names, HeldLock(lock.lock_id, group, "c"), rewrite)

    def rewrite(self, names: Collection[str], outputs: int = 1, *, end: bool = True) -> Push:
        """The rows of ``names`` in ``outputs`` segments."""
        chunk = self.segment(next(iter(names))).chunk
        push = self.start_rewrite(names)
        self.stage(push, [(chunk, part) for part in split(self.rows_of(names), outputs)])
        if end:
            self.end(push)
        return push

    def start_version(self, chunk: str, *, rewrite: bool = True) -> Push:
        """A rewrite of all that is visible in ``chunk``, under a lock on that time."""
        interval = parse_chunk(chunk)
        there = self.table.snapshot(interval.start_ms, interval.end_ms).segments
        lock = self.time_lock(interval, newest=max((one.version for one in there), default=None))
        names = [one.name for one in self.table.snapshot(interval.start_ms, interval.end_ms).segments]
        how = Rewrite(interval.start_ms, interval.end_ms) if rewrite else None
        return self._start_under(names, lock, how)

    def new_version(self, chunk: str, outputs: int = 1, *, end: bool = True, rewrite: bool = True) -> Push:
        """The rows of everything in ``chunk`` in ``outputs`` segments of a new version."""
        push = self.start_version(chunk, rewrite=rewrite)
        self.stage(push, [(chunk, part) for part in split(self.rows_of(push.replaced), outputs)])
        if end:
            self.end(push)
        return push

    def time_lock(
        self,
        interval: Interval,
        *,
        newest: str | None = None,
        lease_ms: int = LEASE_MS,
        lock_type: LockType = LockType.EXCLUSIVE,
    ) -> HeldLock:
        """A lock on time."""
        group = f"compaction {next(self.count)}"
        request = LockRequest(
            group=group,
            task="c",
            interval=interval,
            lock_type=lock_type,
            newest=newest,
            priority=Priority.COMPACTION,
            lease_ms=lease_ms,
        )
        lock = granted_lock("t", self.table.locks.acquire(request))
        return HeldLock(lock.lock_id, group, "c")

    def _start_under(self, names: Collection[str], lock: HeldLock, rewrite: Rewrite | None) -> Push:
        try:
            return self.start("rewrite" if rewrite else "replace", names, [lock], rewrite)
        except Exception:
            self.table.locks.release(lock.group, lock.task)
            raise

    def lose(self, name: str) -> None:
        """The record of a segment goes behind everybody's back."""
        shard = next(one for one in self.shards() if any(record.name == name for record in one.records))
        left = [encode_record(record) for record in shard.records if record.name != name]
        payload = shards.encode(shard.name.entry_id, shard.born, left)
        path = shard.name.path
        self.table.store.session.commit(
            [SetData(path, payload, shard.version) if left else Delete(path, shard.version)]
        )
        self.lost.add(name)

    # --- what is there

    def shards(self) -> tuple[Shard, ...]:
        """Every shard of the registry."""
        return self.table._context.registry.read(lambda _: True).shards

    def registered(self) -> set[str]:
        """Names of all registered segments."""
        return {record.name for shard in self.shards() for record in shard.records}

    def segment(self, name: str) -> Segment:
        """A registered segment."""
        return next(one.segment for one in self.table.standings() if one.segment.name == name)

    def rows_of(self, names: Iterable[str]) -> Rows:
        """All rows of some segments."""
        return frozenset().union(*(self.rows[name] for name in names))

    def visible(self) -> list[str]:
        """Names of the visible segments in order."""
        return sorted(self.table.snapshot().names)

    # --- the model

    def in_order(self) -> list[Push]:
        """Completed pushes, oldest first."""
        return sorted((push for push in self.pushes.values() if push.counts), key=lambda push: push.order)

    def gone_back_from(self, completed: Sequence[Push]) -> set[str]:
        """Rewrites that miss a segment, and rewrites of what else they brought. Not where any of that was replaced by
        other rows: those of before must not come back. A segment is missed when nothing that counts replaced it."""
        above = {name: push for push in completed if not push.dropped for name in push.replaced}
        found: set[str] = set()
        before: set[str] | None = None
        while before != found:
            before = set(found)
            for push in completed:
                counted = {name for name, other in above.items() if other.entry_id not in found}
                over = built_upon(push, above)
                if push.brought & self.lost - counted and all(one.falls_back for one in over):
                    found |= {one.entry_id for one in over}
        return found

    def live_names(self, completed: Sequence[Push] | None = None) -> set[str]:
        """Segments that hold the live rows, now or when just ``completed`` were completed."""
        completed = self.in_order() if completed is None else completed
        back = self.gone_back_from(completed)
        shown: set[str] = set()
        for push in completed:
            if push.entry_id not in back:
                shown = shown - push.replaced | push.brought
        return shown - self.lost

    def live(self) -> Rows:
        """Every row that readers must see, once."""
        return self.rows_of(self.live_names())

    def live_as_of(self, push: Push) -> Rows:
        """Every row that readers saw when it was completed, less what was lost since."""
        return self.rows_of(self.live_names([self.pushes[one] for one in push.before]))

    def check(self, *ranges: Interval) -> Snapshot:
        """A snapshot of everything shows each live row once, and so do those of ``ranges``."""
        live = self.live()
        whole = self.table.snapshot()
        self.check_snapshot(whole, None, live)
        for interval in ranges:
            expected = frozenset(row for row in live if _holds(interval, row))
            self.check_snapshot(self.table.snapshot(interval.start_ms, interval.end_ms), interval, expected)
            self.check_snapshot(whole.within(interval.start_ms, interval.end_ms), interval, expected)
        return whole

    def check_snapshot(self, taken: Snapshot, interval: Interval | None, expected: Rows) -> None:
        """What a reader of ``interval`` gets out of a snapshot."""
        seen = Counter(shown_rows(taken, self.rows, interval))
        twice = sorted(row for row, times in seen.items() if times > 1)
        missing, more = sorted(expected - seen.keys()), sorted(seen.keys() - expected)
        assert not (twice or missing or more), (
            f"rows twice: {twice}, missing: {missing}, not live: {more}\n{self.described()}"
        )

    def described(self) -> str:
        """Everything, for a message."""
        lines = [f"{push}" for push in self.pushes.values()]
        lines += [
            f"{one.state.value} {one.segment.name} {one.segment.chunk} {one.segment.place} "
            f"{sorted(self.rows.get(one.segment.name, ()))}"
            for one in self.table.standings()
        ]
        return "\n".join([*lines, f"lost: {sorted(self.lost)}"])


def built_upon(push: Push, above: Mapping[str, Push]) -> list[Push]:
    """The push, what replaced something that it brought, what replaced something of that, and so on."""
    found = [push]
    for one in found:
        found += [other for name in one.brought if (other := above.get(name)) and other not in found]
    return list({one.entry_id: one for one in found}.values())


def shown_rows(taken: Snapshot, rows: Mapping[str, Rows], interval: Interval | None) -> Iterable[Row]:
    """The rows that a reader keeps: in the asked-for time, and where their segment is visible."""
    for segment in taken.segments:
        for row in rows[segment.name]:
            here = not segment.visible_in or any(_holds(part, row) for part in segment.visible_in)
            if here and (interval is None or _holds(interval, row)):
                yield row


def _holds(interval: Interval, row: Row) -> bool:
    return interval.start_ms <= row.at_ms < interval.end_ms


def split(rows: Rows, parts: int) -> list[Rows]:
    """The rows in at most ``parts`` sets, none empty."""
    ordered = sorted(rows)
    found = [frozenset(ordered[at::parts]) for at in range(parts)]
    return [one for one in found if one]


def staged_segment(table: Table, ticket: StageTicket, name: str, chunk: str, rows: Rows) -> StagedSegment:
    """A tiny object and its record."""
    file = f"{name}.{ticket.stager}.{ticket.attempt}.parquet"
    object_path(table, ticket.prefix).mkdir(parents=True, exist_ok=True)
    object_path(table, ticket.prefix + file).write_bytes(name.encode())
    times = [row.at_ms for row in rows]
    return StagedSegment(chunk, SegmentRecord(name, file, len(rows), len(name.encode()), 7, min(times), max(times)))


__all__ = ["DAY_MS", "HOUR_MS", "JANUARY_1", "Push", "Row", "World", "day_chunk", "hour_chunk", "split"]
