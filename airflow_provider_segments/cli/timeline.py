"""What the command about the timeline does. It takes a :class:`~.run.Call`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.cli.output import Cell, shorten, size
from airflow_provider_segments.cli.run import Call, UsageError
from airflow_provider_segments.core.model.interval import format_ms

if TYPE_CHECKING:
    from airflow_provider_segments.cli.picture import TimelineLine
    from airflow_provider_segments.core.snapshot import SegmentStatus

_STATE_COLOURS = {"visible": "green", "standby": "yellow", "overshadowed": "dim"}


def timeline(call: Call) -> None:
    """``segments timeline TABLE``"""
    from airflow_provider_segments.cli.picture import timeline_lines

    args, table = call.args, call.store.table(call.args.table)
    if args.start is not None and args.end is not None and args.start >= args.end:
        raise UsageError("--start must come before --end")
    table.config()  # a table that was never made is an error, not an empty timeline
    statuses = table.segment_states(args.start, args.end)
    lines = timeline_lines(statuses)
    if args.svg is not None:
        _draw(call, statuses)
    if call.out.as_json:
        call.out.document(_document(table.name, lines, statuses))
    elif lines:
        _print_lines(call, lines)
    else:
        call.note(
            f"table {table.name!r} has no segments"
            + (" in that time" if (args.start, args.end) != (None, None) else "")
        )
    if args.svg is not None and not call.out.as_json:
        call.out.line(f"picture: {args.svg}")


def _draw(call: Call, statuses: Sequence[SegmentStatus]) -> None:
    from airflow_provider_segments.cli.picture import as_svg

    title = f"Table {call.args.table} at {format_ms(call.store.clock.now_ms() // 1000 * 1000)}"
    try:
        Path(call.args.svg).write_text(as_svg(statuses, title=title), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {call.args.svg}: {error.strerror}") from error


def _print_lines(call: Call, lines: Sequence[TimelineLine]) -> None:
    head = ["INTERVAL", "STATE", "SEGMENTS", "ROWS", "SIZE", "VERSION", "PARTITIONS"]
    cut = any(line.cuts for line in lines)
    rows = [[*_row(line), *([Cell(", ".join(map(str, line.cuts)))] if cut else [])] for line in lines]
    call.out.table([*head, *(["VISIBLE IN"] if cut else [])], rows, flexible=() if cut else (len(head) - 1,))


def _row(line: TimelineLine) -> list[Cell]:
    from airflow_provider_segments.cli.picture import ranges_text, versions_text

    state = line.state.value
    return [
        Cell(line.chunk),
        Cell(state, _STATE_COLOURS[state]),
        Cell(f"{len(line.segments):,}"),
        Cell(f"{line.rows:,}"),
        Cell(size(line.bytes)),
        Cell(versions_text(line.versions)),
        Cell(shorten(ranges_text(line.partitions), 40) or "-"),
    ]


def _document(table: str, lines: Sequence[TimelineLine], statuses: Sequence[SegmentStatus]) -> dict[str, Any]:
    return {
        "table": table,
        "lines": [
            {
                "chunk": line.chunk,
                "interval": str(line.interval),
                "state": line.state.value,
                "segments": len(line.segments),
                "rows": line.rows,
                "bytes": line.bytes,
                "versions": list(line.versions),
                "partitions": list(line.partitions),
                "visible_in": [str(part) for part in line.cuts],
            }
            for line in lines
        ],
        "segments": [_segment_document(status) for status in statuses],
    }


def _segment_document(status: SegmentStatus) -> dict[str, Any]:
    segment = status.segment
    return {
        "name": segment.name,
        "entry_id": segment.entry_id,
        "chunk": segment.chunk,
        "version": segment.version,
        "partition": None if segment.partition < 0 else segment.partition,
        "state": status.state.value,
        "rows": segment.rows,
        "bytes": segment.bytes,
        "visible_in": [str(part) for part in segment.visible_in],
    }
