"""Locks on time chunks and segments, and the ids of new segments, in one record a table.

``compatibility`` says when locks are in each other's way, ``state`` what a request does to the box, ``allocation`` and
``counters`` which ids come next, ``holding`` what a task may rely on: all of them pure. ``box`` keeps the state in
ZooKeeper, with a fence for each lock; ``renewal`` keeps leases alive.

Locks keep pushes from doing work that could not be published. They do not decide what readers see: that is the version
under which a push is completed (``core/versions``), and every lock gives a version of its own.

The rules are Apache Druid's (proposal #6319 and #7491, concurrent APPEND and REPLACE of release 28). On purpose
different:

* A lock has a lease. Druid's overlord knows which tasks live; here any process may be gone. When the lease is over,
  anybody may take the lock; until then its holder, or a retry of it, renews it. Fences make taking safe.
* Publishing checks every lock that it relies on, in its own transaction. Druid takes several segment locks for valid
  without a look.
* A lock's version is above every version the box has ever given, whatever the clock says; also that of an APPEND lock.
  Druid trusts the clock, and gives all APPEND locks the version 1970.
* APPEND coexists with every REPLACE lock and with segment locks. Druid lets a REPLACE lock contain APPEND locks only,
  because the end of a replacement copies the appended segments into its version; here nothing is copied.
* A group's own locks never stand in its way. What two pushes of one group do to the same time is decided by the order
  of their versions.
* A wider lock leaves the narrower ones of its task as they are: each protects what was granted under it. Druid drops
  the narrower APPEND locks.
* A group with several locks that cover a request gets the same one each time. Druid fails, and a retry with it.
* A removed task may ask again as a later attempt; its old attempts are refused for an hour (Druid #18464, a lock
  granted to a task that was being removed).
* Compaction takes new ids from the same counters as appends: there is no second id space for rewritten segments.
* There are no KILL locks: two-phase deletion decides in its own transactions.

What keeps the record small: sequence keys belong to a lock and go when it is released; counters of old time are folded
(``counters``); revoked and abandoned locks are dropped after a day, removed tasks after an hour.
"""

from airflow_provider_segments.core.locking.box import LockBox
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

__all__ = [
    "DEFAULT_LEASE_MS",
    "Allocated",
    "AllocationRequest",
    "AllocationResult",
    "Denied",
    "Granted",
    "Lock",
    "LockBox",
    "LockGranularity",
    "LockRequest",
    "LockResult",
    "LockType",
    "Priority",
    "Revocation",
    "Revoked",
    "granted_lock",
]
