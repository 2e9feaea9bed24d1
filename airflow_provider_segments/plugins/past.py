"""A table over time: what readers saw after each entry, what came and went in between, and its segments by time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import monotonic
from typing import NamedTuple

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.lineage.guard import GuardState
from airflow_provider_segments.core.model.interval import MAX_MS, MIN_MS, Interval, parse_chunk
from airflow_provider_segments.core.model.segment import SegmentRecord, SegmentState
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.forecast import Totals as CoreTotals
from airflow_provider_segments.core.snapshot import states_by_shard
from airflow_provider_segments.plugins.facts import TableFacts
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

_ByChunk = dict[tuple[int, int, str], list[int]]
"""Segments, rows and bytes by time chunk and state."""

NOW = "now"
BLOCKS = 300
"""Most stretches of time that the picture shows."""


def describe_history(opened: Opened, name: str, *, offset: int, limit: int) -> History:
    """What readers saw right after each of a part of the entries, the newest first, as far as there is time."""
    table = opened.store.table(name)
    facts = opened.facts.get(table.name)
    chosen = [entry.entry_id for entry in facts.lineage.newest_first()[offset : offset + limit]]
    unknown, until = [entry_id for entry_id in chosen if entry_id not in facts.after], monotonic() + BUDGET_S
    for entry_id, after in facts.read.totals_after(unknown):
        facts.after[entry_id] = after
        if monotonic() > until:
            break
    known = {entry_id: facts.after[entry_id] for entry_id in chosen if entry_id in facts.after}
    return History(
        after={entry_id: None if after is None else totals(after) for entry_id, after in known.items()},
        stored=_stored_after(facts, known),
    )


def _stored_after(facts: TableFacts, entry_ids: Iterable[str]) -> dict[str, int]:
    """The bytes registered right after each COMPLETED one of those entries, of what is registered still."""
    born = {shard.name.entry_id: shard.born for shard in facts.read.registry.shards}
    in_order = sorted((zxid, facts.brought[entry_id].bytes) for entry_id, zxid in born.items())
    sums = list(accumulate((size for _, size in in_order), initial=0))
    zxids = [zxid for zxid, _ in in_order]
    settled = {entry_id: facts.guards.get(entry_id) for entry_id in entry_ids}
    return {
        entry_id: sums[bisect_right(zxids, stored.changed)]
        for entry_id, stored in settled.items()
        if stored is not None and stored.guard.state is GuardState.COMPLETED
    }


def describe_diff(opened: Opened, name: str, before: str, after: str) -> Diff:
    """What came and went between right after entry ``before`` and right after entry ``after``, either of which may be
    ``now``. Raises :class:`SnapshotRefusedError` when one of them can no longer be read, and what reading raises."""
    old, new = (_seen(opened, name, at) for at in (before, after))
    return Diff(
        before=_totals(old.values()),
        after=_totals(new.values()),
        came=_change([record for key, record in new.items() if key not in old]),
        went=_change([record for key, record in old.items() if key not in new]),
    )


def _seen(opened: Opened, name: str, entry_id: str) -> dict[str, SegmentRecord]:
    taken = opened.store.table(name).snapshot(as_of=None if entry_id == NOW else entry_id)
    return {record.name: record for _, records in taken.blocks for record in records}


def _change(records: Sequence[SegmentRecord]) -> Change:
    return Change(totals=_totals(records), names=[record.name for record in records[:MOST_NAMES]])


def _totals(records: Iterable[SegmentRecord]) -> Totals:
    return totals(CoreTotals.of(records))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time of a table, and perhaps a point in its past. Times are epoch milliseconds."""

    start_ms: int | None
    end_ms: int | None
    as_of: str | None

    @property
    def interval(self) -> Interval:
        """The time. Raises :class:`ValueError` when it ends before it begins."""
        return Interval(
            MIN_MS if self.start_ms is None else self.start_ms, MAX_MS if self.end_ms is None else self.end_ms
        )

    def segments(self, opened: Opened, name: str) -> Iterator[_Seen]:
        """The segments of the stretch in the order of time: of now with their states, of the past those that readers
        saw. Raises what reading them raises."""
        interval = self.interval
        if self.as_of is not None:
            taken = opened.store.table(name).snapshot(self.start_ms, self.end_ms, as_of=self.as_of)
            for shard, records in taken.blocks:
                yield from _seen_in(shard, records, [SegmentState.VISIBLE] * len(records), interval)
            return
        facts = opened.facts.get(opened.store.table(name).name)
        shards = [shard for shard in _shards(opened, facts) if shard.name.interval.overlaps(interval)]
        for shard, states in states_by_shard(facts.read.view, shards, interval)[0]:
            yield from _seen_in(shard, shard.records, states, interval)


class _Seen(NamedTuple):
    """A segment, the shard that has its record, its time and its state."""

    shard: Shard
    record: SegmentRecord
    interval: Interval
    state: SegmentState


def _seen_in(
    shard: Shard, records: Sequence[SegmentRecord], states: Sequence[SegmentState], interval: Interval
) -> Iterator[_Seen]:
    whole = shard.name.interval
    for record, state in zip(records, states, strict=True):
        time = whole if record.chunk is None else parse_chunk(record.chunk)
        if time.overlaps(interval):
            yield _Seen(shard, record, time, state)


def _shards(opened: Opened, facts: TableFacts) -> Sequence[Shard]:
    """The registry as it is known; what pushes in progress have staged changes while the table does not."""
    running = {entry.entry_id for entry in facts.lineage.in_state(EntryState.IN_PROGRESS)}
    if not running:
        return facts.read.registry.shards
    settled = [shard for shard in facts.read.registry.shards if shard.name.entry_id not in running]
    return [*settled, *opened.store.table(facts.lineage.table).context.registry.shards_of(running)]


def list_segments(opened: Opened, name: str, stretch: Stretch, *, offset: int, limit: int) -> Segments:
    """A part of the segments, in order of time. Raises what reading them raises."""
    found = list(stretch.segments(opened, name))
    return Segments(total=len(found), segments=[_segment(one) for one in found[offset : offset + limit]])


def _segment(seen: _Seen) -> SegmentRow:
    record = seen.record
    return SegmentRow(
        name=record.name,
        state=seen.state.value,
        start_ms=seen.interval.start_ms,
        end_ms=seen.interval.end_ms,
        version=record.version,
        partition=record.partition,
        rows=record.rows,
        bytes=record.bytes,
        entry_id=seen.shard.name.entry_id,
    )


def describe_timeline(opened: Opened, name: str, stretch: Stretch) -> Timeline:
    """A table's segments by time chunk and state; neighbouring chunks are put together where there are too many.

    It is remembered for as long as the table has not changed, but not during a push: what is staged shows, too, and
    staging changes none of the znodes by which a change is told."""
    facts = opened.facts.get(opened.store.table(name).name)
    if any(facts.lineage.in_state(EntryState.IN_PROGRESS)):
        return _timeline(stretch.segments(opened, name))
    known = facts.timelines.get(stretch)
    if known is None:
        known = _timeline(stretch.segments(opened, name))
        if len(facts.timelines) < MOST_TIMELINES:
            facts.timelines[stretch] = known
    return known


def _timeline(found: Iterable[_Seen]) -> Timeline:
    by_chunk: _ByChunk = {}
    for seen in found:
        key = (seen.interval.start_ms, seen.interval.end_ms, seen.state.value)
        _count(by_chunk, key, 1, seen.record.rows, seen.record.bytes)
    chunks = {key[:2] for key in by_chunk}
    is_merged = len(chunks) > BLOCKS
    blocks = [
        Block(start_ms=start, end_ms=end, state=state, totals=Totals(segments=number, rows=rows, bytes=size))
        for (start, end, state), (number, rows, size) in sorted((_merged(by_chunk) if is_merged else by_chunk).items())
    ]
    return Timeline(blocks=blocks, is_merged=is_merged)


def _merged(by_chunk: _ByChunk) -> _ByChunk:
    """Neighbouring time chunks put together, so that there are at most ``BLOCKS``; all of time stays as it is."""
    dated = [(start, end) for start, end, _ in by_chunk if _is_dated(start, end)]
    first, last = min(start for start, _ in dated), max(end for _, end in dated)
    width = -(-(last - first) // BLOCKS)
    merged: _ByChunk = {}
    for (start, end, state), counted in by_chunk.items():
        at = first + (start - first) // width * width
        _count(merged, (at, at + width, state) if _is_dated(start, end) else (start, end, state), *counted)
    return merged


def _is_dated(start_ms: int, end_ms: int) -> bool:
    return start_ms > MIN_MS or end_ms < MAX_MS


def _count(counted: _ByChunk, key: tuple[int, int, str], segments: int, rows: int, size: int) -> None:
    sums = counted.setdefault(key, [0, 0, 0])
    sums[0] += segments
    sums[1] += rows
    sums[2] += size
