"""The deletion queue in ZooKeeper.

``PENDING/<partition>/<batch>`` holds a batch of messages from its first delivery to its last, so its creation zxid is
that of the mark, whatever anybody writes into it. ``RETRY/<due>.<count>.<batch>`` stands beside a batch that waits for
its next delivery, ``CLAIMS/<batch>`` is a consumer's ephemeral claim, ``DEAD/<id>`` holds dead letters, and
``SWEEPS/<id>`` requests to look under a prefix. All that can be known from names alone is in the names: the backlog is
counted, and the next due time found, without reading a message.

Settling is one transaction a batch: it holds all that became of the batch's messages, so each is in exactly one place,
and it removes the claim. It also checks the consumer's seat, ``CLAIMS/consumer-<id>``, which is ephemeral too and never
made twice: a claim somebody else has made since looks like one's own, so only the seat tells a consumer whose session
died meanwhile that it may settle nothing.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.deletion.messages import (
    Backlog,
    Claim,
    DeadLetters,
    Delivery,
    Settlement,
    UnreadableLetters,
    decode_dead,
    encode_dead,
    in_batches,
)
from airflow_provider_segments.core.model import ledger as ledgers
from airflow_provider_segments.core.model.ledger import DeletionBatch, SweepRequest
from airflow_provider_segments.core.model.names import is_number
from airflow_provider_segments.core.zookeeper import (
    Check,
    CommitConflictError,
    Create,
    Delete,
    Node,
    Op,
    SetData,
)
from airflow_provider_segments.core.zookeeper.operations import MAX_REQUEST, request_size
from airflow_provider_segments.exceptions import CorruptRecordError, NewerRecordError, OutcomeUnknownError

_ATTEMPTS = 5
_NUMBER_DIGITS = 19  # no number of ours is longer, and Python refuses to read a name of thousands of digits
_SMALL_BATCH = 100


@dataclass(slots=True)
class _Listing:
    """The names in the queue."""

    batches: dict[str, str] = field(default_factory=dict)  # batch -> path
    markers: dict[str, tuple[int, int, str]] = field(default_factory=dict)  # batch -> due, count, node
    claims: frozenset[str] = frozenset()


class DeletionQueue:
    """The queue of one cluster. Deliveries may repeat; consumers are idempotent.

    Batches are spread over as many znodes as the deletion settings have partitions, so that no list of names gets too
    long and consumers do not all begin at the same place; their number may change at any time.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._session = cluster.session
        self._check_made = cluster.check_made
        self._paths = cluster.paths
        self._clock = cluster.clock
        self._partitions = cluster.deletion.parallelism
        self._prepared = False
        self._seat = ""
        self._order = random.Random(cluster.clock.new_id())  # noqa: S311 - for spreading consumers, not for secrets

    def send(self, batches: Sequence[DeletionBatch]) -> None:
        """Enqueue outside of any other transaction: for what is no longer registered (re-drive, found orphans).

        Raises :class:`OutcomeUnknownError`; sending the same once more is harmless then.
        """
        for op in self.send_ops(batches):
            self._send(op)

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
            partition = zlib.crc32(name.encode()) % self._partitions
            ops.append(Create(f"{self._paths.pending_deletions}/{partition}/{name}", ledgers.encode(batch)))
        return ops

    def sweep_op(self, request: SweepRequest) -> Op:
        """The operation that asks for a look under a prefix."""
        self.prepare()
        return Create(f"{self._paths.sweeps}/{request.not_before_ms}.{self._clock.new_id()}", ledgers.encode(request))

    def receive(self, limit: int, skip: Collection[str] = ()) -> list[Delivery]:
        """Claim up to ``limit`` batches that are due, wherever they stand; each consumer looks in an order of its
        own."""
        for _ in range(_ATTEMPTS):
            listing = self._list()
            now = self._clock.now_ms()
            due = [
                batch
                for batch in listing.batches
                if batch not in skip
                and batch not in listing.claims
                and listing.markers.get(batch, (0, 0, ""))[0] <= now
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
            self._landed(ops, delivery.claim.seat, delivery.claim.claim)
            if isinstance(outcome, OutcomeUnknownError)
            else isinstance(outcome, list)
            for ops, outcome, (delivery, _) in zip(wanted, outcomes, settlements, strict=True)
        ]

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give claims back without having settled anything. What cannot be given back now ends with the session."""
        claims = [delivery.claim for delivery in deliveries]
        self._session.commit_many([[Check(held.seat, 0), Delete(held.claim, 0)] for held in claims])

    def backlog(self) -> Backlog:
        """Counted from names. While consumers are at work, it is a little old."""
        listing = self._list()
        waiting = [(due, count) for batch, (due, count, _) in listing.markers.items() if batch in listing.batches]
        pending = sum(_count(batch) for batch in listing.batches if batch not in listing.markers)
        sweeps = self._session.children(self._paths.sweeps)
        dues = [due for due, _ in waiting] + [_sweep_due(name) for name in sweeps]
        return Backlog(
            pending,
            sum(count for _, count in waiting),
            self.dead(),
            len(sweeps),
            (0 if pending else min(dues, default=None)),
        )

    def dead(self) -> int:
        """How many messages were given up. Counted from names."""
        return sum(_count(name) for name in self._session.children(self._paths.dead_letters))

    # --- sweeps

    def receive_sweeps(self, limit: int, skip: Collection[str] = ()) -> list[tuple[str, bytes]]:
        """Names and contents of up to ``limit`` sweep requests that are due, but for ``skip``, claimed like batches."""
        now = self._clock.now_ms()
        claims = set(self._session.children(self._paths.deletion_claims))
        names = [name for name in self._session.children(self._paths.sweeps) if _sweep_due(name) <= now]
        due = [name for name in names if name not in skip and _sweep_id(name) not in claims]
        claimed = set(self._claim([_sweep_id(name) for name in due[:limit]]))
        mine = [name for name in due if _sweep_id(name) in claimed]
        nodes = self._session.get_many([f"{self._paths.sweeps}/{name}" for name in mine])
        found = [(name, node.data) for name, node in zip(mine, nodes, strict=True) if node is not None]
        gone = claimed - {_sweep_id(name) for name, _ in found}
        self._session.commit_many([[Check(self._seat, 0), Delete(self._claim_path(one), 0)] for one in gone])
        return found

    def release_sweep(self, name: str) -> None:
        """Give the claim of a sweep request back without having settled anything."""
        self._session.commit_many([[Check(self._seat, 0), Delete(self._claim_path(_sweep_id(name)), 0)]])

    def settle_sweep(
        self,
        name: str,
        batches: Sequence[DeletionBatch],
        again: SweepRequest | None = None,
        *,
        unreadable: bytes | None = None,
    ) -> bool:
        """Replace a sweep request by what it found, by its own next run if there is to be one, or, when it is
        ``unreadable``, by a dead letter with the same content; false when it was not ours any more."""
        claim, seat = self._claim_path(_sweep_id(name)), self._seat
        finish: list[Op] = [Check(seat, 0), Delete(claim, 0), Delete(f"{self._paths.sweeps}/{name}", 0)]
        if again is not None:
            finish.append(self.sweep_op(again))
        if unreadable is not None:
            finish.append(self._unreadable_op(unreadable, 1))
        self.send(batches)  # before the request goes: a crash in between finds the same again, and twice is harmless
        outcome = self._session.commit_many([finish])[0]
        return self._landed(finish, seat, claim) if isinstance(outcome, OutcomeUnknownError) else _done(outcome)

    # --- dead letters

    def dead_letters(self) -> Iterator[tuple[str, DeadLetters | UnreadableLetters]]:
        """Id and dead letters, one batch at a time."""
        names = self._session.children(self._paths.dead_letters)
        if not names:
            self._check_made()
        for name in names:
            path = f"{self._paths.dead_letters}/{name}"
            node = self._session.get(path)
            if node is not None:
                yield name, decode_dead(node.data, path)

    def redrive(self, name: str) -> int:
        """Enqueue dead letters anew, with all attempts before them; returns how many messages, 0 when they are gone.

        Raises :class:`NewerRecordError`, and :class:`CorruptRecordError` for what cannot be decoded: purge that.
        """
        path = f"{self._paths.dead_letters}/{name}"
        node = self._session.get(path)
        if node is None:
            return 0
        dead = decode_dead(node.data, path)
        if isinstance(dead, UnreadableLetters):
            if isinstance(dead.error, NewerRecordError):
                raise dead.error
            raise CorruptRecordError(f"{dead.error}. These dead letters can only be purged") from dead.error
        fresh = dead.batch.with_ledgers(
            tuple(msgspec.structs.replace(one, attempts=0, error="", first_ms=0) for one in dead.batch.ledgers)
        )
        return self._replace_dead(path, node, self.send_ops([fresh]), len(fresh.ledgers))

    def purge(self, name: str) -> int:
        """Forget dead letters; returns how many messages. Their objects stay: a reconciliation finds them.

        Raises :class:`NewerRecordError` for those that a newer version can read.
        """
        path = f"{self._paths.dead_letters}/{name}"
        node = self._session.get(path)
        if node is None:
            return 0
        dead = decode_dead(node.data, path)
        if isinstance(dead, UnreadableLetters) and isinstance(dead.error, NewerRecordError):
            raise dead.error
        return self._replace_dead(path, node, [], _count(name))

    # --- inside

    def _replace_dead(self, path: str, node: Node, ops: list[Op], count: int) -> int:
        outcome = self._session.commit_many([[Delete(path, node.version), *ops]])[0]
        if isinstance(outcome, OutcomeUnknownError):
            raise outcome
        return count if isinstance(outcome, list) else 0

    def _list(self) -> _Listing:
        """Batches first: a marker without a batch is a leftover of nobody, a batch without its marker is early."""
        partitions = self._session.children(self._paths.pending_deletions)
        if not partitions:
            self._check_made()
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
        while wanted:
            if not self._seat:
                self._seat = self._take_seat()
            mine = self._seat.encode()
            claims: list[Op] = [Create(self._claim_path(batch), mine, ephemeral=True) for batch in wanted]
            outcome = self._session.commit_many([[Check(self._seat, 0), *claims]])[0]
            if isinstance(outcome, list):
                return wanted
            if isinstance(outcome, OutcomeUnknownError):
                self._session.sync("/")
                nodes = self._session.get_many([op.path for op in claims])
                return [
                    batch for batch, node in zip(wanted, nodes, strict=True) if node is not None and node.data == mine
                ]
            if outcome.op.path == self._seat:
                self._seat = ""  # the session is another one by now
                continue
            wanted = [batch for batch in wanted if self._claim_path(batch) != outcome.op.path]
        return []

    def _take_seat(self) -> str:
        """An ephemeral node of this consumer and this session."""
        self.prepare()
        for _ in range(_ATTEMPTS):
            seat = f"{self._paths.deletion_claims}/consumer-{self._clock.new_id()}"
            if isinstance(self._session.commit_many([[Create(seat, ephemeral=True)]])[0], list):
                return seat
        raise OutcomeUnknownError("the connection to ZooKeeper broke whenever a deletion consumer took its seat")

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
                unneeded.append([Check(self._seat, 0), Delete(claim, 0)])
                continue
            where = None if marker is None else f"{self._paths.deletion_retries}/{marker}"
            held = Claim(listing.batches[batch], node.version, claim, where, self._seat)
            found.append(Delivery(batch, node.data, node.czxid, held))
        if unneeded:
            self._session.commit_many(unneeded)
        return found

    def _settlement_ops(self, delivery: Delivery, settlement: Settlement) -> list[Op]:
        held = delivery.claim
        ops: list[Op] = [Check(held.seat, 0), Delete(held.claim, 0)]
        if held.marker is not None:
            ops.append(Delete(held.marker, 0))
        others = [] if settlement.dead is None else [self._dead_op(settlement.dead)]
        if settlement.unreadable is not None:
            others.append(self._unreadable_op(settlement.unreadable, _count(delivery.batch_id)))
        if settlement.again is None:
            changes: list[Op] = [Delete(held.path, held.version)]
        else:
            again = ledgers.encode(settlement.again)
            # Nothing but time has passed for messages that only wait: their batch is not written again.
            same = again == delivery.payload
            kept = Check(held.path, held.version) if same else SetData(held.path, again, held.version)
            changes = [kept, self._marker_op(delivery.batch_id, settlement.again, settlement.due_ms)]
        whole = [*ops, *changes, *others]
        if request_size(whole) <= MAX_REQUEST:
            return whole
        self._split(settlement)
        return [*ops, Delete(held.path, held.version)]

    def _split(self, settlement: Settlement) -> None:
        """What is too large to be written back in one transaction goes on in smaller batches. They are there before the
        large one goes; a crash in between leaves both, and a message that is there twice is harmless."""
        for piece in in_batches(settlement.again, _SMALL_BATCH) if settlement.again else ():
            made = next(iter(self.send_ops([piece])))
            self._send(made, self._marker_op(made.path.rpartition("/")[2], piece, settlement.due_ms))
        for piece in in_batches(settlement.dead, _SMALL_BATCH) if settlement.dead else ():
            self._send(self._dead_op(piece))
        if settlement.unreadable is not None:
            self._send(self._unreadable_op(settlement.unreadable, 1))

    def _send(self, *ops: Op) -> None:
        """Make new nodes. A try whose reply was lost is recognised: nobody else makes nodes of these names."""
        for left in reversed(range(_ATTEMPTS)):
            outcome = self._session.commit_many([ops])[0]
            if isinstance(outcome, list) or (isinstance(outcome, CommitConflictError) and outcome.reason == "exists"):
                return
            if isinstance(outcome, CommitConflictError) or not left:
                raise outcome

    def _marker_op(self, batch_id: str, again: DeletionBatch, due_ms: int) -> Op:
        return Create(f"{self._paths.deletion_retries}/{due_ms}.{len(again.ledgers)}.{batch_id}")

    def _dead_op(self, dead: DeletionBatch) -> Op:
        record = DeadLetters(self._clock.now_ms(), dead)
        name = f"{self._clock.new_id()}.{len(dead.ledgers)}"
        return Create(f"{self._paths.dead_letters}/{name}", encode_dead(record))

    def _unreadable_op(self, payload: bytes, count: int) -> Op:
        """The operation that keeps what cannot be read among the dead letters, byte for byte."""
        return Create(f"{self._paths.dead_letters}/{self._clock.new_id()}.{count}", payload)

    def _landed(self, ops: Sequence[Op], seat: str, claim: str) -> bool:
        """Whether a settlement whose reply was lost was applied; if it was not, it is sent again.

        Nobody but we takes our claim away while our seat stands. Without the seat our session is gone, and the claim
        with it: whoever has the batch next counts it, so we do not.
        """
        for _ in range(_ATTEMPTS):
            self._session.sync("/")
            seated, claimed = self._session.get_many([seat, claim])
            if seated is None or claimed is None:
                return seated is not None
            outcome = self._session.commit_many([ops])[0]
            if not isinstance(outcome, OutcomeUnknownError):
                return isinstance(outcome, list)
        return False

    def _claim_path(self, batch: str) -> str:
        return f"{self._paths.deletion_claims}/{batch}"


def _done(outcome: object) -> bool:
    return isinstance(outcome, list)


def _number(text: str) -> int | None:
    """A number in a name, when that is what it is."""
    return int(text) if is_number(text) and len(text) <= _NUMBER_DIGITS else None


def _count(name: str) -> int:
    """The number of messages a batch was made with; a name somebody else made counts as one."""
    number = _number(name.rpartition(".")[2])
    return 1 if number is None else number


def _marker(node: str) -> tuple[int, int, str]:
    """Due time, count and batch of a marker; a node somebody else made belongs to no batch."""
    first, _, rest = node.partition(".")
    second, _, batch = rest.partition(".")
    due, count = _number(first), _number(second)
    return (0, 0, "") if due is None or count is None else (due, count, batch)


def _sweep_due(name: str) -> int:
    return _number(name.partition(".")[0]) or 0


def _sweep_id(name: str) -> str:
    return f"sweep-{name}"
