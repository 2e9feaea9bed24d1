"""Push a snapshot of a table: build it with Spark, check it, swap it in at once. ``segments_rollback`` undoes it."""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import DAG, Param

from airflow_provider_segments.task_groups.replace import replace_segments

FLIGHTS = {
    "segmentsConfig": {"timeColumnName": "time_hour"},
    "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "REFRESH"}},
    "tableIndexConfig": {"sortedColumn": ["time_hour"]},
    "segmentBuildConfig": {"segmentGranularity": "MONTH"},
}

with DAG(
    dag_id="segments_consistent_push",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=int(os.environ.get("SEGMENTS_PUSHES_AT_ONCE", "1")),  # pushes of one table exclude each other
    tags=["segments"],
    doc_md=__doc__,
    params={
        "table": Param("flights", type="string", title="Table", minLength=1),
        "input": Param(
            os.environ.get("SEGMENTS_INPUT", "/data/flights.csv"),
            type="string",
            title="Input",
            description="A path or several, comma-separated; a table name or a query for these formats.",
            minLength=1,
        ),
        "format": Param("csv", type="string", title="Format", enum=["csv", "json", "orc", "parquet", "table", "sql"]),
        "options": Param(
            {"header": "true", "inferSchema": "true"}, type="object", title="Options", description="Of the format."
        ),
        "engine": Param(
            "auto",
            type="string",
            title="Engine",
            enum=["auto", "local", "spark"],
            description="local: without Spark, in the task; auto: that for small files.",
        ),
        "config": Param(FLIGHTS, type="object", title="Table config", description="Applied first, if it has changed."),
        "min_rows": Param(1, type="integer", minimum=0, title="Fewest rows", description="Fewer: no switch."),
        "force_cleanup": Param(
            False,
            type="boolean",
            title="Force clean-up",
            description="Revert an unfinished push that stands in the way; let the snapshot before the present one go.",
        ),
    },
):
    replace_segments(
        group_id="push",
        table="{{ params.table }}",
        config="{{ params.config | tojson }}",
        input="{{ params.input }}",
        input_format="{{ params.format }}",
        input_options="{{ params.options | tojson }}",
        build={"engine": "{{ params.engine }}"},
        validate={"min_rows": "{{ params.min_rows }}"},
        force_cleanup="{{ params.force_cleanup }}",
    )
