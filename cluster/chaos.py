"""Pushes, appends, compaction, upserts, retention, deletion and a comparison of two regions go on while something fails
every ten seconds.

All of them are DAG runs, executed by Celery workers. Reader processes count meanwhile. Everybody reaches S3 by a proxy
that can answer badly. At the end these things must hold: no reader has seen anything but whole pushes, no comparison
has found a difference where there is none, no push whose last task has succeeded is lost, and the store holds what is
registered or waits for its deletion, nothing else.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import socket
import ssl
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from airflow_provider_segments.core.doctor.examine import examine
from airflow_provider_segments.core.doctor.report import Severity
from airflow_provider_segments.core.table import SegmentStore
from cluster.processes import Cluster
from cluster.readers import (
    APPENDED,
    PUSHED,
    UPSERTED,
    Finding,
    observe,
    rows_of_append,
    rows_of_push,
    see_appends,
    see_push,
)
from cluster.story import UPSERT, make_topic, make_upsert_table, send, upsert_conf
from demo import regions
from demo.airflow import Airflow, DemoFailedError
from demo.flights import write_flights
from demo.main_job import COMPACTION, COMPARISON, DELETION, OTHER, PUSH, RETENTION, expect, say
from tests.support.http_faults import PASS, SLOW, FaultyProxy

SETTINGS = {
    "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "8",
    "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "40",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "30",
}
"""Airflow's own waits of minutes, made short: else most of the time would be spent waiting for its timeouts. No run is
made by a schedule: it would look for the inputs of the demo, and pushes of one DAG wait for each other."""

APPEND = "segments_append"
PAUSE_S, CALM_S = 10.0, 1500.0
FROZEN_S = 8.0
"""Longer than a request waits, and no longer than ZooKeeper's sessions live."""

DEPOSED_S = 20.0
"""As long as followers of a leader that says nothing need to elect another one: ``syncLimit`` ticks, and the vote."""

APPEND_CONFIG = {
    "segmentsConfig": {"timeColumnName": "at", "replacedSegmentsRetentionPeriod": "0s"},
    "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "APPEND"}},
    "tableIndexConfig": {"sortedColumn": ["at"]},
    "segmentBuildConfig": {"segmentGranularity": "DAY", "segmentLocking": True},
}
PUSH_CONFIG = {
    "segmentsConfig": {"timeColumnName": "at", "replacedSegmentsRetentionPeriod": "0s"},
    "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "REFRESH"}},
    "tableIndexConfig": {"sortedColumn": ["at"]},
    "segmentBuildConfig": {"segmentGranularity": "DAY"},
}


@dataclass(slots=True)
class Ended:
    """What has become of one run. ``switched``: its last task has succeeded."""

    number: int
    state: str
    switched: bool


@dataclass(slots=True)
class Work:
    """Loops that trigger one run after the other until ``stop``, and what became of each."""

    cluster: Cluster
    airflow: Airflow
    stop: threading.Event = field(default_factory=threading.Event)
    runs: dict[str, list[Ended]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def start(self) -> list[threading.Thread]:
        """Start all loops."""
        jobs: dict[str, Callable[[int], tuple[str, dict[str, Any], str]]] = {
            "push": self._push,
            "append": self._append,
            "compaction": lambda _: (COMPACTION, {"table": APPENDED}, "compact"),
            "retention": lambda _: (RETENTION, {}, "retention"),
            "deletion": lambda _: (DELETION, {"max_seconds": 60}, "drain"),
            "upsert": self._upsert,
            "comparison": lambda _: (COMPARISON, {"table": regions.TABLE, "other_conn_id": OTHER}, "compare"),
        }
        threads = [threading.Thread(target=self._loop, args=(name, job), daemon=True) for name, job in jobs.items()]
        for thread in threads:
            thread.start()
        return threads

    def _loop(self, name: str, job: Callable[[int], tuple[str, dict[str, Any], str]]) -> None:
        ended = self.runs.setdefault(name, [])
        number = 0
        try:
            while not self.stop.is_set():
                dag_id, conf, last = job(number)
                run_id = insist(lambda: self.airflow.trigger(dag_id, conf))  # noqa: B023 - called at once
                state = insist(lambda: self.airflow.wait_for(dag_id, run_id, CALM_S))  # noqa: B023
                tasks = {one["task_id"]: one["state"] for one in insist(lambda: self.airflow.tasks(dag_id, run_id))}  # noqa: B023
                ended.append(Ended(number, state, tasks.get(last) == "success"))
                number += 1
        except Exception as error:
            self.failures.append(f"{name}: {error!r}")

    def _push(self, number: int) -> tuple[str, dict[str, Any], str]:
        """Every fourth by Spark. Each has a count of rows of its own."""
        path = self._write(f"push{number}", number, rows_of_push(number))
        engine = "spark" if number % 4 == 3 else "local"
        conf = {"table": PUSHED, "input": str(path), "engine": engine, "config": PUSH_CONFIG, "force_cleanup": True}
        return PUSH, conf, "push.end"

    def _append(self, number: int) -> tuple[str, dict[str, Any], str]:
        path = self._write(f"append{number}", number, rows_of_append(number))
        engine = "spark" if number % 5 == 4 else "local"
        return APPEND, {"table": APPENDED, "input": str(path), "engine": engine, "config": APPEND_CONFIG}, "append.end"

    def _upsert(self, number: int) -> tuple[str, dict[str, Any], str]:
        """More keys each time, and newer events of those before."""
        at = datetime(2013, 1, 1) + timedelta(minutes=number)
        events = [
            {"flight": f"f{key}", "changed_at": at.isoformat(), "status": str(number)}
            for key in range(100 * (number + 1))
        ]
        insist(lambda: send(self.cluster, UPSERTED, [(event["flight"], json.dumps(event)) for event in events]))
        return UPSERT, upsert_conf(self.cluster, UPSERTED), "ingest"

    def _write(self, name: str, number: int, rows: int) -> Path:
        """A file of four days whose rows all say which push they are of."""
        path = self.cluster.input / f"{name}.csv"
        days = (f"2013-01-{1 + row % 4:02}T00:00:{row % 60:02}Z" for row in range(rows))
        path.write_text("at,push\n" + "".join(f"{day},{number}\n" for day in days))
        return path


@dataclass(slots=True)
class Faults:
    """What S3's proxy does with requests at present, and with how many of them: every one, every second one, ..."""

    kind: str | int = PASS
    every: int = 1

    def decide(self, method: str, path: str, count: int) -> str | int:  # noqa: ARG002 - the proxy's signature
        """What becomes of the request."""
        return PASS if count % self.every else self.kind


class Killer:
    """Kills one thing after the other, and starts it again at once, as a container engine would."""

    def __init__(self, cluster: Cluster, faults: Faults) -> None:
        self.cluster = cluster
        self.faults = faults
        self.kills: Counter[str] = Counter()
        self._chance = random.Random(1)  # noqa: S311 - the same order each time
        self._kinds: dict[str, Callable[[], bool]] = {
            "ZooKeeper leader": lambda: self._kill_zookeeper("leader"),
            "executor": lambda: self._kill_process("spark-worker-", "CoarseGrainedExecutorBackend"),
            "ZooKeeper follower": lambda: self._kill_zookeeper("follower"),
            "S3": lambda: self._restart("s3"),
            "driver": lambda: self._kill_process("airflow-worker-", "spark_apps/"),
            "Spark worker": lambda: self._restart(self._any("spark-worker-")),
            "scheduler": lambda: self._restart("airflow-scheduler"),
            "Celery worker": lambda: self._restart(self._any("airflow-worker-")),
            "triggerer": lambda: self._restart("airflow-triggerer"),
            "S3 frozen": lambda: self._freeze("s3"),
            "ZooKeeper rolled": self._roll_zookeeper,
            "S3 says 503": lambda: self._spoil_s3(503, 1),
            "ZooKeeper leader deposed": self._depose_leader,
            "S3 slow": lambda: self._spoil_s3(SLOW, 2),
            "ZooKeeper frozen": lambda: self._freeze(self._any("zookeeper-")),
            "S3 says 503 now and then": lambda: self._spoil_s3(503, 3),
            "Spark worker frozen": lambda: self._freeze(self._any("spark-worker-")),
        }

    def run(self, seconds: float) -> None:
        """Kill every ten seconds, for so long. What is not there to be killed has its turn later."""
        until = time.monotonic() + seconds
        waiting = list(self._kinds)
        while time.monotonic() < until:
            time.sleep(PAUSE_S)
            self.revive()
            for kind in waiting:
                if self._kinds[kind]():
                    self.kills[kind] += 1
                    print(f"   killed: {kind}", flush=True)
                    waiting.remove(kind)
                    break
            waiting = waiting or self._chance.sample(list(self._kinds), len(self._kinds))

    def revive(self) -> None:
        """Start whatever has ended."""
        for name in self.cluster.services:
            if not self.cluster.is_running(name):
                self.cluster.start(name)

    def modes(self) -> dict[str, str]:
        """Leader or follower, for each ZooKeeper that serves."""
        names = [name for name in self.cluster.services if name.startswith("zookeeper-")]
        said = {name: self._ask(self.cluster.services[name].host) for name in names}
        return {name: mode[1] for name, text in said.items() if (mode := re.search("Mode: (leader|follower)", text))}

    def _kill_zookeeper(self, mode: str) -> bool:
        """One only while all serve: of two, a majority would be gone."""
        modes = self.modes()
        chosen = [name for name, its in modes.items() if its == mode]
        return len(modes) == 3 and self._restart(self._chance.choice(chosen))

    def _restart(self, name: str) -> bool:
        if not self.cluster.kill(name):
            return False
        psutil.wait_procs(self.cluster.processes(name), timeout=30)
        self.cluster.start(name)
        return True

    def _roll_zookeeper(self) -> bool:
        """As for an upgrade: each server in turn ends properly and starts again, once all serve."""
        names = list(self.modes())
        if len(names) < 3:
            return False
        for name in names:
            self.cluster.end(name)
            self.cluster.start(name)
            until = time.monotonic() + 60
            while len(self.modes()) < 3 and time.monotonic() < until:
                time.sleep(0.5)
        return True

    def _depose_leader(self) -> bool:
        """Stands in for a leader that is cut off from the others, who elect another one. It wakes up believing that it
        leads, with clients that are still connected to it."""
        modes = self.modes()
        leaders = [name for name, mode in modes.items() if mode == "leader"]
        return len(modes) == 3 and self._freeze(leaders[0], DEPOSED_S)

    def _freeze(self, name: str, seconds: float = FROZEN_S) -> bool:
        frozen = self.cluster.freeze(name)
        time.sleep(seconds)
        self.cluster.thaw(name)
        return frozen > 0

    def _spoil_s3(self, kind: str | int, every: int) -> bool:
        self.faults.kind, self.faults.every = kind, every
        time.sleep(FROZEN_S)
        self.faults.kind = PASS
        return True

    def _kill_process(self, services: str, text: str) -> bool:
        names = [name for name in self.cluster.services if name.startswith(services)]
        processes = [one for name in names for one in self.cluster.processes(name) if _says(one, text)]
        for process in processes[:1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return bool(processes)

    def _any(self, prefix: str) -> str:
        return self._chance.choice([name for name in self.cluster.services if name.startswith(prefix)])

    def _ask(self, host: str) -> str:
        trust = ssl.create_default_context(cafile=str(self.cluster.topology.secrets / "ca.pem"))
        try:
            with (
                socket.create_connection((host, 2281), timeout=3) as plain,
                trust.wrap_socket(plain, server_hostname=host) as connection,
            ):
                connection.sendall(b"srvr")
                return b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""


def run(folder: Path, minutes: float) -> None:
    """Start a cluster in ``folder``, run it there, and end the cluster. Raises :class:`DemoFailedError` when something
    is wrong, lost or left behind."""
    cluster, faults = Cluster(folder, SETTINGS), Faults()
    with _faulty_storage(cluster, faults), cluster:
        _torment(cluster, faults, minutes)


@contextmanager
def _faulty_storage(cluster: Cluster, faults: Faults) -> Iterator[None]:
    """Have everybody reach S3 by the proxy; and have a second region, in a cluster of its own on the same servers."""
    cluster.make_secrets()
    path = cluster.topology.secrets / "airflow_connections.json"
    connections = json.loads(path.read_text())
    with FaultyProxy(f"http://{cluster.services['s3'].host}:8333", faults.decide) as proxy:
        extra = {**connections["segments_default"]["extra"], "endpoint_url": proxy.url}
        elsewhere = {**extra, "storage_uri": f"s3://segments/{OTHER}", "cluster": OTHER}
        connections |= {
            "segments_default": {**connections["segments_default"], "extra": extra},
            OTHER: {**connections["segments_default"], "extra": elsewhere},
        }
        path.write_text(json.dumps(connections))
        yield


def _torment(cluster: Cluster, faults: Faults, minutes: float) -> None:
    began = time.monotonic()
    work, killer = Work(cluster, cluster.airflow()), Killer(cluster, faults)
    _prepare(work)
    with cluster.connected():
        pass  # readers inherit the credentials
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    with context.Manager() as manager:
        findings = manager.list()
        readers = [
            context.Process(target=observe, args=(kind, stop, findings), name=kind, daemon=True)
            for kind in (PUSHED, APPENDED, UPSERTED)
        ]
        for reader in readers:
            reader.start()
        say(began, f"Chaos for {minutes:g} minutes")
        loops = work.start()
        try:
            killer.run(minutes * 60)
        finally:
            say(began, "Calm: what is under way may end")
            work.stop.set()
            _calm(killer, loops)
            stop.set()
            for reader in readers:
                reader.join(120)
        seen: list[Finding] = list(findings)
    _report(work, killer, seen)
    _judge(cluster, work, seen, began)


def insist(call: Callable[[], Any]) -> Any:
    """Ask again for as long as Airflow does not answer, or says that it could not."""
    until = time.monotonic() + CALM_S
    while True:
        try:
            return call()
        except (OSError, DemoFailedError) as error:
            refused = isinstance(error, urllib.error.HTTPError) and 400 <= error.code < 500
            if refused or isinstance(error, DemoFailedError) or time.monotonic() > until:
                raise
            time.sleep(1)


def _prepare(work: Work) -> None:
    with work.cluster.connected() as store:
        make_upsert_table(store, UPSERTED)
    make_topic(work.cluster, UPSERTED)
    _make_regions(work.cluster)
    for dag_id in (PUSH, APPEND, COMPACTION, RETENTION, DELETION, UPSERT, COMPARISON):
        work.airflow.unpause(dag_id)


def _make_regions(cluster: Cluster) -> None:
    """Two that show the same."""
    with cluster.connected() as here, cluster.store(OTHER) as there:
        regions.make((here, there))
        both = regions.Regions((here, there), cluster.input / "regions")
        both.write(write_flights(cluster.input))
        both.ingest(with_faults=False)
        expect(not both.differing(), "the regions should agree")


def _calm(killer: Killer, loops: list[threading.Thread]) -> None:
    until = time.monotonic() + CALM_S
    while any(loop.is_alive() for loop in loops) and time.monotonic() < until:
        killer.revive()
        time.sleep(5)


def _report(work: Work, killer: Killer, seen: list[Finding]) -> None:
    print(f"   killed {killer.kills.total()} times: {dict(killer.kills)}")
    for name, runs in work.runs.items():
        states = Counter(ended.state for ended in runs)
        print(
            f"   {name}: {len(runs)} runs {dict(states)}, {sum(ended.switched for ended in runs)} of them to their end"
        )
    for finding in seen:
        print(f"   readers of {finding.table}: {finding.reads} reads, {finding.outages} cut off, {finding.wrong} wrong")


def _judge(cluster: Cluster, work: Work, seen: list[Finding], began: float) -> None:
    say(began, "No wrong read, no lost push, no orphan?")
    expect(not work.failures, f"the work did not go on: {work.failures}")
    expect(len(seen) == 3 and all(one.reads for one in seen), f"not every reader has read and ended: {seen}")
    expect(not any(one.wrong for one in seen), f"wrong reads: {[one.examples for one in seen]}")
    with cluster.connected() as store:
        expect_pushes(store, work.runs)
        findings = store.table(f"{regions.TABLE}_findings")
        expect(not findings.snapshot().rows, "a comparison has found differences of regions that agree")
        _expect_no_orphans(store)


def expect_pushes(store: SegmentStore, runs: dict[str, list[Ended]]) -> None:
    """Raise :class:`DemoFailedError` unless the last push that has switched is visible, and every append that has."""
    pushed = [ended.number for ended in runs["push"] if ended.switched]
    expect(bool(pushed), "not one push was made visible")
    number, rows = see_push(store)
    expect((number, rows) == (pushed[-1], rows_of_push(pushed[-1])), f"push {pushed[-1]} is lost: {number} is visible")
    appended = {ended.number for ended in runs["append"] if ended.switched}
    visible = see_appends(store)
    expect(appended <= set(visible), f"appends are lost: {sorted(appended - set(visible))}")
    late = sorted(set(visible) - appended)
    print(f"   push {number} is visible, and so are all of {len(appended)} appends; of runs that failed later: {late}")


def _expect_no_orphans(store: SegmentStore) -> None:
    """After a last clean-up. Nothing is too young: no push is under way."""
    for name in store.tables():
        store.table(name).cleanup()
    store.deleter().drain()
    for name in store.tables():
        report = store.table(name).reconcile(grace_ms=0)
        counts = {kind: value["count"] for kind, value in report.as_dict().items() if isinstance(value, dict)}
        print(f"   {name}: {counts}")
        bad = {kind: counts[kind] for kind in ("orphans", "missing", "foreign", "dead", "young") if counts[kind]}
        expect(not bad, f"table {name}: {bad}")
    findings = [one for one in examine(store.cluster, all_objects=True).findings if one.severity == Severity.ERROR]
    expect(not findings, f"the doctor says: {findings}")


def _says(process: psutil.Process, text: str) -> bool:
    try:
        return any(text in part for part in process.cmdline())
    except psutil.Error:
        return False
