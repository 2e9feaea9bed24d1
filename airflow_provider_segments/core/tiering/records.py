"""What an offload announces before it writes, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.ledger import OffloadContext, PendingDeleteLedgerInfo
from airflow_provider_segments.core.model.records import Record, RecordDecoder

_SHOWN = 20


class PlannedShard(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Segments of one registry shard (``<chunk>/<node>``, born at zxid ``born``) whose copies an offload may write."""

    shard: str
    born: int
    ledgers: tuple[PendingDeleteLedgerInfo, ...]


class OffloadRecord(Record, frozen=True, tag_field=records.FORMAT, tag=1):
    """``OFFLOADS/<table>/<uuid>``: an offload that may have written copies which nothing else refers to yet."""

    context: OffloadContext
    shards: tuple[PlannedShard, ...]
    started_ms: int


_DECODER = RecordDecoder(OffloadRecord, "offload record")


def encode(record: OffloadRecord) -> bytes:
    """The record as it is stored."""
    return records.encode(record)


def decode(payload: bytes, where: str) -> OffloadRecord:
    """The record in ``payload``. Raises :class:`CorruptRecordError` naming ``where`` it was read."""
    return _DECODER.decode(payload, where)


@dataclass(slots=True)
class OffloadReport:
    """What one call did.

    ``offloaded`` segments of ``bytes`` bytes now have a verified copy in ``tiered``; ``resumed`` offloads of killed
    runs were finished; ``busy`` ones belong to a run that is alive, ``elsewhere`` ones to another tiered storage.
    ``primary_marked`` segments of ``primary_bytes`` bytes are read from tiered storage from now on, and their primary
    copies are queued for deletion. ``damaged`` says of segments why they were not offloaded, or their primary copy was
    kept: an object that is missing, or is not what the registry says. ``full`` segments have no room in their shard.
    """

    table: str
    tiered: str
    offloaded: int = 0
    bytes: int = 0
    resumed: int = 0
    busy: int = 0
    elsewhere: int = 0
    primary_marked: int = 0
    primary_bytes: int = 0
    full: int = 0
    damaged_count: int = 0
    damaged: dict[str, str] = field(default_factory=dict)

    def note_damaged(self, damaged: Mapping[str, str]) -> None:
        """Count damaged segments and remember some of them."""
        self.damaged_count += len(damaged)
        for name, why in damaged.items():
            if len(self.damaged) < _SHOWN:
                self.damaged[name] = why

    def as_dict(self) -> dict[str, object]:
        """Plain values, for XCom, JSON and logs."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"damaged": dict(self.damaged)}
