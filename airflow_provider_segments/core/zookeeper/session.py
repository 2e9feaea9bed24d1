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
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.hosts import collect_hosts
from kazoo.protocol.paths import normpath
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, make_digest_acl_credential

from airflow_provider_segments.core.zookeeper.multiread import MultiRead
from airflow_provider_segments.exceptions import (
    AccessDeniedError,
    InvalidConfigError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    RecordTooLargeError,
    SegmentsError,
)
from airflow_provider_segments.text import mask

MAX_REQUEST = 1_040_000
"""Bytes one request may have. The server's default limit is 1,048,575, and going over it cuts the connection."""

_READ_BATCH = 128  # reads in one multi-read request
_READ_WINDOW = 8  # multi-read requests out at once; 20,000 outstanding requests break a session
UNREADABLE = -1
"""The version of permissions that may not be read."""

_ACL_WINDOW = 200  # requests for permissions out at once
_WRITE_WINDOW = 8  # transactions out at once
_LOST = (ConnectionLoss, SessionExpiredError, ConnectionClosedError, OperationTimeoutError, KazooTimeoutError)
_DENIED = (NoAuthError, AuthFailedError)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperSettings:
    """How to reach ZooKeeper. ``hosts`` is ``host:port,host:port/chroot``; times are in seconds.

    ``username`` and ``password`` are for ``auth``: ZooKeeper's ``digest`` scheme, or ``sasl`` (DIGEST-MD5). With them,
    every znode of a cluster without roles is made readable and writable by that user only. The TLS fields are handed to
    kazoo: ``ca``, ``certfile`` and ``keyfile`` are PEM files.
    """

    hosts: str
    session_timeout: float = 10.0
    connect_timeout: float = 10.0
    operation_timeout: float = 30.0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    auth: str = "digest"
    use_ssl: bool = False
    ca: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    keyfile_password: str | None = field(default=None, repr=False)
    verify_certs: bool = True

    def __post_init__(self) -> None:
        if not self.hosts.strip():
            raise InvalidConfigError("no ZooKeeper hosts are given; expected host:port[,host:port][/chroot]")
        _check_hosts(self.hosts)
        for name in ("username", "password"):
            _check_unicode(name, getattr(self, name))
        if (self.username is None) != (self.password is None):
            raise InvalidConfigError("ZooKeeper username and password must be given together")
        if self.auth not in ("digest", "sasl"):
            raise InvalidConfigError(f"ZooKeeper authentication {self.auth[:20]!r} is unknown; use digest or sasl")
        if self.auth == "sasl" and self.username is None:
            raise InvalidConfigError("ZooKeeper authentication sasl needs a username and a password")

    @property
    def identities(self) -> tuple[str, ...]:
        """How ZooKeeper knows these credentials, as in ``digest:USER:HASH``; empty without any."""
        if self.username is None or self.password is None:
            return ()
        if self.auth == "sasl":
            return (f"sasl:{self.username}",)
        return (f"digest:{make_digest_acl_credential(self.username, self.password)}",)

    def client(self) -> KazooClient:
        """A kazoo client that was not started. Reconnects for as long as it lives."""
        digest = [("digest", f"{self.username}:{self.password}")] if self.identities and self.auth == "digest" else None
        login = {"mechanism": "DIGEST-MD5", "username": self.username, "password": self.password}
        return KazooClient(
            hosts=self.hosts,
            timeout=self.session_timeout,
            auth_data=digest,
            sasl_options=login if self.auth == "sasl" else None,
            default_acl=CREATOR_ALL_ACL if self.identities else None,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
            use_ssl=self.use_ssl,
            ca=self.ca,
            certfile=self.certfile,
            keyfile=self.keyfile,
            keyfile_password=self.keyfile_password,
            verify_certs=self.verify_certs,
        )


def _check_hosts(hosts: str) -> None:
    """Refuse what kazoo would only trip over in a thread of its own, or what would show a password to everyone."""
    if "@" in hosts:
        raise InvalidConfigError(
            f"ZooKeeper hosts {mask(hosts)!r} must not hold credentials; give username and password apart from them"
        )
    expected = f"ZooKeeper hosts {hosts[:80]!r} must be host:port[,host:port][/chroot], in printable ASCII"
    if not hosts.isascii() or not hosts.isprintable():
        raise InvalidConfigError(expected)
    try:
        servers, chroot = collect_hosts(hosts)
        normpath(chroot or "/")
        for server, _ in servers:
            server.encode("idna")
    except ValueError as error:
        raise InvalidConfigError(f"{expected}: {error}") from None


def _check_unicode(name: str, value: str | None) -> None:
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise InvalidConfigError(f"the ZooKeeper {name} is not valid Unicode text") from None


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
        self._lost_watchers: set[Callable[[], None]] = set()
        self._lock = threading.Lock()

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
            except _DENIED:
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
        except _DENIED as error:
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
            _check_size(ops)
        outcomes: list[list[Any] | CommitConflictError | OutcomeUnknownError] = []
        for start in range(0, len(transactions), _WRITE_WINDOW):
            window = transactions[start : start + _WRITE_WINDOW]
            sent = [self._send(ops) for ops in window]
            outcomes += [self._outcome(ops, pending) for ops, pending in zip(window, sent, strict=True)]
        return outcomes

    def watch(self, path: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` from another thread when ``path`` is made, changed or removed, or the session is lost.

        One call means "look again"; watch again to hear of the next change. Returns a function that forgets
        ``changed``. Set the watch first and read after it, so that no change falls between the two.
        """
        armed = threading.Event()
        armed.set()

        def once(_: WatchedEvent | None = None) -> None:
            if armed.is_set():
                armed.clear()
                changed()

        def forget() -> None:
            armed.clear()
            with self._lock:
                self._lost_watchers.discard(once)

        with self._lock:
            self._lost_watchers.add(once)
        self._retry_read(lambda: self._client.exists_async(path, watch=once))
        return forget

    def _start(self) -> None:
        self._client.add_listener(self._on_state)
        chroot, self._client.chroot = self._client.chroot, ""  # kazoo makes a chroot's last part only
        try:
            self._client.start(timeout=self.settings.connect_timeout)
            if chroot:
                self._client.ensure_path(chroot)
            self._client.chroot = chroot
        except (*_LOST, *_DENIED) as error:
            denied = isinstance(error, _DENIED) or self._client.client_state == KeeperState.AUTH_FAILED
            self.close()
            raise self._unavailable(
                "refused the credentials" if denied else "did not answer", self.settings.connect_timeout
            ) from error

    def _on_state(self, state: str) -> None:
        if state != KazooState.LOST:
            return
        with self._lock:
            watchers = list(self._lost_watchers)
        for changed in watchers:
            changed()

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
        except _DENIED as error:
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
                if isinstance(reply, _DENIED):
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
            except _DENIED as error:
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
        except _DENIED as error:
            raise self._denied() from error
        except _LOST as error:
            paths = ", ".join(op.path for op in ops[:3])
            unknown = OutcomeUnknownError(f"the connection to ZooKeeper broke while {paths} was being written")
            unknown.__cause__ = error
            return unknown
        return _refusal(ops, results) or results


def _node(data: bytes | None, stat: Any) -> Node:
    return Node(data or b"", stat.version, stat.czxid, stat.mzxid, stat.ctime)


def _check_size(ops: Sequence[Op]) -> None:
    size = request_size(ops)
    if size > MAX_REQUEST:
        largest = max(ops, key=lambda op: len(getattr(op, "data", b"")))
        raise RecordTooLargeError(
            f"a write of {size:,} bytes is over ZooKeeper's limit of {MAX_REQUEST:,}; "
            f"its largest record is {largest.path} with {len(getattr(largest, 'data', b'')):,} bytes"
        )


def _refusal(ops: Sequence[Op], results: Sequence[Any]) -> CommitConflictError | None:
    """kazoo returns a transaction's errors instead of raising them; the one that is not a side effect says why."""
    for op, result in zip(ops, results, strict=True):
        if not isinstance(result, Exception) or isinstance(result, RolledBackError | RuntimeInconsistency):
            continue
        if isinstance(result, _DENIED):
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
