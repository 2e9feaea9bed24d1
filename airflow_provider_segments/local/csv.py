"""CSV files, read as Spark reads them with its default settings.

Spark's parser and its inference of types have many corners. A file in one of them is left to Spark: only text that
both read alike is read here, and a column gets a type only if each of its values says so by itself.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow
import pyarrow.compute as pc
import pyarrow.csv

from airflow_provider_segments.exceptions import NeedsSparkError
from airflow_provider_segments.local.schema import INSTANT

_INTEGER = "^-?[0-9]{1,18}$"
_DOUBLE = r"^-?[0-9]{1,15}(\.[0-9]{1,15})?$"
_DATE = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?$"
_BOOLEAN = "^(?i:true|false)$"
_WORD = "^[A-Za-z]"
_NO_WORD = "^(?i:nan|inf|infinity|true|false|now|today|epoch|yesterday|tomorrow|t[0-9].*)$"
"""What begins with a letter, and may still be a number, a time or a truth value."""

_LAST_INT, _FIRST_INT = 2**31 - 1, -(2**31)
_UTF8 = ("utf-8", "utf8")


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """The options of Spark's CSV source that this engine knows."""

    header: bool = False
    infer_schema: bool = False
    separator: str = ","
    null_value: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> CsvOptions:
        """Read ``options``. Raises :class:`NeedsSparkError` for one that is not known; its value is not shown."""
        given = {name.lower(): value for name, value in options.items()}
        separator = given.pop("sep", given.pop("delimiter", ","))
        if len(separator) != 1 or separator in '\\"\r\n' or not separator.isascii():
            raise NeedsSparkError("such a separator is Spark's to understand")
        if given.pop("encoding", given.pop("charset", _UTF8[0])).lower() not in _UTF8:
            raise NeedsSparkError("its encoding is not UTF-8")
        header = _flag("header", given.pop("header", "false"))
        infer_schema = _flag("inferSchema", given.pop("inferschema", "false"))
        null_value = given.pop("nullvalue", "")
        if given:
            raise NeedsSparkError(f"option {min(given)!r} is Spark's to understand")
        return cls(header, infer_schema, separator, null_value)


def read_csv(file: BinaryIO, options: CsvOptions) -> pyarrow.Table:
    """The rows of one file, every column as text. Raises :class:`NeedsSparkError`."""
    raw = file.read()
    _check_text(raw, options.separator)
    names = _names(raw, options)
    try:
        return pyarrow.csv.read_csv(
            pyarrow.BufferReader(raw),
            read_options=pyarrow.csv.ReadOptions(column_names=names, skip_rows=int(options.header)),
            parse_options=pyarrow.csv.ParseOptions(delimiter=options.separator),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pyarrow.string()),
                null_values=["", options.null_value],
                strings_can_be_null=True,
            ),
        )
    except pyarrow.ArrowException as error:
        raise NeedsSparkError(f"Arrow does not read it: {error}") from error


def typed(rows: pyarrow.Table) -> pyarrow.Table:
    """``rows`` of text with the types that Spark would infer. Raises :class:`NeedsSparkError`."""
    try:
        columns = [_typed(name, column) for name, column in zip(rows.column_names, rows.columns, strict=True)]
    except pyarrow.ArrowException as error:
        raise NeedsSparkError(f"a value looks right and is not: {error}") from error
    return pyarrow.table(columns, rows.column_names)


def times_of_text(column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray | None:
    """Dates and times in ISO 8601, in UTC, as instants; ``None`` if a value is anything else."""
    text = _one_array(column)
    if not _all(text, f"({_TIME})|({_DATE})"):
        return None
    try:
        return pyarrow.chunked_array([_instants(text)])
    except pyarrow.ArrowException:
        return None


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise NeedsSparkError(f"option {name!r} is neither true nor false")
    return value.lower() == "true"


def _check_text(raw: bytes, separator: str) -> None:
    """Raise :class:`NeedsSparkError` unless it is plain which value ends where."""
    if raw.startswith(b"\xef\xbb\xbf") or raw.count(b"\r") != raw.count(b"\r\n"):
        raise NeedsSparkError("it begins with a byte order mark, or has unusual ends of lines")
    if b"\\" in raw or b'""' in raw:
        raise NeedsSparkError("it has escaped characters")
    if b'"' in raw:
        between = re.escape(separator.encode())
        quoted = rb"(?:(?<=[\n" + between + rb'])|\A)"[^"\n]*"(?=[\r\n' + between + rb"]|\Z)"
        if b'"' in re.sub(quoted, b"", raw):
            raise NeedsSparkError("it has quotes within values, or values of several lines")


def _names(raw: bytes, options: CsvOptions) -> list[str]:
    """The names of the columns. Raises :class:`NeedsSparkError` where Spark would make some up."""
    lines = raw.split(b"\n", 1)
    if not raw.strip() or not lines[0].strip():
        raise NeedsSparkError("it does not begin with a line of values")
    try:
        values = next(csv.reader([lines[0].decode().strip("\r")], delimiter=options.separator))
    except (UnicodeDecodeError, csv.Error) as error:
        raise NeedsSparkError(f"its first line cannot be read: {error}") from error
    if not options.header:
        return [f"_c{at}" for at in range(len(values))]
    if len({value.casefold() for value in values}) != len(values) or {"", options.null_value} & set(values):
        raise NeedsSparkError("a name of a column is absent or there twice")
    return values


def _typed(name: str, column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    text = _one_array(column)
    first = text.drop_null()[:1].to_pylist()
    if not first or _is_word(first[0]):
        return pyarrow.chunked_array([text])
    for pattern, read in _READERS.items():  # the first value rules most of them out, and a pass over all takes time
        if re.match(pattern, first[0]) and _all(text, pattern):
            return pyarrow.chunked_array([read(text)])
    if pc.any(_words(text)).as_py():
        return pyarrow.chunked_array([text])
    raise NeedsSparkError(f"column {name!r} has values whose type only Spark can tell")


def _is_word(value: str) -> bool:
    """Return True if the value makes its column one of text, whatever the others are."""
    return bool(re.match(_WORD, value)) and not re.match(_NO_WORD, value)


def _words(text: pyarrow.Array) -> pyarrow.BooleanArray:
    """:func:`_is_word` for each value."""
    return pc.and_not(pc.match_substring_regex(text, _WORD), pc.match_substring_regex(text, _NO_WORD))


def _one_array(column: pyarrow.ChunkedArray) -> pyarrow.Array:
    return pyarrow.concat_arrays(column.chunks) if column.num_chunks else pyarrow.array([], column.type)


def _all(text: pyarrow.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(text, pattern), min_count=0).as_py())


def _integers(text: pyarrow.Array) -> pyarrow.Array:
    whole = text.cast(pyarrow.int64())
    bounds = pc.min_max(whole).as_py()
    return whole.cast(pyarrow.int32()) if bounds["min"] >= _FIRST_INT and bounds["max"] <= _LAST_INT else whole


def _doubles(text: pyarrow.Array) -> pyarrow.Array:
    return text.cast(pyarrow.float64())


def _dates(text: pyarrow.Array) -> pyarrow.Array:
    return text.cast(pyarrow.date32())


def _instants(text: pyarrow.Array) -> pyarrow.Array:
    return pc.replace_substring_regex(text, "Z$", "").cast(pyarrow.timestamp("us")).cast(INSTANT)


def _booleans(text: pyarrow.Array) -> pyarrow.Array:
    return pc.equal(pc.ascii_lower(text), "true")


_READERS = {_INTEGER: _integers, _DOUBLE: _doubles, _DATE: _dates, _TIME: _instants, _BOOLEAN: _booleans}
"""What every value of a column must match, and how such a column is read. The first that fits is taken."""
