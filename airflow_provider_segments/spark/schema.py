"""The schema of a table, as its segments have it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow.parquet
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from airflow_provider_segments.arrow.writing import SPARK_SCHEMA_KEY
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.upsert.columns import SOURCE_COLUMNS


def schema_of(snapshot: Snapshot) -> StructType:
    """The schema of the newest segment, from its footer. Raises :class:`SourceDataError` when there is no segment."""
    if not len(snapshot):
        raise SourceDataError(
            f"table {snapshot.table!r} has no visible segments, and so no schema; give one to read it as an empty table"
        )
    newest = max(snapshot.segments, key=lambda segment: (segment.born, segment.name))
    with snapshot.store_of(newest.tiered).open(newest.key) as file:
        footer = pyarrow.parquet.ParquetFile(file).schema_arrow
    return _written(footer.metadata) or from_arrow_schema(footer).toNullable()


def with_places(schema: StructType) -> StructType:
    """The schema with the columns of a row's place, which an upsert table of ordinary pushes alone does not have."""
    wider = StructType([*schema.fields])
    for name, kind in zip(SOURCE_COLUMNS, (StringType(), IntegerType(), LongType()), strict=True):
        if name not in schema.names:
            wider = wider.add(name, kind)
    return wider


def merged_schema(schema: pyarrow.Schema, footer: Mapping[bytes, bytes] | None) -> str:
    """Spark's own schema, as JSON, for rows of ``schema``: that of the newest footer where it has the same columns."""
    derived, written = from_arrow_schema(schema).toNullable(), _written(footer)
    return str((written if written is not None and written.names == derived.names else derived).json())


def _written(footer: Mapping[bytes, bytes] | None) -> StructType | None:
    """The schema that Spark has written into a footer. Any column may be null: other segments may lack it."""
    written = (footer or {}).get(SPARK_SCHEMA_KEY)
    return None if written is None else StructType.fromJson(json.loads(written)).toNullable()
