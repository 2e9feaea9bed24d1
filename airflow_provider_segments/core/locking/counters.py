"""Which partition ids were given out, per interval and version, in a list that stays short.

A counter says which id comes next; ids only ever go up, so an id is never used twice, also after its segment is gone
(reuse was a data-loss bug in Druid: #16380, #18216, #18230). A table has more time chunks than a record has room for,
so when there are more than ``MAX_COUNTERS``, those of the oldest months are folded into one counter a month, then a
year, then all of time. A folded counter speaks for every chunk inside it and every version up to its own: the next id
there is at least its ``next``. Folding can skip ids, and never repeats one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from airflow_provider_segments.core.model.interval import Granularity, Interval

MAX_COUNTERS = 512
_KEPT = MAX_COUNTERS // 2


class Counter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``next`` is the first id not given out to segments of this interval and version; see the module for
    ``folded``."""

    start_ms: int
    end_ms: int
    version: str
    next: int
    folded: bool = False

    def speaks_for(self, interval: Interval, version: str) -> bool:
        """Whether ids of such segments start at ``next`` or later."""
        if not self.folded:
            return (self.start_ms, self.end_ms, self.version) == (interval.start_ms, interval.end_ms, version)
        return self.start_ms <= interval.start_ms and interval.end_ms <= self.end_ms and version <= self.version


Counters = tuple[Counter, ...]


def next_id(counters: Counters, interval: Interval, version: str) -> int:
    """The first id that was never given out."""
    return max((one.next for one in counters if one.speaks_for(interval, version)), default=0)


def raised(counters: Counters, interval: Interval, version: str, following: int) -> Counters:
    """The counters once the next id is at least ``following``."""
    if following <= next_id(counters, interval, version):
        return counters
    others = tuple(one for one in counters if one.folded or not one.speaks_for(interval, version))
    return folded((*others, Counter(interval.start_ms, interval.end_ms, version, following)))


def alone(counters: Counters, interval: Interval, version: str) -> bool:
    """Whether, in overlapping time, ids were only ever given out to segments of this very interval and version."""
    return all(
        one.speaks_for(interval, version) and not one.folded
        for one in counters
        if one.start_ms < interval.end_ms and interval.start_ms < one.end_ms
    )


def newest_version(counters: Counters, interval: Interval) -> str:
    """The greatest version that ids were given out at in overlapping time; empty when there is none."""
    found = (one.version for one in counters if one.start_ms < interval.end_ms and interval.start_ms < one.end_ms)
    return max(found, default="")


def folded(counters: Counters, limit: int = MAX_COUNTERS, kept: int = _KEPT) -> Counters:
    """The counters, at most ``limit`` of them: oldest parts of time first, as narrow as will do."""
    if len(counters) <= limit:
        return counters
    for level in (Granularity.MONTH, Granularity.YEAR, Granularity.ALL):
        counters = _fold_level(counters, level, kept)
        if len(counters) <= limit:
            break
    return counters


def _fold_level(counters: Counters, level: Granularity, kept: int) -> Counters:
    groups: dict[Interval, list[Counter]] = {}
    left: list[Counter] = []
    for one in counters:
        parent = level.chunk(one.start_ms)
        if one.end_ms <= parent.end_ms:
            groups.setdefault(parent, []).append(one)
        else:
            left.append(one)
    count = len(counters)
    for parent in sorted(groups):
        members = groups[parent]
        if count <= kept or len(members) == 1:
            left += members
            continue
        left.append(_merged(parent, members))
        count -= len(members) - 1
    return tuple(left)


def _merged(parent: Interval, members: Iterable[Counter]) -> Counter:
    """One counter for all of them: the greatest version and the greatest next id, so it promises at least as much."""
    ones = list(members)
    version, following = max(one.version for one in ones), max(one.next for one in ones)
    return Counter(parent.start_ms, parent.end_ms, version, following, True)
