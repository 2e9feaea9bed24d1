"""The DAG that looks at the whole cluster: its report is kept and shown, also when it fails the task."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from fastapi.testclient import TestClient

from airflow_provider_segments.core.doctor.kept import read_report
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.operators.doctor import DoctorOperator
from airflow_provider_segments.plugins.segments_plugin import PREFIX
from tests.airflow.helpers import RunDag, make_table, states
from tests.airflow.test_dags import dags, xcom
from tests.airflow.test_page_routes import headers, headers_of, server

__all__ = ["headers", "server"]


def told(server: TestClient) -> dict[str, Any] | None:
    path = f"{PREFIX}/api/connections/segments_default/operations"
    found: dict[str, Any] | None = server.get(path, headers=headers_of("viewer")).json()["doctor"]
    return found


def test_the_dag_keeps_its_report_and_the_page_shows_it(
    run_dag: RunDag, server: TestClient, store: SegmentStore, table_name: str
) -> None:
    make_table(store, table_name)
    run = run_dag(dags()["segments_doctor"])
    assert run.state == "success", states(run)
    assert xcom(run, "doctor")["error"] == 0
    kept, shown = read_report(store.cluster), told(server)
    assert kept is not None and shown is not None
    assert (shown["at_ms"], shown["tables"], shown["counts"]) == (kept.at_ms, kept.tables, kept.counts)
    assert "Airflow user" in shown["actor"]


def test_what_is_damaged_fails_the_task_and_is_shown(
    run_dag: RunDag, server: TestClient, store: SegmentStore, table_name: str
) -> None:
    from airflow_provider_segments.core.zookeeper import SetData

    make_table(store, table_name)
    path = store.paths.lineage(table_name)
    node = store.session.get(path)
    assert node is not None
    store.session.commit([SetData(path, b"\xff torn", node.version)])
    try:
        run = run_dag(dags()["segments_doctor"])
        assert run.state == "failed"
        shown = told(server)
        assert shown is not None and shown["counts"]["error"] > 0
        assert any(one["subject"] == path and one["check"] == "unreadable" for one in shown["findings"])
        with DAG("doctor_that_never_fails", schedule=None) as lenient:
            DoctorOperator(task_id="doctor", fail_on="never")
        assert run_dag(lenient).state == "success"
    finally:
        now = store.session.get(path)
        assert now is not None
        store.session.commit([SetData(path, node.data, now.version)])


@pytest.mark.parametrize("fail_on", ["errors", ""])
def test_a_misspelt_severity_is_refused(run_dag: RunDag, store: SegmentStore, table_name: str, fail_on: str) -> None:
    make_table(store, table_name)
    with DAG("misspelt", schedule=None) as dag:
        DoctorOperator(task_id="doctor", fail_on=fail_on)
    assert run_dag(dag).state == "failed"
    assert read_report(store.cluster) is None
