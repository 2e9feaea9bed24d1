"""What every step of the protocol works with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from airflow_provider_segments.clock import Clock
from airflow_provider_segments.core.lineage.guard import Guard, StoredGuard
from airflow_provider_segments.core.lineage.records import LineageRecords, StoredLineage
from airflow_provider_segments.core.locking import LockBox
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import ALL_TIME, Interval
from airflow_provider_segments.core.model.segment import Segment, SegmentRecord
from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.timeline import SegmentState
from airflow_provider_segments.core.zookeeper import Check, Op, ZooKeeperSession
from airflow_provider_segments.core.zookeeper.retry import Retry
from airflow_provider_segments.exceptions import EntryNotFoundError

_T = TypeVar("_T")


class VisibleReader(Protocol):
    """Reads the lineage and, under exactly that lineage, the names readers see of an interval. Given by
    ``snapshot.py``, the one place that decides what is visible."""

    def __call__(self, interval: Interval = ALL_TIME, /) -> tuple[StoredLineage, Collection[str]]:
        """The lineage, and the names."""


Standings = Callable[[Interval], Sequence[tuple[Segment, SegmentState]]]
"""Reads the registered segments of an interval, and where each stands in the timeline."""

VisibleBefore = Callable[[int], Iterable[Segment]]
"""Reads the segments that readers see of chunks and segments that begin before a time in UTC milliseconds."""


class Marks(Protocol):
    """The first phase of deletion, as the lineage uses it: ``deletion.mark.Marker``."""

    def mark(
        self,
        found: Iterable[Shard],
        keep: Callable[[SegmentRecord], bool],
        *,
        reason: str,
        fence: Sequence[Check] = (),
    ) -> int:
        """Remove from ``found`` what ``keep`` refuses, and queue it for deletion; returns how many segments."""

    def sweep_op(self, entry_id: str, *, reason: str, not_before_ms: int = 0) -> list[Op]:
        """The operation that asks for a look under an entry's prefix."""


@dataclass(frozen=True, slots=True)
class Context:
    """One table's records, its store and its clock."""

    table: str
    session: ZooKeeperSession
    records: LineageRecords
    registry: Registry
    storage: ObjectStore
    marker: Marks
    clock: Clock
    retry: Retry
    config: Callable[[], TableConfig]
    visible: VisibleReader
    visible_before: VisibleBefore
    standings: Standings
    locks: LockBox

    def retried(self, step: str, attempt: Callable[[], _T]) -> _T:
        """Run one step of the protocol through the retry loop."""
        return self.retry.run(f"{step} on table {self.table!r}", self.session, self.clock, attempt)

    def guard(self, entry_id: str) -> StoredGuard:
        """The entry's guard. Raises :class:`EntryNotFoundError`: every entry this package made has one."""
        stored = self.records.guard(entry_id)
        if stored is None:
            raise EntryNotFoundError(
                f"table {self.table!r} has no lineage entry {entry_id} that takes segments: "
                "it was never started here, or was cleaned up"
            )
        return stored

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

    def release(self, guard: Guard) -> None:
        """Give back the locks that the push's stages took. One that is lost is given back already; when the process
        ends before it comes to this, they can be taken after their lease."""
        for lock in guard.own_locks:
            self.locks.release(lock.group, lock.task, lock_ids=[lock.lock_id])

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
        return self.marker.sweep_op(entry_id, reason=reason, not_before_ms=not_before_ms)
