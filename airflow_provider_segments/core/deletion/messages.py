"""What the deletion queue takes and gives: batches of messages, deliveries of them, and what becomes of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.ledger import DeletionBatch
from airflow_provider_segments.core.model.records import Record, RecordDecoder
from airflow_provider_segments.exceptions import CorruptRecordError

BATCH_LEDGERS = 1000
"""Most messages in one batch: as many keys as one S3 delete request takes."""


class Claim(msgspec.Struct, frozen=True):
    """Where a claimed batch stands (``path`` at ``version``), its claim, the marker beside it if it waited for its due
    time, and the seat of the consumer that has claimed it."""

    path: str
    version: int
    claim: str
    marker: str | None
    seat: str


class Delivery(msgspec.Struct, frozen=True):
    """A batch that was handed out. ``marked`` is the zxid at which it was enqueued. ``payload`` is what stands in the
    queue. ``claim`` says where it stands, and by which claim it is this consumer's."""

    batch_id: str
    payload: bytes
    marked: int
    claim: Claim


@dataclass(frozen=True, slots=True)
class Settlement:
    """What becomes of a delivered batch: ``again`` is delivered once more at ``due_ms``, ``dead`` are dead letters, and
    so is, as it is stored, what is ``unreadable``; all other messages of it are acknowledged."""

    again: DeletionBatch | None = None
    due_ms: int = 0
    dead: DeletionBatch | None = None
    unreadable: bytes | None = None


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages that wait: for their first delivery, for a later one, and for a person. ``sweeps`` are requests."""

    pending: int = 0
    retry: int = 0
    dead: int = 0
    sweeps: int = 0
    next_due_ms: int | None = None

    @property
    def in_flight(self) -> int:
        """Messages that will still be delivered (PIP-186's estimate)."""
        return self.pending + self.retry


class DeadLetters(Record, frozen=True, omit_defaults=True, tag_field=records.FORMAT, tag=1):
    """Messages whose deletion failed too often, each with its attempts, its last error and when it first failed."""

    dead_ms: int
    batch: DeletionBatch


@dataclass(frozen=True, slots=True)
class UnreadableLetters:
    """Dead letters that this version cannot decode, as they are stored, and why."""

    payload: bytes
    error: CorruptRecordError


_DECODER = RecordDecoder(DeadLetters, "dead letter")


def encode_dead(letters: DeadLetters) -> bytes:
    """The dead letters as they are stored."""
    return records.encode(letters)


def decode_dead(payload: bytes, where: str) -> DeadLetters | UnreadableLetters:
    """The dead letters in ``payload``, or why they cannot be read."""
    try:
        return _DECODER.decode(payload, where)
    except CorruptRecordError as error:
        return UnreadableLetters(payload, error)


def in_batches(batch: DeletionBatch, limit: int = BATCH_LEDGERS) -> Iterator[DeletionBatch]:
    """``batch`` in pieces of at most ``limit`` messages."""
    for start in range(0, len(batch.ledgers), limit):
        yield batch.with_ledgers(batch.ledgers[start : start + limit])


def totals(batches: Iterable[DeletionBatch]) -> Mapping[str, int]:
    """How many messages there are of each ledger type."""
    found: dict[str, int] = {}
    for batch in batches:
        found[batch.ledger_type.value] = found.get(batch.ledger_type.value, 0) + len(batch.ledgers)
    return found
