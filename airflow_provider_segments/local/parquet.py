"""Parquet files, read as Spark reads them: flat columns of the types that both have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, BinaryIO

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from airflow_provider_segments.arrow.writing import SPARK_SCHEMA_KEY
from airflow_provider_segments.exceptions import NeedsSparkError
from airflow_provider_segments.local.schema import INSTANT, spark_schema

_LOGICAL = {"None", "String", "Int", "Date", "Timestamp", "Decimal"}
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_GREGORIAN = datetime(1900, 1, 1, tzinfo=UTC)
"""Times that Spark or Hive wrote before it may be of another calendar."""


def read_parquet(file: BinaryIO, options: Mapping[str, str]) -> pyarrow.Table:
    """The rows of one file. Raises :class:`NeedsSparkError`."""
    if unknown := [
        name for name, value in options.items() if (name.lower(), value.lower()) != ("mergeschema", "false")
    ]:
        raise NeedsSparkError(f"option {unknown[0]!r} is Spark's to understand")
    try:
        opened = pyarrow.parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
        columns = [opened.schema.column(at) for at in range(len(opened.schema))]
        for column in columns:
            _check(column)
        _check_calendar(opened.metadata.metadata or {})
        rows = opened.read()
        rows = pyarrow.table([_plain(rows[at], column) for at, column in enumerate(columns)], rows.column_names)
    except pyarrow.ArrowException as error:
        raise NeedsSparkError(f"Arrow does not read it: {error}") from error
    _check_footer(opened.metadata.metadata or {}, rows.schema)
    return rows


def _check(column: Any) -> None:
    logical = json.loads(column.logical_type.to_json())
    if column.max_repetition_level or column.path != column.name:
        raise NeedsSparkError(f"column {column.path!r} is nested")
    if logical["Type"] not in _LOGICAL or logical.get("isSigned") is False:
        raise NeedsSparkError(f"column {column.path!r} is stored as {logical['Type']}")
    if logical.get("timeUnit") == "nanoseconds":
        raise NeedsSparkError(f"column {column.path!r} has times in nanoseconds")
    if logical["Type"] == "None" and column.physical_type == "FIXED_LEN_BYTE_ARRAY":
        raise NeedsSparkError(f"column {column.path!r} has values of a fixed length")


def _check_calendar(footer: Mapping[bytes, bytes]) -> None:
    if any(key in footer for key in _LEGACY):
        raise NeedsSparkError("it was written with times of an older calendar")


def _plain(values: pyarrow.ChunkedArray, column: Any) -> pyarrow.ChunkedArray:
    """The values in the one Arrow type that Spark gives the column, whatever the writer's Arrow called it."""
    if column.physical_type == "INT96":
        values = values.cast(INSTANT)
        if len(values) != values.null_count and pyarrow.compute.min(values).as_py() < _GREGORIAN:
            raise NeedsSparkError(f"column {column.name!r} has times before 1900 in an old format")
        return values
    return values.cast(_type(values.type))


def _type(kind: pyarrow.DataType) -> pyarrow.DataType:
    types = pyarrow.types
    if types.is_dictionary(kind):
        return _type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pyarrow.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pyarrow.binary()
    if types.is_timestamp(kind):
        return pyarrow.timestamp("us", None if kind.tz is None else "UTC")
    return kind


def _check_footer(footer: Mapping[bytes, bytes], schema: pyarrow.Schema) -> None:
    """Spark believes the schema that a Spark has left in a footer: it has to say what the columns say."""
    written = footer.get(SPARK_SCHEMA_KEY)
    if written is None:
        return
    document = json.loads(written)
    for field in document["fields"]:
        field["nullable"] = True
    if json.dumps(document, separators=(",", ":"), sort_keys=True) != spark_schema(schema):
        raise NeedsSparkError("its footer has a schema that only Spark understands")
