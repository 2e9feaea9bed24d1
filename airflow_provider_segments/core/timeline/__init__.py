"""Timeline: versions, overshadowing and atomic update groups decide what of a table is visible at each moment."""

from airflow_provider_segments.core.model.identity import SegmentKey
from airflow_provider_segments.core.timeline.overlay import Overlay, Placed, gone_back_from, overlay, places_of
from airflow_provider_segments.core.timeline.render import TimelineLine, as_svg, ranges_text, timeline_lines
from airflow_provider_segments.core.timeline.segment import (
    Identified,
    SegmentState,
    TimelinePiece,
    VersionedSegment,
)
from airflow_provider_segments.core.timeline.stacks import SegmentStanding
from airflow_provider_segments.core.timeline.timeline import Timeline
from airflow_provider_segments.exceptions import TimelineRefusedError

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
