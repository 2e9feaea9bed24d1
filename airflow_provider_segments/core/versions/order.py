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
    """A segment's time chunk and version, which the time filter compares. ``name`` is for messages."""

    name: str
    interval: Interval
    version: int


def find_overtaken(lineage: Lineage, segments: Iterable[SegmentTime]) -> SegmentTime | None:
    """Return the first of ``segments`` that an overwrite of a later version hides, or would hide if that overwrite were
    brought back; ``None`` if there is none."""
    return _first_beneath(TimeFilter(lineage.overwrites), segments)


def find_newer(overwrites: Iterable[Overwrite], segments: Iterable[SegmentTime]) -> SegmentTime | None:
    """Return the first of ``segments`` of a higher version than one of ``overwrites`` in the same time; ``None`` if
    there is none."""
    held = list(overwrites)
    for segment in segments:
        for overwrite in held:
            if overwrite.version < segment.version and overwrite.overlaps(segment.interval):
                return segment
    return None


def find_unsettled(lineage: Lineage, segments: Iterable[SegmentTime]) -> SegmentTime | None:
    """Return the first of ``segments`` beneath an unsettled overwrite: one that can be rolled back, or that was rolled
    back and can be brought back. ``None`` if there is none."""
    return _first_beneath(TimeFilter(lineage.unsettled_overwrites), segments)


def rewritten_version(lineage: Lineage, segments: Iterable[SegmentTime]) -> int:
    """Return the version of a rewrite of ``segments``: the newest of theirs and of the overwrites that cut them.

    Beneath the newest, an overwrite that hides an older segment would hide the rows of a newer one. What it hid of the
    older ones was not copied, so above it nothing reappears, and once the inputs are gone it has nothing to hide.
    """
    times = TimeFilter(lineage.overwrites_in_force)
    return max(max(segment.version, times.window(segment.interval).newest) for segment in segments)


def overwrites_above(lineage: Lineage, interval: Interval, version: int) -> frozenset[str]:
    """Return the overwrites of later versions in ``interval``, each as its entry's state and id.

    As long as no member is added to the set, they hide of the segments in ``interval`` what they hid before.
    """
    later = (
        overwrite.entry_id
        for overwrite in lineage.overwrites
        if overwrite.version > version and overwrite.overlaps(interval)
    )
    return frozenset(f"{lineage.entries[entry_id].state.value} {entry_id}" for entry_id in later)


def _first_beneath(times: TimeFilter, segments: Iterable[SegmentTime]) -> SegmentTime | None:
    if not times:
        return None
    return next((segment for segment in segments if segment.version < times.window(segment.interval).newest), None)
