"""The key store: the newest row of each key of one key partition, in sorted runs on the local disk.

It is a cache. Every manifest names the head (entry and generation) that it was made for, and is used for exactly that
head; every run is verified against its checksum when it is opened. Where either does not fit, the store is empty, and
whoever asks rebuilds it from the table. Runs are written once, so a retry, a refused publish or a rollback finds the
older manifest and loses nothing. Disk: 46 bytes a key and as much again while runs are merged; memory: the runs are
mapped, not read, but for small ones that were just written.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import numpy
import pyarrow
import pyarrow.ipc

from airflow_provider_segments.core.storage.base import random_id
from airflow_provider_segments.core.upsert.record import Head
from airflow_provider_segments.upsert.events import Column, IngestionUpsertEvents

FORMAT = 1
FAN_IN = 4
"""So many runs of about one size are merged. A row is merged again a few times, however many keys there are: to merge
all runs whenever there are many would cost a small batch the time of the whole store."""

_BLOCK = 1 << 20
_KEPT_ROWS = 1 << 14
"""A run of at most so many rows stays in memory as it was written (0.7 MB): mapping it costs more than writing it."""


class KeyStore(Protocol):
    """The newest row of each key of one key partition, for one owner at a time."""

    def open(self, head: Head) -> bool:
        """Go to the state that belongs to ``head``. Returns false when there is none, or it does not verify: then
        :meth:`rebuild` it."""

    def holders(self, high: Column, low: Column) -> IngestionUpsertEvents:
        """The newest rows of those of the keys (each given once) that have one."""

    def rebuild(self, head: Head, rows: IngestionUpsertEvents, segments: Sequence[str]) -> None:
        """Hold exactly ``rows`` for ``head``; ``segments`` are the names that their segment numbers mean."""

    def prepare(self, head: Head, rows: IngestionUpsertEvents, segments: Sequence[str]) -> None:
        """Store what will hold once ``head`` is published: ``rows`` take the place of what their keys had. ``segments``
        are all names, those that were known first and unchanged."""

    @property
    def segments(self) -> Sequence[str]:
        """The names that segment numbers mean."""


class _Run(msgspec.Struct, frozen=True):
    file: str
    rows: int
    crc32: int


class _Manifest(msgspec.Struct, frozen=True):
    entry_id: str
    generation: int
    runs: tuple[_Run, ...] = ()
    segments: tuple[str, ...] = ()
    format: int = FORMAT


_DECODER = msgspec.json.Decoder(_Manifest)


@dataclass(slots=True)
class SortedRuns:
    """A :class:`KeyStore` in one folder. Runs are Arrow files sorted by key, newest first in the manifest."""

    folder: Path
    _manifest: _Manifest = field(default_factory=lambda: _Manifest("", -1))
    _opened: dict[str, IngestionUpsertEvents] = field(default_factory=dict)

    @property
    def segments(self) -> Sequence[str]:
        """The names that segment numbers mean."""
        return self._manifest.segments

    @property
    def bytes(self) -> int:
        """Bytes on the disk."""
        return sum(file.stat().st_size for file in self.folder.glob("*")) if self.folder.is_dir() else 0

    @property
    def rows(self) -> int:
        """Rows of all runs: keys that were changed since the runs were merged count once for each."""
        return sum(run.rows for run in self._manifest.runs)

    def open(self, head: Head) -> bool:
        """See :class:`KeyStore`."""
        if (self._manifest.entry_id, self._manifest.generation) == (head.entry_id, head.generation):
            return True
        try:
            manifest = _DECODER.decode(self._path_of(head).read_bytes())
            if manifest.format != FORMAT or (manifest.entry_id, manifest.generation) != (
                head.entry_id,
                head.generation,
            ):
                return False
            opened = {run.file: self._opened.get(run.file) or self._verified(run) for run in manifest.runs}
        except (OSError, msgspec.DecodeError, pyarrow.ArrowInvalid, _DamagedRunError):
            return False
        self._manifest, self._opened = manifest, opened
        return True

    def holders(self, high: Column, low: Column) -> IngestionUpsertEvents:
        """See :class:`KeyStore`."""
        found: list[IngestionUpsertEvents] = [IngestionUpsertEvents.of()]
        order = numpy.lexsort((low, high))  # sorted questions walk a run once
        high, low = high[order], low[order]
        for run in self._manifest.runs:
            rows = self._opened[run.file]
            at, is_there = _positions(rows, high, low)
            found.append(rows.take(at[is_there]))
            high, low = high[~is_there], low[~is_there]
        return IngestionUpsertEvents.concat(found)

    def rebuild(self, head: Head, rows: IngestionUpsertEvents, segments: Sequence[str]) -> None:
        """See :class:`KeyStore`."""
        self._become(_Manifest(head.entry_id, head.generation, (self._write(rows),), tuple(segments)))
        self._clear({head})

    def prepare(self, head: Head, rows: IngestionUpsertEvents, segments: Sequence[str]) -> None:
        """See :class:`KeyStore`. The present state stays: if the publish is refused, it is still the right one."""
        before = self._manifest
        rows, segments = _with_new_names(rows, before.segments, segments)
        runs = (self._write(rows), *before.runs) if len(rows) else before.runs
        count = _to_merge(runs)
        if count:
            merged = self._merged(runs[:count])
            if count == len(runs):
                merged, segments = _renumbered(merged, segments)
            runs = (self._write(merged), *runs[count:])
        manifest = _Manifest(head.entry_id, head.generation, runs, tuple(segments))
        self._store(manifest)
        self._clear({Head(before.entry_id, before.generation), head})

    def _become(self, manifest: _Manifest) -> None:
        self._store(manifest)
        self._manifest = manifest
        self._opened = {run.file: self._opened[run.file] for run in manifest.runs}

    def _path_of(self, head: Head) -> Path:
        return self.folder / f"{head.entry_id or 'empty'}.{head.generation}.json"

    def _store(self, manifest: _Manifest) -> None:
        """A manifest is there in whole or not at all."""
        path = self._path_of(Head(manifest.entry_id, manifest.generation))
        beside = path.with_suffix(".writing")
        beside.write_bytes(msgspec.json.encode(manifest))
        beside.replace(path)

    def _write(self, rows: IngestionUpsertEvents) -> _Run:
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = rows.take(numpy.lexsort((rows.low, rows.high)))
        path = self.folder / f"{random_id()}.run"
        arrays = [pyarrow.array(column) for column in rows.columns()]
        batch = pyarrow.record_batch(arrays, names=list(IngestionUpsertEvents.column_types()))
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        run = _Run(path.name, len(rows), _crc32(path))
        self._opened[run.file] = rows if len(rows) <= _KEPT_ROWS else self._map(run)
        return run

    def _verified(self, run: _Run) -> IngestionUpsertEvents:
        if _crc32(self.folder / run.file) != run.crc32:
            raise _DamagedRunError(run.file)
        return self._map(run)

    def _map(self, run: _Run) -> IngestionUpsertEvents:
        mapped = pyarrow.memory_map(str(self.folder / run.file))
        batch = pyarrow.ipc.open_file(mapped).get_batch(0)
        return IngestionUpsertEvents(*(column.to_numpy() for column in batch.columns))

    def _merged(self, runs: Sequence[_Run]) -> IngestionUpsertEvents:
        """The newest row of each key: in lexsort's order the first of its key, from the newest run that has it."""
        rows = IngestionUpsertEvents.concat([self._opened[run.file] for run in runs])
        order = numpy.lexsort((rows.low, rows.high))  # stable, and the newest run comes first
        high, low = rows.high[order], rows.low[order]
        first = numpy.ones(len(order), bool)
        first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        return rows.take(order[first])

    def _clear(self, heads: set[Head]) -> None:
        """Remove what no manifest of ``heads`` needs. Mapped files live on until they are let go."""
        manifests = {self._path_of(head) for head in heads}
        kept = {path.name for path in manifests}
        for path in manifests:
            if path.is_file():
                kept.update(run.file for run in _DECODER.decode(path.read_bytes()).runs)
        for file in self.folder.iterdir():
            if file.name not in kept:
                file.unlink(missing_ok=True)
                self._opened.pop(file.name, None)


class _DamagedRunError(Exception):
    """A run is not what its manifest says."""


def cache_folder(root: Path, table: str, partition: int) -> Path:
    """Where the key store of one key partition is, below a folder that one ingestor has for itself."""
    return root / table / f"{partition:03d}"


def _with_new_names(
    rows: IngestionUpsertEvents, known: Sequence[str], segments: Sequence[str]
) -> tuple[IngestionUpsertEvents, Sequence[str]]:
    """The rows, and the names that were known before with those of the new ones that the rows need."""
    new = numpy.unique(rows.segment[rows.segment >= len(known)])
    codes = numpy.where(rows.segment < len(known), rows.segment, len(known) + numpy.searchsorted(new, rows.segment))
    return rows.at(codes, rows.row), [*known, *(segments[number] for number in new.tolist())]


def _renumbered(rows: IngestionUpsertEvents, segments: Sequence[str]) -> tuple[IngestionUpsertEvents, Sequence[str]]:
    """The same rows without the names that none of them needs."""
    used, codes = numpy.unique(rows.segment, return_inverse=True)
    return rows.at(codes, rows.row), [segments[number] for number in used.tolist()]


def _to_merge(runs: Sequence[_Run]) -> int:
    """How many of the newest runs are to become one; 0 for none. A run of more than twice the rows of all newer ones
    together stays as it is."""
    count = total = 0
    for run in runs:
        if count and run.rows > 2 * total:
            break
        count, total = count + 1, total + run.rows
    return count if count >= FAN_IN else 0


def _positions(rows: IngestionUpsertEvents, high: Column, low: Column) -> tuple[Column, Column]:
    """Where each key is in a sorted run, and whether it is there. Keys that share their high half lie side by side."""
    if not len(rows):
        return numpy.zeros(len(high), numpy.int64), numpy.zeros(len(high), bool)
    at = numpy.searchsorted(rows.high, high)
    last = len(rows) - 1
    while True:
        inside = numpy.minimum(at, last)
        behind = (at <= last) & (rows.high[inside] == high) & (rows.low[inside] < low)
        if not behind.any():
            break
        at = at + behind
    inside = numpy.minimum(at, last)
    return inside, (at <= last) & (rows.high[inside] == high) & (rows.low[inside] == low)


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc & 0xFFFFFFFF


def default_root() -> Path:
    """Where key stores are kept without another word: a folder of the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "airflow-provider-segments" / "upsert"
