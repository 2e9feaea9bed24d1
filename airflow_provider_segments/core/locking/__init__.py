"""Locks on time chunks and segments, and the ids of new segments, in one record a table.

``rules`` says when locks are in each other's way, ``box`` what a request does to the box, ``allocation`` and
``counters`` which ids come next, ``holding`` what a task may rely on: all of them pure. ``store`` keeps the box in
ZooKeeper, with a fence for each lock.

The rules are Apache Druid's (proposal #6319 and #7491, concurrent APPEND and REPLACE of release 28). On purpose
different:

* A lock has a lease. Druid's overlord knows which tasks live; here any process may be gone. When the lease is over,
  anybody may take the lock; until then its holder, or a retry of it, renews it. Fences make taking safe.
* Publishing checks every lock that it relies on, in its own transaction. Druid takes several segment locks for valid
  without a look.
* A lock's version is above every version the box has ever given, whatever the clock says. Druid trusts the clock.
* A group with several locks that cover a request gets the same one each time. Druid fails, and a retry with it.
* A removed task may ask again as a later attempt; its old attempts are refused for an hour (Druid #18464, a lock
  granted to a task that was being removed).
* Compaction takes new ids from the same counters as appends: overshadowing is by sets of ids here, so there is no
  second id space for rewritten segments.

KILL locks are kept, for ``internal`` callers as in Druid: they coexist with everything but each other, so they can keep
two clean-ups of one interval apart. Two-phase deletion does not need them; it decides in its own transactions.

What keeps the record small: sequence keys and ids belong to a lock and go when it is released; counters of old time
are folded (``counters``); revoked and abandoned locks are dropped after a day, removed tasks after an hour.
"""

from airflow_provider_segments.core.locking.box import LocalIds, LockBox
from airflow_provider_segments.core.locking.types import (
    DEFAULT_LEASE_MS,
    Allocated,
    AllocationRequest,
    AllocationResult,
    Denied,
    Granted,
    Lock,
    LockGranularity,
    LockRequest,
    LockResult,
    LockType,
    Priority,
    Revocation,
    Revoked,
    granted_lock,
)
from airflow_provider_segments.core.locking.versions import APPEND_VERSION
from airflow_provider_segments.core.model.identity import SegmentKey
from airflow_provider_segments.exceptions import (
    InvalidLockRequestError,
    LockDeniedError,
    LockLostError,
    LockRefusedError,
    LockRevokedError,
)

__all__ = [
    "APPEND_VERSION",
    "DEFAULT_LEASE_MS",
    "Allocated",
    "AllocationRequest",
    "AllocationResult",
    "Denied",
    "Granted",
    "InvalidLockRequestError",
    "LocalIds",
    "Lock",
    "LockBox",
    "LockDeniedError",
    "LockGranularity",
    "LockLostError",
    "LockRefusedError",
    "LockRequest",
    "LockResult",
    "LockRevokedError",
    "LockType",
    "Priority",
    "Revocation",
    "Revoked",
    "SegmentKey",
    "granted_lock",
]
