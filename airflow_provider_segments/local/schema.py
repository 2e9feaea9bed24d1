"""The types that this engine reads, and what Spark calls them."""

from __future__ import annotations

import json

import pyarrow

from airflow_provider_segments.exceptions import NeedsSparkError

INSTANT = pyarrow.timestamp("us", "UTC")
_NAMES = {
    pyarrow.int8(): "byte",
    pyarrow.int16(): "short",
    pyarrow.int32(): "integer",
    pyarrow.int64(): "long",
    pyarrow.float32(): "float",
    pyarrow.float64(): "double",
    pyarrow.bool_(): "boolean",
    pyarrow.string(): "string",
    pyarrow.binary(): "binary",
    pyarrow.date32(): "date",
    INSTANT: "timestamp",
    pyarrow.timestamp("us"): "timestamp_ntz",
}


def spark_schema(schema: pyarrow.Schema) -> str:
    """Spark's own schema of columns that may all be null, as JSON.

    Raises :class:`NeedsSparkError` for a type that is not among those read here.
    """
    fields = [
        {"metadata": {}, "name": field.name, "nullable": True, "type": _spark_type(field.name, field.type)}
        for field in schema
    ]
    return json.dumps({"fields": fields, "type": "struct"}, separators=(",", ":"), sort_keys=True)


def _spark_type(column: str, kind: pyarrow.DataType) -> str:
    if pyarrow.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if (name := _NAMES.get(kind)) is None:
        raise NeedsSparkError(f"column {column!r} has type {kind}")
    return name
