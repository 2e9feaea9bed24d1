"""The heartbeat DAG as it is, and the gate that waits for all regions."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from airflow.sdk import AssetAlias
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_segments.assets.segments import EVENTS_ALIAS, regions_asset
from airflow_provider_segments.core.replication.comparisons import read_comparisons
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.operators.compare_regions import CompareRegionsOperator
from airflow_provider_segments.operators.heartbeat import EmitHeartbeatOperator
from airflow_provider_segments.sensors.replication import HeartbeatLagSensor
from airflow_provider_segments.triggers.replication import HeartbeatLagTrigger, judge_lag
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from tests.airflow.helpers import MetricsBackend, RunDag, context, first_event, states
from tests.airflow.test_dags import asset_changes, asset_events, dags
from tests.replication.support import Log, arrow, region_config

NEVER_S = 600.0


@pytest.fixture
def regions(store: SegmentStore, table_name: str) -> Table:
    store.apply_config(region_config(table_name))
    return store.table(table_name)


def hear(table: Table, folder: Path, region: str, lag_ms: int = 0) -> None:
    """Have a version take a heartbeat of that age."""
    now_ms, log = time.time_ns() // 1_000_000, Log(region)
    log.sizes[0] = now_ms
    log.beat(now_ms - lag_ms)
    ingest_to_barriers(UpsertIngestor(table, cache=folder / "cache"), arrow(log.rows))


def beat(table: Table, folder: Path) -> list[dict[str, Any]]:
    """Emit a heartbeat of region eu; returns what the asset of the table's regions is told."""
    task = EmitHeartbeatOperator(task_id="beat", table=table.name, region="eu", folder=str(folder / "eu"))
    running = context()
    task.execute(running)
    events = running["outlet_events"][AssetAlias(name=EVENTS_ALIAS, group="segments")].asset_alias_events
    return [event.extra for event in events]


def test_dag_writes_heartbeats_that_ingestion_takes(run_dag: RunDag, regions: Table, tmp_path: Path) -> None:
    folder = tmp_path / "eu"
    for _ in range(2):
        done = run_dag(
            dags()["segments_heartbeat"],
            {"table": regions.name, "region": "eu", "folder": str(folder), "partitions": 2},
        )
        assert done.state == "success", states(done)
    files = sorted(folder.glob("*.parquet"))
    events = pyarrow.concat_tables([pyarrow.parquet.read_table(file) for file in files])
    ingest_to_barriers(UpsertIngestor(regions, cache=tmp_path / "cache"), events)
    lags = judge_lag(regions, ["eu"], 600_000)
    assert lags is not None and lags["lags"]["eu"] < 600_000
    asset = regions_asset(regions.name, regions.store.paths.cluster)
    told = {"change": "regions", "regions": {"eu": "silent", "us": "silent"}}
    assert asset_events(asset) == [told], "the second run has nothing new to tell"


def test_a_change_of_a_region_is_told_once(regions: Table, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also by another task, or a process that starts anew: what was told is in ZooKeeper."""

    def told() -> tuple[list[dict[str, str]], list[str]]:
        capfd.readouterr()
        events = beat(regions, tmp_path)
        lines = [line for line in capfd.readouterr().out.splitlines() if " is now " in line]
        return [event["regions"] for event in events], lines

    events, lines = told()
    assert events == [{"eu": "silent", "us": "silent"}]
    assert "region eu is now silent, last heard: never" in lines[0]
    assert "region us is now silent, last heard: never" in lines[1]
    assert told() == ([], [])
    hear(regions, tmp_path, "eu")
    hear(regions, tmp_path, "us", lag_ms=-600_000)
    assert told()[0] == [{"eu": "heard", "us": "clock ahead"}]
    assert told() == ([], [])


def test_a_heartbeat_goes_to_a_folder_or_to_a_topic(regions: Table, tmp_path: Path) -> None:
    for more in ({}, {"folder": str(tmp_path), "topic": "eu"}):
        task = EmitHeartbeatOperator(task_id="beat", table=regions.name, region="eu", **more)
        with pytest.raises(AirflowFailException, match="either the folder or the topic"):
            task.execute(context())


def test_dag_compares_two_regions_and_tells_each_difference_once(
    run_dag: RunDag,
    store: SegmentStore,
    regions: Table,
    connection: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fails for new differences; one that does not fail for them is an event of the table of findings."""
    extra = {"storage_uri": (tmp_path / "other").as_uri(), "cluster": f"other_{regions.name}"}
    described = {**connection, "extra": {**connection["extra"], **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_OTHER", json.dumps(described))
    findings = store.table(f"{regions.name}_findings")
    logs = Log("eu"), Log("eu")

    def compare(fail_on: str) -> tuple[Any, ...]:
        conf = {"table": regions.name, "other_conn_id": "segments_other", "fail_on": fail_on}
        done = run_dag(dags()["segments_compare_regions"], conf)
        [kept] = read_comparisons(store.cluster, regions.name)
        events = asset_changes(findings.name, store.paths.cluster)
        return done.state, kept.counts, kept.new, len(events), findings.snapshot().rows

    def write(other: Table, minute: int, values: tuple[str, str]) -> None:
        for table, log, value in zip((regions, other), logs, values, strict=True):
            log.event(f"k{minute}", value)
            log.beat(minute * 60_000)
            ingest_to_barriers(UpsertIngestor(table, cache=tmp_path / table.store.paths.cluster), arrow(log.rows))

    with SegmentsHook("segments_other").get_conn() as opened:
        opened.apply_config(region_config(regions.name))
        other = opened.table(regions.name)
        write(other, 1, ("x", "ALTERED"))
        assert compare("new") == ("failed", {"digest": 1, "mismatch": 1}, 2, 0, 2), "the key, and its source's digest"
        [kept] = read_comparisons(store.cluster, regions.name)
        assert kept.has_diverged
        assert f"other_{regions.name}" in kept.other
        assert (kept.findings, [kept.entry_id]) == (findings.name, list(findings.lineage().entries))
        write(other, 2, ("x", "ALTERED, TOO"))
        assert compare("never") == ("success", {"digest": 1, "mismatch": 2}, 2, 1, 4), "the old one is not told again"


def test_a_comparison_links_to_its_table_and_to_the_findings() -> None:
    task = CompareRegionsOperator(task_id="compare", table="status", other_conn_id="other")
    links = {link.name: link.get_link(task, ti_key=None) for link in task.operator_extra_links}  # type: ignore[arg-type]
    assert {name: link.rpartition("#")[2] for name, link in links.items()} == {
        "Segments table": "conn=segments_default&table=status",
        "Findings": "conn=segments_default&table=status_findings",
    }


def test_metrics_tell_the_lag_of_each_region(regions: Table, tmp_path: Path, metrics: MetricsBackend) -> None:
    hear(regions, tmp_path, "eu", lag_ms=1000)
    beat(regions, tmp_path)
    told = metrics.read("segments.heartbeats.")
    assert (f"silent.{regions.name}.eu" in told, told[f"silent.{regions.name}.us"]) == (False, 1)
    assert told[f"lag_ms.{regions.name}.eu"] >= 1000
    assert f"lag_ms.{regions.name}.us" not in told


def test_sensor_waits_until_each_region_is_heard(regions: Table, tmp_path: Path) -> None:
    def looks(**wanted: object) -> object:
        found = HeartbeatLagSensor(task_id="wait", table=regions.name, max_lag="5m", **wanted).poke({})
        return found and sorted(found.xcom_value)

    hear(regions, tmp_path, "eu")
    assert looks() is False, "a region that was never heard is infinitely late"
    assert looks(regions=["eu"]) == ["eu"]
    hear(regions, tmp_path, "us", lag_ms=6 * 60_000)
    assert looks() is False
    hear(regions, tmp_path, "us")
    assert looks() == ["eu", "us"]
    with pytest.raises(UpsertRefusedError, match="no-region"):
        looks(regions=["moon"])


def test_trigger_wakes_when_the_last_region_is_heard(regions: Table, tmp_path: Path) -> None:
    async def scenario() -> dict[str, object]:
        trigger = HeartbeatLagTrigger(table=regions.name, regions=[], max_lag_ms=300_000, poll_interval=NEVER_S)
        waiting = asyncio.ensure_future(first_event(trigger))
        await asyncio.to_thread(hear, regions, tmp_path, "eu")
        done, _ = await asyncio.wait([waiting], timeout=2)
        assert not done
        await asyncio.to_thread(hear, regions, tmp_path, "us")
        return await asyncio.wait_for(waiting, 60)

    assert asyncio.run(scenario())["table"] == regions.name
