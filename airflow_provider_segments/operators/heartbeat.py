"""Heartbeats of a region."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import AssetAlias, BaseHook
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_segments.assets.segments import EVENTS_ALIAS, emit_event, regions_asset
from airflow_provider_segments.operators.base import SegmentsOperator
from airflow_provider_segments.operators.metrics import gauge_heartbeats

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.core.replication.heartbeat import Lag
    from airflow_provider_segments.core.table import Table
    from airflow_provider_segments.upsert.event_source import EventSource


class EmitHeartbeatOperator(SegmentsOperator):
    """Write a heartbeat of a region into each partition of its source, and say how long ago each region was heard.

    The source is a topic of Kafka, or a folder of Parquet files. Nobody else may add events to a folder meanwhile: give
    this task and the one that does a pool of one slot::

        EmitHeartbeatOperator(task_id="beat", table="status", region="eu", topic="eu", kafka_conn_id="kafka_default")
        EmitHeartbeatOperator(task_id="beat", table="status", region="eu", folder="/data/events/eu", partitions=2)

    The lag of each region is a gauge, every time. That a region has become silent, or is heard again, is told once: by
    a warning in the log, and by an event of :func:`.regions_asset`.

    Returns the heartbeat's time in epoch milliseconds.

    :param region: One of the table's ``upsertConfig.regions``. (templated)
    :param folder: Where the region's events arrive as files. (templated)
    :param topic: The region's topic. (templated)
    :param kafka_conn_id: Connection of type ``kafka``, whose extra has the settings of the client. (templated)
    :param partitions: How many source partitions a folder has; they are numbered from 0. Kafka is asked. (templated)
    """

    template_fields: Sequence[str] = (
        *SegmentsOperator.template_fields,
        "region",
        "folder",
        "topic",
        "kafka_conn_id",
        "partitions",
    )

    def __init__(
        self,
        *,
        region: str,
        folder: str | None = None,
        topic: str | None = None,
        kafka_conn_id: str = "kafka_default",
        partitions: int | str = 1,
        **kwargs: Any,
    ) -> None:
        outlets = [*(kwargs.pop("outlets", None) or []), AssetAlias(name=EVENTS_ALIAS, group="segments")]
        super().__init__(outlets=outlets, **kwargs)
        self.region = region
        self.folder = folder
        self.topic = topic
        self.kafka_conn_id = kafka_conn_id
        self.partitions = partitions

    def execute(self, context: Context) -> int:
        """Emit once. The emitter is the deployment's DAG and task: a retry goes on in the same term."""
        from airflow_provider_segments.core.replication.emission import HeartbeatEmitter
        from airflow_provider_segments.upsert.event_source import write_heartbeat

        ti = context["ti"]
        emitter = f"{self.hook.settings.deployment}/{ti.dag_id}/{ti.task_id}"
        source, partitions = self._source()
        with self.open_table() as table:
            self._tell(context, self._look(table))
            send = partial(write_heartbeat, source, self.region)
            sent = HeartbeatEmitter(table.store.cluster, table.name, self.region, emitter).emit(partitions, send)
        self.log.info("Table %s, region %s: heartbeat of term %d", self.table, self.region, sent.term)
        return sent.time_ms

    def _source(self) -> tuple[EventSource, int]:
        """The source, and how many partitions it has."""
        from airflow_provider_segments.upsert.file_source import FileSource
        from airflow_provider_segments.upsert.kafka_source import KafkaSource

        if bool(self.folder) == bool(self.topic):
            raise AirflowFailException("give either the folder or the topic that the region's events arrive in")
        if self.folder:
            return FileSource(Path(self.folder)), int(str(self.partitions))
        topic = KafkaSource(str(self.topic), BaseHook.get_connection(self.kafka_conn_id).extra_dejson)
        return topic, topic.partitions()

    def _look(self, table: Table) -> dict[str, Lag]:
        """Send the gauges; returns the regions whose state has changed since it was told."""
        from airflow_provider_segments.core.replication.region_states import note_states
        from airflow_provider_segments.core.upsert.lag import heartbeat_lags
        from airflow_provider_segments.core.upsert.record import require_record

        lags = heartbeat_lags(table.config(), require_record(table.lineage()), table.store.clock.now_ms())
        gauge_heartbeats(table.name, lags)
        return note_states(table.store.cluster, table.name, lags)

    def _tell(self, context: Context, changed: dict[str, Lag]) -> None:
        for region, lag in changed.items():
            heard = "never" if lag.lag_ms is None else f"{lag.lag_ms / 1000:.0f} s ago"
            self.log.warning("Table %s: region %s is now %s, last heard: %s", self.table, region, lag.state, heard)
        if changed:
            states = {region: lag.state for region, lag in changed.items()}
            asset = regions_asset(self.table, self.hook.settings.cluster)
            emit_event(context, self.outlets, asset, {"change": "regions", "regions": states})
