"""Leap Frog: whether two tables that read the same sources disagree on a key, or one of them has not read enough. Pure.

Two rows of one key diverge if and only if they differ, and each table has read all that the other's row was made from.
As long as one of them has not, the difference may be lag, and is *undecided*. So nothing is found that is not there,
and what is there is found once both have read past it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from airflow_provider_segments.core.replication.vectors import Vector, covers


class Kind(enum.StrEnum):
    """What was found of a key, or of a source partition (``DIGEST``). ``HEALED`` keys were found before, and agree."""

    MISMATCH = "mismatch"
    MISSING_IN_A = "missing in a"
    MISSING_IN_B = "missing in b"
    UNDECIDED = "undecided"
    HEALED = "healed"
    DIGEST = "digest"


class LastRow(NamedTuple):
    """The newest row of a key in one table. ``value`` is a hash of its columns; ``order`` is what newer is told by, the
    comparison value first; ``made_from`` are the positions behind the events that it was made from."""

    value: bytes
    order: tuple[int, ...]
    is_delete: bool
    made_from: Vector


class Side(NamedTuple):
    """What one table had read at the version that is compared: its positions, and the cutoff below which it may have
    forgotten keys. Both are those after a rollback, if there was one: what was taken back was never read."""

    watermark: Vector
    cutoff: int


def judge(a: LastRow | None, b: LastRow | None, side_a: Side, side_b: Side) -> Kind | None:
    """What is to be said of a key whose newest rows are ``a`` and ``b``; ``None``: nothing. Versions are compared as
    they were published, never in the middle of a batch.

    Rows below the greater cutoff are not judged: the other table may have dropped the key, or a delete record that kept
    older events of it away.
    """
    cutoff = max(side_a.cutoff, side_b.cutoff)
    if any(row.order[0] < cutoff for row in (a, b) if row is not None):
        return None
    is_decided = (a is None or covers(side_b.watermark, a.made_from)) and (
        b is None or covers(side_a.watermark, b.made_from)
    )
    if a is not None and b is not None:
        if a.value == b.value or (a.is_delete and b.is_delete):
            return None
        return Kind.MISMATCH if is_decided else Kind.UNDECIDED
    row = a if a is not None else b
    if row is None or row.is_delete:
        return None  # a delete record that the other one has compacted away, or never needed
    if not is_decided:
        return Kind.UNDECIDED
    return Kind.MISSING_IN_B if b is None else Kind.MISSING_IN_A


def expected_winner(a: LastRow | None, b: LastRow | None) -> str:
    """Which table has the row that both should show: ``a``, ``b``, or nothing when neither is newer."""
    if a is None or b is None:
        return "a" if b is None else "b"
    return "" if a.order == b.order else "a" if a.order > b.order else "b"


def has_diverged(counts: Mapping[str, int]) -> bool:
    """Return True if ``counts``, by kind, have anything that lag does not explain."""
    return any(counts.get(kind, 0) for kind in Kind if kind not in (Kind.UNDECIDED, Kind.HEALED))


def lag_behind(watermark: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """By source partition, how many offsets ``watermark`` is behind ``other``, where it is behind. A source partition
    of which nothing was read is behind by all."""
    behind = {source: at - watermark.get(source, 0) for source, at in other.items()}
    return {source: offsets for source, offsets in behind.items() if offsets > 0}
