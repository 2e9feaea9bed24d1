"""Statistics of one column of a segment, small enough for its registry record and safe to prune by."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import pyarrow
import pyarrow.compute

_LONGEST_TEXT = 128


class ColumnStatistics:
    """Minimum, maximum and null count over the batches that were added.

    Numbers and booleans stay what they are; decimals, dates and times become text (ISO 8601, instants in UTC). Both
    bounds are ``None`` when they are not known for sure: no value at all, a NaN, long text, or a type without an order.
    """

    def __init__(self) -> None:
        self._low: Any = None
        self._high: Any = None
        self._nulls = 0
        self._bounded = True

    def add(self, values: pyarrow.Array) -> None:
        """Take ``values`` into account."""
        self._nulls += values.null_count
        if not self._bounded or values.null_count == len(values):
            return
        try:
            found = pyarrow.compute.min_max(values).as_py()
        except (pyarrow.ArrowNotImplementedError, ValueError):  # no order, or a time Python has no value for
            self._bounded = False
            return
        if pyarrow.types.is_floating(values.type) and pyarrow.compute.any(pyarrow.compute.is_nan(values)).as_py():
            self._bounded = False  # Spark orders NaN above everything, Arrow leaves it out
            return
        self._low = found["min"] if self._low is None else min(self._low, found["min"])
        self._high = found["max"] if self._high is None else max(self._high, found["max"])

    def as_list(self) -> list[Any]:
        """``[min, max, null count]`` as the segment's record keeps it."""
        low, high = _plain(self._low), _plain(self._high)
        if not self._bounded or low is None or high is None:
            low = high = None
        return [low, high, self._nulls]


def _plain(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case bool() | int():
            return value
        case str():
            return value if len(value) <= _LONGEST_TEXT else None
        case decimal.Decimal():
            return str(value)
        case datetime.datetime() if value.tzinfo is not None:
            return value.astimezone(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case datetime.datetime():
            return value.isoformat(timespec="microseconds")
        case datetime.date():
            return value.isoformat()
    return None
