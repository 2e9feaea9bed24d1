"""A look at the whole cluster, once a day: what is unreadable, inconsistent, foreign or lost.

The report is kept: the operations page of Segments shows the last one. Nothing else is written.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.doctor import DoctorOperator

with DAG(
    dag_id="segments_doctor",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["segments"],
    doc_md=__doc__,
    params={
        "all_objects": Param(False, type="boolean", title="All objects", description="Not only some of each table."),
        "fail_on": Param("error", enum=["error", "warning", "never"], title="Fail on", description="Least severity."),
    },
):
    DoctorOperator(task_id="doctor", all_objects="{{ params.all_objects }}", fail_on="{{ params.fail_on }}", retries=0)
