"""Sets of partition ids as ranges: ids are given out in order, so a few pairs say what hundreds of numbers would."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""Partition ids as sorted, disjoint ``[first, end)`` pairs."""


def ranges_of(ids: Iterable[int]) -> Ranges:
    """``ids`` as ranges."""
    found: list[tuple[int, int]] = []
    for one in sorted(set(ids)):
        if found and found[-1][1] == one:
            found[-1] = (found[-1][0], one + 1)
        else:
            found.append((one, one + 1))
    return tuple(found)


def ranges_overlap(left: Ranges, right: Ranges) -> bool:
    """Whether the two share an id."""
    return any(a < d and c < b for a, b in left for c, d in right)


def ranges_contain(outer: Ranges, inner: Ranges) -> bool:
    """Whether every id of ``inner`` is in ``outer``."""
    return all(any(a <= c and d <= b for a, b in outer) for c, d in inner)


def expand(ranges: Ranges) -> tuple[int, ...]:
    """The ids of ``ranges``, in order."""
    return tuple(one for first, end in ranges for one in range(first, end))
