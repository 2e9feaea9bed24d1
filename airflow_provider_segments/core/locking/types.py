"""Locks, requests and answers: frozen values without rules."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from airflow_provider_segments.core.locking.ranges import Ranges, expand, ranges_of
from airflow_provider_segments.core.model.interval import Interval, format_ms
from airflow_provider_segments.core.model.names import check_text
from airflow_provider_segments.core.model.records import Record
from airflow_provider_segments.exceptions import (
    InvalidLockRequestError,
    InvalidNameError,
    LockDeniedError,
    LockRevokedError,
)
from airflow_provider_segments.text import escape

DEFAULT_LEASE_MS = 300_000
"""Five minutes, Druid's default lock time-out."""


class LockType(enum.Enum):
    """Decides which locks coexist: see :func:`~airflow_provider_segments.core.locking.compatibility.compatible`."""

    EXCLUSIVE = "EXCLUSIVE"
    SHARED = "SHARED"
    APPEND = "APPEND"
    REPLACE = "REPLACE"


class LockGranularity(enum.Enum):
    """The scope of a lock: a whole time chunk, or segments of it by partition id. Segment locks are EXCLUSIVE."""

    TIME_CHUNK = "TIME_CHUNK"
    SEGMENT = "SEGMENT"


class Priority(enum.IntEnum):
    """Druid's priorities. Strictly higher ones revoke lower ones; any integer may be given instead."""

    REALTIME = 75
    BATCH = 50
    COMPACTION = 25
    OTHER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """Who asks for what.

    ``group`` (a DAG run) shares locks among its tasks; ``task`` names the work, the same for every attempt, and
    ``attempt`` counts its tries (0: not told; then a removed task is not recognised when it asks again). ``interval``
    is in epoch milliseconds; ``partitions`` are the ids, in that time chunk, of the segments a SEGMENT lock is on.
    ``lease_ms`` is for how long the lock cannot be taken without being renewed. Raises
    :class:`InvalidLockRequestError`.
    """

    group: str
    task: str
    interval: Interval
    lock_type: LockType = LockType.EXCLUSIVE
    granularity: LockGranularity = LockGranularity.TIME_CHUNK
    partitions: frozenset[int] = frozenset()
    priority: int = Priority.BATCH
    lease_ms: int = DEFAULT_LEASE_MS
    attempt: int = 0

    def __post_init__(self) -> None:
        check_identity("group", self.group)
        check_identity("task", self.task)
        if self.lease_ms <= 0:
            raise InvalidLockRequestError(f"a lease of {self.lease_ms} ms is no lease")
        if self.granularity is LockGranularity.TIME_CHUNK and self.partitions:
            raise InvalidLockRequestError("a time-chunk lock is on all segments of its interval; name no partitions")
        if any(partition < 0 for partition in self.partitions):
            raise InvalidLockRequestError("partition ids must not be negative")

    @classmethod
    def of_held(cls, lock: Lock, task: str) -> LockRequest:
        """The request that finds ``lock`` of ``task`` again. It makes the lease no longer: whoever holds a lock says
        for how long."""
        return cls(
            group=lock.group,
            task=task,
            interval=lock.interval,
            lock_type=lock.lock_type,
            granularity=lock.granularity,
            partitions=frozenset(expand(lock.partitions)),
            priority=lock.priority,
            lease_ms=1,
        )

    @property
    def ranges(self) -> Ranges:
        """The partition ids."""
        return ranges_of(self.partitions)


def check_identity(kind: str, name: str) -> str:
    """Return ``name``. Raises :class:`InvalidLockRequestError` when it cannot name a group, task or sequence."""
    try:
        return check_text(kind, name)
    except InvalidNameError as error:
        raise InvalidLockRequestError(str(error)) from None


class Revocation(Record, frozen=True, omit_defaults=True):
    """Who ended a lock, when, and why: ``priority``, ``lease-over`` or ``asked``. ``lock_id`` is the lock that took
    its place, if any."""

    by: str
    at_ms: int
    reason: str
    lock_id: str | None = None

    def __str__(self) -> str:
        why = {"priority": "for its higher priority", "lease-over": "after its lease had ended"}.get(self.reason, "")
        return f"{escape(self.by)} at {format_ms(self.at_ms)}" + (f" {why}" if why else f" ({escape(self.reason)})")


class Allotment(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """The ids that a sequence key got in a time chunk: ``count`` ids from ``first``."""

    start_ms: int
    end_ms: int
    first: int
    count: int

    @property
    def chunk(self) -> Interval:
        """The time chunk."""
        return Interval(self.start_ms, self.end_ms)


class Lock(Record, frozen=True, omit_defaults=True):
    """One lock as the box stores it. Times are epoch milliseconds.

    ``tasks`` are those of its group that hold it. ``version`` is that of the rows which are appended under it: greater
    than every version the box had given before. ``partitions`` are a segment lock's ids. ``fence`` is the
    version of the lock's fence znode. ``allocated`` are the ids that its sequence keys got. A lock with
    ``revoked`` set protects nothing and stays only to be seen by its owner.
    """

    lock_id: str
    lock_type: LockType
    granularity: LockGranularity
    start_ms: int
    end_ms: int
    group: str
    tasks: tuple[str, ...]
    priority: int
    version: int
    granted_ms: int
    lease_until_ms: int
    partitions: Ranges = ()
    fence: int = 0
    revoked: Revocation | None = None
    allocated: dict[str, Allotment] = {}

    @property
    def interval(self) -> Interval:
        """The locked time."""
        return Interval(self.start_ms, self.end_ms)

    @property
    def active(self) -> bool:
        """True until the lock is revoked: a revoked lock protects nothing."""
        return self.revoked is None

    @property
    def overwrites(self) -> bool:
        """True if a push under the lock overwrites the locked time."""
        return self.lock_type is LockType.EXCLUSIVE and self.granularity is LockGranularity.TIME_CHUNK

    def abandoned(self, now_ms: int) -> bool:
        """Return True if the lease is over, so that anybody may take the lock."""
        return self.lease_until_ms <= now_ms

    def contains(self, interval: Interval) -> bool:
        """Return True if all of ``interval`` is inside the locked time."""
        return self.start_ms <= interval.start_ms and interval.end_ms <= self.end_ms

    def overlaps(self, interval: Interval) -> bool:
        """Return True if ``interval`` shares at least one millisecond with the locked time."""
        return self.start_ms < interval.end_ms and interval.start_ms < self.end_ms

    def held_by(self, group: str, task: str) -> bool:
        """Return True if this task of this group is one of the holders."""
        return self.group == group and task in self.tasks

    def __str__(self) -> str:
        ids = ",".join(str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in self.partitions)
        what = f" segments {ids}" if self.granularity is LockGranularity.SEGMENT else ""
        return f"{self.lock_type.value} {self.interval}{what} of {escape(self.group)} (priority {self.priority})"


@dataclass(frozen=True, slots=True)
class Granted:
    """The lock is held. ``new`` says that this request made it, ``revoked`` what it took the place of."""

    lock: Lock
    new: bool = True
    revoked: tuple[Lock, ...] = ()


@dataclass(frozen=True, slots=True)
class Denied:
    """``blockers`` stand in the way; without blockers, ``reason`` says why no wait can help. Nothing was changed."""

    blockers: tuple[Lock, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Revoked:
    """The group held such a lock and it was revoked. It stays so until it is released."""

    lock: Lock


LockResult = Granted | Denied | Revoked


def revoked_error(table: str, lock: Lock) -> LockRevokedError:
    """The error that says who revoked ``lock``."""
    return LockRevokedError(
        "lock-revoked",
        f"the {lock} lock was revoked by {lock.revoked}",
        table=table,
        hint="Release it, and run the work again under a new lock.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRequest:
    """Asks for ``count`` new partition ids, and for the lock that protects them.

    ``key`` is the sequence key: the same key of the same group gets the same ids for as long as the lock is held.
    ``chunk`` is the time chunk of the segments, inside the lock's interval. Raises :class:`InvalidLockRequestError`.
    """

    lock: LockRequest
    key: str
    chunk: Interval
    count: int = 1

    def __post_init__(self) -> None:
        check_identity("sequence key", self.key)
        if self.count < 1:
            raise InvalidLockRequestError(f"cannot allocate {self.count} ids")


@dataclass(frozen=True, slots=True)
class Allocated:
    """The ids in ``chunk``, and the lock that protects them. ``again`` says that the sequence key had them already."""

    lock: Lock
    chunk: Interval
    partitions: range
    again: bool = False


AllocationResult = Allocated | Denied | Revoked


def granted_lock(table: str, result: LockResult | AllocationResult) -> Lock:
    """The lock of an answer; for a caller that has no use for another one.

    Raises :class:`LockRevokedError`, and :class:`LockDeniedError` naming the locks that stand in the way."""
    if isinstance(result, Revoked):
        raise revoked_error(table, result.lock)
    if not isinstance(result, Denied):
        return result.lock
    shown = "; ".join(str(lock) for lock in result.blockers[:3])
    more = f" and {len(result.blockers) - 3} more" if len(result.blockers) > 3 else ""
    hint = "Wait for its release, or ask with a higher priority." if result.blockers else ""
    detail = f"lock denied: {result.reason or shown + more}"
    raise LockDeniedError("lock-denied", detail, table=table, hint=hint)


def locks_of(locks: Sequence[Lock], group: str, task: str) -> list[Lock]:
    """Return those of ``locks`` that the task holds, revoked ones too."""
    return [lock for lock in locks if lock.held_by(group, task)]
