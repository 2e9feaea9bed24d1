"""One cluster, as everything below :class:`~.table.SegmentStore` works with it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypeVar

from airflow_provider_segments.clock import SYSTEM_CLOCK, Clock
from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.core.zookeeper.retry import Retry
from airflow_provider_segments.exceptions import ClusterNotFoundError, MetadataUnavailableError

_T = TypeVar("_T")
_LIKE = 10  # clusters that a message names


def local_user() -> str:
    """The system's user and the host, as in ``ada on worker-1``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user that has no name
        user = f"user {os.getuid()}"
    return f"{user} on {socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a cluster's metadata and objects are, and how to wait, retry and delete.

    ``storage`` is primary storage; ``tiered`` is where old segments are offloaded to, if anywhere.
    ``actor`` says who works, for the audit trail; ``logged`` are the tables that are known to have one.
    ``checked`` are the stores that were found to be the cluster's own: see :mod:`.binding`.
    """

    session: ZooKeeperSession
    paths: ClusterPaths
    storage: ObjectStore
    tiered: ObjectStore | None = None
    deletion: DeletionSettings = field(default_factory=DeletionSettings)
    clock: Clock = SYSTEM_CLOCK
    retry: Retry = field(default_factory=Retry)
    actor: str = field(default_factory=local_user, compare=False)
    logged: set[str] = field(default_factory=set, compare=False, repr=False)
    checked: list[ObjectStore] = field(default_factory=list, compare=False, repr=False)

    def check_made(self) -> None:
        """Raise :class:`ClusterNotFoundError` when nothing was ever made under the cluster's name: a name with a typing
        mistake must not look like a cluster that is well and has nothing to do."""
        if self.session.get(self.paths.root) is not None:
            return
        like = get_close_matches(self.paths.cluster, self.session.children("/"), n=_LIKE, cutoff=0.0)
        known = [name for name in like if self._is_cluster(name)]
        raise ClusterNotFoundError(
            f"cluster {self.paths.cluster!r} was never made at {self.session.settings.hosts}: check the name, or make "
            f"it by applying a table config. Clusters like it: {', '.join(known) or 'none'}"
        )

    def _is_cluster(self, name: str) -> bool:
        """Return True for a cluster that may be looked into; one that is shut to us says nothing."""
        try:
            return "PROPERTYSTORE" in self.session.children(f"/{name}")
        except MetadataUnavailableError:
            return False

    def retried(self, what: str, attempt: Callable[[], _T]) -> _T:
        """Call ``attempt`` until it returns: see :meth:`.zookeeper.retry.Retry.run`."""
        return self.retry.run(what, self.session, self.clock, attempt)
