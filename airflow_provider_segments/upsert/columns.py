"""The columns of an upsert table's rows, as events need them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy
import pyarrow
import pyarrow.compute

from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.upsert.events import BULK_PARTITION, Column, IngestionUpsertEvents
from airflow_provider_segments.upsert.keys import key_hashes

REGION, PARTITION, OFFSET = "$region", "$partition", "$offset"
SOURCE_COLUMNS = (REGION, PARTITION, OFFSET)
"""Where in its input a row was. Kept with the row; no part of what readers see unless they ask."""

PLACE_TYPES = {REGION: pyarrow.string(), PARTITION: pyarrow.int32(), OFFSET: pyarrow.int64()}
"""Their types in every segment, whatever the input has: all segments are read under one schema."""

VALID_FROM, VALID_UNTIL = "$validFrom", "$validUntil"


@dataclass(frozen=True, slots=True)
class BulkPlace:
    """What the rows of an ordinary push count as, which come from no partition of a source: ``born`` is the zxid at
    which the push was born."""

    born: int


def event_columns(config: UpsertConfig) -> list[str]:
    """The columns that events are made from."""
    return [*config.primary_key, config.comparison_column]


def events_of(
    rows: pyarrow.Table, config: UpsertConfig, segment: int, bulk: BulkPlace | None = None
) -> IngestionUpsertEvents:
    """An event for each of ``rows``, in order, that are in segment number ``segment``.

    Raises :class:`SourceDataError` for rows that :mod:`.rejects` would have sorted out.
    """
    high, low = key_hashes(rows, config.primary_key)
    count = rows.num_rows
    if bulk is not None and PARTITION not in rows.column_names:
        region = numpy.zeros(count, numpy.int16)
        partition = numpy.full(count, BULK_PARTITION, numpy.int32)
        offset = numpy.full(count, bulk.born, numpy.int64)
    else:
        region = region_codes(rows, config)
        partition = whole(rows, PARTITION).astype(numpy.int32)
        offset = whole(rows, OFFSET)
    return IngestionUpsertEvents(
        high,
        low,
        comparison_values(rows, config.comparison_column),
        region,
        partition,
        offset,
        numpy.full(count, segment, numpy.int32),
        numpy.arange(count, dtype=numpy.int64),
    )


def comparison_values(rows: pyarrow.Table, name: str) -> Column:
    """The comparison column as whole numbers: microseconds for times, days for dates."""
    kind = rows.column(name).type
    if pyarrow.types.is_timestamp(kind):
        column = rows.column(name).cast(pyarrow.timestamp("us", kind.tz), safe=False)
        return whole(pyarrow.table({name: column.cast(pyarrow.int64())}), name)
    if pyarrow.types.is_date32(kind):
        return whole(pyarrow.table({name: rows.column(name).cast(pyarrow.int32())}), name)
    return whole(rows, name)


def region_codes(rows: pyarrow.Table, config: UpsertConfig) -> Column:
    """The place of each row's region in the config; the first one where a row names none."""
    if REGION not in rows.column_names:
        return numpy.zeros(rows.num_rows, numpy.int16)
    named = rows.column(REGION).cast(pyarrow.string()).fill_null(config.regions[0])
    found = pyarrow.compute.index_in(named, pyarrow.array(config.regions))
    if found.null_count:
        raise SourceDataError(f"column {REGION} has a value that is not among upsertConfig.regions {config.regions!r}")
    codes: Column = found.to_numpy().astype(numpy.int16)
    return codes


def whole(rows: pyarrow.Table, name: str) -> Column:
    """A column of whole numbers without nulls. Raises :class:`SourceDataError`."""
    if name not in rows.column_names:
        raise SourceDataError(f"column {name!r} is missing; the input has {', '.join(rows.column_names)}")
    column = rows.column(name)
    if not pyarrow.types.is_integer(column.type) or column.null_count:
        problem = f"{column.null_count} nulls" if column.null_count else f"type {column.type}"
        raise SourceDataError(f"column {name!r} must hold whole numbers, dates or times, and has {problem}")
    values: Column = column.cast(pyarrow.int64()).to_numpy()
    return values
