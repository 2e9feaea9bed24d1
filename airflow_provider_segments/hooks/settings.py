"""What a ``segments`` connection says, checked and put into the core's own types."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import conf

from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.model.names import is_number
from airflow_provider_segments.core.model.period import parse_period
from airflow_provider_segments.core.model.variables import (
    DEFAULT_CLUSTER,
    FILE_MODE_VARIABLE,
    STORAGE_VARIABLES,
    TIERED_URI_VARIABLE,
    TIERED_VARIABLES,
    ZOOKEEPER_VARIABLES,
)
from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.text import has_userinfo, mask

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_segments.core.table import SegmentStore
    from airflow_provider_segments.core.zookeeper.settings import ZooKeeperSettings

_SECRET_VARIABLES = frozenset(
    {
        "SEGMENTS_S3_SECRET_KEY",
        "SEGMENTS_S3_SESSION_TOKEN",
        "SEGMENTS_TIERED_S3_SECRET_KEY",
        "SEGMENTS_TIERED_S3_SESSION_TOKEN",
        "SEGMENTS_ZK_PASSWORD",
        "SEGMENTS_ZK_KEYFILE_PASSWORD",
    }
)
_DEPLOYMENT = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_COUNTS = {"deletion_parallelism": "parallelism", "max_retry_delete_count": "max_retry_delete_count"}
_PERIODS = {
    "reconsume_later": "reconsume_later_ms",
    "max_lease_age": "max_lease_age_ms",
}


@dataclass(frozen=True, slots=True)
class SegmentsConnection:
    """A ``segments`` connection. Secrets are kept out of ``repr``.

    ``zk_hosts`` is ``host:port,host:port/chroot``. ``storage_options`` is what
    :func:`~airflow_provider_segments.core.storage.open_store` takes besides the URI; what is absent comes from boto3's
    standard chain. ``tiered_uri`` is where old segments are offloaded to, if anywhere; ``tiered_options`` opens it, and
    when the connection has none of these, ``storage_options`` does. ``deletion`` is how the second phase of deletion
    behaves. ``deployment`` names the Airflow among those that work on the cluster; it is part of every identity.
    ``auth`` is how ZooKeeper knows the user: ``digest`` or ``sasl``. ``file_mode`` is the permissions of objects in a
    file system, in octal digits.
    """

    conn_id: str
    zk_hosts: str
    cluster: str
    storage_uri: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Mapping[str, Any] = field(default_factory=dict, repr=False)
    tiered_uri: str = ""
    tiered_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    deletion: DeletionSettings = field(default_factory=DeletionSettings)
    deployment: str = "airflow"
    file_mode: str = ""
    auth: str = "digest"

    @classmethod
    def parse(cls, connection: Connection) -> SegmentsConnection:
        """The settings in ``connection``. Raises :class:`InvalidConfigError` naming the field that is wrong."""
        extra = _extra(connection)
        conn_id = str(connection.conn_id)
        storage_uri = _text(extra, "storage_uri")
        if not storage_uri:
            raise InvalidConfigError(
                f"connection {conn_id!r} has no storage URI; set the field (extra: storage_uri) "
                "to where the segments are kept, as in s3://bucket/prefix or file:///data/segments"
            )
        if bool(connection.login) != bool(connection.password):
            raise InvalidConfigError(f"connection {conn_id!r}: ZooKeeper user and password must be given together")
        _check_addresses(conn_id, connection.host or "", extra)
        return cls(
            conn_id=conn_id,
            zk_hosts=_hosts(conn_id, connection.host, connection.port),
            cluster=_text(extra, "cluster") or DEFAULT_CLUSTER,
            storage_uri=storage_uri,
            username=connection.login or None,
            password=connection.password or None,
            storage_options=_storage_options(conn_id, extra),
            tls=_tls(conn_id, extra),
            tiered_uri=_tiered_uri(conn_id, extra, storage_uri),
            tiered_options=_storage_options(conn_id, extra, "tiered_"),
            deletion=_deletion(conn_id, extra),
            deployment=_deployment(conn_id, extra),
            file_mode=_text(extra, "file_mode"),
            auth=_text(extra, "zk_auth") or "digest",
        )

    @property
    def zookeeper(self) -> ZooKeeperSettings:
        """How to reach ZooKeeper."""
        from airflow_provider_segments.core.zookeeper.settings import ZooKeeperSettings

        return ZooKeeperSettings(
            hosts=self.zk_hosts, username=self.username, password=self.password, auth=self.auth, **self.tls
        )

    def connect(self, actor: str | None = None, *, patience_s: float | None = None) -> SegmentStore:
        """Open the store that the connection describes, for ``actor`` where the audit trail is to name somebody else
        than the system's user. ``patience_s`` is the longest wait for ZooKeeper, in seconds. Raises
        :class:`MetadataUnavailableError` and :class:`InvalidConfigError`."""
        from airflow_provider_segments.core.storage import open_store
        from airflow_provider_segments.core.table import SegmentStore

        tiered = None
        if self.tiered_uri:
            tiered = open_store(
                self.tiered_uri, file_mode=self.file_mode, **(self.tiered_options or self.storage_options)
            )
        zookeeper = self.zookeeper
        if patience_s is not None:
            zookeeper = replace(zookeeper, connect_timeout=patience_s, operation_timeout=patience_s)
        return SegmentStore.connect(
            cluster=self.cluster,
            zookeeper=zookeeper,
            storage=open_store(self.storage_uri, file_mode=self.file_mode, **self.storage_options),
            tiered=tiered,
            deletion=self.deletion,
            **({"actor": actor} if actor else {}),
        )

    @property
    def fingerprint(self) -> str:
        """The same for connections that open the same store with the same credentials. Tells nothing of them."""
        parts = [
            self.zk_hosts,
            self.cluster,
            self.storage_uri,
            *(f"{key}={value}" for key, value in self.environment().items()),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def secrets(self) -> list[str]:
        """Every value that must never be shown."""
        return [value for key, value in self.environment().items() if key in _SECRET_VARIABLES]

    def environment(self) -> dict[str, str]:
        """Environment variables from which a job of ours reads its credentials; secrets travel in no other way."""
        options = {STORAGE_VARIABLES[key]: value for key, value in self.storage_options.items()}
        if self.file_mode:
            options[FILE_MODE_VARIABLE] = self.file_mode
        if self.tiered_uri:
            options[TIERED_URI_VARIABLE] = self.tiered_uri
            options |= {TIERED_VARIABLES[key]: value for key, value in self.tiered_options.items()}
        if self.username and self.password:
            options |= {"SEGMENTS_ZK_USERNAME": self.username, "SEGMENTS_ZK_PASSWORD": self.password}
            options["SEGMENTS_ZK_AUTH"] = self.auth
        return options | self._tls_environment()

    def _tls_environment(self) -> dict[str, str]:
        if not self.tls:
            return {}
        found = {ZOOKEEPER_VARIABLES[key]: str(value) for key, value in self.tls.items() if key in ZOOKEEPER_VARIABLES}
        verify = "true" if self.tls.get("verify_certs", True) else "false"
        return {"SEGMENTS_ZK_USE_SSL": "true", "SEGMENTS_ZK_VERIFY_CERTS": verify, **found}


def _check_addresses(conn_id: str, hosts: str, extra: Mapping[str, Any]) -> None:
    """Refuse credentials in an address before it is shown or given to a job: addresses are logged."""
    fields = ("storage_uri", "endpoint_url", "tiered_storage_uri", "tiered_endpoint_url")
    for name, text in {"host": hosts, **{key: _text(extra, key) for key in fields}}.items():
        if has_userinfo(text) or ("?" in text and mask(text) != text) or (name == "host" and "@" in text):
            raise InvalidConfigError(
                f"connection {conn_id!r}: {name} {mask(text)!r} must not hold credentials; "
                "they have fields of their own"
            )


def _extra(connection: Connection) -> Mapping[str, Any]:
    """The extra as an object. Anything else is an error."""
    raw = connection.extra
    try:
        extra = json.loads(raw) if raw else {}
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise InvalidConfigError(f"connection {connection.conn_id!r}: the extra must be a JSON object")
    return extra


def _text(extra: Mapping[str, Any], key: str) -> str:
    value = extra.get(key)
    return str(value).strip() if value is not None else ""


def _hosts(conn_id: str, host: str | None, port: int | None) -> str:
    """``host`` may hold several servers and a chroot; ``port`` is for those that name none."""
    servers, slash, chroot = (host or "").strip().partition("/")
    names = [name.strip() for name in servers.split(",") if name.strip()]
    if not names:
        raise InvalidConfigError(
            f"connection {conn_id!r} has no host; expected the ZooKeeper servers, as in zk1:2181,zk2:2181/chroot"
        )
    return ",".join(name if _has_port(name) else f"{name}:{port or 2181}" for name in names) + slash + chroot


def _has_port(name: str) -> bool:
    return is_number(name.rpartition("]")[2].rpartition(":")[2]) and ":" in name.rpartition("]")[2]


def _storage_options(conn_id: str, extra: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    options = {
        "endpoint_url": _text(extra, f"{prefix}endpoint_url"),
        "region": _text(extra, f"{prefix}region"),
        "access_key": _text(extra, f"{prefix}s3_access_key"),
        "secret_key": _text(extra, f"{prefix}s3_secret_key"),
        "session_token": _text(extra, f"{prefix}s3_session_token"),
    }
    if bool(options["access_key"]) != bool(options["secret_key"]):
        which = "tiered " if prefix else ""
        raise InvalidConfigError(
            f"connection {conn_id!r}: {which}S3 access key and {which}S3 secret key must be given together"
        )
    return {key: value for key, value in options.items() if value}


def _tiered_uri(conn_id: str, extra: Mapping[str, Any], storage_uri: str) -> str:
    uri = _text(extra, "tiered_storage_uri")
    if uri and uri.rstrip("/") == storage_uri.rstrip("/"):
        raise InvalidConfigError(
            f"connection {conn_id!r}: extra tiered_storage_uri is the same as storage_uri; "
            "offloaded copies need a place of their own"
        )
    return uri


def _deletion(conn_id: str, extra: Mapping[str, Any]) -> DeletionSettings:
    """How the second phase behaves; what the extra does not say is PIP-186's default."""
    given: dict[str, Any] = {}
    for key, name in _COUNTS.items():
        if text := _text(extra, key):
            if not is_number(text):
                raise InvalidConfigError(f"connection {conn_id!r}: extra {key} must be a whole number, not {text!r}")
            given[name] = int(text)
    try:
        given |= {name: parse_period(text) for key, name in _PERIODS.items() if (text := _text(extra, key))}
        return DeletionSettings(**given)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"connection {conn_id!r}: {error}") from error


def _deployment(conn_id: str, extra: Mapping[str, Any]) -> str:
    """What the extra says, or else the host of the API server's base URL, which one Airflow's components share."""
    named = _text(extra, "deployment")
    if named and _DEPLOYMENT.fullmatch(named) is None:
        raise InvalidConfigError(
            f"connection {conn_id!r}: extra deployment must be 1 to 64 letters, digits and ._:-, not {named!r:.100}"
        )
    return named or urlsplit(conf.get("api", "base_url", fallback="") or "").netloc.rpartition("@")[2] or "airflow"


def _tls(conn_id: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """kazoo's TLS options; empty when nothing in the connection asks for TLS."""
    files = {
        "ca": _text(extra, "tls_ca"),
        "certfile": _text(extra, "tls_cert"),
        "keyfile": _text(extra, "tls_key"),
        "keyfile_password": _text(extra, "tls_key_password"),
    }
    given = {key: value for key, value in files.items() if value}
    if not given and not _flag(conn_id, extra, "tls", default=False):
        return {}
    return {"use_ssl": True, "verify_certs": _flag(conn_id, extra, "tls_verify", default=True), **given}


def _flag(conn_id: str, extra: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = extra.get(key)
    if value is None or value == "":
        return default
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise InvalidConfigError(f"connection {conn_id!r}: extra {key} must be true or false, not {value!r}")
