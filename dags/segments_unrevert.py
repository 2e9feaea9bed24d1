"""Bring back what was rolled back, in milliseconds, as long as the table keeps it
(`revertedSegmentsRetentionPeriod`). Refused when something was built since upon what it replaced.

A dry run unless told otherwise.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.replace import UnrevertReplaceSegmentsOperator

with DAG(
    dag_id="segments_unrevert",
    schedule=None,
    max_active_runs=1,
    tags=["segments"],
    doc_md=__doc__,
    params={
        "table": Param(type="string", title="Table", description="Which table it is about.", minLength=1),
        "entry_id": Param(
            "latest",
            type="string",
            title="Entry",
            description="The lineage entry to bring back, its first characters, or latest: the one rolled back last.",
            minLength=1,
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
    UnrevertReplaceSegmentsOperator(
        task_id="unrevert",
        table="{{ params.table }}",
        segments_conn_id="{{ params.segments_conn_id }}",
        entry_id="{{ params.entry_id }}",
        allow_empty="{{ params.allow_empty }}",
        dry_run="{{ params.dry_run }}",
    )
