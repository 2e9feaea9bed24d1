"""The timeline of a table for people: a text table, and an SVG picture that needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from airflow_provider_segments.model.interval import Interval, format_ms
from airflow_provider_segments.timeline.segment import P, SegmentState
from airflow_provider_segments.timeline.timeline import Timeline

_HEAD = ("interval", "version", "state", "count", "partitions")
_OFFLINE = "offline"
_ORDER = (SegmentState.VISIBLE.value, SegmentState.STANDBY.value, SegmentState.OVERSHADOWED.value, _OFFLINE)
_FILL = {"visible": "#2b8a3e", "standby": "#f08c00", "overshadowed": "#adb5bd", "offline": "#ffffff"}

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _FOOT = 960, 220, 20, 26, 34, 44
_NAME_CHARS = 30


@dataclass(frozen=True, slots=True)
class _Row:
    interval: Interval
    version: str
    states: dict[str, list[int]]


def as_text(timeline: Timeline[P]) -> str:
    """A table with one line for each interval, version and state: how many segments, and which partition ids.

    ``offline`` are segments whose metadata is known and that are not in service.
    """
    lines = [_HEAD]
    for row in _rows(timeline):
        for state in _ORDER:
            ids = row.states.get(state)
            if ids:
                lines.append((str(row.interval), row.version or "-", state, f"{len(ids):,}", ranges(ids)))
    widths = [max(len(line[at]) for line in lines) for at in range(len(_HEAD))]
    shown = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([shown[0], "-" * len(shown[0]), *shown[1:]])


def as_svg(timeline: Timeline[P], *, title: str = "") -> str:
    """A picture: time to the right, one row a version with the newest on top, and a box for each interval.

    A box is divided by how many of its segments are visible (green), standby (orange), overshadowed (grey) or
    known but not in service (white); a black line beneath it shows in which part of its time it is visible.
    """
    rows = _rows(timeline)
    versions = sorted({row.version for row in rows}, reverse=True)
    height = _TOP + _ROW * len(versions) + _FOOT
    start = min((row.interval.start_ms for row in rows), default=0)
    end = max((row.interval.end_ms for row in rows), default=start + 1)
    scale = (_WIDTH - _LEFT - _RIGHT) / (end - start)
    body = [f'<text x="8" y="20" font-weight="bold">{escape(title or timeline.table or "timeline")}</text>']
    tops = {version: _TOP + _ROW * at for at, version in enumerate(versions)}
    for version, top in tops.items():
        name = version if len(version) <= _NAME_CHARS else version[: _NAME_CHARS - 1] + "…"
        body.append(f'<text x="8" y="{top + 15}">{escape(name or "-")}</text>')
    for row in rows:
        body.extend(_box(row, tops[row.version], _LEFT + (row.interval.start_ms - start) * scale, scale))
    for piece in timeline.pieces():
        x = _LEFT + (piece.interval.start_ms - start) * scale
        width = (piece.interval.end_ms - piece.interval.start_ms) * scale
        body.append(f'<rect x="{x:.1f}" y="{tops[piece.version] + 20}" width="{width:.1f}" height="2" fill="#000"/>')
    body.extend(_foot(height, start, end, bool(rows)))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" font-family="sans-serif" font-size="11">',
            f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
            *body,
            "</svg>",
        ]
    )


def ranges(ids: Sequence[int]) -> str:
    """Sorted ids as ``0-4, 7``."""
    found: list[list[int]] = []
    for one in ids:
        if found and one == found[-1][1] + 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in found)


def _rows(timeline: Timeline[P]) -> list[_Row]:
    found: dict[tuple[Interval, str], _Row] = {}
    for segment, state in timeline.states():
        row = found.setdefault((segment.interval, segment.version), _Row(segment.interval, segment.version, {}))
        row.states.setdefault(_OFFLINE if state is None else state.value, []).append(segment.partition)
    return list(found.values())


def _box(row: _Row, top: int, x: float, scale: float) -> list[str]:
    width = max(1.0, (row.interval.end_ms - row.interval.start_ms) * scale)
    total = sum(len(ids) for ids in row.states.values())
    parts, at = [], x
    for state in _ORDER:
        ids = row.states.get(state)
        if not ids:
            continue
        part = width * len(ids) / total
        about = escape(f"{row.interval} version {row.version or '-'}: {state} {ranges(ids)}")
        parts.append(
            f'<rect x="{at:.1f}" y="{top + 2}" width="{part:.1f}" height="17" fill="{_FILL[state]}" stroke="#fff" '
            f'stroke-width="0.5"><title>{about}</title></rect>'
        )
        at += part
    parts.append(f'<rect x="{x:.1f}" y="{top + 2}" width="{width:.1f}" height="17" fill="none" stroke="#495057"/>')
    return parts


def _foot(height: int, start: int, end: int, times: bool) -> list[str]:
    found = []
    if times:
        found.append(f'<text x="{_LEFT}" y="{height - 28}">{format_ms(start)}</text>')
        found.append(f'<text x="{_WIDTH - _RIGHT}" y="{height - 28}" text-anchor="end">{format_ms(end)}</text>')
    x = _LEFT
    for state in _ORDER:
        found.append(f'<rect x="{x}" y="{height - 17}" width="10" height="10" fill="{_FILL[state]}" stroke="#495057"/>')
        found.append(f'<text x="{x + 14}" y="{height - 8}">{state}</text>')
        x += 110
    return found
