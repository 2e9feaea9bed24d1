"""Revoke a lock that stands in the way: its owner can publish nothing any more that relies on it.

Nothing is lost but the work of that run: its push is refused, and reverted. The page's list of locks starts this DAG.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.locks import RevokeSegmentLockOperator

with DAG(
    dag_id="segments_revoke_lock",
    schedule=None,
    tags=["segments"],
    doc_md=__doc__,
    params={
        "table": Param(type="string", title="Table", description="Whose lock it is.", minLength=1),
        "lock_id": Param(
            type="string", title="Lock", description="Its id, or the unique beginning of one.", minLength=4
        ),
        "segments_conn_id": Param("segments_default", type="string", title="Connection", minLength=1),
    },
):
    RevokeSegmentLockOperator(
        task_id="revoke",
        table="{{ params.table }}",
        segments_conn_id="{{ params.segments_conn_id }}",
        lock_id="{{ params.lock_id }}",
    )
