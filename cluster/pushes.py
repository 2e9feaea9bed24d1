"""Pushes to many tables at once: how long until their rows are visible, and what they wait for meanwhile.

Each push is a run of ``segments_consistent_push``, executed by Celery workers. The clock of a push runs from its
trigger to the moment its lineage entry is completed. All of them must become visible with the rows of their own inputs.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow.csv
import pyarrow.parquet

from airflow_provider_segments.core.table import SegmentStore
from benchmarks.report import machine, table
from cluster.processes import Cluster
from demo.airflow import Airflow
from demo.flights import write_flights
from demo.main_job import PUSH, expect

ROWS = 27_000
"""In each table: about a month of flights."""

_SWITCH = "push.end"
_BEGUN, _DONE = "::endgroup::", "::group::Post Execute"
"""What a task's log says before and after the operator's own work."""


@dataclass(frozen=True, slots=True)
class Input:
    """A file of the rows of one table, and what readers of the table must see."""

    path: Path
    seen: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Push:
    """A push that has become visible, and where its ``seconds`` from trigger to visible went. ``steps`` has those of
    the operators' own work, by task."""

    triggered: float
    visible: float
    scheduler: float
    slot: float
    process: float
    steps: dict[str, float]

    @property
    def seconds(self) -> float:
        """From the trigger to visible rows."""
        return self.visible - self.triggered


def run(cluster: Cluster, count: int, engines: Sequence[str]) -> None:
    """Measure on a cluster that is up, and print. Raises :class:`DemoFailedError` unless all pushes become visible."""
    inputs = _write_inputs(cluster, count)
    airflow = cluster.airflow()
    airflow.unpause(PUSH)
    airflow.wait_for(PUSH, airflow.scheduled_run(PUSH))  # the schedule's own run
    print(f"{machine()}\n{count} pushes of {ROWS:,} rows, triggered at once", flush=True)
    for engine in engines:
        before = _cpu_seconds(cluster)
        pushes = _push_all(cluster, airflow, engine, inputs)
        used = {name: seconds - before[name] for name, seconds in _cpu_seconds(cluster).items()}
        _report(engine, pushes, used)


def _report(engine: str, pushes: Sequence[Push], used: dict[str, float]) -> None:
    wall = max(push.visible for push in pushes) - min(push.triggered for push in pushes)
    took = sorted(push.seconds for push in pushes)
    p99 = took[math.ceil(0.99 * len(took)) - 1]
    figures = [f"{wall:.0f}", f"{60 * len(pushes) / wall:.1f}", f"{statistics.median(took):.0f}", f"{p99:.0f}"]
    print(
        "\n"
        + table(["engine", "pushes", "wall s", "pushes/min", "p50 s", "p99 s"], [[engine, str(len(pushes)), *figures]])
    )
    parts = {
        "trigger to visible": [push.seconds for push in pushes],
        "scheduler": [push.scheduler for push in pushes],
        "wait for a slot": [push.slot for push in pushes],
        "Airflow's part of tasks": [push.process for push in pushes],
        **{f"our {name.removeprefix('push.')}": [push.steps[name] for push in pushes] for name in pushes[0].steps},
    }
    means = [f"{statistics.fmean(values):.1f}" for values in parts.values()]
    print("\nWhere a push's seconds go (means)\n" + table(list(parts), [means]))
    most = sorted(used.items(), key=lambda one: -one[1])
    shown = ", ".join(f"{name} {seconds:.0f}" for name, seconds in most if seconds >= 1)
    print(f"\nSeconds of CPU: {sum(used.values()):.0f} ({shown})", flush=True)


def _write_inputs(cluster: Cluster, count: int) -> list[Input]:
    """Stretches of the flights of 2013, each another one."""
    flights = write_flights(cluster.input)
    head, *lines = flights.read_bytes().splitlines(keepends=True)
    apart = (len(lines) - ROWS) // max(count - 1, 1)
    made = []
    for number in range(count):
        path = cluster.input / f"pushes{number}.csv"
        path.write_bytes(head + b"".join(itertools.islice(lines, number * apart, number * apart + ROWS)))
        distances = pyarrow.csv.read_csv(path)["distance"].to_pylist()
        made.append(Input(path, (len(distances), sum(distances))))
    return made


def _push_all(cluster: Cluster, airflow: Airflow, engine: str, inputs: Sequence[Input]) -> list[Push]:
    """Trigger all at once, wait for all, look at all."""
    names = [f"pushes_{engine}_{number}" for number in range(len(inputs))]
    _ = airflow.token

    def trigger(name: str, source: Input) -> tuple[float, str]:
        conf = {"table": name, "input": str(source.path), "engine": engine, "force_cleanup": True}
        return time.time(), airflow.trigger(PUSH, conf)

    with ThreadPoolExecutor(len(inputs)) as pool:
        runs = list(pool.map(trigger, names, inputs))
    for name, (_, run_id) in zip(names, runs, strict=True):
        state = airflow.wait_for(PUSH, run_id, timeout=3600)
        expect(state == "success", f"the push to {name} ended {state}")
    with cluster.connected() as store:
        for name, source in zip(names, inputs, strict=True):
            seen = _look(store, name)
            expect(seen == source.seen, f"{name} shows rows and miles {seen}, and should show {source.seen}")
        return [
            _account(cluster, airflow, store, name, began, run_id)
            for name, (began, run_id) in zip(names, runs, strict=True)
        ]


def _look(store: SegmentStore, name: str) -> tuple[int, int]:
    """Rows and miles that readers see."""
    rows = miles = 0
    with store.table(name).snapshot(owner="pushes") as snapshot:
        for key in snapshot.files:
            with snapshot.storage.open(key) as file:
                distances = pyarrow.parquet.read_table(file, columns=["distance"])["distance"].to_pylist()
            rows, miles = rows + len(distances), miles + sum(distances)
    return rows, miles


def _account(cluster: Cluster, airflow: Airflow, store: SegmentStore, name: str, began: float, run_id: str) -> Push:
    """Divide the time until the switch among those who had it."""
    entry = airflow.result(PUSH, run_id, _SWITCH)["entry_id"]
    visible = store.table(name).lineage().entries[entry].timestamp_ms / 1000
    tasks = [task for task in airflow.tasks(PUSH, run_id) if task["start_date"] and _at(task["start_date"]) < visible]
    steps = {task["task_id"]: _own_seconds(cluster, run_id, task, visible) for task in tasks}
    inside = sum(min(_at(task["end_date"]), visible) - _at(task["start_date"]) for task in tasks)
    slot = sum(_at(task["start_date"]) - _at(task["queued_when"]) for task in tasks)
    return Push(
        triggered=began,
        visible=visible,
        scheduler=visible - began - inside - slot,
        slot=slot,
        process=inside - sum(steps.values()),
        steps=steps,
    )


def _own_seconds(cluster: Cluster, run_id: str, task: dict[str, Any], visible: float) -> float:
    """From the end of Airflow's preparation to the end of ``execute``, as the task's log says."""
    folder = cluster.folder / "logs" / f"dag_id={PUSH}" / f"run_id={run_id}" / f"task_id={task['task_id']}"
    log = folder / f"attempt={task['try_number']}.log"
    said = [json.loads(line) for line in log.read_text().splitlines()]
    begun = next(_at(line["timestamp"]) for line in said if line["event"] == _BEGUN)
    done = next(_at(line["timestamp"]) for line in said if line["event"] == _DONE)
    return min(done, visible) - begun


def _at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _cpu_seconds(cluster: Cluster) -> dict[str, float]:
    """CPU time by service, with that of children that have ended."""
    used: dict[str, float] = defaultdict(float)
    for name in cluster.services:
        for process in cluster.processes(name):
            try:
                used[re.sub(r"-\d+$", "", name)] += math.fsum(process.cpu_times()[:4])
            except psutil.Error:
                continue
    return used
