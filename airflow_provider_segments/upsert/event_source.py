"""What a source of events is to whoever adds events to it: heartbeats, and rows that a repair writes again."""

from __future__ import annotations

from typing import Protocol

import pyarrow

from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.replication.heartbeat import Heartbeat
from airflow_provider_segments.upsert.columns import PARTITION, REGION
from airflow_provider_segments.upsert.source_read import HEARTBEAT


class EventSource(Protocol):
    """The source of one region, or of several: files, or a topic."""

    def add_events(self, name: str, events: pyarrow.Table) -> None:
        """Add ``events``, which say their ``$partition``, after all that are in the source, and return when they are
        durable. ``name`` says what they are, to people. Raises when any of them may be missing."""


def write_heartbeat(source: EventSource, region: str, heartbeat: Heartbeat) -> None:
    """Add a heartbeat to each source partition of ``region``. Raises what adding events raises."""
    partitions = range(heartbeat.partitions)
    rows = pyarrow.table(
        {
            REGION: pyarrow.array([region] * len(partitions)),
            PARTITION: pyarrow.array(partitions, pyarrow.int32()),
            HEARTBEAT: pyarrow.array([records.encode(heartbeat).decode()] * len(partitions)),
        }
    )
    source.add_events("heartbeat", rows)
