"""What the commands about upsert tables do. Each takes a :class:`~.run.Call`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_segments.cli.output import Cell, age
from airflow_provider_segments.cli.run import Call
from airflow_provider_segments.core.upsert.marks import SILENT_MS, HeldVersion, HeldVersions, low_water_mark
from airflow_provider_segments.core.upsert.record import NO_CUTOFF, UpsertRecord, require_record, waiting_bulks
from airflow_provider_segments.text import count

if TYPE_CHECKING:
    from airflow_provider_segments.core.table import Table


def upsert_status(call: Call) -> None:
    """``segments upsert status TABLE``"""
    table = call.store.table(call.args.table)
    table.config()
    lineage = table.lineage()
    record = require_record(lineage)
    held = HeldVersions(call.store.cluster, table.name).read()
    now = call.store.clock.now_ms()
    taken = table.snapshot()
    dead = _dead_rows(table)
    document: dict[str, Any] = {
        "table": table.name,
        "version": record.clock,
        "published_ms": record.published[-1].at_ms if record.published else None,
        "floor": record.floor,
        "low_water_mark": low_water_mark(record.clock, held),
        "segments": len(taken),
        "update_logs": len(taken.logs()),
        "rows": taken.rows,
        "dead_rows": dead,
        "bytes": taken.bytes,
        "positions": record.positions,
        "waiting": waiting_bulks(lineage, record),
        "events": msgspec.structs.asdict(record.events),
        "cutoff": None if record.cutoff == NO_CUTOFF else record.cutoff,
        "voids": record.voids,
        "readers": [_reader(one, now) for one in held],
    }
    if call.out.as_json:
        call.out.document(document)
        return
    call.out.fields([(name, text) for name, text in _lines(record, document, now) if text])
    if held:
        call.out.line()
        rows = [
            [Cell(one.reader), Cell(str(one.version)), Cell(age(now - one.at_ms)), _state(one, now)] for one in held
        ]
        call.out.table(["READER", "VERSION", "REPORTED", "STATE"], rows)


def upsert_rollback(call: Call) -> None:
    """``segments upsert rollback TABLE --to VERSION``"""
    from airflow_provider_segments.upsert.rollback import roll_back

    table = call.store.table(call.args.table)
    table.config()
    done = roll_back(table.context, call.args.to)
    if call.out.as_json:
        call.out.document(
            {
                "table": table.name,
                "version": done.version,
                "taken_back": done.taken_back,
                "positions": done.positions,
                "waiting": done.waiting,
            }
        )
        return
    gone = count(len(done.taken_back), "version")
    call.out.line(f"table {table.name} shows version {call.args.to} again, as version {done.version}; took back {gone}")
    call.out.line(f"ingestion goes on from {_positions(done.positions)}")
    if done.waiting:
        call.out.line(f"{count(len(done.waiting), 'push', 'pushes')} will be resolved again")


def upsert_cutoff(call: Call) -> None:
    """``segments upsert cutoff TABLE VALUE``"""
    from airflow_provider_segments.upsert.expiry import expire

    table = call.store.table(call.args.table)
    table.config()
    done = expire(table, call.args.value)
    if call.out.as_json:
        call.out.document({name: getattr(done, name) for name in done.__slots__} | {"table": table.name})
    else:
        ended = f"; ended {count(done.rows, 'row')} with version {done.version}" if done.entry_id else ""
        call.out.line(f"table {table.name} takes no events below {done.cutoff} any more{ended}")


def upsert_forget(call: Call) -> None:
    """``segments upsert forget TABLE READER``"""
    table, reader = call.store.table(call.args.table), call.args.reader
    table.config()
    was_there = HeldVersions(call.store.cluster, table.name).forget(reader)
    if call.out.as_json:
        call.out.document({"table": table.name, "reader": reader, "was_there": was_there})
    elif was_there:
        call.out.line(f"reader {reader} holds no version of table {table.name} any more")
    else:
        call.note(f"table {table.name!r} has no report of a reader {reader!r}")


def upsert_compact(call: Call) -> None:
    """``segments upsert compact TABLE [--floor VERSION]``"""
    from airflow_provider_segments.upsert.compaction import UpsertCompactor

    table = call.store.table(call.args.table)
    table.config()
    done = UpsertCompactor(table).run(floor=call.args.floor)
    if call.out.as_json:
        call.out.document({name: getattr(done, name) for name in done.__slots__} | {"table": table.name})
    elif not done.entry_id:
        call.note(f"table {table.name!r} has nothing to compact at or below its oldest mark")
    else:
        call.out.line(
            f"table {table.name}: {count(done.segments_from, 'segment')} with {done.rows_from:,} rows became "
            f"{count(done.segments_to, 'segment')} with {done.rows_to:,}; merged {count(done.logs_from, 'update log')}"
        )


def _dead_rows(table: Table) -> int | None:
    """Rows that are stored and not seen at the newest mark; ``None`` where Arrow is not installed to read the logs."""
    try:
        from airflow_provider_segments.upsert.reading import read_ends, require_mark
    except ImportError:
        return None
    with table.snapshot(owner="segments upsert status") as taken:
        ends, mark, names = read_ends(taken), require_mark(taken), set(taken.names)
        return sum(len(one.dead_rows(mark)) for name, one in ends.items() if name in names)


def _lines(record: UpsertRecord, shown: dict[str, Any], now: int) -> list[tuple[str, str]]:
    dead, rows = shown["dead_rows"], shown["rows"]
    since = "" if shown["published_ms"] is None else f", published {age(now - shown['published_ms'])} ago"
    return [
        ("table", shown["table"]),
        ("version", f"{record.clock}{since}"),
        ("oldest mark", str(record.floor)),
        ("low-water mark", f"{shown['low_water_mark']} of {count(len(shown['readers']), 'reader')} with copies"),
        ("rows", f"{rows:,}" + ("" if dead is None else f", {dead:,} of them not valid any more")),
        ("objects", f"{count(shown['segments'], 'segment')}, {count(shown['update_logs'], 'update log')}"),
        ("events", ", ".join(f"{number:,} {kind}" for kind, number in shown["events"].items() if number)),
        ("next offsets", _positions(record.positions)),
        ("pushes that wait", ", ".join(shown["waiting"])),
        ("cutoff", "" if shown["cutoff"] is None else str(shown["cutoff"])),
        ("taken back", ", ".join(f"{after + 1} to {until}" for after, until in record.voids)),
    ]


def _positions(positions: dict[str, int]) -> str:
    return ", ".join(f"{source} {at}" for source, at in sorted(positions.items())) or "the beginning"


def _reader(one: HeldVersion, now: int) -> dict[str, Any]:
    return {
        "reader": one.reader,
        "version": one.version,
        "is_caught_up": one.is_caught_up,
        "reported_ms": one.at_ms,
        "is_silent": one.is_silent(now, SILENT_MS),
    }


def _state(one: HeldVersion, now: int) -> Cell:
    if one.is_silent(now, SILENT_MS):
        return Cell("silent", "red")
    return Cell("reads", "green") if one.is_caught_up else Cell("catching up", "yellow")
