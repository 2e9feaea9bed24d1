"""Adding events to a topic of Kafka, as the JSON messages that :func:`.spark.upsert.from_kafka` reads.

Needs the extra ``kafka``. Kafka gives out the offsets, so others may write to the topic at any time.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow

from airflow_provider_segments.exceptions import SourceUnavailableError
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION
from airflow_provider_segments.upsert.source_read import HEARTBEAT

if TYPE_CHECKING:
    from confluent_kafka import Producer

_PATIENCE_MS = 60_000
"""For how long brokers are waited for, unless the settings say otherwise."""


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """A topic. ``settings`` are those of librdkafka, such as ``bootstrap.servers`` and what it takes to log in."""

    topic: str
    settings: Mapping[str, Any] = field(repr=False)

    def partitions(self) -> int:
        """How many partitions the topic has. Raises :class:`SourceUnavailableError`."""
        from confluent_kafka import KafkaException

        try:
            found = self._producer().list_topics(self.topic, timeout=_PATIENCE_MS / 1000).topics[self.topic]
        except KafkaException as error:
            raise self._unavailable(str(error)) from error
        if found.error is not None:
            raise self._unavailable(str(found.error))
        return len(found.partitions)

    def add_events(self, name: str, events: pyarrow.Table) -> None:
        """Send each of ``events`` to the partition that it says, and wait until all are acknowledged.

        Raises :class:`SourceUnavailableError`; some of them may have been written then. A message that is sent again by
        the client is written once.
        """
        from confluent_kafka import KafkaException

        producer, errors = self._producer(), list[str]()

        def note(error: Any, _message: Any) -> None:
            if error is not None:
                errors.append(str(error))

        try:
            for part, key, value in _messages(events):
                producer.produce(self.topic, value, key, part, on_delivery=note)
                producer.poll(0)
            left = producer.flush(2 * _PATIENCE_MS / 1000)
        except (KafkaException, BufferError) as error:
            raise self._unavailable(str(error)) from error
        if errors or left:
            told = errors[0] if errors else "no answer"
            raise self._unavailable(f"{len(errors) + left} of {events.num_rows} {name} messages: {told}")

    def _producer(self) -> Producer:
        from confluent_kafka import Producer

        defaults = {"enable.idempotence": True, "message.timeout.ms": _PATIENCE_MS, "log_level": 2}
        return Producer({**defaults, **self.settings})

    def _unavailable(self, detail: str) -> SourceUnavailableError:
        return SourceUnavailableError(f"Kafka topic {self.topic!r} did not take events: {detail}")


def _messages(events: pyarrow.Table) -> Iterator[tuple[int, bytes | None, bytes]]:
    """Partition, key and value of each message. Heartbeats have a key, which a topic that Kafka compacts requires."""
    for row in events.to_pylist():
        fields = {name: value for name, value in row.items() if value is not None and name not in (PARTITION, OFFSET)}
        key = HEARTBEAT.encode() if HEARTBEAT in fields else None
        yield row[PARTITION], key, json.dumps(fields, default=_as_text).encode()


def _as_text(value: Any) -> str:
    """A value as Spark reads it from JSON."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
