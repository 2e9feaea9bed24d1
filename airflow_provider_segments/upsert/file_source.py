"""Heartbeats in a source of files."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.dataset
import pyarrow.parquet

from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.replication.heartbeat import Heartbeat
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION, REGION
from airflow_provider_segments.upsert.source_read import HEARTBEAT

_PLACES = pyarrow.schema([(PARTITION, pyarrow.int32()), (OFFSET, pyarrow.int64())])


def write_heartbeat(folder: Path, region: str, heartbeat: Heartbeat) -> None:
    """Add a heartbeat to each source partition of ``region``, whose events are the Parquet files in ``folder``.

    Its offsets are those after the greatest ones in the folder, so nobody may add other events meanwhile: give the
    tasks that do one Airflow pool with one slot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places = pyarrow.dataset.dataset(folder, schema=_PLACES, format="parquet").to_table()
    ends = places.group_by(PARTITION).aggregate([(OFFSET, "max")])
    last = dict(zip(ends.column(PARTITION).to_pylist(), ends.column(f"{OFFSET}_max").to_pylist(), strict=True))
    partitions = range(heartbeat.partitions)
    rows = pyarrow.table(
        {
            REGION: pyarrow.array([region] * len(partitions)),
            PARTITION: pyarrow.array(partitions, pyarrow.int32()),
            OFFSET: pyarrow.array([last.get(part, -1) + 1 for part in partitions], pyarrow.int64()),
            HEARTBEAT: pyarrow.array([records.encode(heartbeat).decode()] * len(partitions)),
        }
    )
    name = f"heartbeat-{heartbeat.term}-{heartbeat.time_ms}.parquet"
    hidden = folder / f".{name}"
    pyarrow.parquet.write_table(rows, hidden)
    hidden.rename(folder / name)
