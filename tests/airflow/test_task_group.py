"""The task group: whatever goes wrong before the switch is reverted, and the DAG run still fails."""

from __future__ import annotations

import csv
import threading
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param, chain

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.operators.replace import EndReplaceSegmentsOperator, StartReplaceSegmentsOperator
from airflow_provider_segments.operators.unfinished import RevertUnfinishedOperator
from airflow_provider_segments.task_groups.replace import replace_segments
from tests.airflow.helpers import RunDag, make_table, states

KILLED = "killed by hand"


def mark_run_failed(context: Any) -> None:
    """What "mark failed" on a DAG run does, through Airflow's own function, and then the end of the running task."""
    ti = context["ti"]
    caught: list[BaseException] = []

    def mark() -> None:  # another thread: the API server does this, not the task
        from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.utils.session import create_session

        try:
            with create_session() as session:
                dag = SerializedDagModel.get_dag(ti.dag_id, session=session)
                assert dag is not None
                set_dag_run_state_to_failed(dag=dag, run_id=ti.run_id, commit=True, session=session)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=mark)
    thread.start()
    thread.join()
    if caught:
        raise caught[0]
    raise RuntimeError(KILLED)


def fail(*_: Any) -> None:
    raise RuntimeError("on purpose")


def flat(run: Any) -> dict[str, str | None]:
    return {task.removeprefix("replace_segments."): state for task, state in states(run).items()}


def test_what_follows_the_group_waits_for_the_switch_and_teardowns_decide_nothing_else() -> None:
    with DAG("shape", schedule=None) as dag:
        after = PythonOperator(task_id="after", python_callable=print)
        replace_segments(table="t", input="i", validate={"min_rows": 1}) >> after
    assert after.upstream_task_ids == {"replace_segments.end"}
    teardowns = [task for task in dag.tasks if task.is_teardown]
    assert [task.label for task in teardowns] == ["revert", "outcome"]
    assert [task.on_failure_fail_dagrun for task in teardowns] == [False, True]
    cleared = dag.get_task("replace_segments.build").get_upstreams_only_setups_and_teardowns()
    assert "start" in {task.label for task in cleared}, "clearing build must start the push over"


def test_run_marked_failed_while_it_builds_is_reverted_and_stays_failed(
    store: SegmentStore, run_dag: RunDag, table_name: str
) -> None:
    make_table(store, table_name)
    with DAG(f"marked_{table_name}", schedule=None) as dag:
        replace_segments(table=table_name, input="i", build={"pre_execute": mark_run_failed})
    run = run_dag(dag)
    found = flat(run)
    assert run.state == "failed"
    assert (found["revert"], found["end"], found["outcome"]) == ("success", "skipped", "failed")
    [entry] = store.table(table_name).lineage()
    assert entry.state.value == "REVERTED"


def test_without_the_outcome_task_airflow_takes_a_run_marked_failed_for_a_success(
    store: SegmentStore, run_dag: RunDag, table_name: str
) -> None:
    """The revert test of ``outcome``: with a pending teardown Airflow 3.3 leaves the state to the last tasks, and those
    are skipped. When this fails, Airflow has changed, and ``outcome`` may go."""
    make_table(store, table_name)
    with DAG(f"bare_{table_name}", schedule=None) as dag:
        start = StartReplaceSegmentsOperator(task_id="start", table=table_name)
        build = PythonOperator(task_id="build", python_callable=print, pre_execute=mark_run_failed)
        end = EndReplaceSegmentsOperator(task_id="end", table=table_name, entry_id="x")
        revert = RevertUnfinishedOperator(task_id="revert", table=table_name, start_task_id="start")
        chain(start, build, end, revert.as_teardown(setups=start))
    run = run_dag(dag)
    assert (run.state, states(run)["end"], states(run)["revert"]) == ("success", "skipped", "success")


def test_run_marked_failed_right_after_the_entry_was_made_is_reverted(
    store: SegmentStore, run_dag: RunDag, table_name: str
) -> None:
    """The start is killed before it could push its XCom: the entry is found by the identity of the start."""
    table = make_table(store, table_name)
    with DAG(f"early_{table_name}", schedule=None) as dag:
        replace_segments(table=table_name, input="i")

    def made_then_marked(context: Any) -> None:
        ti = context["ti"]
        table.start(identity=f"tests/{ti.dag_id}/{ti.run_id}/{ti.task_id}")
        mark_run_failed(context)

    start: Any = dag.get_task("replace_segments.start")
    start._pre_execute_hook = made_then_marked
    run = run_dag(dag)
    found = flat(run)
    assert (run.state, found["start"], found["build"], found["revert"]) == ("failed", "failed", "skipped", "success")
    assert [entry.state.value for entry in table.lineage()] == ["REVERTED"]


def test_start_that_is_refused_leaves_nothing_to_revert(run_dag: RunDag, table_name: str) -> None:
    with DAG(f"refused_{table_name}", schedule=None) as dag:
        replace_segments(table=table_name, input="i")  # a table without a config
    run = run_dag(dag)
    found = flat(run)
    assert (run.state, found["start"], found["revert"]) == ("failed", "failed", "skipped")


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    path = tmp_path / "flights.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time_hour", "carrier"])
        rows.writerows((f"2013-0{month}-01T05:00:00Z", "UA") for month in (1, 1, 2))
    return path


CONFIG = {
    "segmentsConfig": {"timeColumnName": "time_hour"},
    "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "REFRESH"}},
    "segmentBuildConfig": {"segmentGranularity": "MONTH"},
}


def test_only_what_fails_before_the_switch_is_reverted(
    store: SegmentStore, run_dag: RunDag, table_name: str, flights: Path
) -> None:
    """Run 1: the switch is made, a later task fails: nothing is reverted. Run 2: the validation fails: reverted, and
    the readers of run 1's rows have seen nothing. Both runs fail."""
    with DAG(f"whole_{table_name}", schedule=None, params={"min_rows": Param(1, type="integer")}) as dag:
        push = replace_segments(
            table=table_name,
            config=CONFIG,
            input=str(flights),
            input_format="csv",
            input_options={"header": "true"},
            validate={"min_rows": "{{ params.min_rows }}", "predicates": ["carrier = 'UA'"]},
        )
        push >> PythonOperator(task_id="publish", python_callable=fail)
    first = run_dag(dag)
    found = flat(first)
    assert first.state == "failed"
    assert (found["end"], found["publish"], found["revert"], found["outcome"]) == (
        "success",
        "failed",
        "skipped",
        "success",
    )
    table = store.table(table_name)
    assert (table.snapshot().rows, len(table.snapshot())) == (3, 2)

    second = run_dag(dag, {"min_rows": 4})
    found = flat(second)
    assert second.state == "failed"
    assert (found["build"], found["validate"], found["end"], found["revert"]) == (
        "success",
        "failed",
        "upstream_failed",
        "success",
    )
    assert found["publish"] == "upstream_failed"
    assert sorted(entry.state.value for entry in table.lineage()) == ["COMPLETED", "REVERTED"]
    assert table.snapshot().rows == 3
