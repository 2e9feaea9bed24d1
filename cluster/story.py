"""The demo's story on the cluster, an upsert from Kafka, and a look for credentials where nobody may see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.upsert.reading import read_rows
from cluster.compose import ROOT
from cluster.processes import Cluster
from demo import main_job, statuses
from demo.airflow import Airflow
from demo.flights import write_flights
from demo.main_job import expect, finish, say

UPSERT = "segments_upsert"
TOPIC = "flight_changes"
PARTITIONS = 3
_SCHEMA = "flight STRING, changed_at TIMESTAMP, status STRING"


def tell(cluster: Cluster) -> None:
    """Run all of it on a cluster that is up. Raises :class:`DemoFailedError`."""
    began = time.monotonic()
    flights = write_flights(cluster.input)
    with cluster.connected() as store, watched(cluster) as lines:
        airflow = cluster.airflow()
        main_job.tell(airflow, store, flights, began, engine="spark")
        _upsert_from_kafka(cluster, airflow, store, flights, began)
        _read_with_spark(cluster, began)
        say(began, "Credentials: in command lines, logs and plans of everything that has run")
        count = expect_no_secrets(cluster, lines)
        print(f"   none of {len(cluster.secrets())} in {len(lines):,} command lines and {count:,} files of logs")


@contextmanager
def watched(cluster: Cluster) -> Iterator[set[str]]:
    """The command lines that the cluster's processes have had meanwhile, seen five times a second."""
    lines: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.2):
            for process in cluster.all_processes():
                with suppress(psutil.Error):
                    lines.add(" ".join(process.cmdline()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lines
    finally:
        done.set()
        thread.join()


def expect_no_secrets(cluster: Cluster, lines: set[str]) -> int:
    """Raise :class:`DemoFailedError` if a secret is in one of the ``lines``, or in a log; returns how many logs."""
    secrets = cluster.secrets()
    shown = [name for name, secret in secrets.items() if any(secret in line for line in lines)]
    expect(not shown, f"command lines show {shown}")
    folders = [cluster.folder / "logs", *(service.folder for service in cluster.services.values())]
    files = [path for folder in folders for path in folder.rglob("*") if _is_log(path)]
    for path in files:
        text = path.read_bytes()
        shown = [name for name, secret in secrets.items() if secret.encode() in text]
        expect(not shown, f"{path} shows {shown}")
    return len(files)


def _is_log(path: Path) -> bool:
    return path.is_file() and (path.name in ("log", "stdout", "stderr") or path.suffix == ".log")


def _upsert_from_kafka(cluster: Cluster, airflow: Airflow, store: SegmentStore, flights: Path, began: float) -> None:
    say(began, "Kafka: the same changes as messages of a topic; somebody triggers segments_upsert")
    events, ends = statuses.write_events(flights)
    table = make_upsert_table(store, TOPIC)
    rows = events.select(["flight", "changed_at", "status"]).to_pylist()
    messages = [{**row, "changed_at": row["changed_at"].isoformat()} for row in rows]
    make_topic(cluster, TOPIC)
    send(cluster, TOPIC, [(message["flight"], json.dumps(message)) for message in messages])
    airflow.unpause(UPSERT)
    finish(airflow, UPSERT, airflow.trigger(UPSERT, upsert_conf(cluster, TOPIC)))
    seen = Counter(read_rows(store.table(table), columns=["status"])["status"].to_pylist())
    print(f"   {len(messages):,} messages, {seen.total():,} flights: {dict(seen)}")
    expect(dict(seen) == ends, f"the table shows {dict(seen)}, and should show {ends}")


def make_upsert_table(store: SegmentStore, name: str) -> str:
    """Make a table of statuses; returns its name."""
    config = {**statuses.config().to_json(), "tableName": name}
    store.apply_config(type(statuses.config()).from_json(config))
    return name


def upsert_conf(cluster: Cluster, topic: str) -> dict[str, object]:
    """The conf of a run that reads a topic into the table of that name."""
    servers = f"{cluster.services['kafka'].host}:9092"
    return {
        "table": topic,
        "input": topic,
        "format": "kafka",
        "options": {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest"},
        "schema": _SCHEMA,
        "checkpoint": str(cluster.input / "checkpoints" / topic),
    }


def make_topic(cluster: Cluster, topic: str) -> None:
    """Make a topic, unless it is there."""
    options = ["--create", "--if-not-exists", "--topic", topic, "--partitions", str(PARTITIONS)]
    _kafka_tool(cluster, "org.apache.kafka.tools.TopicCommand", options)


def send(cluster: Cluster, topic: str, messages: list[tuple[str, str]]) -> None:
    """Send pairs of key and value; one key always goes to one partition."""
    options = ["--topic", topic, "--property", "parse.key=true", "--property", "key.separator=|"]
    text = "".join(f"{key}|{value}\n" for key, value in messages)
    _kafka_tool(cluster, "org.apache.kafka.tools.ConsoleProducer", options, text)


def _kafka_tool(cluster: Cluster, main: str, options: list[str], text: str = "") -> None:
    servers = ["--bootstrap-server", f"{cluster.services['kafka'].host}:9092"]
    command = ["java", "-Xmx256m", "-cp", str(ROOT / ".kafka" / "broker" / "*"), main, *servers, *options]
    environment = cluster.environment("kafka")
    subprocess.run(command, env=environment, input=text.encode(), capture_output=True, check=True, timeout=300)


def _read_with_spark(cluster: Cluster, began: float) -> None:
    """By an application of its own on the standalone Spark, in the environment of a worker of Airflow."""
    say(began, "S3A: Spark's own Parquet reader reads the flights, and says how it would do it")
    environment = cluster.environment("airflow-worker-1") | cluster.store_environment()
    log = cluster.folder / "logs" / "s3a_reader.log"
    with log.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "cluster.reader", cluster.spark_url, main_job.TABLE],
            env=environment, cwd=cluster.folder, stdout=file, stderr=file, check=False, timeout=600,
        )  # fmt: skip
    text = log.read_text()
    expect(done.returncode == 0, f"the reader ended with {done.returncode}; see {log}")
    expect(f"rows {main_job.ALL_ROWS}" in text, f"the reader should see {main_job.ALL_ROWS} rows; see {log}")
    expect(
        "FileScan parquet" in text and "s3a://segments/" in text, f"the plan is not of Spark's own reader; see {log}"
    )
    print(f"   {main_job.ALL_ROWS:,} rows by s3a://; the plan is in {os.path.relpath(log)}")
