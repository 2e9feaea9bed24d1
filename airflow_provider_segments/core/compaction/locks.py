"""Which locks the compaction of a group takes, and what its segments do to the timeline. Pure.

Segments of one time chunk and version that stay there: segment locks on them, and new ids of the same version that
overshadow theirs. Appends go on beside that. Anything else (another granularity, several versions, segments of which a
newer version hides a part): a lock on the whole time chunk and a new version, which hides all of the chunk, so all of
the chunk must be in the group (Druid #6319).

On a table with concurrent locks, appends hold APPEND locks on their time chunks, and a segment lock cannot be had
beside one. So every compaction takes a REPLACE lock, which can, and a new version: what is appended meanwhile, and what
of the chunk is not in the group, is carried into that version when it is published (``lineage/upgrade.py``).
Segments without a place in the timeline are replaced by the lineage alone and need no lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_segments.core.compaction.plan import CompactionGroup
from airflow_provider_segments.core.lineage.guard import Rewrite
from airflow_provider_segments.core.locking import Lock, LockGranularity, LockRequest, LockType, Priority
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.ranges import ranges_of
from airflow_provider_segments.core.model.segment import Segment

LEASE_MS = 120_000
"""Lease of a compaction's locks, which it renews: for so long the inputs of one that was killed stay locked."""


@dataclass(frozen=True, slots=True)
class LockChoice:
    """The lock to take, if any, and how the push is to be started. ``whole_chunk`` says that whatever is visible in the
    time chunk once the lock is held has to be in the group."""

    request: LockRequest | None = None
    rewrite: Rewrite | None = None
    whole_chunk: bool = False


def choose_lock(group: CompactionGroup, lock_group: str, task: str, *, concurrent: bool = False) -> LockChoice:
    """The lock for compacting ``group`` as ``task`` of ``lock_group``; ``concurrent`` on a table with APPEND and
    REPLACE locks. There a group that stays in its time chunk need not be all of it: good segments are carried, not
    rewritten."""
    placed = [segment for segment in group.segments if segment.place is not None]
    if not placed:
        return LockChoice()
    all_placed = len(placed) == len(group.segments)
    where = {(segment.interval, segment.version) for segment in placed}
    stays = where == {(group.interval, placed[0].version)} and not group.is_cut
    if stays and not concurrent:
        return _on_segments(group.interval, placed, lock_group, task, rewrites=all_placed)
    request = LockRequest(
        group=lock_group,
        task=task,
        interval=group.interval,
        lock_type=LockType.REPLACE if concurrent else LockType.EXCLUSIVE,
        newest=max(segment.version for segment in placed),
        priority=Priority.COMPACTION,
        lease_ms=LEASE_MS,
    )
    rewrite = Rewrite(group.interval.start_ms, group.interval.end_ms) if all_placed else None
    return LockChoice(request, rewrite, whole_chunk=not stays)


def in_the_way(locks: Iterable[Lock], lock_group: str, now_ms: int) -> list[Interval]:
    """Time that a compaction leaves alone: somebody of the same or a higher priority has locked segments that are
    there, or all of it against changes. Appends are in nobody's way."""
    return [
        lock.interval
        for lock in locks
        if lock.active
        and not lock.abandoned(now_ms)
        and lock.group != lock_group
        and lock.priority >= Priority.COMPACTION
        and not lock.new_ids
        and lock.lock_type is not LockType.APPEND
    ]


def _on_segments(
    interval: Interval, placed: Sequence[Segment], lock_group: str, task: str, *, rewrites: bool
) -> LockChoice:
    version, partitions = placed[0].version, frozenset(segment.partition for segment in placed)
    request = LockRequest(
        group=lock_group,
        task=task,
        interval=interval,
        granularity=LockGranularity.SEGMENT,
        partitions=partitions,
        version=version,
        priority=Priority.COMPACTION,
        lease_ms=LEASE_MS,
    )
    rewrite = Rewrite(interval.start_ms, interval.end_ms, version, ranges_of(partitions)) if rewrites else None
    return LockChoice(request, rewrite)
