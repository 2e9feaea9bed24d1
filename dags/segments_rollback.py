"""Roll a table back: what its last push replaced is visible again, in milliseconds.

A dry run unless told otherwise: it says what readers would see before and after, or refuses in the words the rollback
itself would use. `segments_unrevert` brings back what was rolled back.
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
        "table": Param(type="string", title="Table", description="Which table to roll back.", minLength=1),
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
        "allow_empty": Param(
            False,
            type="boolean",
            title="Allow an empty table",
            description="Also when readers would see no rows any more.",
        ),
        "segments_conn_id": Param("segments_default", type="string", title="Connection", minLength=1),
        "dry_run": Param(True, type="boolean", title="Dry run", description="Change nothing, say what would happen."),
    },
):
    RevertReplaceSegmentsOperator(
        task_id="rollback",
        table="{{ params.table }}",
        segments_conn_id="{{ params.segments_conn_id }}",
        entry_id="{{ params.entry_id }}",
        force="{{ params.force }}",
        allow_empty="{{ params.allow_empty }}",
        dry_run="{{ params.dry_run }}",
    )
