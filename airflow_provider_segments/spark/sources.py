"""What a source must look like to become segments, and whether reading it twice is cheap."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from airflow_provider_segments.arrow.columns import check_names, check_wanted
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.spark.connect import is_remote

_SORTABLE = (
    BinaryType, BooleanType, DateType, DecimalType, DoubleType, FloatType, IntegralType, StringType, TimestampNTZType,
    TimestampType,
)  # fmt: skip
_CHEAP = {
    "Project",
    "Filter",
    "LocalRelation",
    "Range",
    "Union",
    "SubqueryAlias",
    "View",
    "InMemoryRelation",
    "OneRowRelation",
}


def check_columns(config: TableConfig, schema: StructType) -> None:
    """Raise :class:`SourceDataError` unless rows of ``schema`` can be stored and sorted as ``config`` says."""
    check_names(config, schema.names)
    for field in schema.fields:
        if (unfit := _unfit(field.dataType)) is not None:
            raise SourceDataError(
                f"table {config.name!r}: column {field.name!r} has type {unfit.simpleString()}, which Parquet readers "
                "do not agree on; cast it, or leave it out"
            )
    kinds = {field.name: field.dataType for field in schema.fields}
    check_wanted(config, schema.names)
    for name in config.sort_columns:
        if not isinstance(kinds[name], _SORTABLE) or _collated(kinds[name]):
            raise SourceDataError(
                f"table {config.name!r}: sort column {name!r} is {kinds[name].simpleString()}; rows can be sorted by "
                "numbers, text, booleans, dates, times and binary values"
            )


def is_cheap(source: DataFrame) -> bool:
    """Whether ``source`` is a scan with filters and simple columns, which gives the same rows each time it is read.
    Spark Connect does not show plans: there no source is."""
    if is_remote(source.sparkSession):
        return False
    plan = source._jdf.queryExecution().optimizedPlan()
    return bool(plan.deterministic()) and _only_scans(plan)


def _only_scans(plan: Any) -> bool:
    name = str(plan.nodeName())
    if name not in _CHEAP and not name.startswith(("Relation", "LogicalRelation")):
        return False
    children = plan.children()
    return all(_only_scans(children.apply(index)) for index in range(children.size()))


def _unfit(kind: DataType) -> DataType | None:
    """The first type in ``kind`` that cannot be stored."""
    match kind:
        case StructType():
            return next((found for field in kind.fields if (found := _unfit(field.dataType)) is not None), None)
        case ArrayType():
            return _unfit(kind.elementType)
        case MapType():
            found = _unfit(kind.keyType)
            return _unfit(kind.valueType) if found is None else found
    return None if isinstance(kind, _SORTABLE) and not _collated(kind) else kind


def _collated(kind: DataType) -> bool:
    return isinstance(kind, StringType) and kind.simpleString() not in ("string",) and "collate" in kind.simpleString()
