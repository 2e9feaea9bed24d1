"""Keys as 128-bit hashes, and the key partition of each."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy
import pyarrow
import pyarrow.compute

from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.upsert.events import Column

HASH_BYTES = 16


def key_hashes(rows: pyarrow.Table, key: Sequence[str]) -> tuple[Column, Column]:
    """Both halves of the hash of each row's key (BLAKE2b, 128 bits of it).

    Keys are told by their hashes alone. Of a billion keys two share one with a probability of 10^-21. Raises
    :class:`SourceDataError` for a key column that is missing, has nulls, or is of a type that two sources could spell
    differently (floating point, nested).
    """
    parts = [_parts(rows, name) for name in key]
    if len(parts) == 1:
        encoded = parts[0]
    else:
        encoded = [
            b"".join(piece for part in row for piece in (struct.pack("<I", len(part)), part))
            for row in zip(*parts, strict=True)
        ]
    blake = hashlib.blake2b
    digests = b"".join([blake(one, digest_size=HASH_BYTES).digest() for one in encoded])
    halves = numpy.frombuffer(digests, "<u8").reshape(-1, 2)
    return numpy.ascontiguousarray(halves[:, 0]), numpy.ascontiguousarray(halves[:, 1])


def key_partitions(low: Column, count: int) -> Column:
    """The key partition of each key, from the low half of its hash."""
    return (low % numpy.uint64(count)).astype(numpy.int32)


def _parts(rows: pyarrow.Table, name: str) -> list[bytes]:
    """The column's values as bytes: the same for the same value, whatever the width of its type."""
    if name not in rows.column_names:
        raise SourceDataError(f"key column {name!r} is missing; the input has {', '.join(rows.column_names)}")
    column, types = rows.column(name), pyarrow.types
    if column.null_count:
        raise SourceDataError(f"key column {name!r} has {column.null_count} nulls; a row without a key has no place")
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        column = column.cast(pyarrow.large_binary())
    elif types.is_integer(kind) or types.is_boolean(kind) or types.is_date32(kind):
        whole = column.cast(pyarrow.int32()) if types.is_date32(kind) else column
        return [struct.pack("<q", value) for value in whole.cast(pyarrow.int64()).to_pylist()]
    elif types.is_timestamp(kind):
        whole = column.cast(pyarrow.timestamp("us", kind.tz)).cast(pyarrow.int64())
        return [struct.pack("<q", value) for value in whole.to_pylist()]
    elif types.is_decimal(kind):
        return [str(value.normalize()).encode() for value in column.to_pylist()]
    elif not (types.is_binary(kind) or types.is_large_binary(kind)):
        raise SourceDataError(f"key column {name!r} is of type {kind}; use text, whole numbers, dates, times or bytes")
    values: list[bytes] = column.to_pylist()
    return values
