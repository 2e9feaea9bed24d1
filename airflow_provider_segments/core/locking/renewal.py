"""Keeping leases alive while long work goes on.

Renewing decides nothing: the box extends a lease in its own compare-and-set, by its own clock, and only of a lock that
is still held. A renewal that comes late, or lands after its work has ended, therefore finds the lock or finds it gone;
it never brings one back. What makes a push safe are the fences (``box``); this only keeps its locks from being taken
for abandoned.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from airflow_provider_segments.core.locking.box import LockBox
from airflow_provider_segments.core.locking.types import DEFAULT_LEASE_MS, locks_of, revoked_error
from airflow_provider_segments.exceptions import LockLostError, SegmentsError

_PARTS = 3  # renewals a lease: two in a row may fail before anybody can take the lock
_LOOK_AGAIN_S = 0.1
_AGAIN_S = 5.0  # longest pause after ZooKeeper did not answer
_LINGER_S = 2.0  # longest wait, on leaving, for a renewal that is under way

log = logging.getLogger(__name__)


class KeptLeases:
    """Locks whose leases are being renewed, and what became of those that are not held any more. See
    :func:`keep_leases`."""

    def __init__(
        self,
        box: LockBox,
        group: str,
        task: str,
        lease_ms: int,
        lock_ids: Sequence[str] | None,
        lost: Callable[[Exception], None] | None,
    ) -> None:
        self.error: Exception | None = None
        """What ended the renewals: a :class:`LockLostError`, or a :class:`LockRevokedError` naming who did it. Without
        ``lock_ids``: the first lock of the task that was found revoked."""
        self.renewed = 0
        """How often the leases were extended."""
        self._box = box
        self._group = group
        self._task = task
        self._lease_ms = lease_ms
        self._lock_ids = lock_ids
        self._lost = lost
        self._stop = threading.Event()

    def check(self) -> None:
        """Raise :attr:`error`, if there is one: for work that goes in steps and can stop between them."""
        if self.error is not None:
            raise self.error

    def renew(self) -> None:
        """Extend the leases once, now. Raises what :meth:`LockBox.renew` raises."""
        lock_ids = self._lock_ids if self._lock_ids is not None else self._active()
        if lock_ids:
            self._box.renew(self._group, self._task, self._lease_ms, lock_ids)
            self.renewed += 1

    def run(self) -> None:
        """Renew until :meth:`stop`, or until a lock is lost."""
        pause_s: float | None = self._lease_ms / 1000 / _PARTS
        while pause_s is not None and not self._stop.wait(pause_s):
            pause_s = self._turn(self._lease_ms / 1000 / _PARTS)

    def stop(self) -> None:
        """No renewal starts after this."""
        self._stop.set()

    def _turn(self, every_s: float) -> float | None:
        """Renew, and say how long to wait for the next time; ``None`` when there is nothing left to renew."""
        try:
            self.renew()
            return every_s
        except LockLostError as error:
            if self._lock_ids is None:  # released or revoked between our look and our write: look again
                return min(every_s, _LOOK_AGAIN_S)
            self._give_up(error)
        except SegmentsError as error:  # ZooKeeper is away or busy; the lease may still hold, and so may the lock
            log.warning("Leases of %s on table %s are not renewed yet: %s", self._task, self._box.table, error)
            return min(every_s / 4, _AGAIN_S)
        except Exception as error:  # a thread that dies in silence would look like one that renews
            self._give_up(error)
        return None

    def _active(self) -> list[str]:
        """Return the ids of the active locks of the task. Revoked ones must not keep the others from being renewed."""
        own = locks_of(self._box.locks(), self._group, self._task)
        ended = next((lock for lock in own if not lock.active), None)
        if ended is not None and self.error is None:
            self._tell(revoked_error(self._box.table, ended))
        return [lock.lock_id for lock in own if lock.active]

    def _give_up(self, error: Exception) -> None:
        if not self._stop.is_set():  # our own release may have come before a renewal that was under way
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        log.error("Leases of %s on table %s: %s", self._task, self._box.table, error)
        self.error = error
        if self._lost is not None:
            self._lost(error)


@contextmanager
def keep_leases(
    box: LockBox,
    group: str,
    task: str,
    lease_ms: int = DEFAULT_LEASE_MS,
    lock_ids: Sequence[str] | None = None,
    *,
    lost: Callable[[Exception], None] | None = None,
) -> Iterator[KeptLeases]:
    """Renew leases once at the start and then, in a daemon thread, every third of ``lease_ms`` until the block ends.

    With ``lock_ids``, those locks: a lost one ends the renewals, since work that relies on all of them has lost, and
    ``error`` says why. Without, whatever ``task`` of ``group`` holds at the time, none perhaps: for work that takes and
    releases locks as it goes; a revoked lock then sets ``error`` and the others are renewed on. ``lost`` is called
    once with the error, in the thread. A lost connection is tried again, for as long as the block lasts.

    Leaving the block takes at most 2 s when ZooKeeper is away; a renewal still under way then does no harm. Raises at
    the start what :meth:`LockBox.renew` raises: :class:`LockRevokedError` and :class:`LockLostError`. The block's end
    raises nothing; whoever publishes is stopped by the fences."""
    kept = KeptLeases(box, group, task, lease_ms, lock_ids, lost)
    kept.renew()
    thread = threading.Thread(target=kept.run, name=f"segments-leases-{box.table}", daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        kept.stop()
        thread.join(_LINGER_S)
