"""Compaction of one table: small segments are merged and large ones split, each time chunk as a replacement of its own.

Appends go on meanwhile. What it replaces is marked by the DAG ``segments_retention`` when the table's period for
replaced segments is over, and until then a chunk's compaction can be rolled back. Start with a dry run.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.compact import CompactSegmentsOperator

with DAG(
    dag_id="segments_compaction",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["segments"],
    doc_md=__doc__,
    params={
        "table": Param("events", type="string", minLength=1, title="Table"),
        "policy": Param("newest-first", enum=["newest-first", "most-fragmented-first"], title="Which chunks first"),
        "skip_offset": Param("0s", type="string", title="Offset", description="Leave alone what is newer, as in 1d."),
        "max_groups": Param(None, type=["null", "integer"], minimum=1, title="Most time chunks of this run"),
        "dry_run": Param(False, type="boolean", title="Dry run", description="Say what would be compacted, and why."),
    },
):
    CompactSegmentsOperator(
        task_id="compact",
        table="{{ params.table }}",
        policy="{{ params.policy }}",
        skip_offset="{{ params.skip_offset }}",
        max_groups="{{ params.max_groups or '' }}",
        dry_run="{{ params.dry_run }}",
    )
