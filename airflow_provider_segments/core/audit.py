"""The audit trail of a table: who did what to which entry, and when. ``/<cluster>/LOG/<table>/<id>``, a record each.

An event is written in the transaction of the switch that it tells of: there is none without the other. It is a znode of
its own with a random name, so that pushes do not contend for a shared record; their order is ZooKeeper's (creation
zxids). Retention keeps the newest ``KEPT`` of a table. Who pushes may add events, and may not change or remove any.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.model.records import FORMAT, Record, RecordDecoder, encode
from airflow_provider_segments.core.zookeeper import Create, Delete, Op
from airflow_provider_segments.text import cut, escape

KEPT = 1_000
"""Most events of a table that a clean-up leaves."""

_LOG = logging.getLogger("airflow_provider_segments.audit")
_BATCH = 500


class EventRecord(Record, frozen=True, tag_field=FORMAT, tag=1):
    """An event as it is stored: what was done, by whom, on which entry, under which identity (the run and the task).
    ``at_ms`` is the wall clock of whoever did it, in epoch milliseconds."""

    action: str
    actor: str
    at_ms: int
    entry_id: str = ""
    identity: str = ""
    detail: str = ""


_DECODER = RecordDecoder(EventRecord, "event of the audit trail")


def decode(payload: bytes, path: str) -> EventRecord:
    """The event in ``payload``. Raises :class:`CorruptRecordError`."""
    return _DECODER.decode(payload, path)


@dataclass(frozen=True, slots=True)
class Event:
    """An event that is about to be written, and the operation that does it."""

    table: str
    record: EventRecord
    op: Op

    def tell(self) -> None:
        """Say it as a line of the log, once it is written: one JSON object."""
        told = {"table": self.table, **{name: getattr(self.record, name) for name in _TOLD}}
        _LOG.info("segments event %s", json.dumps({name: value for name, value in told.items() if value != ""}))


_TOLD = ("action", "actor", "at_ms", "entry_id", "identity", "detail")


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event as it was read; ``made_ms`` is ZooKeeper's wall clock, ``zxid`` its place among all writes."""

    record: EventRecord
    zxid: int
    made_ms: int


def event(cluster: Cluster, table: str, action: str, entry_id: str = "", identity: str = "", detail: str = "") -> Event:
    """An event to be committed together with what it tells of."""
    parent = cluster.paths.log(table)
    if table not in cluster.logged:
        cluster.session.ensure([parent])
        cluster.logged.add(table)
    record = EventRecord(
        action=action,
        actor=cut(escape(cluster.actor), 500),
        at_ms=cluster.clock.now_ms(),
        entry_id=entry_id,
        identity=identity,
        detail=cut(escape(detail), 500),
    )
    return Event(table, record, Create(f"{parent}/{cluster.clock.new_id()}", encode(record)))


def write(cluster: Cluster, made: Event) -> None:
    """Write an event of something that is no single transaction."""
    cluster.session.commit_many([[made.op]])
    made.tell()


def events(cluster: Cluster, table: str) -> list[LoggedEvent]:
    """The table's events, newest first. Raises :class:`CorruptRecordError`."""
    parent = cluster.paths.log(table)
    names = cluster.session.children(parent)
    nodes = cluster.session.get_many([f"{parent}/{name}" for name in names])
    found = [
        LoggedEvent(decode(node.data, f"{parent}/{name}"), node.czxid, node.made_ms)
        for name, node in zip(names, nodes, strict=True)
        if node is not None
    ]
    return sorted(found, key=lambda one: one.zxid, reverse=True)


def trim(cluster: Cluster, table: str, kept: int = KEPT) -> int:
    """Remove all but the newest ``kept`` events; returns how many. Reads nothing where there are not more."""
    parent = cluster.paths.log(table)
    paths = [f"{parent}/{name}" for name in cluster.session.children(parent)]
    if len(paths) <= kept:
        return 0
    aged = [(node.czxid, path) for path, node in zip(paths, cluster.session.get_many(paths), strict=True) if node]
    old: Sequence[str] = [path for _, path in sorted(aged)[: len(aged) - kept]]
    for start in range(0, len(old), _BATCH):
        cluster.session.commit_many([[Delete(path, 0)] for path in old[start : start + _BATCH]])
    return len(old)
