"""Reader leases: what a reader has resolved stays in the store until it has read it.

A lease is one ephemeral znode, ``READERS/<table>/<id>``, whatever the size of what it protects. Its creation zxid is
its age: a deletion marked at zxid m waits for every lease older than m, and a younger lease belongs to a reader that
could not find the segment any more. Both are ZooKeeper's own numbers, so no message and no reader can pretend another
age.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.model.names import check_text
from airflow_provider_segments.core.model.records import FORMAT, Record, RecordDecoder, encode
from airflow_provider_segments.core.zookeeper import Create, Delete, Node, ZooKeeperSession
from airflow_provider_segments.core.zookeeper.operations import CommitConflictError
from airflow_provider_segments.exceptions import (
    AccessDeniedError,
    CorruptRecordError,
    LeaseLostError,
    OutcomeUnknownError,
)

_ATTEMPTS = 5


class LeaseRecord(Record, frozen=True, tag_field=FORMAT, tag=1):
    """``owner`` says who reads, for the person who wonders what a deletion waits for."""

    owner: str


_DECODER = RecordDecoder(LeaseRecord, "lease")


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease that somebody holds: its age ``zxid``, its owner, and when it was taken, by ZooKeeper's wall clock in
    epoch milliseconds."""

    zxid: int
    owner: str
    taken_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that this process holds, through ``session``."""

    session: ZooKeeperSession
    table: str
    path: str
    zxid: int

    def check(self) -> None:
        """Raises :class:`LeaseLostError` when the lease is gone, and :class:`MetadataUnavailableError` when nobody can
        tell."""
        node = self.session.get(self.path)
        if node is None or node.czxid != self.zxid:
            raise LeaseLostError(
                f"table {self.table!r}: the lease of this snapshot is gone, because its ZooKeeper session ended; "
                "its objects may be deleted now: take a new snapshot and read again"
            )

    def release(self) -> None:
        """Give it back. Harmless when it is gone; one that cannot be given back now ends with the session."""
        for _ in range(_ATTEMPTS):
            if not isinstance(self.session.commit_many([[Delete(self.path, 0)]])[0], OutcomeUnknownError):
                return


@dataclass(frozen=True, slots=True)
class Leases:
    """The leases of one table."""

    cluster: Cluster
    table: str

    def take(self, owner: str) -> Lease:
        """A new lease. Read the lineage after it, through the same session. ``owner`` says who reads, in printable text
        of at most ``MAX_TEXT`` characters. Raises :class:`InvalidNameError` and :class:`OutcomeUnknownError`."""
        if owner:
            check_text("owner of a lease", owner)
        session, clock = self.cluster.session, self.cluster.clock
        parent = self.cluster.paths.readers(self.table)
        path = f"{parent}/{clock.new_id()}"
        create = Create(path, encode(LeaseRecord(owner)), ephemeral=True)
        if not self._made(create):
            session.ensure([parent])
            self._made(create)
        node = session.get(path)
        if node is None:
            raise LeaseLostError(f"table {self.table!r}: the ZooKeeper session ended while a lease was taken")
        return Lease(session, self.table, path, node.czxid)

    def _made(self, create: Create) -> bool:
        """Make the lease; false where its parent is missing. Nobody else makes a node of its name, so "exists" is the
        answer to a try whose reply was lost: given up, it would hold up deletions until the session ends."""
        for left in reversed(range(_ATTEMPTS)):
            outcome = self.cluster.session.commit_many([[create]])[0]
            if isinstance(outcome, OutcomeUnknownError):
                if not left:
                    raise outcome
                self.cluster.session.sync("/")
                continue
            return not isinstance(outcome, CommitConflictError) or outcome.reason == "exists"
        return False

    def held(self) -> Sequence[LeaseInfo]:
        """All leases, oldest first. One that cannot be decoded counts: its age is ZooKeeper's. One that may not even be
        read counts as older than everything: no reader of this package makes such a znode in a cluster with roles, and
        until an operator removes it, nobody can tell that it is none."""
        session, parent = self.cluster.session, self.cluster.paths.readers(self.table)
        paths = [f"{parent}/{name}" for name in session.children(parent)]
        try:
            found = [_info(node) for node in session.get_many(paths) if node is not None]
        except AccessDeniedError:
            found = [lease for path in paths if (lease := self._lease_at(path)) is not None]
        return sorted(found, key=lambda lease: lease.zxid)

    def _lease_at(self, path: str) -> LeaseInfo | None:
        try:
            node = self.cluster.session.get(path)
        except AccessDeniedError:
            who = f"unknown: {path} cannot be read; an operator may remove it by hand"
            return LeaseInfo(0, who, self.cluster.clock.now_ms())
        return None if node is None else _info(node)


def decode(payload: bytes, where: str) -> LeaseRecord:
    """The lease's record. Raises :class:`CorruptRecordError`."""
    return _DECODER.decode(payload, where)


def _info(node: Node) -> LeaseInfo:
    try:
        owner = decode(node.data, "lease").owner
    except CorruptRecordError:
        owner = "unknown"
    return LeaseInfo(node.czxid, owner, node.made_ms)
