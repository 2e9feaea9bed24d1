"""The first phase: hidden segments leave the registry, and the message that names their objects is queued, in one
transaction a batch. There is no moment at which an object is in neither place, so none can be orphaned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from airflow_provider_segments.clock import Clock
from airflow_provider_segments.model.segment import SegmentRecord, encode_record
from airflow_provider_segments.paths import ClusterPaths
from airflow_provider_segments.registry import shard as shards
from airflow_provider_segments.registry.registry import Registry
from airflow_provider_segments.registry.shard import Shard
from airflow_provider_segments.storage.base import entry_prefix
from airflow_provider_segments.zookeeper import Check, Create, Delete, Op, SetData, ZooKeeperSession
from airflow_provider_segments.zookeeper.session import request_size


class PendingDeletion(msgspec.Struct, frozen=True):
    """A queued message: objects of one entry that nobody may need any more, or everything under the entry's prefix.

    ``marked_at`` is the lineage zxid that made the removal legal, ``at_ms`` the wall clock, ``objects`` are
    ``[key, bytes, crc32]``; an empty list with ``prefix`` means all that lies under the prefix.
    """

    table: str
    entry_id: str
    reason: str
    marked_at: int
    at_ms: int
    prefix: str
    objects: list[tuple[str, int, int]] = []
    format: int = 1


@dataclass(frozen=True, slots=True)
class Marker:
    """Marks segments of one table for deletion."""

    session: ZooKeeperSession
    paths: ClusterPaths
    registry: Registry
    clock: Clock

    def mark(
        self,
        found: Iterable[Shard],
        keep: Callable[[SegmentRecord], bool],
        *,
        reason: str,
        marked_at: int,
        fence: Sequence[Check] = (),
    ) -> int:
        """Remove from ``found`` what ``keep`` refuses and queue its objects; returns how many segments that were.

        The caller has made sure that no reader may see them: ``marked_at`` is the zxid of the lineage that says so, and
        ``fence`` is checked in every transaction.
        Raises :class:`CommitConflictError` when somebody else removed some of them meanwhile: read again, mark again.
        """
        transactions: list[list[Op]] = []
        marked = 0
        for shard in found:
            gone = [record for record in shard.records if not keep(record)]
            if not gone:
                continue
            marked += len(gone)
            transactions.append([self._removal(shard, gone), self._message(shard, gone, reason, marked_at)])
        self._commit(transactions, fence)
        return marked

    def mark_prefix(self, entry_id: str, *, reason: str, marked_at: int) -> list[Op]:
        """The operation that queues the sweep of an entry's whole prefix, to be committed with what makes it legal."""
        prefix = entry_prefix(self.registry.table, entry_id)
        message = PendingDeletion(self.registry.table, entry_id, reason, marked_at, self.clock.now_ms(), prefix)
        return [self._create(message)]

    def _commit(self, transactions: list[list[Op]], fence: Sequence[Check]) -> None:
        for batch in _batches(transactions):
            for outcome in self.session.commit_many([[*fence, *ops] for ops in batch]):
                if isinstance(outcome, Exception):
                    raise outcome

    def _removal(self, shard: Shard, gone: Collection[SegmentRecord]) -> Op:
        names = {record.name for record in gone}
        left = [encode_record(record) for record in shard.records if record.name not in names]
        if not left:
            return Delete(shard.name.path, shard.version)
        return SetData(shard.name.path, shards.encode(shard.name.entry_id, shard.born, left), shard.version)

    def _message(self, shard: Shard, gone: Collection[SegmentRecord], reason: str, marked_at: int) -> Op:
        prefix = entry_prefix(self.registry.table, shard.name.entry_id)
        objects = [(prefix + record.file, record.bytes, record.crc32) for record in gone]
        return self._create(
            PendingDeletion(
                self.registry.table, shard.name.entry_id, reason, marked_at, self.clock.now_ms(), prefix, objects
            )
        )

    def _create(self, message: PendingDeletion) -> Create:
        return Create(f"{self.paths.pending_deletions}/{self.clock.new_id()}", msgspec.json.encode(message))


def _batches(transactions: list[list[Op]]) -> Iterable[list[list[Op]]]:
    """Small transactions joined into larger ones, eight of them at a time."""
    joined: list[list[Op]] = []
    for ops in transactions:
        if joined and request_size(joined[-1]) + request_size(ops) < 900_000 and len(joined[-1]) < 500:
            joined[-1] += ops
        else:
            joined.append(list(ops))
    return [joined[start : start + 8] for start in range(0, len(joined), 8)]
