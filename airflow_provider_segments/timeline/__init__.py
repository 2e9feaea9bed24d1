"""Timeline: versions, overshadowing and atomic update groups decide what of a table is visible at each moment."""

from airflow_provider_segments.exceptions import TimelineRefusedError
from airflow_provider_segments.model.identity import SegmentKey
from airflow_provider_segments.timeline.overlay import Overlay, Placed, gone_back_from, overlay, places_of
from airflow_provider_segments.timeline.render import TimelineLine, as_svg, ranges_text, timeline_lines
from airflow_provider_segments.timeline.segment import (
    Identified,
    SegmentState,
    TimelinePiece,
    VersionedSegment,
)
from airflow_provider_segments.timeline.stacks import SegmentStanding
from airflow_provider_segments.timeline.timeline import Timeline

__all__ = [
    "Identified",
    "Overlay",
    "Placed",
    "SegmentKey",
    "SegmentStanding",
    "SegmentState",
    "Timeline",
    "TimelineLine",
    "TimelinePiece",
    "TimelineRefusedError",
    "VersionedSegment",
    "as_svg",
    "gone_back_from",
    "overlay",
    "places_of",
    "ranges_text",
    "timeline_lines",
]
