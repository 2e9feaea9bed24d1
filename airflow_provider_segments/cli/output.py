"""What commands print: text a person can read, or JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from airflow_provider_segments.text import escape

WIDTH = 100
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a table in a colour, which does not count as width."""

    text: str
    colour: str = ""


class Output:
    """Prints either text or one JSON document to ``stream``. Text of others is escaped here, whatever command prints
    it: a control character would clear the screen, a line break forge a row."""

    def __init__(self, *, as_json: bool, stream: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self.as_json = as_json
        self._stream = stream or sys.stdout
        terminal = self._stream.isatty()
        self._colours = terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self.width = max(WIDTH, shutil.get_terminal_size().columns) if terminal else WIDTH

    def line(self, text: str = "") -> None:
        """One line of text."""
        print(escape(text), file=self._stream)

    def document(self, value: Any) -> None:
        """One JSON document."""
        json.dump(value, self._stream, indent=2, default=str)
        print(file=self._stream)

    def fields(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Named values, one a line."""
        widest = max(len(name) for name, _ in pairs)
        for name, value in pairs:
            self.line(f"{name:<{widest}}  {value}")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Cell]], flexible: Sequence[int] = ()) -> None:
        """Columns as wide as their widest cell; ``flexible`` ones share what is left of the line and are cut to it."""
        cells = [
            [Cell(title, "bold") for title in head],
            *([replace(c, text=escape(c.text)) for c in row] for row in rows),
        ]
        widths = [max(len(row[at].text) for row in cells) for at in range(len(head))]
        room = self.width - 2 * (len(head) - 1) - sum(width for at, width in enumerate(widths) if at not in flexible)
        narrow_first = sorted(flexible, key=lambda at: widths[at])
        for left, at in zip(range(len(narrow_first), 0, -1), narrow_first, strict=True):
            widths[at] = max(min(widths[at], room // left), len(head[at]))
            room -= widths[at]
        for row in cells:
            print(self._row(row, widths), file=self._stream)

    def _row(self, cells: Sequence[Cell], widths: Sequence[int]) -> str:
        padded = [f"{shorten(cell.text, width):<{width}}" for cell, width in zip(cells, widths, strict=True)]
        padded[-1] = padded[-1].rstrip()
        return "  ".join(self._paint(text, cell.colour) for text, cell in zip(padded, cells, strict=True)).rstrip()

    def _paint(self, text: str, colour: str) -> str:
        if not (self._colours and colour and text.strip()):
            return text
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def shorten(text: str, width: int) -> str:
    """``text``, or its beginning and two dots."""
    return text if len(text) <= width else text[: max(width - 2, 0)] + ".."


def size(count_of_bytes: int) -> str:
    """Bytes as a person reads them: ``1.2 GiB``."""
    value = float(count_of_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"


def age(milliseconds: int) -> str:
    """How long ago, in the largest unit that fits: ``5s``, ``12m``, ``40d``; a clock that is ahead gives ``0s``."""
    seconds = max(milliseconds, 0) // 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def few(names: Sequence[str], shown: int = 3) -> str:
    """The first of ``names`` and how many more."""
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest:,} more" if rest > 0 else "")
