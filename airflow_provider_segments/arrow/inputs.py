"""The files of an input, in the order of their paths: on this machine, or on S3."""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.exceptions import SegmentsError

FILE_FORMATS = ("csv", "json", "orc", "parquet", "text")
"""Formats whose input is paths of files; of others, it may be a name or an address."""

_PATTERN = re.compile(r"[*?\[{\\]")


@dataclass(frozen=True, slots=True)
class Source:
    """An input of a build. ``options`` are those of its format; ``storage_options`` open S3 where the path is there."""

    path: str
    format: str
    options: Mapping[str, str]
    storage_options: Mapping[str, str] | None = None
    nanoseconds_as_numbers: bool = False

    @property
    def paths(self) -> list[str]:
        """The paths: they are separated by commas."""
        return [part.strip() for part in self.path.split(",") if part.strip()]


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of an input: its address and its size in bytes."""

    name: str
    bytes: int
    open: Callable[[], BinaryIO]


def input_files(source: Source) -> Iterator[InputFile]:
    """Give the files below the paths of ``source`` that Spark would read, however many there are: only folders on the
    way to the next one are listed. Nothing for a path that is not there, or that is at no place known here.

    Raises :class:`OSError` and what the object store raises.
    """
    for path in source.paths:
        yield from files_at(path, source)


def files_at(path: str, source: Source) -> Iterator[InputFile]:
    """As :func:`input_files`, for one of the paths of ``source``."""
    if (place := _object_place(path, source)) is not None:
        yield from _objects(*place)
    elif (local := _local_path(path)) is not None:
        yield from _local_files(local)


def absent_paths(source: Source) -> list[str]:
    """The paths of ``source`` at which there is nothing, as seen from here; a folder without files is something. Leaves
    out patterns, and paths of which it cannot be told."""
    return [path for path in source.paths if not _PATTERN.search(path) and _is_absent(path, source)]


def _is_absent(path: str, source: Source) -> bool:
    try:
        if (place := _object_place(path, source)) is not None:
            bucket, key, options = place
            store = open_store(f"s3://{bucket}", **options)
            return store.head(key) is None and next(iter(store.list(f"{key}/")), None) is None
        local = _local_path(path)
        return local is not None and not os.path.lexists(local)
    except (SegmentsError, OSError):
        return False


def _object_place(path: str, source: Source) -> tuple[str, str, Mapping[str, str]] | None:
    """Bucket, key and options, for an address that can be asked for."""
    address = urlsplit(path)
    if address.scheme not in ("s3", "s3a") or source.storage_options is None:
        return None
    return address.netloc, address.path.strip("/"), source.storage_options


def _local_path(path: str) -> str | None:
    address = urlsplit(path)
    if address.scheme not in ("", "file"):
        return None
    return unquote(address.path) if address.scheme else path


def _local_files(path: str) -> Iterator[InputFile]:
    for start in sorted(glob.glob(path)):  # noqa: PTH207 - patterns may be absolute
        for file in _files_below(Path(start)):
            yield InputFile(str(file), file.stat().st_size, functools.partial(_open, file))


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _files_below(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for child in sorted(path.iterdir()):
        if not _is_hidden([child.name]):
            yield from _files_below(child)


def _objects(bucket: str, key: str, options: Mapping[str, str]) -> Iterator[InputFile]:
    store = open_store(f"s3://{bucket}", **options)
    if (info := store.head(key)) is not None:
        yield InputFile(f"s3://{bucket}/{key}", info.bytes, functools.partial(store.open, key))
        return
    for listed in store.list(f"{key}/"):
        if not _is_hidden(listed.key.removeprefix(key).split("/")):
            yield InputFile(f"s3://{bucket}/{listed.key}", listed.bytes, functools.partial(store.open, listed.key))


def _is_hidden(parts: Iterable[str]) -> bool:
    """Spark leaves such files out, as ``_SUCCESS``."""
    return any(part.startswith((".", "_")) and "=" not in part for part in parts)
