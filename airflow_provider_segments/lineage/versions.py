"""Segments that joined a version which a push under a time-chunk lock has founded.

They are seen only together with what founded it, and beneath it nothing is. So that push cannot be reverted any more
once others have joined (as it cannot once a later push has replaced its segments), and who joins checks, in the switch,
that the version is still there. Both decide under the lineage that they compare and set, so one of them sees the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_segments.exceptions import EndRefusedError, RevertRefusedError
from airflow_provider_segments.lineage.context import Context
from airflow_provider_segments.lineage.guard import Guard
from airflow_provider_segments.lineage.records import StoredLineage
from airflow_provider_segments.lineage.routing import is_settled
from airflow_provider_segments.lineage.rules import describe
from airflow_provider_segments.locking import APPEND_VERSION
from airflow_provider_segments.model.interval import Interval
from airflow_provider_segments.model.segment import Segment, TimelinePlace

_Version = tuple[Interval, str]


def joins(place: TimelinePlace) -> bool:
    """Whether it is the place of a segment that joins a version somebody has founded."""
    return not place.founds and place.version != APPEND_VERSION


def check_joined(context: Context, stored: StoredLineage, entry_id: str) -> None:
    """Every version that the entry's segments join is there. Raises :class:`EndRefusedError` (``version-gone``)."""
    mine = _of_entry(context, entry_id)
    joined = {_version(one) for one in mine if one.place and joins(one.place)}
    if not joined:
        return
    there = {_version(one) for one in _others(context, stored, entry_id, joined)}
    if gone := joined - there:
        interval, version = min(gone)
        raise EndRefusedError(
            "version-gone",
            f"end refused: version {version} of {interval}, which its segments joined, was reverted meanwhile",
            table=context.table,
            entry_id=entry_id,
            hint="Run the build again.",
        )


def check_not_joined(context: Context, stored: StoredLineage, entry_id: str, guard: Guard) -> None:
    """Nobody has joined a version that the entry founded. Raises :class:`RevertRefusedError` (``version-joined``)."""
    if not guard.locks:
        return
    founded = {_version(one) for one in _of_entry(context, entry_id) if one.place and one.place.founds}
    if founded and (joined := [one.name for one in _others(context, stored, entry_id, founded)]):
        raise RevertRefusedError(
            "version-joined",
            f"revert refused: {describe(joined)} was added to the version that the entry made of that time, "
            "and would be hidden with it or hide what is beneath",
            table=context.table,
            entry_id=entry_id,
            hint="Revert those pushes first, or overwrite the time under a new lock.",
        )


def _of_entry(context: Context, entry_id: str) -> list[Segment]:
    found = context.registry.of_entry(entry_id)
    if not any(record.place for shard in found for record in shard.records[:1]):
        return []
    spans = [shard.name.interval for shard in found]
    whole = Interval(min(one.start_ms for one in spans), max(one.end_ms for one in spans))
    return [segment for segment, _ in context.standings(whole) if segment.entry_id == entry_id]


def _others(context: Context, stored: StoredLineage, entry_id: str, versions: Iterable[_Version]) -> list[Segment]:
    """Registered segments of those versions that settled entries other than this one brought."""
    wanted = set(versions)
    whole = Interval(min(one.start_ms for one, _ in wanted), max(one.end_ms for one, _ in wanted))
    return [
        segment
        for segment, _ in context.standings(whole)
        if segment.entry_id != entry_id and _version(segment) in wanted and is_settled(stored.lineage, segment.entry_id)
    ]


def _version(segment: Segment) -> _Version:
    return segment.interval, segment.version
