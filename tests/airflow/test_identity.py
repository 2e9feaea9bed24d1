"""Whose work an entry and a lock are: the deployment's, the run's, the task's and the mapped instance's."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.operators.locks import AcquireSegmentLockOperator
from airflow_provider_segments.operators.replace import EndReplaceSegmentsOperator, StartReplaceSegmentsOperator
from airflow_provider_segments.operators.retention import RetentionCleanupOperator
from airflow_provider_segments.operators.unfinished import RevertUnfinishedOperator, revert_unfinished_pushes
from airflow_provider_segments.operators.validate import ValidateSegmentsOperator
from tests.airflow.helpers import context, make_table, push_rows


def mapped(task_id: str, index: int) -> Any:
    """The context of a mapped instance."""
    made = context(task_id)
    made["ti"].map_index = index
    return made


def states(store: SegmentStore, table_name: str) -> list[str]:
    return sorted(entry.state.value for entry in store.table(table_name).lineage())


def test_two_airflows_do_not_take_each_others_entries_or_share_locks(
    store: SegmentStore, table_name: str, connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same DAG, run and task in two deployments on one cluster are two pieces of work."""
    make_table(store, table_name, "APPEND")
    entries, locks = [], []
    for deployment in ("blue", "green"):
        named = connection | {"extra": connection["extra"] | {"deployment": deployment}}
        monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(named))
        entries.append(StartReplaceSegmentsOperator(task_id="start", table=table_name).execute(context("start")))
        ran = context("acquire")
        ran["ti"].try_number = 1
        acquire = AcquireSegmentLockOperator(
            task_id="acquire", table=table_name, start="2013-01-01", end="2013-02-01", lock_type="SHARED"
        )
        locks.append(acquire.execute(ran))
    assert entries[0] != entries[1]
    assert locks[0]["lock_id"] != locks[1]["lock_id"]
    assert [lock["group"] for lock in locks] == ["blue/dag/run", "green/dag/run"]


def test_a_deployment_is_named_after_the_api_server_unless_the_connection_says(
    connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_segments.hooks.segments import SegmentsHook

    del connection["extra"]["deployment"]
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com:8443/prod")
    assert SegmentsHook().settings.deployment == "airflow.example.com:8443"


def test_every_instance_of_a_mapped_start_is_reverted_by_one_task(store: SegmentStore, table_name: str) -> None:
    make_table(store, table_name, "APPEND")
    start = StartReplaceSegmentsOperator(task_id="start", table=table_name)
    made = {start.execute(mapped("start", index)) for index in range(3)}
    other = start.execute(context("starter"))
    revert = RevertUnfinishedOperator(task_id="revert", table=table_name, start_task_id="start")
    assert set(revert.execute(context("revert"))["entry_ids"]) == made
    assert states(store, table_name) == ["IN_PROGRESS", "REVERTED", "REVERTED", "REVERTED"]
    assert store.table(table_name).lineage().entries[other].state.value == "IN_PROGRESS"
    with pytest.raises(AirflowSkipException):
        revert.execute(context("revert"))


def test_a_mapped_revert_reverts_its_own_instance_only(store: SegmentStore, table_name: str) -> None:
    make_table(store, table_name, "APPEND")
    start = StartReplaceSegmentsOperator(task_id="start", table=table_name)
    made = [start.execute(mapped("start", index)) for index in range(2)]
    revert = RevertUnfinishedOperator(task_id="revert", table=table_name, start_task_id="start")
    assert revert.execute(mapped("revert", 1))["entry_ids"] == [made[1]]


def test_mapped_starts_and_locks_are_given_up_when_the_run_times_out(
    store: SegmentStore, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.common.compat.sdk import XCom

    make_table(store, table_name, "APPEND")
    with DAG("mapped", schedule=None) as dag:
        StartReplaceSegmentsOperator.partial(task_id="start").expand(table=[table_name, table_name])
        AcquireSegmentLockOperator.partial(task_id="acquire", table=table_name, end="2013-02-01").expand(
            start=["2013-01-01"]
        )
    pushed: dict[str, list[Any]] = {"entry": [], "lock": []}
    for index in range(2):
        ran = mapped("start", index)
        StartReplaceSegmentsOperator(task_id="start", table=table_name).execute(ran)
        pushed["entry"].append(ran["xcoms"]["entry"])
    ran = mapped("acquire", 0)
    ran["ti"].try_number = 1
    AcquireSegmentLockOperator(task_id="acquire", table=table_name, start="2013-01-01", end="2013-02-01").execute(ran)
    pushed["lock"].append(ran["xcoms"]["lock"])
    monkeypatch.setattr(XCom, "get_all", lambda *, key, **_: pushed[key])
    revert_unfinished_pushes({"dag": dag, "run_id": "run"})
    assert states(store, table_name) == ["REVERTED", "REVERTED"]
    assert not store.table(table_name).locks.locks()


@pytest.mark.parametrize(
    "build",
    [
        lambda: StartReplaceSegmentsOperator(task_id="t", table="t", segments_to="abc"),
        lambda: EndReplaceSegmentsOperator(task_id="t", table="t", entry_id="e", segments_to="abc"),
        lambda: ValidateSegmentsOperator(task_id="t", table="t", entry_id="e", columns="price"),
        lambda: ValidateSegmentsOperator(task_id="t", table="t", entry_id="e", predicates="x > 0"),
        lambda: ValidateSegmentsOperator(task_id="t", table="t", entry_id="e", queries="SELECT 1"),
    ],
)
def test_text_where_a_list_belongs_is_refused_when_the_dag_is_parsed(build: Any) -> None:
    with pytest.raises(ValueError, match="must be a list"):
        build()


def test_a_list_may_come_out_of_a_template_as_json(store: SegmentStore, table_name: str, tmp_path: Path) -> None:
    table = make_table(store, table_name)
    entry_id = push_rows(table, tmp_path, {"a": [1]})
    validate = ValidateSegmentsOperator(
        task_id="v", table=table_name, entry_id=entry_id, columns="{{ params.columns }}"
    )
    for rendered in ('["a"]', "", ["a"]):
        validate.columns = rendered
        assert validate.execute(context("v"))["rows"] == 1
    validate.columns = "a"
    with pytest.raises(ValueError, match="columns must be a list"):
        validate.execute(context("v"))


@pytest.mark.parametrize("table", ["", "  "])
def test_an_empty_table_is_not_every_table(store: SegmentStore, table_name: str, table: str) -> None:
    make_table(store, table_name)
    with pytest.raises(AirflowFailException, match="table is empty"):
        RetentionCleanupOperator(task_id="r", table=table).execute({"ti": SimpleNamespace()})
