"""What the sensors share: look once, then defer or poke."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf

from airflow_provider_segments.hooks.segments import SegmentsHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.triggers.base import SegmentsTrigger


class SegmentsSensor(BaseSensorOperator):
    """Base of the sensors.

    :param segments_conn_id: The ``segments`` connection. (templated)
    :param deferrable: Whether to wait in the triggerer.
    :param poll_interval: When deferred, the longest time in seconds between two looks.
    """

    ui_color = "#e8f0f7"

    def __init__(
        self,
        *,
        segments_conn_id: str = SegmentsHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.segments_conn_id = segments_conn_id
        self.deferrable = deferrable
        self.poll_interval = poll_interval

    @abstractmethod
    def trigger(self) -> SegmentsTrigger:
        """What waits for the same in the triggerer."""

    def execute(self, context: Context) -> Any:
        """Look once; then defer, or poke as sensors do."""
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if isinstance(found, PokeReturnValue):
            return found.xcom_value
        timeout = timedelta(seconds=float(self.timeout))
        self.defer(trigger=self.trigger(), method_name="execute_complete", timeout=timeout)
        return None
