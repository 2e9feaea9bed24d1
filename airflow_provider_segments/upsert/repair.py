"""Repair of keys on which two regions disagree: the right rows are written to their sources again, as ordinary events.

Nothing is changed in a table. Both read the events like any others: in each they win over what it shows of those keys,
because they are the same rows at later offsets. The next comparison says healed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow

from airflow_provider_segments.core.replication.leapfrog import Kind
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.exceptions import InvalidConfigError, SourceDataError
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION, REGION
from airflow_provider_segments.upsert.event_source import EventSource
from airflow_provider_segments.upsert.reading import read_ends, read_segment, require_mark
from airflow_provider_segments.upsert.validity import NO_ENDS

Place = tuple[str, int, int]
"""Region, source partition and offset of a row."""

_REPAIRED = (Kind.MISMATCH, Kind.MISSING_IN_B)


@dataclass(frozen=True, slots=True)
class Repair:
    """``rows`` are, by region, the rows of this table that are to be written again; ``keys`` are those of the findings
    behind them. ``elsewhere`` keys have their newer row in the other region: repair them from there. ``gone`` keys have
    changed in this table since they were found."""

    rows: Mapping[str, pyarrow.Table]
    keys: tuple[str, ...]
    elsewhere: tuple[str, ...]
    gone: tuple[str, ...]

    def write(self, sources: Mapping[str, EventSource]) -> None:
        """Add the rows to the sources, by region. Raises :class:`SourceDataError` for a region whose source is not
        given, before anything is written, and what adding events raises: then some rows may have been written."""
        if missing := sorted(set(self.rows) - set(sources)):
            raise SourceDataError(f"rows of region {missing[0]!r} are to be written, and its source is not given")
        for region, rows in self.rows.items():
            sources[region].add_events("repair", rows)


def plan_repair(table: Table, findings: Table) -> Repair:
    """Find out what has to be written so that the other region shows what ``table`` shows; ``findings`` are those of
    comparisons in which ``table`` was a. Writes nothing.

    Where both have the same event, and one has altered it, this table's row is taken for the right one. Raises
    :class:`InvalidConfigError` for a table of merged rows: an event that is written again would count twice.
    """
    upsert = table.config().upsert
    if upsert is None or upsert.is_partial:
        raise InvalidConfigError(f"table {table.name!r} has merged rows, or none by key: no event can be written again")
    wanted = _open_findings(findings)
    mine = {key: one for key, one in wanted.items() if one["kind"] in _REPAIRED and one["winner"] != "b"}
    places = {(one["region_a"], one["partition_a"], one["offset_a"]): key for key, one in mine.items()}
    found: dict[str, list[pyarrow.Table]] = {}
    keys: set[str] = set()
    with table.snapshot(owner="segments repair") as taken:
        for rows in _valid_rows(taken):
            for at, place in enumerate(_places(rows, upsert.regions[0])):
                if place in places:
                    found.setdefault(place[0], []).append(rows.slice(at, 1))
                    keys.add(places[place])
    whole = {region: pyarrow.concat_tables(parts, promote_options="default") for region, parts in found.items()}
    return Repair(whole, tuple(sorted(keys)), tuple(sorted(set(wanted) - set(mine))), tuple(sorted(set(mine) - keys)))


def _open_findings(findings: Table) -> dict[str, dict[str, Any]]:
    """The newest finding of each key, as far as it was not healed since."""
    newest: dict[str, dict[str, Any]] = {}
    with findings.snapshot(owner="segments repair") as taken:
        for segment in taken.segments:
            for row in read_segment(taken, segment, None).to_pylist():
                if row["kind"] != Kind.DIGEST and row["found_ms"] >= newest.get(row["key"], row)["found_ms"]:
                    newest[row["key"]] = row
    return {key: row for key, row in newest.items() if row["kind"] != Kind.HEALED}


def _valid_rows(taken: Snapshot) -> Iterator[pyarrow.Table]:
    """The rows of each segment that are valid at the snapshot's mark, delete records too."""
    mark, ends = require_mark(taken), read_ends(taken)
    for segment in taken.segments:
        rows = read_segment(taken, segment, None)
        if PARTITION in rows.column_names:
            yield rows.filter(pyarrow.array(ends.get(segment.name, NO_ENDS).valid_mask(mark, segment.rows)))


def _places(rows: pyarrow.Table, default: str) -> Iterator[Place]:
    regions = rows.column(REGION).to_pylist() if REGION in rows.column_names else [None] * rows.num_rows
    numbers = (rows.column(name).to_pylist() for name in (PARTITION, OFFSET))
    return ((region or default, part, offset) for region, part, offset in zip(regions, *numbers, strict=True))
