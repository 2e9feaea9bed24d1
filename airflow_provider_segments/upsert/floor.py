"""Raising the floor and the cutoff of an upsert table: what is given up before anything is dropped."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.upsert.record import UpsertRecord, require_record, store_record


def raise_floor(context: TableContext, floor: int) -> UpsertRecord:
    """Give up reading at marks below ``floor``; returns the record. It never falls. Raises :class:`UpsertRefusedError`
    (``above-clock``, ``rolled-back``: a void cannot be the oldest mark)."""

    def change(record: UpsertRecord) -> UpsertRecord:
        if floor <= record.floor:
            return record
        return record.raised(record.check_mark(floor, context.table))

    return _change(context, change)


def raise_cutoff(context: TableContext, cutoff: int) -> UpsertRecord:
    """Take no event whose comparison value is below ``cutoff`` any more; returns the record. It never falls. Only what
    is below the cutoff may be forgotten: a delete record keeps older events of its key away until then."""
    return _change(context, lambda record: msgspec.structs.replace(record, cutoff=max(record.cutoff, cutoff)))


def _change(context: TableContext, change: Callable[[UpsertRecord], UpsertRecord]) -> UpsertRecord:
    def attempt() -> UpsertRecord:
        stored = context.records.read()
        record = require_record(stored.lineage)
        changed = change(record)
        if changed != record:
            context.session.commit([context.records.write(stored, store_record(stored.lineage, changed))])
        return changed

    return context.retried("upsert record", attempt)
