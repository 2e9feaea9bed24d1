"""The queue of deletion messages: a small protocol, and the one in ZooKeeper.

``PENDING/<partition>/<batch>`` holds a batch of messages from its first delivery to its last, so its creation zxid is
that of the mark, whatever anybody writes into it. ``RETRY/<due>.<count>.<batch>`` stands beside a batch that waits for
its next delivery, ``CLAIMS/<batch>`` is a consumer's ephemeral claim, ``DEAD/<id>`` holds dead letters, and
``SWEEPS/<id>`` requests to look under a prefix. All that can be known from names alone is in the names: the backlog is
counted, and the next due time found, without reading a message.

Settling is one transaction a batch: it removes the claim, so a consumer whose session died meanwhile settles nothing,
and it holds all that became of the batch's messages, so each is in exactly one place.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from airflow_provider_segments.clock import Clock
from airflow_provider_segments.exceptions import CorruptRecordError, OutcomeUnknownError
from airflow_provider_segments.model import ledger as ledgers
from airflow_provider_segments.model.ledger import DeletionBatch, PendingDeleteLedgerInfo, SweepRequest
from airflow_provider_segments.paths import ClusterPaths
from airflow_provider_segments.zookeeper import (
    CommitConflictError,
    Create,
    Delete,
    Node,
    Op,
    SetData,
    ZooKeeperSession,
)

BATCH_LEDGERS = 1000
"""Most messages in one batch: as many keys as one S3 delete request takes."""

_CLAIM_ATTEMPTS = 5


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

    def receive(self, limit: int) -> list[Delivery]:
        """Up to ``limit`` due batches, each for this consumer alone until it settles them or dies."""

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> list[bool]:
        """Settle deliveries; false for one that was not ours any more (then somebody else will)."""

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


@dataclass(frozen=True, slots=True)
class _Token:
    """Where a claimed batch stands."""

    path: str
    version: int
    claim: str
    marker: str | None


@dataclass(slots=True)
class _Listing:
    """The names in the queue."""

    batches: dict[str, str] = field(default_factory=dict)  # batch -> path
    markers: dict[str, tuple[int, int, str]] = field(default_factory=dict)  # batch -> due, count, node
    claims: frozenset[str] = frozenset()


class ZooKeeperQueue:
    """The queue in ZooKeeper. ``partitions`` spreads batches over as many znodes, so that no list of names gets too
    long and consumers do not all begin at the same place; it may change at any time."""

    def __init__(self, session: ZooKeeperSession, paths: ClusterPaths, clock: Clock, *, partitions: int = 4) -> None:
        self._session = session
        self._paths = paths
        self._clock = clock
        self._partitions = partitions
        self._prepared = False
        self._consumer = clock.new_id()
        self._order = random.Random(self._consumer)  # noqa: S311 - for spreading consumers, not for secrets

    def send(self, batches: Sequence[DeletionBatch]) -> None:
        """Enqueue outside of any other transaction: for what is no longer registered (re-drive, found orphans)."""
        for op in self.send_ops(batches):
            self._session.commit([op])

    def prepare(self) -> None:
        """Make the znodes that hold the queue; once is enough."""
        if self._prepared:
            return
        numbers = [f"{self._paths.pending_deletions}/{number}" for number in range(self._partitions)]
        self._session.ensure(
            [
                *numbers,
                self._paths.deletion_retries,
                self._paths.deletion_claims,
                self._paths.dead_letters,
                self._paths.sweeps,
            ]
        )
        self._prepared = True

    def send_ops(self, batches: Iterable[DeletionBatch]) -> list[Op]:
        """The operations that enqueue ``batches``, for the transaction that makes their deletion legal."""
        self.prepare()
        ops: list[Op] = []
        for batch in batches:
            name = f"{self._clock.new_id()}.{len(batch.ledgers)}"
            partition = int(name[:8], 16) % self._partitions
            ops.append(Create(f"{self._paths.pending_deletions}/{partition}/{name}", ledgers.encode(batch)))
        return ops

    def sweep_op(self, request: SweepRequest) -> Op:
        """The operation that asks for a look under a prefix."""
        self.prepare()
        return Create(f"{self._paths.sweeps}/{request.not_before_ms}.{self._clock.new_id()}", ledgers.encode(request))

    def receive(self, limit: int) -> list[Delivery]:
        """Claim up to ``limit`` batches that are due, wherever they stand; each consumer looks in an order of its
        own."""
        for _ in range(_CLAIM_ATTEMPTS):
            listing = self._list()
            now = self._clock.now_ms()
            due = [
                batch
                for batch in listing.batches
                if batch not in listing.claims and listing.markers.get(batch, (0, 0, ""))[0] <= now
            ]
            self._order.shuffle(due)
            claimed = self._claim(due[:limit])
            if claimed or not due:
                return self._read(claimed, listing)
        return []

    def settle(self, settlements: Sequence[tuple[Delivery, Settlement]]) -> list[bool]:
        """One transaction a batch, several at a time."""
        wanted = [self._settlement_ops(delivery, settlement) for delivery, settlement in settlements]
        outcomes = self._session.commit_many(wanted)
        return [
            self._landed(ops, delivery) if isinstance(outcome, OutcomeUnknownError) else isinstance(outcome, list)
            for ops, outcome, (delivery, _) in zip(wanted, outcomes, settlements, strict=True)
        ]

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give claims back without having done anything."""
        self._session.commit_many([[Delete(_token(delivery).claim, 0)] for delivery in deliveries])

    def backlog(self) -> Backlog:
        """Counted from names. While consumers are at work, it is a little old."""
        listing = self._list()
        waiting = [(due, count) for batch, (due, count, _) in listing.markers.items() if batch in listing.batches]
        pending = sum(_count(batch) for batch in listing.batches if batch not in listing.markers)
        sweeps = self._session.children(self._paths.sweeps)
        dues = [due for due, _ in waiting] + [_sweep_due(name) for name in sweeps]
        return Backlog(
            0 if not listing.batches else pending,
            sum(count for _, count in waiting),
            sum(_count(name) for name in self._session.children(self._paths.dead_letters)),
            len(sweeps),
            (0 if pending else min(dues, default=None)),
        )

    # --- sweeps

    def receive_sweeps(self, limit: int) -> list[tuple[str, bytes]]:
        """Names and contents of up to ``limit`` sweep requests that are due, claimed like batches."""
        now = self._clock.now_ms()
        claims = set(self._session.children(self._paths.deletion_claims))
        names = [name for name in self._session.children(self._paths.sweeps) if _sweep_due(name) <= now]
        due = [name for name in names if _sweep_id(name) not in claims]
        claimed = set(self._claim([_sweep_id(name) for name in due[:limit]]))
        mine = [name for name in due if _sweep_id(name) in claimed]
        nodes = self._session.get_many([f"{self._paths.sweeps}/{name}" for name in mine])
        found = [(name, node.data) for name, node in zip(mine, nodes, strict=True) if node is not None]
        gone = claimed - {_sweep_id(name) for name, _ in found}
        self._session.commit_many([[Delete(self._claim_path(one), 0)] for one in gone])
        return found

    def settle_sweep(self, name: str, batches: Sequence[DeletionBatch], again: SweepRequest | None = None) -> bool:
        """Replace a sweep request by what it found, and by its own next run if there is to be one."""
        finish: list[Op] = [Delete(self._claim_path(_sweep_id(name)), 0), Delete(f"{self._paths.sweeps}/{name}", 0)]
        if again is not None:
            finish.append(self.sweep_op(again))
        self.send(batches)  # before the request goes: a crash in between finds the same again, and twice is harmless
        return isinstance(self._session.commit_many([finish])[0], list)

    # --- dead letters

    def dead_letters(self) -> Iterator[tuple[str, DeadLetters | bytes]]:
        """Id and dead letters, one batch at a time; the bare bytes where they cannot be decoded."""
        for name in self._session.children(self._paths.dead_letters):
            node = self._session.get(f"{self._paths.dead_letters}/{name}")
            if node is not None:
                yield name, _decode_dead(node.data)

    def redrive(self, name: str) -> int:
        """Enqueue dead letters anew, with all attempts before them; returns how many messages, 0 when they are gone.

        Raises :class:`CorruptRecordError` for what cannot be decoded: purge that.
        """
        path = f"{self._paths.dead_letters}/{name}"
        node = self._session.get(path)
        if node is None:
            return 0
        dead = _decode_dead(node.data)
        if isinstance(dead, bytes):
            raise CorruptRecordError(f"{path}: these dead letters cannot be decoded, only purged")
        fresh = dead.batch.with_ledgers(
            tuple(msgspec.structs.replace(one, attempts=0, error="", first_ms=0) for one in dead.batch.ledgers)
        )
        return self._replace_dead(path, node, self.send_ops([fresh]), len(fresh.ledgers))

    def purge(self, name: str) -> int:
        """Forget dead letters; returns how many messages. Their objects stay: a reconciliation finds them."""
        path = f"{self._paths.dead_letters}/{name}"
        node = self._session.get(path)
        return 0 if node is None else self._replace_dead(path, node, [], _count(name))

    # --- inside

    def _replace_dead(self, path: str, node: Node, ops: list[Op], count: int) -> int:
        outcome = self._session.commit_many([[Delete(path, node.version), *ops]])[0]
        if isinstance(outcome, OutcomeUnknownError):
            raise outcome
        return count if isinstance(outcome, list) else 0

    def _list(self) -> _Listing:
        """Batches first: a marker without a batch is a leftover of nobody, a batch without its marker is early."""
        partitions = self._session.children(self._paths.pending_deletions)
        parents = [f"{self._paths.pending_deletions}/{number}" for number in partitions]
        markers, claims, *nodes = self._session.children_many(
            [self._paths.deletion_retries, self._paths.deletion_claims, *parents]
        )
        found = _Listing(claims=frozenset(claims))
        for parent, names in zip(parents, nodes, strict=True):
            found.batches |= {name: f"{parent}/{name}" for name in names}
        for node in markers:
            due, count, batch = _marker(node)
            found.markers[batch] = (due, count, node)
        return found

    def _claim(self, batches: Sequence[str]) -> list[str]:
        """Those of ``batches`` that this consumer could claim."""
        wanted = list(batches)
        mine = self._consumer.encode()
        while wanted:
            ops: list[Op] = [Create(self._claim_path(batch), mine, ephemeral=True) for batch in wanted]
            outcome = self._session.commit_many([ops])[0]
            if isinstance(outcome, list):
                return wanted
            if isinstance(outcome, OutcomeUnknownError):
                self._session.sync("/")
                nodes = self._session.get_many([op.path for op in ops])
                return [
                    batch for batch, node in zip(wanted, nodes, strict=True) if node is not None and node.data == mine
                ]
            wanted = [batch for batch in wanted if self._claim_path(batch) != outcome.op.path]
        return []

    def _read(self, claimed: Sequence[str], listing: _Listing) -> list[Delivery]:
        """What is claimed, read after the claim. The names are read again too: the marker may be another by now."""
        if not claimed:
            return []
        markers = {_marker(node)[2]: node for node in self._session.children(self._paths.deletion_retries)}
        nodes = self._session.get_many([listing.batches[batch] for batch in claimed])
        now = self._clock.now_ms()
        found: list[Delivery] = []
        unneeded: list[list[Op]] = []
        for batch, node in zip(claimed, nodes, strict=True):
            marker, claim = markers.get(batch), self._claim_path(batch)
            if node is None or (marker is not None and _marker(marker)[0] > now):
                unneeded.append([Delete(claim, 0)])
                continue
            where = None if marker is None else f"{self._paths.deletion_retries}/{marker}"
            token = _Token(listing.batches[batch], node.version, claim, where)
            found.append(Delivery(batch, node.data, node.czxid, marker is not None, token))
        if unneeded:
            self._session.commit_many(unneeded)
        return found

    def _settlement_ops(self, delivery: Delivery, settlement: Settlement) -> list[Op]:
        token = _token(delivery)
        ops: list[Op] = [Delete(token.claim, 0)]
        if token.marker is not None:
            ops.append(Delete(token.marker, 0))
        if settlement.again is None:
            ops.append(Delete(token.path, token.version))
        else:
            count = len(settlement.again.ledgers)
            marker = f"{self._paths.deletion_retries}/{settlement.due_ms}.{count}.{delivery.batch_id}"
            ops += [SetData(token.path, ledgers.encode(settlement.again), token.version), Create(marker)]
        if settlement.dead is not None:
            record = DeadLetters(self._clock.now_ms(), settlement.dead)
            name = f"{self._clock.new_id()}.{len(settlement.dead.ledgers)}"
            ops.append(Create(f"{self._paths.dead_letters}/{name}", msgspec.json.encode(record)))
        return ops

    def _landed(self, ops: Sequence[Op], delivery: Delivery) -> bool:
        """Whether a settlement whose reply was lost was applied: it removes the claim and changes the batch. When the
        claim is gone with the session instead, the batch is as it was."""
        token = _token(delivery)
        self._session.sync("/")
        claim, batch = self._session.get_many([token.claim, token.path])
        if claim is not None:
            return isinstance(self._session.commit_many([ops])[0], list)
        return batch is None or batch.version != token.version

    def _claim_path(self, batch: str) -> str:
        return f"{self._paths.deletion_claims}/{batch}"


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


def _token(delivery: Delivery) -> _Token:
    assert isinstance(delivery.token, _Token)
    return delivery.token


def _count(name: str) -> int:
    """The number of messages a batch was made with; a name somebody else made counts as one."""
    number = name.rpartition(".")[2]
    return int(number) if number.isdecimal() else 1


def _marker(node: str) -> tuple[int, int, str]:
    """Due time, count and batch of a marker; a node somebody else made belongs to no batch."""
    due, _, rest = node.partition(".")
    count, _, batch = rest.partition(".")
    return (int(due), int(count), batch) if due.isdecimal() and count.isdecimal() else (0, 0, "")


def _sweep_due(name: str) -> int:
    due = name.partition(".")[0]
    return int(due) if due.isdecimal() else 0


def _sweep_id(name: str) -> str:
    return f"sweep-{name}"


def _decode_dead(payload: bytes) -> DeadLetters | bytes:
    try:
        return msgspec.json.decode(payload, type=DeadLetters)
    except msgspec.DecodeError:
        return payload


__all__ = [
    "BATCH_LEDGERS",
    "Backlog",
    "CommitConflictError",
    "DeadLetters",
    "DeletionQueue",
    "Delivery",
    "PendingDeleteLedgerInfo",
    "Settlement",
    "ZooKeeperQueue",
    "in_batches",
    "totals",
]
