"""Which partition ids were given out, per time chunk, in a list that stays short.

A counter says which id comes next in its chunk. Ids only ever go up, so an id is never used twice, also after its
segment is gone (reuse was a data-loss bug in Druid: #16380, #18216, #18230). A table has more time chunks than a record
has room for, so when there are more than ``MAX_COUNTERS``, those of the oldest months are folded into one counter a
month, then a year, then all of time. A folded counter speaks for every chunk inside it: the next id there is at least
its ``next``. Folding can skip ids, and never repeats one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from airflow_provider_segments.core.model.interval import Granularity, Interval

MAX_COUNTERS = 512
_KEPT = MAX_COUNTERS // 2


class Counter(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """``next`` is the first id not given out in this time chunk; see the module for ``folded``."""

    start_ms: int
    end_ms: int
    next: int
    folded: bool = False

    def counts(self, chunk: Interval) -> bool:
        """Return True if new ids in ``chunk`` must be ``next`` or greater."""
        if not self.folded:
            return (self.start_ms, self.end_ms) == (chunk.start_ms, chunk.end_ms)
        return self.start_ms <= chunk.start_ms and chunk.end_ms <= self.end_ms


Counters = tuple[Counter, ...]


def next_id(counters: Counters, chunk: Interval) -> int:
    """Return the first id that was never given out in ``chunk``."""
    return max((counter.next for counter in counters if counter.counts(chunk)), default=0)


def advance(counters: Counters, chunk: Interval, following: int) -> Counters:
    """Return the counters after the next id in ``chunk`` was raised to at least ``following``."""
    if following <= next_id(counters, chunk):
        return counters
    others = tuple(counter for counter in counters if counter.folded or not counter.counts(chunk))
    return fold((*others, Counter(chunk.start_ms, chunk.end_ms, following)))


def fold(counters: Counters, limit: int = MAX_COUNTERS, kept: int = _KEPT) -> Counters:
    """Return at most ``limit`` counters: fold the oldest time first, into units as narrow as possible."""
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
    for counter in counters:
        parent = level.chunk(counter.start_ms)
        if counter.end_ms <= parent.end_ms:
            groups.setdefault(parent, []).append(counter)
        else:
            left.append(counter)
    count = len(counters)
    for parent in sorted(groups):
        members = groups[parent]
        if count <= kept or len(members) == 1:
            left += members
            continue
        left.append(_merge(parent, members))
        count -= len(members) - 1
    return tuple(left)


def _merge(parent: Interval, members: Sequence[Counter]) -> Counter:
    """Return one counter for all of ``members``, with the greatest of their next ids: so no id is given twice."""
    return Counter(parent.start_ms, parent.end_ms, max(counter.next for counter in members), True)
