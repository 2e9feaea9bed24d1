"""What the timeline is fed with, and what it answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from airflow_provider_segments.core.model.identity import SegmentKey
from airflow_provider_segments.core.model.interval import Interval

P = TypeVar("P")


class SegmentState(enum.Enum):
    """Where a segment that is in service stands (Druid #6319).

    STANDBY: waits for the rest of its atomic update group, or of its version's core set. VISIBLE: readers see it, at
    least in a part of its time. OVERSHADOWED: newer segments that readers do see took its place everywhere.
    """

    STANDBY = "standby"
    VISIBLE = "visible"
    OVERSHADOWED = "overshadowed"


class Identified(Protocol):
    """Whatever names one segment of a table: a :class:`SegmentKey` or a :class:`VersionedSegment`."""

    @property
    def interval(self) -> Interval: ...

    @property
    def version(self) -> str: ...

    @property
    def partition(self) -> int: ...


class VersionedSegment(msgspec.Struct, Generic[P], frozen=True, gc=False):
    """One segment as the timeline knows it.

    ``interval`` is its time chunk. ``version`` orders chunks of overlapping time; it is compared as text, so times
    must be written in one form. ``partition`` is its id, 0 or more, unique within (interval, version).
    ``overshadowed`` holds the partition ids, of the same interval and version, that it was made from; one hop is
    enough. ``group`` holds the ids of its atomic update group, itself included; empty means that it is alone.
    ``core`` says that ids ``0 .. core - 1`` are the version's core set: the version counts as complete only while each
    of them is visible or replaced by something visible. 0, the default, means there is none: whatever is there is
    complete (pure appends). ``payload`` is the caller's own object; the timeline never looks at it.
    """

    interval: Interval
    version: str
    partition: int
    payload: P
    overshadowed: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    core: int = 0

    @property
    def key(self) -> SegmentKey:
        """Its identity."""
        return SegmentKey(self.interval, self.version, self.partition)


@dataclass(frozen=True, slots=True)
class TimelinePiece(Generic[P]):
    """What is visible in one stretch of time.

    ``interval`` is the stretch, ``chunk`` the whole interval of its segments, ``version`` theirs, and ``segments`` the
    visible ones by partition id. Where ``interval`` is narrower than ``chunk``, rows outside it must not be read from
    these segments: a newer version holds them, or the question did not ask for them.
    """

    interval: Interval
    chunk: Interval
    version: str
    segments: tuple[VersionedSegment[P], ...]

    @property
    def cut(self) -> bool:
        """Whether a reader must filter the time column by ``interval``."""
        return self.interval != self.chunk
