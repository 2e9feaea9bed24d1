"""The heartbeat operator and a real Kafka broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_segments.core.replication.heartbeat import Heartbeat, decode
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.operators.heartbeat import EmitHeartbeatOperator
from tests.airflow.helpers import context
from tests.replication.support import region_config
from tests.support.kafka import KafkaServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_each_partition_of_a_topic_gets_every_heartbeat(
    store: SegmentStore, table_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import Consumer

    store.apply_config(region_config(table_name))
    (tmp_path / "kafka").mkdir()
    with KafkaServer(tmp_path / "kafka") as kafka:
        kafka.make_topic("eu", 3)
        settings = {"bootstrap.servers": kafka.servers}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": settings}))
        task = EmitHeartbeatOperator(task_id="beat", table=table_name, region="eu", topic="eu")
        times = [task.execute(context()) for _ in range(2)]
        reader = Consumer({**settings, "group.id": "test", "auto.offset.reset": "earliest"})
        reader.subscribe(["eu"])
        messages = [message for _ in range(6) for message in reader.consume(1, timeout=60)]
        reader.close()
    beats: dict[int, list[Heartbeat]] = {}
    for message in messages:
        assert message.key() == b"$heartbeat"
        fields = json.loads(message.value())
        beats.setdefault(message.partition(), []).append(decode(fields["$heartbeat"].encode(), "a message"))
    assert {part: [beat.time_ms for beat in found] for part, found in beats.items()} == dict.fromkeys(range(3), times)
    assert [beat.previous_ms for beat in beats[0]] == [0, times[0]]
    assert {beat.partitions for found in beats.values() for beat in found} == {3}
