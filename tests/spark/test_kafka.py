"""Ingestion from a real Kafka broker: exactly once, also when the driver is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.spark.environment import spark_app_path, spark_environment, spark_submit_path
from airflow_provider_segments.upsert.reading import read_rows
from tests.support.kafka import KafkaServer, spark_jars
from tests.upsert.world import upsert_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCHEMA = "k STRING, ts BIGINT, v STRING, deleted BOOLEAN"
KEYS = 200
PARTITIONS = 3


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    folder = tmp_path / "kafka"
    folder.mkdir()
    with KafkaServer(folder) as server:
        server.make_topic("events", PARTITIONS)
        yield server


class Source:
    """Sends events, and knows what readers must see of them."""

    def __init__(self, kafka: KafkaServer) -> None:
        self.kafka, self.random, self.at = kafka, random.Random(5), 0
        self.newest: dict[str, tuple[int, str, bool]] = {}

    def send(self, count: int) -> None:
        """Random keys, some events late, some deletions; and one message that is no event at all."""
        messages = [("x", "no JSON")]
        for _ in range(count):
            self.at += 1
            key = f"k{self.random.randrange(KEYS)}"
            event = {
                "k": key,
                "ts": self.at * 10 - self.random.choice([0, 0, 0, 4_999]),
                "v": str(self.at),
                "deleted": self.random.random() < 0.05,
            }
            messages.append((key, json.dumps(event)))
            if (event["ts"], self.at) > (self.newest.get(key, (-(10**9),))[0], 0):
                self.newest[key] = (event["ts"], event["v"], event["deleted"])
        self.kafka.send("events", messages)

    def expected(self) -> dict[str, str]:
        return {key: value for key, (_, value, deleted) in self.newest.items() if not deleted}


class Job:
    """The application under a real ``spark-submit``."""

    def __init__(
        self,
        kafka: KafkaServer,
        store: SegmentStore,
        table: Table,
        folder: Path,
        *,
        topics: str = "events",
        schema: str = SCHEMA,
        most: int = 2000,
    ) -> None:
        self.topics = topics
        self.options = json.dumps(
            {"kafka.bootstrap.servers": kafka.servers, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(most)}
        )
        self.command = [
            str(spark_submit_path()), "--master", "local[2]", "--conf", "spark.ui.enabled=false",
            "--jars", ",".join(spark_jars()), str(spark_app_path("upsert_segments")),
            "--zk-hosts", store.session.settings.hosts, "--cluster", store.paths.cluster,
            "--storage-uri", store.storage.uri, "--table", table.name, "--format", "kafka", "--schema", schema,
            "--checkpoint", str(folder / "checkpoint"), "--cache", str(folder / "cache"),
            "--reject-folder", str(folder / "rejected"), "--wait-seconds", "300",
        ]  # fmt: skip
        self.log = folder / "job.log"

    def start(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
        variables = {"SEGMENTS_INPUT": self.topics, "SEGMENTS_INPUT_OPTIONS": self.options}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**environment, **spark_environment(), "SPARK_LOCAL_IP": "127.0.0.1", **variables},
            )  # fmt: skip

    def run(self) -> None:
        assert self.start().wait(timeout=600) == 0, self.log.read_text()[-4000:]


def test_every_message_counts_once_whatever_is_killed(kafka: KafkaServer, store: SegmentStore, tmp_path: Path) -> None:
    config = upsert_config("t")
    store.apply_config(type(config).from_json({**config.raw, "segmentBuildConfig": {"onBadTime": "reject"}}))
    table = store.table("t")
    source, job = Source(kafka), Job(kafka, store, table, tmp_path)
    source.send(3_000)
    job.run()
    assert shown(table) == source.expected()
    first = table.snapshot().mark
    assert first

    source.send(20_000)
    kills = 0
    for _ in range(3):  # each killed as soon as it has published something
        before = table.snapshot().mark
        process = job.start()
        until = time.monotonic() + 300
        while table.snapshot().mark == before and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
    assert kills >= 2
    job.run()
    assert shown(table) == source.expected()
    positions = require_record(table.lineage()).positions
    assert sum(positions.values()) == 23_000 + 2, "all messages were read, and those that are no events"
    rejected = [line for path in (tmp_path / "rejected").rglob("*.json") for line in path.read_text().splitlines()]
    assert len(rejected) >= 2 and all("is null" in line for line in rejected)
    print(f"{table.snapshot().mark} versions, {kills} kills, {len(positions)} partitions, {len(rejected)} rejected")


def shown(table: Table) -> dict[str, str]:
    return {row["k"]: row["v"] for row in read_rows(table).to_pylist()}
