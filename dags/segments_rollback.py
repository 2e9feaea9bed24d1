"""Roll a table back: what its last push replaced is visible again, in milliseconds.

Start with a dry run: it says what would become visible, or refuses in the words the rollback itself would use.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.replace import RevertReplaceSegmentsOperator

with DAG(
    dag_id="segments_rollback",
    schedule=None,
    max_active_runs=1,
    tags=["segments"],
    doc_md=__doc__,
    params={
        "table": Param("flights", type="string", title="Table", minLength=1),
        "entry_id": Param(
            "latest",
            type="string",
            title="Entry",
            description="The lineage entry to revert, its first characters, or latest: the newest completed one.",
            minLength=1,
        ),
        "force": Param(
            False, type="boolean", title="Force", description="Also revert an entry whose push is still in progress."
        ),
        "dry_run": Param(False, type="boolean", title="Dry run", description="Change nothing, say what would happen."),
    },
):
    RevertReplaceSegmentsOperator(
        task_id="rollback",
        table="{{ params.table }}",
        entry_id="{{ params.entry_id }}",
        force="{{ params.force }}",
        dry_run="{{ params.dry_run }}",
    )
