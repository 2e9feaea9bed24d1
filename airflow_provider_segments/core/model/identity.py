"""Which lock a push relies on."""

from __future__ import annotations

from airflow_provider_segments.core.model.records import Record


class HeldLock(Record, frozen=True):
    """A lock that a push relies on, and who holds it: see :mod:`airflow_provider_segments.core.locking`."""

    lock_id: str
    group: str
    task: str
