"""Wait for other people's locks to go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_segments.core.model.interval import parse_time
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.operators.base import run_identity
from airflow_provider_segments.sensors.base import SegmentsSensor
from airflow_provider_segments.triggers.locks import SegmentLockTrigger, describe, now_ms

if TYPE_CHECKING:
    from airflow.sdk import Context


class SegmentLockSensor(SegmentsSensor):
    """Wait until no lock of others is on an interval. It takes no lock; somebody else may be faster.

    Locks of its own DAG run do not count, nor do revoked ones and those whose lease is over. With ``deferrable`` it
    looks once and then waits in the triggerer, on a ZooKeeper watch::

        SegmentLockSensor(task_id="quiet", table="events", start="{{ ds }}", end="{{ macros.ds_add(ds, 1) }}")

    :param table: Name of the table. (templated)
    :param start: Start of the interval, ISO 8601, UTC where it names no zone. (templated)
    :param end: End of the interval; it is not part of it. (templated)
    :param priority: Ignore locks below this priority. (templated)
    :param lock_id: Wait for this lock alone, whoever holds it; then no interval is needed. (templated)
    """

    template_fields: Sequence[str] = ("table", "start", "end", "priority", "lock_id", "segments_conn_id")

    def __init__(
        self,
        *,
        table: str,
        start: str | None = None,
        end: str | None = None,
        priority: int | str | None = None,
        lock_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.start = start
        self.end = end
        self.priority = priority
        self.lock_id = lock_id
        self._group = ""

    def trigger(self) -> SegmentLockTrigger:
        """Waits for the same locks."""
        if not self.lock_id and not (self.start and self.end):
            raise ValueError("give start and end, or lock_id: without them there is no lock to wait for")
        return SegmentLockTrigger(
            table=self.table,
            start_ms=parse_time(str(self.start)) if self.start else None,
            end_ms=parse_time(str(self.end)) if self.end else None,
            group=self._group,
            min_priority=None if self.priority in (None, "", "None") else int(self.priority or 0),
            lock_id=self.lock_id or None,
            segments_conn_id=self.segments_conn_id,
            poll_interval=self.poll_interval,
        )

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Look at the lock box once."""
        hook = SegmentsHook(self.segments_conn_id)
        self._group = run_identity(context, hook)
        wanted = self.trigger()
        with hook.get_conn() as store:
            locks = store.table(self.table).locks.locks()
        at_ms = now_ms()
        blockers = wanted.in_the_way(locks, at_ms)
        for lock in blockers[:5]:
            self.log.info("In the way: %s.", describe(lock, at_ms))
        return PokeReturnValue(is_done=True) if not blockers else False

    def execute_complete(self, context: Context, event: dict[str, str]) -> None:  # noqa: ARG002 - Airflow's signature
        """Take the trigger's event."""
        self.log.info("Table %s: nothing is in the way any more.", event["table"])
