"""What the commands do. Each takes a :class:`~.run.Call`, uses its store and prints to its output."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_segments.cli.output import Cell, age, few, size
from airflow_provider_segments.cli.run import Call, UsageError
from airflow_provider_segments.core.lineage.entries import EntryState, LineageEntry
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import format_ms, from_ms, parse_chunk
from airflow_provider_segments.core.model.period import format_period
from airflow_provider_segments.exceptions import (
    EntryNotFoundError,
    InvalidConfigError,
    MetadataUnavailableError,
    RevertRefusedError,
)
from airflow_provider_segments.text import count

if TYPE_CHECKING:
    from airflow_provider_segments.core.lineage.entries import Lineage
    from airflow_provider_segments.core.replacement.revert import RevertedEntry
    from airflow_provider_segments.core.replacement.start import AllVisible
    from airflow_provider_segments.core.replacement.unrevert import UnrevertedEntry
    from airflow_provider_segments.core.snapshot import Snapshot
    from airflow_provider_segments.core.table import Table

REVERTIBLE = (EntryState.COMPLETED, EntryState.IN_PROGRESS)
_STATE_COLOURS = {EntryState.COMPLETED: "green", EntryState.IN_PROGRESS: "yellow", EntryState.REVERTED: "red"}


def tables(call: Call) -> None:
    """``segments tables``"""
    found = call.store.tables()
    for stray in call.store.configs.strays():
        call.note(f"{stray!r} stands among the table configs and is no table's name")
    if call.out.as_json:
        call.out.document(found)
    elif found:
        for name in found:
            call.out.line(name)
    else:
        call.note(f"cluster {call.store.paths.cluster!r} has no tables; make one with: config apply FILE")


def lineage(call: Call) -> None:
    """``segments lineage TABLE``"""
    table = _table(call)
    entries = table.lineage()
    latest = _latest(table)
    if call.out.as_json:
        call.out.document(
            {
                "table": table.name,
                "latest": latest,
                "entries": [_entry_document(entry, entries, latest) for entry in entries.newest_first()],
            }
        )
    elif not entries:
        call.note(f"table {table.name!r} has no lineage entries")
    else:
        _print_lineage(call, entries, latest)


def _print_lineage(call: Call, entries: Lineage, latest: str | None) -> None:
    now = call.store.clock.now_ms()
    digits = _unique_digits(list(entries.entries))
    rows = [
        [
            Cell(entry.entry_id[:digits], "bold" if entry.entry_id == latest else ""),
            Cell(entry.state.value, _STATE_COLOURS[entry.state]),
            Cell(from_ms(entry.timestamp_ms).strftime("%Y-%m-%d %H:%M:%S")),
            Cell(age(now - entry.timestamp_ms)),
            Cell(_counted(entry.segments_from)),
            Cell(_counted(entry.segments_to)),
            Cell(_note(entry, entries, latest), "bold" if entry.entry_id == latest else "dim"),
        ]
        for entry in entries.newest_first()
    ]
    call.out.table(["ENTRY", "STATE", "SINCE (UTC)", "AGE", "FROM", "TO", ""], rows, flexible=(4, 5))


def _entry_document(entry: LineageEntry, entries: Lineage, latest: str | None) -> dict[str, Any]:
    return {
        "entry_id": entry.entry_id,
        "state": entry.state.value,
        "since": format_ms(entry.timestamp_ms),
        "timestamp_ms": entry.timestamp_ms,
        "segments_from": list(entry.segments_from),
        "segments_to": list(entry.segments_to),
        "latest": entry.entry_id == latest,
        "cleaning": entries.is_cleaning(entry.entry_id),
    }


def _note(entry: LineageEntry, entries: Lineage, latest: str | None) -> str:
    if entry.entry_id == entries.dropped_by:
        return "dropped the table"
    if entry.entry_id == latest:
        return "latest"
    return "cleaning" if entries.is_cleaning(entry.entry_id) else ""


def _latest(table: Table) -> str | None:
    try:
        return table.resolve_entry("latest")
    except EntryNotFoundError:
        return None


def _unique_digits(ids: Sequence[str]) -> int:
    """How many characters tell the ids apart, at least eight."""
    return next(
        digits for digits in range(8, 37) if digits == 36 or len({entry_id[:digits] for entry_id in ids}) == len(ids)
    )


def _counted(names: Sequence[str]) -> str:
    return f"{len(names):,} {names[0]}" if names else "-"


def snapshot(call: Call) -> None:
    """``segments snapshot TABLE``"""
    args, table = call.args, _table(call)
    if args.start is not None and args.end is not None and args.start >= args.end:
        raise UsageError("--start must come before --end")
    as_of = None if args.as_of is None else table.resolve_entry(args.as_of)
    table.config()  # a table that was never made is an error, not an empty snapshot
    taken = table.snapshot(args.start, args.end, as_of=as_of)
    if call.out.as_json:
        call.out.document(_snapshot_document(taken, as_of, with_files=args.files))
    elif args.files:
        for url in taken.urls:
            call.out.line(url)
    else:
        _print_snapshot(call, taken, as_of)


def _print_snapshot(call: Call, taken: Snapshot, as_of: str | None) -> None:
    chunks = _chunks(taken)
    pairs = [
        ("table", taken.table),
        ("rows", f"{taken.rows:,}"),
        ("segments", f"{len(taken):,}"),
        ("bytes", f"{taken.bytes:,} ({size(taken.bytes)})"),
        ("chunks", f"{len(chunks):,}" + (f" ({next(iter(chunks))} to {next(reversed(chunks))})" if chunks else "")),
        ("zxid", f"{taken.zxid:#x}"),
    ]
    if call.args.start is not None or call.args.end is not None:
        pairs.insert(1, ("interval", str(taken.interval)))
    if as_of is not None:
        pairs.insert(1, ("as of", as_of))
    call.out.fields(pairs)


def _snapshot_document(taken: Snapshot, as_of: str | None, *, with_files: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "table": taken.table,
        "zxid": taken.zxid,
        "as_of": as_of,
        "interval": str(taken.interval),
        "rows": taken.rows,
        "segments": len(taken),
        "bytes": taken.bytes,
        "chunks": [{"chunk": chunk, **totals} for chunk, totals in _chunks(taken).items()],
    }
    return document | ({"files": taken.urls} if with_files else {})


def _chunks(taken: Snapshot) -> dict[str, dict[str, int]]:
    """Totals of each time chunk, in the order of time."""
    found: dict[str, dict[str, int]] = {}
    for shard, records in taken.blocks:
        for record in records:
            totals = found.setdefault(shard.chunk_of(record), {"segments": 0, "rows": 0, "bytes": 0})
            totals["segments"] += 1
            totals["rows"] += record.rows
            totals["bytes"] += record.bytes
    return dict(sorted(found.items(), key=lambda item: parse_chunk(item[0]).start_ms))


def start(call: Call) -> None:
    """``segments start TABLE``"""
    args, table = call.args, _table(call)
    started = table.start(_from(call), _flat(args.to_names) or (), identity=args.identity, force_cleanup=args.force)
    if call.out.as_json:
        call.out.document(
            {
                "table": table.name,
                "entry_id": started.entry_id,
                "segments_from": list(started.segments_from),
                "segments_to": list(started.segments_to),
                "resumed": started.resumed,
                "reverted": list(started.reverted),
                "cleaning": list(started.cleaning),
            }
        )
        return
    verb = "found again" if started.resumed else "started"
    call.out.line(
        f"{verb} entry {started.entry_id} of table {table.name}, "
        f"replacing {count(len(started.segments_from), 'segment')}"
    )
    for entry_id in started.reverted:
        call.out.line(f"reverted entry {entry_id}, which was in the way")
    for entry_id in started.cleaning:
        call.out.line(f"entry {entry_id} can no longer be reverted: what it replaced is being deleted")


def _from(call: Call) -> Sequence[str] | AllVisible | None:
    from airflow_provider_segments.core.replacement.start import ALL_VISIBLE

    given = _flat(call.args.from_names)
    if (given is not None) + call.args.from_all + call.args.from_none > 1:
        raise UsageError("give only one of --from, --from-all and --from-none")
    if call.args.from_all:
        return ALL_VISIBLE
    return () if call.args.from_none else given


def stage(call: Call) -> None:
    """``segments stage TABLE ENTRY FILE...``"""
    from airflow_provider_segments.cli.parquet import stage_files

    args, table = call.args, _table(call)
    entry_id = table.resolve_entry(args.entry, (EntryState.IN_PROGRESS,))
    pushed, segments = stage_files(
        table, entry_id, [Path(path) for path in args.paths], stager=args.stager, chunk=args.chunk
    )
    if call.out.as_json:
        call.out.document(
            {
                "table": table.name,
                "entry_id": entry_id,
                "segments": [item.record.name for item in segments],
                "rows": pushed.rows,
                "bytes": pushed.bytes,
            }
        )
        return
    call.out.line(
        f"staged {count(pushed.segments, 'segment')} into entry {entry_id} of table {table.name}: "
        f"{count(pushed.rows, 'row')}, {size(pushed.bytes)}"
    )


def end(call: Call) -> None:
    """``segments end TABLE ENTRY``"""
    args, table = call.args, _table(call)
    entry_id = table.resolve_entry(args.entry, (EntryState.IN_PROGRESS,))
    ended = table.end(entry_id, _flat(args.to_names), allow_empty=args.allow_empty)
    if call.out.as_json:
        call.out.document(
            {
                "table": table.name,
                "entry_id": ended.entry_id,
                "segments_from": list(ended.segments_from),
                "segments_to": list(ended.segments_to),
                "rows": ended.rows,
                "bytes": ended.bytes,
                "already": ended.already,
                "switch_ms": round(ended.switch_ms, 3),
            }
        )
    elif ended.already:
        call.out.line(f"entry {ended.entry_id} of table {table.name} had been completed before")
    else:
        call.out.line(
            f"completed entry {ended.entry_id} of table {table.name}: {count(len(ended.segments_to), 'segment')} "
            f"with {count(ended.rows, 'row')} in place of {len(ended.segments_from):,}; "
            f"the switch took {ended.switch_ms:.1f} ms"
        )


def revert(call: Call) -> None:
    """``segments revert TABLE ENTRY``"""
    args, table = call.args, _table(call)
    entry_id = table.resolve_entry(args.entry, REVERTIBLE if args.force else (EntryState.COMPLETED,))
    if args.entry == "latest" and not args.yes:
        _check_latest(call, table, entry_id)
    if args.dry_run:
        done = table.preview_revert(entry_id, force=args.force, allow_empty=args.allow_empty)
    else:
        done = table.revert(entry_id, force=args.force, allow_empty=args.allow_empty, identity=args.identity)
    if call.out.as_json:
        call.out.document({"table": table.name, "was": done.was.value, **_switched(done, dry_run=args.dry_run)})
        return
    verb = "would revert" if args.dry_run else "had reverted" if done.already else "reverted"
    call.out.line(f"{verb} entry {done.entry_id} of table {table.name}, which was {done.was.value}{_took(call, done)}")
    if done.was is EntryState.IN_PROGRESS:
        call.out.line("readers see no change: the push was still in progress")
    else:
        _print_change(call, done)
    if not args.dry_run and done.was is EntryState.COMPLETED:
        kept = format_period(table.config().reverted_retention_ms)
        call.out.line(f"to bring it back within {kept}: segments unrevert {table.name} {done.entry_id}")


def _check_latest(call: Call, table: Table, entry_id: str) -> None:
    """Who asks for the latest entry once more, after a rollback, is asked whether that is meant."""
    try:
        table.check_not_behind_revert(entry_id)
    except RevertRefusedError as behind:
        about = f"entry {entry_id}: {behind.detail}"
        if call.args.dry_run:
            call.note(about)
        elif sys.stdin.isatty() and not call.out.as_json:
            _ask(call, table, entry_id, about)
        else:
            hint = "To roll this one back, too, name it by its id, or give --yes."
            raise RevertRefusedError(
                behind.rule, behind.detail, table=table.name, entry_id=entry_id, hint=hint
            ) from None


def _ask(call: Call, table: Table, entry_id: str, about: str) -> None:
    """Ask before an entry is rolled back that nobody named. Raises :class:`UsageError` unless the answer is yes."""
    preview = table.preview_revert(entry_id, force=call.args.force, allow_empty=call.args.allow_empty)
    if preview.before is not None and preview.after is not None:
        about += f"; readers see {count(preview.before.rows, 'row')}, and would see {count(preview.after.rows, 'row')}"
    call.note(about)
    if input("roll this one back, too? [y/N] ").strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was changed")


def unrevert(call: Call) -> None:
    """``segments unrevert TABLE ENTRY``"""
    args, table = call.args, _table(call)
    entry_id = table.resolve_entry(args.entry, (EntryState.REVERTED,))
    if args.dry_run:
        done = table.preview_unrevert(entry_id, allow_empty=args.allow_empty)
    else:
        done = table.unrevert(entry_id, allow_empty=args.allow_empty, identity=args.identity)
    if call.out.as_json:
        call.out.document({"table": table.name, **_switched(done, dry_run=args.dry_run)})
        return
    verb = "would bring back" if args.dry_run else "had brought back" if done.already else "brought back"
    call.out.line(f"{verb} entry {done.entry_id} of table {table.name}{_took(call, done)}")
    _print_change(call, done)


def _took(call: Call, done: RevertedEntry | UnrevertedEntry) -> str:
    return "" if call.args.dry_run or done.already else f"; the switch took {done.switch_ms:.1f} ms"


def _switched(done: RevertedEntry | UnrevertedEntry, *, dry_run: bool) -> dict[str, Any]:
    return {
        "entry_id": done.entry_id,
        "reappeared": list(done.reappeared),
        "hidden": list(done.hidden),
        "before": done.before and done.before.as_dict(),
        "after": done.after and done.after.as_dict(),
        "already": done.already,
        "dry_run": dry_run,
        "switch_ms": round(done.switch_ms, 3),
    }


def _print_change(call: Call, done: RevertedEntry | UnrevertedEntry) -> None:
    for title, names in (("visible again", done.reappeared), ("hidden", done.hidden)):
        if names:
            call.out.line(f"{title}: {count(len(names), 'segment')}: {few(names)}")
    for title, totals in (("readers saw", done.before), ("they see", done.after)):
        if totals is not None:
            verb = title.replace("saw", "see").replace("they see", "they would see") if call.args.dry_run else title
            counted = f"{count(totals.rows, 'row')} in {count(totals.segments, 'segment')}, {size(totals.bytes)}"
            call.out.line(f"{verb}: {counted}")


def config_apply(call: Call) -> None:
    """``segments config apply FILE``"""
    config = TableConfig.from_json(_read_json(call.args.file))
    outcome = call.store.apply_config(config)
    if call.out.as_json:
        call.out.document({"table": config.name, "outcome": outcome})
    else:
        call.out.line(f"table {config.name}: {outcome}")


def config_show(call: Call) -> None:
    """``segments config show TABLE``"""
    call.out.document(_table(call).config().to_json())


def _read_json(file: str) -> Mapping[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfigError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"{file} is not UTF-8 text: {error}") from error
    try:
        document: Mapping[str, Any] = json.loads(text)
    except ValueError as error:
        raise InvalidConfigError(f"{file} is not JSON: {error}") from error
    return document


def dev_zookeeper(call: Call) -> None:
    """``segments dev zookeeper``"""
    from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper

    signal.signal(signal.SIGTERM, _interrupt)
    with EmbeddedZooKeeper(_data_dir(call.args.data_dir), call.args.port) as server:
        try:
            if call.out.as_json:
                call.out.document({"zookeeper": server.hosts, "data_dir": str(server.data_dir), "pid": server.pid})
            else:
                call.out.line(f"ZooKeeper at {server.hosts}, data in {server.data_dir}; Ctrl-C stops it")
            sys.stdout.flush()
            _wait_for_end(server.pid or 0)
        except KeyboardInterrupt:
            return
        raise MetadataUnavailableError(
            f"the embedded ZooKeeper has ended by itself; see {server.data_dir}/zookeeper.log"
        )


def _data_dir(given: str | None) -> Path:
    """The folder that was given, or one of this user's for data that survives a restart (XDG)."""
    if given is not None:
        return Path(given).absolute()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "segments" / "zookeeper"


def _wait_for_end(pid: int) -> None:
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.2)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _table(call: Call) -> Table:
    return call.store.table(call.args.table)


def _flat(lists: Iterable[Sequence[str]] | None) -> list[str] | None:
    return None if lists is None else [name for one in lists for name in one]
