"""One cluster, as everything below :class:`~.table.SegmentStore` works with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from airflow_provider_segments.clock import SYSTEM_CLOCK, Clock
from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.core.zookeeper.retry import Retry

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a cluster's metadata and objects are, and how to wait, retry and delete.

    ``storage`` is primary storage; ``tiered`` is where old segments are offloaded to, if anywhere.
    """

    session: ZooKeeperSession
    paths: ClusterPaths
    storage: ObjectStore
    tiered: ObjectStore | None = None
    deletion: DeletionSettings = field(default_factory=DeletionSettings)
    clock: Clock = SYSTEM_CLOCK
    retry: Retry = field(default_factory=Retry)

    def retried(self, what: str, attempt: Callable[[], _T]) -> _T:
        """Call ``attempt`` until it returns: see :meth:`.zookeeper.retry.Retry.run`."""
        return self.retry.run(what, self.session, self.clock, attempt)
