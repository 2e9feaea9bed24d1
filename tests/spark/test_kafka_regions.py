"""Two regions through a real Kafka broker: events and heartbeats, checkpoints, a comparison and a repair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
import pytest
from pyspark.sql import SparkSession

from airflow_provider_segments.cli.main import main as segments
from airflow_provider_segments.core.replication.emission import HeartbeatEmitter
from airflow_provider_segments.core.replication.stream import differing_digests
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import SourceUnavailableError
from airflow_provider_segments.spark.leapfrog import compare_regions, findings_table
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.event_source import write_heartbeat
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.kafka_source import KafkaSource
from airflow_provider_segments.upsert.reading import read_rows
from tests.replication.support import arrow, region_config
from tests.replication.test_ingest import record_of
from tests.spark.test_kafka import Job, shown
from tests.support.kafka import KafkaServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SCHEMA = "k STRING, ts BIGINT, v STRING, deleted BOOLEAN, `$heartbeat` STRING"
PARTITIONS = {"eu": 2, "us": 1}


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    folder = tmp_path / "kafka"
    folder.mkdir()
    with KafkaServer(folder) as server:
        for topic, partitions in PARTITIONS.items():
            server.make_topic(topic, partitions)
        yield server


class Regions:
    """Writes to the topics of both regions."""

    def __init__(self, kafka: KafkaServer, store: SegmentStore) -> None:
        self.sources = {topic: KafkaSource(topic, {"bootstrap.servers": kafka.servers}) for topic in PARTITIONS}
        self.store, self.time = store, 0

    def write(self, region: str, **values: str | None) -> None:
        """An event of each key, in the partition that its name ends with; without a value it deletes its key."""
        self.time += 1
        rows = [
            {"k": key, "ts": self.time, "v": value, "deleted": value is None, "$partition": int(key[-1])}
            for key, value in values.items()
        ]
        self.sources[region].add_events("events", pyarrow.Table.from_pylist(rows))

    def beat(self, region: str) -> int:
        """Emit a heartbeat; returns its time."""
        source = self.sources[region]
        emitter = HeartbeatEmitter(self.store.cluster, "t", region, "me")
        return emitter.emit(source.partitions(), lambda beat: write_heartbeat(source, region, beat)).time_ms


def at(table: Table, time_ms: int, region: str) -> dict[str, str]:
    """What readers see at a checkpoint."""
    text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()
    return {row["k"]: row["v"] for row in read_rows(table, checkpoint=text, region=region).to_pylist()}


def of_region(rows: dict[str, str], region: str) -> dict[str, str]:
    return {key: value for key, value in rows.items() if value.startswith(region)}


def test_regions_read_the_same_at_a_checkpoint_and_one_repairs_the_other(
    spark: SparkSession,
    kafka: KafkaServer,
    zk_hosts: str,
    cluster: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Heartbeats and events go through Kafka and the Spark job, in batches of other sizes in each region."""
    uris = [(tmp_path / name).as_uri() for name in ("a", "b")]
    with (
        SegmentStore.connect(zk_hosts, f"{cluster}_a", uris[0]) as a,
        SegmentStore.connect(zk_hosts, f"{cluster}_b", uris[1]) as b,
    ):
        for store in (a, b):
            store.apply_config(region_config())
        tables = a.table("t"), b.table("t")
        regions = Regions(kafka, a)
        regions.write("eu", a0="eu 1", b1="eu 1", c1="eu 1")
        regions.write("us", x0="us 1")
        times = [regions.beat("eu")]
        regions.beat("us")
        regions.write("eu", a0="eu 2", c1=None, d0="eu 1")
        regions.write("us", x0="us 2")
        times.append(regions.beat("eu"))
        regions.beat("us")
        regions.write("eu", a0="eu 3")
        times.append(regions.beat("eu"))
        altered = {"k": "b1", "ts": 1, "v": "ALTERED", "deleted": False, "$region": "eu", "$partition": 1, "$offset": 0}
        ingest_to_barriers(UpsertIngestor(tables[1], cache=tmp_path / "by hand"), arrow([altered]))
        jobs = [
            Job(kafka, store, store.table("t"), tmp_path / name, topics="eu,us", schema=SCHEMA, most=most)
            for store, name, most in ((a, "job_a", 2000), (b, "job_b", 3))
        ]
        for job in jobs:
            job.log.parent.mkdir()
            job.run()
        assert shown(tables[0]) == {"a0": "eu 3", "b1": "eu 1", "d0": "eu 1", "x0": "us 2"}
        assert shown(tables[1]) == {"a0": "eu 3", "b1": "ALTERED", "d0": "eu 1", "x0": "us 2"}
        assert record_of(tables[1]).clock > record_of(tables[0]).clock, "their batches were not the same"
        for time_ms, expected in (
            (times[0], {"a0": "eu 1", "b1": "eu 1", "c1": "eu 1"}),
            (times[1], {"a0": "eu 2", "b1": "eu 1", "d0": "eu 1"}),
        ):
            assert of_region(at(tables[0], time_ms, "eu"), "eu") == expected
            other = of_region(at(tables[1], time_ms, "eu"), "eu")
            assert other == {key: value for key, value in expected.items() if key != "b1"}

        findings = findings_table(a, "t_findings")
        found = compare_regions(spark, *tables, findings)
        assert found.counts == {"digest": 1, "mismatch": 1} and not (found.lag_a or found.lag_b)
        settings = tmp_path / "kafka.json"
        settings.write_text(json.dumps({"bootstrap.servers": kafka.servers}))
        where = ["--zookeeper", zk_hosts, "--cluster", f"{cluster}_a", "--storage", uris[0]]
        command = ["repair", "t", "--source", "eu=kafka:eu", "--kafka-settings", str(settings), "--apply", *where]
        assert segments(command) == 0
        assert "1 row of table t were written again" in capsys.readouterr().out
        for job in jobs:
            job.run()
        assert shown(tables[0]) == shown(tables[1]) == {"a0": "eu 3", "b1": "eu 1", "d0": "eu 1", "x0": "us 2"}
        healed = compare_regions(spark, *tables, findings)
        assert healed.counts == {"healed": 1}
        streams = [record_of(table).stream for table in tables]
        assert streams[0] and streams[1]
        assert set(differing_digests(streams[0], streams[1])) == {"eu/1"}, "what was read stays as it was"


def test_a_broker_that_does_not_answer_is_named(tmp_path: Path) -> None:
    nobody = KafkaSource("eu", {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 2000})
    events = pyarrow.Table.from_pylist([{"k": "a", "$partition": 0}])
    with pytest.raises(SourceUnavailableError, match="'eu' did not take events: 1 of 1 events messages"):
        nobody.add_events("events", events)
