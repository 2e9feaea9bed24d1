"""Plain tables for the benchmarks."""

from __future__ import annotations

import os
import platform
import signal
import statistics
import sys
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def show(value: float | None) -> str:
    """Milliseconds with three significant digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns to the right of each other, numbers to the right."""
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def verdict(name: str, found: float, target: float, *, where: str = "") -> str:
    """One line that says whether a target was met."""
    met = "met" if found <= target else "MISSED"
    return f"  {met:<7}{name}: {show(found)} ms, target {show(target)} ms{where}"


def end_properly() -> None:
    """End on SIGTERM as on Ctrl-C, so that servers are stopped and folders removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def machine() -> str:
    """What this ran on."""
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load average {load} at the start"
