"""A table over time: what readers saw after each entry, what came and went in between, and its segments by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.model.interval import MAX_MS, MIN_MS
from airflow_provider_segments.core.model.segment import Segment, SegmentState
from airflow_provider_segments.core.snapshot import SegmentStatus
from airflow_provider_segments.plugins.models import (
    Block,
    Change,
    Diff,
    History,
    SegmentRow,
    Segments,
    Timeline,
    Totals,
)
from airflow_provider_segments.plugins.overview import MOST_NAMES, Opened, totals

BUDGET_S = 1.5
"""For how long what readers saw after each entry is computed; a table of 100,000 segments takes long for each."""

MOST_TIMELINES = 20
"""Stretches of time of one table whose picture is remembered."""

NOW = "now"
BLOCKS = 300
"""Most stretches of time that the picture shows."""


def describe_history(opened: Opened, name: str, *, offset: int, limit: int) -> History:
    """What readers saw right after each of a part of the entries, the newest first, as far as there is time."""
    table = opened.store.table(name)
    facts = opened.facts.get(table.name)
    chosen = [entry.entry_id for entry in facts.lineage.newest_first()[offset : offset + limit]]
    unknown, until = [entry_id for entry_id in chosen if entry_id not in facts.after], monotonic() + BUDGET_S
    for entry_id, after in table.totals_after(unknown) if unknown else ():
        facts.after[entry_id] = after
        if monotonic() > until:
            break
    known = {entry_id: facts.after[entry_id] for entry_id in chosen if entry_id in facts.after}
    return History(after={entry_id: None if after is None else totals(after) for entry_id, after in known.items()})


def describe_diff(opened: Opened, name: str, before: str, after: str) -> Diff:
    """What came and went between right after entry ``before`` and right after entry ``after``, either of which may be
    ``now``. Raises :class:`SnapshotRefusedError` when one of them can no longer be read, and what reading raises."""
    table = opened.store.table(name)
    old, new = ({one.name: one for one in _seen(opened, table.name, at)} for at in (before, after))
    return Diff(
        before=_totals(list(old.values())),
        after=_totals(list(new.values())),
        came=_change([one for key, one in new.items() if key not in old]),
        went=_change([one for key, one in old.items() if key not in new]),
    )


def _seen(opened: Opened, name: str, entry_id: str) -> Sequence[Segment]:
    return opened.store.table(name).snapshot(as_of=None if entry_id == NOW else entry_id).segments


def _change(segments: Sequence[Segment]) -> Change:
    return Change(totals=_totals(segments), names=[one.name for one in segments[:MOST_NAMES]])


def _totals(segments: Sequence[Segment]) -> Totals:
    return Totals(
        segments=len(segments), rows=sum(one.rows for one in segments), bytes=sum(one.bytes for one in segments)
    )


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time of a table, and perhaps a point in its past. Times are epoch milliseconds."""

    start_ms: int | None
    end_ms: int | None
    as_of: str | None

    def statuses(self, opened: Opened, name: str) -> list[SegmentStatus]:
        """The segments of the stretch: of now with their states, of the past those that readers saw."""
        table = opened.store.table(name)
        if self.as_of is None:
            return table.segment_states(self.start_ms, self.end_ms)
        seen = table.snapshot(self.start_ms, self.end_ms, as_of=self.as_of).segments
        return [SegmentStatus(one, SegmentState.VISIBLE) for one in seen]


def list_segments(opened: Opened, name: str, stretch: Stretch, *, offset: int, limit: int) -> Segments:
    """A part of the segments, in order of time. Raises what reading them raises."""
    found = stretch.statuses(opened, name)
    return Segments(total=len(found), segments=[_segment(one) for one in found[offset : offset + limit]])


def _segment(status: SegmentStatus) -> SegmentRow:
    segment = status.segment
    return SegmentRow(
        name=segment.name,
        state=status.state.value,
        start_ms=segment.interval.start_ms,
        end_ms=segment.interval.end_ms,
        version=segment.version,
        partition=segment.partition,
        rows=segment.rows,
        bytes=segment.bytes,
        entry_id=segment.entry_id,
    )


def describe_timeline(opened: Opened, name: str, stretch: Stretch) -> Timeline:
    """A table's segments by time chunk and state; neighbouring chunks are put together where there are too many.

    It is remembered for as long as the table has not changed, but not during a push: what is staged shows, too, and
    staging changes none of the znodes by which a change is told."""
    facts = opened.facts.get(opened.store.table(name).name)
    if any(facts.lineage.in_state(EntryState.IN_PROGRESS)):
        return _timeline(stretch.statuses(opened, name))
    known = facts.timelines.get(stretch)
    if known is None:
        known = _timeline(stretch.statuses(opened, name))
        if len(facts.timelines) < MOST_TIMELINES:
            facts.timelines[stretch] = known
    return known


def _timeline(found: Sequence[SegmentStatus]) -> Timeline:
    chunks = {(one.segment.interval.start_ms, one.segment.interval.end_ms) for one in found}
    dated = [(start, end) for start, end in chunks if start > MIN_MS or end < MAX_MS]
    is_merged = len(chunks) > BLOCKS
    first, last = min((start for start, _ in dated), default=0), max((end for _, end in dated), default=1)
    width = -(-(last - first) // BLOCKS)
    groups: dict[tuple[int, int, str], list[Segment]] = {}
    for one in found:
        start, end = one.segment.interval.start_ms, one.segment.interval.end_ms
        if is_merged and (start > MIN_MS or end < MAX_MS):
            start = first + (start - first) // width * width
            end = start + width
        groups.setdefault((start, end, one.state.value), []).append(one.segment)
    blocks = [
        Block(start_ms=start, end_ms=end, state=state, totals=_totals(segments))
        for (start, end, state), segments in sorted(groups.items())
    ]
    return Timeline(blocks=blocks, is_merged=is_merged)
