"""What the commands about locks do, for whoever is called when a lock stands in the way. Each takes a
:class:`~.run.Call`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_segments.cli.output import Cell, age, few, shorten
from airflow_provider_segments.cli.run import Call, UsageError
from airflow_provider_segments.core.cluster import local_user
from airflow_provider_segments.core.locking.ranges import expand
from airflow_provider_segments.core.model.interval import Interval, format_ms
from airflow_provider_segments.exceptions import LockLostError
from airflow_provider_segments.text import count

if TYPE_CHECKING:
    from airflow_provider_segments.core.locking import Lock
    from airflow_provider_segments.core.table import Table

_ID = 8  # digits of an id that are shown; any unique beginning of 4 or more is understood


def lock_list(call: Call) -> None:
    """``segments locks list TABLE``"""
    table = _table(call)
    locks = table.locks.locks()
    now = call.store.clock.now_ms()
    if call.out.as_json:
        call.out.document([_document(lock, now) for lock in locks])
    elif not locks:
        call.note(f"nobody holds a lock of table {table.name!r}")
    else:
        head = ["LOCK", "TYPE", "ON", "INTERVAL", "PRIORITY", "AGE", "LEASE", "VERSION", "HELD BY"]
        call.out.table(head, [_row(lock, now) for lock in locks])  # an owner's name is never cut: release needs it


def lock_revoke(call: Call) -> None:
    """``segments locks revoke TABLE LOCK``"""
    table = _table(call)
    found = _find(table, call.args.lock)
    by = local_user()
    if found.active:
        table.locks.revoke([found.lock_id], by)
    after = next((lock for lock in table.locks.locks() if lock.lock_id == found.lock_id), None)
    already = not found.active
    if after is not None and after.active:
        raise LockLostError("not-revoked", f"lock {found.lock_id} is still held; run it again", table=table.name)
    if call.out.as_json:
        who = after.revoked.by if after is not None and after.revoked is not None else None
        call.out.document({"table": table.name, "lock_id": found.lock_id, "revoked_by": who, "already": already})
    elif after is None:
        call.out.line(f"lock {found.lock_id} of table {table.name} was released meanwhile")
    else:
        call.out.line(f"lock {found.lock_id} of table {table.name} {'had been' if already else 'was'} revoked")
        call.out.line(f"it was the {found} lock, held by {_tasks(found)}; revoked by {after.revoked}")
        call.out.line("what relies on it can no longer publish; it stays in the list until its owner releases it")


def lock_release(call: Call) -> None:
    """``segments locks release TABLE --group GROUP``"""
    args, table = call.args, _table(call)
    if not args.group or args.task == "":
        raise UsageError("--group and --task must not be empty; locks list shows them")
    released = (
        table.locks.release_group(args.group) if args.task is None else table.locks.release(args.group, args.task)
    )
    if call.out.as_json:
        call.out.document({"table": table.name, "group": args.group, "task": args.task, "released": released})
        return
    who = f"group {args.group!r}" if args.task is None else f"task {args.task!r} of group {args.group!r}"
    if released:
        call.out.line(f"table {table.name}: {who} left {count(released, 'lock')}")
        return
    groups = sorted({lock.group for lock in table.locks.locks()})
    call.note(f"table {table.name!r}: {who} holds no lock; held by: {few(groups) if groups else 'nobody'}")


def _table(call: Call) -> Table:
    """The table. One that was never made is an error: an empty list of locks would say that all is well."""
    table = call.store.table(call.args.table)
    table.config()
    return table


def _find(table: Table, beginning: str) -> Lock:
    """The lock whose id begins so. Raises :class:`LockLostError` when there is none, or more than one."""
    if len(beginning) < 4:
        raise UsageError("give at least 4 characters of the lock's id")
    return table.locks.find(beginning)


def _row(lock: Lock, now: int) -> list[Cell]:
    held = f"{_tasks(lock)} of {lock.group}"
    lease, colour = _lease(lock, now)
    return [
        Cell(lock.lock_id[:_ID]),
        Cell(lock.lock_type.value),
        Cell(_on(lock)),
        Cell(_interval(lock.interval)),
        Cell(str(lock.priority)),
        Cell(age(now - lock.granted_ms)),
        Cell(lease, colour),
        Cell(format_ms(lock.version)),
        Cell(f"{held}; revoked by {lock.revoked}" if lock.revoked else held, "red" if lock.revoked else ""),
    ]


def _on(lock: Lock) -> str:
    return shorten(f"segments {_ranges(lock)}", 32) if lock.partitions else "time chunk"


def _ranges(lock: Lock) -> str:
    from airflow_provider_segments.cli.picture import ranges_text

    return ranges_text(expand(lock.partitions))


def _lease(lock: Lock, now: int) -> tuple[str, str]:
    if lock.revoked:
        return "revoked", "red"
    return ("over", "yellow") if lock.abandoned(now) else (f"{age(lock.lease_until_ms - now)} left", "")


def _interval(interval: Interval) -> str:
    """Whole days are shown without their midnights."""
    return str(interval).replace("T00:00:00Z", "")


def _tasks(lock: Lock) -> str:
    return few(lock.tasks, 5)


def _document(lock: Lock, now: int) -> dict[str, Any]:
    revoked = lock.revoked
    return {
        "lock_id": lock.lock_id,
        "group": lock.group,
        "tasks": list(lock.tasks),
        "type": lock.lock_type.value,
        "granularity": lock.granularity.value,
        "interval": str(lock.interval),
        "partitions": [[first, end - 1] for first, end in lock.partitions],
        "priority": lock.priority,
        "version": lock.version,
        "granted": format_ms(lock.granted_ms),
        "age_ms": max(now - lock.granted_ms, 0),
        "lease_left_ms": max(lock.lease_until_ms - now, 0),
        "active": lock.active,
        "revoked": None
        if revoked is None
        else {"by": revoked.by, "at": format_ms(revoked.at_ms), "reason": revoked.reason, "lock_id": revoked.lock_id},
    }
