"""Which segment of a table is meant, by Druid's three coordinates."""

from __future__ import annotations

from typing import NamedTuple

from airflow_provider_segments.model.interval import Interval


class SegmentKey(NamedTuple):
    """The identity of a segment within its table: two segments with the same key are the same segment."""

    interval: Interval
    version: str
    partition: int
