"""Which segment of a table is meant, by Druid's three coordinates, and which lock."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from airflow_provider_segments.core.model.interval import Interval


class SegmentKey(NamedTuple):
    """The identity of a segment within its table: two segments with the same key are the same segment."""

    interval: Interval
    version: str
    partition: int


class HeldLock(msgspec.Struct, frozen=True):
    """A lock that a push relies on, and who holds it: see :mod:`airflow_provider_segments.core.locking`."""

    lock_id: str
    group: str
    task: str
