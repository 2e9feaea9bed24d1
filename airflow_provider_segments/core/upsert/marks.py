"""Low-water marks: at which version readers that keep copies of a table can answer together.

A reader that reads the table itself needs none of this: its snapshot carries the table's clock. One that keeps a copy
(an extract in DuckDB, a cache, another engine) holds some version, and reports it. A query that several of them answer
is put at the low-water mark: the smallest version that all of them have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.lineage.records import LineageRecords
from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.records import Record, RecordDecoder
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.core.zookeeper import Check, Create, Delete, Node, Op, SetData
from airflow_provider_segments.exceptions import UpsertRefusedError

SILENT_MS = 600_000
"""A reader with a copy that has not reported for ten minutes is shown as silent."""


class HeldVersion(Record, frozen=True, tag_field=records.FORMAT, tag=1):
    """The version that a reader holds. ``is_caught_up`` is false while it is being filled: until then it answers no
    query, and holds nobody back. ``at_ms`` is the wall clock of its last report."""

    reader: str
    version: int
    is_caught_up: bool
    at_ms: int

    def followed_by(self, report: HeldVersion) -> HeldVersion:
        """What is known of the reader after ``report``. Its version never goes back, whatever order reports come in."""
        return msgspec.structs.replace(
            report,
            version=max(self.version, report.version),
            is_caught_up=self.is_caught_up or report.is_caught_up,
            at_ms=max(self.at_ms, report.at_ms),
        )

    def is_silent(self, now_ms: int, patience_ms: int) -> bool:
        """Return True if the reader has not reported for longer than ``patience_ms``."""
        return now_ms - self.at_ms > patience_ms


def low_water_mark(clock: int, held: Iterable[HeldVersion]) -> int:
    """The version at which the readers ``held`` can answer a query together: the smallest that all of them have.

    One that is silent counts with its last report: it may still answer. One that has not caught up does not count.
    """
    return min([clock, *(one.version for one in held if one.is_caught_up)])


class HeldVersions:
    """What the readers of one table have reported, one znode each."""

    def __init__(self, cluster: Cluster, table: str) -> None:
        self._cluster = cluster
        self.table = table
        self.path = cluster.paths.held_versions(table)

    def report(self, reader: str, version: int, *, is_caught_up: bool = True) -> HeldVersion:
        """Say that ``reader`` holds ``version`` now; returns what is stored.

        A reader that is new, or was being filled, has caught up once it holds what all those that have caught up hold
        together: so the low-water mark of all readers never goes back. Raises :class:`UpsertRefusedError`
        (``above-clock``) for a version that is not published, and :class:`InvalidNameError`.
        """
        clock = require_record(LineageRecords(self._cluster, self.table).read().lineage).clock
        if version > clock:
            detail = f"{reader!r} reports version {version}, and the newest is {clock}"
            raise UpsertRefusedError("above-clock", detail, table=self.table)
        path = self._cluster.paths.held_version(self.table, reader)
        new = HeldVersion(reader=reader, version=version, is_caught_up=is_caught_up, at_ms=self._cluster.clock.now_ms())
        self._cluster.session.ensure([self.path])

        def attempt() -> HeldVersion:
            parent = self._cluster.session.get(self.path)
            assert parent is not None
            nodes = self._nodes()
            node = nodes.pop(path, None)
            known = None if node is None else _DECODER.decode(node.data, path)
            after = new if known is None else known.followed_by(new)
            ops: list[Op] = []
            if after.is_caught_up and (known is None or not known.is_caught_up):
                others = [_DECODER.decode(other.data, where) for where, other in nodes.items()]
                mark = low_water_mark(clock, others) if any(one.is_caught_up for one in others) else 0
                after = msgspec.structs.replace(after, is_caught_up=after.version >= mark)
                # Others go on meanwhile, and may join: both would raise the mark that this reader has to hold.
                ops = [Check(where, other.version) for where, other in nodes.items()]
                ops.append(SetData(self.path, b"", parent.version))
            payload = records.encode(after)
            ops.append(Create(path, payload) if node is None else SetData(path, payload, node.version))
            self._cluster.session.commit(ops)
            return after

        return self._cluster.retried(f"report of a held version of table {self.table!r}", attempt)

    def forget(self, reader: str) -> bool:
        """Take a reader out that will not report again: it holds the others back no longer. Returns False when it has
        never reported. Raises :class:`InvalidNameError`."""
        path = self._cluster.paths.held_version(self.table, reader)

        def attempt() -> bool:
            node = self._cluster.session.get(path)
            if node is not None:
                self._cluster.session.commit([Delete(path, node.version)])
            return node is not None

        return self._cluster.retried(f"removal of a held version of table {self.table!r}", attempt)

    def _nodes(self) -> dict[str, Node]:
        names = self._cluster.session.children(self.path)
        paths = [self._cluster.paths.held_version(self.table, name) for name in names]
        found = zip(paths, self._cluster.session.get_many(paths), strict=True)
        return {path: node for path, node in found if node is not None}

    def read(self, readers: Collection[str] | None = None) -> list[HeldVersion]:
        """What all readers, or those named, have reported. Raises :class:`UpsertRefusedError` (``no-report``) when one
        that was named never did: without its version there is no mark."""
        session = self._cluster.session
        names = session.children(self.path) if readers is None else list(readers)
        paths = [self._cluster.paths.held_version(self.table, name) for name in names]
        found: list[HeldVersion] = []
        for name, path, node in zip(names, paths, session.get_many(paths), strict=True):
            if node is None:
                raise UpsertRefusedError("no-report", f"reader {name!r} has never reported", table=self.table)
            found.append(_DECODER.decode(node.data, path))
        return found


_DECODER = RecordDecoder(HeldVersion, "report of a held version")


def decode(payload: bytes, where: str) -> HeldVersion:
    """The report in ``payload``. Raises :class:`CorruptRecordError`."""
    return _DECODER.decode(payload, where)
