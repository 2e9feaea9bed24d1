"""The operators that take a table, or a stretch of its time, out of sight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import AssetAlias

from airflow_provider_segments.assets.segments import EVENTS_ALIAS
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import TableDroppedError
from airflow_provider_segments.operators.removal import DeleteTimeOperator, DropTableOperator
from tests.airflow.helpers import context, make_table, push_rows


def told(ran: Any) -> list[str]:
    """The changes that Airflow would record if the task succeeded now."""
    events = ran["outlet_events"][AssetAlias(name=EVENTS_ALIAS, group="segments")].asset_alias_events
    return [event.extra["change"] for event in events]


def test_a_table_is_dropped_once_however_often_the_task_is_tried(
    store: SegmentStore, table_name: str, tmp_path: Path
) -> None:
    table = make_table(store, table_name)
    push_rows(table, tmp_path, {"a": [1, 2]})
    looked = DropTableOperator(task_id="drop", table=table_name, dry_run="true").execute(dry := context("drop"))
    assert told(dry) == []
    assert (looked["rows"], looked["dry_run"], table.snapshot().rows) == (2, True, 2)
    drop = DropTableOperator(task_id="drop", table=table_name)
    tries = context("drop"), context("drop")
    done = [drop.execute(one) for one in tries]
    assert [told(one) for one in tries] == [["drop"], ["drop"]], "the event of a try that failed afterwards was lost"
    assert [one["already"] for one in done] == [False, True]
    with pytest.raises(TableDroppedError):
        table.snapshot()
    table.revert(done[0]["entry_id"])
    assert table.snapshot().rows == 2


def test_time_is_removed_once_however_often_the_task_is_tried(store: SegmentStore, table_name: str) -> None:
    store.apply_config(
        TableConfig.from_json(
            {
                "tableName": table_name,
                "segmentsConfig": {"timeColumnName": "at"},
                "segmentBuildConfig": {"segmentLocking": True},
            }
        )
    )
    delete = DeleteTimeOperator(task_id="delete", table=table_name, start="2013-01-01", end="2013-01-02")
    tries = context("delete"), context("delete")
    first, second = (delete.execute(one) for one in tries)
    assert [told(one) for one in tries] == [["delete-time"], ["delete-time"]]
    assert (first["already"], second["already"]) == (False, True)
    assert first["entry_id"] == second["entry_id"]
    assert len(store.table(table_name).lineage()) == 1
