"""Wait for the deletion backlog to become small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.sensors.base import SegmentsSensor
from airflow_provider_segments.triggers.deletion import DeletionBacklogTrigger, judge

if TYPE_CHECKING:
    from airflow.sdk import Context


class DeletionBacklogSensor(SegmentsSensor):
    """Wait until few enough deletion messages are in flight, of all tables of the cluster.

    Returns the backlog. With ``deferrable`` it looks once and then waits in the triggerer::

        DeletionBacklogSensor(task_id="deleted", max_in_flight=0, max_dead=0, deferrable=True)

    :param max_in_flight: Most messages that may still be delivered (pending and retry); ``None``: any. (templated)
    :param max_dead: Most dead letters; ``None``: any. (templated)
    """

    template_fields: Sequence[str] = ("max_in_flight", "max_dead", "segments_conn_id")

    def __init__(
        self, *, max_in_flight: int | str | None = 0, max_dead: int | str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**{"poll_interval": 30.0, **kwargs})
        self.max_in_flight = max_in_flight
        self.max_dead = max_dead

    def trigger(self) -> DeletionBacklogTrigger:
        """Waits for the same limits."""
        return DeletionBacklogTrigger(
            max_in_flight=_limit("max_in_flight", self.max_in_flight),
            max_dead=_limit("max_dead", self.max_dead),
            segments_conn_id=self.segments_conn_id,
            poll_interval=self.poll_interval,
        )

    def poke(self, context: Context) -> bool | PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look at the backlog once."""
        hook = SegmentsHook(self.segments_conn_id)
        limits = _limit("max_in_flight", self.max_in_flight), _limit("max_dead", self.max_dead)
        if limits == (None, None):
            raise ValueError("give max_in_flight, max_dead, or both: without them there is nothing to wait for")
        with hook.get_conn() as store:
            backlog = store.queue.backlog()
        found = judge(backlog, *limits)
        if found is None:
            self.log.info("%d messages in flight, %d dead letters.", backlog.in_flight, backlog.dead)
            return False
        return PokeReturnValue(is_done=True, xcom_value=found)

    def execute_complete(self, context: Context, event: dict[str, int]) -> dict[str, int]:  # noqa: ARG002 - as above
        """Take the trigger's event."""
        self.log.info("%d messages in flight, %d dead letters.", event["in_flight"], event["dead"])
        return event


def _limit(name: str, value: int | str | None) -> int | None:
    """A limit that may have come out of a template."""
    if value is None or value in ("", "None"):
        return None
    number = int(value)
    if number < 0:
        raise ValueError(f"{name} must be 0 or more, not {number}")
    return number
