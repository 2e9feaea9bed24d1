"""Wait for a lineage entry to reach a state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf

from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.triggers.lineage import IMPOSSIBLE, STATES, LineageStateTrigger, judge, read_entry

if TYPE_CHECKING:
    from airflow.sdk import Context


class LineageStateSensor(BaseSensorOperator):
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
    :param poll_interval: When deferred, the longest time in seconds between two looks.
    """

    template_fields: Sequence[str] = ("table", "entry_id", "states", "segments_conn_id")
    ui_color = "#e8f0f7"

    def __init__(
        self,
        *,
        table: str,
        entry_id: str,
        states: Sequence[str] = ("COMPLETED",),
        segments_conn_id: str = SegmentsHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.entry_id = entry_id
        self.states = states
        self.segments_conn_id = segments_conn_id
        self.deferrable = deferrable
        self.poll_interval = poll_interval

    def execute(self, context: Context) -> Any:
        """Look once; then defer, or poke as sensors do."""
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if isinstance(found, PokeReturnValue):
            return found.xcom_value
        self.defer(
            trigger=LineageStateTrigger(
                table=self.table,
                entry_id=self.entry_id,
                states=self._wanted(),
                segments_conn_id=self.segments_conn_id,
                poll_interval=self.poll_interval,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=float(self.timeout)),
        )
        return None

    def poke(self, context: Context) -> bool | PokeReturnValue:  # noqa: ARG002 - Airflow's signature
        """Look at the lineage once."""
        hook = SegmentsHook(self.segments_conn_id)
        wanted = self._wanted()
        with hook.get_session() as session:
            entry = read_entry(session, hook.settings.cluster, self.table, self.entry_id)
        event = judge(self.table, self.entry_id, wanted, entry)
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
