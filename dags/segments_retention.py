"""Retention: every table lets go of what is past its time, as its config says. Nothing is deleted here.

What is let go is marked; the DAG ``segments_ledger_deletion`` deletes it. Start with a dry run: it says what would go,
and why.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.retention import RetentionCleanupOperator

with DAG(
    dag_id="segments_retention",
    schedule="@hourly",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["segments"],
    doc_md=__doc__,
    params={
        "table": Param(None, type=["null", "string"], title="Table", description="Empty: every table."),
        "dry_run": Param(False, type="boolean", title="Dry run", description="Change nothing, say what would go."),
    },
):
    RetentionCleanupOperator(task_id="retention", table="{{ params.table or '*' }}", dry_run="{{ params.dry_run }}")
