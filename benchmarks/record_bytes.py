"""What places of rows cost in the files of an upsert table: where a row came from, beside a vector of all regions.

    python -m benchmarks.record_bytes [ROWS]      1,000,000 rows

Each line is a Parquet file of the same rows in random order of their keys, written by the writer of ingestion. *Own*
are region, source partition and position of the row's event, which is what our tables keep. A *vector* has, beside
them, of each region the position of the last event that has touched the key: what a store needs whose heartbeats have
no vectors. Every key was touched by every region. Positions are 64-bit numbers, or 20 bytes: a ledger and an entry of 8
bytes each, and a place in a batch of 4.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
import pyarrow

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION, REGION
from airflow_provider_segments.upsert.writing import SegmentWriter
from benchmarks.report import machine, table

NAMES = ("eu", "us", "ap", "sa", "af")
CONFIG = {
    "tableName": "t",
    "schema": {"primaryKeyColumns": ["k"]},
    "upsertConfig": {"mode": "FULL", "comparisonColumns": ["ts"]},
}


def positions(places: numpy.ndarray[Any, Any], width: int) -> pyarrow.Array:
    """Places in a source as positions of 8 or 20 bytes."""
    if width == 8:
        return pyarrow.array(places, pyarrow.int64())
    parts = numpy.empty(len(places), [("ledger", ">u8"), ("entry", ">u8"), ("batch", ">u4")])
    entries, parts["batch"] = places // 64, places % 64
    parts["ledger"], parts["entry"] = 70_000 + entries // 50_000, entries % 50_000
    return pyarrow.Array.from_buffers(pyarrow.binary(20), len(places), [None, pyarrow.py_buffer(parts.tobytes())])


def rows_of(count: int, rnd: numpy.random.Generator) -> dict[str, Any]:
    """The columns that users see."""
    keys = rnd.permutation(count)
    return {
        "k": pyarrow.array([f"order-{key:012d}" for key in keys.tolist()]),
        "ts": pyarrow.array(1_760_000_000_000 + numpy.arange(count) + rnd.integers(0, 60_000, count)),
        "amount": pyarrow.array(rnd.random(count)),
        "status": pyarrow.array(numpy.array(["new", "paid", "sent", "back"])[rnd.integers(0, 4, count)]),
    }


def own(count: int, regions: int, width: int, rnd: numpy.random.Generator) -> dict[str, Any]:
    """Where the event of each row was: rows are in the order in which they arrived."""
    region, part = rnd.integers(0, regions, count), rnd.integers(0, 4, count)
    places = numpy.empty(count, numpy.int64)
    for number in range(4 * regions):
        here = region * 4 + part == number
        places[here] = 1_000_000_000 + numpy.arange(here.sum())
    names = numpy.array(NAMES)[region]
    return {
        REGION: pyarrow.array(names),
        PARTITION: pyarrow.array(part, pyarrow.int32()),
        OFFSET: positions(places, width),
    }


def vector(count: int, regions: int, width: int, rnd: numpy.random.Generator) -> dict[str, Any]:
    """A position of each region."""
    return {
        f"position_{name}": positions(1_000_000_000 + rnd.integers(0, 10 * count, count), width)
        for name in NAMES[:regions]
    }


def bytes_a_row(into: Table, folder: Path, columns: dict[str, Any]) -> float:
    """Write the columns as a push of its own, which is never ended."""
    ticket = into.open_stage(into.start(()).entry_id)
    writer = SegmentWriter(into.config(), ticket, into.storage, folder)
    written = [one.segment.record for one in writer.segments(pyarrow.table(columns), 0)]
    return sum(one.bytes for one in written) / sum(one.rows for one in written)


def main(count: int = 1_000_000) -> None:
    """Print the table."""
    print(machine())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="record-bytes-")))
        server = stack.enter_context(EmbeddedZooKeeper(folder / "zookeeper"))
        store = stack.enter_context(SegmentStore.connect(server.hosts, "c", (folder / "objects").as_uri()))
        store.apply_config(TableConfig.from_json(CONFIG))
        into, rnd = store.table("t"), numpy.random.default_rng(1)
        rows = rows_of(count, rnd)
        plain = bytes_a_row(into, folder, rows)
        print(f"{count:,} rows, {plain:.1f} bytes a row without any place")
        lines = []
        for width in (8, 20):
            for regions in (2, 3, 5):
                with_own = rows | own(count, regions, width, rnd)
                mine = bytes_a_row(into, folder, with_own) - plain
                whole = bytes_a_row(into, folder, with_own | vector(count, regions, width, rnd)) - plain
                lines.append([f"{width}", f"{regions}", f"{mine:.1f}", f"{whole:.1f}", f"{whole / mine:.1f}"])
        print(table(["bytes a position", "regions", "own: bytes a row", "own and vector", "times"], lines))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
