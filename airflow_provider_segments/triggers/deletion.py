"""Waits for the deletion backlog to become small."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.triggers.base import open_session, patiently

if TYPE_CHECKING:
    from airflow_provider_segments.deletion.queue import Backlog
    from airflow_provider_segments.zookeeper.session import ZooKeeperSession


def read_backlog(session: ZooKeeperSession, cluster: str) -> Backlog:
    """The backlog now, counted from names."""
    from airflow_provider_segments.clock import SYSTEM_CLOCK
    from airflow_provider_segments.deletion.queue import ZooKeeperQueue
    from airflow_provider_segments.paths import ClusterPaths

    return ZooKeeperQueue(session, ClusterPaths(cluster), SYSTEM_CLOCK).backlog()


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


class DeletionBacklogTrigger(BaseTrigger):
    """Fires when no more than ``max_in_flight`` messages are in flight, and no more than ``max_dead`` are dead letters.

    ``None`` asks for nothing. Holds one ZooKeeper session while it waits and looks every ``poll_interval`` seconds, in
    a thread. ZooKeeper being away is waited out.
    """

    def __init__(
        self,
        *,
        max_in_flight: int | None = 0,
        max_dead: int | None = None,
        segments_conn_id: str = SegmentsHook.default_conn_name,
        poll_interval: float = 30.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.max_in_flight = max_in_flight
        self.max_dead = max_dead
        self.segments_conn_id = segments_conn_id
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments. No secret among them: the triggerer looks the connection up itself."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "max_in_flight": self.max_in_flight,
                "max_dead": self.max_dead,
                "segments_conn_id": self.segments_conn_id,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event, the backlog. The session is closed before."""
        settings = await SegmentsHook(self.segments_conn_id).asettings()
        async with open_session(settings, self.poll_interval) as session:
            found = await self._wait(session, settings.cluster)
        yield TriggerEvent(found)  # type: ignore[no-untyped-call]

    async def _wait(self, session: ZooKeeperSession, cluster: str) -> dict[str, int]:
        while True:
            backlog = await patiently(lambda: asyncio.to_thread(read_backlog, session, cluster), self.poll_interval)
            if found := judge(backlog, self.max_in_flight, self.max_dead):
                return found
            await asyncio.sleep(self.poll_interval)
