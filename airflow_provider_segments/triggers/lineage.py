"""Waits for a lineage entry to reach a state, on a ZooKeeper watch."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.triggers.base import SegmentsTrigger, patiently, when_changed

if TYPE_CHECKING:
    from airflow_provider_segments.core.table import SegmentStore

REACHED = "reached"
IMPOSSIBLE = "impossible"
STATES = ("IN_PROGRESS", "COMPLETED", "REVERTED")


def judge(table: str, entry_id: str, wanted: Collection[str], state: str | None) -> dict[str, str] | None:
    """The event that ends the wait, ``reached`` or ``impossible``, or ``None`` to wait on.

    An entry moves on: IN_PROGRESS, COMPLETED, REVERTED. A REVERTED one may be brought back, but only by a person, for
    whom no task waits. One that is gone (``None``) was cleaned up and never comes back.
    """
    about = {"table": table, "entry_id": entry_id}
    if state is None:
        why = "the entry is gone: it was cleaned up, or never made"
        return {"status": IMPOSSIBLE, "state": "GONE", "message": f"table {table!r}, entry {entry_id}: {why}", **about}
    if state in wanted:
        return {"status": REACHED, "state": state, "message": f"table {table!r}, entry {entry_id} is {state}", **about}
    if not any(STATES.index(one) > STATES.index(state) for one in wanted):
        why = f"the entry is {state} and cannot become {' or '.join(sorted(wanted))} any more"
        return {"status": IMPOSSIBLE, "state": state, "message": f"table {table!r}, entry {entry_id}: {why}", **about}
    return None


class LineageStateTrigger(SegmentsTrigger):
    """Fires when the entry is in one of ``states``, or can no longer get there.

    It watches the entry's own record, and not the lineage, which every push of the table changes. See
    :func:`when_changed`.
    """

    def __init__(self, *, table: str, entry_id: str, states: list[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.entry_id = entry_id
        self.states = states

    def arguments(self) -> dict[str, Any]:
        """The entry and the states."""
        return {"table": self.table, "entry_id": self.entry_id, "states": self.states}

    async def wait(self, store: SegmentStore) -> dict[str, Any]:
        """Look whenever the entry's record changes."""
        table = store.table(self.table)
        path = await patiently(lambda: asyncio.to_thread(table.entry_path, self.entry_id), self.poll_interval)

        def look() -> dict[str, str] | None:
            state = table.entry_state(self.entry_id)
            return judge(self.table, self.entry_id, self.states, None if state is None else state.value)

        return await when_changed(store, path, look, self.poll_interval)
