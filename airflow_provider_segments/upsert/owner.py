"""One owner for the key partitions of a table: a lock with a lease, and its fence in every publish.

The heads keep two ingestors apart also without it; the lock keeps them from doing work that is refused in the end. Its
holder may be killed: when the lease is over the next one takes it, and whatever the first still tries to publish is
refused by the fence.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_segments.core.locking import LockGranularity, LockRequest, LockType, Priority, granted_lock
from airflow_provider_segments.core.locking.renewal import keep_leases
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import ALL_TIME
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.upsert.record import require_record

LEASE_MS = 30_000
"""For how long nobody else ingests after a holder was killed."""


@contextmanager
def own_key_partitions(table: Table, name: str, *, lease_ms: int = LEASE_MS, wait_s: float = 0.0) -> Iterator[HeldLock]:
    """Hold all key partitions of ``table`` until the block ends; waits up to ``wait_s`` seconds for another holder.

    Raises :class:`LockDeniedError` when somebody else holds them, :class:`UpsertRefusedError` for a table that is no
    upsert table, and what the lock box raises.
    """
    partitions = require_record(table.lineage()).key_partitions
    # A group shares its locks among its tasks, so every process is a group of its own.
    group = f"upsert {name} {socket.gethostname()}:{os.getpid()} {table.store.clock.new_id()}"
    request = LockRequest(
        group=group,
        task="ingest",
        interval=ALL_TIME,
        lock_type=LockType.EXCLUSIVE,
        granularity=LockGranularity.SEGMENT,
        partitions=frozenset(range(partitions)),
        priority=Priority.BATCH,
        lease_ms=lease_ms,
    )
    lock = granted_lock(table.name, table.locks.acquire_blocking(request, wait_s))
    try:
        with keep_leases(table.locks, group, "ingest", lease_ms, [lock.lock_id]):
            yield HeldLock(lock_id=lock.lock_id, group=group, task="ingest")
    finally:
        table.locks.release(group, "ingest", lock_ids=[lock.lock_id])
