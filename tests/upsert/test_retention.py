"""Time retention of an upsert table: old rows end with a version of their own, and older events are dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import NO_CUTOFF, EventCounts, require_record
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.expiry import expire
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from airflow_provider_segments.upsert.rollback import roll_back
from tests.support.tables import HOUR_MS, HandClock, on_clock, on_session
from tests.upsert.world import Event, InterruptedSession, to_arrow, upsert_config

DAY_MS = 24 * HOUR_MS


def kept_for_a_week(time_format: str = "EPOCH_MILLIS", **upsert: Any) -> TableConfig:
    document = upsert_config(**upsert).to_json()
    segments = {"timeColumnName": "ts", "retentionTimeUnit": "DAYS", "retentionTimeValue": "7"}
    build = {"timeFormat": time_format, "segmentGranularity": "ALL"}
    return TableConfig.from_json(
        {**document, "segmentsConfig": document["segmentsConfig"] | segments, "segmentBuildConfig": build}
    )


def values(table: Table, mark: int | None = None) -> dict[str, str]:
    return {row["k"]: row["v"] for row in read_rows(table, mark=mark).to_pylist()}


def test_rows_past_the_retention_end_and_older_events_are_dropped_and_counted(
    store: SegmentStore, tmp_path: Path
) -> None:
    hand = HandClock()
    timed = on_clock(store, hand.clock())
    timed.apply_config(kept_for_a_week())
    table = timed.table("t")
    start = timed.clock.now_ms()
    ingestor = UpsertIngestor(table, cache=tmp_path)
    ingestor.ingest(to_arrow([Event(start, 0, 0, "a", "old", False), Event(start, 0, 1, "b", "gone", True)]))
    ingestor.ingest(to_arrow([Event(start + 2 * DAY_MS, 0, 2, "c", "young", False)]))
    hand.advance(8 * DAY_MS)
    UpsertCompactor(table).run()
    assert values(table) == {"c": "young"}
    assert values(table, 2) == {"a": "old", "c": "young"}
    late = [Event(start + 1, 0, 3, "a", "late", False), Event(start + 8 * DAY_MS, 0, 4, "a", "new", False)]
    done = ingestor.ingest(to_arrow(late))
    assert (done.winners, done.ended, done.expired) == (1, 0, 1), "the key counts as new"
    assert require_record(table.lineage()).events == EventCounts(ingested=4, expired=1)
    assert values(table) == {"a": "new", "c": "young"}
    UpsertCompactor(table).run(floor=done.version)
    assert table.snapshot().rows == 2, "what has ended is dropped, delete records too"


def test_a_rollback_brings_expired_rows_back_and_the_cutoff_from_before(store: SegmentStore, tmp_path: Path) -> None:
    store.apply_config(upsert_config())
    table = store.table("t")
    ingestor = UpsertIngestor(table, cache=tmp_path)
    ingestor.ingest(to_arrow([Event(5, 0, 0, "a", "v5", False)]))
    assert (expire(table, 9).rows, expire(table, 9).entry_id, values(table)) == (1, "", {})
    roll_back(table.context, 1)
    assert require_record(table.lineage()).cutoff == NO_CUTOFF
    assert values(table) == {"a": "v5"}
    assert ingestor.ingest(to_arrow([Event(6, 0, 1, "a", "v6", False)])).ended == 1
    assert values(table) == {"a": "v6"}


@pytest.mark.parametrize("mode", ["FULL", "PARTIAL"])
def test_a_batch_that_an_expiry_overtakes_is_chosen_and_compared_again(
    store: SegmentStore, tmp_path: Path, mode: str
) -> None:
    for at in range(1, 40):
        store.apply_config(upsert_config(f"t{at}", mode=mode))
        table = store.table(f"t{at}")
        UpsertIngestor(table, cache=tmp_path / "a").ingest(to_arrow([Event(5, 0, 0, "a", "v5", False)]))
        session = InterruptedSession.connect(store.session.settings)
        try:
            ingestor = UpsertIngestor(on_session(store, session).table(f"t{at}"), cache=tmp_path / f"b{at}")
            batch = [Event(6, 0, 1, "a", "v6", False), Event(7, 0, 2, "b", "v7", False), Event(20, 0, 3, "a", "", True)]
            session.arm(at, landed=True, interrupt=lambda table=table: expire(table, 10))  # type: ignore[misc]
            done = ingestor.ingest(to_arrow(batch))
            overtaken = not session.at
        finally:
            session.close()
        record = require_record(table.lineage())
        if done.version == record.clock and overtaken:
            assert (done.winners, done.expired) == (1, 2)
        assert values(table) == ({} if overtaken else {"b": "v7"})
        if not overtaken:
            assert at > 4
            return
    pytest.fail("more than 40 writes")


def test_counts_of_events_add_up() -> None:
    both = EventCounts(1, 2, 3, 4, 5).plus(EventCounts(rejected=1))
    assert msgspec.structs.astuple(both) == (1, 2, 3, 4, 6)
