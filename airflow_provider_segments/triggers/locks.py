"""Waits for locks to go, on a ZooKeeper watch."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.core.model.period import format_period
from airflow_provider_segments.triggers.base import SegmentsTrigger, Watch, patiently

if TYPE_CHECKING:
    from airflow_provider_segments.core.locking import Lock, LockRequest
    from airflow_provider_segments.core.table import SegmentStore

FREE = "free"
TIMEOUT = "timeout"


def now_ms() -> int:
    """The time that leases are compared with here. A wrong clock makes a wait end too early or late, and no more than
    that: whether a lock is granted decides the lock box, and whether a push may publish decide the fences."""
    from airflow_provider_segments.clock import system_now_ms

    return system_now_ms()


def others(
    locks: Sequence[Lock],
    at_ms: int,
    *,
    start_ms: int | None,
    end_ms: int | None,
    group: str,
    min_priority: int | None,
    lock_id: str | None,
) -> tuple[Lock, ...]:
    """The locks that a sensor waits for: not revoked, within their lease, and either the one of that id or all those
    of other groups, of at least that priority, that overlap the interval."""
    from airflow_provider_segments.core.model.interval import Interval

    held = [lock for lock in locks if lock.active and not lock.abandoned(at_ms)]
    if lock_id:
        return tuple(lock for lock in held if lock.lock_id == lock_id)
    assert start_ms is not None and end_ms is not None
    interval = Interval(start_ms, end_ms)
    return tuple(
        lock
        for lock in held
        if lock.group != group and lock.overlaps(interval) and (min_priority is None or lock.priority >= min_priority)
    )


def describe(lock: Lock, at_ms: int) -> str:
    """A lock for a person who wonders whom to ask: owner, priority, age, and the end of its lease."""
    left = lock.lease_until_ms - at_ms
    lease = f"its lease ends in {format_period(left)} unless renewed" if left > 0 else "its lease is over"
    return f"{lock}, held by {', '.join(lock.tasks)} for {format_period(max(at_ms - lock.granted_ms, 0))}; {lease}"


class _UntilGone(SegmentsTrigger):
    """Waits until no lock stands in the way.

    It watches the fence of the first one, and not the lock box, which every append changes. A renewal does not touch
    the fence, so the end of a lease is looked for when it would come; ``poll_interval`` seconds is the longest time
    between two looks. ZooKeeper being away is waited out.
    """

    def __init__(self, *, table: str, until: float | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.until = until

    @abstractmethod
    def in_the_way(self, locks: Sequence[Lock], at_ms: int) -> tuple[Lock, ...]:
        """What is still waited for."""

    async def wait(self, store: SegmentStore) -> dict[str, Any]:
        """Look whenever the first lock in the way goes, or its lease ends."""
        box = store.table(self.table).locks
        watch: Watch | None = None
        try:
            while True:
                if watch is not None:  # before the look, so that no change is slept through
                    await patiently(watch.arm, self.poll_interval)
                locks = await patiently(lambda: asyncio.to_thread(box.locks), self.poll_interval)
                at_ms = now_ms()
                blockers = self.in_the_way(locks, at_ms)
                if not blockers or self._late(at_ms):
                    return {"status": TIMEOUT if blockers else FREE, "table": self.table, "until": self.until}
                fence = box.fence_path(blockers[0].lock_id)
                if watch is not None and watch.path == fence:
                    await watch.wait(self._pause_s(blockers[0], at_ms))
                    continue
                if watch is not None:
                    watch.forget()
                watch = Watch(store, fence)  # armed by the next round, which looks again
        finally:
            if watch is not None:
                watch.forget()

    def _late(self, at_ms: int) -> bool:
        return self.until is not None and at_ms >= self.until * 1000

    def _pause_s(self, blocker: Lock, at_ms: int) -> float:
        left_ms = [blocker.lease_until_ms + 1 - at_ms]
        if self.until is not None:
            left_ms.append(int(self.until * 1000) + 1 - at_ms)
        return min(self.poll_interval, max(min(left_ms), 1) / 1000)


class SegmentLockTrigger(_UntilGone):
    """Fires when no lock of others is on the interval any more, or when the one of ``lock_id`` is gone. See
    :func:`others`."""

    def __init__(
        self,
        *,
        start_ms: int | None = None,
        end_ms: int | None = None,
        group: str = "",
        min_priority: int | None = None,
        lock_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.group = group
        self.min_priority = min_priority
        self.lock_id = lock_id

    def arguments(self) -> dict[str, Any]:
        """The table and what counts."""
        return {"table": self.table, **self._wanted()}

    def in_the_way(self, locks: Sequence[Lock], at_ms: int) -> tuple[Lock, ...]:
        """What the sensor waits for."""
        return others(locks, at_ms, **self._wanted())

    def _wanted(self) -> dict[str, Any]:
        return {
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "group": self.group,
            "min_priority": self.min_priority,
            "lock_id": self.lock_id,
        }


class LockGrantTrigger(_UntilGone):
    """Fires when a lock could be granted, or at ``until``, in epoch seconds. It takes no lock: a lock belongs to a task
    that runs and can release it."""

    def __init__(
        self, *, group: str, holder: str, start_ms: int, end_ms: int, lock_type: str, priority: int, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.group = group
        self.holder = holder
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.lock_type = lock_type
        self.priority = priority

    def arguments(self) -> dict[str, Any]:
        """The request, and until when to wait."""
        return {
            "table": self.table,
            "group": self.group,
            "holder": self.holder,
            "start_ms": self.start_ms,
            "end_ms": self.end_ms,
            "lock_type": self.lock_type,
            "priority": self.priority,
            "until": self.until,
        }

    def in_the_way(self, locks: Sequence[Lock], at_ms: int) -> tuple[Lock, ...]:
        """What the lock box would name if it were asked now."""
        from airflow_provider_segments.core.locking.compatibility import Deny, decide

        decision = decide(locks, self._request(), at_ms)
        return decision.blockers if isinstance(decision, Deny) else ()

    def _request(self) -> LockRequest:
        from airflow_provider_segments.core.locking import LockRequest, LockType
        from airflow_provider_segments.core.model.interval import Interval

        return LockRequest(
            group=self.group,
            task=self.holder,
            interval=Interval(self.start_ms, self.end_ms),
            lock_type=LockType[self.lock_type],
            priority=self.priority,
        )
