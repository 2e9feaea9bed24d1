"""Timeline: versions, overshadowing and atomic update groups decide what of a table is visible at each moment."""

from airflow_provider_segments.exceptions import TimelineRefusedError
from airflow_provider_segments.model.identity import SegmentKey
from airflow_provider_segments.timeline.render import as_svg, as_text
from airflow_provider_segments.timeline.segment import (
    Identified,
    SegmentState,
    TimelinePiece,
    VersionedSegment,
)
from airflow_provider_segments.timeline.timeline import Timeline

__all__ = [
    "Identified",
    "SegmentKey",
    "SegmentState",
    "Timeline",
    "TimelinePiece",
    "TimelineRefusedError",
    "VersionedSegment",
    "as_svg",
    "as_text",
]
