"""How an upsert table keeps up with a real Kafka broker: lag and CPU while events come at a steady rate, then flat out.

    python -m benchmarks.kafka [RATE [SECONDS [KEYS [EVERY]]]]      10,000 events/s, 600 s, 1,000,000 keys, every 5 s

One broker, one topic of four partitions, JSON messages, the job of ``spark_apps/upsert_segments.py`` under
``spark-submit`` with ``local[2]``, a ZooKeeper that syncs its writes, a local folder. The lag is the time since the
newest event that readers see was sent: it is looked at each second, once the job's first version is there. Then the job
is stopped, as many events as two minutes bring are sent, and it is timed while it reads them.

Then delta-rs (``MERGE``) and DuckDB (``INSERT ... ON CONFLICT``) take the same JSON in batches of as many events, from
memory: without a broker, without positions to go on from after a kill, and DuckDB without earlier versions. In the end
all three hold the same rows.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pyarrow
from pyarrow.json import read_json

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.spark.environment import spark_app_path, spark_environment, spark_submit_path
from airflow_provider_segments.upsert.reading import read_rows
from benchmarks.report import end_properly, machine, median, table
from benchmarks.upsert import COLUMNS, Delta, Duck, System, measured
from tests.support.kafka import KafkaServer, spark_jars

PARTITIONS = 4
SCHEMA = "k STRING, ts BIGINT, amount DOUBLE, status STRING"
CONFIG = {
    "tableName": "orders",
    "schema": {"primaryKeyColumns": ["k"]},
    "upsertConfig": {"mode": "FULL", "comparisonColumns": ["ts"], "keyPartitions": 2},
}


@dataclass
class Source:
    """Sends events through Kafka's console producer, and knows when it has sent how many."""

    kafka: KafkaServer | None
    keys: int
    sent: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(1))
    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None

    def events(self, count: int) -> Iterator[tuple[str, str]]:
        """The next events: key and JSON."""
        for _ in range(count):
            key = f"order-{self.random.randrange(self.keys):09d}"
            self.sent += 1
            amount, status = self.random.random() * 100, self.random.choice("npsb")
            yield key, json.dumps({"k": key, "ts": self.sent, "amount": amount, "status": status})

    def send(self, count: int) -> None:
        """Hand over the next events, and remember when."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{key}|{event}\n" for key, event in self.events(count)))
        self.process.stdin.flush()
        self.times.append(time.monotonic())
        self.counts.append(self.sent)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """While the producer runs; at the end everything has reached the broker."""
        assert self.kafka is not None
        with self.kafka.producer("orders") as self.process:
            yield

    def sent_at(self, count: int) -> float:
        """When the event of this number had been sent."""
        return self.times[min(bisect_left(self.counts, count), len(self.times) - 1)]


class Job:
    """The application under ``spark-submit``."""

    def __init__(self, kafka: KafkaServer, store: SegmentStore, folder: Path, every_s: float, most: int) -> None:
        self.log = folder / "job.log"
        options = {"kafka.bootstrap.servers": kafka.servers, "startingOffsets": "earliest"}
        self.variables = {
            "SEGMENTS_INPUT": "orders",
            "SEGMENTS_INPUT_OPTIONS": json.dumps({**options, "maxOffsetsPerTrigger": str(most)}),
        }
        self.command = [
            str(spark_submit_path()), "--master", "local[2]", "--conf", "spark.ui.enabled=false",
            "--driver-memory", "2g", "--jars", ",".join(spark_jars()), str(spark_app_path("upsert_segments")),
            "--zk-hosts", store.session.settings.hosts, "--cluster", store.paths.cluster,
            "--storage-uri", store.storage.uri, "--table", "orders", "--format", "kafka", "--schema", SCHEMA,
            "--checkpoint", str(folder / "checkpoint"), "--cache", str(folder / "cache"), "--wait-seconds", "120",
            "--every-seconds", str(every_s),
        ]  # fmt: skip

    @contextmanager
    def running(self) -> Iterator[psutil.Process]:
        """The job's process, while it runs."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**environment, **spark_environment(), "SPARK_LOCAL_IP": "127.0.0.1", **self.variables},
            )  # fmt: skip
        try:
            yield psutil.Process(process.pid)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def ingested(of: Table) -> int:
    """How many messages the newest version has read."""
    return sum(require_record(of.lineage()).positions.values())


def wait_for(of: Table, count: int, job: Job) -> float:
    """Wait until so many are read; returns when."""
    until = time.monotonic() + 1800
    while ingested(of) < count:
        assert time.monotonic() < until, job.log.read_text()[-3000:]
        time.sleep(0.1)
    return time.monotonic()


def cpu_by_kind(job: psutil.Process, others: dict[str, psutil.Process]) -> dict[str, float]:
    """CPU seconds so far: of the job's JVM and of its Python, and of the others."""
    found: dict[str, float] = {name: _cpu(process) for name, process in others.items()}
    for process in [job, *job.children(recursive=True)]:
        try:
            kind = "job: JVM" if "java" in process.name() else "job: Python"
            found[kind] = found.get(kind, 0.0) + _cpu(process)
        except psutil.NoSuchProcess:
            continue
    return found


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def steady(
    source: Source, orders: Table, job: Job, others: dict[str, psutil.Process], rate: int, seconds: int
) -> float:
    """Send at a rate while the job runs; print the lag and the CPU an event of each process. Returns the job's."""
    lags: list[tuple[float, float]] = []
    with job.running() as process, source.opened():
        source.send(1)
        wait_for(orders, 1, job)
        before, first, began = cpu_by_kind(process, others), source.sent, time.monotonic()
        done = threading.Event()

        def look() -> None:
            while not done.wait(1.0):
                seen = ingested(orders)
                now = time.monotonic()
                lags.append((now - began, now - source.sent_at(seen + 1) if seen < source.sent else 0.0))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            for tick in range(seconds * 10):
                pause = began + tick / 10 - time.monotonic()
                time.sleep(max(pause, 0.0))
                source.send(rate // 10)
            took = time.monotonic() - began
        finally:
            done.set()
            watcher.join()
        after, count = cpu_by_kind(process, others), source.sent - first
        wait_for(orders, source.sent, job)
    print(f"{count:,} events in {took:.0f} s: {count / took:,.0f} a second")
    tail = sorted(lag for _, lag in lags)
    print(f"lag: median {median(tail):.1f} s, 99 % {tail[len(tail) * 99 // 100]:.1f} s, greatest {tail[-1]:.1f} s")
    fifth = max(len(lags) // 5, 1)
    print(f"mean lag in the first fifth {_mean(lags[:fifth]):.1f} s, in the last {_mean(lags[-fifth:]):.1f} s")
    taken = {name: (after[name] - before.get(name, 0.0)) / count * 1e6 for name in after}
    print(table(["", "us CPU an event"], [[name, f"{cpu:.1f}"] for name, cpu in taken.items()]))
    return sum(cpu for name, cpu in taken.items() if name not in others)


def _mean(lags: list[tuple[float, float]]) -> float:
    return sum(lag for _, lag in lags) / max(len(lags), 1)


def flat_out(source: Source, orders: Table, job: Job, count: int) -> float:
    """Send while the job is down, then time it from its first version to its last. Returns its events a second."""
    start = ingested(orders)
    with source.opened():
        for _ in range(10):
            source.send(count // 10)
    with job.running():
        wait_for(orders, start + 1, job)
        first, began = ingested(orders), time.monotonic()
        took = wait_for(orders, source.sent, job) - began
    return (source.sent - first) / took


def feed(system: System, keys: int, count: int, batch: int) -> tuple[float, float]:
    """Give a system the first ``count`` events, as JSON; returns its CPU in us an event and its events a second."""
    source, cpu, wall = Source(None, keys), 0.0, 0.0
    while source.sent < count:
        events = "\n".join(event for _, event in source.events(min(batch, count - source.sent))).encode()
        _, more_cpu, more_wall = measured(partial(ingest_json, system, events))
        cpu, wall = cpu + more_cpu, wall + more_wall
    return cpu / count * 1e6, count / wall


def ingest_json(system: System, events: bytes) -> None:
    """Give a system events, a JSON object a line."""
    system.ingest(read_json(pyarrow.BufferReader(events)))


def show_systems(orders: Table, ours: tuple[float, float], keys: int, count: int, batch: int, folder: Path) -> None:
    """The table of the three systems, and a check that they hold the same rows."""
    newest = read_rows(orders, columns=COLUMNS).sort_by("k").combine_chunks()
    lines = [["segments: the job", *ours]]
    for system in (Delta(folder), Duck(folder)):
        lines.append([system.name, *feed(system, keys, count, batch)])
        rows = system.read(COLUMNS).cast(newest.schema).sort_by("k").combine_chunks()
        assert rows.equals(newest), f"{system.name} has other rows"
    shown = [[str(name), f"{cpu:.1f}", f"{speed:,.0f}"] for name, cpu, speed in lines]
    print(table([f"{count:,} events", "us CPU an event", "events a second"], shown))
    print(f"the same {newest.num_rows:,} keys in all three")


def main(rate: int = 10_000, seconds: int = 600, keys: int = 1_000_000, every_s: int = 5) -> None:
    """Steady, then flat out, then the others."""
    end_properly()
    print(machine())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-benchmark-")))
        kafka = stack.enter_context(KafkaServer(folder))
        kafka.make_topic("orders", PARTITIONS)
        server = stack.enter_context(EmbeddedZooKeeper(folder / "zookeeper"))
        store = stack.enter_context(SegmentStore.connect(server.hosts, "c", (folder / "objects").as_uri()))
        store.apply_config(TableConfig.from_json(CONFIG))
        orders, source = store.table("orders"), Source(kafka, keys)
        job = Job(kafka, store, folder, every_s, 4 * rate * every_s)
        others = {"broker": psutil.Process(kafka.pid), "ZooKeeper": psutil.Process(server.pid)}
        cpu = steady(source, orders, job, others, rate, seconds)
        speed = flat_out(source, orders, job, rate * 120)
        print(f"flat out: {speed:,.0f} events a second, over {rate * 120:,} events")
        show_systems(orders, (cpu, speed), keys, source.sent, rate * every_s, folder)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
