"""The stores behind the page: one for each ``segments`` connection, kept open between requests.

A person looks at the page, so nobody waits longer than ``PATIENCE_S`` for ZooKeeper. The kazoo client takes ten
seconds and more to give up on a server that accepts connections and says nothing, so connecting and closing happen in
threads of their own. One failure answers all requests of the next second: pages that refresh themselves must not use
up the threads of Airflow's API server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_provider_segments.exceptions import AccessDeniedError, MetadataUnavailableError
from airflow_provider_segments.hooks.settings import SegmentsConnection
from airflow_provider_segments.plugins.connections import read_connection
from airflow_provider_segments.plugins.facts import FactsCache
from airflow_provider_segments.plugins.overview import Opened

PATIENCE_S = 1.5
"""Longest wait for ZooKeeper; the message is on the page within two seconds."""

_REST_S = 1.0
"""For how long after a failure nobody asks ZooKeeper again."""


@dataclass(frozen=True, slots=True)
class _Failure:
    fingerprint: str
    until_s: float
    message: str


@dataclass(frozen=True, slots=True)
class _Opening:
    """A store that is open, or being opened."""

    fingerprint: str
    facts: Future[FactsCache]


class Stores:
    """Opens the store of a connection once, and again when the connection was changed or its session has failed."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._open: dict[str, _Opening] = {}
        self._failed: dict[str, _Failure] = {}
        self._lock = threading.Lock()

    @contextmanager
    def use(self, conn_id: str) -> Iterator[Opened]:
        """The connection's settings, its store, and what is known of its tables. Raises :class:`InvalidConfigError` for
        a connection that does not exist, and :class:`MetadataUnavailableError` when ZooKeeper does not answer soon
        enough."""
        settings = read_connection(conn_id)
        opening = self._opening(conn_id, settings)
        try:
            facts = self._wait(opening, settings)
        except Exception as error:
            self._forget(conn_id, opening, error)
            raise
        try:
            yield Opened(settings, facts.store, facts)
        except AccessDeniedError:
            raise  # ZooKeeper answers: it refuses
        except MetadataUnavailableError as error:
            self._forget(conn_id, opening, error)
            raise

    def _opening(self, conn_id: str, settings: SegmentsConnection) -> _Opening:
        with self._lock:
            failed = self._failed.get(conn_id)
            if failed and failed.fingerprint == settings.fingerprint and self._monotonic() < failed.until_s:
                raise MetadataUnavailableError(failed.message)
            known = self._open.get(conn_id)
            if known is not None and known.fingerprint == settings.fingerprint:
                return known
            opening = _Opening(settings.fingerprint, Future())
            self._open[conn_id] = opening
        if known is not None:
            _close(known)
        _in_background(lambda: _connect(opening, settings))
        return opening

    def _wait(self, opening: _Opening, settings: SegmentsConnection) -> FactsCache:
        try:
            return opening.facts.result(PATIENCE_S)
        except TimeoutError as error:
            raise MetadataUnavailableError(
                f"ZooKeeper at {settings.zk_hosts} did not answer within {PATIENCE_S:g} s; "
                "check that it runs, and the hosts, credentials and TLS settings"
            ) from error

    def _forget(self, conn_id: str, opening: _Opening, error: Exception) -> None:
        with self._lock:
            if self._open.get(conn_id) is not opening:
                return
            del self._open[conn_id]
            if isinstance(error, MetadataUnavailableError):
                self._failed[conn_id] = _Failure(opening.fingerprint, self._monotonic() + _REST_S, str(error))
        _close(opening)


def _connect(opening: _Opening, settings: SegmentsConnection) -> None:
    try:
        opening.facts.set_result(FactsCache(settings.connect(patience_s=PATIENCE_S)))
    except BaseException as error:
        opening.facts.set_exception(error)


def _close(opening: _Opening) -> None:
    """Close the store once it is open, whoever still waits for it."""

    def close(done: Future[FactsCache]) -> None:
        if done.exception() is None:
            _in_background(done.result().store.close)

    opening.facts.add_done_callback(close)


def _in_background(work: Callable[[], object]) -> None:
    threading.Thread(target=work, name="segments-page", daemon=True).start()
