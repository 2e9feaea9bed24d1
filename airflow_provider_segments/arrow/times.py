"""The time of a row, as UTC epoch milliseconds, of an Arrow column: the counterpart of ``spark.times``."""

from __future__ import annotations

import numpy
import pyarrow
import pyarrow.compute

from airflow_provider_segments.core.model.interval import MAX_MS, MIN_MS

_PER_MS = {"s": 1 / 1000, "ms": 1, "us": 1000, "ns": 1_000_000}
_EPOCHS = {"EPOCH_SECONDS": "s", "EPOCH_MILLIS": "ms", "EPOCH_MICROS": "us"}


def arrow_times(column: pyarrow.ChunkedArray, time_format: str) -> pyarrow.ChunkedArray | None:
    """The time column as epoch milliseconds, rounded down, as ``spark.times`` reads it; ``None`` for what only Spark
    can read (text), and where a row has no usable time."""
    kind = column.type
    if time_format == "TIMESTAMP" and pyarrow.types.is_timestamp(kind):
        unit = kind.unit
    elif time_format == "TIMESTAMP" and pyarrow.types.is_date32(kind):
        column, unit = pyarrow.compute.cast(column, pyarrow.date64()), "ms"
    elif time_format in _EPOCHS and pyarrow.types.is_integer(kind):
        unit = _EPOCHS[time_format]
    else:
        return None
    if column.null_count:
        return None
    whole = column.cast(pyarrow.int64()).to_numpy()
    if unit == "s" and len(whole) and max(-int(whole.min()), int(whole.max())) > MAX_MS // 1000:
        return None  # before a multiplication that may wrap round
    ms = whole * 1000 if unit == "s" else whole if unit == "ms" else numpy.floor_divide(whole, int(_PER_MS[unit]))
    if len(ms) and not (ms.min() >= MIN_MS and ms.max() < MAX_MS):
        return None
    return pyarrow.chunked_array([pyarrow.array(ms)])
