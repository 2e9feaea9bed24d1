"""Wait for a lineage entry to reach a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.sensors.base import SegmentsSensor
from airflow_provider_segments.triggers.lineage import IMPOSSIBLE, STATES, LineageStateTrigger, judge

if TYPE_CHECKING:
    from airflow.sdk import Context


class LineageStateSensor(SegmentsSensor):
    """Wait until a lineage entry is in one of ``states``; fail as soon as it cannot get there any more.

    Returns the state. With ``deferrable`` it looks once and then waits in the triggerer, on a ZooKeeper watch::

        LineageStateSensor(
            task_id="wait",
            table="flights",
            entry_id="{{ dag_run.conf['entry_id'] }}",
            deferrable=True,
        )

    :param table: Name of the table. (templated)
    :param entry_id: The entry, as ``start`` returned it. (templated)
    :param states: States to wait for: IN_PROGRESS, COMPLETED, REVERTED. (templated)
    """

    template_fields: Sequence[str] = ("table", "entry_id", "states", "segments_conn_id")

    def __init__(self, *, table: str, entry_id: str, states: Sequence[str] = ("COMPLETED",), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.entry_id = entry_id
        self.states = states

    def trigger(self) -> LineageStateTrigger:
        """Waits for the same entry."""
        return LineageStateTrigger(
            table=self.table,
            entry_id=self.entry_id,
            states=self._wanted(),
            segments_conn_id=self.segments_conn_id,
            poll_interval=self.poll_interval,
        )

    def poke(self, context: Context) -> bool | PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look at the lineage once."""
        hook = SegmentsHook(self.segments_conn_id)
        wanted = self._wanted()
        with hook.get_conn() as store:
            state = store.table(self.table).entry_state(self.entry_id)
        event = judge(self.table, self.entry_id, wanted, None if state is None else state.value)
        if event is None:
            return False
        return PokeReturnValue(is_done=True, xcom_value=self._settle(event))

    def execute_complete(self, context: Context, event: dict[str, str]) -> str:  # noqa: ARG002 - Airflow's signature
        """Take the trigger's event."""
        return self._settle(event)

    def _settle(self, event: dict[str, str]) -> str:
        from airflow.sdk.exceptions import AirflowFailException

        if event["status"] == IMPOSSIBLE:
            raise AirflowFailException(event["message"])
        self.log.info("%s.", event["message"])
        return event["state"]

    def _wanted(self) -> list[str]:
        wanted = [self.states] if isinstance(self.states, str) else list(self.states)
        unknown = [state for state in wanted if state not in STATES]
        if unknown or not wanted:
            raise ValueError(f"states must be some of {', '.join(STATES)}, not {wanted}")
        return wanted
