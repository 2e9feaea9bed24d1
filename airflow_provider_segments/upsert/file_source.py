"""Adding events to a source of Parquet files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.dataset
import pyarrow.parquet

from airflow_provider_segments.core.storage.base import random_id
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION

_PLACES = pyarrow.schema([(PARTITION, pyarrow.int32()), (OFFSET, pyarrow.int64())])


@dataclass(frozen=True, slots=True)
class FileSource:
    """A folder in which events arrive as Parquet files.

    Offsets are those after the greatest ones in the folder, so nobody may add other events meanwhile: give the Airflow
    tasks that do one pool with one slot.
    """

    folder: Path

    def add_events(self, name: str, events: pyarrow.Table) -> None:
        """Add ``events`` as a file whose name begins with ``name``. It is there in whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        places = pyarrow.dataset.dataset(self.folder, schema=_PLACES, format="parquet").to_table()
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
            events.append_column(OFFSET, pyarrow.array(offsets, pyarrow.int64())), self.folder / f".{file}"
        )
        (self.folder / f".{file}").rename(self.folder / file)
