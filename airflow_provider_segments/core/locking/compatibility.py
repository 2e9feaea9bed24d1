"""When locks are in each other's way: pure functions on locks and a request.

The rules are those of Apache Druid's lock box (proposal #6319, #7491; APPEND and REPLACE locks of release 28; as of
2026-08). What differs is listed in :mod:`airflow_provider_segments.core.locking`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_segments.core.locking.ranges import ranges_contain, ranges_overlap
from airflow_provider_segments.core.locking.types import Lock, LockGranularity, LockRequest, LockType

_COMPATIBLE = frozenset(
    {
        frozenset({LockType.SHARED}),
        frozenset({LockType.APPEND}),
        frozenset({LockType.APPEND, LockType.REPLACE}),
    }
)


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


def compatible(held: Lock, request: LockRequest) -> bool:
    """Return True if an active lock and a request about the same thing may coexist.

    SHARED with SHARED, APPEND with APPEND, and APPEND with REPLACE and with segment locks: an append brings new
    segments, a rewrite replaces named ones, so neither changes what the other relies on. Nothing else.
    """
    if LockGranularity.SEGMENT in (held.granularity, request.granularity):
        return LockType.APPEND in (held.lock_type, request.lock_type)
    return frozenset({held.lock_type, request.lock_type}) in _COMPATIBLE


def in_conflict(held: Lock, request: LockRequest) -> bool:
    """Return True if a lock and a request are about the same thing, whatever their types.

    That is: overlapping time; but two segment locks of the same time chunk only when they share an id.
    """
    if not held.overlaps(request.interval):
        return False
    if LockGranularity.TIME_CHUNK in (held.granularity, request.granularity):
        return True
    return held.interval != request.interval or ranges_overlap(held.partitions, request.ranges)


def reusable(held: Lock, request: LockRequest) -> bool:
    """Return True if the group's own lock covers the request, so that asking again is the same lock. Ids are those of
    one time chunk: a segment lock covers none of another."""
    mine = (held.group, held.lock_type, held.granularity)
    if mine != (request.group, request.lock_type, request.granularity):
        return False
    if held.granularity is LockGranularity.SEGMENT:
        return held.interval == request.interval and ranges_contain(held.partitions, request.ranges)
    return held.contains(request.interval)


def decide(locks: Sequence[Lock], request: LockRequest, now_ms: int) -> Decision:
    """Decide what becomes of a request.

    A group's own locks never stand in its way. Of the others, every lock that is not compatible must give way, or none
    does: those of strictly lower priority are revoked, and those whose lease is over are taken. Compatible locks are
    never revoked, whatever their priority.
    """
    if request.granularity is LockGranularity.SEGMENT and request.lock_type is not LockType.EXCLUSIVE:
        return Deny((), f"{request.lock_type.value} locks exist for time chunks only; segment locks are EXCLUSIVE")
    conflicting = [lock for lock in locks if in_conflict(lock, request)]
    if own := [lock for lock in conflicting if reusable(lock, request)]:
        return Reuse(_choose(own))
    others = [lock for lock in conflicting if lock.active and lock.group != request.group]
    incompatible = [lock for lock in others if not compatible(lock, request)]
    blockers = [lock for lock in incompatible if lock.priority >= request.priority and not lock.abandoned(now_ms)]
    return Deny(tuple(blockers)) if blockers else Make(tuple(incompatible))


def _choose(own: Sequence[Lock]) -> Lock:
    """Choose the same lock each time where several of the group cover a request (Druid fails then).

    A revoked one first, for its owner must hear of it; else the narrowest, the oldest first.
    """
    return min(own, key=lambda lock: (lock.active, lock.end_ms - lock.start_ms, lock.version))
