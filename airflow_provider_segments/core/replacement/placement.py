"""Giving staged segments their place in the timeline: interval, version and partition id, under a lock.

Which lock (Druid's rules, notes in docs/architecture.md): a push that was started under an exclusive time-chunk lock
gets that lock's version. Every other push takes segment locks on new ids, of the version that readers see in the
chunk, so appends and compactions of the same granularity never stand in each other's way. It looks at what is visible
*after* it has the lock: whoever wants to publish a newer version of the chunk from then on must take the lock away
first, and then this push fails instead of disappearing beneath that version.

On a table with concurrent locks an append takes APPEND locks on its time chunks instead. It gets ids at the version
beneath all others, whatever else there is, and its end gives it a place in each newer version (``upgrade.py``): one may
be published at any time while a REPLACE lock is held beside the APPEND lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from airflow_provider_segments.core.lineage.guard import Guard
from airflow_provider_segments.core.locking import (
    APPEND_VERSION,
    Allocated,
    AllocationRequest,
    Denied,
    Lock,
    LockGranularity,
    LockRequest,
    LockType,
    Priority,
    Revoked,
    granted_lock,
)
from airflow_provider_segments.core.locking.counters import alone
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.ranges import ranges_of
from airflow_provider_segments.core.model.segment import Segment, StagedSegment, TimelinePlace
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.replacement.places import Known, registered
from airflow_provider_segments.core.timeline import SegmentState
from airflow_provider_segments.exceptions import StageRefusedError

_LOOKS = 5  # each further one needs a newer version that was published just then


@dataclass(frozen=True, slots=True)
class Placed:
    """Segments with their places, and the locks that were taken for them."""

    segments: tuple[StagedSegment, ...]
    locks: tuple[HeldLock, ...]


def stage_task(entry_id: str, stager: str) -> str:
    """The name under which a stage holds its locks: the same for each of its attempts."""
    return f"{entry_id}/{stager}"


def stage_group(entry_id: str, guard: Guard) -> str:
    """The group of a stage's locks: that of the locks its push was started under, or the entry's own."""
    return guard.locks[0].group if guard.locks else f"entry/{entry_id}"


def place(
    context: Context, entry_id: str, guard: Guard, stager: str, attempt: int, segments: Sequence[StagedSegment]
) -> Placed:
    """``segments`` with their places. The same attempt gets the same ids again.

    Raises :class:`LockDeniedError` when somebody holds a lock that stands in the way, :class:`LockRevokedError`,
    :class:`LockLostError`, and :class:`StageRefusedError` (``many-chunks``, ``finer-granularity``).
    """
    placer = _Placer(context, entry_id, guard, stager, attempt)
    by_chunk: dict[str, list[StagedSegment]] = {}
    for one in segments:
        by_chunk.setdefault(one.chunk, []).append(one)
    counts = {chunk: len(some) for chunk, some in by_chunk.items()}
    if guard.rewrite is not None and [parse_chunk(chunk) for chunk in counts] != [guard.rewrite.interval]:
        raise placer.refused("many-chunks", f"a rewrite brings segments of its one time chunk, not of {len(counts)}")
    placer.check_apart(counts)
    locked = placer.locked(counts)
    given = placer.under_lock(locked, counts) | placer.append({one: counts[one] for one in counts if one not in locked})
    placed = tuple(item for chunk, some in by_chunk.items() for item in placer.placed(given[chunk], some))
    taken = dict.fromkeys(placer.held(given[chunk].ids.lock) for chunk in counts if chunk not in locked)
    return Placed(placed, tuple(taken))


@dataclass(frozen=True, slots=True)
class _Given:
    """Ids in a time chunk. ``founds`` says that they are the first of a version of their own."""

    chunk: str
    ids: Allocated
    founds: bool = False


@dataclass(frozen=True, slots=True)
class _Placer:
    context: Context
    entry_id: str
    guard: Guard
    stager: str
    attempt: int

    def check_apart(self, chunks: Iterable[str]) -> None:
        """Time chunks of one version must not overlap. Raises :class:`StageRefusedError` (``chunks-overlap``)."""
        ordered = sorted(chunks, key=lambda chunk: (parse_chunk(chunk).start_ms, -parse_chunk(chunk).end_ms))
        for one, other in pairwise(ordered):
            if parse_chunk(one).overlaps(parse_chunk(other)):
                raise self.refused("chunks-overlap", f"it has segments of {one} and of {other}, which overlap")

    def locked(self, chunks: Iterable[str]) -> dict[str, Lock]:
        """The chunks that are under a time-chunk lock with a version of its own, which the push was started under."""
        if not self.guard.locks:
            return {}
        self.context.fence(self.guard)  # one that is gone is what to tell, not what stands where it does not count
        mine = {held.lock_id for held in self.guard.locks}
        locks = [lock for lock in self.context.locks.locks() if lock.lock_id in mine and _has_version(lock)]
        return {chunk: lock for chunk in chunks for lock in locks if lock.contains(parse_chunk(chunk))}

    def under_lock(self, locks: Mapping[str, Lock], counts: Mapping[str, int]) -> dict[str, _Given]:
        """Ids of the locks' own versions."""
        holders = {held.lock_id: held for held in self.guard.locks}
        requests = [
            AllocationRequest(
                lock=LockRequest.of_held(lock, holders[lock.lock_id].task),
                key=self._key(chunk),
                count=counts[chunk],
                interval=parse_chunk(chunk),
            )
            for chunk, lock in locks.items()
        ]
        given = zip(locks, self._allocated(requests), strict=True)
        return {chunk: _Given(chunk, ids, founds=True) for chunk, ids in given}

    def append(self, counts: Mapping[str, int]) -> dict[str, _Given]:
        """New ids under segment or APPEND locks, in the interval and version that new rows of each chunk belong to."""
        rewrite = self.guard.rewrite
        if rewrite is not None and rewrite.partitions:  # its inputs are locked: no newer version can come between
            return self._taken(counts, {chunk: _Target(chunk, rewrite.version) for chunk in counts})
        concurrent = bool(counts) and self.context.config().concurrent_locks
        look = self._lowest if concurrent else self._targets
        targets = {chunk: _Target(chunk, APPEND_VERSION) for chunk in counts}
        looked = not self._are_alone(targets)
        if looked:
            targets = look(counts)
        asked: set[str] = set()
        needed: set[str] = set()
        try:
            for _ in range(_LOOKS if counts else 0):
                given = self._taken(counts, targets, concurrent=concurrent)
                asked.update(one.ids.lock.lock_id for one in given.values())
                # Where appends have a place in each version the end sees to those that are published from now on.
                enough = (concurrent and looked) or self._were_alone(given)
                now = targets if enough else look(counts)
                looked = True
                if all(now[chunk].covers(one) for chunk, one in given.items()):
                    needed.update(one.ids.lock.lock_id for one in given.values())
                    return given
                targets = now
        finally:
            self._leave(asked - needed)
        if counts:
            raise self.refused("version-moves", "newer versions of its time chunks were published all the while")
        return {}

    def _are_alone(self, chunks: Collection[str]) -> bool:
        """Whether new rows probably belong beside appended ones of the very chunks. A look costs a read of the chunks,
        so none is taken as long as no other ids were ever given out there: but a lock where the rows do not belong is
        in other people's way."""
        counters = self.context.locks.read().counters if chunks else ()
        return all(alone(counters, parse_chunk(chunk), APPEND_VERSION) for chunk in chunks)

    def _were_alone(self, given: Mapping[str, _Given]) -> bool:
        """Whether no look is needed: the box, read after it gave these ids out, knows of no other version or time chunk
        there. The first ids of a chunk are looked at anyway, in case that the box was lost and began anew."""
        counters = self.context.locks.read().counters
        return all(
            one.ids.partitions.start > 0 and alone(counters, one.ids.interval, one.ids.version)
            for one in given.values()
        )

    def _leave(self, lock_ids: set[str]) -> None:
        """Locks on ids that turned out to be of no use: until their lease ends they would keep others away."""
        if unused := lock_ids - {held.lock_id for held in self.guard.all_locks}:
            group, task = stage_group(self.entry_id, self.guard), stage_task(self.entry_id, self.stager)
            self.context.locks.release(group, task, lock_ids=sorted(unused))

    def placed(self, given: _Given, segments: Sequence[StagedSegment]) -> list[StagedSegment]:
        """The segments with the ids in ``given``."""
        ids, rewrite = given.ids, self.guard.rewrite
        over = rewrite.partitions if rewrite is not None else ()
        group = ranges_of(ids.partitions) if over or given.founds else ()
        places = [TimelinePlace(ids.version, partition, over, group) for partition in ids.partitions]
        return [
            StagedSegment(given.chunk, msgspec.structs.replace(one.record, place=place))
            for one, place in zip(segments, places, strict=True)
        ]

    def held(self, lock: Lock) -> HeldLock:
        """The lock as the guard remembers it."""
        return HeldLock(lock.lock_id, lock.group, stage_task(self.entry_id, self.stager))

    def refused(self, rule: str, detail: str, hint: str = "") -> StageRefusedError:
        """The error of this stage."""
        return StageRefusedError(
            rule, f"stage refused: {detail}", table=self.context.table, entry_id=self.entry_id, hint=hint
        )

    def _taken(
        self, counts: Mapping[str, int], targets: Mapping[str, _Target], *, concurrent: bool = False
    ) -> dict[str, _Given]:
        requests = [
            AllocationRequest(
                lock=LockRequest(
                    group=stage_group(self.entry_id, self.guard),
                    task=stage_task(self.entry_id, self.stager),
                    interval=parse_chunk(targets[chunk].chunk),
                    lock_type=LockType.APPEND if concurrent else LockType.EXCLUSIVE,
                    granularity=LockGranularity.TIME_CHUNK if concurrent else LockGranularity.SEGMENT,
                    priority=self._priority(),
                ),
                key=self._key(f"{chunk}/{targets[chunk].name}"),
                count=count,
                version=targets[chunk].version,
                at_least=targets[chunk].first,
            )
            for chunk, count in counts.items()
        ]
        given = zip(counts, self._allocated(requests), strict=True)
        return {chunk: _Given(targets[chunk].chunk, ids) for chunk, ids in given}

    def _priority(self) -> int:
        """That of the locks the push was started under: the locks of one group must not differ in it."""
        mine = {held.lock_id for held in self.guard.locks}
        found = [lock.priority for lock in self.context.locks.locks() if lock.lock_id in mine] if mine else []
        return found[0] if found else Priority.BATCH

    def _allocated(self, requests: Sequence[AllocationRequest]) -> list[Allocated]:
        if not requests:
            return []
        relied_on = {held.lock_id for held in self.guard.all_locks}
        results = self.context.locks.allocate_all(requests)
        while isinstance(answer := results[0], Revoked) and answer.lock.lock_id not in relied_on:
            for task in answer.lock.tasks:  # an earlier attempt's or entry's of this group: nothing relies on it
                self.context.locks.release(answer.lock.group, task, lock_ids=[answer.lock.lock_id])
            results = self.context.locks.allocate_all(requests)
        if isinstance(answer, Denied):
            self.context.fence(self.guard)  # who took a lock of ours is what to tell, not that he stands in the way
        for result in results:
            granted_lock(self.context.table, result)
        return [result for result in results if isinstance(result, Allocated)]

    def _targets(self, chunks: Iterable[str]) -> dict[str, _Target]:
        """Where new rows of each chunk belong: the newest version that counts there, whether it is visible or was
        replaced by nothing and may come back; beneath it they would not be seen."""
        intervals = [parse_chunk(chunk) for chunk in chunks]
        whole = Interval(min(one.start_ms for one in intervals), max(one.end_ms for one in intervals))
        found = [
            (segment.interval, segment)
            for segment, state in self.context.standings(whole)
            if segment.place is not None and state is not SegmentState.STANDBY
        ]
        return {chunk: self._target(chunk, interval, found) for chunk, interval in zip(chunks, intervals, strict=True)}

    def _target(self, chunk: str, interval: Interval, found: Sequence[tuple[Interval, Segment]]) -> _Target:
        here = [(at, segment) for at, segment in found if at.overlaps(interval)]
        if not here:
            return _Target(chunk, APPEND_VERSION)
        at, newest = max(here, key=lambda one: one[1].version)
        if not (at.start_ms <= interval.start_ms and interval.end_ms <= at.end_ms):
            raise self._too_coarse(chunk, newest.chunk)
        ids = [segment.partition for one, segment in here if (one, segment.version) == (at, newest.version)]
        return _Target(newest.chunk, newest.version, max(ids) + 1)

    def _lowest(self, chunks: Iterable[str]) -> dict[str, _Target]:
        """The time chunk of each chunk's new rows at the version of appends: its own, or a wider one that has segments
        of that version, since intervals of one version do not overlap."""
        stored = self.context.records.read()
        return {chunk: self._lowest_of(chunk, registered(self.context, stored, parse_chunk(chunk))) for chunk in chunks}

    def _lowest_of(self, chunk: str, known: Sequence[Known]) -> _Target:
        settled = [one for one in known if one.settled]
        for one in settled:
            if not one.interval.contains(parse_chunk(chunk)):
                raise self._too_coarse(chunk, one.chunk)
        lowest = [one for one in settled if one.place.version == APPEND_VERSION]
        first = max((one.place.partition + 1 for one in lowest), default=0)
        return _Target(lowest[0].chunk if lowest else chunk, APPEND_VERSION, first)

    def _too_coarse(self, chunk: str, finer: str) -> StageRefusedError:
        return self.refused(
            "finer-granularity",
            f"the segment is of time chunk {chunk}, and the table has finer ones there, such as {finer}",
            "Compact the table to the coarser granularity first, or append at the finer one.",
        )

    def _key(self, what: str) -> str:
        return f"{self.entry_id}/{self.stager}/{self.attempt}/{what}"


@dataclass(frozen=True, slots=True)
class _Target:
    """Where new segments go: time chunk, version, and the first id that is free for all we see."""

    chunk: str
    version: str
    first: int = 0

    @property
    def name(self) -> str:
        """Tells it from other targets of the same segments: a later look may find another version."""
        return f"{self.chunk}/{self.version}/{self.first}"

    def covers(self, given: _Given) -> bool:
        """Whether those ids are good here."""
        same = (given.chunk, given.ids.version) == (self.chunk, self.version)
        return same and given.ids.partitions.start >= self.first


def _has_version(lock: Lock) -> bool:
    return lock.granularity is LockGranularity.TIME_CHUNK and lock.lock_type in (LockType.EXCLUSIVE, LockType.REPLACE)
