"""Whether a task still holds what it relies on: what is asked before every publication."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_segments.core.locking.state import Box, Turn, each, leased
from airflow_provider_segments.core.locking.types import (
    Lock,
    LockGranularity,
    LockType,
    revoked_error,
)
from airflow_provider_segments.core.model.identity import SegmentKey
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.ranges import ranges_contain
from airflow_provider_segments.exceptions import LockLostError


def renew(
    box: Box, group: str, task: str, lease_ms: int, turn: Turn, lock_ids: Sequence[str] | None = None
) -> tuple[Box, tuple[Lock, ...]]:
    """Extend the lease of the task's locks (all, or those named) to at least ``lease_ms`` from now. All or none.

    A lock whose lease is over and that nobody took is renewed, too. Raises :class:`LockLostError`."""
    if lock_ids is None:
        lock_ids = [lock.lock_id for lock in box.locks if lock.held_by(group, task)]
    held = {lock.lock_id for lock in require_held(box, lock_ids, group, task, turn)}
    until = turn.now_ms + lease_ms
    after = each(box, lambda lock: leased(lock, until) if lock.lock_id in held else lock)
    return after, tuple(lock for lock in after.locks if lock.lock_id in held)


def require_held(box: Box, lock_ids: Sequence[str], group: str, task: str, turn: Turn) -> tuple[Lock, ...]:
    """The locks of those ids, every one held by the task and not revoked; a narrower APPEND lock that was superseded is
    found as the wider one. Raises :class:`LockRevokedError` and :class:`LockLostError` (``lock-lost``, ``no-lock``)."""
    if not lock_ids:
        raise LockLostError("no-lock", f"{task} of {group} holds no lock", table=turn.table, hint="Acquire one first.")
    return tuple(_held(box, lock_id, group, task, turn) for lock_id in lock_ids)


def covering(box: Box, segments: Iterable[SegmentKey], group: str, task: str, turn: Turn) -> tuple[Lock, ...]:
    """The task's locks that protect ``segments``: every lock that does, and at least one for each. None may be revoked
    (Druid stops looking when there are several). A lock covers versions up to its own, an APPEND lock any version, a
    segment lock its own ids. Raises :class:`LockRevokedError` and :class:`LockLostError` (``not-covered``)."""
    own = [lock for lock in box.locks if lock.held_by(group, task)]
    found: dict[str, Lock] = {}
    for segment in segments:
        over = [lock for lock in own if _covers(lock, segment)]
        if revoked := next((lock for lock in over if not lock.active), None):
            raise revoked_error(turn.table, revoked)
        if not over:
            what = f"segment {segment.partition} of {segment.interval}, version {segment.version},"
            raise LockLostError("not-covered", f"{what} is under no lock of {task} of {group}", table=turn.table)
        found |= {lock.lock_id: lock for lock in over}
    return tuple(found.values())


def covering_intervals(box: Box, intervals: Iterable[Interval], group: str, task: str, turn: Turn) -> tuple[Lock, ...]:
    """All locks of the task that contain one of ``intervals``; each must be inside at least one, and none may be
    revoked (Druid's critical section). Raises :class:`LockRevokedError` and :class:`LockLostError`
    (``not-covered``)."""
    own = [lock for lock in box.locks if lock.held_by(group, task)]
    found: dict[str, Lock] = {}
    for interval in intervals:
        over = [lock for lock in own if lock.contains(interval)]
        if revoked := next((lock for lock in over if not lock.active), None):
            raise revoked_error(turn.table, revoked)
        if not over:
            detail = f"{interval} is under no lock of {task} of {group}"
            raise LockLostError("not-covered", detail, table=turn.table, hint="Acquire a lock on it first.")
        found |= {lock.lock_id: lock for lock in over}
    return tuple(found.values())


def _held(box: Box, lock_id: str, group: str, task: str, turn: Turn) -> Lock:
    lock = box.find(lock_id)
    if lock is None or not lock.held_by(group, task):
        lock = next((one for one in box.locks if lock_id in one.absorbed and one.held_by(group, task)), None)
    if lock is None:
        detail = f"{task} of {group} does not hold lock {lock_id}: it was released, or dropped long after its lease"
        raise LockLostError("lock-lost", detail, table=turn.table, hint="Run the work again under a new lock.")
    if not lock.active:
        raise revoked_error(turn.table, lock)
    return lock


def _covers(lock: Lock, segment: SegmentKey) -> bool:
    if lock.granularity is LockGranularity.SEGMENT:
        ids_covered = ranges_contain(lock.partitions, ((segment.partition, segment.partition + 1),))
        return lock.contains(segment.interval) and ids_covered and segment.version <= lock.version
    in_version = lock.lock_type is LockType.APPEND or segment.version <= lock.version
    return lock.contains(segment.interval) and in_version
