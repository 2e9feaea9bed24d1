"""The upsert DAG through a real ``spark-submit``, and the sensor on a mark."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow.parquet
import pytest

from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.marks import HeldVersions
from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.operators.upsert import CompactUpsertOperator, UpsertSegmentsOperator
from airflow_provider_segments.sensors.upsert import UpsertMarkSensor
from airflow_provider_segments.triggers.upsert import UpsertMarkTrigger, judge
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from tests.airflow.helpers import MetricsBackend, RunDag, first_event, make_table, states
from tests.airflow.test_dags import asset_changes, dags
from tests.upsert.world import Event, to_arrow, upsert_config

SCHEMA = "k STRING, ts BIGINT, v STRING, deleted BOOLEAN, `$partition` INT, `$offset` BIGINT"
NEVER_S = 600.0


@pytest.fixture
def upsert_table(store: SegmentStore, table_name: str) -> Table:
    store.apply_config(upsert_config(table_name))
    return store.table(table_name)


def ingest(table: Table, folder: Path, *values: str) -> int:
    """A version that shows the last of ``values``."""
    first = table.snapshot().mark or 0
    rows = [Event(first + at, 0, first + at, "a", value, False) for at, value in enumerate(values)]
    return UpsertIngestor(table, cache=folder / "cache").ingest(to_arrow(rows)).version


def test_dag_ingests_what_has_arrived_since_its_last_run_and_compacts(
    run_dag: RunDag, upsert_table: Table, tmp_path: Path
) -> None:
    arriving = tmp_path / "arriving"
    arriving.mkdir()
    conf = {
        "table": upsert_table.name,
        "input": str(arriving),
        "schema": SCHEMA,
        "checkpoint": str(tmp_path / "checkpoint"),
        "keep_versions": 1,
    }
    for run, rows in enumerate(
        [
            [Event(1, 0, 0, "a", "old", False), Event(1, 0, 1, "b", "stays", False)],
            [Event(2, 0, 2, "a", "new", False), Event(2, 0, 3, "c", "", True)],
            [],
        ]
    ):
        if rows:
            pyarrow.parquet.write_table(to_arrow(rows), arriving / f"{run}.parquet")
        done = run_dag(dags()["segments_upsert"], conf)
        assert done.state == "success", states(done)
    assert {row["k"]: row["v"] for row in read_rows(upsert_table).to_pylist()} == {"a": "new", "b": "stays"}
    assert upsert_table.snapshot().mark == 2
    changes = asset_changes(upsert_table.name, upsert_table.store.paths.cluster)
    assert [one for one in changes if one != "compact"] == ["upsert", "upsert"], "the third run has found nothing new"


def test_options_reach_the_job_through_its_environment_only() -> None:
    options = {"kafka.bootstrap.servers": "k:9092", "kafka.sasl.jaas.config": "password='hush'"}
    task = UpsertSegmentsOperator(
        task_id="t",
        table="t",
        input="topic",
        input_format="kafka",
        input_options=options,
        schema="a INT",
        checkpoint="c",
    )
    assert "hush" not in " ".join(task.job_arguments({}))
    assert "hush" in task.job_variables()["SEGMENTS_INPUT_OPTIONS"]
    assert "password='hush'" in task.secrets()


def test_sensor_sees_a_version_or_a_time(upsert_table: Table, tmp_path: Path) -> None:
    def looks(**wanted: object) -> object:
        found = UpsertMarkSensor(task_id="wait", table=upsert_table.name, **wanted).poke({})
        return found and found.xcom_value

    assert looks(version=1) is False
    assert ingest(upsert_table, tmp_path, "x") == 1
    assert looks(version="1") == 1
    assert looks(version=2) is False
    assert looks(published_since="2013-01-01T00:00:00Z") == 1
    assert looks(published_since="2913-01-01T00:00:00Z") is False
    with pytest.raises(ValueError, match="version or published_since"):
        looks()


def test_trigger_wakes_when_the_version_is_published(store: SegmentStore, upsert_table: Table, tmp_path: Path) -> None:
    async def scenario() -> dict[str, object]:
        trigger = UpsertMarkTrigger(table=upsert_table.name, version=2, poll_interval=NEVER_S)
        waiting = asyncio.ensure_future(first_event(trigger))
        await asyncio.to_thread(ingest, upsert_table, tmp_path, "x")
        done, _ = await asyncio.wait([waiting], timeout=2)
        assert not done
        await asyncio.to_thread(ingest, upsert_table, tmp_path, "y")
        return await asyncio.wait_for(waiting, 60)

    event = asyncio.run(scenario())
    assert (event["table"], event["version"]) == (upsert_table.name, 2)


def test_a_table_without_upsert_is_refused(store: SegmentStore, table_name: str) -> None:
    with pytest.raises(UpsertRefusedError):
        judge(make_table(store, table_name), 1, None)


def test_compaction_says_how_the_table_stands(
    store: SegmentStore, upsert_table: Table, tmp_path: Path, metrics: MetricsBackend
) -> None:
    """Its version, and that a reader with a copy is behind."""
    for value in ("x", "y", "z"):
        ingest(upsert_table, tmp_path, value)
    HeldVersions(store.cluster, upsert_table.name).report("extract", 1)
    task = CompactUpsertOperator(task_id="compact", table=upsert_table.name, asset_events=False)
    assert task.execute({})["entry_id"] == ""
    told = metrics.read("segments.upsert.")
    name = upsert_table.name
    assert (told[f"version.{name}"], told[f"behind.{name}"]) == (3, 2)
    assert told[f"ingested.{name}"] == 3
    assert f"silent.{name}" not in told and f"waiting.{name}" not in told
