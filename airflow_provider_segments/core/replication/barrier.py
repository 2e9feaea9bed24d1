"""Barriers: up to where a version may take events, so that it ends at a heartbeat in all partitions of a region. Pure.

Each source partition that has reached the next heartbeat waits for the others of its region. So the version that takes
the heartbeat holds exactly what the region had written before it, whatever the batches were. Regions do not wait for
each other, and a partition that is silent for too long is given up for that one heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_segments.core.replication.heartbeat import Heartbeat, TakenHeartbeat


class Placed(NamedTuple):
    """A heartbeat in its source partition."""

    offset: int
    heartbeat: Heartbeat


Queue = Sequence[Placed]
"""Heartbeats of one source partition that were not taken yet, by offset."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a version may take: of each source partition (region, number) in ``limits`` the events below that offset, of
    the others all. ``taken`` are the heartbeats that it takes."""

    limits: Mapping[tuple[str, int], int] = field(default_factory=dict)
    taken: tuple[TakenHeartbeat, ...] = ()


def next_cut(
    queues: Mapping[str, Mapping[int, Queue]],
    last: Mapping[str, TakenHeartbeat],
    is_late: Callable[[str, int, Placed], bool],
) -> Cut:
    """The cut for the next version. ``queues`` are by region and source partition; ``last`` is, by region, the last
    heartbeat taken; ``is_late`` tells, of a heartbeat in a source partition, whether it has waited for too long."""
    limits: dict[tuple[str, int], int] = {}
    taken: list[TakenHeartbeat] = []
    for region, parts in queues.items():
        fronts = _fronts(parts, last.get(region))
        if not fronts:
            continue
        any_front = next(iter(fronts.values())).heartbeat
        missing = tuple(sorted(set(range(any_front.partitions)) - set(fronts)))
        is_taken = not missing or any(is_late(region, part, one) for part, one in fronts.items())
        limits |= {(region, part): one.offset + is_taken for part, one in fronts.items()}
        if is_taken:
            taken.append(TakenHeartbeat(region, *any_front.mark, any_front.previous_ms, missing=missing))
    return Cut(limits, tuple(taken))


def _fronts(parts: Mapping[int, Queue], last: TakenHeartbeat | None) -> dict[int, Placed]:
    """The next heartbeat of each source partition that has one: all of them are the same heartbeat.

    Lower ones than the highest are left out: an emitter that died between two partitions left them, or one whose place
    was taken wrote them late. They will never be in all partitions, and would be waited for without end. So are those
    that are not above the last one taken.
    """
    floor = last.mark if last is not None else (0, 0)
    at = dict.fromkeys(parts, 0)
    while True:
        fronts = {part: queue[at[part]] for part, queue in parts.items() if at[part] < len(queue)}
        top = max((one.heartbeat.mark for one in fronts.values()), default=floor)
        low = [part for part, one in fronts.items() if one.heartbeat.mark < top or one.heartbeat.mark <= floor]
        if not low:
            return fronts
        for part in low:
            at[part] += 1
