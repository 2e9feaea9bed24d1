"""Upsert tables beside everything else that moves, removes or brings back objects, on files and on S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.core.deletion.reconcile import CLASSES
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.exceptions import RefusedError, UpsertRefusedError
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.expiry import expire
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows, valid_rows
from airflow_provider_segments.upsert.rollback import roll_back
from tests.support.owned import drain, expected_keys, keys_in
from tests.support.tables import DAY_MS, HOUR_MS, HandClock
from tests.upsert.world import Event, newest, to_arrow, upsert_config


def make_upsert_table(store: SegmentStore, **upsert: Any) -> Table:
    document = upsert_config(**upsert).to_json()
    segments = document["segmentsConfig"] | {"timeColumnName": "ts"}
    build = {"timeFormat": "EPOCH_MILLIS", "segmentGranularity": "ALL"}
    store.apply_config(TableConfig.from_json({**document, "segmentsConfig": segments, "segmentBuildConfig": build}))
    return store.table("t")


class History:
    """Versions of a table, and what each must show."""

    def __init__(self, table: Table, cache: Path, first_ms: int) -> None:
        self.table = table
        self.ingestor = UpsertIngestor(table, cache=cache)
        self.sent: list[Event] = []
        self.first_ms = first_ms
        self.shown: dict[int, dict[str, str]] = {}

    def ingest(self, *keys: str) -> None:
        at = len(self.sent)
        batch = [Event(self.first_ms + at + n, 0, at + n, key, f"v{at + n}", False) for n, key in enumerate(keys)]
        self.sent += batch
        self.shown[self.ingestor.ingest(to_arrow(batch)).version] = newest(self.sent)

    def check(self) -> None:
        """Every mark that can be read shows what it must."""
        record = require_record(self.table.lineage())
        for mark, wanted in self.shown.items():
            if record.floor <= mark and not record.is_void(mark):
                assert {row["k"]: row["v"] for row in read_rows(self.table, mark=mark).to_pylist()} == wanted, mark


def assert_in_step(table: Table) -> None:
    """Storage holds exactly what is registered, in both places, and nothing is unknown or lost."""
    assert table.store.tiered is not None
    primary, tiered = expected_keys(table)
    assert (keys_in(table.storage, table), keys_in(table.store.tiered, table)) == (primary, tiered)
    found = table.reconcile(grace_ms=0)
    assert {name for name in CLASSES if getattr(found, name).count} <= {"referenced", "hidden"}, found


def clean_up(store: SegmentStore, table: Table, hand: HandClock) -> None:
    """Until nothing is left to do."""
    for _ in range(4):
        hand.advance(30 * HOUR_MS)
        table.cleanup()
        drain(store, hand)


def test_every_mark_stays_as_it_is_while_segments_and_logs_are_offloaded_compacted_and_deleted(
    tiered_store: SegmentStore, hand: HandClock, tmp_path: Path
) -> None:
    store = tiered_store
    table = make_upsert_table(store)
    history = History(table, tmp_path / "cache", hand.now_ms - 10 * DAY_MS)
    for keys in (("a", "b", "c"), ("a",), ("b", "d")):
        history.ingest(*keys)
    history.check()
    offloaded = table.offload(older_than_ms=DAY_MS, primary_lag_ms=0).as_dict()
    assert offloaded["offloaded"], offloaded
    history.check()
    hand.advance(DAY_MS)
    table.offload(older_than_ms=DAY_MS, primary_lag_ms=0)
    drain(store, hand)
    assert any(segment.tiered for segment in table.snapshot().segments)
    history.check()
    history.ingest("c", "d", "e")
    history.check()
    UpsertCompactor(table, dead_share=0.0).run(floor=3)
    history.check()
    clean_up(store, table, hand)
    history.check()
    assert_in_step(table)
    history.ingest("a")
    history.check()


def test_a_reader_with_a_lease_goes_on_to_read_what_a_compaction_has_replaced(
    tiered_store: SegmentStore, hand: HandClock, tmp_path: Path
) -> None:
    store = tiered_store
    table = make_upsert_table(store)
    history = History(table, tmp_path / "cache", hand.now_ms)
    for keys in (("a", "b"), ("a",), ("a",)):
        history.ingest(*keys)
    with table.snapshot(mark=1) as taken:
        UpsertCompactor(table, dead_share=0.0).run(floor=3)
        with pytest.raises(UpsertRefusedError, match="below-floor"):
            table.snapshot(mark=1)
        clean_up(store, table, hand)
        rows = [row for part in valid_rows(taken, None, "deleted") for row in part.to_pylist()]
        assert {row["k"]: row["v"] for row in rows} == history.shown[1]
        kept = len(keys_in(table.storage, table))
    clean_up(store, table, hand)
    assert len(keys_in(table.storage, table)) < kept
    history.check()
    assert_in_step(table)


def test_what_a_rollback_takes_back_leaves_storage_and_nothing_else_does(
    tiered_store: SegmentStore, hand: HandClock, tmp_path: Path
) -> None:
    store = tiered_store
    table = make_upsert_table(store)
    history = History(table, tmp_path / "cache", hand.now_ms)
    for keys in (("a", "b"), ("a",), ("b",)):
        history.ingest(*keys)
    third = require_record(table.lineage()).published[-1].entry_id
    with pytest.raises(RefusedError, match="upsert-published"):
        table.revert(third)
    UpsertCompactor(table, dead_share=0.0).run(floor=1)
    back = roll_back(table.context, 2)
    with pytest.raises(RefusedError, match="upsert-table"):
        table.unrevert(third)
    history.shown[back.version] = history.shown[2]
    history.check()
    clean_up(store, table, hand)
    history.check()
    assert_in_step(table)
    del history.sent[back.positions["/0"] :]
    history.ingest("b", "c")
    history.check()


def test_rows_past_the_retention_leave_both_storages(
    tiered_store: SegmentStore, hand: HandClock, tmp_path: Path
) -> None:
    store = tiered_store
    table = make_upsert_table(store)
    start = hand.now_ms - 10 * DAY_MS
    history = History(table, tmp_path / "cache", start)
    history.ingest("a", "b")
    table.offload(older_than_ms=DAY_MS, primary_lag_ms=0)
    done = expire(table, start + DAY_MS)
    assert done.rows == 2
    history.shown[done.version] = {}
    history.check()
    UpsertCompactor(table, dead_share=0.0).run(floor=done.version)
    clean_up(store, table, hand)
    assert not keys_in(table.storage, table) and store.tiered is not None and not keys_in(store.tiered, table)
    assert_in_step(table)
