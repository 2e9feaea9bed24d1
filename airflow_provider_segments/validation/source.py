"""A look at the first file of an input, before Spark is started: one Parquet footer, or the head of a CSV.

Finds in milliseconds what a build would find minutes later. It refuses only what the build is bound to refuse, and says
nothing of what it cannot look at: other formats, places it cannot reach, files that are not there yet.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet
import pyarrow.types as kinds

from airflow_provider_segments.arrow.inputs import InputFile, Source, input_files
from airflow_provider_segments.core.model.config import TIME_FORMATS, TableConfig
from airflow_provider_segments.exceptions import SegmentsError, SourceDataError

_HEAD_BYTES = 65_536
_HEAD_ROWS = 100
_ISO_TIME = re.compile(r"\s*\d{4}(-|\s*$)", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


def check_source(config: TableConfig, source: Source) -> str | None:
    """Look at the first file of ``source``; returns its name, or ``None`` when there was nothing to look at.

    ``nanoseconds_as_numbers`` of the source says that Spark is told to read nanosecond times as whole numbers. Raises
    :class:`SourceDataError` naming the table, the file, what is wrong and what to do.
    """
    checks = {"parquet": _check_parquet, "csv": _check_csv}
    if source.format not in checks:
        return None
    first = _first_file(source)
    if first is None:
        return None
    try:
        file = first.open()
    except (SegmentsError, OSError):
        return None
    with file:
        checks[source.format](config, source, first.name, file)
    return first.name


def _first_file(source: Source) -> InputFile | None:
    """The file whose schema Spark takes for that of all: the first in order of their paths."""
    try:
        return next(input_files(source), None)
    except (SegmentsError, OSError):
        return None  # the build says what it makes of it


def _check_parquet(config: TableConfig, source: Source, name: str, file: BinaryIO) -> None:
    try:
        opened = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowException:
        return  # not Parquet: the build says so
    if not source.nanoseconds_as_numbers and (column := _nanosecond_column(opened.schema)):
        raise _refused(
            config,
            name,
            f"column {column!r} has times in nanoseconds, which Spark does not read from Parquet",
            "Write it in microseconds (pandas: .astype('datetime64[us]'); pyarrow: coerce_timestamps='us'), or set the "
            "Spark option spark.sql.legacy.parquet.nanosAsLong=true to read whole numbers.",
        )
    if str(source.options.get("mergeSchema", "")).lower() == "true":
        return  # another file may have what is absent here
    schema = opened.schema_arrow
    _check_columns(config, name, [*schema.names, *_in_path(name)])
    if config.time_column in schema.names:
        kind = schema.field(config.time_column).type
        if not _fits(kind, config.time_format):
            raise _refused(
                config,
                name,
                f"time column {config.time_column!r} is {kind}, which timeFormat {config.time_format} cannot be read "
                "from",
                f"Set segmentBuildConfig.timeFormat to one of {', '.join(TIME_FORMATS)}, or to a Spark datetime "
                "pattern for text.",
            )


def _nanosecond_column(schema: Any) -> str | None:
    """The first column whose stored type counts nanoseconds. The Arrow schema beside it may say otherwise."""
    for at in range(len(schema.names)):
        column = schema.column(at)
        if json.loads(column.logical_type.to_json()).get("timeUnit") == "nanoseconds":
            return str(column.path)
    return None


def _fits(kind: Any, time_format: str) -> bool:
    """Return True if the build can read a time of this format from a column of that Arrow type."""
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    text = kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)
    if time_format == "TIMESTAMP":
        return bool(text or kinds.is_timestamp(kind) or kinds.is_date(kind))
    if time_format in TIME_FORMATS:
        return bool(text or kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))
    return bool(text or kinds.is_integer(kind))


def _check_csv(config: TableConfig, source: Source, name: str, file: BinaryIO) -> None:
    options = {key.lower(): value for key, value in source.options.items()}
    if options.get("encoding", options.get("charset", "utf-8")).lower() not in ("utf-8", "utf8"):
        return
    rows = list(_head_rows(options, name, file))
    if not rows:
        return
    has_header = options.get("header", "").lower() == "true"
    names = rows[0] if has_header else [f"_c{at}" for at in range(len(rows[0]))]
    hint = "" if has_header else 'If its first line has the names, set the option "header": "true". '
    _check_columns(config, name, [*names, *_in_path(name)], hint)
    if config.time_column in names and config.on_bad_time == "refuse":
        at = names.index(config.time_column)
        _check_times(config, name, [row[at] for row in rows[has_header:] if len(row) > at and row[at].strip()])


def _head_rows(options: Mapping[str, str], name: str, file: BinaryIO) -> Iterator[list[str]]:
    """The first rows as text, without the last one, which may be cut off."""
    try:
        head = gzip.GzipFile(fileobj=file).read(_HEAD_BYTES) if name.endswith(".gz") else file.read(_HEAD_BYTES)
        text = head.decode("utf-8-sig", errors="ignore")
        if len(head) == _HEAD_BYTES:
            text = text.rpartition("\n")[0]
        delimiter = options.get("sep", options.get("delimiter", ","))
        reader = csv.reader(io.StringIO(text), delimiter=delimiter, quotechar=options.get("quote", '"') or None)
        yield from (row for row, _ in zip((row for row in reader if row), range(_HEAD_ROWS), strict=False))
    except (OSError, EOFError, csv.Error, TypeError):
        return  # a separator of several characters, a broken file: the build says what it makes of it


def _check_times(config: TableConfig, name: str, values: list[str]) -> None:
    """Refuse when not one of the first values can be read: some that cannot are for ``onBadTime``."""
    looks_right = {"TIMESTAMP": _ISO_TIME.match}.get(config.time_format, _NUMBER.fullmatch)
    if config.time_format not in TIME_FORMATS or not values or any(looks_right(value) for value in values):
        return
    raise _refused(
        config,
        name,
        f"none of the first {len(values)} values of time column {config.time_column!r} can be read with timeFormat "
        f"{config.time_format}; the first is {values[0][:40]!r}",
        f"Set segmentBuildConfig.timeFormat to one of {', '.join(TIME_FORMATS)}, or to a Spark datetime pattern.",
    )


def _check_columns(config: TableConfig, name: str, names: list[str], hint: str = "") -> None:
    wanted = {"time": [config.time_column] if config.time_column else [], "sort": config.sort_columns}
    for what, columns in (wanted | {"statistics": config.statistics_columns}).items():
        if absent := [column for column in columns if column not in names]:
            raise _refused(
                config,
                name,
                f"it has no {what} column {absent[0]!r}; it has {', '.join(names)[:300] or 'no columns'}",
                f"{hint}Correct the input, or the table's config.",
            )


def _in_path(name: str) -> list[str]:
    """Columns that Spark takes from folders such as ``day=2013-01-31``."""
    return [part.partition("=")[0] for part in name.split("/") if "=" in part]


def _refused(config: TableConfig, name: str, detail: str, hint: str) -> SourceDataError:
    return SourceDataError(f"table {config.name!r}, input {name!r}: {detail}. {hint}")
