"""Locks of a DAG run: acquire, release, and what the operators of a push do with them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval, format_ms, parse_time
from airflow_provider_segments.core.model.period import parse_period
from airflow_provider_segments.operators.base import SegmentsOperator, run_identity, task_identity
from airflow_provider_segments.triggers.locks import LockGrantTrigger, describe, now_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context

    from airflow_provider_segments.core.locking import Lock, LockBox, LockRequest, LockResult

_SLICE_S = 5.0  # a wait looks this often whether it has been killed
_SAY_AGAIN_S = 30.0
_LEAST_OF_AN_ID = 4


class AcquireSegmentLockOperator(SegmentsOperator):
    """Take a lock on a stretch of a table's time, for the DAG run.

    The lock belongs to the run (its group) and to the task, not to the attempt: a retry finds it again, or, when it was
    revoked, releases it and takes a new one. An attempt that fails or is killed releases it. Nobody can take it before
    its lease ends, except with a higher priority; operators that are given it as ``locks`` renew the lease while they
    work. It is a setup, and the release its teardown::

        acquire = AcquireSegmentLockOperator(task_id="acquire", table="events", start="2013-01-01", end="2013-02-01")
        release = ReleaseSegmentLockOperator(task_id="release", table="events").as_teardown(setups=acquire)
        start = StartReplaceSegmentsOperator(task_id="start", table="events", locks=acquire.output)

    Returns ``lock_id``, ``group``, ``task``, ``version``, ``start``, ``end``, ``lock_type``, ``lease_until`` and
    ``lease_ms``. Fails with :class:`LockDeniedError`, which names who stands in the way, when ``timeout`` is over.

    :param start: Start of the interval, ISO 8601, UTC where it names no zone. (templated)
    :param end: End of the interval; it is not part of it. (templated)
    :param lock_type: ``EXCLUSIVE``, ``SHARED``, ``APPEND`` or ``REPLACE``. (templated)
    :param priority: A number; a strictly higher one revokes. Streams have 75, batches 50, compactions 25. (templated)
    :param lease: For how long the lock stands without being renewed, as in ``5m``. (templated)
    :param timeout: How long to wait for it; ``0s`` asks once. (templated)
    :param deferrable: Whether to wait in the triggerer.
    :param poll_interval: When deferred, the longest time in seconds between two looks.
    """

    ui_color = "#f0e8f7"
    template_fields: Sequence[str] = (
        *SegmentsOperator.template_fields,
        "start",
        "end",
        "lock_type",
        "priority",
        "lease",
        "timeout",
    )

    def __init__(
        self,
        *,
        start: str,
        end: str,
        lock_type: str = "EXCLUSIVE",
        priority: int | str = 50,
        lease: str = "5m",
        timeout: str = "5m",
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poll_interval: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.start = start
        self.end = end
        self.lock_type = lock_type
        self.priority = priority
        self.lease = lease
        self.timeout = timeout
        self.deferrable = deferrable
        self.poll_interval = poll_interval
        self._killed = False
        self._asking: LockRequest | None = None
        self._said_at = float("-inf")

    def execute(self, context: Context) -> dict[str, Any]:
        """Acquire the lock, or find the one an earlier attempt acquired."""
        return self._acquire(context, now_ms() / 1000 + parse_period(self.timeout) / 1000)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Ask again, after a wait in the triggerer. Somebody else may have been faster; then the wait goes on."""
        self.log.info("Table %s: the wait has ended (%s).", event["table"], event["status"])
        return self._acquire(context, event["until"])

    def on_kill(self) -> None:
        """Release what this attempt has, and what it may still be asking for.

        Through a session of its own: the one the task uses may be in the middle of a call."""
        self._killed = True
        if self._asking is None:  # set once the task has asked; before, there is nothing to release
            return
        try:
            with self.hook.get_conn() as store:
                self._give_up(store.table(self.table).locks, self._asking)
        except Exception as error:
            self.log.warning("The lock was not released, and goes when its lease ends (%s): %s", self.lease, error)

    def _acquire(self, context: Context, until: float) -> dict[str, Any]:
        from airflow_provider_segments.core.locking import granted_lock

        request = self._request(context)
        with self.open_table() as table:
            self._asking = request
            try:
                lock = granted_lock(self.table, self._ask(table.locks, request, until))
                if self._killed:
                    raise AirflowFailException(f"killed while it acquired lock {lock.lock_id}, which is released")
                where = {"table": self.table, "segments_conn_id": self.segments_conn_id, "group": request.group}
                context["ti"].xcom_push(key="lock", value=where)
            except TaskDeferred:
                raise  # nothing was granted, and a denied request leaves nothing behind
            except BaseException:
                self._give_up(table.locks, request)
                raise
        self.log.info(
            "Table %s: holds %s, version %s, lock %s, until %s at least. To look at it: segments locks list %s",
            self.table,
            lock,
            lock.version,
            lock.lock_id,
            format_ms(lock.lease_until_ms),
            self.table,
        )
        return _as_xcom(lock, request)

    def _ask(self, box: LockBox, request: LockRequest, until: float) -> LockResult:
        """The last answer: granted, or denied when the time is over."""
        result = self._answer(box, request, 0)
        while blockers := getattr(result, "blockers", ()):
            left = until - now_ms() / 1000
            if left <= 0 or self._killed:
                break
            self._say(blockers)
            if self.deferrable:
                self._defer(request, until)
            result = self._answer(box, request, min(left, _SLICE_S))
        return result

    def _answer(self, box: LockBox, request: LockRequest, wait_s: float) -> LockResult:
        from airflow_provider_segments.core.locking import Revoked

        result = box.acquire_blocking(request, wait_s)
        while isinstance(result, Revoked):
            self.log.warning("An earlier attempt's lock, %s, was revoked by %s.", result.lock, result.lock.revoked)
            if not box.release(request.group, request.task, lock_ids=[result.lock.lock_id]):
                return result  # another task's of this run, which has to hear of it
            result = box.acquire_blocking(request, wait_s)
        return result

    def _defer(self, request: LockRequest, until: float) -> None:
        trigger = LockGrantTrigger(
            table=self.table,
            group=request.group,
            holder=request.task,
            start_ms=request.interval.start_ms,
            end_ms=request.interval.end_ms,
            lock_type=request.lock_type.value,
            priority=request.priority,
            until=until,
            segments_conn_id=self.segments_conn_id,
            poll_interval=self.poll_interval,
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def _request(self, context: Context) -> LockRequest:
        from airflow_provider_segments.core.locking import LockRequest, LockType

        names = [kind.name for kind in LockType]
        if self.lock_type not in names:
            raise ValueError(f"lock_type must be one of {', '.join(names)}, not {self.lock_type!r}")
        return LockRequest(
            group=run_identity(context, self.hook),
            task=task_identity(context, self.hook),
            interval=Interval(parse_time(str(self.start)), parse_time(str(self.end))),
            lock_type=LockType[self.lock_type],
            priority=int(self.priority),
            lease_ms=parse_period(self.lease),
            attempt=context["ti"].try_number,
        )

    def _say(self, blockers: Sequence[Lock]) -> None:
        """Who stands in the way, now and then."""
        if time.monotonic() - self._said_at < _SAY_AGAIN_S:
            return
        self._said_at = time.monotonic()
        for lock in blockers[:5]:
            self.log.info("Table %s, in the way: %s.", self.table, describe(lock, now_ms()))

    def _give_up(self, box: LockBox, request: LockRequest) -> None:
        """Leave nothing behind. The box refuses whatever this attempt still asks for, so a request that is on its way
        is not granted to nobody."""
        from airflow_provider_segments.exceptions import SegmentsError

        try:
            box.remove_task(request.group, request.task, request.attempt)
        except SegmentsError as error:
            self.log.warning("The lock was not released, and goes when its lease ends (%s): %s", self.lease, error)


class ReleaseSegmentLockOperator(SegmentsOperator):
    """Release all locks of this DAG run on a table, or some of them. Releasing what is released is success.

    Runs whatever became of the tasks before it; best as a teardown, which Airflow also runs when somebody marks the DAG
    run failed. Returns how many locks went::

        ReleaseSegmentLockOperator(task_id="release", table="events").as_teardown(setups=acquire)

    :param locks: What :class:`AcquireSegmentLockOperator` returned, or a list of it; default: all of the run.
        (templated)
    """

    ui_color = "#f0e8f7"
    template_fields: Sequence[str] = (*SegmentsOperator.template_fields, "locks")

    def __init__(self, *, locks: Any = (), **kwargs: Any) -> None:
        super().__init__(**{"trigger_rule": "all_done", **kwargs})
        self.locks = locks

    def execute(self, context: Context) -> int:
        """Release."""
        chosen = given_locks(self.locks)
        with self.open_table() as table:
            if not chosen:
                released = table.locks.release_group(run_identity(context, self.hook))
            else:
                released = sum(
                    table.locks.release(one.held.group, one.held.task, lock_ids=[one.held.lock_id]) for one in chosen
                )
        self.log.info("Table %s: %d locks of %s are released.", self.table, released, run_identity(context, self.hook))
        return released


class RevokeSegmentLockOperator(SegmentsOperator):
    """Revoke a lock, whatever its priority: its owner can publish nothing any more that relies on it.

    Revoking a lock that is revoked is success; one that was released fails the task. Returns ``lock_id``, ``group``
    and ``already``::

        RevokeSegmentLockOperator(task_id="revoke", table="events", lock_id="{{ params.lock_id }}")

    :param lock_id: The lock's id, or at least four characters that only its id begins with. (templated)
    """

    ui_color = "#f0e8f7"
    template_fields: Sequence[str] = (*SegmentsOperator.template_fields, "lock_id")

    def __init__(self, *, lock_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lock_id = lock_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Revoke the lock on behalf of this task."""
        from airflow_provider_segments.exceptions import LockLostError

        if len(self.lock_id) < _LEAST_OF_AN_ID:
            raise AirflowFailException(f"give at least {_LEAST_OF_AN_ID} characters of the lock's id")
        with self.open_table() as table:
            table.config()  # a table that was never made has no locks, and a mistyped one must not look like that
            try:
                lock = table.locks.find(self.lock_id)
            except LockLostError as error:
                raise AirflowFailException(str(error)) from error
            if lock.active:
                table.locks.revoke([lock.lock_id], task_identity(context, self.hook))
        self.log.info("Table %s: lock %s of %s %s revoked.", self.table, lock.lock_id, lock.group, _was(lock))
        return {"lock_id": lock.lock_id, "group": lock.group, "already": not lock.active}


def _was(lock: Lock) -> str:
    return "is" if lock.active else "had been"


class GivenLock(NamedTuple):
    """A lock as a task passes it on, and the lease it was taken for, in milliseconds."""

    held: HeldLock
    lease_ms: int


def given_locks(given: Any) -> list[GivenLock]:
    """The locks in an argument ``locks``: what :class:`AcquireSegmentLockOperator` returned, a list of it, or JSON text
    of either. Raises :class:`ValueError` for anything else, ``None`` among it: a push that was told to rely on a lock
    does not go on without one."""
    if isinstance(given, str):
        given = json.loads(given) if given.strip() else []
    try:
        return [_given(one) for one in ([given] if isinstance(given, Mapping) else given)]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"locks must be what AcquireSegmentLockOperator returns, not {given!r:.200}") from error


@contextmanager
def renewed(
    box: LockBox, locks: Sequence[GivenLock], lost: Callable[[Exception], None] | None = None
) -> Iterator[None]:
    """Renew the leases of ``locks`` until the block ends. When one of them was lost, ``lost`` is called at once, in
    another thread, and the block ends with the error that says who took it, whatever else happened in it."""
    from airflow_provider_segments.core.locking.renewal import keep_leases

    with ExitStack() as stack:
        kept = [
            stack.enter_context(keep_leases(box, held.group, held.task, lease_ms, [held.lock_id], lost=lost))
            for held, lease_ms in locks
        ]
        try:
            yield
        except Exception as error:
            if why := next((one.error for one in kept if one.error is not None), None):
                raise why from error
            raise
        for one in kept:
            one.check()


def _given(one: Mapping[str, Any]) -> GivenLock:
    return GivenLock(HeldLock(one["lock_id"], one["group"], one["task"]), int(one["lease_ms"]))


def _as_xcom(lock: Lock, request: LockRequest) -> dict[str, Any]:
    return {
        "lock_id": lock.lock_id,
        "group": lock.group,
        "task": request.task,
        "version": lock.version,
        "start": format_ms(lock.start_ms),
        "end": format_ms(lock.end_ms),
        "lock_type": lock.lock_type.value,
        "lease_until": format_ms(lock.lease_until_ms),
        "lease_ms": request.lease_ms,
    }
