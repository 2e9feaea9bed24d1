"""Compare an upsert table with the one of another region that reads the same sources.

Both should show the same rows. The run fails when they do not, and lag does not explain it: the keys are then in the
table of findings. docs/replication.md says what each finding means.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.compare_regions import CompareRegionsOperator

with DAG(
    dag_id="segments_compare_regions",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["segments"],
    doc_md=__doc__,
    params={
        "table": Param("events", type="string", minLength=1, title="Upsert table"),
        "other_conn_id": Param("segments_other", type="string", minLength=1, title="Connection of the other region"),
        "findings": Param("", type="string", title="Table of findings", description="Empty: <table>_findings."),
        "fail_on": Param(
            "any",
            enum=["any", "new", "never"],
            title="Fail on",
            description="Any difference, a new one only, or never.",
        ),
        "checkpoint": Param("", type="string", title="Time", description="ISO 8601. Empty: the newest versions."),
        "region": Param("", type="string", title="Region", description="Whose checkpoint of that time."),
    },
):
    CompareRegionsOperator(
        task_id="compare",
        table="{{ params.table }}",
        other_conn_id="{{ params.other_conn_id }}",
        findings="{{ params.findings }}",
        fail_on="{{ params.fail_on }}",
        checkpoint="{{ params.checkpoint }}",
        region="{{ params.region }}",
        retries=0,
    )
