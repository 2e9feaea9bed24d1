"""Giving staged segments their place: time chunk, version and partition id, under a lock.

Inside an EXCLUSIVE lock that the push was started under, it is an overwrite of the chunk, in the version that it drew
then. Elsewhere the version is that of an APPEND lock that is taken here. Only a rewrite brings its own version: the
newest of its inputs. Versions are drawn under the locks, so whoever locks some time later hides what was there before,
and is not hidden by it. All ids of one stage are given out, and all its locks granted, in one change of the lock box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from airflow_provider_segments.core.lineage.guard import Guard
from airflow_provider_segments.core.locking import (
    Allocated,
    AllocationRequest,
    Lock,
    LockBox,
    LockRequest,
    LockType,
    Priority,
    Revoked,
    granted_lock,
)
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.segment import StagedSegment


@dataclass(frozen=True, slots=True)
class PlacedSegments:
    """Segments with their places, and the locks that were taken for them."""

    segments: tuple[StagedSegment, ...]
    locks: tuple[HeldLock, ...]


@dataclass(frozen=True, slots=True)
class StageOwner:
    """Whose stage it is. ``key`` tells this attempt from every other: the same key gets the same ids again."""

    group: str
    task: str
    key: str

    @classmethod
    def of(cls, entry_id: str, guard: Guard, stager: str, attempt: int) -> StageOwner:
        """The owner of one attempt. Its group is that of the locks the push was started under, or the entry's own."""
        group = guard.locks[0].group if guard.locks else f"entry/{entry_id}"
        return cls(group, stage_task(entry_id, stager), f"{entry_id}/{stager}/{attempt}")


def stage_task(entry_id: str, stager: str) -> str:
    """The name under which a stage holds its locks: the same for each of its attempts."""
    return f"{entry_id}/{stager}"


def place_segments(box: LockBox, guard: Guard, owner: StageOwner, segments: Sequence[StagedSegment]) -> PlacedSegments:
    """Give ``segments`` their places. The same attempt gets the same ones again.

    Raises :class:`LockDeniedError` when somebody else holds a lock that stands in the way, :class:`LockRevokedError`
    and :class:`LockLostError`.
    """
    by_chunk: dict[str, list[StagedSegment]] = {}
    for segment in segments:
        by_chunk.setdefault(segment.chunk, []).append(segment)
    given = _allocate(box, guard, owner, {chunk: len(some) for chunk, some in by_chunk.items()})
    placed: list[StagedSegment] = []
    for chunk, some in by_chunk.items():
        version = _version_of(guard, parse_chunk(chunk), given[chunk].lock)
        for segment, partition in zip(some, given[chunk].partitions, strict=True):
            record = msgspec.structs.replace(segment.record, version=version, partition=partition)
            placed.append(StagedSegment(chunk, record))
    taken = {one.lock.lock_id: one.lock for one in given.values() if owner.task in one.lock.tasks}
    locks = (HeldLock(lock.lock_id, lock.group, owner.task) for lock in taken.values())
    return PlacedSegments(tuple(placed), tuple(locks))


def _version_of(guard: Guard, chunk: Interval, lock: Lock) -> int:
    if guard.rewrite is not None:
        return guard.rewrite.version
    drawn = guard.version_over(chunk)
    return lock.version if drawn is None else drawn


def _allocate(box: LockBox, guard: Guard, owner: StageOwner, counts: Mapping[str, int]) -> dict[str, Allocated]:
    """Ids for so many segments in each time chunk."""
    own = _own_locks(box, guard)
    requests = [
        AllocationRequest(
            lock=_lock_for(parse_chunk(chunk), guard, owner, own),
            key=f"{owner.key}/{chunk}",
            chunk=parse_chunk(chunk),
            count=count,
        )
        for chunk, count in counts.items()
    ]
    relied_on = {held.lock_id for held in guard.all_locks}
    results = box.allocate_all(requests)
    while isinstance(answer := results[0], Revoked) and answer.lock.lock_id not in relied_on:
        for task in answer.lock.tasks:  # an earlier attempt's or entry's of this group: nothing relies on it
            box.release(answer.lock.group, task, lock_ids=[answer.lock.lock_id])
        results = box.allocate_all(requests)
    for result in results:
        granted_lock(box.table, result)
    return {chunk: one for chunk, one in zip(counts, results, strict=True) if isinstance(one, Allocated)}


def _own_locks(box: LockBox, guard: Guard) -> list[tuple[Lock, str]]:
    """The locks the push was started under, each with the task that holds it."""
    tasks = {held.lock_id: held.task for held in guard.locks}
    return [(lock, tasks[lock.lock_id]) for lock in (box.locks() if tasks else ()) if lock.lock_id in tasks]


def _lock_for(chunk: Interval, guard: Guard, owner: StageOwner, own: Sequence[tuple[Lock, str]]) -> LockRequest:
    """The lock that protects new segments of ``chunk``: one of the push's own that gives or protects a version there,
    or an APPEND lock."""
    for lock, task in own:
        if not lock.contains(chunk):
            continue
        if lock.overwrites or guard.rewrite is not None:
            return LockRequest.of_held(lock, task)
    return LockRequest(
        group=owner.group,
        task=owner.task,
        interval=chunk,
        lock_type=LockType.APPEND,
        priority=own[0][0].priority if own else Priority.BATCH,
    )
