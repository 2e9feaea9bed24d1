"""``segments drop-table`` and ``segments delete-time``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_segments.cli.output import size
from airflow_provider_segments.cli.run import Call, UsageError
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.text import count

if TYPE_CHECKING:
    from airflow_provider_segments.core.retention.drop import DroppedTable
    from airflow_provider_segments.core.table import Table


def drop_table(call: Call) -> None:
    """``segments drop-table TABLE``"""
    args, table = call.args, call.store.table(call.args.table)
    if not args.dry_run and not args.yes:
        seen = table.preview_drop()
        raise UsageError(f"{_seen(seen)} of table {table.name} would be hidden; give --yes to drop it, or --dry-run")
    done = table.preview_drop() if args.dry_run else table.drop(identity=args.identity)
    if call.out.as_json:
        call.out.document(_document(done, dry_run=args.dry_run))
        return
    verb = "is dropped already" if done.already else "would be dropped" if args.dry_run else "is dropped"
    call.out.line(f"table {table.name} {verb}: {_seen(done)} hidden")
    for entry_id in done.running:
        call.out.line(f"push in progress, which can no longer end: {entry_id}")
    if done.entry_id:
        period = table.config().replaced_retention_ms // 1000
        call.out.line(f"for {period:,} s, this brings it back: segments revert {table.name} {done.entry_id}")


def _seen(done: DroppedTable) -> str:
    return f"{count(done.rows, 'row')} in {count(done.segments, 'segment')} ({size(done.bytes)})"


def _document(done: DroppedTable, *, dry_run: bool) -> dict[str, Any]:
    return {
        "table": done.table,
        "entry_id": done.entry_id,
        "rows": done.rows,
        "segments": done.segments,
        "bytes": done.bytes,
        "running": list(done.running),
        "already": done.already,
        "dry_run": dry_run,
    }


def delete_time(call: Call) -> None:
    """``segments delete-time TABLE --start TIME --end TIME``"""
    args, table = call.args, call.store.table(call.args.table)
    if args.start >= args.end:
        raise UsageError("--start must be before --end")
    interval = Interval(args.start, args.end)
    before = table.snapshot(args.start, args.end)
    if args.dry_run:
        _report(call, table, {"segments": len(before), "most_rows": before.rows, "dry_run": True})
        return
    ended = table.delete_time(interval, identity=args.identity)
    found = {"segments": len(before), "most_rows": before.rows, "dry_run": False}
    _report(call, table, found | {"entry_id": ended.entry_id, "already": ended.already})


def _report(call: Call, table: Table, found: dict[str, Any]) -> None:
    if call.out.as_json:
        call.out.document({"table": table.name, **found})
        return
    there = f"{count(found['segments'], 'segment')} with at most {count(found['most_rows'], 'row')} there"
    if found["dry_run"]:
        call.out.line(f"that time of table {table.name} would be removed: {there}")
    else:
        verb = "was removed already" if found["already"] else "is removed"
        call.out.line(f"that time of table {table.name} {verb}: {there}")
        call.out.line(f"this brings it back: segments revert {table.name} {found['entry_id']}")
