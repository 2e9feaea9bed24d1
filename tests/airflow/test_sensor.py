"""Waiting for a lineage entry: the sensor's one look, and the trigger's watch on the real ZooKeeper."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from kazoo.client import KazooClient

from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.sensors.lineage import LineageStateSensor
from airflow_provider_segments.triggers.lineage import LineageStateTrigger
from tests.airflow.helpers import context, fired, make_table, push_rows, stage_rows


@pytest.fixture
def table(store: SegmentStore, table_name: str) -> Table:
    return make_table(store, table_name, "APPEND")


def sensor(table: Table, entry_id: str, **more: Any) -> LineageStateSensor:
    return LineageStateSensor(task_id="wait", table=table.name, entry_id=entry_id, **more)


def trigger(
    table: Table, entry_id: str, states: tuple[str, ...] = ("COMPLETED",), poll: float = 600
) -> LineageStateTrigger:
    return LineageStateTrigger(table=table.name, entry_id=entry_id, states=list(states), poll_interval=poll)


def running_clients() -> int:
    """kazoo clients whose threads are alive: each is a ZooKeeper session that somebody has to end."""
    gc.collect()
    return sum(type(one) is KazooClient and not one._stopped.is_set() for one in gc.get_objects())


def test_entry_that_is_there_already_does_not_defer(table: Table, tmp_path: Path) -> None:
    entry_id = push_rows(table, tmp_path, {"a": [1]})
    assert sensor(table, entry_id, deferrable=True).execute(context()) == "COMPLETED"
    assert sensor(table, entry_id, deferrable=False).execute(context()) == "COMPLETED"


def test_sensor_defers_to_a_trigger_that_carries_no_secret(table: Table) -> None:
    entry_id = table.start().entry_id
    with pytest.raises(TaskDeferred) as deferred:
        sensor(table, entry_id, deferrable=True, timeout=60).execute(context())
    path, arguments = deferred.value.trigger.serialize()
    assert path == "airflow_provider_segments.triggers.lineage.LineageStateTrigger"
    assert arguments == {
        "table": table.name,
        "entry_id": entry_id,
        "states": ["COMPLETED"],
        "segments_conn_id": "segments_default",
        "poll_interval": 60.0,
    }
    assert LineageStateTrigger(**arguments).serialize() == (path, arguments)


@pytest.mark.parametrize(
    ("wanted", "says"), [(["COMPLETED"], "is REVERTED and cannot become COMPLETED"), (["IN_PROGRESS"], "is REVERTED")]
)
def test_state_that_cannot_come_any_more_fails_at_once(table: Table, wanted: list[str], says: str) -> None:
    entry_id = table.start().entry_id
    table.revert(entry_id, force=True)
    with pytest.raises(AirflowFailException, match=says):
        sensor(table, entry_id, states=wanted, deferrable=True).execute(context())


def test_entry_that_is_gone_fails_at_once(table: Table) -> None:
    with pytest.raises(AirflowFailException, match="gone"):
        sensor(table, "00000000-0000-4000-8000-000000000000", deferrable=True).execute(context())


def test_unknown_state_is_refused(table: Table) -> None:
    with pytest.raises(ValueError, match="states must be some of"):
        sensor(table, "x", states=["DONE"]).execute(context())


def test_trigger_fires_on_the_watch_long_before_its_poll(table: Table, tmp_path: Path) -> None:
    entry_id = str(table.start().entry_id)
    stage_rows(table, entry_id, tmp_path, {"a": [1]})
    before = time.monotonic()
    event = asyncio.run(fired(trigger(table, entry_id), lambda: table.end(entry_id)))
    assert (event["status"], event["state"]) == ("reached", "COMPLETED")
    assert time.monotonic() - before < 10, "the poll interval is 600 s: only the watch can have told"
    assert sensor(table, entry_id).execute_complete(context(), event) == "COMPLETED"


def test_trigger_that_waits_for_completion_says_that_the_entry_was_reverted(table: Table) -> None:
    entry_id = str(table.start().entry_id)
    event = asyncio.run(fired(trigger(table, entry_id), lambda: table.revert(entry_id, force=True)))
    assert event["status"] == "impossible"
    with pytest.raises(AirflowFailException, match="REVERTED"):
        sensor(table, entry_id).execute_complete(context(), event)


def test_finished_and_cancelled_triggers_leave_no_kazoo_client(table: Table, tmp_path: Path) -> None:
    entry_id = str(table.start().entry_id)
    before = running_clients()

    async def cancel(after: float) -> None:
        waiting = asyncio.ensure_future(anext(aiter(trigger(table, entry_id).run())))
        await asyncio.sleep(after)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def several() -> None:
        for after in (0.0, 0.005, 0.02, 0.5):  # while it connects, and while it waits
            await cancel(after)
        stage_rows(table, entry_id, tmp_path, {"a": [1]})
        table.end(entry_id)
        await fired(trigger(table, entry_id))

    asyncio.run(several())
    deadline = time.monotonic() + 5
    while running_clients() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running_clients() == before


@pytest.mark.parametrize(
    "down", ["restarted", pytest.param("frozen past the session time-out", marks=pytest.mark.slow)]
)
def test_trigger_survives_zookeeper_being_away(
    down: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, airflow_db: None
) -> None:
    """A lost session loses its watches. The trigger hears of the loss, looks again and still fires."""
    import json

    from airflow_provider_segments.hooks.segments import SegmentsHook

    server = EmbeddedZooKeeper(tmp_path / "zk").start()
    described = {"conn_type": "segments", "host": server.hosts, "extra": {"storage_uri": (tmp_path / "s").as_uri()}}
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(described))

    def away_and_back() -> None:
        if down == "restarted":
            server.kill()
            time.sleep(1)
            server.start()
        else:
            assert server.pid is not None
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(12)
            os.kill(server.pid, signal.SIGCONT)
        with SegmentsHook().get_conn() as again:
            again.table("away").revert(entry_id, force=True)

    try:
        with SegmentsHook().get_conn() as opened:
            entry_id = str(make_table(opened, "away", "APPEND").start().entry_id)
        waiting = LineageStateTrigger(table="away", entry_id=entry_id, states=["REVERTED"], poll_interval=2)

        async def wait() -> dict[str, str]:
            return await asyncio.wait_for(fired(waiting, away_and_back), 60)

        assert asyncio.run(wait())["state"] == "REVERTED"
    finally:
        server.stop()
