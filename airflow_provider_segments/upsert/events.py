"""Ingestion upsert events (Pinot's word), as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy

Column = numpy.ndarray[Any, Any]

DELETE = 1
"""The row was the newest of its key until this version."""
LOSER = 2
"""The row is older than one that was there before: it is never visible."""

BULK_PARTITION = 2**31 - 1
"""The ``$partition`` of rows that came by an ordinary push and have none: it sorts after every partition of a source.
Their ``$offset`` is the zxid at which their push was born."""


class IngestionUpsertEvent(NamedTuple):
    """One row that wants to be the newest of its key.

    ``high`` and ``low`` are the halves of the key's 128-bit hash. ``time`` is the comparison value, ``region``,
    ``partition`` and ``offset`` say where in its input the row was. ``segment`` (a number the caller gives) and ``row``
    say where it is now.
    """

    high: int
    low: int
    time: int
    region: int
    partition: int
    offset: int
    segment: int
    row: int


_TYPES = {
    "high": numpy.uint64,
    "low": numpy.uint64,
    "time": numpy.int64,
    "region": numpy.int16,
    "partition": numpy.int32,
    "offset": numpy.int64,
    "segment": numpy.int32,
    "row": numpy.int64,
}
ORDER = ("time", "region", "partition", "offset")
"""By these, in this order, the newest row of a key is told. It is a total order: two different rows of one source never
have the same partition and offset."""


@dataclass(frozen=True, slots=True, eq=False)
class IngestionUpsertEvents:
    """Events as columns of one length: see :class:`IngestionUpsertEvent`."""

    high: Column
    low: Column
    time: Column
    region: Column
    partition: Column
    offset: Column
    segment: Column
    row: Column

    @classmethod
    def of(cls, events: Iterable[Sequence[int]] = ()) -> Self:
        """The columns of single events."""
        columns = list(zip(*events, strict=True)) or [()] * len(_TYPES)
        return cls(*(numpy.array(values, kind) for values, kind in zip(columns, _TYPES.values(), strict=True)))

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """All events of ``parts``, in order."""
        return cls(*(numpy.concatenate([getattr(part, name) for part in parts]) for name in _TYPES))

    def __len__(self) -> int:
        return len(self.high)

    def __iter__(self) -> Any:
        return (IngestionUpsertEvent(*(int(value) for value in row)) for row in zip(*self.columns(), strict=True))

    def columns(self) -> list[Column]:
        """The columns, in the order of :class:`IngestionUpsertEvent`."""
        return [getattr(self, one.name) for one in fields(self)]

    def take(self, rows: Column) -> Self:
        """The events at ``rows`` (numbers, or a mask)."""
        return type(self)(*(column[rows] for column in self.columns()))

    def at(self, segment: Column, row: Column) -> Self:
        """The same events, being there now."""
        return replace(self, segment=numpy.asarray(segment, numpy.int32), row=numpy.asarray(row, numpy.int64))

    @staticmethod
    def column_types() -> dict[str, type]:
        """The type of each column."""
        return dict(_TYPES)
