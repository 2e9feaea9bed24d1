"""Check that a task still holds the locks it relies on, before every publication; extend their leases."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_segments.core.locking.state import Box, Turn, each, renew_until
from airflow_provider_segments.core.locking.types import Lock, revoked_error
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
    after = each(box, lambda lock: renew_until(lock, until) if lock.lock_id in held else lock)
    return after, tuple(lock for lock in after.locks if lock.lock_id in held)


def require_held(box: Box, lock_ids: Sequence[str], group: str, task: str, turn: Turn) -> tuple[Lock, ...]:
    """Return the locks of those ids, if the task holds every one of them and none is revoked.

    Raises :class:`LockRevokedError` and :class:`LockLostError` (``lock-lost``, ``no-lock``).
    """
    if not lock_ids:
        raise LockLostError("no-lock", f"{task} of {group} holds no lock", table=turn.table, hint="Acquire one first.")
    return tuple(_held(box, lock_id, group, task, turn) for lock_id in lock_ids)


def _held(box: Box, lock_id: str, group: str, task: str, turn: Turn) -> Lock:
    lock = box.find(lock_id)
    if lock is None or not lock.held_by(group, task):
        detail = f"{task} of {group} does not hold lock {lock_id}: it was released, or dropped long after its lease"
        raise LockLostError("lock-lost", detail, table=turn.table, hint="Run the work again under a new lock.")
    if not lock.active:
        raise revoked_error(turn.table, lock)
    return lock
