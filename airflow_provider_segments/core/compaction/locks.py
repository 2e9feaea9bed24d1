"""Which lock the compaction of a group takes, and whose locks it keeps out of. Pure.

A compaction replaces the segments that it names and hides nothing else. So its lock only keeps others from changing
those meanwhile: a lock on the segments themselves while they stay in their time chunk, and a REPLACE lock on the whole
time chunk when its granularity changes. Appends go on beside both. Segments of a table without locks need none.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_segments.core.compaction.plan import CompactionGroup
from airflow_provider_segments.core.locking import Lock, LockGranularity, LockRequest, LockType, Priority
from airflow_provider_segments.core.model.interval import Interval

LEASE_MS = 120_000
"""Lease of a compaction's locks, which it renews: for so long the inputs of one that was killed stay locked."""


def choose_lock(
    group: CompactionGroup, lock_group: str, task: str, *, segment_locking: bool = True
) -> LockRequest | None:
    """The lock for compacting ``group`` as ``task`` of ``lock_group``; ``None`` on a table without locks."""
    if not segment_locking and all(segment.version == 0 for segment in group.segments):
        return None
    stays = all(segment.chunk == group.chunk and segment.partition >= 0 for segment in group.segments)
    return LockRequest(
        group=lock_group,
        task=task,
        interval=group.interval,
        lock_type=LockType.EXCLUSIVE if stays else LockType.REPLACE,
        granularity=LockGranularity.SEGMENT if stays else LockGranularity.TIME_CHUNK,
        partitions=frozenset(segment.partition for segment in group.segments) if stays else frozenset(),
        priority=Priority.COMPACTION,
        lease_ms=LEASE_MS,
    )


def in_the_way(locks: Iterable[Lock], lock_group: str, now_ms: int) -> list[Interval]:
    """Time that a compaction leaves alone: somebody else of the same or a higher priority has locked segments that are
    there, or all of it against changes. Appends are in nobody's way."""
    return [
        lock.interval
        for lock in locks
        if lock.active
        and not lock.abandoned(now_ms)
        and lock.group != lock_group
        and lock.priority >= Priority.COMPACTION
        and lock.lock_type is not LockType.APPEND
    ]
