"""Spark's pushed filters and time ranges, as Arrow expressions and as tests of a segment's statistics.

Only what Arrow is sure to judge as Spark does is taken over; Spark judges every row again in any case. Floating point
is left out: for Spark NaN is equal to itself and greater than every number.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow
import pyarrow.dataset
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

_COMPARED = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def usable(one: Filter, schema: pyarrow.Schema) -> bool:
    """Whether ``one`` can be judged by Arrow on columns of ``schema``."""
    if not isinstance(one, (*_COMPARED, In, IsNull, IsNotNull)) or len(one.attribute) != 1:
        return False
    index = schema.get_field_index(one.attribute[0])
    if index < 0:
        return False
    if isinstance(one, IsNull | IsNotNull):
        return True
    kind = schema.field(index).type
    values = one.value if isinstance(one, In) else (one.value,)
    return all(_fits(value, kind) for value in values)


def expression(filters: Iterable[Filter]) -> pyarrow.dataset.Expression | None:
    """The conjunction of ``filters``; ``None`` when there are none."""
    whole = None
    for one in filters:
        part = _expression(one)
        whole = part if whole is None else whole & part
    return whole


def may_match(one: Filter, columns: Mapping[str, list[Any]] | None, rows: int) -> bool:
    """Whether a segment with these statistics can hold a row for which ``one`` is true."""
    found = (columns or {}).get(one.attribute[0])  # type: ignore[attr-defined]
    if found is None:
        return True
    low, high, nulls = found
    if isinstance(one, IsNull):
        return bool(nulls)
    if nulls == rows:
        return False
    if isinstance(one, IsNotNull) or low is None:
        return True
    values = [_comparable(value) for value in (one.value if isinstance(one, In) else (one.value,))]  # type: ignore[attr-defined]
    if any(type(value) is not type(low) for value in values):
        return True
    match one:
        case EqualTo() | In():
            return any(low <= value <= high for value in values)
        case GreaterThan():
            return bool(high > values[0])
        case GreaterThanOrEqual():
            return bool(high >= values[0])
        case LessThan():
            return bool(low < values[0])
        case LessThanOrEqual():
            return bool(low <= values[0])
    return True


def _expression(one: Filter) -> pyarrow.dataset.Expression:
    column = pyarrow.dataset.field(one.attribute[0])  # type: ignore[attr-defined]
    match one:
        case EqualTo():
            return column == one.value
        case GreaterThan():
            return column > one.value
        case GreaterThanOrEqual():
            return column >= one.value
        case LessThan():
            return column < one.value
        case LessThanOrEqual():
            return column <= one.value
        case In():
            return column.isin(list(one.value))
        case IsNull():
            return column.is_null()
    return column.is_valid()


def _fits(value: Any, kind: pyarrow.DataType) -> bool:
    """Whether ``value`` is of a type that compares with ``kind`` in Arrow as it does in Spark."""
    match value:
        case bool():
            return bool(pyarrow.types.is_boolean(kind))
        case int():
            return bool(pyarrow.types.is_integer(kind)) and abs(value) < 2**63
        case str():
            return bool(pyarrow.types.is_string(kind))
        case datetime.datetime():
            return bool(pyarrow.types.is_timestamp(kind)) and (value.tzinfo is None) == (kind.tz is None)
        case datetime.date():
            return bool(pyarrow.types.is_date(kind))
    return False


def _comparable(value: Any) -> Any:
    """``value`` as :mod:`.statistics` writes it; a four-digit year makes ISO text sort like the dates it names."""
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value.isoformat()
    return None if isinstance(value, datetime.datetime) else value
