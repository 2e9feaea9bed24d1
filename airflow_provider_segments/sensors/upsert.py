"""Wait for an upsert table to reach a mark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_segments.core.model.interval import parse_time
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.sensors.base import SegmentsSensor
from airflow_provider_segments.triggers.upsert import UpsertMarkTrigger, judge

if TYPE_CHECKING:
    from airflow.sdk import Context


class UpsertMarkSensor(SegmentsSensor):
    """Wait until an upsert table shows a version, or anything published since a time.

    Returns the newest version: read at that mark, and everybody who does sees the same rows. With ``deferrable`` it
    looks once and then waits in the triggerer, on a ZooKeeper watch::

        UpsertMarkSensor(task_id="fresh", table="flight_status", published_since="{{ data_interval_end }}")

    :param table: Name of the table. (templated)
    :param version: The version to wait for; that or a later one ends the wait. (templated)
    :param published_since: The time, as ISO 8601, at or after which a version must have been published. (templated)
    """

    template_fields: Sequence[str] = ("table", "version", "published_since", "segments_conn_id")

    def __init__(
        self, *, table: str, version: int | str | None = None, published_since: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.version = version
        self.published_since = published_since

    def trigger(self) -> UpsertMarkTrigger:
        """Waits for the same mark."""
        version, published_ms = self._wanted()
        return UpsertMarkTrigger(
            table=self.table,
            version=version,
            published_ms=published_ms,
            segments_conn_id=self.segments_conn_id,
            poll_interval=self.poll_interval,
        )

    def poke(self, context: Context) -> bool | PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look once."""
        wanted = self._wanted()
        with SegmentsHook(self.segments_conn_id).get_conn() as store:
            found = judge(store.table(self.table), *wanted)
        return False if found is None else PokeReturnValue(is_done=True, xcom_value=found["version"])

    def execute_complete(self, context: Context, event: dict[str, Any]) -> int:  # noqa: ARG002 - Airflow's signature
        """Take the trigger's event."""
        self.log.info("Table %s is at version %d.", event["table"], event["version"])
        return int(event["version"])

    def _wanted(self) -> tuple[int | None, int | None]:
        version = None if self.version in (None, "") else int(str(self.version))
        published_ms = parse_time(self.published_since) if self.published_since else None
        if version is None and published_ms is None:
            raise ValueError("give version or published_since: any version would do")
        return version, published_ms
