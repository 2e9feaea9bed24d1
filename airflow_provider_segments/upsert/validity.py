"""The segment updater: which rows of a segment are valid at a mark, from the update logs that address it.

An update log lists ends: (segment, row, kind, version). Where the version is null, it is that of the log's entry, so
that nothing written before a publish contains its number. A row's validity is written once: of several ends of one row
the first counts, whatever order the logs are read in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import pyarrow

from airflow_provider_segments.upsert.events import LOSER, Column

LOG_SCHEMA = pyarrow.schema(
    [
        pyarrow.field("segment", pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), nullable=False),
        pyarrow.field("row", pyarrow.int64(), nullable=False),
        pyarrow.field("kind", pyarrow.uint8(), nullable=False),
        pyarrow.field("version", pyarrow.int64()),
    ]
)
NEVER = -1
"""``until`` of a row that is visible at no mark."""


@dataclass(frozen=True, slots=True, eq=False)
class RowEnds:
    """Ends of rows of one segment: ``rows`` in ascending order, each once, and from which version ``until`` they are
    not valid any more."""

    rows: Column
    until: Column

    def dead_rows(self, mark: int) -> Column:
        """The rows that are not valid at ``mark``, ascending."""
        found: Column = self.rows[self.until <= mark]
        return found

    def valid_mask(self, mark: int, rows: int) -> Column:
        """For each of a segment's ``rows``, whether it is valid at ``mark``, which shows the segment."""
        mask = numpy.ones(rows, bool)
        mask[self.dead_rows(mark)] = False
        return mask

    def intervals(self, version: int, rows: int) -> tuple[pyarrow.Array, pyarrow.Array]:
        """``valid_from`` and ``valid_until`` of each of a segment's ``rows``, which begin with ``version``; both are
        null for a row that is never visible."""
        until = numpy.full(rows, numpy.iinfo(numpy.int64).max)
        until[self.rows] = self.until
        never = until == NEVER
        start = pyarrow.array(numpy.full(rows, version, numpy.int64), mask=never)
        return start, pyarrow.array(until, mask=never | (until == numpy.iinfo(numpy.int64).max))


NO_ENDS = RowEnds(numpy.empty(0, numpy.int64), numpy.empty(0, numpy.int64))


def ends_by_segment(
    logs: Iterable[tuple[int, pyarrow.Table]], is_void: Callable[[int], bool] = lambda _: False
) -> dict[str, RowEnds]:
    """The ends of all segments that ``logs`` address; each log comes with the version of its entry. An end of a version
    that a rollback has taken back is none."""
    found: dict[str, list[tuple[Column, Column]]] = {}
    for version, log in logs:
        for segment, rows, until in _of_log(version, log, is_void):
            found.setdefault(segment, []).append((rows, until))
    return {segment: _first_ends(parts) for segment, parts in found.items()}


def log_of(events: Mapping[str, Any] | None = None) -> pyarrow.Table:
    """An update log with these columns, by segment and row; an empty one without. In this order it is written in a
    sixth of the bytes, and read four times as fast."""
    if not events or not len(events["row"]):
        return LOG_SCHEMA.empty_table()
    log = pyarrow.table({name: events[name] for name in LOG_SCHEMA.names}).cast(LOG_SCHEMA)
    log = log.unify_dictionaries().combine_chunks()
    segments = log.column("segment").chunk(0).indices.to_numpy()
    return log.take(pyarrow.array(numpy.lexsort((log.column("row").to_numpy(), segments))))


def _of_log(version: int, log: pyarrow.Table, is_void: Callable[[int], bool]) -> Iterable[tuple[str, Column, Column]]:
    log = log.combine_chunks().unify_dictionaries()
    if not log.num_rows:
        return
    column = log.column("segment").chunk(0)
    codes = column.indices.to_numpy(zero_copy_only=False)
    rows = log.column("row").to_numpy()
    versions = log.column("version").fill_null(version).to_numpy()
    until = numpy.where(log.column("kind").to_numpy() == LOSER, NEVER, versions)
    taken_back = [one for one in numpy.unique(versions).tolist() if is_void(one)]
    counted = ~numpy.isin(versions, taken_back)
    codes, rows, until = codes[counted], rows[counted], until[counted]
    order = numpy.argsort(codes, kind="stable")
    bounds = numpy.flatnonzero(numpy.diff(codes[order])) + 1
    for part in numpy.split(order, bounds):
        if len(part):
            yield column.dictionary[int(codes[part[0]])].as_py(), rows[part], until[part]


def _first_ends(parts: list[tuple[Column, Column]]) -> RowEnds:
    rows = numpy.concatenate([rows for rows, _ in parts])
    until = numpy.concatenate([until for _, until in parts])
    order = numpy.lexsort((until, rows))
    rows, until = rows[order], until[order]
    first = numpy.ones(len(rows), bool)
    first[1:] = rows[1:] != rows[:-1]
    return RowEnds(rows[first], until[first])
