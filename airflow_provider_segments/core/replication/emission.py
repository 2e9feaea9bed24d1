"""Who emits a region's heartbeats into its source, and which was the last. One znode a table and region.

There may be several emitters, one after the other: each takeover is a new term. Heartbeats are announced here before
they are written to the source, by compare-and-set, so times rise strictly over all terms. An emitter that loses its
place between announcing and writing may still write late; ingestion then leaves its heartbeat out.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.records import Record, RecordDecoder
from airflow_provider_segments.core.replication.heartbeat import Heartbeat
from airflow_provider_segments.core.zookeeper import Create, Op, SetData


class Emission(Record, frozen=True, tag_field=records.FORMAT, tag=1):
    """``announced_ms`` is the time of the newest heartbeat, ``written_ms`` that of the newest one that is known to
    be in all source partitions: 0 for none."""

    emitter: str
    term: int
    announced_ms: int
    written_ms: int = 0

    def next(self, emitter: str, now_ms: int) -> Emission:
        """The state with the next heartbeat announced by ``emitter``."""
        term = self.term if self.emitter == emitter else self.term + 1
        return msgspec.structs.replace(
            self, emitter=emitter, term=term, announced_ms=max(now_ms, self.announced_ms + 1)
        )


class HeartbeatEmitter:
    """Emits the heartbeats of ``region``, one of those that the table's config names, as ``emitter``: an id that stays
    the same as long as one deployment does the work."""

    def __init__(self, cluster: Cluster, table: str, region: str, emitter: str) -> None:
        self._cluster = cluster
        self._table, self._emitter = table, emitter
        self._path = cluster.paths.emission(table, region)

    def emit(self, partitions: int, send: Callable[[Heartbeat], None]) -> Heartbeat:
        """Have ``send`` write one heartbeat to each of the region's ``partitions`` source partitions; returns it.

        ``send`` returns when all of them are durable, or raises; then this heartbeat is never said to be in all source
        partitions. Raises what ``send`` and ``Retry.run`` raise.
        """
        announced = self._announce()
        heartbeat = Heartbeat(announced.term, announced.announced_ms, announced.written_ms, partitions)
        send(heartbeat)
        self._confirm(heartbeat)
        return heartbeat

    def _announce(self) -> Emission:
        self._cluster.session.ensure([self._cluster.paths.emissions(self._table)])

        def attempt() -> Emission:
            node = self._cluster.session.get(self._path)
            before = Emission(self._emitter, 1, 0) if node is None else _DECODER.decode(node.data, self._path)
            after = before.next(self._emitter, self._cluster.clock.now_ms())
            payload = records.encode(after)
            op: Op = Create(self._path, payload) if node is None else SetData(self._path, payload, node.version)
            self._cluster.session.commit([op])
            return after

        return self._cluster.retried(f"heartbeat of table {self._table!r}", attempt)

    def _confirm(self, heartbeat: Heartbeat) -> None:
        """Remember that it is in all source partitions, unless a later one was announced meanwhile."""

        def attempt() -> None:
            node = self._cluster.session.get(self._path)
            assert node is not None
            before = _DECODER.decode(node.data, self._path)
            if (before.term, before.announced_ms) == heartbeat.mark and before.written_ms != heartbeat.time_ms:
                after = msgspec.structs.replace(before, written_ms=heartbeat.time_ms)
                self._cluster.session.commit([SetData(self._path, records.encode(after), node.version)])

        self._cluster.retried(f"heartbeat of table {self._table!r}", attempt)


_DECODER = RecordDecoder(Emission, "state of a region's heartbeats")


def decode(payload: bytes, where: str) -> Emission:
    """The state in ``payload``. Raises :class:`CorruptRecordError`."""
    return _DECODER.decode(payload, where)
