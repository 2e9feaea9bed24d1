"""When locks are in each other's way: pure functions on locks and a request. The rules are those of Apache Druid's lock
box (proposal #6319, #7491; APPEND and REPLACE locks of release 28; as of 2026-08); what differs is listed in
:mod:`airflow_provider_segments.core.locking`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_segments.core.locking.types import (
    Lock,
    LockGranularity,
    LockRequest,
    LockType,
)
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.ranges import ranges_contain, ranges_overlap


@dataclass(frozen=True, slots=True)
class Reuse:
    """The group has such a lock; it may be revoked."""

    lock: Lock


@dataclass(frozen=True, slots=True)
class Make:
    """A new lock may be made once ``victims`` are revoked."""

    victims: tuple[Lock, ...] = ()


@dataclass(frozen=True, slots=True)
class Deny:
    """``blockers`` can neither be shared with nor revoked. Empty: ``reason`` says why no wait can help."""

    blockers: tuple[Lock, ...]
    reason: str = ""


Decision = Reuse | Make | Deny


def compatible(held: Lock, wanted: LockType, interval: Interval) -> bool:
    """Whether an active lock and a wanted one of overlapping time may coexist.

    SHARED with SHARED; APPEND with APPEND; REPLACE with the APPEND locks it contains, whichever came first; KILL with
    everything but KILL; nothing else. At most one REPLACE can contain an APPEND, since REPLACE locks do not overlap.
    """
    match held.lock_type, wanted:
        case (LockType.KILL, other) | (other, LockType.KILL):
            return other is not LockType.KILL
        case (LockType.SHARED, LockType.SHARED) | (LockType.APPEND, LockType.APPEND):
            return True
        case (LockType.REPLACE, LockType.APPEND):
            return held.contains(interval)
        case (LockType.APPEND, LockType.REPLACE):
            return interval.start_ms <= held.start_ms and held.end_ms <= interval.end_ms
    return False


def in_conflict(held: Lock, request: LockRequest, *, new_ids: bool) -> bool:
    """Whether a lock and a request are about the same thing, whatever their types.

    Overlapping time; but two segment locks of the same interval only when they share an id (the version plays no part),
    and a request for new ids with no segment lock at all: it will get ids that nobody has.
    """
    if not held.overlaps(request.interval):
        return False
    if LockGranularity.TIME_CHUNK in (held.granularity, request.granularity):
        return True
    if new_ids:
        return False
    return held.interval != request.interval or ranges_overlap(held.partitions, request.ranges)


def reusable(held: Lock, request: LockRequest) -> bool:
    """Whether the group's own lock covers the request, so that asking again is the same lock."""
    return (
        held.group == request.group
        and held.lock_type is request.lock_type
        and held.granularity is request.granularity
        and held.contains(request.interval)
        and ranges_contain(held.partitions, request.ranges)
    )


def decide(locks: Sequence[Lock], request: LockRequest, now_ms: int, *, new_ids: bool = False) -> Decision:
    """What becomes of a request.

    Every lock that stands in the way must give way, or none does: those of strictly lower priority are revoked, those
    whose lease is over are taken, and a group may change the type or granularity of its own lock of exactly the
    requested interval. Compatible locks are never revoked, whatever their priority.
    """
    if request.granularity is LockGranularity.SEGMENT and request.lock_type is not LockType.EXCLUSIVE:
        return Deny((), f"{request.lock_type.value} locks exist for time chunks only; segment locks are EXCLUSIVE")
    conflicting = [lock for lock in locks if in_conflict(lock, request, new_ids=new_ids)]
    if not new_ids and (own := [lock for lock in conflicting if reusable(lock, request)]):
        return Reuse(_choose(own))
    active = [lock for lock in conflicting if lock.active]
    incompatible = [lock for lock in active if not compatible(lock, request.lock_type, request.interval)]
    lapsed = [lock for lock in incompatible if lock.abandoned(now_ms) and not _same(lock, request)]
    standing = [lock for lock in incompatible if lock not in lapsed]
    if all(lock.priority < request.priority for lock in standing):
        return Make(tuple(incompatible))
    if all(_same(lock, request) for lock in active if lock not in lapsed):
        return Make(tuple(lapsed))
    return Deny(tuple(lock for lock in standing if lock.priority >= request.priority))


def _same(lock: Lock, request: LockRequest) -> bool:
    return lock.group == request.group and lock.interval == request.interval


def _choose(own: Sequence[Lock]) -> Lock:
    """Druid fails when a group has several locks that cover a request. They are all the group's, so the answer only
    has to be the same each time: a revoked one, for its owner must hear of it, else the narrowest, the oldest first."""
    return min(own, key=lambda lock: (lock.active, lock.end_ms - lock.start_ms, lock.granted_ms, lock.lock_id))
