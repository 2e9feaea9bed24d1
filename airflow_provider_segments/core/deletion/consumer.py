"""The second phase: take messages, make sure of each, delete its ledger, settle (Pulsar PIP-186).

Nothing is deleted on one word. For every message: it is well-formed; nothing uses the ledger (registry, entries and
offloads in progress, readers older than the mark); the object says of itself that it is what the message says. Missing
is success; a refused or lost request never reads as missing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from airflow_provider_segments.core.access import require_operator
from airflow_provider_segments.core.binding import StoreRole, check_store
from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.deletion.in_use import Judge, TableUse, UsageReader, Verdict
from airflow_provider_segments.core.deletion.messages import BATCH_LEDGERS, Delivery, Settlement
from airflow_provider_segments.core.deletion.queue import DeletionQueue
from airflow_provider_segments.core.deletion.report import DeletionReport
from airflow_provider_segments.core.deletion.sweep import MOVABLE, Sweeper
from airflow_provider_segments.core.model import ledger as ledgers
from airflow_provider_segments.core.model.ledger import DeletionBatch, LedgerType, Malformed, PendingDeleteLedgerInfo
from airflow_provider_segments.core.storage.base import ObjectStore, OwnedOutcome, encode_owner
from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    InvalidConfigError,
    NewerRecordError,
    SegmentsError,
    StorageError,
)

_LOG = logging.getLogger(__name__)
_SECURITY = logging.getLogger("airflow_provider_segments.security")
_SHOWN = 2000
_LARGEST = 900_000  # bytes of a batch; what this package enqueues is smaller, also with an error in each message
_ERROR = 200  # characters of an error that are kept in its message

Progress = Callable[[DeletionReport], None]


@dataclass(slots=True)
class _Work:
    """A delivered batch on its way: what is decided of it so far."""

    delivery: Delivery
    batch: DeletionBatch
    report: DeletionReport = field(default_factory=DeletionReport)
    unused: list[PendingDeleteLedgerInfo] = field(default_factory=list)
    again: list[PendingDeleteLedgerInfo] = field(default_factory=list)
    dead: list[PendingDeleteLedgerInfo] = field(default_factory=list)
    unreadable: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of ``delete_owned``: what each object must say of itself, by key, and which message wants which key."""

    store: ObjectStore
    owners: dict[str, str] = field(default_factory=dict)
    parts: list[tuple[_Work, Mapping[str, PendingDeleteLedgerInfo]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LedgerDeleter:
    """A consumer of the cluster's queue. Without tiered storage the messages about offloaded copies fail, and are tried
    again."""

    cluster: Cluster
    queue: DeletionQueue

    def drain(
        self, *, max_seconds: float | None = None, max_ledgers: int | None = None, progress: Progress | None = None
    ) -> DeletionReport:
        """Work until nothing is due, or a limit is reached (whole batches, so a little over it is possible).

        ``progress`` is called after each round with the totals so far. Any number of consumers may work at once. Raises
        :class:`MetadataUnavailableError`; claims come back by themselves then. Raises :class:`WrongStoreError` before
        anything is claimed.
        """
        if max_seconds is not None and not 0 <= max_seconds < math.inf:
            raise InvalidConfigError(f"max_seconds must be a number of seconds of 0 or more, not {max_seconds}")
        if max_ledgers is not None and max_ledgers < 0:
            raise InvalidConfigError(f"max_ledgers must be 0 or more, not {max_ledgers}")
        for role in StoreRole:
            check_store(self.cluster, role)
        require_operator(self.cluster, "drain")
        total = DeletionReport()
        until = None if max_seconds is None else self.cluster.clock.monotonic() + max_seconds
        sweeper = Sweeper(self.cluster, self.queue)
        waiting: set[str] = set()  # batches that wait for somebody: with a short pause they would come back for ever
        while not (why := self._limit(total, until, max_ledgers)):
            deliveries = self.queue.receive(self.cluster.deletion.batches_at_once, waiting)
            # Sweeps come last: sooner, one would find what is queued once more.
            if not deliveries and not sweeper.run(total):
                break
            waiting |= self._guarded_round(deliveries, total)
            if progress is not None:
                progress(total)
        backlog = self.queue.backlog()
        total.next_due_ms, total.in_flight, total.stopped = backlog.next_due_ms, backlog.in_flight, why
        return total

    def _limit(self, total: DeletionReport, until: float | None, max_ledgers: int | None) -> str:
        if until is not None and self.cluster.clock.monotonic() >= until:
            return "time limit"
        return "count limit" if max_ledgers is not None and total.deliveries >= max_ledgers else ""

    def _guarded_round(self, deliveries: Sequence[Delivery], total: DeletionReport) -> set[str]:
        """One round. What an error (or a time-out of the task) leaves claimed is given back, for the next drain."""
        try:
            return self._round(deliveries, total)
        except BaseException:
            with suppress(SegmentsError):
                self.queue.release(deliveries)
            raise

    def _round(self, deliveries: Sequence[Delivery], total: DeletionReport) -> set[str]:
        """Settle ``deliveries``; returns those of which something waits for somebody, or that were left alone."""
        works: list[_Work] = []
        left: list[Delivery] = []
        for delivery in deliveries:
            try:
                works += self._decoded(delivery, total)
            except CorruptRecordError as error:
                _LOG.error("Deletion batch %s left alone: %s", delivery.batch_id, error)
                total.note({str(error)[:300]: 1})
                left.append(delivery)
        total.left_alone += len(left)
        self.queue.release(left)
        for table in {work.batch.table for work in works}:
            self._judge(table, [work for work in works if work.batch.table == table])
        for call in self._calls(works):
            self._delete(call)
        settled = self.queue.settle([(work.delivery, self._settlement(work)) for work in works])
        for work, landed in zip(works, settled, strict=True):
            _account(work, total, landed=landed)
        waiting = {work.delivery.batch_id for work in works if work.report.total("waiting")}
        return waiting | {delivery.batch_id for delivery in left}

    def _decoded(self, delivery: Delivery, total: DeletionReport) -> list[_Work]:
        """The delivery as work. What is not well-formed becomes a dead letter at once, as it is: no retry makes it
        better, and a person decides. Raises :class:`CorruptRecordError` for what is to be left where it is."""
        try:
            batch, malformed = _decode(delivery)
        except CorruptRecordError as error:
            if isinstance(error, NewerRecordError) or len(delivery.payload) > MOVABLE:
                raise
            _LOG.error(
                "Malformed deletion batch moved to the dead letters: %s; it is %r", error, delivery.payload[:_SHOWN]
            )
            landed = self.queue.settle([(delivery, Settlement(unreadable=delivery.payload))])[0]
            total.received[LedgerType.LEDGER] += 1
            total.open += not landed
            total.add("malformed", LedgerType.LEDGER, int(landed))
            return []
        for one in malformed:
            _LOG.error(
                "Malformed deletion message of batch %s moved to the dead letters: %s: %r",
                delivery.batch_id, one.problem, one.payload[:_SHOWN],
            )  # fmt: skip
        work = _Work(delivery, batch)
        work.unreadable = ledgers.only_malformed(delivery.payload, malformed) if malformed else None
        work.report.received[batch.ledger_type] += len(batch.ledgers) + len(malformed)
        work.report.add("malformed", batch.ledger_type, len(malformed))
        return [work]

    def _judge(self, table: str, works: Sequence[_Work]) -> None:
        """Read once what the table needs, then decide about every message."""
        entries = {work.batch.entry_id for work in works}
        try:
            use = UsageReader(self.cluster).read(table, entries, {work.batch.component for work in works})
        except NewerRecordError as error:
            for work in works:
                work.again.extend(work.batch.ledgers)
                work.report.add("waiting", work.batch.ledger_type, len(work.batch.ledgers))
                work.report.note({str(error)[:300]: 1})
            return
        except CorruptRecordError as error:
            for work in works:
                self._failed(work, dict.fromkeys(work.batch.ledgers, str(error)))
            return
        for work in works:
            self._judge_batch(use, work)

    def _judge_batch(self, use: TableUse, work: _Work) -> None:
        judge = Judge(use, work.batch, work.delivery.marked, self.cluster.clock.now_ms(), self.cluster.deletion)
        for ledger in work.batch.ledgers:
            verdict, why = judge.verdict(ledger)
            match verdict:
                case Verdict.UNUSED:
                    work.unused.append(ledger)
                case Verdict.STALE:
                    work.report.add("stale", work.batch.ledger_type)
                    _LOG.info("Stale deletion of segment %s acknowledged: %s", ledger.segment, why)
                case _:
                    work.again.append(ledger)
                    work.report.add("waiting", work.batch.ledger_type)
                    work.report.note({why: 1})
        for lease in judge.overruled() if work.unused else ():
            _LOG.warning(
                "Table %s: the lease of %s is older than the maximum lease age; its files are deleted under it",
                work.batch.table,
                lease.owner,
            )

    def _calls(self, works: Sequence[_Work]) -> list[_Call]:
        """As few calls as the works allow: the store then looks and deletes side by side, and syncs a folder once for
        many batches. A key that comes twice is in two calls, and the second finds it gone."""
        calls: list[_Call] = []
        for work in works:
            for unused in _without_repeats(work.unused):
                try:
                    store = self._store(work.batch)
                except StorageError as error:
                    self._failed(work, dict.fromkeys(unused, str(error)))
                    continue
                by_key, owners = _owners(work.batch, unused)
                free = (one for one in calls if one.store is store and one.owners.keys().isdisjoint(owners))
                call = next(free, None)
                if call is None:
                    calls.append(call := _Call(store))
                call.owners.update(owners)
                call.parts.append((work, by_key))
        return calls

    def _delete(self, call: _Call) -> None:
        try:
            outcome = call.store.delete_owned(call.owners)
        except StorageError as error:
            outcome = OwnedOutcome((), (), {}, dict.fromkeys(call.owners, str(error)))
        deleted, missing = frozenset(outcome.deleted), frozenset(outcome.missing)
        for work, by_key in call.parts:
            kind, gone = work.batch.ledger_type, by_key.keys() & deleted
            work.report.add("deleted", kind, len(gone))
            work.report.bytes += sum(by_key[key].bytes for key in gone)
            work.report.add("already_gone", kind, len(by_key.keys() & missing))
            foreign = by_key.keys() & outcome.foreign.keys()
            work.report.add("mismatch", kind, len(foreign))
            for key in foreign:
                _SECURITY.warning(
                    "Not deleted: %s says it belongs to %s, not to %s (deletion batch %s, reason %r)",
                    call.store.url(key), outcome.foreign[key], call.owners[key], work.delivery.batch_id,
                    work.batch.reason,
                )  # fmt: skip
            self._failed(work, {ledger: outcome.failed[key] for key, ledger in by_key.items() if key in outcome.failed})

    def _store(self, batch: DeletionBatch) -> ObjectStore:
        """Raises :class:`StorageError` when the batch is about a store that this consumer does not have."""
        if batch.offload is None:
            return self.cluster.storage
        tiered, there = self.cluster.tiered, f"{batch.offload.driver}://{batch.offload.bucket}"
        if tiered is None:
            raise StorageError(
                f"offloaded to {there}, and no tiered storage is configured here: set tiered_uri in the connection"
            )
        if tiered.uri != there:
            raise StorageError(f"offloaded to {there}, and the tiered storage configured here is {tiered.uri}")
        return tiered

    def _failed(self, work: _Work, errors: Mapping[PendingDeleteLedgerInfo, str]) -> None:
        """Count an attempt; with too many of them, the message becomes a dead letter."""
        now = self.cluster.clock.now_ms()
        room = (_LARGEST - len(work.delivery.payload)) // max(len(work.batch.ledgers), 1)
        for ledger, why in errors.items():
            tried = msgspec.structs.replace(
                ledger,
                attempts=ledger.attempts + 1,
                error=_shortened(why, min(room, _ERROR)),
                first_ms=ledger.first_ms or now,
            )
            is_dead = tried.attempts > self.cluster.deletion.max_retry_delete_count
            (work.dead if is_dead else work.again).append(tried)
            work.report.add("dead" if is_dead else "failed", work.batch.ledger_type)
            work.report.note({_shortened(why, 300): 1})
            if is_dead:
                _LOG.error("Deletion of %s given up after %d attempts: %s", ledger.segment, tried.attempts, why)

    def _settlement(self, work: _Work) -> Settlement:
        due = self.cluster.clock.now_ms() + self.cluster.deletion.reconsume_later_ms
        return Settlement(
            work.batch.with_ledgers(tuple(work.again)) if work.again else None,
            due,
            work.batch.with_ledgers(tuple(work.dead)) if work.dead else None,
            work.unreadable,
        )


def _decode(delivery: Delivery) -> tuple[DeletionBatch, list[Malformed]]:
    """The batch in ``delivery``. Raises :class:`CorruptRecordError`, whatever is wrong with it: an error that is not
    caught would stop every consumer that meets the batch, again and again."""
    where = delivery.claim.path
    if len(delivery.payload) > _LARGEST:
        raise CorruptRecordError(f"{where}: {len(delivery.payload):,} bytes are more than any batch has")
    batch, malformed = ledgers.decode_batch(delivery.payload, where)
    if len(batch.ledgers) + len(malformed) > BATCH_LEDGERS:
        raise CorruptRecordError(f"{where}: more than {BATCH_LEDGERS} messages")
    return batch, malformed


def _shortened(why: str, limit: int) -> str:
    """An error in at most ``limit`` ASCII characters. Errors begin with a place, which may be long, and end with what
    happened: the middle goes."""
    text = why.encode("ascii", "replace").decode().replace('"', "'").replace("\\", "/")
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    if len(text) <= limit:
        return text
    return f"{text[: limit // 3]}...{text[len(text) - limit + limit // 3 + 3 :]}" if limit > 20 else ""


def _without_repeats(unused: Iterable[PendingDeleteLedgerInfo]) -> Iterator[list[PendingDeleteLedgerInfo]]:
    """``unused`` in groups that name each file once. Two messages of a batch about one object have two endings."""
    left = list(unused)
    while left:
        first = {ledger.file: ledger for ledger in reversed(left)}
        yield list(first.values())
        left = [ledger for ledger in left if first[ledger.file] is not ledger]


def _owners(
    batch: DeletionBatch, unused: Iterable[PendingDeleteLedgerInfo]
) -> tuple[dict[str, PendingDeleteLedgerInfo], dict[str, str]]:
    """The messages by key, and what each object must say of itself. Encoding the shared part once halves the cost of a
    delete on a local disk."""
    mark = "\x00"
    before, after = encode_owner(batch.owner(PendingDeleteLedgerInfo(mark, "f"))).split("\\u0000")
    by_key = {batch.prefix + ledger.file: ledger for ledger in unused}
    return by_key, {key: f"{before}{ledger.segment}{after}" for key, ledger in by_key.items()}


def _account(work: _Work, total: DeletionReport, *, landed: bool) -> None:
    """A settlement that did not land leaves its messages open: somebody else delivers them again."""
    if landed:
        total.merge(work.report)
        return
    received = sum(work.report.received.values())
    _LOG.warning("Batch %s was claimed by somebody else before it was settled", work.delivery.batch_id)
    total.received.update(work.report.received)
    total.open += received
    total.bytes += work.report.bytes
