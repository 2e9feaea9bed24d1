"""Giving out segment ids, in the same change as the lock that protects them (proposal #6319: centralized allocation,
incremental and bulk)."""

from __future__ import annotations

import msgspec

from airflow_provider_segments.core.locking import counters as ids
from airflow_provider_segments.core.locking.state import Box, Turn, check_request, grant, join, put, refuse
from airflow_provider_segments.core.locking.types import (
    Allocated,
    AllocationRequest,
    AllocationResult,
    Allotment,
    Granted,
    Lock,
    Revoked,
)


def allocate(box: Box, request: AllocationRequest, turn: Turn) -> tuple[Box, AllocationResult]:
    """Give out ids and the lock that protects them, both or neither.

    Raises as :func:`~.state.acquire`, and with the rules ``sequence-differs`` and ``outside-lock``.
    """
    check_request(box, request.lock, turn)
    if again := _find_again(box, request, turn):
        return again
    after, result = grant(box, request.lock, turn)
    if not isinstance(result, Granted):
        return box, result
    if not result.lock.contains(request.chunk):
        detail = f"{request.chunk} is not inside the {result.lock} lock"
        raise refuse(turn, "outside-lock", detail, "Lock a wider interval.")
    return _give_ids(after, request, result.lock)


def _find_again(box: Box, request: AllocationRequest, turn: Turn) -> tuple[Box, AllocationResult] | None:
    """The ids this sequence key has; its task joins the lock, and the lease is renewed."""
    for lock in box.locks:
        given = lock.allocated.get(request.key) if lock.group == request.lock.group else None
        if given is None:
            continue
        if not lock.active:
            return box, Revoked(lock)
        if (given.chunk, given.count) != (request.chunk, request.count):
            detail = f"sequence {request.key!r} got {given.count} ids in {given.chunk}"
            raise refuse(turn, "sequence-differs", detail, "A retry asks for the same; another sequence needs a key.")
        held = join(lock, request.lock, turn)
        ids_again = range(given.first, given.first + given.count)
        return put(box, held), Allocated(held, given.chunk, ids_again, again=True)
    return None


def _give_ids(box: Box, request: AllocationRequest, lock: Lock) -> tuple[Box, Allocated]:
    """``lock`` gets the next ids. The counter moves in the same change, so no two requests ever see the same ids."""
    chunk = request.chunk
    first = ids.next_id(box.counters, chunk)
    end = first + request.count
    allotment = Allotment(chunk.start_ms, chunk.end_ms, first, request.count)
    lock = msgspec.structs.replace(lock, allocated={**lock.allocated, request.key: allotment})
    counted = msgspec.structs.replace(box, counters=ids.advance(box.counters, chunk, end))
    return put(counted, lock), Allocated(lock, chunk, range(first, end))
