"""ZooKeeper sessions that misbehave at a chosen write. Every write of a session, chunk folders included, is counted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import CommitConflictError, Op, ZooKeeperSession, ZooKeeperSettings
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.exceptions import OutcomeUnknownError

Outcome = list[Any] | CommitConflictError | OutcomeUnknownError


class CountingSession(ZooKeeperSession):
    """Sends one write at a time and calls :meth:`before` and :meth:`after` around each; ``writes`` counts them."""

    writes = 0

    def commit_many(self, transactions: Sequence[Sequence[Op]]) -> list[Outcome]:
        return [self._one(ops) for ops in transactions]

    def _one(self, ops: Sequence[Op]) -> Outcome:
        self.writes += 1
        self.before()
        outcome = super().commit_many([ops])[0]
        self.after()
        return outcome

    def _create_absent(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.writes += 1
            self.before()
            super()._create_absent([path])
            self.after()

    def before(self) -> None:
        """Called before a write is sent."""

    def after(self) -> None:
        """Called when a write has been answered."""


class DyingSession(CountingSession):
    """Ends the process, as ``kill -9`` would, right before or right after the ``at``-th write."""

    at = 0
    landed = False

    def before(self) -> None:
        if self.writes == self.at and not self.landed:
            os._exit(9)

    def after(self) -> None:
        if self.writes == self.at and self.landed:
            os._exit(9)


class LossySession(CountingSession):
    """Reports a broken connection for writes that ``decide`` picks: ``before`` they are sent, ``after`` they landed."""

    decide: Callable[[], str] = staticmethod(lambda: "")

    def _one(self, ops: Sequence[Op]) -> Outcome:
        fate = self.decide()
        if fate == "before":
            return OutcomeUnknownError("lost on purpose, before it was sent")
        outcome = super()._one(ops)
        if fate == "after":
            return OutcomeUnknownError("lost on purpose, after it was answered")
        return outcome


def settings(hosts: str, **other: Any) -> ZooKeeperSettings:
    """Settings with times for a test on one machine."""
    return ZooKeeperSettings(hosts=hosts, **{"session_timeout": 8.0, "operation_timeout": 10.0, **other})


def expire(session: ZooKeeperSession) -> None:
    """End the session at the server, as a time-out does: another connection takes it over and closes it. Returns when
    the client has noticed, and has a new one."""
    before = session._client.client_id
    until = time.monotonic() + 120
    while True:
        # The client may have taken its session back before the request to close it was sent: then once more.
        close_elsewhere(session.settings.hosts, before)
        if _has_new_session(session, before):
            return
        assert time.monotonic() < until, "the client never got a new session"


def close_elsewhere(hosts: str, client_id: tuple[int, bytes] | None) -> None:
    """Take a session over from its client and close it. Certain only while its client cannot reach the server."""
    thief = KazooClient(hosts=hosts, client_id=client_id, timeout=8.0)
    thief.start(timeout=30)
    thief.stop()
    thief.close()


def _has_new_session(session: ZooKeeperSession, before: tuple[int, bytes] | None) -> bool:
    """Look for up to five seconds; the server says that a session is gone only when it is asked."""
    client = session._client
    until = time.monotonic() + 5
    while client.client_id in (None, before) or client.client_id[0] == 0:
        if time.monotonic() > until:
            return False
        with suppress(KazooException):
            client.exists_async("/")
        time.sleep(0.02)
    return True


def store_on(session: ZooKeeperSession, cluster: str, storage: ObjectStore, **options: Any) -> SegmentStore:
    """The store of a cluster through a session that is open already."""
    return SegmentStore(Cluster(session, ClusterPaths(cluster), storage, **options))
