"""Waits for the deletion backlog to become small."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.triggers.base import SegmentsTrigger, patiently

if TYPE_CHECKING:
    from airflow_provider_segments.core.deletion.messages import Backlog
    from airflow_provider_segments.core.table import SegmentStore


def judge(backlog: Backlog, max_in_flight: int | None, max_dead: int | None) -> dict[str, int] | None:
    """The backlog as plain data when it is small enough, or ``None`` to wait on."""
    if max_in_flight is not None and backlog.in_flight > max_in_flight:
        return None
    if max_dead is not None and backlog.dead > max_dead:
        return None
    return {
        "in_flight": backlog.in_flight,
        "pending": backlog.pending,
        "retry": backlog.retry,
        "dead": backlog.dead,
        "sweeps": backlog.sweeps,
    }


class DeletionBacklogTrigger(SegmentsTrigger):
    """Fires when no more than ``max_in_flight`` messages are in flight, and no more than ``max_dead`` are dead letters.

    ``None`` asks for nothing. Looks every ``poll_interval`` seconds, in
    a thread. ZooKeeper being away is waited out.
    """

    def __init__(self, *, max_in_flight: int | None = 0, max_dead: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_in_flight = max_in_flight
        self.max_dead = max_dead

    def arguments(self) -> dict[str, Any]:
        """The limits."""
        return {"max_in_flight": self.max_in_flight, "max_dead": self.max_dead}

    async def wait(self, store: SegmentStore) -> dict[str, Any]:
        """Look now and then; the event is the backlog."""
        while True:
            backlog = await patiently(lambda: asyncio.to_thread(store.queue.backlog), self.poll_interval)
            if found := judge(backlog, self.max_in_flight, self.max_dead):
                return found
            await asyncio.sleep(self.poll_interval)
