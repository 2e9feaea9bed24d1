"""The lineage znode: ``/<cluster>/PROPERTYSTORE/SEGMENT_LINEAGE/<table>``, byte for byte as Pinot writes it."""

from __future__ import annotations

import re
from types import MappingProxyType

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.model.names import is_entry_id
from airflow_provider_segments.core.zookeeper import znrecord
from airflow_provider_segments.core.zookeeper.znrecord import ZNRecord
from airflow_provider_segments.exceptions import CorruptRecordError

CUSTOM_MAP = "custom.map"
_MILLIS = re.compile(r"-?\d{1,19}", re.ASCII)


def encode(lineage: Lineage) -> bytes:
    """The lineage as it is stored. Raises :class:`RecordTooLargeError`."""
    lists: dict[str, list[str | None] | None] = {
        entry.entry_id: [entry.joined_from, entry.joined_to, entry.state.value, str(entry.timestamp_ms), *entry.extra]
        for entry in lineage
    }
    maps: dict[str, dict[str, str | None] | None] = {}
    if lineage.custom_map is not None:
        maps[CUSTOM_MAP] = dict(lineage.custom_map)
    return znrecord.encode(ZNRecord(lineage.table, {}, maps, lists))


def decode(payload: bytes, table: str, where: str = "") -> Lineage:
    """The lineage in ``payload``, which was read from the znode ``where``.

    Raises :class:`CorruptRecordError` for anything that is not one, a record of another table included: read as
    "no lineage" (as Pinot does) it would make every hidden segment visible, and the next start would erase it.
    """
    where = where or f"lineage of table {table!r}"
    record = znrecord.decode(payload, where, with_lists=True)
    if record.id != table:
        raise CorruptRecordError(f"{where}: the record says it belongs to {record.id[:80]!r}")
    entries = {key: _entry(key, values, where) for key, values in record.list_fields.items()}
    return Lineage(table, MappingProxyType(entries), record.map_fields.get(CUSTOM_MAP))


def _entry(entry_id: str, values: list[str | None] | None, where: str) -> LineageEntry:
    if not is_entry_id(entry_id):
        raise CorruptRecordError(f"{where}: {entry_id[:80]!r} is not the id of an entry")
    if values is None or len(values) < 4:
        raise CorruptRecordError(f"{where}: entry {entry_id!r} has {len(values or ())} elements, expected 4 or more")
    joined_from, joined_to, state, millis = values[:4]
    if joined_from is None or joined_to is None or state is None or millis is None:
        raise CorruptRecordError(f"{where}: entry {entry_id!r} has a null element")
    if state not in EntryState.__members__:
        raise CorruptRecordError(f"{where}: entry {entry_id!r} is in the unknown state {state[:80]!r}")
    if _MILLIS.fullmatch(millis) is None:
        raise CorruptRecordError(f"{where}: entry {entry_id!r} has the time {millis[:80]!r}, expected milliseconds")
    return LineageEntry(entry_id, joined_from, joined_to, EntryState[state], int(millis), tuple(values[4:]))
