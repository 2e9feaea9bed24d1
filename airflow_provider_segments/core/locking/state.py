"""The lock box of one table as a value: every request is a function from a box to the box after it and an answer.

Nothing here does I/O or reads a clock. :class:`Turn` brings the time and the ids a request may use; they stay the same
when the request is decided again after a lost compare-and-set, so a write whose reply was lost is recognised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from airflow_provider_segments.core.locking import counters as ids
from airflow_provider_segments.core.locking.compatibility import Deny, Reuse, decide
from airflow_provider_segments.core.locking.counters import Counters
from airflow_provider_segments.core.locking.types import (
    Denied,
    Granted,
    Lock,
    LockGranularity,
    LockRequest,
    LockResult,
    Revocation,
    Revoked,
)
from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.records import Record, RecordDecoder
from airflow_provider_segments.exceptions import InvalidLockRequestError, LockRefusedError

KEPT_MS = 86_400_000
"""How long a lock is kept after it was revoked, or after its lease was over, if nobody releases it: a day."""
DEPARTED_MS = 3_600_000
"""How long a removed task's attempt is refused new locks: longer than its last request can be on its way."""


class Box(Record, frozen=True, tag_field=records.FORMAT, tag=2):
    """``version_ms`` is the greatest lock version ever given; ``departed`` maps a removed task to its last
    attempt and until when that is remembered."""

    version_ms: int
    locks: tuple[Lock, ...]
    counters: Counters
    departed: dict[str, tuple[int, int]]

    @classmethod
    def empty(cls) -> Box:
        """The box of a table that never had a lock."""
        return cls(0, (), (), {})

    def find(self, lock_id: str) -> Lock | None:
        """The lock of that id."""
        return next((lock for lock in self.locks if lock.lock_id == lock_id), None)


@dataclass(frozen=True, slots=True)
class Turn:
    """The table's name, the time in epoch milliseconds, and the id a new lock gets."""

    table: str
    now_ms: int
    lock_id: str


_DECODER = RecordDecoder(Box, "lock box")


def encode(box: Box) -> bytes:
    """The box as it is stored."""
    return records.encode(box)


def decode(payload: bytes, where: str) -> Box:
    """The box in ``payload``. Raises :class:`CorruptRecordError`."""
    return _DECODER.decode(payload, where)


def acquire(box: Box, request: LockRequest, turn: Turn) -> tuple[Box, LockResult]:
    """Ask for a lock. A request that is not granted changes nothing.

    Raises :class:`LockRefusedError` (rules ``task-departed``, ``priority-differs``) and
    :class:`InvalidLockRequestError`.
    """
    check_request(box, request, turn)
    return grant(box, request, turn)


def release(box: Box, chosen: Callable[[Lock], bool], task: str | None = None) -> Box:
    """Release the chosen locks for ``task``, or for all their tasks. A lock goes when its last task leaves; otherwise
    its fence moves on, so that nothing the leaving task still has under way can publish."""
    kept = []
    for lock in box.locks:
        if not chosen(lock) or (task is not None and task not in lock.tasks):
            kept.append(lock)
        elif task is not None and len(lock.tasks) > 1:
            kept.append(_without(lock, task))
    return msgspec.structs.replace(box, locks=tuple(kept))


def remove_task(box: Box, group: str, task: str, attempt: int, turn: Turn) -> Box:
    """Release all locks of a task that was killed or given up, and refuse it new ones unless a later attempt asks.

    Otherwise a request that was on its way when the task was removed would be granted to nobody (Druid #18464)."""
    after = release(box, lambda lock: lock.group == group, task)
    if not attempt:
        return after
    name = _departed_name(group, task)
    last = max(attempt, box.departed.get(name, (0, 0))[0])
    departed = {**after.departed, name: (last, turn.now_ms + DEPARTED_MS)}
    return msgspec.structs.replace(after, departed=departed)


def revoke(box: Box, lock_ids: Sequence[str], by: str, turn: Turn) -> Box:
    """Revoke locks because somebody asked for it, whatever their priority. Those that are gone or revoked already stay
    as they are."""
    asked = Revocation(by, turn.now_ms, "asked")
    return each(box, lambda lock: _end(lock, asked) if lock.lock_id in lock_ids and lock.active else lock)


def prune(box: Box, now_ms: int) -> Box:
    """The box without what nobody will ask for any more: locks a day after their revocation or their lease, departed
    tasks after an hour. Called with every write, so what is left behind is bounded by what a day brings."""
    locks = tuple(lock for lock in box.locks if _last_ms(lock) + KEPT_MS > now_ms)
    departed = {name: one for name, one in box.departed.items() if one[1] > now_ms}
    if len(locks) == len(box.locks) and len(departed) == len(box.departed):
        return box
    return msgspec.structs.replace(box, locks=locks, departed=departed)


def grant(box: Box, request: LockRequest, turn: Turn) -> tuple[Box, LockResult]:
    """Decide about a request and carry the decision out."""
    decision = decide(box.locks, request, turn.now_ms)
    if isinstance(decision, Deny):
        return box, Denied(decision.blockers, decision.reason)
    if isinstance(decision, Reuse):
        if not decision.lock.active:
            return box, Revoked(decision.lock)
        lock = join(decision.lock, request, turn)
    else:
        box = _revoke_for(box, decision.victims, request, turn)
        box, lock = _new_lock(box, request, turn)
    box = put(box, lock)
    taken = tuple(one for one in box.locks if one.revoked and one.revoked.lock_id == turn.lock_id)
    return box, Granted(lock, lock.lock_id == turn.lock_id, taken)


def _revoke_for(box: Box, victims: Sequence[Lock], request: LockRequest, turn: Turn) -> Box:
    chosen = {lock.lock_id for lock in victims}

    def revoked(lock: Lock) -> Lock:
        if lock.lock_id not in chosen:
            return lock
        reason = "priority" if lock.priority < request.priority else "lease-over"
        return _end(lock, Revocation(f"{request.task} of {request.group}", turn.now_ms, reason, turn.lock_id))

    return each(box, revoked)


def draw_version(box: Box, turn: Turn) -> tuple[Box, int]:
    """The next version: the time, or the next free millisecond when a clock went back. It is greater than every version
    this box has ever given."""
    version = max(turn.now_ms, box.version_ms + 1)
    return msgspec.structs.replace(box, version_ms=version), version


def _new_lock(box: Box, request: LockRequest, turn: Turn) -> tuple[Box, Lock]:
    """The lock, and the box that remembers its version and the ids of the segments it is on. So versions grow in the
    order in which locks are granted."""
    box, version = draw_version(box, turn)
    counters = box.counters
    if request.ranges:  # these segments exist, so new ids come after theirs
        counters = ids.advance(counters, request.interval, request.ranges[-1][1])
    lock = Lock(
        lock_id=turn.lock_id,
        lock_type=request.lock_type,
        granularity=request.granularity,
        start_ms=request.interval.start_ms,
        end_ms=request.interval.end_ms,
        group=request.group,
        tasks=(request.task,),
        priority=request.priority,
        version=version,
        granted_ms=turn.now_ms,
        lease_until_ms=turn.now_ms + request.lease_ms,
        partitions=request.ranges,
    )
    return msgspec.structs.replace(box, counters=counters), lock


def join(lock: Lock, request: LockRequest, turn: Turn) -> Lock:
    """The lock with the request's task among its holders, and a new lease."""
    if lock.priority != request.priority:
        detail = f"{request.task} asks with priority {request.priority} for the {lock} lock of its group"
        raise refuse(turn, "priority-differs", detail, "Tasks of one group ask with one priority.")
    tasks = lock.tasks if request.task in lock.tasks else (*lock.tasks, request.task)
    return renew_until(msgspec.structs.replace(lock, tasks=tasks), turn.now_ms + request.lease_ms)


def check_request(box: Box, request: LockRequest, turn: Turn) -> None:
    """Refuse a segment lock on nothing, and a removed task's old attempt."""
    if request.granularity is LockGranularity.SEGMENT and not request.partitions:
        raise InvalidLockRequestError("a segment lock names the partitions it is on")
    last, until = box.departed.get(_departed_name(request.group, request.task), (0, 0))
    if 0 < request.attempt <= last and turn.now_ms < until:
        detail = f"attempt {request.attempt} of {request.task} of {request.group} was removed from the lock box"
        raise refuse(turn, "task-departed", detail, "Run the task again; a later attempt may ask.")


def refuse(turn: Turn, rule: str, detail: str, hint: str) -> LockRefusedError:
    """The error to raise."""
    return LockRefusedError(rule, f"lock request refused: {detail}", table=turn.table, hint=hint)


def _departed_name(group: str, task: str) -> str:
    return f"{group}\n{task}"


def _last_ms(lock: Lock) -> int:
    return lock.lease_until_ms if lock.revoked is None else lock.revoked.at_ms


def renew_until(lock: Lock, until_ms: int) -> Lock:
    """The lock with a lease until then at least."""
    return msgspec.structs.replace(lock, lease_until_ms=max(lock.lease_until_ms, until_ms))


def _end(lock: Lock, revocation: Revocation) -> Lock:
    return msgspec.structs.replace(lock, revoked=revocation)


def _without(lock: Lock, task: str) -> Lock:
    tasks = tuple(one for one in lock.tasks if one != task)
    return msgspec.structs.replace(lock, tasks=tasks, fence=lock.fence + 1)


def put(box: Box, lock: Lock) -> Box:
    """The box with ``lock`` in its place, or added."""
    if box.find(lock.lock_id) is None:
        return msgspec.structs.replace(box, locks=(*box.locks, lock))
    return each(box, lambda one: lock if one.lock_id == lock.lock_id else one)


def each(box: Box, change: Callable[[Lock], Lock]) -> Box:
    """The box with every lock changed."""
    return msgspec.structs.replace(box, locks=tuple(change(lock) for lock in box.locks))
