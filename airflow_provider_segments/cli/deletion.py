"""What the commands about retention and deletion do. Each takes a :class:`~.run.Call`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.cli.output import Cell, age, size
from airflow_provider_segments.cli.run import Call, UsageError
from airflow_provider_segments.text import count

if TYPE_CHECKING:
    from airflow_provider_segments.core.deletion.dead_letters import DeadLetter
    from airflow_provider_segments.core.deletion.messages import Backlog
    from airflow_provider_segments.core.deletion.reconcile import ReconcileReport
    from airflow_provider_segments.core.deletion.report import DeletionReport
    from airflow_provider_segments.core.retention.retain import RetentionReport

_WATCH_SECONDS = 2.0
_ID = 13  # digits of an id that are shown; any unique beginning of 4 or more is understood


def retention(call: Call) -> None:
    """``segments retention TABLE...``"""
    reports = list(call.each_table(_tables(call), lambda table: table.retain(dry_run=call.args.dry_run)).values())
    if call.out.as_json:
        call.out.document([report.as_dict() for report in reports])
        return
    rows = [row for report in reports for row in _retention_rows(report)]
    if rows:
        call.out.table(["TABLE", "WHAT", "ENTRY", "SEGMENTS", "SIZE", "WHY"], rows)  # a reason is never cut
        call.out.line()
    for report in reports:
        call.out.line(f"{report.table}: {_retention_words(report)}")


def _retention_words(report: RetentionReport) -> str:
    totals = report.as_dict()["totals"]
    segments = {"expired": "expired", "marked": "marked for deletion"}
    parts = [
        f"{text} {count(totals[f'{what}_segments'], 'segment')} ({size(totals[f'{what}_bytes'])})"
        for what, text in segments.items()
        if totals[f"{what}_segments"]
    ]
    entries = {"aborted": "aborted", "dropped": "dropped"}
    parts += [f"{text} {count(totals[what], 'push')}" for what, text in entries.items() if totals[what]]
    done = ", ".join(parts).replace("pushs", "pushes") or "nothing to do"
    return f"dry run, nothing was changed: {done}" if report.dry_run else done


def _retention_rows(report: RetentionReport) -> Iterator[list[Cell]]:
    found = report.as_dict()
    tense = ("abort", "expire", "mark", "drop") if report.dry_run else ("aborted", "expired", "marked", "dropped")
    for entry_id, why in found["aborted"].items():
        yield _retention_row(report.table, tense[0], entry_id, None, why, "yellow")
    for one in found["expired"]:
        yield _retention_row(report.table, tense[1], one["entry_id"], one, one["reason"], "red")
    for entry_id, one in found["marked"].items():
        yield _retention_row(report.table, tense[2], entry_id, one, one["reason"], "red")
    for entry_id, why in found["dropped"].items():
        yield _retention_row(report.table, tense[3], entry_id, None, why, "yellow")
    for entry_id, why in found["kept"].items():
        yield _retention_row(report.table, "kept", entry_id, None, why, "dim")
    for one in found["skipped"]:
        yield _retention_row(report.table, "skipped", one["entry_id"], one, one["reason"], "dim")


def _retention_row(
    table: str, what: str, entry_id: str | None, freed: Mapping[str, int] | None, why: str, colour: str
) -> list[Cell]:
    segments, stored = (f"{freed['segments']:,}", size(freed["bytes"])) if freed else ("", "")
    return [Cell(table), Cell(what, colour), Cell((entry_id or "")[:8]), Cell(segments), Cell(stored), Cell(why)]


def deletions(call: Call) -> None:
    """``segments deletions``"""
    if call.args.watch and call.out.as_json:
        raise UsageError("--watch prints for a person; ask for --json again and again instead")
    backlog = call.store.queue.backlog()
    if call.out.as_json:
        call.out.document(_backlog_document(backlog))
    elif not call.args.watch:
        _print_backlog(call, backlog)
    else:
        _watch(call, backlog)


def _watch(call: Call, backlog: Backlog) -> None:
    """One line a look, until nothing is in flight."""
    while True:
        call.out.line(
            f"{backlog.in_flight:,} in flight ({backlog.pending:,} pending, {backlog.retry:,} to retry "
            f"{_due(call, backlog)}), {backlog.dead:,} dead letters, {count(backlog.sweeps, 'sweep')}"
        )
        sys.stdout.flush()
        if not backlog.in_flight:
            return
        time.sleep(_WATCH_SECONDS)
        backlog = call.store.queue.backlog()


def _print_backlog(call: Call, backlog: Backlog) -> None:
    call.out.fields(
        [
            ("in flight", f"{backlog.in_flight:,}"),
            ("pending", f"{backlog.pending:,}"),
            ("retry", f"{backlog.retry:,}"),
            ("dead letters", f"{backlog.dead:,}"),
            ("sweeps", f"{backlog.sweeps:,}"),
            ("next due", _due(call, backlog)),
        ]
    )
    if backlog.dead:
        call.note("dead letters wait for a person: dead-letters list")


def _backlog_document(backlog: Backlog) -> dict[str, int | None]:
    return {
        "in_flight": backlog.in_flight,
        "pending": backlog.pending,
        "retry": backlog.retry,
        "dead": backlog.dead,
        "sweeps": backlog.sweeps,
        "next_due_ms": backlog.next_due_ms,
    }


def _due(call: Call, backlog: Backlog) -> str:
    if backlog.next_due_ms is None:
        return "-"
    left = backlog.next_due_ms - call.store.clock.now_ms()
    return "now" if left <= 0 else f"in {age(left)}"


def drain(call: Call) -> None:
    """``segments drain``"""
    with _progress(call) as progress:
        report = call.store.deleter().drain(
            max_seconds=call.args.max_seconds, max_ledgers=call.args.max_ledgers, progress=progress
        )
    if call.out.as_json:
        call.out.document(report.as_dict())
        return
    call.out.line(
        f"deleted {count(report.total('deleted'), 'object')} ({size(report.bytes)}) "
        f"of {count(report.deliveries, 'message')}"
    )
    for what, text in _ENDINGS.items():
        if number := report.total(what):
            call.out.line(f"{number:,} {text}")
    if report.swept:
        call.out.line(f"{count(report.swept, 'prefix sweep')} found {count(report.found, 'object')}")
    for reason, number in report.errors.items():
        call.out.line(f"  {number:,}: {reason}")
    if report.stopped:
        call.out.line(f"stopped at the {report.stopped}")
    if report.in_flight:
        call.out.line(f"{count(report.in_flight, 'message')} still in flight; next due {_due_of(call, report)}")


_ENDINGS = {
    "already_gone": "were gone already",
    "waiting": "wait for readers or writers",
    "failed": "failed and are tried again",
    "dead": "became dead letters: dead-letters list",
    "mismatch": "did not match their objects, which were kept",
    "stale": "are about segments in use",
    "malformed": "were malformed",
}


def _due_of(call: Call, report: DeletionReport) -> str:
    if report.next_due_ms is None:
        return "-"
    left = report.next_due_ms - call.store.clock.now_ms()
    return "now" if left <= 0 else f"in {age(left)}"


@contextmanager
def _progress(call: Call) -> Iterator[Callable[[Any], None] | None]:
    """A line on the terminal that changes while a drain runs; nothing where nobody looks."""
    if call.out.as_json or not sys.stderr.isatty():
        yield None
        return

    def show(report: DeletionReport) -> None:
        deleted = count(report.total("deleted"), "object")
        text = f"{count(report.deliveries, 'message')}, {deleted} deleted, {size(report.bytes)}"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def dead_list(call: Call) -> None:
    """``segments dead-letters list``"""
    from airflow_provider_segments.core.deletion import dead_letters as dead

    letters = list(dead.list_dead_letters(call.store.queue))
    if call.out.as_json:
        call.out.document([letter.as_dict() for letter in letters])
    elif not letters:
        call.note("there are no dead letters")
    else:
        now = call.store.clock.now_ms()
        head = ["ID", "TABLE", "STORAGE", "LEDGERS", "SIZE", "TRIES", "DEAD FOR", "LAST ERROR"]
        call.out.table(head, [_dead_row(letter, now) for letter in letters], flexible=(1, 7))


def _dead_row(letter: DeadLetter, now: int) -> list[Cell]:
    if letter.problem:
        return [Cell(letter.id[:_ID]), *[Cell("?")] * 6, Cell(letter.problem, "red")]
    return [
        Cell(letter.id[:_ID]),
        Cell(letter.table),
        Cell("primary" if letter.ledger_type == "Ledger" else "tiered"),
        Cell(f"{letter.ledgers:,}"),
        Cell(size(letter.bytes)),
        Cell(str(letter.attempts)),
        Cell(age(now - letter.dead_ms)),
        Cell(letter.error, "red"),
    ]


def dead_redrive(call: Call) -> None:
    """``segments dead-letters redrive ID...``"""
    _redrive(call, purge=False)


def dead_purge(call: Call) -> None:
    """``segments dead-letters purge ID...``"""
    _redrive(call, purge=True)


def _redrive(call: Call, *, purge: bool) -> None:
    from airflow_provider_segments.core.deletion import dead_letters as dead

    if bool(call.args.ids) == call.args.all:
        raise UsageError("name the dead letters, or give --all")
    done = dead.redrive(call.store.queue, None if call.args.all else call.args.ids, purge=purge)
    if call.out.as_json:
        call.out.document(done.as_dict())
        return
    verb = "purged" if purge else "enqueued anew"
    call.out.line(f"{count(done.messages, 'message')} {verb}")
    for one in done.undecodable:
        call.out.line(f"{one} cannot be decoded: it can only be purged")
    if purge and done.messages:
        call.out.line("their objects stay where they are; reconcile finds them")


def mark(call: Call) -> None:
    """``segments mark TABLE [SEGMENT...]``"""
    args, table = call.args, call.store.table(call.args.table)
    if bool(args.segments) == (args.entry is not None):
        raise UsageError("name the segments, or give --entry")
    report = table.mark_ledgers(args.segments or None, entry_id=args.entry)
    if call.out.as_json:
        call.out.document(report.as_dict())
        return
    call.out.line(f"table {table.name}: {count(report.segments, 'segment')} marked for deletion")
    if report.swept:
        call.out.line(f"what else lies under entry {report.swept} is looked for by a sweep")


def offload(call: Call) -> None:
    """``segments offload TABLE...``"""
    args = call.args
    limits = {"older_than_ms": args.older_than, "primary_lag_ms": args.primary_lag, "max_segments": args.max_segments}
    done = call.each_table(_tables(call), lambda table: table.offload(**limits))
    reports = [report.as_dict() for report in done.values()]
    if call.out.as_json:
        call.out.document(reports)
        return
    for number, report in enumerate(reports):
        if number:
            call.out.line()
        call.out.fields([(name.replace("_", " "), _value(name, value)) for name, value in report.items()])


def _value(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {one}" for key, one in value.items()) or "-"
    if isinstance(value, int):
        return f"{value:,} ({size(value)})" if "bytes" in name else f"{value:,}"
    return str(value) or "-"


def reconcile(call: Call) -> None:
    """``segments reconcile TABLE...``"""
    args = call.args
    done = call.each_table(_tables(call), lambda table: table.reconcile(grace_ms=args.grace, enqueue=args.enqueue))
    reports = list(done.values())
    if call.out.as_json:
        call.out.document([report.as_dict() for report in reports])
        return
    rows = [row for report in reports for row in _reconcile_rows(report)]
    if rows:
        call.out.table(["TABLE", "OBJECTS", "COUNT", "SIZE", "EXAMPLES"], rows, flexible=(0, 4))
    for report in reports:
        if report.enqueued:
            call.out.line(f"{report.table}: {count(report.enqueued, 'orphan')} queued for deletion")
        elif report.orphans.count:
            call.out.line(f"{report.table}: {count(report.orphans.count, 'orphan')}; --enqueue queues them")
        elif not report.missing.count and not report.foreign.count:
            call.out.line(f"{report.table}: {count(report.listed, 'object')}, nothing is lost or forgotten")
        if report.elsewhere:
            call.out.line(f"{report.table}: {report.elsewhere:,} copies are in a tiered storage that was not looked at")


_COLOURS = {"orphans": "yellow", "foreign": "yellow", "dead": "yellow", "missing": "red"}


def _reconcile_rows(report: ReconcileReport) -> Iterator[list[Cell]]:
    from airflow_provider_segments.core.deletion.reconcile import CLASSES

    for name in CLASSES:
        found = getattr(report, name)
        if found.count:
            examples = ", ".join(found.examples) if name in _COLOURS else ""
            numbers = Cell(f"{found.count:,}"), Cell(size(found.bytes))
            yield [Cell(report.table), Cell(name.replace("_", " "), _COLOURS.get(name, "")), *numbers, Cell(examples)]


def leases(call: Call) -> None:
    """``segments leases [TABLE...]``"""
    now = call.store.clock.now_ms()
    found = call.each_table(call.args.tables or _all_names(call), lambda table: table.leases())
    held = [(name, lease) for name, of_table in found.items() for lease in of_table]
    if call.out.as_json:
        call.out.document(
            [
                {"table": name, "owner": lease.owner, "zxid": lease.zxid, "taken_ms": lease.taken_ms}
                for name, lease in held
            ]
        )
    elif not held and not call.failures:
        call.note("no reader holds a lease")
    else:
        rows = [
            [Cell(name), Cell(lease.owner), Cell(age(now - lease.taken_ms)), Cell(f"{lease.zxid:#x}")]
            for name, lease in held
        ]
        call.out.table(["TABLE", "HELD BY", "FOR", "SINCE ZXID"], rows, flexible=(0, 1))


def _all_names(call: Call) -> list[str]:
    """Names of all tables, and of what stands among them and is none: that is reported, and stops no table."""
    return [*call.store.tables(), *call.store.configs.strays()]


def _tables(call: Call) -> list[str]:
    """Names of the tables that the arguments mean."""
    if bool(call.args.tables) == call.args.all:
        raise UsageError("name the tables, or give --all")
    return _all_names(call) if call.args.all else list(call.args.tables)
