"""What readers saw right after each entry, from one read: the same as a snapshot of each past."""

from __future__ import annotations

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore, Table
from tests.support.tables import HandClock, make_table, on_clock, push, unchanged

DAY_MS = 86_400_000


def seen(table: Table, entry_id: str) -> dict[str, int]:
    taken = table.snapshot(as_of=entry_id)
    return {"segments": len(taken), "rows": taken.rows, "bytes": taken.bytes}


def history(table: Table, entry_ids: list[str]) -> dict[str, dict[str, int] | None]:
    return {
        entry_id: None if after is None else after.as_dict()
        for entry_id, after in table.read_whole().totals_after(entry_ids)
    }


def test_history_is_what_a_snapshot_of_each_past_shows(store: SegmentStore) -> None:
    table = make_table(store, kind="REFRESH")
    pushes = [push(table, number) for number in (3, 5, 2, 7)]
    unchanged(store, lambda: history(table, pushes))
    assert history(table, pushes) == {entry_id: seen(table, entry_id) for entry_id in pushes}
    assert [(after or {})["segments"] for after in history(table, pushes).values()] == [3, 5, 2, 7]


def test_history_tells_of_appends_and_of_what_a_rollback_has_hidden_since(store: SegmentStore) -> None:
    """A rolled-back push was seen once: its own past says so, and later pasts do not count it."""
    table = make_table(store)
    first, second = push(table, 2), push(table, 3)
    table.revert(second)
    third = push(table, 4)
    after = history(table, [third, second, first])
    assert list(after) == [third, second, first], "in the order that was asked for"
    assert [(totals or {})["segments"] for totals in after.values()] == [6, 5, 2]
    table.unrevert(second)
    assert (history(table, [second])[second] or {})["segments"] == 9


def test_what_nobody_can_tell_any_more_is_none(store: SegmentStore) -> None:
    """A push in progress, one that was aborted, one whose past is cleaned up, and versions of an upsert table."""
    clock = HandClock()
    table = on_clock(store, clock.clock()).table(make_table(store, kind="REFRESH").name)
    old = push(table, 2)
    aborted = push(table, 2, end=False)
    table.abort(aborted)
    new = push(table, 3)
    clock.advance(3 * DAY_MS)
    table.cleanup()
    running = push(table, 2, end=False)
    left = [entry.entry_id for entry in table.lineage()]
    after = history(table, [entry_id for entry_id in (old, aborted, new, running) if entry_id in left])
    assert old not in after or after[old] is None
    assert after.get(aborted) is None
    assert after[new] == {"segments": 3, "rows": 3, "bytes": table.snapshot().bytes}
    assert after[running] is None
    document = {
        "tableName": "u",
        "segmentsConfig": {"timeColumnName": "ts"},
        "upsertConfig": {"mode": "FULL"},
        "schema": {"primaryKeyColumns": ["k"]},
    }
    store.apply_config(TableConfig.from_json(document))
    waiting = push(store.table("u"), 1)
    assert history(store.table("u"), [waiting]) == {waiting: None}
