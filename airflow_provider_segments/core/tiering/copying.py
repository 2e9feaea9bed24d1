"""One segment's copy: through a temporary file, compared with the registry's record while it passes, never in memory
as a whole."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    ObjectExistsError,
    ObjectNotFoundError,
    SegmentsError,
)

_BLOCK = 1 << 20


class DamagedError(SegmentsError):
    """The object is missing, or not what the registry says: nothing to be copied, and nothing to be relied on."""


def copy_segment(
    primary: ObjectStore,
    tiered: ObjectStore,
    record: SegmentRecord,
    owner: Mapping[str, str],
    *,
    key: str,
    tiered_key: str,
    scratch: Path | None = None,
) -> None:
    """Copy ``key`` of ``primary`` to ``tiered_key`` of ``tiered``, with ``owner`` metadata.

    Size, CRC-32 and owner must be the record's on both sides. A copy that stands already, of a run that was killed, is
    read through instead. Raises :class:`DamagedError` and :class:`StorageError`.
    """
    check_object(primary, key, record, owner)
    try:
        with tempfile.TemporaryDirectory(prefix="segments-offload-", dir=scratch) as folder:
            path = Path(folder) / "copy"
            with primary.open(key) as source, path.open("wb") as target:
                _check_bytes(source, record, primary.url(key), target.write)
            tiered.put_file(path, tiered_key, owner=owner)
    except ObjectNotFoundError as error:
        raise DamagedError(str(error)) from error
    except ObjectExistsError:
        with tiered.open(tiered_key) as copy:
            _check_bytes(copy, record, tiered.url(tiered_key))
    check_object(tiered, tiered_key, record, owner)


def check_object(store: ObjectStore, key: str, record: SegmentRecord, owner: Mapping[str, str]) -> None:
    """Make sure that the object is there with the record's size and ``owner``. Raises :class:`DamagedError`."""
    try:
        info = store.head(key)
    except CorruptRecordError as error:
        raise DamagedError(str(error)) from error
    if info is None:
        raise DamagedError(f"{store.url(key)} is missing")
    if info.bytes != record.bytes:
        raise DamagedError(f"{store.url(key)} has {info.bytes} bytes, and the registry says {record.bytes}")
    if dict(info.owner) != dict(owner):
        raise DamagedError(f"{store.url(key)} says it belongs to {dict(info.owner)}, not to {dict(owner)}")


def _check_bytes(source: BinaryIO, record: SegmentRecord, where: str, write: Callable[[bytes], object] = len) -> None:
    """Read ``source`` through, handing each block to ``write``."""
    crc = size = 0
    while block := source.read(_BLOCK):
        write(block)
        crc = zlib.crc32(block, crc)
        size += len(block)
    if (size, crc) != (record.bytes, record.crc32):
        raise DamagedError(
            f"{where} has {size} bytes with CRC-32 {crc:08x}, and the registry says {record.bytes} with "
            f"{record.crc32:08x}"
        )
