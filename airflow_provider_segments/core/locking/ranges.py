"""Sets of partition ids as ranges: ids are given out in order, so a few pairs say what hundreds of numbers would."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""Partition ids as sorted, disjoint ``[first, end)`` pairs."""


def ranges_of(ids: Iterable[int]) -> Ranges:
    """Return ``ids`` as ranges."""
    ranges: list[tuple[int, int]] = []
    for id_ in sorted(set(ids)):
        if ranges and ranges[-1][1] == id_:
            ranges[-1] = (ranges[-1][0], id_ + 1)
        else:
            ranges.append((id_, id_ + 1))
    return tuple(ranges)


def ranges_overlap(left: Ranges, right: Ranges) -> bool:
    """Return True if the two share an id."""
    return any(a < d and c < b for a, b in left for c, d in right)


def ranges_contain(outer: Ranges, inner: Ranges) -> bool:
    """Return True if every id of ``inner`` is in ``outer``."""
    return all(any(a <= c and d <= b for a, b in outer) for c, d in inner)


def expand(ranges: Ranges) -> tuple[int, ...]:
    """Return the ids of ``ranges``, in order."""
    return tuple(id_ for first, end in ranges for id_ in range(first, end))
