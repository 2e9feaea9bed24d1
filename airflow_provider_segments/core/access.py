"""Access to a cluster: its roles, the check of every znode's permissions, and setting them.

``ROLES`` holds which identities have which role. Every session reads it when it connects, and makes znodes with the
permissions that follow. ``OPERATORS`` is a znode that only operators may read: what is left to them looks at it first,
so ZooKeeper itself refuses, also where the write would be one that writers need, too (a rollback changes the very znode
that a push does).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kazoo.security import ACL

from airflow_provider_segments.core.zookeeper.acl import Roles, is_open
from airflow_provider_segments.core.zookeeper.operations import (
    UNREADABLE,
    AclConflictError,
    CommitConflictError,
    Create,
    SetData,
)
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.core.zookeeper.session import ZooKeeperSession
from airflow_provider_segments.exceptions import (
    AccessDeniedError,
    ContentionError,
    CorruptRecordError,
    InvalidConfigError,
)

if TYPE_CHECKING:
    from airflow_provider_segments.core.cluster import Cluster

_LOG = logging.getLogger("airflow_provider_segments")
_TRIES = 20


@dataclass(frozen=True, slots=True)
class AclReport:
    """What the permissions of a cluster's znodes are: how many were looked at, which of them anyone may change, which
    differ from what the roles say, and how many were set. One that somebody made for himself alone differs, too."""

    znodes: int
    roles: Roles | None
    open: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    changed: int = 0

    @property
    def ok(self) -> bool:
        """Whether nobody may do more, or less, than the roles say."""
        return not self.open and not self.different


def adopt(session: ZooKeeperSession, paths: ClusterPaths) -> None:
    """Have the session make znodes as the cluster's roles say, and say loudly when credentials protect nothing.

    Damaged roles stop nobody who only looks: readers and the doctor are needed most then. A write that would make a
    znode is refused with :class:`CorruptRecordError`, since nobody knows who may see it. Raises
    :class:`AccessDeniedError` for somebody without a role.
    """
    try:
        roles = read_roles(session, paths)
    except CorruptRecordError as error:
        _LOG.error("No push, lock or lease is made until `segments acl apply` has stored the roles anew: %s", error)
        session.acl_of = functools.partial(_permit_nothing, error)
        return
    if roles is not None:
        session.acl_of = lambda path: roles.acls(_parts(paths, path))
        return
    if not session.settings.identities:
        return
    root = session.acls([f"/{paths.cluster}"])[0]
    if root is not None and is_open(root.acls):
        _LOG.warning(
            "ZooKeeper credentials are given, and cluster %r is open: anyone who reaches ZooKeeper can change or erase "
            "it. Run `segments acl check`, and `segments acl apply` to shut it (docs/trust.md)",
            paths.cluster,
        )


def _permit_nothing(error: CorruptRecordError, _: str) -> list[ACL]:
    raise error


def read_roles(session: ZooKeeperSession, paths: ClusterPaths) -> Roles | None:
    """The cluster's roles; ``None`` where none were ever applied. Raises :class:`CorruptRecordError`."""
    node = session.get(paths.roles)
    return None if node is None else Roles.decode(node.data, paths.roles)


def require_operator(cluster: Cluster, what: str) -> None:
    """Raise :class:`AccessDeniedError` when the cluster has roles and ours is not the operator's."""
    try:
        cluster.session.get(cluster.paths.operators)
    except AccessDeniedError:
        raise AccessDeniedError(
            f"{what} needs the role of an operator in cluster {cluster.paths.cluster!r}, which these credentials do "
            "not have; nothing was changed"
        ) from None


def check(cluster: Cluster) -> AclReport:
    """Compare the permissions of every znode with the roles. Changes nothing."""
    roles = read_roles(cluster.session, cluster.paths)
    znodes, shut_to_none, different = 0, [], []
    for path, acls, _ in _walk(cluster.session, f"/{cluster.paths.cluster}"):
        znodes += 1
        if is_open(acls):
            shut_to_none.append(path)
        if roles is not None and not _same(acls, roles.acls(_parts(cluster.paths, path))):
            different.append(path)
    return AclReport(znodes, roles, tuple(shut_to_none), tuple(different))


def apply(cluster: Cluster, roles: Roles | None = None) -> AclReport:
    """Store ``roles``, by default those that are stored, and give every znode the permissions that follow.

    Repeating it is harmless, and does what a killed one has left. Processes that connected before go on making znodes
    as they did: restart them, and apply again. Raises :class:`InvalidConfigError` when there are no roles, or when our
    own identity would not be an operator; :class:`AccessDeniedError`.
    """
    session, paths = cluster.session, cluster.paths
    wanted = roles or read_roles(session, paths)
    if wanted is None:
        raise InvalidConfigError("there are no roles to apply yet; name a reader, a writer and an operator")
    if not set(session.settings.identities) & set(wanted.operator):
        raise InvalidConfigError(
            "the credentials of this session are not among the operators: they could not change the roles again; "
            "connect as one of them"
        )
    session.acl_of = lambda path: wanted.acls(_parts(paths, path))
    session.ensure([f"/{paths.cluster}"])
    for path, data in ((paths.operators, b""), (paths.roles, wanted.encode())):
        _store(session, path, data)
    changed = sum(
        _set(session, path, wanted.acls(_parts(paths, path))) for path, _, _ in _walk(session, f"/{paths.cluster}")
    )
    after = check(cluster)
    return AclReport(after.znodes, after.roles, after.open, after.different, changed)


def _store(session: ZooKeeperSession, path: str, data: bytes) -> None:
    for _ in range(_TRIES):
        node = session.get(path)
        if node is not None and node.data == data:
            return
        try:
            session.commit([Create(path, data) if node is None else SetData(path, data, node.version)])
        except CommitConflictError:
            continue
        return
    raise ContentionError(f"other writers won all {_TRIES} attempts to write {path}")


def _set(session: ZooKeeperSession, path: str, wanted: Sequence[ACL]) -> int:
    """Set one znode's permissions by compare-and-set; 1 when they were others."""
    for _ in range(_TRIES):
        stored = session.acls([path])[0]
        if stored is None or stored.version == UNREADABLE or _same(stored.acls, wanted):
            return 0
        try:
            session.set_acl(path, wanted, stored.version)
        except AclConflictError:
            continue
        return 1
    raise ContentionError(f"other writers won all {_TRIES} attempts to set the permissions of {path}")


def _walk(session: ZooKeeperSession, root: str) -> Iterator[tuple[str, list[ACL], int]]:
    """Every znode from ``root`` down, with its permissions and their version, but not what is below unreadable ones."""
    level = [root]
    while level:
        readable = []
        for path, stored in zip(level, session.acls(level), strict=True):
            if stored is None:
                continue
            yield path, stored.acls, stored.version
            if stored.version != UNREADABLE:
                readable.append(path)
        below = session.children_many(readable)
        level = [f"{path}/{name}" for path, names in zip(readable, below, strict=True) for name in names]


def _same(acls: Sequence[ACL], wanted: Sequence[ACL]) -> bool:
    return {(acl.id, acl.perms) for acl in acls} == {(acl.id, acl.perms) for acl in wanted}


def _parts(paths: ClusterPaths, path: str) -> tuple[str, ...]:
    """The names of ``path`` below the cluster's root."""
    return tuple(path.removeprefix(f"/{paths.cluster}").strip("/").split("/")) if path != f"/{paths.cluster}" else ()
