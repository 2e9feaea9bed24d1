"""Rows that a compaction moves, and the ends that have to go with them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy
import pyarrow

from airflow_provider_segments.upsert.events import DELETE, LOSER, Column
from airflow_provider_segments.upsert.validity import NEVER, NO_ENDS, RowEnds, log_of

_Ends = tuple[Column, Column, Column]


@dataclass(frozen=True, slots=True, eq=False)
class MovedRows:
    """Where the rows of one segment are now: ``rows`` of it, in ascending order, became rows ``row`` of the segments
    with the numbers ``segment``. The others were dropped."""

    rows: Column
    segment: Column
    row: Column


def ends_to_keep(
    moved: Mapping[str, MovedRows],
    names: Sequence[str],
    ends: Mapping[str, RowEnds],
    merged: Mapping[str, RowEnds],
    standing: Collection[str],
) -> pyarrow.Table:
    """The update log of a compaction: the ends that no log tells that stays.

    ``ends`` are all ends of now, ``merged`` those of the logs that the compaction merges. Kept are the ends of rows
    that were ``moved``, at the rows' new places in the segments ``names``; and the ends in ``merged`` of rows of other
    ``standing`` segments. Each names the version that it came from: a rollback of that version takes it back.
    """
    parts = [_of_moved(rows, names, ends.get(name, NO_ENDS)) for name, rows in moved.items()]
    for name, those in merged.items():
        if name in standing and name not in moved:
            parts.append((numpy.full(len(those.rows), name, object), those.rows, those.until))
    return _log(parts)


def _of_moved(moved: MovedRows, names: Sequence[str], ends: RowEnds) -> _Ends:
    """All ends of the rows: each was valid when it was moved, so each has ended since. That may read as an end at or
    below the floor by now, for every publish can raise the floor."""
    at = numpy.minimum(numpy.searchsorted(moved.rows, ends.rows), max(len(moved.rows) - 1, 0))
    known = moved.rows[at] == ends.rows if len(moved.rows) else numpy.zeros(len(at), bool)
    of_segment = numpy.array([*names, ""], object)
    return of_segment[moved.segment[at[known]]], moved.row[at[known]], ends.until[known]


def _log(parts: Sequence[_Ends]) -> pyarrow.Table:
    if not parts:
        return log_of()
    until = numpy.concatenate([until for _, _, until in parts])
    return log_of(
        {
            "segment": pyarrow.array(numpy.concatenate([names for names, _, _ in parts]), pyarrow.string()),
            "row": numpy.concatenate([rows for _, rows, _ in parts]),
            "kind": numpy.where(until == NEVER, LOSER, DELETE).astype(numpy.uint8),
            "version": pyarrow.array(until, mask=until == NEVER),
        }
    )
