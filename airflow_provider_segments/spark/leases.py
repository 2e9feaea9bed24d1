"""Reader leases that live as long as a Spark session.

A lease taken for a data frame must last until the last action on it, which nobody announces. So it lasts as long as the
session's application, and ends at once with the store (or the process) whose ZooKeeper session it is. PySpark calls
nobody when a session stops; one daemon thread a process looks, for as long as there are leases. All frames of one
session over one table share a lease for an hour, since a lease protects every snapshot taken under it.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from pyspark import SparkContext
from pyspark.sql import SparkSession

from airflow_provider_segments.core.registry.leases import Lease
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.exceptions import LeaseLostError
from airflow_provider_segments.text import cut, escape

POLL_SECONDS = 2.0
"""How long after the end of a session its leases are given back, at most."""

_SHARED_SECONDS = 3600.0
_LOG = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Held:
    """A lease, whose it is, and the ZooKeeper session it lives in."""

    context: SparkContext
    lease: Lease
    zk_session_id: int
    since: float
    lost: bool = False

    @property
    def stopped(self) -> bool:
        """Whether the Spark application has ended."""
        return self.context._jsc is None

    @property
    def session_ended(self) -> bool:
        """Whether the server has ended the ZooKeeper session, and the lease with it. It tells the client, which has
        another session by then, or none yet."""
        return self.lease.session.session_id != self.zk_session_id and not self.closed

    @property
    def closed(self) -> bool:
        """Whether somebody has closed the store, and so given the lease back."""
        return self.lease.session.closed


class _Keeper:
    """The leases of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[_Held] = []
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def add(self, held: _Held) -> None:
        with self._lock:
            self._held.append(held)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="segments-spark-leases", daemon=True)
                self._thread.start()

    def of(self, context: SparkContext) -> list[_Held]:
        with self._lock:
            return [one for one in self._held if one.context is context]

    def forget(self, held: _Held) -> None:
        with self._lock:
            self._held = [one for one in self._held if one is not held]

    def look(self) -> bool:
        """Give back leases of sessions that have stopped, and say which were lost; whether any are left."""
        with self._lock:
            ended = [one for one in self._held if one.stopped and not one.closed]
            self._held = [one for one in self._held if not (one.stopped or one.closed)]
            lost = [one for one in self._held if one.session_ended and not one.lost]
            for one in lost:
                one.lost = True
            if not self._held:
                self._thread = None
        for one in lost:
            _LOG.error(
                "Table %s: the lease of this Spark session's data frames is gone, because its ZooKeeper session ended; "
                "their files may be deleted now: read the table again",
                one.lease.table,
            )
        for one in ended:
            if not one.session_ended:
                one.lease.release()
        return bool(self._held)

    def _watch(self) -> None:
        while True:
            self._wake.wait(POLL_SECONDS)
            try:
                if not self.look():
                    return
            except Exception:
                _LOG.exception("Leases of Spark sessions could not be looked after; trying again")


_KEEPER = _Keeper()


def hold(
    spark: SparkSession,
    table: Table,
    *,
    as_of: str | None = None,
    mark: int | None = None,
    low: int | None,
    high: int | None,
) -> Snapshot:
    """A snapshot under a lease that ends with the session's application, or with ``table``'s store.

    Raises what taking the snapshot raises, and :class:`LeaseLostError` when the lease was lost meanwhile.
    """
    context = spark.sparkContext
    now = table.store.clock.monotonic()
    for held in _KEEPER.of(context):
        mine = held.lease.table == table.name and held.lease.session is table.store.session
        if mine and not (held.lost or held.session_ended or held.closed) and now - held.since < _SHARED_SECONDS:
            taken = table.snapshot(low, high, as_of=as_of, mark=mark)
            held.lease.check()  # it was there before the snapshot and is there after it, so all the while
            return replace(taken, lease=held.lease, _holding=None)
    before = table.store.session.session_id
    taken = table.snapshot(low, high, as_of=as_of, mark=mark, owner=owner_of(spark)).__enter__()
    assert taken.lease is not None
    _KEEPER.add(_Held(context, taken.lease, before, now))
    return taken


def check_leases(spark: SparkSession) -> None:
    """Make sure that no data frame of the session has lost its protection: ask after a long action, before its result
    is used. Raises :class:`LeaseLostError`, once for each lease, and :class:`MetadataUnavailableError` when nobody can
    tell. A store that was closed has given its leases back, and is not asked."""
    for held in _KEEPER.of(spark.sparkContext):
        if held.closed:
            continue
        if held.lost or held.session_ended:
            _KEEPER.forget(held)
            raise LeaseLostError(
                f"table {held.lease.table!r}: the lease of this Spark session's data frames is gone, because its "
                "ZooKeeper session ended; their files may be deleted now: read the table again"
            )
        held.lease.check()


def owner_of(spark: SparkSession) -> str:
    """Who reads, for the person who wonders what a deletion waits for."""
    context = spark.sparkContext
    return f"spark {cut(escape(str(context.appName)), 200)} {context.applicationId}"
