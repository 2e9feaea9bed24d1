"""Events of regions with heartbeats between them, as a source has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow

from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.replication.heartbeat import Heartbeat
from tests.upsert.world import upsert_config

MINUTE = 60_000


def region_config(name: str = "t", regions: Sequence[str] = ("eu", "us"), **upsert: Any) -> TableConfig:
    """A table that expects a heartbeat of each region every minute."""
    return upsert_config(name, regions=list(regions), heartbeatInterval="1m", **upsert)


@dataclass
class Log:
    """What one region has written to its source partitions."""

    region: str
    partitions: int = 1
    rows: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    previous_ms: int = 0

    def __post_init__(self) -> None:
        self.sizes = [0] * self.partitions

    def event(self, key: str, value: str | None, time: int = 1, part: int = 0) -> None:
        """An event; without a value it deletes its key."""
        self._add(part, k=key, ts=time, v=value, deleted=value is None)

    def beat(self, time_ms: int, *, parts: Iterable[int] | None = None, term: int = 1) -> None:
        """A heartbeat in all source partitions, or only in some."""
        heartbeat = Heartbeat(term, time_ms, self.previous_ms, self.partitions)
        for part in range(self.partitions) if parts is None else parts:
            self._add(part, **{"$heartbeat": records.encode(heartbeat).decode()})
        if parts is None:
            self.previous_ms = time_ms

    def _add(self, part: int, **fields: Any) -> None:
        self.rows.append({"$region": self.region, "$partition": part, "$offset": self.sizes[part], **fields})
        self.sizes[part] += 1


TYPES = {
    "k": pyarrow.string(),
    "ts": pyarrow.int64(),
    "v": pyarrow.string(),
    "deleted": pyarrow.bool_(),
    "$region": pyarrow.string(),
    "$partition": pyarrow.int32(),
    "$offset": pyarrow.int64(),
    "$heartbeat": pyarrow.string(),
}


def arrow(rows: Iterable[dict[str, Any]]) -> pyarrow.Table:
    """Events as ingestion takes them."""
    return pyarrow.Table.from_pylist(list(rows), schema=pyarrow.schema(TYPES))
