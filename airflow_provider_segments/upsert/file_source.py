"""Adding events to a source of Parquet files.

Offsets are those after the greatest ones in the folder, so nobody may add other events meanwhile: give the Airflow
tasks that do one pool with one slot.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.dataset
import pyarrow.parquet

from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.replication.heartbeat import Heartbeat
from airflow_provider_segments.core.storage.base import random_id
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION, REGION
from airflow_provider_segments.upsert.source_read import HEARTBEAT

_PLACES = pyarrow.schema([(PARTITION, pyarrow.int32()), (OFFSET, pyarrow.int64())])


def write_heartbeat(folder: Path, region: str, heartbeat: Heartbeat) -> None:
    """Add a heartbeat to each source partition of ``region``, whose events are the files in ``folder``."""
    partitions = range(heartbeat.partitions)
    rows = pyarrow.table(
        {
            REGION: pyarrow.array([region] * len(partitions)),
            PARTITION: pyarrow.array(partitions, pyarrow.int32()),
            HEARTBEAT: pyarrow.array([records.encode(heartbeat).decode()] * len(partitions)),
        }
    )
    add_events(folder, "heartbeat", rows)


def add_events(folder: Path, name: str, events: pyarrow.Table) -> None:
    """Add ``events``, which say their ``$partition``, after those of the files in ``folder``, as a file whose name
    begins with ``name``. It is there in whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    places = pyarrow.dataset.dataset(folder, schema=_PLACES, format="parquet").to_table()
    ends = places.group_by(PARTITION).aggregate([(OFFSET, "max")])
    last = dict(zip(ends.column(PARTITION).to_pylist(), ends.column(f"{OFFSET}_max").to_pylist(), strict=True))
    offsets: list[int] = []
    for part in events.column(PARTITION).to_pylist():
        last[part] = last.get(part, -1) + 1
        offsets.append(last[part])
    if OFFSET in events.column_names:
        events = events.drop_columns([OFFSET])
    file = f"{name}-{random_id()}.parquet"
    pyarrow.parquet.write_table(
        events.append_column(OFFSET, pyarrow.array(offsets, pyarrow.int64())), folder / f".{file}"
    )
    (folder / f".{file}").rename(folder / file)
