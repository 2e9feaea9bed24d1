"""Write a heartbeat of a region into its source, every minute.

The source is a topic of Kafka, or a folder of Parquet files. Give this DAG and whatever else adds events to a folder a
pool of one slot. Readers of the table then know how fresh it is, also while nothing is written, and each region that
becomes silent is told once; docs/replication.md says how.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Param

from airflow_provider_segments.operators.heartbeat import EmitHeartbeatOperator

with DAG(
    dag_id="segments_heartbeat",
    schedule="* * * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["segments"],
    doc_md=__doc__,
    params={
        "table": Param("events", type="string", minLength=1, title="Upsert table"),
        "region": Param("eu", type="string", minLength=1, title="Region"),
        "folder": Param("", type="string", title="Folder of the region's events"),
        "topic": Param("", type="string", title="Or their topic"),
        "kafka_conn_id": Param("kafka_default", type="string", minLength=1, title="Connection of Kafka"),
        "partitions": Param(1, type="integer", minimum=1, title="Source partitions in a folder; Kafka is asked"),
    },
):
    EmitHeartbeatOperator(
        task_id="beat",
        table="{{ params.table }}",
        region="{{ params.region }}",
        folder="{{ params.folder }}",
        topic="{{ params.topic }}",
        kafka_conn_id="{{ params.kafka_conn_id }}",
        partitions="{{ params.partitions }}",
    )
