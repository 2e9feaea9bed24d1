"""Reading a table's lineage and guards, and the operations that write them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.lineage import codec, guard
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import Guard, StoredGuard
from airflow_provider_segments.core.zookeeper import Create, Op, SetData
from airflow_provider_segments.exceptions import CorruptRecordError, TableNotFoundError


@dataclass(frozen=True, slots=True)
class StoredLineage:
    """A lineage as it was read. ``zxid`` is its last write, the clock of snapshots."""

    lineage: Lineage
    version: int
    zxid: int


class LineageRecords:
    """The lineage znode and the guards of one table."""

    def __init__(self, cluster: Cluster, table: str) -> None:
        self._session = cluster.session
        self._paths = cluster.paths
        self.table = table
        self.path = cluster.paths.lineage(table)

    def read(self) -> StoredLineage:
        """The lineage now. Raises :class:`TableNotFoundError` when the table was never made, and
        :class:`CorruptRecordError`, also when the lineage is gone: a table is made with one, and without it replaced
        and unfinished segments would be visible."""
        node = self._session.get(self.path)
        if node is not None:
            return StoredLineage(codec.decode(node.data, self.table, self.path), node.version, node.mzxid)
        if self._session.get(self._paths.config(self.table)) is None:
            raise TableNotFoundError(f"table {self.table!r} is not in this cluster; apply its config first")
        raise lost_lineage(self.table, self.path)

    def write(self, stored: StoredLineage, changed: Lineage) -> SetData:
        """The compare-and-set from ``stored`` to ``changed``. Raises :class:`RecordTooLargeError`."""
        return SetData(self.path, codec.encode(changed), stored.version)

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

    def running_of(self, lineage: Lineage, identity: str, *, mapped: bool = False) -> list[LineageEntry]:
        """The entries in progress that ``identity`` made: at most one, except for expiries. Their guards tell, so a
        retried task finds its own entry without having stored anything. ``mapped`` counts the mapped instances of the
        task in (``identity/0`` ...)."""
        running = [entry.entry_id for entry in lineage.in_state(EntryState.IN_PROGRESS)]
        guards = self.guards(running) if running else {}
        return [
            lineage.entries[entry_id]
            for entry_id, stored in guards.items()
            if stored.guard.identity == identity or (mapped and _is_instance(stored.guard.identity, identity))
        ]

    def guard_path(self, entry_id: str) -> str:
        """Return the path of an entry's guard."""
        return self._paths.guard(self.table, entry_id)

    def make_guard(self, entry_id: str, made: Guard) -> Op:
        """The operation that makes an entry's guard."""
        return Create(self.guard_path(entry_id), guard.encode(made))

    def write_guard(self, entry_id: str, stored: StoredGuard, changed: Guard) -> Op:
        """The compare-and-set of an entry's guard."""
        return SetData(self.guard_path(entry_id), guard.encode(changed), stored.version)


def lost_lineage(table: str, path: str) -> CorruptRecordError:
    """The error for a table whose lineage znode is gone."""
    return CorruptRecordError(
        f"table {table!r}: its lineage {path} is gone, and without it nobody can tell which segments are visible. "
        "Restore the znode from a backup of ZooKeeper (docs/operations.md); nothing was changed"
    )


def _is_instance(identity: str | None, task: str) -> bool:
    """Return True if ``identity`` is that of a mapped instance of ``task``."""
    parent, _, index = (identity or "").rpartition("/")
    return parent == task and index.isdecimal()
