"""When a push is over, no lock of it and no fence stays behind in ``LOCKS/<table>``."""

from __future__ import annotations

import pytest

from airflow_provider_segments.core.locking import LockRequest
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.table import SegmentStore, Table
from tests.support.tables import DAY_MS, DAYS, HandClock, build, named, on_clock


def locked_table(store: SegmentStore) -> Table:
    """A table whose pushes take locks."""
    document = {
        "tableName": "t",
        "segmentsConfig": {"timeColumnName": "ts"},
        "segmentBuildConfig": {"segmentLocking": True},
    }
    store.apply_config(TableConfig.from_json(document))
    return store.table("t")


def fences(table: Table) -> list[str]:
    return table.store.session.children(table.store.paths.lock_box(table.name))


def stage_days(table: Table, entry_id: str, days: int) -> None:
    """Stage a segment into each of so many days, in an attempt of its own."""
    ticket = table.open_stage(entry_id)
    table.stage(ticket, build(table, ticket, named(table, entry_id, days), chunks=DAYS[-days:]))


@pytest.mark.parametrize("over", ["end", "revert", "abort", "clean-up"])
def test_the_locks_of_a_superseded_attempt_go_with_the_push(store: SegmentStore, over: str) -> None:
    """The first attempt had locked two days; the second brings one of them only."""
    hand = HandClock()
    table = locked_table(on_clock(store, hand.clock()))
    entry_id = table.start().entry_id
    stage_days(table, entry_id, 2)
    assert len(fences(table)) == 2
    stage_days(table, entry_id, 1)
    if over == "end":
        table.end(entry_id)
    elif over == "revert":
        table.revert(entry_id, force=True)
    elif over == "abort":
        table.abort(entry_id)
    else:
        hand.advance(2 * DAY_MS)
        table.cleanup()
    assert not fences(table)
    assert not table.locks.locks()


def test_the_lock_of_a_dead_run_goes_with_the_clean_up(store: SegmentStore) -> None:
    """Nobody writes to the lock box any more, so nothing else would prune it."""
    hand = HandClock()
    table = locked_table(on_clock(store, hand.clock()))
    table.locks.acquire(LockRequest(group="dead", task="dead", interval=Interval(0, DAY_MS)))
    hand.advance(DAY_MS)
    table.cleanup()
    assert len(fences(table)) == 1, "its lease was over less than a day ago"
    hand.advance(DAY_MS)
    table.cleanup()
    assert not fences(table)
