"""A whole Airflow: scheduler, API server, DAG processor, triggerer. What only they do is shown here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import requests

from airflow_provider_segments.core.compaction.locks import LEASE_MS
from airflow_provider_segments.core.locking import Priority
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.hooks.segments import SegmentsHook
from tests.airflow.helpers import REPOSITORY, make_table, push_rows
from tests.compaction.support import append, rows_in, versioned_table
from tests.support.standalone import Airflow, eventually, standalone
from tests.support.tables import object_path

pytestmark = pytest.mark.slow

DAGS = """
import tempfile
import time
from pathlib import Path
from datetime import timedelta
from airflow.sdk import DAG
from airflow.providers.standard.operators.python import PythonOperator
from airflow_provider_segments.operators.compact import CompactSegmentsOperator
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.operators.replace import EndReplaceSegmentsOperator, StartReplaceSegmentsOperator
from airflow_provider_segments.operators.unfinished import RevertUnfinishedOperator, revert_unfinished_pushes
from airflow_provider_segments.sensors.lineage import LineageStateSensor
from airflow_provider_segments.task_groups.replace import replace_segments

def hang(context):
    time.sleep(300)

slow = dict(config={}, input="/absent", build={"pre_execute": hang})
with DAG("marked", schedule=None):
    replace_segments(table="marked", **slow)
with DAG("timed", schedule=None, dagrun_timeout=timedelta(seconds=15), on_failure_callback=revert_unfinished_pushes):
    replace_segments(table="timed", **slow)
with DAG("waiting", schedule=None):
    LineageStateSensor(
        task_id="wait", table="waited", entry_id="{{ dag_run.conf['entry_id'] }}", states=["REVERTED"],
        deferrable=True, timeout=120,
    )
with DAG("compacting", schedule=None):
    CompactSegmentsOperator(task_id="compact", table="compacted")

def stage(entry_id):
    from tests.airflow.helpers import stage_rows
    with SegmentsHook().get_conn() as store:
        stage_rows(store.table("cleared"), entry_id, Path(tempfile.mkdtemp()), {"a": [1, 2]})

with DAG("cleared", schedule=None):
    start = StartReplaceSegmentsOperator(task_id="start", table="cleared").as_setup()
    build = PythonOperator(task_id="build", python_callable=stage, op_args=[start.output])
    end = EndReplaceSegmentsOperator(task_id="end", table="cleared", entry_id=start.output, allow_empty=True)
    revert = RevertUnfinishedOperator(task_id="revert", table="cleared", start_task_id="start")
    start >> build >> end >> revert.as_teardown(setups=start)
"""
SHIPPED = ("segments_rollback", "segments_unrevert")
DAG_COUNT = 5 + len(SHIPPED)


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, zk_hosts: str) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("standalone")
    (home / "dags").mkdir()
    (home / "dags" / "dags.py").write_text(DAGS)
    for name in SHIPPED:
        shutil.copy(REPOSITORY / "dags" / f"{name}.py", home / "dags")
    described = json.dumps(
        {
            "conn_type": "segments",
            "host": zk_hosts,
            "extra": {"storage_uri": (home / "s").as_uri(), "cluster": "standalone"},
        }
    )
    os.environ["AIRFLOW_CONN_SEGMENTS_STANDALONE"] = described
    variables = {"AIRFLOW_CONN_SEGMENTS_DEFAULT": described}
    try:
        with standalone(home, dags=home / "dags", dag_count=DAG_COUNT, variables=variables) as running:
            yield running
    finally:
        os.environ.pop("AIRFLOW_CONN_SEGMENTS_STANDALONE")


@pytest.fixture
def standalone_store(airflow: Airflow) -> Iterator[SegmentStore]:
    with SegmentsHook("segments_standalone").get_conn() as opened:
        yield opened


def entry_states(store: SegmentStore, table: str) -> list[str]:
    return [entry.state.value for entry in store.table(table).lineage()]


def test_marking_a_run_failed_in_the_ui_reverts_its_push_and_leaves_it_failed(
    airflow: Airflow, standalone_store: SegmentStore
) -> None:
    run = airflow.trigger("marked")
    eventually(lambda: airflow.states(run)["build"] == "running")
    assert entry_states(standalone_store, "marked") == ["IN_PROGRESS"]
    airflow.call("PATCH", run, {"state": "failed"})
    eventually(lambda: airflow.call("GET", run)["state"] == "failed")
    found = airflow.states(run)
    assert (found["build"], found["end"], found["revert"], found["outcome"]) == (
        "failed",
        "skipped",
        "success",
        "failed",
    )
    assert entry_states(standalone_store, "marked") == ["REVERTED"]


def test_run_that_exceeds_its_time_out_is_reverted_by_the_callback(
    airflow: Airflow, standalone_store: SegmentStore
) -> None:
    run = airflow.trigger("timed")
    eventually(lambda: airflow.call("GET", run)["state"] == "failed")
    assert airflow.states(run)["revert"] == "skipped", "Airflow skips the teardowns of such a run"
    eventually(lambda: entry_states(standalone_store, "timed") == ["REVERTED"])


def test_sensor_waits_in_the_triggerer(airflow: Airflow, standalone_store: SegmentStore) -> None:
    from airflow_provider_segments.core.model.config import TableConfig

    standalone_store.apply_config(TableConfig.from_json({"tableName": "waited"}))
    table = standalone_store.table("waited")
    entry_id = table.start().entry_id
    run = airflow.trigger("waiting", {"entry_id": entry_id})
    eventually(lambda: airflow.states(run)["wait"] == "deferred")
    time.sleep(3)
    table.revert(entry_id, force=True)
    eventually(lambda: airflow.call("GET", run)["state"] == "success", 30)


def test_marking_a_compaction_failed_ends_its_job_and_frees_its_locks_long_before_their_lease(
    airflow: Airflow, standalone_store: SegmentStore
) -> None:
    """A worker that opens a pipe which nobody writes to waits for good, as one does on a store that hangs."""
    table = versioned_table(standalone_store, "compacted")
    for at in range(3):
        append(table, range(at * 10, at * 10 + 10))
    held_up = object_path(table, table.snapshot().segments[0].key)
    held_up.rename(held_up.with_suffix(".away"))
    os.mkfifo(held_up)
    run = airflow.trigger("compacting")
    eventually(lambda: [lock for lock in table.locks.locks() if lock.priority == Priority.COMPACTION])
    eventually(lambda: entry_states(standalone_store, "compacted").count("IN_PROGRESS") == 1)
    [lock] = table.locks.locks()
    assert [process for process in psutil.process_iter() if _works_for(process, lock.group)]
    killed_at = time.monotonic()
    airflow.call("PATCH", run, {"state": "failed"})
    eventually(lambda: not table.locks.locks(), LEASE_MS / 1000 / 2)
    eventually(lambda: not [process for process in psutil.process_iter() if _works_for(process, lock.group)])
    print(f"\nlocks free and job gone {time.monotonic() - killed_at:.1f} s after the run was marked failed")
    held_up.unlink()
    held_up.with_suffix(".away").rename(held_up)
    airflow.call("POST", "/dags/compacting/clearTaskInstances", {"dry_run": False, "dag_run_id": run.rsplit("/")[-1]})
    eventually(lambda: airflow.call("GET", run)["state"] == "success")
    assert len(table.snapshot()) == 1
    assert rows_in(table) == list(range(30))


def _works_for(process: psutil.Process, group: str) -> bool:
    try:
        return group in process.cmdline() and "compact_segments" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def ended(airflow: Airflow, run: str) -> str:
    """The state of a run once it is over. A busy server that does not answer in time is asked again."""

    def over() -> bool:
        with contextlib.suppress(requests.Timeout):
            return airflow.call("GET", run)["state"] in ("success", "failed")
        return False

    eventually(over, 300)
    return str(airflow.call("GET", run)["state"])


def test_rollback_in_a_real_airflow_cannot_hurt(
    airflow: Airflow, standalone_store: SegmentStore, tmp_path: Path
) -> None:
    """The story of two pushes that somebody rolls back in tired hands: nothing happens to a table that was not named,
    nor without a word in a dry run; the second click does not walk back further; and the first can be undone."""
    table = make_table(standalone_store, "tired")
    push_rows(table, tmp_path, {"a": [1]})
    push_rows(table, tmp_path, {"a": [1, 2]})
    last = push_rows(table, tmp_path, {"a": [1, 2, 3]})
    with pytest.raises(requests.HTTPError, match="400"):
        airflow.trigger("segments_rollback")
    looked = airflow.trigger("segments_rollback", {"table": "tired"})
    assert ended(airflow, looked) == "success", airflow.states(looked)
    assert table.snapshot().rows == 3
    for state in ("success", "failed", "failed"):
        conf = {"table": "tired", "dry_run": False}
        assert ended(airflow, airflow.trigger("segments_rollback", conf)) == state
        assert table.snapshot().rows == 2
    assert ended(airflow, airflow.trigger("segments_unrevert", {"table": "tired", "dry_run": False})) == "success"
    assert table.snapshot().rows == 3
    assert table.resolve_entry("latest") == last


def test_clearing_the_end_alone_neither_empties_the_table_nor_leaves_a_push_behind(
    airflow: Airflow, standalone_store: SegmentStore
) -> None:
    """Airflow clears its setups with it: ``start`` makes another entry, into which nothing is built."""
    table = make_table(standalone_store, "cleared")
    run = airflow.trigger("cleared")
    assert ended(airflow, run) == "success", airflow.states(run)
    assert table.snapshot().rows == 2
    run_id = airflow.call("GET", run)["dag_run_id"]
    body = {"dry_run": False, "dag_run_id": run_id, "task_ids": ["end"], "only_failed": False}
    cleared = airflow.call("POST", "/dags/cleared/clearTaskInstances", body)["task_instances"]
    assert {task["task_id"] for task in cleared} >= {"start", "end"}
    eventually(lambda: airflow.states(run)["end"] == "failed", 300)
    ended(airflow, run)
    assert airflow.states(run)["build"] == "success"
    assert table.snapshot().rows == 2
    assert sorted(entry_states(standalone_store, "cleared")) == ["COMPLETED", "REVERTED"]
