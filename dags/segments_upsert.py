"""One run of ingestion into an upsert table: all events that have arrived, then a compaction.

The events are files in a folder, or messages of Kafka. Each names its place in the source (``$partition`` and
``$offset``), so a run that is killed and started again counts every event once. Readers see each micro-batch whole, or
not at all.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.upsert import CompactUpsertOperator, UpsertSegmentsOperator

with DAG(
    dag_id="segments_upsert",
    schedule=None,
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["segments"],
    doc_md=__doc__,
    params={
        "table": Param("events", type="string", minLength=1, title="Upsert table"),
        "input": Param("/data/events", type="string", minLength=1, title="Folder of events, or Kafka topics"),
        "format": Param("parquet", type="string", title="Format", description="A file source of Spark, or kafka."),
        "options": Param({}, type="object", title="Options of its source", description="No secrets: these are stored."),
        "schema": Param(
            "id STRING, at TIMESTAMP, `$partition` INT, `$offset` BIGINT", type="string", title="Schema of the events"
        ),
        "checkpoint": Param("/var/lib/segments/events", type="string", title="Spark's folder for the stream"),
        "keep_versions": Param(
            None, type=["null", "integer"], minimum=1, title="Versions to keep", description="Empty: as the table says."
        ),
    },
):
    ingest = UpsertSegmentsOperator(
        task_id="ingest",
        table="{{ params.table }}",
        input="{{ params.input }}",
        input_format="{{ params.format }}",
        input_options="{{ params.options | tojson }}",
        schema="{{ params.schema }}",
        checkpoint="{{ params.checkpoint }}",
    )
    compact = CompactUpsertOperator(
        task_id="compact", table="{{ params.table }}", keep_versions="{{ params.keep_versions or '' }}"
    )
    ingest >> compact
