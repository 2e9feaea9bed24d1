"""What is read and written: znodes, the operations of a transaction, and why a server refuses one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import ACL

from airflow_provider_segments.exceptions import AccessDeniedError, RecordTooLargeError, SegmentsError

MAX_REQUEST = 1_040_000
"""Bytes one request may have. The server's default limit is 1,048,575, and going over it cuts the connection."""

UNREADABLE = -1
"""The version of permissions that may not be read."""

DENIED = (NoAuthError, AuthFailedError)
"""What kazoo raises when the credentials do not suffice."""


@dataclass(frozen=True, slots=True)
class Node:
    """A znode as it was read. ``czxid`` and ``mzxid`` are the transactions that made and last changed it, ``made_ms``
    is when it was made, by the server's wall clock in epoch milliseconds."""

    data: bytes
    version: int
    czxid: int
    mzxid: int
    made_ms: int


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node that must not exist. Its parent must."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a node's data, if it is still at ``version``."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a childless node, if it is still at ``version``."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Refuse the whole transaction unless the node is at ``version``."""

    path: str
    version: int


Op = Create | SetData | Delete | Check

ANY_VERSION = -1
"""As the version of a :class:`Delete`: whatever the version is."""


class CommitConflictError(SegmentsError):
    """The server refused a transaction, so nothing of it was applied.

    ``op`` is the operation that failed and ``reason`` one of ``bad-version``, ``exists``, ``no-node``, ``not-empty``.
    """

    def __init__(self, op: Op, reason: str) -> None:
        super().__init__(f"{type(op).__name__.lower()} {op.path}: {reason}")
        self.op = op
        self.reason = reason


class AclConflictError(SegmentsError):
    """Somebody else has set a znode's permissions since they were read. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class StoredAcl:
    """The permissions of a znode as they were read, and their version."""

    acls: list[ACL]
    version: int


_REASONS: tuple[tuple[type[KazooException], str], ...] = (
    (BadVersionError, "bad-version"),
    (NodeExistsError, "exists"),
    (NoNodeError, "no-node"),
    (NotEmptyError, "not-empty"),
)


def request_size(ops: Iterable[Op]) -> int:
    """Bytes a transaction of ``ops`` takes on the wire, rounded up."""
    return 64 + sum(120 + len(op.path) + len(getattr(op, "data", b"")) for op in ops)


def check_size(ops: Sequence[Op]) -> None:
    """Raise :class:`RecordTooLargeError` for a transaction that the server would cut the connection for."""
    size = request_size(ops)
    if size > MAX_REQUEST:
        largest = max(ops, key=lambda op: len(getattr(op, "data", b"")))
        raise RecordTooLargeError(
            f"a write of {size:,} bytes is over ZooKeeper's limit of {MAX_REQUEST:,}; "
            f"its largest record is {largest.path} with {len(getattr(largest, 'data', b'')):,} bytes"
        )


def refusal_of(ops: Sequence[Op], results: Sequence[Any]) -> CommitConflictError | None:
    """Return why the server refused a transaction, and ``None`` when it did not.

    kazoo returns a transaction's errors instead of raising them; the one that is not a side effect says why. Raises
    :class:`AccessDeniedError`, and what else is no conflict.
    """
    for op, result in zip(ops, results, strict=True):
        if not isinstance(result, Exception) or isinstance(result, RolledBackError | RuntimeInconsistency):
            continue
        if isinstance(result, DENIED):
            raise AccessDeniedError(
                f"ZooKeeper denied access to {op.path}: it belongs to other credentials"
            ) from result
        for kind, reason in _REASONS:
            if isinstance(result, kind):
                return CommitConflictError(op, reason)
        raise result
    failed = next((result for result in results if isinstance(result, Exception)), None)
    if failed is not None:
        raise failed
    return None
