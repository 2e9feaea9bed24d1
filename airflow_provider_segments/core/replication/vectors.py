"""Vectors of positions. Pure.

A vector has, by source partition (``<region>/<partition>``), a position: what was read up to there, and not what is at
it. Positions are whole numbers, or bytes of one width, and are compared as such. A source partition that a vector does
not have is *absent*, which is less than any position and in particular not zero: nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Position = int | bytes
Vector = Mapping[str, Position]


def covers(watermark: Vector, vector: Vector) -> bool:
    """Return True if a reader that stands at ``watermark`` has read all that ``vector`` was made from.

    What is absent in ``vector`` is covered by anything; what is absent in ``watermark`` alone is not covered. Raises
    :class:`TypeError` for a number compared with bytes, and :class:`ValueError` for bytes of different widths.
    """
    return all(source in watermark and _reaches(watermark[source], at) for source, at in vector.items())


def merge(vectors: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The smallest vector that covers all of ``vectors``."""
    found: dict[str, int] = {}
    for vector in vectors:
        found |= {source: max(at, found.get(source, at)) for source, at in vector.items()}
    return found


def _reaches(watermark: Position, at: Position) -> bool:
    if isinstance(watermark, bytes) and isinstance(at, bytes):
        if len(watermark) != len(at):
            raise ValueError(f"positions of {len(watermark)} and of {len(at)} bytes have no order")
        return watermark >= at
    if isinstance(watermark, int) and isinstance(at, int):
        return watermark >= at
    raise TypeError("a number and bytes have no order: the positions of a source partition are of one kind")
