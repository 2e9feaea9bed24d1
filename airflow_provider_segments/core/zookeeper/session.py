"""One ZooKeeper session: reads, compare-and-set, transactions.

Reads are retried over lost connections. Writes are sent once and have three outcomes: they return (done), they raise
:class:`CommitConflictError` (refused: the server applied nothing), or they raise
:class:`~airflow_provider_segments.exceptions.OutcomeUnknownError` (the connection broke while the request was out:
measured, 4 of 10 such writes had landed). Callers of the third re-read and recognise their own write by an id in it.
There is no blind set: every change names the version it was decided on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.protocol.states import KeeperState, WatchedEvent
from kazoo.security import ACL

from airflow_provider_segments.core.zookeeper.multiread import MultiRead
from airflow_provider_segments.core.zookeeper.operations import (
    DENIED,
    UNREADABLE,
    AclConflictError,
    Check,
    CommitConflictError,
    Create,
    Delete,
    Node,
    Op,
    SetData,
    StoredAcl,
    check_size,
    refusal_of,
)
from airflow_provider_segments.core.zookeeper.settings import ZooKeeperSettings
from airflow_provider_segments.exceptions import (
    AccessDeniedError,
    MetadataUnavailableError,
    OutcomeUnknownError,
)

_READ_BATCH = 128  # reads in one multi-read request
_READ_WINDOW = 8  # multi-read requests out at once; 20,000 outstanding requests break a session
_ACL_WINDOW = 200  # requests for permissions out at once
_WRITE_WINDOW = 8  # transactions out at once
_LOST = (ConnectionLoss, SessionExpiredError, ConnectionClosedError, OperationTimeoutError, KazooTimeoutError)


_T = TypeVar("_T")


class ZooKeeperSession:
    """A started ZooKeeper session. Close it, or use it as a context manager. May be shared by threads.

    Raises :class:`MetadataUnavailableError` from every method when no server answers within the operation time-out,
    or when the server refuses the credentials.
    """

    def __init__(
        self,
        settings: ZooKeeperSettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._sleep = sleep
        self._monotonic = monotonic
        self.closed = False
        self.acl_of: Callable[[str], list[ACL]] | None = None
        self._client = settings.client()

    @classmethod
    def connect(cls, settings: ZooKeeperSettings, **injected: Any) -> Self:
        """A session that has reached a server. Raises :class:`MetadataUnavailableError` when none answers in time."""
        session = cls(settings, **injected)
        session._start()
        return session

    def close(self) -> None:
        """End the session; its ephemeral nodes go. Safe to call twice."""
        self.closed = True
        self._client.stop()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def session_id(self) -> int:
        """Id of the present session; another one after the server expired it."""
        client_id = self._client.client_id
        return int(client_id[0]) if client_id else 0

    def get(self, path: str) -> Node | None:
        """The node at ``path``, or ``None``."""
        return self.get_many([path])[0]

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """The nodes at ``paths`` in order, ``None`` where there is none. Read in batches, not atomically."""
        replies = self._read_many([GetData(self._full(path), None) for path in paths])
        return [None if reply is None else _node(*reply) for reply in replies]

    def children(self, path: str) -> list[str]:
        """Names below ``path``, sorted; empty when there is no such node."""
        return self.children_many([path])[0]

    def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        """Names below each of ``paths``, sorted; empty where there is no such node."""
        replies = self._read_many([GetChildren(self._full(path), None) for path in paths])
        return [sorted(reply or ()) for reply in replies]

    def get_with_children(self, path: str) -> tuple[Node | None, list[str]]:
        """The node at ``path`` as it was before the names below it, sorted, were read; in one round trip."""
        full = self._full(path)
        node, names = self._read_many([GetData(full, None), GetChildren(full, None)])
        return None if node is None else _node(*node), sorted(names or ())

    def stats(self, paths: Sequence[str]) -> list[tuple[int, int] | None]:
        """Version and zxid of the last change of the nodes at ``paths``, asked in order and at once, without data;
        ``None`` where there is none. For a few paths."""

        def ask() -> list[tuple[int, int] | None]:
            sent = [self._client.exists_async(path) for path in paths]
            found = [pending.get(timeout=self.settings.operation_timeout) for pending in sent]
            return [None if stat is None else (stat.version, stat.mzxid) for stat in found]

        return self._until_answered(ask)

    def acl(self, path: str) -> list[Any]:
        """Who may do what with the node at ``path``, as kazoo's ``ACL`` values; empty when there is no such node."""
        try:
            found, _ = self._retry_read(lambda: self._client.get_acls_async(path))
        except NoNodeError:
            return []
        return list(found)

    def sync(self, path: str) -> None:
        """Wait until the server we read from has seen all that was committed before this call."""
        self._retry_read(lambda: self._client.sync_async(path))

    def acls(self, paths: Sequence[str]) -> list[StoredAcl | None]:
        """The permissions of the znodes at ``paths`` in order, ``None`` where there is none; those that we may not even
        see have the version ``UNREADABLE``."""
        found: list[StoredAcl | None] = []
        for start in range(0, len(paths), _ACL_WINDOW):
            window = paths[start : start + _ACL_WINDOW]
            found += self._until_answered(lambda window=window: self._acl_window(window))  # type: ignore[misc]
        return found

    def _acl_window(self, paths: Sequence[str]) -> list[StoredAcl | None]:
        sent = [self._client.get_acls_async(path) for path in paths]
        found: list[StoredAcl | None] = []
        for pending in sent:
            try:
                acls, stat = pending.get(timeout=self.settings.operation_timeout)
            except NoNodeError:
                found.append(None)
            except DENIED:
                found.append(StoredAcl([], UNREADABLE))
            else:
                found.append(StoredAcl(list(acls), stat.aversion))
        return found

    def set_acl(self, path: str, acls: Sequence[ACL], version: int) -> None:
        """Give a znode other permissions, if they are still at ``version``; harmless when it is gone.

        Raises :class:`AclConflictError` when somebody else has set them, and :class:`OutcomeUnknownError`."""
        try:
            self._client.set_acls_async(path, list(acls), version).get(timeout=self.settings.operation_timeout)
        except NoNodeError:
            return
        except BadVersionError as error:
            raise AclConflictError(f"the permissions of {path} were changed meanwhile") from error
        except DENIED as error:
            raise self._denied() from error
        except _LOST as error:
            raise OutcomeUnknownError(f"the connection broke while the permissions of {path} were set") from error

    def ensure(self, paths: Iterable[str]) -> None:
        """Make each of ``paths`` with empty data where it is missing, parents first. Repeating it is harmless."""
        wanted = {
            "/".join(parts[:end]) for path in paths for parts in [path.split("/")] for end in range(2, len(parts) + 1)
        }
        missing = [path for path, node in self._exists_many(sorted(wanted)) if not node]
        for depth in sorted({path.count("/") for path in missing}):
            level = [path for path in missing if path.count("/") == depth]
            for start in range(0, len(level), 500):
                self._create_absent(level[start : start + 500])

    def commit(self, ops: Sequence[Op]) -> list[Any]:
        """Apply all of ``ops`` or none; returns a ``ZnodeStat`` for each SetData, the path for each Create, else True.

        Raises :class:`CommitConflictError`, :class:`OutcomeUnknownError` (see the module), and
        :class:`RecordTooLargeError` before anything is sent.
        """
        outcome = self.commit_many([ops])[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def commit_many(
        self, transactions: Sequence[Sequence[Op]]
    ) -> list[list[Any] | CommitConflictError | OutcomeUnknownError]:
        """Send independent transactions, some at a time, and say what became of each, in order.

        Errors that are not about one transaction (no server, no permission) are raised.
        """
        for ops in transactions:
            check_size(ops)
        outcomes: list[list[Any] | CommitConflictError | OutcomeUnknownError] = []
        for start in range(0, len(transactions), _WRITE_WINDOW):
            window = transactions[start : start + _WRITE_WINDOW]
            sent = [self._send(ops) for ops in window]
            outcomes += [self._outcome(ops, pending) for ops, pending in zip(window, sent, strict=True)]
        return outcomes

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` from another thread when ``path`` is made, changed or removed, or the connection is lost.

        One call means "look again"; watch again to hear of the next change. Returns a function that forgets
        ``changed``. Set the watch first and read after it, so that no change falls between the two. kazoo calls and
        drops every watch when a connection breaks, so a session that is lost later has none that wait.
        """
        armed = threading.Event()
        armed.set()

        def once(_: WatchedEvent | None = None) -> None:
            if armed.is_set():
                armed.clear()
                changed()

        self._retry_read(lambda: self._client.exists_async(path, watch=once))
        return armed.clear

    def _start(self) -> None:
        chroot, self._client.chroot = self._client.chroot, ""  # kazoo makes a chroot's last part only
        try:
            self._client.start(timeout=self.settings.connect_timeout)
            if chroot:
                self._client.ensure_path(chroot)
            self._client.chroot = chroot
        except (*_LOST, *DENIED) as error:
            denied = isinstance(error, DENIED) or self._client.client_state == KeeperState.AUTH_FAILED
            self.close()
            raise self._unavailable(
                "refused the credentials" if denied else "did not answer", self.settings.connect_timeout
            ) from error

    def _unavailable(self, what: str, timeout: float) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            f"ZooKeeper at {self.settings.hosts} {what} within {timeout:g} s; "
            "check that it runs, and the hosts, credentials and TLS settings"
        )

    def _full(self, path: str) -> str:
        """Our paths are normal already, so kazoo's checks (a fifth of a snapshot's time) are left out."""
        chroot: str = self._client.chroot
        return f"{chroot}{path}" if path != "/" else chroot or "/"

    def _exists_many(self, paths: Sequence[str]) -> list[tuple[str, bool]]:
        return [(path, node is not None) for path, node in zip(paths, self.get_many(paths), strict=True)]

    def _create_absent(self, paths: Sequence[str]) -> None:
        """Creating what may exist is the one write that is safe to repeat after an unknown outcome."""
        deadline = self._monotonic() + self.settings.operation_timeout
        left = list(paths)
        while left:
            sent = [(path, self._client.create_async(path, b"", acl=self._acl(path))) for path in left]
            left = [path for path, pending in sent if not self._created(pending)]
            if left and self._monotonic() > deadline:
                raise self._unavailable("did not confirm a write", self.settings.operation_timeout)

    def _created(self, pending: Any) -> bool:
        try:
            pending.get(timeout=self.settings.operation_timeout)
        except NodeExistsError:
            return True
        except DENIED as error:
            raise self._denied() from error
        except _LOST:
            self._sleep(0.05)
            return False
        return True

    def _denied(self, path: str = "") -> AccessDeniedError:
        where = f" to {path}" if path else ""
        return AccessDeniedError(
            f"ZooKeeper at {self.settings.hosts} denied access{where}: the znodes belong to other credentials"
        )

    def _acl(self, path: str) -> list[ACL] | None:
        """The permissions of a new znode; ``None`` is the client's default."""
        return None if self.acl_of is None else self.acl_of(path)

    def _read_many(self, operations: Sequence[Any]) -> list[Any]:
        batches = [operations[start : start + _READ_BATCH] for start in range(0, len(operations), _READ_BATCH)]
        replies: list[Any] = []
        for start in range(0, len(batches), _READ_WINDOW):
            replies += self._read_window(batches[start : start + _READ_WINDOW])
        return replies

    def _read_window(self, batches: Sequence[Sequence[Any]]) -> list[Any]:
        def send() -> list[Any]:
            sent = []
            for batch in batches:
                pending = self._client.handler.async_result()
                self._client._call(MultiRead(list(batch)), pending)
                sent.append(pending)
            return sent

        def receive(sent: list[Any]) -> list[Any]:
            replies = [reply for pending in sent for reply in pending.get(timeout=self.settings.operation_timeout)]
            operations = [operation for batch in batches for operation in batch]
            for operation, reply in zip(operations, replies, strict=True):
                if isinstance(reply, DENIED):
                    raise self._denied(operation.path) from reply
                if isinstance(reply, KazooException):
                    raise reply
            return replies

        return self._until_answered(lambda: receive(send()))

    def _retry_read(self, send: Callable[[], Any]) -> Any:
        return self._until_answered(lambda: send().get(timeout=self.settings.operation_timeout))

    def _until_answered(self, ask: Callable[[], _T]) -> _T:
        """Reads change nothing, so they may be asked again until the operation time-out is over."""
        deadline = self._monotonic() + self.settings.operation_timeout
        while True:
            try:
                return ask()
            except DENIED as error:
                raise self._denied() from error
            except _LOST as error:
                if self._monotonic() > deadline:
                    raise self._unavailable("did not answer a read", self.settings.operation_timeout) from error
                self._sleep(0.05)

    def _send(self, ops: Sequence[Op]) -> Any:
        transaction = self._client.transaction()
        for op in ops:
            match op:
                case Create(path, data, ephemeral):
                    transaction.create(path, data, acl=self._acl(path), ephemeral=ephemeral)
                case SetData(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        return transaction.commit_async()

    def _outcome(self, ops: Sequence[Op], pending: Any) -> list[Any] | CommitConflictError | OutcomeUnknownError:
        try:
            results = pending.get(timeout=self.settings.operation_timeout)
        except DENIED as error:
            raise self._denied() from error
        except _LOST as error:
            paths = ", ".join(op.path for op in ops[:3])
            unknown = OutcomeUnknownError(f"the connection to ZooKeeper broke while {paths} was being written")
            unknown.__cause__ = error
            return unknown
        return refusal_of(ops, results) or results


def _node(data: bytes | None, stat: Any) -> Node:
    return Node(data or b"", stat.version, stat.czxid, stat.mzxid, stat.ctime)
