"""A whole push over a real S3 server with credentials in the connection: they reach the job, and show nowhere."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from airflow.sdk import DAG

from airflow_provider_segments.dev.s3 import S3Server
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.task_groups.replace import replace_segments
from tests.airflow.helpers import HOME, RunDag, states
from tests.support.processes import command_lines

SOURCE_LOGIN = '{"password": "{{ conn.source_login.password }}", "mergeSchema": "false"}'
CONFIG = {"ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "REFRESH"}}}


def database_text() -> str:
    """Everything in Airflow's database: XComs, rendered templates, serialized DAGs, task state, asset events."""
    import sqlite3

    with sqlite3.connect(HOME / "airflow.db") as database:
        return "\n".join(database.iterdump())


def log_text() -> str:
    return "\n".join(path.read_text(errors="replace") for path in (HOME / "logs").rglob("*") if path.is_file())


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_push_on_s3_keeps_its_secrets(
    s3: S3Server,
    zk_hosts: str,
    run_dag: RunDag,
    table_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    engine: str,
) -> None:
    kinds = ("ZooKeeper", "source", "Spark")
    secrets = {"S3": s3.secret_key, **{kind: f"{kind[0]}p-{os.urandom(8).hex()}" for kind in kinds}}
    for kind in ("source", "Spark"):
        login = {"conn_type": "generic", "password": secrets[kind]}
        monkeypatch.setenv(f"AIRFLOW_CONN_{kind.upper()}_LOGIN", json.dumps(login))
    described: dict[str, Any] = {
        "conn_type": "segments",
        "host": zk_hosts,
        "login": "ada",
        "password": secrets["ZooKeeper"],
        "extra": {
            "cluster": f"secret_{table_name}",
            "storage_uri": "s3://segments/secret",
            "endpoint_url": s3.endpoint_url,
            "region": "us-east-1",
            "s3_access_key": s3.access_key,
            "s3_secret_key": secrets["S3"],
        },
    }
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(described))
    source = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": list(range(100))}), source)
    with DAG(f"secret_{table_name}", schedule=None) as dag:
        replace_segments(
            table=table_name,
            config=CONFIG,
            input=str(source),
            input_options=SOURCE_LOGIN if engine == "spark" else None,
            build={"engine": engine, "conf": {"spark.hadoop.fs.s3a.secret.key": "{{ conn.spark_login.password }}"}},
            validate={"min_rows": 100, "predicates": ["a >= 0"]},
        )
    with command_lines() as commands:
        run = run_dag(dag)
    assert run.state == "success", states(run)
    with SegmentsHook().get_conn() as store:
        assert store.table(table_name).snapshot().rows == 100
    submitted = any("--table" in command and table_name in command for command in commands)
    assert submitted is (engine == "spark"), "the job was seen, if there was one"
    places = {
        "a command line": "\n".join(commands),
        "the database": database_text(),
        "a log file": log_text(),
        "the output": "".join(capfd.readouterr()),
    }
    shown = [
        f"{name} secret in {place}"
        for name, secret in secrets.items()
        for place, text in places.items()
        if secret in text
    ]
    assert not shown
    assert not [name for name in os.environ if name.startswith(("SEGMENTS_S3", "SEGMENTS_ZK"))]
