"""Waits until regions of an upsert table are heard, on a ZooKeeper watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.triggers.base import SegmentsTrigger, when_changed

if TYPE_CHECKING:
    from airflow_provider_segments.core.table import SegmentStore, Table


def judge_lag(table: Table, regions: Sequence[str], max_lag_ms: int) -> dict[str, Any] | None:
    """The lag of each of ``regions`` (empty: all of the table's) when none is above ``max_lag_ms``, else ``None``. A
    region that was never heard is infinitely late.

    Raises :class:`TableNotFoundError`, and :class:`UpsertRefusedError` for a table that expects no heartbeats, or not
    from that region.
    """
    from airflow_provider_segments.core.upsert.lag import heartbeat_lags
    from airflow_provider_segments.core.upsert.record import require_record

    lags = heartbeat_lags(table.config(), require_record(table.lineage()), table.store.clock.now_ms(), regions)
    if any(one.lag_ms is None or one.lag_ms > max_lag_ms for one in lags.values()):
        return None
    return {"table": table.name, "lags": {region: one.lag_ms for region, one in lags.items()}}


class HeartbeatLagTrigger(SegmentsTrigger):
    """Fires when each of ``regions`` (empty: all) was heard within ``max_lag_ms``.

    It watches the lineage, which holds the heartbeats: a lag falls by a version only. See :func:`when_changed`.
    """

    def __init__(self, *, table: str, regions: Sequence[str], max_lag_ms: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.regions = list(regions)
        self.max_lag_ms = max_lag_ms

    def arguments(self) -> dict[str, Any]:
        """The table, the regions and the lag."""
        return {"table": self.table, "regions": self.regions, "max_lag_ms": self.max_lag_ms}

    async def wait(self, store: SegmentStore) -> dict[str, Any]:
        """Look whenever the lineage changes; the event has the lags."""
        table = store.table(self.table)
        path = store.paths.lineage(self.table)
        return await when_changed(
            store, path, lambda: judge_lag(table, self.regions, self.max_lag_ms), self.poll_interval
        )
