"""Wait until regions are heard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_segments.core.model.period import parse_period
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.operators.base import parse_names
from airflow_provider_segments.sensors.base import SegmentsSensor
from airflow_provider_segments.triggers.replication import HeartbeatLagTrigger, judge_lag

if TYPE_CHECKING:
    from airflow.sdk import Context


class HeartbeatLagSensor(SegmentsSensor):
    """Wait until an upsert table has fresh data of its regions: the gate of a DAG that needs all of them.

    Fresh is a region whose last heartbeat is not older than ``max_lag``: everything that it wrote before that is in the
    table. A region that was never heard is infinitely late. Returns the lags in milliseconds by region. With
    ``deferrable`` it looks once and then waits in the triggerer, on a ZooKeeper watch::

        HeartbeatLagSensor(task_id="fresh", table="flight_status", max_lag="5m", deferrable=True)

    :param table: Name of the table. (templated)
    :param max_lag: How old a heartbeat may be, such as ``5m``. (templated)
    :param regions: Regions to wait for; empty: all that the table's config names. (templated)
    """

    template_fields: Sequence[str] = ("table", "max_lag", "regions", "segments_conn_id")

    def __init__(self, *, table: str, max_lag: str, regions: Sequence[str] | str = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.max_lag = max_lag
        self.regions = regions

    def trigger(self) -> HeartbeatLagTrigger:
        """Waits for the same regions."""
        return HeartbeatLagTrigger(
            table=self.table,
            regions=parse_names(self.regions, "regions"),
            max_lag_ms=parse_period(self.max_lag),
            segments_conn_id=self.segments_conn_id,
            poll_interval=self.poll_interval,
        )

    def poke(self, context: Context) -> bool | PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look once."""
        regions, max_lag_ms = parse_names(self.regions, "regions"), parse_period(self.max_lag)
        with SegmentsHook(self.segments_conn_id).get_conn() as store:
            found = judge_lag(store.table(self.table), regions, max_lag_ms)
        return False if found is None else PokeReturnValue(is_done=True, xcom_value=found["lags"])

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, int]:  # noqa: ARG002
        """Take the trigger's event."""
        self.log.info("Table %s has heard all regions: %s", event["table"], event["lags"])
        return dict(event["lags"])
