"""Heartbeats of a region."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.operators.base import SegmentsOperator
from airflow_provider_segments.operators.metrics import gauge_heartbeats

if TYPE_CHECKING:
    from airflow.sdk import Context


class EmitHeartbeatOperator(SegmentsOperator):
    """Write a heartbeat of a region into its source of Parquet files, and say how long ago each region was heard.

    Nobody else may add events to the folder meanwhile: give this task and the one that does a pool of one slot::

        EmitHeartbeatOperator(task_id="beat", table="status", region="eu", folder="/data/events/eu", partitions=2)

    Returns the heartbeat's time in epoch milliseconds.

    :param region: One of the table's ``upsertConfig.regions``. (templated)
    :param folder: Where the region's events arrive. (templated)
    :param partitions: How many source partitions the region has; they are numbered from 0. (templated)
    """

    template_fields: Sequence[str] = (*SegmentsOperator.template_fields, "region", "folder", "partitions")

    def __init__(self, *, region: str, folder: str, partitions: int | str = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.region = region
        self.folder = folder
        self.partitions = partitions

    def execute(self, context: Context) -> int:
        """Emit once. The emitter is the deployment's DAG and task: a retry goes on in the same term."""
        from airflow_provider_segments.core.replication.emission import HeartbeatEmitter
        from airflow_provider_segments.upsert.file_source import write_heartbeat

        ti = context["ti"]
        emitter = f"{self.hook.settings.deployment}/{ti.dag_id}/{ti.task_id}"
        with self.open_table() as table:
            gauge_heartbeats(table)
            send = partial(write_heartbeat, Path(self.folder), self.region)
            sent = HeartbeatEmitter(table.store.cluster, table.name, self.region, emitter).emit(
                int(str(self.partitions)), send
            )
        self.log.info("Table %s, region %s: heartbeat of term %d", self.table, self.region, sent.term)
        return sent.time_ms
