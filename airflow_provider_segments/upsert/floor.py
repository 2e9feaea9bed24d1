"""Raising the floor of an upsert table: what is given up before anything is dropped."""

from __future__ import annotations

from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.upsert.record import UpsertRecord, require_record, store_record


def raise_floor(context: TableContext, floor: int) -> UpsertRecord:
    """Give up reading at marks below ``floor``; returns the record. It never falls. Raises :class:`UpsertRefusedError`
    (``above-clock``, ``rolled-back``: a void cannot be the oldest mark)."""

    def attempt() -> UpsertRecord:
        stored = context.records.read()
        record = require_record(stored.lineage)
        if floor <= record.floor:
            return record
        raised = record.raised(record.check_mark(floor, context.table))
        context.session.commit([context.records.write(stored, store_record(stored.lineage, raised))])
        return raised

    return context.retried("upsert record", attempt)
