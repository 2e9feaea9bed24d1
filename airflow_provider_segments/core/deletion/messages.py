"""What the two phases of deletion need of a queue: a small protocol and its values.

The one that is shipped is in ``zookeeper_queue``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from airflow_provider_segments.core.model.ledger import DeletionBatch

BATCH_LEDGERS = 1000
"""Most messages in one batch: as many keys as one S3 delete request takes."""


class Delivery(msgspec.Struct, frozen=True):
    """A batch that was handed out. ``marked`` is the zxid at which it was enqueued, ``None`` where the queue cannot
    tell. ``payload`` is what stands in the queue; ``attempted`` says that this is not its first delivery."""

    batch_id: str
    payload: bytes
    marked: int | None
    attempted: bool
    token: object = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What becomes of a delivered batch: ``again`` is delivered once more at ``due_ms``, ``dead`` are dead letters; all
    other messages of it are acknowledged."""

    again: DeletionBatch | None = None
    due_ms: int = 0
    dead: DeletionBatch | None = None


class DeletionQueue(Protocol):
    """What the two phases need of a queue. Deliveries may repeat; consumers are idempotent."""

    def send(self, batches: Sequence[DeletionBatch]) -> None:
        """Enqueue all of ``batches`` or raise. Only for a queue that cannot take part in a ZooKeeper transaction."""

    def receive(self, limit: int, skip: Collection[str] = ()) -> list[Delivery]:
        """Up to ``limit`` due batches, each for this consumer alone until it settles them or dies; none of ``skip``."""

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> list[bool]:
        """Settle deliveries; false for one that was not ours any more (then somebody else will)."""

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give deliveries back, as well as one can, without having settled them."""

    def backlog(self) -> Backlog:
        """What waits."""


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


class DeadLetters(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages whose deletion failed too often, each with its attempts, its last error and when it first failed."""

    dead_ms: int
    batch: DeletionBatch
    format: int = 1


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
