"""The Helix ZNRecord codec, byte for byte as Helix's own serializer writes it (Jackson, indented).

Source: Helix ZNRecordSerializer as used by Apache Pinot; ``tests/data/pinot_znode_vectors.json`` holds the bytes.
Payloads up to 1,024,000 bytes are written plain, larger ones with gzip, and what is larger still is refused.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring

import msgspec

from airflow_provider_segments.core.model.records import decode_as
from airflow_provider_segments.exceptions import CorruptRecordError, RecordTooLargeError

WRITE_LIMIT = 1_024_000
"""Bytes a written record may have, as in Helix (1000 x 1024). Larger JSON is compressed."""
EXPANDED_LIMIT = 256 * 1024 * 1024
"""Bytes a compressed record may expand to: a bound on what a damaged or hostile payload can make us allocate."""

_GZIP = b"\x1f\x8b"
_LEVELS = (1, 6, 9)
_ESCAPE = re.compile(r"\\\\|\\u00[01][0-9a-f]")
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


class ZNRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A Helix record: an id, and simple, map and list fields. Unknown JSON keys are ignored, as Helix does."""

    id: str
    simple_fields: dict[str, str | None] = {}
    map_fields: dict[str, dict[str, str | None] | None] = {}
    list_fields: dict[str, list[str | None] | None] = {}


class _Stored(msgspec.Struct, rename="camel"):
    id: str
    simple_fields: dict[str, str | None] | None = None
    map_fields: dict[str, dict[str, str | None] | None] | None = None
    list_fields: dict[str, list[str | None] | None] | None = None


_DECODER = msgspec.json.Decoder(_Stored)


def encode(record: ZNRecord) -> bytes:
    """The bytes Helix would write. Raises :class:`RecordTooLargeError` when even gzip leaves too many."""
    plain = to_json(record)
    if len(plain) <= WRITE_LIMIT:
        return plain
    size = 0
    for level in _LEVELS:  # the fastest that fits: deflate output is not comparable between zlib versions anyway
        packed = _gzip(plain, level)
        if len(packed) <= WRITE_LIMIT:
            return packed
        size = len(packed)
    raise RecordTooLargeError(
        f"record {record.id!r} has {len(plain):,} bytes, {size:,} with gzip; at most {WRITE_LIMIT:,} can be stored. "
        "Fewer or shorter segment names, or a clean-up of old lineage entries, make it smaller"
    )


def decode(payload: bytes, where: str, *, with_lists: bool = False) -> ZNRecord:
    """The record in ``payload``; ``with_lists`` says that it must have list fields, if only none. Raises
    :class:`CorruptRecordError` naming ``where`` it was read.

    Helix reads a payload that it cannot parse as "no record", and the next write then erases what was there.
    """
    stored = decode_as(_DECODER, _gunzip(payload, where) if payload[:2] == _GZIP else payload, where, "ZNRecord")
    if with_lists and stored.list_fields is None:
        raise CorruptRecordError(
            f"{where}: not a readable ZNRecord of a lineage: it has no listFields; restore it before writing to it"
        )
    return ZNRecord(stored.id, stored.simple_fields or {}, stored.map_fields or {}, stored.list_fields or {})


def to_json(record: ZNRecord) -> bytes:
    """The record as Helix's indented JSON: fixed key order, sorted fields, arrays on one line, no final newline."""
    simple = {key: _scalar(value) for key, value in record.simple_fields.items()}
    maps = {key: _map(value) for key, value in record.map_fields.items()}
    lists = {key: _array(value) for key, value in record.list_fields.items()}
    return (
        f'{{\n  "id" : {_string(record.id)},\n'
        f'  "simpleFields" : {_object(simple, "  ")},\n'
        f'  "mapFields" : {_object(maps, "  ")},\n'
        f'  "listFields" : {_object(lists, "  ")}\n}}'
    ).encode()


def _object(fields: Mapping[str, str], indent: str, *, ordered: bool = True) -> str:
    if not fields:
        return "{ }"
    keys = sorted(fields, key=_utf16) if ordered else list(fields)
    lines = ",\n".join([f"{indent}  {_string(key)} : {fields[key]}" for key in keys])
    return f"{{\n{lines}\n{indent}}}"


def _map(value: Mapping[str, str | None] | None) -> str:
    if value is None:
        return "null"
    return _object({key: _scalar(item) for key, item in value.items()}, "    ", ordered=False)


def _array(value: Sequence[str | None] | None) -> str:
    if value is None:
        return "null"
    return f"[ {', '.join([_scalar(item) for item in value])} ]" if value else "[ ]"


def _scalar(value: str | None) -> str:
    return "null" if value is None else _string(value)


def _string(value: str) -> str:
    """Jackson's escapes: upper-case hexadecimal, surrogate pairs for what lies beyond the basic plane."""
    quoted = encode_basestring(value)
    if len(quoted) > len(value) + 2:
        quoted = _ESCAPE.sub(lambda found: found[0][:2] + found[0][2:].upper(), quoted)
    return quoted if value.isascii() else _ASTRAL.sub(_surrogates, quoted)


def _surrogates(found: re.Match[str]) -> str:
    pair = found[0].encode("utf-16-be").hex().upper()
    return f"\\u{pair[:4]}\\u{pair[4:]}"


def _utf16(key: str) -> bytes:
    """Java's TreeMap orders strings by UTF-16 code units."""
    return key.encode("utf-16-be", "surrogatepass")


def _gzip(plain: bytes, level: int) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, 31)
    return packer.compress(plain) + packer.flush()


def _gunzip(payload: bytes, where: str) -> bytes:
    unpacker = zlib.decompressobj(31)
    try:
        plain = unpacker.decompress(payload, EXPANDED_LIMIT)
    except zlib.error as error:
        raise CorruptRecordError(f"{where}: not a readable ZNRecord ({error})") from error
    if unpacker.unconsumed_tail:
        raise CorruptRecordError(f"{where}: not a readable ZNRecord: it expands to more than {EXPANDED_LIMIT:,} bytes")
    if not unpacker.eof:
        raise CorruptRecordError(f"{where}: not a readable ZNRecord: the gzip data ends early")
    return plain
