"""Reading a table's lineage and guards, and the operations that write them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_segments.core.lineage import codec, guard
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import Guard, StoredGuard
from airflow_provider_segments.core.zookeeper import Create, Node, Op, SetData, ZooKeeperSession
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths


@dataclass(frozen=True, slots=True)
class StoredLineage:
    """A lineage as it was read. ``zxid`` is its last write, the clock of snapshots; 0 when it was never written."""

    lineage: Lineage
    version: int | None
    zxid: int


class LineageRecords:
    """The lineage znode and the guards of one table."""

    def __init__(self, session: ZooKeeperSession, paths: ClusterPaths, table: str) -> None:
        self._session = session
        self._paths = paths
        self.table = table
        self.path = paths.lineage(table)

    def read(self) -> StoredLineage:
        """The lineage now. Raises :class:`CorruptRecordError`; no lineage yet reads as an empty one."""
        return self._stored(self._session.get(self.path))

    def write(self, stored: StoredLineage, changed: Lineage) -> Op:
        """The compare-and-set from ``stored`` to ``changed``. Raises :class:`RecordTooLargeError`.

        The first writer creates: an unconditional first write is how Pinot loses an entry (apache/pinot #10103).
        """
        payload = codec.encode(changed)
        return Create(self.path, payload) if stored.version is None else SetData(self.path, payload, stored.version)

    def guard(self, entry_id: str) -> StoredGuard | None:
        """The guard of an entry, or ``None``. Raises :class:`CorruptRecordError`."""
        return self.guards([entry_id]).get(entry_id)

    def guards(self, entry_ids: Iterable[str]) -> dict[str, StoredGuard]:
        """The guards of those entries that have one."""
        ids = list(entry_ids)
        paths = [self.guard_path(entry_id) for entry_id in ids]
        nodes = self._session.get_many(paths)
        return {
            entry_id: guard.decode(node, entry_id, path)
            for entry_id, path, node in zip(ids, paths, nodes, strict=True)
            if node is not None
        }

    def running_of(self, lineage: Lineage, identity: str) -> list[LineageEntry]:
        """The entries in progress that ``identity`` made: at most one, except for expiries. Their guards tell, so a
        retried task finds its own entry without having stored anything."""
        running = [entry.entry_id for entry in lineage.in_state(EntryState.IN_PROGRESS)]
        guards = self.guards(running) if running else {}
        return [lineage.entries[entry_id] for entry_id, one in guards.items() if one.guard.identity == identity]

    def guard_path(self, entry_id: str) -> str:
        """Where an entry's guard is."""
        return self._paths.guard(self.table, entry_id)

    def make_guard(self, entry_id: str, made: Guard) -> Op:
        """The operation that makes an entry's guard."""
        return Create(self.guard_path(entry_id), guard.encode(made))

    def write_guard(self, entry_id: str, stored: StoredGuard, changed: Guard) -> Op:
        """The compare-and-set of an entry's guard."""
        return SetData(self.guard_path(entry_id), guard.encode(changed), stored.version)

    def _stored(self, node: Node | None) -> StoredLineage:
        if node is None:
            return StoredLineage(Lineage(self.table), None, 0)
        return StoredLineage(codec.decode(node.data, self.table), node.version, node.mzxid)
