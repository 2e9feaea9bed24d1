"""An upsert table is dropped, brought back and removed like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_segments.core.model.names import is_entry_id
from airflow_provider_segments.core.replication.comparisons import ComparisonRecord, keep_comparison
from airflow_provider_segments.core.replication.emission import HeartbeatEmitter
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.upsert.marks import HeldVersions
from airflow_provider_segments.exceptions import SegmentsError, TableDroppedError
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from tests.support.tables import HOUR_MS, HandClock, on_clock
from tests.upsert.world import Event, to_arrow, upsert_config


def test_a_dropped_table_shows_nothing_comes_back_whole_and_goes_in_the_end(
    store: SegmentStore, tmp_path: Path
) -> None:
    hand = HandClock()
    timed = on_clock(store, hand.clock())
    timed.apply_config(upsert_config())
    table = timed.table("t")
    ingestor = UpsertIngestor(table, cache=tmp_path / "cache")
    for at in range(3):
        ingestor.ingest(to_arrow([Event(at, 0, at, "a", f"v{at}", False)]))
    HeldVersions(timed.cluster, "t").report("extract", 1)
    HeartbeatEmitter(timed.cluster, "t", "eu", "me").emit(1, lambda _: None)
    keep_comparison(timed.cluster, "t", ComparisonRecord(other="there", at_ms=1, version=1, other_version=1))
    dropped = table.drop()
    assert is_entry_id(dropped.entry_id)
    with pytest.raises(TableDroppedError):
        read_rows(table)
    with pytest.raises(SegmentsError):
        ingestor.ingest(to_arrow([Event(9, 0, 9, "a", "late", False)]))
    table.revert(dropped.entry_id)
    assert [row["v"] for row in read_rows(table).to_pylist()] == ["v2"]
    assert [row["v"] for row in read_rows(table, mark=1).to_pylist()] == ["v0"]
    ingestor.ingest(to_arrow([Event(9, 0, 9, "a", "v9", False)]))
    assert [row["v"] for row in read_rows(table).to_pylist()] == ["v9"]
    table.drop()
    for _ in range(8):
        if "t" not in timed.tables():
            break
        hand.advance(30 * HOUR_MS)
        table.cleanup()
    assert "t" not in timed.tables()
