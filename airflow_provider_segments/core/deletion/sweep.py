"""Looking for ledgers that nothing refers to, and asking for their deletion. Nothing is deleted here.

A push announces its prefix before it writes, so all that a failed attempt, a zombie or an aborted push has left lies
under a known prefix. What is found there and is not registered becomes an ordinary message, with a mark of its own:
it waits for today's readers, and goes through every check of the second phase.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.deletion.in_use import TableUse, UsageReader
from airflow_provider_segments.core.deletion.queue import DeletionQueue
from airflow_provider_segments.core.deletion.report import DeletionReport
from airflow_provider_segments.core.model import ledger as ledgers
from airflow_provider_segments.core.model.ledger import (
    APPLICATION,
    DeletionBatch,
    LedgerComponent,
    LedgerType,
    OffloadContext,
    PendingDeleteLedgerInfo,
    SweepRequest,
)
from airflow_provider_segments.core.storage.base import ListedObject, ObjectInfo, ObjectStore, entry_prefix
from airflow_provider_segments.exceptions import CorruptRecordError, NewerRecordError, StorageError

MOVABLE = 1_000_000
"""Most bytes of an unreadable message that becomes a dead letter: a larger one and its claim fit no transaction."""

PAGE = 1000
"""Objects looked at together; the memory a sweep needs does not grow with what it finds."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Works on sweep requests. ``left`` are the names of those that were left alone."""

    cluster: Cluster
    queue: DeletionQueue
    left: set[str] = field(default_factory=set)

    def run(self, total: DeletionReport) -> bool:
        """Work on the requests that are due; whether any is done with. The others are asked for again, later."""
        claimed = self.queue.receive_sweeps(self.cluster.deletion.batches_at_once, self.left)
        done: list[bool] = []
        for name, payload in claimed:
            try:
                request = ledgers.decode_sweep(payload, name)
            except CorruptRecordError as error:
                if isinstance(error, NewerRecordError) or len(payload) > MOVABLE:
                    self._leave(name, error, total)
                    continue
                _LOG.error("Unreadable sweep request moved to the dead letters: %s", error)
                done.append(self.queue.settle_sweep(name, [], unreadable=payload))
                continue
            done.append(self._sweep(name, request, total))
        return any(done)

    def _leave(self, name: str, error: CorruptRecordError, total: DeletionReport) -> None:
        """Give the request back: a newer version's consumer takes it, or a person."""
        self.left.add(name)
        _LOG.error("Sweep request left alone: %s", error)
        total.left_alone += 1
        total.note({str(error)[:300]: 1})
        self.queue.release_sweep(name)

    def _sweep(self, name: str, request: SweepRequest, total: DeletionReport) -> bool:
        due = self.cluster.clock.now_ms() + self.cluster.deletion.reconsume_later_ms
        later = msgspec.structs.replace(request, not_before_ms=due)
        try:
            use = UsageReader(self.cluster).read(request.table, {request.entry_id})
            if use.entry_in_progress(request.entry_id):
                self.queue.settle_sweep(name, [], later)
                return False
            for batches, foreign in self._pages(request, use):
                self.queue.send(batches)
                total.found += sum(len(batch.ledgers) for batch in batches)
                total.foreign += foreign
            self.cluster.storage.discard_unfinished(entry_prefix(request.table, request.entry_id))
        except (StorageError, CorruptRecordError) as error:
            _LOG.warning("Sweep of entry %s is tried again later: %s", request.entry_id, error)
            total.note({str(error)[:300]: 1})
            self.queue.settle_sweep(name, [], later)
            return False
        settled = self.queue.settle_sweep(name, [])
        total.swept += settled
        return settled

    def _pages(self, request: SweepRequest, use: TableUse) -> Iterator[tuple[list[DeletionBatch], int]]:
        registered = use.registered.get(request.entry_id, {})
        prefix = entry_prefix(request.table, request.entry_id)
        left = (one for one in self.cluster.storage.list(prefix) if one.key.removeprefix(prefix) not in registered)
        while page := list(islice(left, PAGE)):
            yield messages(self.cluster.storage, page, reason=request.reason, at_ms=self.cluster.clock.now_ms())


def messages(
    storage: ObjectStore, page: Sequence[ListedObject], *, reason: str, at_ms: int
) -> tuple[list[DeletionBatch], int]:
    """Messages about the objects of ``page`` that say they are ours and lie where they say; and how many do not.

    Objects of primary storage only. Raises :class:`StorageError`.
    """
    ours: list[DeletionBatch] = []
    foreign = 0
    for one in page:
        try:
            info = storage.head(one.key)
        except CorruptRecordError:  # it says nothing that can be read: one such object must not stop the others
            foreign += 1
            continue
        if info is None:
            continue
        batch = message_about(info, reason, at_ms)
        foreign += batch is None
        ours += [] if batch is None else [batch]
    return list(join_generations(ours)), foreign


def message_about(info: ObjectInfo, reason: str, at_ms: int, *, tiered: str | None = None) -> DeletionBatch | None:
    """The message about one object, as its own metadata describes it, when that is where such an object would be:
    in primary storage, or in the tiered one with the address ``tiered``."""
    owner = info.owner
    if owner.get("application") != APPLICATION or owner.get("component") != LedgerComponent.MANAGED_LEDGER.value:
        return None
    table, _, rest = info.key.partition("/")
    entry_id, _, file = rest.partition("/")
    offload = None
    if tiered is not None:
        uuid, _, file = file.partition("/")
        offload = OffloadContext.at(tiered, uuid)
    batch = DeletionBatch(
        table,
        entry_id,
        owner.get("generation", ""),
        (PendingDeleteLedgerInfo(owner.get("segment", ""), file, info.bytes),),
        LedgerType.LEDGER if offload is None else LedgerType.OFFLOAD_LEDGER,
        reason=reason,
        at_ms=at_ms,
        offload=offload,
    )
    if owner.get("table") != table:
        return None
    try:
        well_formed, malformed = ledgers.decode_batch(ledgers.encode(batch), info.key)
    except CorruptRecordError:
        return None
    return None if malformed else well_formed


def join_generations(batches: Iterable[DeletionBatch]) -> Iterator[DeletionBatch]:
    """One batch a generation and offload."""
    groups: dict[tuple[str, str, OffloadContext | None], list[DeletionBatch]] = {}
    for batch in batches:
        groups.setdefault((batch.table, batch.generation, batch.offload), []).append(batch)
    for group in groups.values():
        yield group[0].with_ledgers(tuple(ledger for batch in group for ledger in batch.ledgers))
