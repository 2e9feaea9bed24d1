"""Leap Frog on Arrow: what the Spark job says of two small tables, by the same :func:`.leapfrog.judge`."""

from __future__ import annotations

import pyarrow

from airflow_provider_segments.core.replication.leapfrog import Kind, LastRow, Side, judge
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.upsert.reading import read_ends, read_segment, require_mark
from airflow_provider_segments.upsert.validity import NO_ENDS


def last_rows(table: Table) -> tuple[dict[str, LastRow], Side]:
    """The newest row of each key, delete records too, and what the table has read."""
    upsert = table.config().upsert
    assert upsert is not None
    found: dict[str, LastRow] = {}
    with table.snapshot() as taken:
        assert taken.lineage is not None
        record, mark, ends = require_record(taken.lineage), require_mark(taken), read_ends(taken)
        for segment in taken.segments:
            valid = ends.get(segment.name, NO_ENDS).valid_mask(mark, segment.rows)
            for row in read_segment(taken, segment, None).filter(pyarrow.array(valid)).to_pylist():
                region, part, offset = (row.pop(name) for name in ("$region", "$partition", "$offset"))
                order = (row["ts"], upsert.regions.index(region), part, offset)
                assert row["k"] not in found, "one row a key is valid"
                found[row["k"]] = LastRow(
                    repr(sorted(row.items())).encode(), order, bool(row["deleted"]), {f"{region}/{part}": offset + 1}
                )
    return found, Side(record.positions, record.cutoff)


def compare(a: Table, b: Table) -> dict[str, Kind]:
    """What there is to say of each key."""
    (rows_a, side_a), (rows_b, side_b) = last_rows(a), last_rows(b)
    judged = {key: judge(rows_a.get(key), rows_b.get(key), side_a, side_b) for key in {*rows_a} | {*rows_b}}
    return {key: kind for key, kind in judged.items() if kind is not None}
