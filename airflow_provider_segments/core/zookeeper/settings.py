"""How to reach ZooKeeper, and as whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from kazoo.client import KazooClient
from kazoo.hosts import collect_hosts
from kazoo.protocol.paths import normpath
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, make_digest_acl_credential

from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.text import mask


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
