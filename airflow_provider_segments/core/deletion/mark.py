"""The first phase: hidden segments leave the registry, and a message for each of their ledgers is queued.

Both happen in one transaction a batch. There is no moment at which an object is in neither place, and a message about a
segment that is registered was not sent here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.deletion.messages import BATCH_LEDGERS, in_batches, totals
from airflow_provider_segments.core.deletion.queue import DeletionQueue
from airflow_provider_segments.core.model.ledger import (
    DeletionBatch,
    LedgerType,
    OffloadContext,
    PendingDeleteLedgerInfo,
    SweepRequest,
)
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.zookeeper import Check, Op
from airflow_provider_segments.core.zookeeper.operations import MAX_REQUEST, request_size

_REQUEST = 700_000  # bytes of one marking transaction, with room for what the batches add to the shards
_SHARDS = 200  # at most in one batch, which names them all
_REASON = 200  # characters of a reason that messages keep
_WINDOW = 2  # transactions made and sent together: memory is held for as many

_Removal = tuple[Shard, list[SegmentRecord]]


@dataclass(frozen=True, slots=True)
class Marker:
    """Marks segments of one table for deletion. ``sent`` counts the messages that were queued, by ledger type."""

    cluster: Cluster
    table: str
    sent: Counter[str] = field(default_factory=Counter, compare=False)

    @property
    def queue(self) -> DeletionQueue:
        """The cluster's deletion queue."""
        return DeletionQueue(self.cluster)

    def mark(
        self,
        found: Iterable[Shard],
        keep: Callable[[SegmentRecord], bool],
        *,
        reason: str,
        fence: Sequence[Check] = (),
    ) -> int:
        """Remove from ``found`` what ``keep`` refuses and queue its ledgers; returns how many segments that were.

        The caller has made sure that no new reader may see them. ``fence`` is checked in every transaction. A segment
        that lives in both storages gets two messages. Raises :class:`CommitConflictError` when somebody else removed
        some of them meanwhile (read again, mark again), and :class:`OutcomeUnknownError`.
        """
        marked = 0
        removals = ((shard, gone) for shard in found if (gone := [one for one in shard.records if not keep(one)]))
        for window in _windows(removals):
            self._commit([one for group in window for one in self._transactions(group, reason, fence)])
            marked += sum(len(gone) for group in window for _, gone in group)
        return marked

    def sweep_op(self, entry_id: str, *, reason: str, not_before_ms: int = 0) -> Op:
        """The operation that asks for a look under an entry's prefix, for the transaction that makes it legal."""
        request = SweepRequest(self.table, entry_id, reason, not_before_ms, self.cluster.clock.now_ms())
        return self.queue.sweep_op(request)

    def batches(self, group: Sequence[_Removal], reason: str) -> Iterator[DeletionBatch]:
        """The messages for segments that leave ``group``'s shards, all of one generation."""
        first = group[0][0]
        by_store: dict[OffloadContext | None, list[PendingDeleteLedgerInfo]] = {}
        for _, gone in group:
            for record in gone:
                for store in record.stores():
                    by_store.setdefault(store, []).append(
                        PendingDeleteLedgerInfo(record.name, record.file, record.bytes)
                    )
        for store, ledgers in by_store.items():
            whole = DeletionBatch(
                self.table,
                first.name.entry_id,
                first.generation,
                tuple(ledgers),
                LedgerType.LEDGER if store is None else LedgerType.OFFLOAD_LEDGER,
                reason=reason[:_REASON],
                at_ms=self.cluster.clock.now_ms(),
                offload=store,
            )
            yield from in_batches(whole)

    def _transactions(
        self, group: Sequence[_Removal], reason: str, fence: Sequence[Check]
    ) -> list[tuple[list[Op], Mapping[str, int]]]:
        """Operations of a transaction, and how many messages of each ledger type go with them. A group whose messages
        turn out too long (long names, two storages) makes several."""
        batches = list(self.batches(group, reason))
        ops: list[Op] = [*fence, *(_removal(shard, gone) for shard, gone in group), *self.queue.send_ops(batches)]
        if request_size(ops) > MAX_REQUEST and len(group) > 1:
            half = len(group) // 2
            return [one for part in (group[:half], group[half:]) for one in self._transactions(part, reason, fence)]
        return [(ops, totals(batches))]

    def _commit(self, transactions: Sequence[tuple[Sequence[Op], Mapping[str, int]]]) -> None:
        outcomes = self.cluster.session.commit_many([ops for ops, _ in transactions])
        for outcome, (_, messages) in zip(outcomes, transactions, strict=True):
            if not isinstance(outcome, Exception):
                self.sent.update(messages)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome


def _windows(removals: Iterable[_Removal]) -> Iterator[list[list[_Removal]]]:
    """Groups of one generation that each make a transaction, some at a time."""
    window: list[list[_Removal]] = []
    for group in _groups(removals):
        window.append(group)
        if len(window) == _WINDOW:
            yield window
            window = []
    if window:
        yield window


def _groups(removals: Iterable[_Removal]) -> Iterator[list[_Removal]]:
    group: list[_Removal] = []
    size = count = 0
    for shard, gone in removals:
        cost = request_size([]) + len(bytes(shard.payload)) + 100 * len(gone)
        full = group and (size + cost > _REQUEST or count + len(gone) > 4 * BATCH_LEDGERS or len(group) >= _SHARDS)
        if full or (group and group[0][0].generation != shard.generation):
            yield group
            group, size, count = [], 0, 0
        group.append((shard, gone))
        size += cost
        count += len(gone)
    if group:
        yield group


def _removal(shard: Shard, gone: Sequence[SegmentRecord]) -> Op:
    names = {record.name for record in gone}
    return shard.with_records(record for record in shard.records if record.name not in names)
