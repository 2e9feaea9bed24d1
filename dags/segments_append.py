"""Append an input to a table: build it with Spark, check it, make it visible at once.

Appends go on side by side, with each other and with ``segments_compaction``: each locks only the segments it brings.
``segments_rollback`` undoes one. An input may name the day of the run: ``/data/events/{date}.csv``.
"""

from __future__ import annotations

import os

import pendulum
from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.unfinished import revert_unfinished_pushes
from airflow_provider_segments.task_groups.replace import replace_segments

EVENTS = {
    "segmentsConfig": {"timeColumnName": "time_hour"},
    "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "APPEND"}},
    "tableIndexConfig": {"sortedColumn": ["time_hour"]},
    "segmentBuildConfig": {"segmentGranularity": "MONTH", "segmentLocking": True},
}

with DAG(
    dag_id="segments_append",
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=4,
    tags=["segments"],
    doc_md=__doc__,
    on_failure_callback=revert_unfinished_pushes,
    params={
        "table": Param("events", type="string", title="Table", minLength=1),
        "input": Param(
            os.environ.get("SEGMENTS_INPUT", "/data/flights.csv"),
            type="string",
            title="Input",
            description="A path or several, comma-separated; a table name or a query; {date} is the day.",
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
        "config": Param(EVENTS, type="object", title="Table config", description="Applied first, if it has changed."),
        "min_rows": Param(1, type="integer", minimum=0, title="Fewest rows", description="Fewer: nothing is appended."),
    },
):
    replace_segments(
        group_id="append",
        table="{{ params.table }}",
        config="{{ params.config | tojson }}",
        input="{{ params.input | replace('{date}', dag_run.run_after.strftime('%Y-%m-%d')) }}",
        input_format="{{ params.format }}",
        input_options="{{ params.options | tojson }}",
        build={"engine": "{{ params.engine }}"},
        validate={"min_rows": "{{ params.min_rows }}"},
    )
