"""Giving out segment ids, in the same change as the lock that protects them (proposal #6319: centralized allocation,
incremental and bulk, under segment locks; local counting under a time-chunk lock)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from airflow_provider_segments.core.locking import counters as ids
from airflow_provider_segments.core.locking.holding import require_held
from airflow_provider_segments.core.locking.state import Box, Turn, check_request, grant, joined, put, refuse
from airflow_provider_segments.core.locking.types import (
    Allocated,
    AllocationRequest,
    AllocationResult,
    Allotment,
    Granted,
    Lock,
    LockGranularity,
    LockRequest,
    LockType,
    Revoked,
)
from airflow_provider_segments.core.locking.versions import APPEND_VERSION, version_ms
from airflow_provider_segments.core.model.identity import SegmentKey
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.ranges import join_ranges

_LOCAL = (LockType.EXCLUSIVE, LockType.REPLACE)


@dataclass(frozen=True, slots=True)
class LocalRecord:
    """What :func:`record_local` records: how many ids each interval has got, by whom, under which lock. ``key`` tells
    two pushes of one task apart."""

    lock_id: str
    group: str
    task: str
    key: str
    used: tuple[tuple[Interval, int], ...]


def allocate(box: Box, request: AllocationRequest, turn: Turn) -> tuple[Box, AllocationResult]:
    """Give out ids and the lock that protects them, both or neither. Raises as :func:`acquire`, and with the rules
    ``sequence-differs``, ``outside-lock``, ``version-over-lock``."""
    check_request(box, request.lock, turn)
    if again := _found_again(box, request, turn):
        return again
    if request.lock.granularity is LockGranularity.SEGMENT:
        return _allocate_segments(box, request, turn)
    after, result = grant(box, request.lock, turn, new_ids=False)
    if not isinstance(result, Granted):
        return box, result
    version = request.version or result.lock.version
    _check_allocation(request, result.lock, version, turn)
    return _give_ids(after, request, result.lock, version)


def record_local(box: Box, record: LocalRecord, turn: Turn) -> Box:
    """Say which ids the holder of an EXCLUSIVE or REPLACE time-chunk lock has counted by itself, from 0 in each
    interval. Whoever allocates there later goes on after them, and whoever else counts there is refused.

    The same task and key may record again, also more. Raises :class:`LockLostError`, and :class:`LockRefusedError`
    (``not-local``, ``outside-lock``, ``ids-taken``)."""
    lock = require_held(box, [record.lock_id], record.group, record.task, turn)[0]
    if lock.granularity is not LockGranularity.TIME_CHUNK or lock.lock_type not in _LOCAL:
        raise refuse(turn, "not-local", f"ids cannot be counted locally under a {lock} lock", "Use allocate.")
    counters, allocated = box.counters, dict(lock.allocated)
    for interval, count in record.used:
        _check_inside(lock, interval, turn)
        key = f"{record.task}\n{record.key}\n{interval.start_ms}\n{interval.end_ms}"
        own = allocated[key].count if key in allocated else 0
        if ids.next_id(counters, interval, lock.version) > own:
            detail = f"ids of {interval}, version {lock.version}, were given out to others"
            raise refuse(turn, "ids-taken", detail, "Use allocate: several count under this lock.")
        counters = ids.raised(counters, interval, lock.version, count)
        allocated[key] = Allotment(interval.start_ms, interval.end_ms, lock.version, 0, max(own, count))
    counted = msgspec.structs.replace(box, counters=counters)
    return put(counted, msgspec.structs.replace(lock, allocated=allocated))


def check_given(box: Box, segments: Iterable[SegmentKey], turn: Turn) -> None:
    """Refuse to publish a new segment whose id was never given out: somebody else could get it later. Raises
    :class:`LockRefusedError` (``id-not-allocated``)."""
    for segment in segments:
        if segment.partition >= ids.next_id(box.counters, segment.interval, segment.version):
            what = f"id {segment.partition} of {segment.interval}, version {segment.version},"
            hint = "Allocate ids, or record those that were counted locally, before publishing."
            raise refuse(turn, "id-not-allocated", f"{what} was never given out", hint)


def _found_again(box: Box, request: AllocationRequest, turn: Turn) -> tuple[Box, AllocationResult] | None:
    """The ids this sequence key has; its task joins the lock, and the lease is renewed."""
    for lock in box.locks:
        given = lock.allocated.get(request.key) if lock.group == request.lock.group else None
        if given is None:
            continue
        if not lock.active:
            return box, Revoked(lock)
        wanted = request.version or given.version
        if (given.interval, given.version, given.count) != (request.chunk, wanted, request.count):
            detail = f"sequence {request.key!r} got {given.count} ids in {given.interval}, version {given.version}"
            raise refuse(turn, "sequence-differs", detail, "A retry asks for the same; another sequence needs a key.")
        held = joined(lock, request.lock, turn)
        ids_again = range(given.first, given.first + given.count)
        return put(box, held), Allocated(held, given.interval, given.version, ids_again, again=True)
    return None


def _allocate_segments(box: Box, request: AllocationRequest, turn: Turn) -> tuple[Box, AllocationResult]:
    """New ids under a segment lock. All new ids of a group in one chunk and version are one lock, with one fence."""
    asked = request.lock
    version = request.version or asked.version or APPEND_VERSION
    version_ms(version)
    if request.chunk != asked.interval:
        raise refuse(turn, "outside-lock", "segment locks are on the interval of their segments", "Give one interval.")
    own = next((one for one in box.locks if _grows(one, asked, version)), None)
    if own is not None and not own.active:
        return box, Revoked(own)
    if own is not None:
        return _give_ids(box, request, joined(own, asked, turn), version)
    after, result = grant(box, dataclasses.replace(asked, version=version), turn, new_ids=True)
    if not isinstance(result, Granted):
        return box, result
    return _give_ids(after, request, result.lock, version)


def _grows(lock: Lock, asked: LockRequest, version: str) -> bool:
    return (lock.new_ids, lock.group, lock.interval, lock.version) == (True, asked.group, asked.interval, version)


def _give_ids(box: Box, request: AllocationRequest, lock: Lock, version: str) -> tuple[Box, Allocated]:
    """``lock`` gets the next ids. The counter moves in the same change, so no two requests ever see the same ids."""
    chunk = request.chunk
    first = max(ids.next_id(box.counters, chunk, version), request.at_least)
    if lock.new_ids:  # the version plays no part in what segment locks are on, so ids that are locked are passed over
        beside = [one.partitions[-1][1] for one in box.locks if one.partitions and one.interval == chunk and one.active]
        first = max([first, *beside])
    end = first + request.count
    allotment = Allotment(chunk.start_ms, chunk.end_ms, version, first, request.count)
    lock = msgspec.structs.replace(lock, allocated={**lock.allocated, request.key: allotment})
    if lock.new_ids:
        lock = msgspec.structs.replace(lock, partitions=join_ranges(lock.partitions, ((first, end),)))
    counted = msgspec.structs.replace(box, counters=ids.raised(box.counters, chunk, version, end))
    return put(counted, lock), Allocated(lock, chunk, version, range(first, end))


def _check_allocation(request: AllocationRequest, lock: Lock, version: str, turn: Turn) -> None:
    """Ids are of the lock's time; those of an append's further places also of a wider chunk, in whose version they get
    a place beside others."""
    beside = lock.lock_type is LockType.APPEND and version > APPEND_VERSION
    if not (beside and request.chunk.contains(lock.interval)):
        _check_inside(lock, request.chunk, turn)
    version_ms(version)
    if lock.lock_type is not LockType.APPEND and version > lock.version:
        detail = f"ids of version {version} cannot be given out under the {lock} lock of version {lock.version}"
        raise refuse(turn, "version-over-lock", detail, "Leave the version to the lock.")


def _check_inside(lock: Lock, interval: Interval, turn: Turn) -> None:
    if not lock.contains(interval):
        raise refuse(turn, "outside-lock", f"{interval} is not inside the {lock} lock", "Lock a wider interval.")
