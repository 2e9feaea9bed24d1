"""The segments of each time chunk and version as a picture stacks them: what replaces stands on what it replaced.

So whoever looks from above sees what readers see, and a stack is as high as the longest chain of replacements in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.ranges import Ranges
from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.timeline.segment import SegmentState


class SegmentStanding(Protocol):
    """A registered segment and where it stands; ``segment.visible_in`` says in which part of its time it is visible
    where that is not all of it."""

    @property
    def segment(self) -> Segment: ...

    @property
    def state(self) -> SegmentState: ...


@dataclass(slots=True)
class Stack:
    """The segments of one interval and version, by partition id and name."""

    interval: Interval
    version: str
    shown: list[SegmentStanding]

    def hidden(self) -> list[Interval]:
        """The parts of its time in which newer versions hide its visible segments."""
        cuts = sorted({cut for one in self.shown for cut in one.segment.visible_in})
        ends = [self.interval.start_ms, *(cut.end_ms for cut in cuts)]
        starts = [*(cut.start_ms for cut in cuts), self.interval.end_ms]
        return [Interval(end, start) for end, start in zip(ends, starts, strict=True) if cuts and end < start]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a segment stands in its stack: ``level`` counts from the bottom; ``left`` and ``right`` are shares of the
    chunk's width. ``over`` is the atomic group that replaces it, whether that is complete or not."""

    shown: SegmentStanding
    level: int
    left: float
    right: float
    over: Ranges = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """An atomic update group of more than one segment, or the part of it that stands together."""

    group: Ranges
    level: int
    left: float
    right: float


def stacks_of(standings: Iterable[SegmentStanding]) -> list[Stack]:
    """The stacks by interval and version."""
    found: dict[tuple[Interval, str], Stack] = {}
    for one in standings:
        interval, version = one.segment.interval, one.segment.version
        found.setdefault((interval, version), Stack(interval, version, [])).shown.append(one)
    for stack in found.values():
        stack.shown.sort(key=lambda one: (one.segment.partition, one.segment.name))
    return [found[key] for key in sorted(found)]


def place(shown: Sequence[SegmentStanding]) -> tuple[list[Place], list[Frame]]:
    """Where the segments of one stack stand, by level and from left to right, and the frames around atomic groups."""
    if not shown or shown[0].segment.place is None:
        step = 1 / max(len(shown), 1)
        return [Place(one, 0, at * step, (at + 1) * step) for at, one in enumerate(shown)], []
    blocks = _blocks(shown)
    sizes, levels = _sizes(blocks)
    places: list[Place] = []
    frames: list[Frame] = []
    work = list(_spread([block for block in blocks if not block.over], sizes, 0.0, 1.0))
    while work:
        block, left, right = work.pop()
        level, step = levels[block.group], (right - left) / len(block.shown)
        for at, one in enumerate(block.shown):
            places.append(Place(one, level, left + at * step, left + (at + 1) * step, block.over))
        if _is_several(block.group):
            frames.append(Frame(block.group, level, left, right))
        work.extend(_spread(block.below, sizes, left, right))
    return sorted(places, key=lambda one: (one.level, one.left)), frames


def _is_several(group: Ranges) -> bool:
    return len(group) > 1 or group[0][1] > group[0][0] + 1


@dataclass(slots=True)
class _Block:
    """Segments of one atomic group that the same other group replaces. ``below`` is what the group replaces itself; the
    first block of a group has it."""

    group: Ranges
    over: Ranges
    shown: list[SegmentStanding]
    below: list[_Block] = field(default_factory=list)

    @property
    def name(self) -> tuple[Ranges, Ranges]:
        """What tells it from the other blocks of its stack."""
        return self.group, self.over


def _blocks(shown: Sequence[SegmentStanding]) -> list[_Block]:
    """All blocks, in the order of their groups' smallest ids: a group comes after what it replaces, since ids are given
    out in rising order."""
    over = _replaced(shown)
    found: dict[tuple[Ranges, Ranges], _Block] = {}
    first: dict[Ranges, _Block] = {}
    for one in shown:
        group, above = _group(one), over.get(one.segment.partition, ())
        block = found.setdefault((group, above), _Block(group, above, []))
        block.shown.append(one)
        first.setdefault(group, block)
    ordered = sorted(found.values(), key=lambda block: (block.group, block.shown[0].segment.partition))
    for block in ordered:
        if block.over:
            first[block.over].below.append(block)
    return ordered


def _replaced(shown: Sequence[SegmentStanding]) -> dict[int, Ranges]:
    """For each replaced id the group that replaces it; a visible one where several would."""
    found: dict[int, Ranges] = {}
    seen: set[tuple[Ranges, Ranges]] = set()
    for one in sorted(shown, key=lambda one: one.state is not SegmentState.VISIBLE):
        group, replaced = _group(one), one.segment.place.overshadowed if one.segment.place else ()
        if (group, replaced) in seen:
            continue
        seen.add((group, replaced))
        for partition in one.segment.overshadowed:
            if partition < group[0][0]:  # anything else is a record at odds with itself, and could go round in circles
                found.setdefault(partition, group)
    return found


def _group(one: SegmentStanding) -> Ranges:
    own = one.segment.partition
    return (one.segment.place.group if one.segment.place else ()) or ((own, own + 1),)


def _sizes(blocks: Sequence[_Block]) -> tuple[dict[tuple[Ranges, Ranges], int], dict[Ranges, int]]:
    """How many columns each block needs, and at which level its group stands."""
    sizes: dict[tuple[Ranges, Ranges], int] = {}
    levels: dict[Ranges, int] = {}
    for block in blocks:
        below = sum(sizes[one.name] for one in block.below)
        sizes[block.name] = max(len(block.shown), below)
        level = 1 + max(levels[one.group] for one in block.below) if block.below else 0
        levels[block.group] = max(level, levels.get(block.group, 0))
    return sizes, levels


def _spread(
    blocks: Sequence[_Block], sizes: dict[tuple[Ranges, Ranges], int], left: float, right: float
) -> Iterator[tuple[_Block, float, float]]:
    """The blocks side by side between ``left`` and ``right``, by their sizes."""
    column = (right - left) / max(sum(sizes[block.name] for block in blocks), 1)
    for block in blocks:
        width = column * sizes[block.name]
        yield block, left, left + width
        left += width
