"""The stores behind the page: one for each ``segments`` connection, kept open between requests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow.models.connection import Connection
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import InvalidConfigError, MetadataUnavailableError
from airflow_provider_segments.hooks.settings import SegmentsConnection

PATIENCE_S = 2.0
"""Longest wait for ZooKeeper: a person looks at the page."""

_ENVIRONMENT = "AIRFLOW_CONN_"


def connection_ids() -> list[str]:
    """Ids of the connections of type ``segments``: those in Airflow's database and those in the environment."""
    with create_session() as session:
        stored = session.scalars(select(Connection.conn_id).where(Connection.conn_type == "segments")).all()
    given = [name.removeprefix(_ENVIRONMENT).lower() for name in os.environ if name.startswith(_ENVIRONMENT)]
    return sorted({*stored, *(conn_id for conn_id in given if _is_ours(conn_id))})


def _is_ours(conn_id: str) -> bool:
    try:
        return bool(Connection.get_connection_from_secrets(conn_id).conn_type == "segments")
    except Exception:
        return False  # a connection of somebody else that cannot be read is none of ours


@dataclass(frozen=True, slots=True)
class _Open:
    fingerprint: str
    store: SegmentStore


class Stores:
    """Opens the store of a connection once, and again when the connection was changed or its session has failed."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()

    @contextmanager
    def use(self, conn_id: str) -> Iterator[tuple[SegmentsConnection, SegmentStore]]:
        """The connection's settings and its store. Raises :class:`InvalidConfigError` for a connection that does not
        exist, and :class:`MetadataUnavailableError` when ZooKeeper does not answer soon enough."""
        settings = _settings(conn_id)
        store = self._store(conn_id, settings)
        try:
            yield settings, store
        except MetadataUnavailableError:
            self._forget(conn_id, store)
            raise

    def _store(self, conn_id: str, settings: SegmentsConnection) -> SegmentStore:
        with self._lock:
            known = self._open.get(conn_id)
            if known is not None and known.fingerprint == settings.fingerprint:
                return known.store
        store = settings.connect(patience_s=PATIENCE_S)
        with self._lock:
            before = self._open.get(conn_id)
            self._open[conn_id] = _Open(settings.fingerprint, store)
        if before is not None:
            before.store.close()
        return store

    def _forget(self, conn_id: str, store: SegmentStore) -> None:
        with self._lock:
            known = self._open.get(conn_id)
            if known is not None and known.store is store:
                del self._open[conn_id]
        store.close()


def _settings(conn_id: str) -> SegmentsConnection:
    if conn_id not in connection_ids():
        raise InvalidConfigError(f"there is no connection {conn_id!r} of type segments")
    return SegmentsConnection.parse(Connection.get_connection_from_secrets(conn_id))
