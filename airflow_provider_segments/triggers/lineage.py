"""Waits for a lineage entry to reach a state, on a ZooKeeper watch."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.triggers.base import SegmentsTrigger, Watch, patiently

if TYPE_CHECKING:
    from airflow_provider_segments.core.lineage.entries import LineageEntry
    from airflow_provider_segments.core.zookeeper.session import ZooKeeperSession

REACHED = "reached"
IMPOSSIBLE = "impossible"
STATES = ("IN_PROGRESS", "COMPLETED", "REVERTED")


def judge(table: str, entry_id: str, wanted: Collection[str], entry: LineageEntry | None) -> dict[str, str] | None:
    """Whether the wait is over: a ``reached`` or ``impossible`` event, or ``None`` to wait on.

    An entry only moves on: IN_PROGRESS, COMPLETED, REVERTED. One that is gone was cleaned up and never comes back.
    """
    about = {"table": table, "entry_id": entry_id}
    if entry is None:
        why = "the entry is gone: it was cleaned up, or never made"
        return {"status": IMPOSSIBLE, "state": "GONE", "message": f"table {table!r}, entry {entry_id}: {why}", **about}
    state = entry.state.value
    if state in wanted:
        return {"status": REACHED, "state": state, "message": f"table {table!r}, entry {entry_id} is {state}", **about}
    if not any(STATES.index(one) > STATES.index(state) for one in wanted):
        why = f"the entry is {state} and cannot become {' or '.join(sorted(wanted))} any more"
        return {"status": IMPOSSIBLE, "state": state, "message": f"table {table!r}, entry {entry_id}: {why}", **about}
    return None


def read_entry(session: ZooKeeperSession, cluster: str, table: str, entry_id: str) -> LineageEntry | None:
    """The entry as it stands now, or ``None``."""
    from airflow_provider_segments.core.lineage.records import LineageRecords
    from airflow_provider_segments.core.zookeeper.paths import ClusterPaths

    return LineageRecords(session, ClusterPaths(cluster), table).read().lineage.get(entry_id)


class LineageStateTrigger(SegmentsTrigger):
    """Fires when the entry is in one of ``states``, or can no longer get there.

    Holds one ZooKeeper session while it waits. The watch says when to look again; ``poll_interval`` seconds is the
    longest time between two looks, in case no watch comes. ZooKeeper being away is waited out.
    """

    def __init__(self, *, table: str, entry_id: str, states: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.entry_id = entry_id
        self.states = states

    def arguments(self) -> dict[str, Any]:
        """The entry and the states."""
        return {"table": self.table, "entry_id": self.entry_id, "states": self.states}

    async def wait(self, session: ZooKeeperSession, cluster: str) -> dict[str, Any]:
        """Look whenever the lineage changes."""
        from airflow_provider_segments.core.zookeeper.paths import ClusterPaths

        path = ClusterPaths(cluster).lineage(self.table)
        watch = Watch(session, path)
        try:
            while True:
                # Armed before the read: a change between the two wakes us, it is never slept through.
                await patiently(watch.arm, self.poll_interval)
                entry = await patiently(
                    lambda: asyncio.to_thread(read_entry, session, cluster, self.table, self.entry_id),
                    self.poll_interval,
                )
                event = judge(self.table, self.entry_id, self.states, entry)
                if event is not None:
                    return event
                await watch.wait(self.poll_interval)
        finally:
            watch.forget()
