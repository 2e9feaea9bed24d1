"""What the commands about roles do. Each takes a :class:`~.run.Call`."""

from __future__ import annotations

import getpass
import sys
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.cli.output import Cell
from airflow_provider_segments.cli.run import Call, UsageError
from airflow_provider_segments.core.model.interval import format_ms, from_ms
from airflow_provider_segments.exceptions import SegmentsError
from airflow_provider_segments.text import count

if TYPE_CHECKING:
    from airflow_provider_segments.core.access import AclReport
    from airflow_provider_segments.core.audit import LoggedEvent

_SHOWN = 10


def acl_check(call: Call) -> None:
    """``segments acl check``"""
    from airflow_provider_segments.core import access

    report = access.check(call.store.cluster)
    _print(call, report)
    if not report.ok:
        raise SegmentsError(_verdict(call, report))


def acl_apply(call: Call) -> None:
    """``segments acl apply``"""
    from airflow_provider_segments.core import access
    from airflow_provider_segments.core.zookeeper.acl import Roles

    args = call.args
    given = [tuple(named or ()) for named in (args.reader, args.writer, args.operator)]
    report = access.apply(call.store.cluster, Roles(*given) if any(given) else None)
    _print(call, report)
    if not report.ok:
        raise SegmentsError(_verdict(call, report))


def acl_id(call: Call) -> None:
    """``segments acl id USER``"""
    from kazoo.security import make_digest_acl_credential

    user = call.args.user
    if not user.isprintable() or not user or ":" in user or "," in user or " " in user:
        raise UsageError("USER must be printable, without a colon, a comma or a blank")
    password = getpass.getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    try:
        identity = f"digest:{make_digest_acl_credential(user, password)}"
    except UnicodeEncodeError:
        raise UsageError("user and password must be valid Unicode text") from None
    if call.out.as_json:
        call.out.document({"id": identity})
    else:
        call.out.line(identity)


def log(call: Call) -> None:
    """``segments log TABLE``"""
    events = call.store.table(call.args.table).events()[: max(call.args.limit, 0)]
    if call.out.as_json:
        call.out.document([_event(one) for one in events])
    elif not events:
        call.note(f"table {call.args.table!r} has no events")
    else:
        head = ["WHEN (UTC)", "WHAT", "ENTRY", "WHO", "FOR"]
        rows = [
            [
                Cell(from_ms(one.made_ms).strftime("%Y-%m-%d %H:%M:%S")),
                Cell(one.record.action),
                Cell(one.record.entry_id[:8]),
                Cell(one.record.actor),
                Cell(one.record.identity or one.record.detail),
            ]
            for one in events
        ]
        call.out.table(head, rows, flexible=(3, 4))


def _event(one: LoggedEvent) -> dict[str, Any]:
    record = one.record
    return {
        "at": format_ms(one.made_ms),
        "action": record.action,
        "entry_id": record.entry_id,
        "actor": record.actor,
        "identity": record.identity,
        "detail": record.detail,
    }


def _print(call: Call, report: AclReport) -> None:
    if call.out.as_json:
        call.out.document(_document(report))
        return
    call.out.line(f"{count(report.znodes, 'znode')}, {report.changed:,} changed")
    for role in ("reader", "writer", "operator"):
        who = ", ".join(getattr(report.roles, role)) if report.roles else ""
        call.out.line(f"{role}: {who or 'nobody'}")
    for title, paths in (("open to anyone", report.open), ("not as the roles say", report.different)):
        for path in paths[:_SHOWN]:
            call.out.line(f"{title}: {path}")
        if len(paths) > _SHOWN:
            call.out.line(f"{title}: {len(paths) - _SHOWN:,} more")


def _document(report: AclReport) -> dict[str, Any]:
    roles = report.roles
    return {
        "znodes": report.znodes,
        "changed": report.changed,
        "roles": None
        if roles is None
        else {"reader": list(roles.reader), "writer": list(roles.writer), "operator": list(roles.operator)},
        "open": list(report.open),
        "different": list(report.different),
    }


def _verdict(call: Call, report: AclReport) -> str:
    cluster = call.store.paths.cluster
    problems = []
    if report.open:
        problems.append(f"{count(len(report.open), 'znode')} can be changed by anyone")
    if report.different:
        problems.append(f"{count(len(report.different), 'znode')} not as the roles say")
    return f"cluster {cluster!r}: {'; '.join(problems)}; run acl apply as an operator"
