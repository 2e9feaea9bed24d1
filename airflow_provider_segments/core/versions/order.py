"""The order of versions is the order in which pushes were completed.

Overwrites hide by version, and a reader goes by "later" (the one rule, docs/architecture.md). So wherever an overwrite
and another push share time, who completes later must have the greater version. Locks keep pushes of different groups
apart, so that it comes out so; what decides is asked here, under the lineage that the switch compares and sets:

* No push ends beneath an overwrite (:func:`find_overtaken`).
* No overwrite ends while something newer than it is registered in its time (:func:`find_newer`).
* A rewrite takes no segment that an overwrite may still hide or show (:func:`find_unsettled`), and ends only if no
  overwrite has come or changed meanwhile (:func:`overwrites_above`).

Overwrites that were rolled back count in all of these: they may be brought back, and return to their place.
``tests/model`` explores the rules with reverts, clean-up and kills, and shows a bad history without each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from airflow_provider_segments.core.lineage.entries import Lineage, Overwrite
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.versions.overwrites import TimeFilter


class SegmentTime(NamedTuple):
    """What the time filter goes by: a segment's time chunk and version. ``name`` is for messages."""

    name: str
    interval: Interval
    version: int


def find_overtaken(lineage: Lineage, segments: Iterable[SegmentTime]) -> SegmentTime | None:
    """The first of ``segments`` that an overwrite of a later version hides, or would once it is brought back."""
    return _first_beneath(TimeFilter(lineage.overwrites), segments)


def find_newer(overwrites: Iterable[Overwrite], segments: Iterable[SegmentTime]) -> SegmentTime | None:
    """The first of ``segments`` whose version is above that of one of ``overwrites`` in the same time."""
    held = list(overwrites)
    for segment in segments:
        for overwrite in held:
            if overwrite.version < segment.version and overwrite.overlaps(segment.interval):
                return segment
    return None


def find_unsettled(lineage: Lineage, segments: Iterable[SegmentTime]) -> SegmentTime | None:
    """The first of ``segments`` of which an overwrite may still hide or show something: one that hides it and can be
    rolled back, or that was rolled back and can be brought back."""
    return _first_beneath(TimeFilter(lineage.unsettled_overwrites), segments)


def rewritten_version(lineage: Lineage, segments: Iterable[SegmentTime]) -> int:
    """The version of a rewrite of ``segments``: the newest of theirs, and of the overwrites that hide a part of them.

    Beneath the newest, an overwrite that hides an older segment would hide the rows of a newer one. What it hid of the
    older ones was not copied, so above it nothing reappears, and once the inputs are gone it has nothing to hide.
    """
    times = TimeFilter(lineage.overwrites_in_force)
    return max(max(segment.version, times.window(segment.interval).newest) for segment in segments)


def overwrites_above(lineage: Lineage, interval: Interval, version: int) -> frozenset[str]:
    """The overwrites of later versions in ``interval``, each as its entry's state and id.

    As long as the set has not grown, they hide of the segments there what they hid before.
    """
    found = (one.entry_id for one in lineage.overwrites if one.version > version and one.overlaps(interval))
    return frozenset(f"{lineage.entries[entry_id].state.value} {entry_id}" for entry_id in found)


def _first_beneath(times: TimeFilter, segments: Iterable[SegmentTime]) -> SegmentTime | None:
    if not times:
        return None
    return next((one for one in segments if one.version < times.window(one.interval).newest), None)
