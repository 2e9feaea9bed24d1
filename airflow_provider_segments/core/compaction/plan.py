"""Finding what needs compaction: a pure function from a snapshot's segments to groups of inputs.

Source of the rules: Druid's CompactSegments duty and its newest-segment-first policy, without its two limits: any set
of segments of a chunk may be compacted together, and one locked or failing chunk never holds up another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_segments.core.compaction.settings import CompactionSettings, Policy
from airflow_provider_segments.core.lineage.entries import Overwrite
from airflow_provider_segments.core.model.interval import Granularity, Interval, parse_chunk
from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.versions.overwrites import TimeFilter
from airflow_provider_segments.text import count

_GOOD = 0.75  # of the target: smaller segments are worth merging
_SPARE = 2  # times as many segments as would be needed: Spark's own sort cuts large chunks less exactly than a worker
_LARGE = 1.25  # of the target: larger ones are worth splitting; a build cuts at this, too


@dataclass(frozen=True, slots=True)
class CompactionGroup:
    """Segments to be compacted together into time chunk ``chunk``, and why. ``rows`` and ``bytes`` are totals, of all
    that is in them: also of the part of a segment that an overwrite hides."""

    chunk: str
    segments: tuple[Segment, ...]
    reason: str
    rows: int
    bytes: int

    @property
    def interval(self) -> Interval:
        """The chunk's interval."""
        return parse_chunk(self.chunk)

    def outputs(self, target_rows: int) -> int:
        """How many segments it becomes."""
        return max(1, -(-self.rows // target_rows))


@dataclass(frozen=True, slots=True)
class SkippedChunk:
    """A chunk that is left alone, and why."""

    chunk: str
    segments: int
    reason: str


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Groups in the order in which they are to be compacted, and the chunks that are left alone."""

    groups: tuple[CompactionGroup, ...]
    skipped: tuple[SkippedChunk, ...]


def make_plan(
    segments: Iterable[Segment],
    settings: CompactionSettings,
    *,
    locked: Collection[Interval] = (),
    overwrites: Iterable[Overwrite] = (),
) -> CompactionPlan:
    """What to compact of ``segments``, the visible ones of a table.

    ``locked`` are intervals that somebody else works on. ``overwrites`` are those that can still be rolled back or
    brought back: what lies beneath them waits, so that a roll back never depends on a compaction.
    """
    ready, waiting = _apart(segments, TimeFilter(overwrites))
    by_chunk = _by_chunk(ready, settings.granularity)
    latest = max((parse_chunk(chunk).end_ms for chunk in by_chunk), default=0)
    groups: list[CompactionGroup] = []
    skipped = [
        SkippedChunk(chunk, len(found), "beneath an overwrite that can still be rolled back")
        for chunk, found in _by_chunk(waiting, settings.granularity).items()
    ]
    for chunk, found in by_chunk.items():
        interval = parse_chunk(chunk)
        if settings.skip_offset_ms and interval.end_ms > latest - settings.skip_offset_ms:
            skipped.append(SkippedChunk(chunk, len(found), "within the offset from the latest segment"))
        elif any(interval.overlaps(lock) for lock in locked):
            skipped.append(SkippedChunk(chunk, len(found), "locked"))
        elif group := _group(chunk, found, settings):
            groups.append(group)
        else:
            skipped.append(SkippedChunk(chunk, len(found), "as the settings want it"))
    ordered = sorted(groups, key=_newest if settings.policy is Policy.NEWEST_FIRST else _fragmented(settings))
    now, later = ordered[: settings.max_groups], ordered[settings.max_groups :]
    late = [SkippedChunk(group.chunk, len(group.segments), "over the limit of one run") for group in later]
    return CompactionPlan(tuple(now), (*skipped, *late))


def _apart(segments: Iterable[Segment], unsettled: TimeFilter) -> tuple[list[Segment], list[Segment]]:
    """The segments that may be compacted, and those that have to wait."""
    ready: list[Segment] = []
    waiting: list[Segment] = []
    for segment in segments:
        waits = bool(unsettled) and segment.version < unsettled.window(segment.interval).newest
        (waiting if waits else ready).append(segment)
    return ready, waiting


def _by_chunk(segments: Iterable[Segment], granularity: Granularity) -> dict[str, list[Segment]]:
    """Segments by the chunk they become: their own, or the wider one of ``granularity`` that holds it."""
    found: dict[str, list[Segment]] = {}
    names: dict[str, str] = {}
    for segment in segments:
        chunk = names.get(segment.chunk)
        if chunk is None:
            chunk = names[segment.chunk] = _wider(segment.chunk, granularity)
        found.setdefault(chunk, []).append(segment)
    return found


def _wider(chunk: str, granularity: Granularity) -> str:
    """A chunk that ``granularity`` would cut stays as it is: splitting by time needs the rows."""
    own = parse_chunk(chunk)
    wide = granularity.chunk(own.start_ms)
    if wide.start_ms <= own.start_ms and own.end_ms <= wide.end_ms:
        return granularity.chunk_name(own.start_ms)
    return chunk


def _group(chunk: str, found: Sequence[Segment], settings: CompactionSettings) -> CompactionGroup | None:
    """What of a chunk's segments to compact, or ``None``."""
    wanted, reason = _wanted(chunk, found, settings)
    taken: list[Segment] = []
    size = 0
    for segment in sorted(wanted, key=lambda one: (one.rows, one.name)):  # the smallest gain most
        if len(taken) >= settings.max_input_segments or size + segment.bytes > settings.max_input_bytes:
            break
        taken.append(segment)
        size += segment.bytes
    if not taken or (len(taken) == 1 and not _is_worth_it_alone(taken[0], chunk, settings)):
        return None
    if len(taken) < len(wanted):
        reason = f"{reason}; {len(wanted) - len(taken)} more are over the limit of one group"
    ordered = sorted(taken, key=lambda one: (one.born, one.name))
    return CompactionGroup(chunk, tuple(ordered), reason, sum(one.rows for one in ordered), size)


def _wanted(chunk: str, found: Sequence[Segment], settings: CompactionSettings) -> tuple[list[Segment], str]:
    if settings.deduplicate or settings.rollup:  # rows of one key may be in any two segments
        fresh = [segment for segment in found if segment.fingerprint != settings.fingerprint]
        return (list(found), f"{count(len(fresh), 'segment')} since the last compaction") if fresh else ([], "")
    good = [segment for segment in found if _is_good(segment, chunk, settings)]
    rest = [segment for segment in found if not _is_good(segment, chunk, settings)]
    if cut := [segment for segment in rest if segment.visible_in]:
        return rest, f"partly hidden by an overwrite: {count(len(cut), 'segment')}"
    if finer := [segment for segment in rest if segment.chunk != chunk]:
        return rest, f"{count(len(finer), 'segment')} of a finer granularity"
    fresh = [segment for segment in rest if segment.fingerprint != settings.fingerprint]
    needed = max(1, -(-sum(segment.rows for segment in rest) // settings.target_rows))
    if not fresh and len(rest) <= _SPARE * needed:
        return [], ""  # what a compaction has left over: another would make hardly fewer of it
    return rest, f"not of the wanted size or order: {count(len(rest), 'segment')}; as they should be: {len(good)}"


def _is_good(segment: Segment, chunk: str, settings: CompactionSettings) -> bool:
    """Return True if the segment is as these settings would write it."""
    if segment.fingerprint != settings.fingerprint or segment.chunk != chunk or segment.visible_in:
        return False
    return settings.target_rows * _GOOD <= segment.rows <= settings.target_rows * _LARGE


def _is_worth_it_alone(segment: Segment, chunk: str, settings: CompactionSettings) -> bool:
    """A single segment is rewritten only to split it, to move it, or to join its own rows."""
    if segment.chunk != chunk or segment.visible_in or segment.rows > settings.target_rows * _LARGE:
        return True
    return bool(settings.deduplicate or settings.rollup) and segment.fingerprint != settings.fingerprint


def _newest(group: CompactionGroup) -> tuple[int, int, str]:
    return (0, -group.interval.end_ms, group.chunk)


def _fragmented(settings: CompactionSettings) -> Callable[[CompactionGroup], tuple[int, int, str]]:
    def key(group: CompactionGroup) -> tuple[int, int, str]:
        spare = len(group.segments) - group.outputs(settings.target_rows)
        return (-spare, -group.interval.end_ms, group.chunk)

    return key
