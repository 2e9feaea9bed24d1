"""The first phase: hidden segments leave the registry, and a message for each of their ledgers is queued.

With the queue in ZooKeeper both happen in one transaction a batch, so there is no moment at which an object is in
neither place. With a queue elsewhere (anything that is a ``DeletionQueue`` and no ``ZooKeeperQueue``) the messages are
sent first and the registry changes after; what a crash in between leaves is a message about a segment that is still
registered, and the second phase knows what to do with it (PIP-186 traps T1 and T5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_segments.clock import Clock
from airflow_provider_segments.core.deletion.messages import BATCH_LEDGERS, DeletionQueue, in_batches, totals
from airflow_provider_segments.core.deletion.queue import ZooKeeperQueue
from airflow_provider_segments.core.model.ledger import (
    DeletionBatch,
    LedgerType,
    OffloadContext,
    PendingDeleteLedgerInfo,
    SweepRequest,
    generation_of,
)
from airflow_provider_segments.core.model.segment import SegmentRecord, encode_record
from airflow_provider_segments.core.registry import shard as shards
from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.zookeeper import Check, Delete, Op, SetData, ZooKeeperSession
from airflow_provider_segments.core.zookeeper.session import MAX_REQUEST, request_size

_REQUEST = 700_000  # bytes of one marking transaction, with room for what the batches add to the shards
_SHARDS = 200  # at most in one batch, which names them all
_REASON = 200  # characters of a reason that messages keep
_WINDOW = 2  # transactions made and sent together: memory is held for as many

_Removal = tuple[Shard, list[SegmentRecord]]


@dataclass(frozen=True, slots=True)
class Marker:
    """Marks segments of one table for deletion. ``sent`` counts the messages that were queued, by ledger type."""

    session: ZooKeeperSession
    registry: Registry
    queue: DeletionQueue
    clock: Clock
    sent: Counter[str] = field(default_factory=Counter, compare=False)

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

    def sweep_op(self, entry_id: str, *, reason: str, not_before_ms: int = 0) -> list[Op]:
        """The operation that asks for a look under an entry's prefix, for the transaction that makes it legal.

        None with a queue that is not in ZooKeeper: there, reconciliation finds what lies under the prefix.
        """
        if not isinstance(self.queue, ZooKeeperQueue):
            return []
        request = SweepRequest(self.registry.table, entry_id, reason, not_before_ms, self.clock.now_ms())
        return [self.queue.sweep_op(request)]

    def batches(self, group: Sequence[_Removal], reason: str) -> Iterator[DeletionBatch]:
        """The messages for segments that leave ``group``'s shards, all of one generation."""
        first = group[0][0]
        name = first.name
        versions = tuple((f"{shard.name.chunk}/{shard.name.node}", shard.version) for shard, _ in group)
        by_store: dict[OffloadContext | None, list[PendingDeleteLedgerInfo]] = {}
        for number, (_, gone) in enumerate(group):
            for record in gone:
                for store in record.stores():
                    by_store.setdefault(store, []).append(
                        PendingDeleteLedgerInfo(record.name, record.file, record.bytes, number)
                    )
        for store, ledgers in by_store.items():
            whole = DeletionBatch(
                self.registry.table,
                name.entry_id,
                generation_of(name.entry_id, first.born, name.stager, name.attempt),
                tuple(ledgers),
                LedgerType.LEDGER if store is None else LedgerType.OFFLOAD_LEDGER,
                shards=versions,
                reason=reason[:_REASON],
                at_ms=self.clock.now_ms(),
                offload=store,
            )
            yield from in_batches(whole)

    def _transactions(
        self, group: Sequence[_Removal], reason: str, fence: Sequence[Check]
    ) -> list[tuple[list[Op], Mapping[str, int]]]:
        """Operations of a transaction, and how many messages of each ledger type go with them. A group whose messages
        turn out too long (long names, two storages) makes several."""
        batches = list(self.batches(group, reason))
        ops: list[Op] = [*fence, *(_removal(shard, gone) for shard, gone in group)]
        if isinstance(self.queue, ZooKeeperQueue):
            ops += self.queue.send_ops(batches)
            if request_size(ops) > MAX_REQUEST and len(group) > 1:
                half = len(group) // 2
                return [one for part in (group[:half], group[half:]) for one in self._transactions(part, reason, fence)]
        else:
            self.queue.send(batches)  # all of them, before any segment leaves: one that is not sent must stay (T5)
        return [(ops, totals(batches))]

    def _commit(self, transactions: Sequence[tuple[Sequence[Op], Mapping[str, int]]]) -> None:
        outcomes = self.session.commit_many([ops for ops, _ in transactions])
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
        if full or (group and _generation(group[0][0]) != _generation(shard)):
            yield group
            group, size, count = [], 0, 0
        group.append((shard, gone))
        size += cost
        count += len(gone)
    if group:
        yield group


def _generation(shard: Shard) -> tuple[str, int, str, int]:
    return (shard.name.entry_id, shard.born, shard.name.stager, shard.name.attempt)


def _removal(shard: Shard, gone: Sequence[SegmentRecord]) -> Op:
    names = {record.name for record in gone}
    left = [encode_record(record) for record in shard.records if record.name not in names]
    if not left:
        return Delete(shard.name.path, shard.version)
    return SetData(shard.name.path, shards.encode(shard.name.entry_id, shard.born, left), shard.version)
