"""How an upsert table stands: its mark, what can still be read, and how far readers with copies are behind."""

from __future__ import annotations

from airflow_provider_segments.core.lineage.entries import Lineage
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.upsert.marks import SILENT_MS, HeldVersions, low_water_mark
from airflow_provider_segments.core.upsert.record import NO_CUTOFF, require_record, waiting_bulks
from airflow_provider_segments.plugins.models import CopyReader, UpsertState, Version

MOST_VERSIONS = 200
"""Versions that the page lists, the newest first."""


def upsert_state(store: SegmentStore, lineage: Lineage, *, in_full: bool = False) -> UpsertState:
    """The state of an upsert table; with its readers, versions and source positions when it is wanted ``in_full``.
    Raises :class:`CorruptRecordError`."""
    record = require_record(lineage)
    held = HeldVersions(store.cluster, lineage.table).read()
    now_ms = store.clock.now_ms()
    state = UpsertState(
        mark=record.clock,
        mark_ms=record.published[-1].at_ms if record.published else None,
        floor=record.floor,
        cutoff=None if record.cutoff == NO_CUTOFF else record.cutoff,
        key_partitions=record.key_partitions,
        low_water_mark=low_water_mark(record.clock, held),
        waiting=len(waiting_bulks(lineage, record)),
        readers=[
            CopyReader(
                reader=one.reader,
                version=one.version,
                behind=record.clock - one.version,
                is_caught_up=one.is_caught_up,
                is_silent=one.is_silent(now_ms, SILENT_MS),
                at_ms=one.at_ms,
            )
            for one in held
        ],
    )
    if not in_full:
        return state
    versions = [
        Version(
            version=one.version,
            at_ms=one.at_ms,
            entry_id=one.entry_id,
            is_rollback=one.is_rollback,
            is_void=record.is_void(one.version),
        )
        for one in reversed(record.published[-MOST_VERSIONS:])
    ]
    return state.model_copy(update={"versions": versions, "positions": record.positions})
