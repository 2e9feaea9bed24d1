"""The time of a row, as UTC epoch milliseconds, in Spark expressions that no session time zone can bend.

What has no zone is UTC: TIMESTAMP_NTZ columns, dates, and text without an offset or a zone name. A TIMESTAMP column is
an instant already. Fractions of a millisecond are rounded down, also before 1970. A time that cannot be read, or that
lies outside the years 1 to 9999, is null: the caller decides what becomes of such rows.
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from airflow_provider_segments.arrow.columns import check_time_column
from airflow_provider_segments.core.model.config import TIME_FORMATS, TableConfig
from airflow_provider_segments.core.model.interval import MAX_MS, MIN_MS, Granularity
from airflow_provider_segments.exceptions import SourceDataError

DAY_MS = 86_400_000

_ZONELESS = r"^\s*\d{4}(-\d{1,2}(-\d{1,2}([T ](\d{1,2}(:\d{1,2}(:\d{1,2}(\.\d*)?)?)?)?)?)?)?\s*$"
_ZONED = r"^\s*\d{4}-\d{1,2}-\d{1,2}[T ]"  # a bare time of day would be read as today's
_QUOTED = re.compile(r"'[^']*'")
_ZONE_LETTERS = re.compile(r"[VzOXxZ]")


def quoted(name: str) -> str:
    """``name`` as Spark wants it where dots and spaces are part of the name."""
    return "`" + name.replace("`", "``") + "`"


def time_ms(config: TableConfig, schema: StructType) -> Column | None:
    """The row's time; ``None`` when the table has no time column.

    Raises :class:`SourceDataError` when the column is absent, or of a type that ``timeFormat`` cannot be read from.
    """
    if config.time_column is None:
        return None
    check_time_column(config, schema.names)
    kind = schema[config.time_column].dataType
    read = _read(F.col(quoted(config.time_column)), kind, config.time_format)
    if read is None:
        raise SourceDataError(
            f"table {config.name!r}: time column {config.time_column!r} is {kind.simpleString()}, which timeFormat "
            f"{config.time_format} cannot be read from; set segmentBuildConfig.timeFormat to one of "
            f"{', '.join(TIME_FORMATS)}, or to a Spark datetime pattern for text"
        )
    return F.when(read.between(MIN_MS, MAX_MS - 1), read)


def chunk_start(granularity: Granularity, ms: Column) -> Column:
    """Start of the row's time chunk: :meth:`Granularity.floor` as an expression."""
    match granularity:
        case Granularity.ALL:
            return F.lit(MIN_MS)
        case Granularity.HOUR:
            return ms - _past(ms, 3_600_000)
        case Granularity.DAY:
            return ms - _past(ms, DAY_MS)
        case Granularity.WEEK:  # the epoch was a Thursday
            return F.greatest(F.lit(MIN_MS), ms - _past(ms + 3 * DAY_MS, 7 * DAY_MS))
    # Spark divides as floats: exact here, for a multiple of a day in the years 1 to 9999 is far below 2**53.
    days = ((ms - _past(ms, DAY_MS)) / DAY_MS).cast("int")
    unit = "month" if granularity is Granularity.MONTH else "year"
    return F.unix_date(F.trunc(F.date_from_unix_date(days), unit)).cast("bigint") * DAY_MS


def _past(ms: Column, unit: int) -> Column:
    """Milliseconds since the last multiple of ``unit``, also before 1970."""
    return F.pmod(ms, F.lit(unit).cast("bigint"))


def _read(column: Column, kind: DataType, time_format: str) -> Column | None:
    if time_format == "TIMESTAMP":
        return _timestamp(column, kind)
    return _epoch(column, kind, time_format) if time_format in TIME_FORMATS else _pattern(column, kind, time_format)


def _timestamp(column: Column, kind: DataType) -> Column | None:
    match kind:
        case TimestampType():
            return F.unix_millis(column)
        case TimestampNTZType():
            return _ntz_millis(column)
        case DateType():
            return F.unix_date(column).cast("bigint") * DAY_MS
        case StringType():
            zoneless = _ntz_millis(column.try_cast("timestamp_ntz"))
            zoned = F.when(column.rlike(_ZONED), F.unix_millis(column.try_cast("timestamp")))
            return F.when(column.rlike(_ZONELESS), zoneless).otherwise(zoned)
    return None


def _epoch(column: Column, kind: DataType, time_format: str) -> Column | None:
    if not isinstance(kind, IntegralType | DecimalType | FloatType | DoubleType | StringType):
        return None
    if isinstance(kind, IntegralType):
        whole = column.cast("bigint")
        match time_format:
            case "EPOCH_SECONDS":
                return F.try_multiply(whole, F.lit(1000).cast("bigint"))
            case "EPOCH_MILLIS":
                return whole
        return F.unix_millis(F.timestamp_micros(whole))
    exact = column.try_cast("decimal(28,6)")  # NaN, infinity and text that is no number become null
    per_ms = {"EPOCH_SECONDS": exact * 1000, "EPOCH_MILLIS": exact, "EPOCH_MICROS": exact / 1000}
    return F.floor(per_ms[time_format]).try_cast("bigint")


def _pattern(column: Column, kind: DataType, pattern: str) -> Column | None:
    """A whole number is text too: schema inference makes one of 20130131. Text without a zone gets one, so that
    Spark does not take the session's."""
    if not isinstance(kind, StringType | IntegralType):
        return None
    text = column.cast("string")
    if _ZONE_LETTERS.search(_QUOTED.sub("", pattern)) is None:
        text, pattern = F.concat(text, F.lit(" Z")), f"{pattern} X"
    return F.unix_millis(F.try_to_timestamp(text, F.lit(pattern)))


def _ntz_millis(column: Column) -> Column:
    """Differences of TIMESTAMP_NTZ know no zone; a cast to TIMESTAMP would take the session's, gaps and all."""
    since_epoch = column - F.expr("timestamp_ntz'1970-01-01 00:00:00'")
    return F.floor(since_epoch.cast("decimal(20,6)") * 1000).cast("bigint")
