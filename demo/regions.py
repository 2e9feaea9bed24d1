"""Two regions that read the same status changes; one of them alters an event and loses another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.replication.emission import HeartbeatEmitter
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.event_source import write_heartbeat
from airflow_provider_segments.upsert.file_source import FileSource
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from demo import statuses

TABLE = "flight_status_of_regions"
REGIONS = {"east": (0, 1), "west": (2,)}
"""Which source partitions of the changes each region writes."""

CHANGES = 30_000


@dataclass(frozen=True, slots=True)
class Regions:
    """The stores of the two regions, and the folder below which the sources of both are."""

    stores: tuple[SegmentStore, SegmentStore]
    folder: Path

    def source(self, region: str) -> Path:
        """The folder of Parquet files that a region writes."""
        return self.folder / region

    def write(self, flights: Path) -> None:
        """Write the changes to the sources, with a heartbeat of each region in the middle and at the end."""
        events, _ = statuses.write_events(flights)
        events = events.slice(0, CHANGES)
        for half in (events.slice(0, CHANGES // 2), events.slice(CHANGES // 2)):
            for region, parts in REGIONS.items():
                self._write(half, region, parts)

    def ingest(self, *, with_faults: bool) -> None:
        """Have both regions read on in the sources. With ``with_faults`` the second one alters an event and loses
        another."""
        events = pa.concat_tables([self._read(region) for region in REGIONS], promote_options="default")
        for number, store in enumerate(self.stores):
            ingestor = UpsertIngestor(store.table(TABLE), name="demo", cache=self.folder / f"cache{number}")
            unread = _after(ingestor.positions(), events)
            ingest_to_barriers(ingestor, _broken(unread) if with_faults and number else unread)

    def differing(self) -> list[str]:
        """The flights of which readers of the two regions see different things."""
        shown = [
            {row["flight"]: row for row in read_rows(store.table(TABLE), columns=["flight", "status"]).to_pylist()}
            for store in self.stores
        ]
        return sorted(key for key in shown[0].keys() | shown[1].keys() if shown[0].get(key) != shown[1].get(key))

    def _write(self, events: pa.Table, region: str, parts: tuple[int, ...]) -> None:
        folder = self.source(region)
        folder.mkdir(parents=True, exist_ok=True)
        for number, part in enumerate(parts):
            chosen = events.filter(pa.compute.equal(events["$partition"], part)).drop_columns(["$partition", "$offset"])
            first = self._count(folder, number)
            placed = chosen.append_column("$partition", pa.repeat(pa.scalar(number, pa.int32()), len(chosen)))
            placed = placed.append_column("$offset", pa.array(range(first, first + len(chosen)), pa.int64()))
            placed = placed.append_column("$region", pa.repeat(region, len(chosen)))
            pyarrow.parquet.write_table(placed, folder / f"{first}-{number}.parquet")
        emitter = HeartbeatEmitter(self.stores[0].cluster, TABLE, region, "demo")
        emitter.emit(len(parts), partial(write_heartbeat, FileSource(folder), region))

    def _read(self, region: str) -> pa.Table:
        files = sorted(self.source(region).glob("*.parquet"))
        whole = pa.concat_tables([pyarrow.parquet.read_table(file) for file in files], promote_options="default")
        return whole.sort_by([("$partition", "ascending"), ("$offset", "ascending")])

    def _count(self, folder: Path, part: int) -> int:
        tables: Iterable[pa.Table] = (
            pyarrow.parquet.read_table(file, columns=["$partition"]) for file in folder.glob("*.parquet")
        )
        return sum(int(pa.compute.sum(pa.compute.equal(one["$partition"], part)).as_py() or 0) for one in tables)


def make(stores: tuple[SegmentStore, SegmentStore]) -> None:
    """Make the table in both regions."""
    for store in stores:
        store.apply_config(
            TableConfig.from_json(
                {
                    "tableName": TABLE,
                    "schema": {"primaryKeyColumns": ["flight"]},
                    "segmentsConfig": {"timeColumnName": "changed_at"},
                    "upsertConfig": {
                        "mode": "FULL",
                        "keyPartitions": 2,
                        "regions": list(REGIONS),
                        "heartbeatInterval": "1m",
                    },
                }
            )
        )


def _after(positions: Mapping[str, int], events: pa.Table) -> pa.Table:
    """The events that a table with these positions has not read."""
    places = zip(*(events[name].to_pylist() for name in ("$region", "$partition", "$offset")), strict=True)
    return events.filter(pa.array([at >= positions.get(f"{region}/{part}", 0) for region, part, at in places]))


def _broken(events: pa.Table) -> pa.Table:
    """The events with the last change of one flight altered, and that of another one lost."""
    is_row = events["flight"].is_valid()
    rows = events.append_column("at", pa.array(range(len(events)))).filter(is_row)
    last = rows.sort_by([("changed_at", "descending")]).column("at").to_pylist()
    altered, lost = last[0], next(at for at in last[1:] if events["flight"][at] != events["flight"][last[0]])
    status = events["status"].to_pylist()
    status[altered] = "lost in the clouds"
    events = events.set_column(events.schema.get_field_index("status"), "status", pa.array(status))
    return events.take([at for at in range(len(events)) if at != lost])
