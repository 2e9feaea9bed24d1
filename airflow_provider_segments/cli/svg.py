"""Write the picture of a table: shapes, text, colours, and round times for its axis."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from airflow_provider_segments.core.model.interval import ALL_TIME, Granularity, format_ms, from_ms

FILL = {"visible": "#2b8a3e", "standby": "#f08c00", "overshadowed": "#ced4da"}
INK, DIM, GRID = "#212529", "#868e96", "#e9ecef"


def svg_head(width: int, height: int, title: str) -> Iterator[str]:
    """The beginning of the document: its size, its name, the hatching, a white ground."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="11" role="img">'
    )
    yield f"<title>{escape(title)}</title>"
    yield (
        '<defs><pattern id="hidden" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#fff" fill-opacity="0.72"/>'
        f'<rect width="1.5" height="6" fill="{DIM}"/></pattern></defs>'
    )
    yield f'<rect width="{width}" height="{height}" fill="#fff"/>'


def rect(x: float, y: float, width: float, height: float, state: str, about: str, *, line: bool = True) -> str:
    """A cell or a legend's sample in the colour of ``state``; ``about`` is shown when the mouse is over it."""
    edge = f' stroke="{"#fff" if state == "visible" else DIM}" stroke-width="0.6"' if line else ""
    title = f"<title>{escape(about)}</title>" if about else ""
    size = f'width="{max(width, 0.5):.2f}" height="{max(height, 0.5):.1f}"'
    return f'<rect class="{state}" x="{x:.2f}" y="{y:.1f}" {size} fill="{FILL[state]}"{edge}>{title}</rect>'


def text(
    x: float,
    y: float,
    words: str,
    *,
    fill: str = INK,
    anchor: str = "start",
    bold: bool = False,
    mono: bool = False,
    quiet: bool = False,
) -> str:
    """Text with its baseline at ``y``; ``quiet`` leaves the mouse to what is beneath."""
    more = f' text-anchor="{anchor}"' if anchor != "start" else ""
    more += ' font-weight="bold" font-size="14"' if bold else ""
    more += ' font-family="ui-monospace, monospace"' if mono else ""
    more += ' pointer-events="none"' if quiet else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}"{more}>{escape(words)}</text>'


def cropped(text: str, most: int = 80) -> str:
    """``text``, or its beginning and three dots."""
    return text if len(text) <= most else text[: most - 1] + "…"


def ticks(start: int, end: int, most: int = 11) -> list[tuple[int, str]]:
    """Round times of the narrowest granularity, or the narrowest number of years, that gives no more than ``most``."""
    for granularity, every in (
        *((Granularity.HOUR, every) for every in (1, 3, 6, 12)),
        *((Granularity.DAY, every) for every in (1, 2, 7, 14)),
        *((Granularity.MONTH, every) for every in (1, 3, 6)),
        *((Granularity.YEAR, every) for every in (1, 2, 5, 10, 50, 100, 500)),
    ):
        if (end - start) // (_LENGTHS[granularity] * every) < most:
            return [(at, granularity.chunk_name(at)) for at in _rounds(start, end, granularity, every)]
    return [(start, format_ms(start))]


_LENGTHS = {
    Granularity.HOUR: 3_600_000,
    Granularity.DAY: 86_400_000,
    Granularity.MONTH: 30 * 86_400_000,
    Granularity.YEAR: 365 * 86_400_000,
}


def _rounds(start: int, end: int, granularity: Granularity, every: int) -> Iterator[int]:
    """Each ``every``-th chunk of the granularity; from the first on where nothing rounder suggests itself."""
    chunk, number = granularity.chunk(start), 0
    while chunk.start_ms <= end:
        at = from_ms(chunk.start_ms)
        index = {"HOUR": at.hour, "DAY": number, "MONTH": at.month - 1, "YEAR": at.year}[granularity.name]
        if chunk.start_ms >= start and index % every == 0:
            yield chunk.start_ms
        number += chunk.start_ms >= start
        if chunk.end_ms >= ALL_TIME.end_ms:
            return
        chunk = granularity.chunk(chunk.end_ms)
