"""What every step of the protocol works with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_segments.clock import Clock
from airflow_provider_segments.core import audit, deletion
from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.lineage.entries import Lineage
from airflow_provider_segments.core.lineage.guard import Guard, StoredGuard
from airflow_provider_segments.core.lineage.hiding import is_settled
from airflow_provider_segments.core.lineage.records import LineageRecords, StoredLineage
from airflow_provider_segments.core.locking import LockBox
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.snapshot import SnapshotReader
from airflow_provider_segments.core.table_config import TableConfigs
from airflow_provider_segments.core.versions.places import StageOwner
from airflow_provider_segments.core.zookeeper import Check, CommitConflictError, Op, ZooKeeperSession
from airflow_provider_segments.exceptions import EntryNotFoundError, RefusedError

if TYPE_CHECKING:
    from airflow_provider_segments.core.deletion.mark import Marker

_T = TypeVar("_T")


@dataclass(frozen=True)
class TableContext:
    """One table of a cluster. ``sent`` counts the deletion messages that were queued through it, by ledger type."""

    cluster: Cluster
    table: str
    sent: Counter[str] = field(default_factory=Counter, compare=False)

    @property
    def session(self) -> ZooKeeperSession:
        """The cluster's ZooKeeper session."""
        return self.cluster.session

    @property
    def clock(self) -> Clock:
        """The cluster's clock."""
        return self.cluster.clock

    @cached_property
    def records(self) -> LineageRecords:
        """The table's lineage and guards."""
        return LineageRecords(self.cluster, self.table)

    @cached_property
    def registry(self) -> Registry:
        """The table's registry."""
        return Registry(self.cluster, self.table)

    @cached_property
    def reader(self) -> SnapshotReader:
        """Takes snapshots of the table."""
        return SnapshotReader(self.cluster, self.table)

    @cached_property
    def marker(self) -> Marker:
        """Marks segments of the table for deletion."""
        return deletion.mark.Marker(self.cluster, self.table, self.sent)

    @cached_property
    def locks(self) -> LockBox:
        """The table's lock box."""
        return LockBox(self.cluster, self.table)

    def config(self) -> TableConfig:
        """The table's config. Raises :class:`TableNotFoundError` and :class:`CorruptRecordError`."""
        return TableConfigs(self.cluster).get(self.table)

    def commit(self, ops: Sequence[Op], action: str, entry_id: str, identity: str | None) -> list[Any]:
        """Commit a switch together with its event of the audit trail. Raises what the session's ``commit`` does."""
        made = audit.event(self.cluster, self.table, action, entry_id, identity or "")
        results = self.session.commit([*ops, made.op])
        made.tell()
        return results

    def retried(self, step: str, attempt: Callable[[], _T]) -> _T:
        """Run one step of the protocol through the retry loop."""
        return self.cluster.retried(f"{step} on table {self.table!r}", attempt)

    def guard(self, entry_id: str) -> StoredGuard:
        """The entry's guard. Raises :class:`EntryNotFoundError`: every entry this package made has one."""
        stored = self.records.guard(entry_id)
        if stored is None:
            raise EntryNotFoundError(
                f"table {self.table!r} has no lineage entry {entry_id} that takes segments: "
                "it was never started here, or was cleaned up"
            )
        return stored

    def check_not_dropped(self, lineage: Lineage, refusal: type[RefusedError], step: str) -> None:
        """Raises ``refusal`` (``table-dropped``) when the table is dropped."""
        if lineage.dropped_by is not None:
            raise refusal(
                "table-dropped",
                f"{step} refused: the table was dropped",
                table=self.table,
                entry_id=lineage.dropped_by,
                hint=f"To bring it back: segments revert {self.table} {lineage.dropped_by}",
            )

    def settled_names(self, lineage: Lineage, entry_id: str) -> set[str]:
        """Names that are registered under other entries than this one, which are COMPLETED or have left: readers see
        them, or might again. Reads the whole registry."""
        read = self.registry.read(lambda name: name.entry_id != entry_id and is_settled(lineage, name.entry_id))
        return {record.name for shard in read.shards for record in shard.records}

    def visible_under(self, stored: StoredLineage) -> list[str]:
        """Names of the segments that readers see under exactly this lineage. Raises :class:`CommitConflictError` when
        it is no longer the present one: who decides by it would be refused anyway."""
        seen, snapshot = self.reader.visible()
        if seen.version != stored.version:
            raise CommitConflictError(Check(self.records.path, stored.version), "bad-version")
        return snapshot.names

    def fence(self, guard: Guard) -> list[Check]:
        """What a transaction must hold so that it fails unless every lock the push relies on is still held. Raises
        :class:`LockRevokedError`, naming who revoked it, and :class:`LockLostError`."""
        holders: dict[tuple[str, str], list[str]] = {}
        for lock in guard.all_locks:
            holders.setdefault((lock.group, lock.task), []).append(lock.lock_id)
        return [
            check
            for (group, task), lock_ids in holders.items()
            for check in self.locks.fence(lock_ids, group=group, task=task)
        ]

    def release(self, entry_id: str, guard: Guard) -> None:
        """Give back the locks that the push's stages took, those of superseded attempts too. When the process ends
        before it comes to this, they can be taken after their lease, and clean-up drops them a day later."""
        for stager in guard.stages if guard.placed or guard.own_locks else ():
            owner = StageOwner.of(entry_id, guard, stager, 0)
            self.locks.release(owner.group, owner.task)

    def close_guard(self, stored: StoredGuard, settled_by: str) -> list[Op]:
        """The operations that close the guard of an entry in the transaction that reverts it, and ask for the first
        sweep of its prefix: what a build that was killed, or that goes on, has written and nobody registered."""
        closed = self.records.write_guard(stored.entry_id, stored, stored.reverted(settled_by))
        return [closed, *self.sweep(stored.entry_id, stored, reason="reverted")]

    def sweep(self, entry_id: str, guard: StoredGuard | None, *, reason: str, not_before_ms: int = 0) -> list[Op]:
        """The operation that asks for a sweep of an entry's prefix. None for an entry into which no stage was ever
        opened: objects are only written with a ticket of one."""
        if guard is not None and not guard.guard.stages:
            return []
        return [self.marker.sweep_op(entry_id, reason=reason, not_before_ms=not_before_ms)]
