"""The one decoder of this package's own records.

Whatever the bytes are, the outcome is the record, a :class:`NewerRecordError` or a :class:`CorruptRecordError` that
names the znode. Every record is a JSON object that says its ``format``. Within a format, objects may gain optional
fields: a version that does not know them keeps them when it writes the record again. Anything else is a new format,
which older versions refuse and leave alone (docs/operations.md). A record of a new format may name, as ``needs``, the
oldest version of this package that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Generic, NoReturn, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from airflow_provider_segments.exceptions import CorruptRecordError, NewerRecordError
from airflow_provider_segments.text import escape

FORMAT = "format"
"""The field in which every record says its format, a whole number."""

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
"""What decoding bytes that somebody else wrote can raise: no UTF-8, other types, deep nesting, numbers too large."""

_KEPT = "?"
_FORMATS = 1_000_000  # far more than there will be: a greater number is no format
_HEAD = b'{"format":'
_MARK = b'"?":'
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9A-Za-z]{1,12}){0,3}")
_ENCODER = msgspec.json.Encoder()

_D = TypeVar("_D")
_T = TypeVar("_T", bound="Record")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of stored objects. ``unknown`` holds, as JSON, the fields that a newer version has written."""

    unknown: str | UnsetType = msgspec.field(default=UNSET, name=_KEPT)


class RecordDecoder(Generic[_T]):
    """Decodes one kind of record: ``kind``, a struct whose tag field is ``format``, called ``what`` in errors."""

    def __init__(self, kind: type[_T], what: str) -> None:
        self._kind = kind
        self._what = what
        self._decoder = msgspec.json.Decoder(kind)

    @property
    def format(self) -> int:
        """The format that this version reads and writes."""
        tag = self._kind.__struct_config__.tag
        assert isinstance(tag, int)
        return tag

    def decode(self, payload: bytes, where: str) -> _T:
        """The record in ``payload``, which was read from the znode ``where``.

        Raises :class:`NewerRecordError` for a newer format, and :class:`CorruptRecordError` for everything else that
        is not such a record.
        """
        if payload.startswith(_HEAD) and _MARK not in payload:  # as this version writes it, nearly always
            try:
                return self._decoder.decode(payload)
            except UNREADABLE:
                pass
        fields = self._fields(payload, where)
        try:
            return self._decoder.decode(_ENCODER.encode(_set_aside(fields, _type_info(self._kind))))
        except UNREADABLE as error:
            self._refuse(where, error)

    def _fields(self, payload: bytes, where: str) -> dict[str, Any]:
        """The record's fields, once its format is known to be ours."""
        try:
            fields = msgspec.json.decode(payload)
        except UNREADABLE as error:
            self._refuse(where, error)
        if not isinstance(fields, dict):
            self._refuse(where, f"expected an object, found {type(fields).__name__}")
        number = fields.get(FORMAT)
        if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < _FORMATS:
            self._refuse(where, "it does not say its format")
        if number > self.format:
            needs = fields.get("needs")
            raise NewerRecordError(
                f"{where}: {self._what} of format {number}, and this version reads format {self.format}. Upgrade "
                f"airflow-provider-segments{_needed(needs)}; nothing was changed"
            )
        if number < self.format:
            self._refuse(where, f"format {number} is older than any that was released")
        return fields

    def _refuse(self, where: str, problem: object) -> NoReturn:
        raise CorruptRecordError(
            f"{where}: not a readable {self._what} ({_shown(problem)}); restore the znode from a backup of ZooKeeper "
            "(docs/operations.md); nothing was changed"
        )


def encode(record: Record) -> bytes:
    """The record as it is stored, with the fields that a newer version has written where they were."""
    encoded = _ENCODER.encode(record)
    return encoded if _MARK not in encoded else _ENCODER.encode(_put_back(msgspec.json.decode(encoded)))


def decode_as(decoder: msgspec.json.Decoder[_D], payload: bytes | str, where: str, what: str) -> _D:
    """A part of a record, or a record of another tool's, by a decoder of its own. Raises
    :class:`CorruptRecordError`."""
    try:
        return decoder.decode(payload)
    except UNREADABLE as error:
        raise CorruptRecordError(
            f"{where}: not a readable {what} ({_shown(error)}); restore the znode from a backup of ZooKeeper "
            "(docs/operations.md)"
        ) from None


def _needed(version: object) -> str:
    known = isinstance(version, str) and _VERSION.fullmatch(version)
    return f" to {version} or later" if known else ": docs/operations.md says which version knows which format"


def _shown(problem: object) -> str:
    """A problem in at most a line, of printable characters."""
    return escape(str(problem)[:200])


def _type_info(kind: type) -> Any:
    from msgspec import inspect

    return inspect.type_info(kind)


def _set_aside(value: Any, kind: Any) -> Any:
    """``value``, plain data of the type ``kind``, with the unknown fields of each object moved into one."""
    from msgspec import inspect

    match kind:
        case inspect.UnionType():
            chosen = [one for one in kind.types if isinstance(one, inspect.StructType)]
            return _set_aside(value, chosen[0]) if chosen else value
        case inspect.StructType(array_like=True) if isinstance(value, list):
            types = [field.type for field in kind.fields]
            return [_set_aside(one, type_) for one, type_ in zip(value, types, strict=False)] + value[len(types) :]
        case inspect.StructType() if isinstance(value, dict):
            return _object_set_aside(value, kind)
        case inspect.VarTupleType() | inspect.ListType() if isinstance(value, list):
            return [_set_aside(one, kind.item_type) for one in value]
        case inspect.DictType() if isinstance(value, dict):
            return {key: _set_aside(one, kind.value_type) for key, one in value.items()}
    return value


def _object_set_aside(value: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    types = {field.encode_name: field.type for field in kind.fields if field.encode_name != _KEPT}
    keeps = any(field.encode_name == _KEPT for field in kind.fields)
    known = {
        key: _set_aside(one, types.get(key)) for key, one in value.items() if key in types or key == kind.tag_field
    }
    unknown = {key: one for key, one in value.items() if key not in known}
    if not unknown:
        return known
    # A struct that cannot keep them refuses them.
    return known | ({_KEPT: _ENCODER.encode(unknown).decode()} if keeps else unknown)


def _put_back(value: Any) -> Any:
    if isinstance(value, list):
        return [_put_back(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = value.pop(_KEPT, None)
    known = {key: _put_back(one) for key, one in value.items()}
    return known if kept is None else known | msgspec.json.decode(kept)
