"""The lock box of a table in ZooKeeper: ``LOCKS/<table>``, changed by compare-and-set, and a fence under it per lock.

**Fencing.** A push must fail when a lock it relies on was revoked, taken or released before it publishes, and it
cannot check the box's own version for that: every unrelated lock change would refuse it. So each active lock has a
fence, an empty znode ``LOCKS/<table>/<lock id>``, made in the transaction that grants the lock and removed in the
transaction that ends it, however it ends. :meth:`LockBox.fence` gives the checks of those
fences, and publishing puts them into its own transaction. Lock ids are random and never used again, so a fence that is
there is *that* lock's. A task that leaves a lock which others of its group go on holding moves the fence's version on,
which refuses the leaver's late transactions; the others read again and find the new version. Renewing a lease, joining
and allocating do not touch the fence. No clock is compared when publishing: a lock whose lease is over still protects
its push until somebody takes it.

The price is one small create per lock, one delete per release, and a check per lock in the publishing transaction. The
alternatives: a check of the box's version (publishing starves under appends), ephemeral fences (a lock outlives the
process that took it: a push is several tasks), the lease's end compared with the publisher's clock (wrong when the
process was stopped between the look and the write).

Writes have three outcomes. After an unknown one the request is decided again on what is stored, with the same lock id:
a lock that was granted is found by its group and task, ids are found by their sequence key, a release finds nothing
left to do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from airflow_provider_segments.core import audit
from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.locking import allocation, holding
from airflow_provider_segments.core.locking import state as boxes
from airflow_provider_segments.core.locking.state import Box, Turn
from airflow_provider_segments.core.locking.types import (
    DEFAULT_LEASE_MS,
    Allocated,
    AllocationRequest,
    AllocationResult,
    Denied,
    Lock,
    LockRequest,
    LockResult,
)
from airflow_provider_segments.core.model.names import check_table_name
from airflow_provider_segments.core.zookeeper import Check, Create, Delete, Op, SetData
from airflow_provider_segments.core.zookeeper.retry import Retry
from airflow_provider_segments.exceptions import LockLostError, RecordTooLargeError

MAX_BOX_BYTES = 400_000
"""Largest box that still takes new locks: revoking or releasing everything in it must fit into one transaction."""

BOX_RETRY = Retry(attempts=400, base=0.02, cap=0.25)
"""All locks of a table are in one record, so its writers lose more often than those of other records."""

_LOOK_AGAIN_S = 10.0  # a wait looks again this often even if nothing is heard
_T = TypeVar("_T")


class LockBox:
    """One table's locks and id counters. May be shared by threads.

    Every method is one compare-and-set on one record, or none when nothing changes. They raise what
    :meth:`~airflow_provider_segments.core.zookeeper.retry.Retry.run` raises, :class:`CorruptRecordError`, and
    :class:`RecordTooLargeError` when the record has no room for another lock.
    """

    def __init__(self, cluster: Cluster, table: str, *, retry: Retry = BOX_RETRY) -> None:
        self.table = check_table_name(table)
        self.path = cluster.paths.lock_box(table)
        self._cluster = cluster
        self._session = cluster.session
        self._clock = cluster.clock
        self._retry = retry
        self._prepared = False

    def locks(self) -> tuple[Lock, ...]:
        """All locks, revoked ones too, oldest first."""
        return self.read().locks

    def read(self) -> Box:
        """The whole box; an empty one before the first lock."""
        return self._read()[0]

    def acquire(self, request: LockRequest) -> LockResult:
        """Ask for a lock once. See :func:`~airflow_provider_segments.core.locking.state.acquire`."""
        lock_id = self._clock.new_id()

        def ask(box: Box, now_ms: int) -> tuple[Box, LockResult]:
            return boxes.acquire(box, request, Turn(self.table, now_ms, lock_id))

        return self._change("acquire a lock", ask, grows=True)

    def acquire_blocking(self, request: LockRequest, timeout_s: float) -> LockResult:
        """Ask for a lock, and again whenever one that stands in the way goes or its lease ends, for up to ``timeout_s``
        seconds; then the last answer is returned. A revoked lock is returned at once."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            result = self.acquire(request)
            left = deadline - self._clock.monotonic()
            if not isinstance(result, Denied) or not result.blockers or left <= 0:
                return result
            self._await_change(result.blockers[0], left)

    def allocate(self, request: AllocationRequest) -> AllocationResult:
        """Give out segment ids together with their lock. See
        :func:`~airflow_provider_segments.core.locking.allocation.allocate`."""
        return self.allocate_all([request])[0]

    def allocate_all(self, requests: Sequence[AllocationRequest]) -> list[AllocationResult]:
        """Several allocations, all or none, in one change. When one fails, it is the only answer."""
        turns = [self._clock.new_id() for _ in requests]

        def ask(box: Box, now_ms: int) -> tuple[Box, list[AllocationResult]]:
            after, results = box, list[AllocationResult]()
            for request, lock_id in zip(requests, turns, strict=True):
                after, result = allocation.allocate(after, request, Turn(self.table, now_ms, lock_id))
                if not isinstance(result, Allocated):
                    return box, [result]
                results.append(result)
            return after, results

        return self._change("allocate segment ids", ask, grows=True)

    def draw_version(self) -> int:
        """A version greater than that of every lock and every one drawn before."""

        def draw(box: Box, now_ms: int) -> tuple[Box, int]:
            return boxes.draw_version(box, Turn(self.table, now_ms, ""))

        return self._change("draw a version", draw)

    def renew(
        self, group: str, task: str, lease_ms: int = DEFAULT_LEASE_MS, lock_ids: Sequence[str] | None = None
    ) -> tuple[Lock, ...]:
        """Extend leases to at least ``lease_ms`` from now; the task's locks, all or those named, as they are then.

        Raises :class:`LockRevokedError` and :class:`LockLostError`; then no lease was extended."""

        def extend(box: Box, now_ms: int) -> tuple[Box, tuple[Lock, ...]]:
            return holding.renew(box, group, task, lease_ms, Turn(self.table, now_ms, ""), lock_ids)

        return self._sure(lambda: self._change("renew a lease", extend))

    def release(self, group: str, task: str, *, lock_ids: Sequence[str] | None = None) -> int:
        """The task leaves its locks: all, or those named. Returns how many it left; 0 when it held none, which a
        repeated release finds."""

        def chosen(lock: Lock) -> bool:
            return lock.held_by(group, task) and (lock_ids is None or lock.lock_id in lock_ids)

        return self._release(chosen, task)

    def release_group(self, group: str) -> int:
        """All tasks of the group leave all its locks. Returns how many went."""
        return self._release(lambda lock: lock.group == group, None)

    def remove_task(self, group: str, task: str, attempt: int) -> None:
        """Release what a killed task holds, and refuse its ``attempt`` whatever it still asks for."""

        def remove(box: Box, now_ms: int) -> tuple[Box, None]:
            return boxes.remove_task(box, group, task, attempt, Turn(self.table, now_ms, "")), None

        self._change("remove a task", remove)

    def prune(self) -> None:
        """Drop what nobody will ask for any more: locks a day after their lease or their revocation, which a process
        that was killed has left. Every other change of the box does the same."""
        box, version = self._read()
        if version is not None and boxes.prune(box, self._clock.now_ms()) != box:
            self._change("prune the locks", lambda box, now_ms: (boxes.prune(box, now_ms), None))

    def find(self, beginning: str) -> Lock:
        """The lock whose id begins so. Raises :class:`LockLostError`: ``no-such-lock`` and ``ambiguous-lock``."""
        found = [lock for lock in self.locks() if lock.lock_id.startswith(beginning)]
        if not found:
            hint = "It was released, or dropped a day after its lease; locks list shows those there are."
            raise LockLostError("no-such-lock", f"no lock is called {beginning!r}", table=self.table, hint=hint)
        if len(found) > 1:
            ids = ", ".join(sorted(lock.lock_id for lock in found)[:3])
            detail = f"{beginning!r} begins the ids of {len(found)} locks: {ids}"
            raise LockLostError("ambiguous-lock", detail, table=self.table, hint="Give more of it.")
        return found[0]

    def revoke(self, lock_ids: Sequence[str], by: str) -> None:
        """Revoke locks on behalf of ``by``, whatever their priority. Their owners see it until they release them."""

        def ask(box: Box, now_ms: int) -> tuple[Box, None]:
            return boxes.revoke(box, lock_ids, by, Turn(self.table, now_ms, "")), None

        self._change("revoke locks", ask)
        told = audit.event(self._cluster, self.table, "revoked", identity=by, detail=f"locks {', '.join(lock_ids)}")
        audit.write(self._cluster, told)

    def fence(self, lock_ids: Sequence[str], *, group: str, task: str) -> list[Check]:
        """Return the checks that make a transaction fail unless ``task`` still holds every one of these locks.

        Call it in each attempt of the transaction: a refused check then becomes, on the next attempt, the error that
        says what became of the lock. Raises :class:`LockRevokedError` (with who revoked it) and
        :class:`LockLostError`."""
        return self._fence(lambda box, turn: holding.require_held(box, lock_ids, group, task, turn))

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` at the next change of the box. See
        :meth:`~airflow_provider_segments.core.zookeeper.ZooKeeperSession.watch`."""
        return self._session.watch(self.path, changed)

    def fence_path(self, lock_id: str) -> str:
        """A lock's fence."""
        return f"{self.path}/{lock_id}"

    def _release(self, chosen: Callable[[Lock], bool], task: str | None) -> int:
        def leave(box: Box, _: int) -> tuple[Box, int]:
            after = boxes.release(box, chosen, task)
            return after, sum(map(chosen, box.locks))

        return self._change("release locks", leave)

    def _fence(self, find: Callable[[Box, Turn], tuple[Lock, ...]]) -> list[Check]:
        def look() -> list[Check]:
            held = find(self.read(), Turn(self.table, self._clock.now_ms(), ""))
            return [Check(self.fence_path(lock.lock_id), lock.fence) for lock in held]

        return self._sure(look)

    def _sure(self, look: Callable[[], _T]) -> _T:
        """A lock was perhaps acquired through another server than the one we read from: only a read that has caught up
        may say that it is lost."""
        try:
            return look()
        except LockLostError:
            self._session.sync(self.path)
            return look()

    def _await_change(self, blocker: Lock, left_s: float) -> None:
        """Wait until the fence of ``blocker`` changes or its lease ends. Not the box: every unrelated change would
        wake everybody who waits."""
        changed = threading.Event()
        forget = self._session.watch(self.fence_path(blocker.lock_id), changed.set)
        try:
            if self._session.get(self.fence_path(blocker.lock_id)) is not None:
                lease_s = max(blocker.lease_until_ms - self._clock.now_ms() + 1, 0) / 1000
                changed.wait(min(left_s, lease_s, _LOOK_AGAIN_S))
        finally:
            forget()

    def _change(self, what: str, decide: Callable[[Box, int], tuple[Box, _T]], *, grows: bool = False) -> _T:
        def attempt() -> _T:
            self._prepare()
            box, version = self._read()
            now_ms = self._clock.now_ms()
            after, answer = decide(box, now_ms)
            if after != box:
                self._write(box, version, boxes.prune(after, now_ms), grows=grows)
            return answer

        return self._retry.run(f"{what} of table {self.table!r}", self._session, self._clock, attempt)

    def _prepare(self) -> None:
        if not self._prepared:
            self._session.ensure([self.path.rpartition("/")[0]])
            self._prepared = True

    def _read(self) -> tuple[Box, int | None]:
        node = self._session.get(self.path)
        return (Box.empty(), None) if node is None else (boxes.decode(node.data, self.path), node.version)

    def _write(self, box: Box, version: int | None, after: Box, *, grows: bool) -> None:
        payload = boxes.encode(after)
        if grows and len(payload) > MAX_BOX_BYTES:
            keys = sum(len(lock.allocated) for lock in after.locks)
            raise RecordTooLargeError(
                f"table {self.table!r}: its lock box would have {len(payload):,} bytes, more than {MAX_BOX_BYTES:,}: "
                f"{len(after.locks):,} locks with {keys:,} sequence keys. Release locks that are no longer needed, or "
                "lock fewer and wider intervals."
            )
        put: Op = Create(self.path, payload) if version is None else SetData(self.path, payload, version)
        self._session.commit([put, *self._fence_changes(box, after)])

    def _fence_changes(self, box: Box, after: Box) -> list[Op]:
        """Return the operations that keep one fence for each active lock. Whatever ends a lock ends its fence."""
        before = {lock.lock_id: lock.fence for lock in box.locks if lock.active}
        then = {lock.lock_id: lock.fence for lock in after.locks if lock.active}
        gone: list[Op] = [Delete(self.fence_path(one), before[one]) for one in before if one not in then]
        moved: list[Op] = [
            SetData(self.fence_path(one), b"", before[one])
            for one in before
            if one in then and then[one] != before[one]
        ]
        made: list[Op] = [Create(self.fence_path(one)) for one in then if one not in before]
        return [*gone, *moved, *made]
