"""Deletion: what retention and rollbacks have marked leaves the storage, once nothing needs it any more.

Runs every ten minutes, as long as a message waits for its next delivery. The run fails when messages were given up: see
*a dead letter appeared* in docs/deletion.md.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.deletion import DeletePendingLedgersOperator

with DAG(
    dag_id="segments_ledger_deletion",
    schedule="*/10 * * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["segments"],
    doc_md=__doc__,
    params={
        "max_seconds": Param(540, type="integer", minimum=1, title="Seconds", description="How long to work."),
        "max_ledgers": Param(
            1_000_000, type="integer", minimum=1, title="Messages", description="The most to work on."
        ),
    },
):
    DeletePendingLedgersOperator(
        task_id="drain", max_seconds="{{ params.max_seconds }}", max_ledgers="{{ params.max_ledgers }}"
    )
