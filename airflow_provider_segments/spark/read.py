"""Reading a table in Spark: one snapshot, only the segments that can hold the asked-for times, then an exact filter.

Where Spark can reach the objects itself (local files, HDFS, S3 with hadoop-aws on the class path), its own Parquet
reader gets the visible files by name. Elsewhere, so on S3 with nothing but the wheels, the files are read through Arrow
in the Python workers (:mod:`.datasource`). Both give the same rows under the same schema: that of the newest segment;
a column that older segments lack is null in them. Segments that were offloaded are read from tiered storage.

What is read stays in the store: under a lease that lives as long as the Spark session (:func:`read_table`), or as a
block (:func:`leased_table`).
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from urllib.parse import urlparse

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import DateType, IntegralType, StructType, TimestampNTZType, TimestampType

from airflow_provider_segments.core.environment import storage_options, tiered_options, worker_environment
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import MAX_MS, MIN_MS, Interval, Time, epoch_ms
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.spark.change_stream import SegmentsChanges
from airflow_provider_segments.spark.datasource import SegmentsDataSource, bound_to
from airflow_provider_segments.spark.leases import hold, owner_of
from airflow_provider_segments.spark.row_validity import rows_with_validity, valid_rows, visible_schema
from airflow_provider_segments.spark.schema import schema_of
from airflow_provider_segments.spark.times import DAY_MS, quoted, time_ms
from airflow_provider_segments.upsert.reading import require_mark

_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("segments")`` and ``spark.readStream.format("segments_changes")`` known to this session.

    Their Python workers get the credentials of the environment, and filters are pushed down to the first.
    """
    spark.sparkContext.environment.update(worker_environment())
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(SegmentsDataSource)
    spark.dataSource.register(SegmentsChanges)


def read_table(
    spark: SparkSession,
    store: SegmentStore,
    table: str,
    *,
    start: Time | None = None,
    end: Time | None = None,
    as_of: str | None = None,
    mark: int | None = None,
    checkpoint: Time | None = None,
    region: str | None = None,
    columns: Sequence[str] | None = None,
    schema: StructType | None = None,
    through_arrow: bool | None = None,
) -> DataFrame:
    """The rows of ``table`` that are visible now, or were ``as_of`` a lineage entry, with ``start <= time < end``.

    The snapshot is taken once, here, under a reader's lease: none of its objects is deleted before the Spark session
    stops (and some seconds), or ``store`` is closed, so keep that open. A lease that is lost on the way is logged, and
    :func:`.leases.check_leases` raises it. ``columns`` picks columns. ``schema`` replaces the newest segment's (and
    spares looking for that one outside of the range); a table without segments raises :class:`SourceDataError` without
    it. ``through_arrow`` chooses the reader, by default Spark's own where it can reach the objects. An upsert table
    gives one row a key, at version ``mark`` or the newest: frames of one mark agree, whatever is ingested meanwhile.
    ``checkpoint``, a time, reads it at the last heartbeat of ``region`` by then: see :meth:`.Table.checkpoint`.
    """
    opened = store.table(table)
    config = opened.config()
    low, high = _ms(start), _ms(end)
    wide = schema is None
    mark = opened.mark_at(mark, checkpoint, region)
    taken = hold(spark, opened, as_of=as_of, mark=mark, low=None if wide else low, high=None if wide else high)
    return _rows(spark, config, taken, schema, low, high, columns, through_arrow)


def read_with_validity(spark: SparkSession, store: SegmentStore, table: str, *, mark: int | None = None) -> DataFrame:
    """All rows that an upsert table keeps, those that are not valid and delete records too, with ``$validFrom`` and
    ``$validUntil``: the versions between which each is seen, as ``mark`` or the newest version knows them. Both are
    null for a row that is never visible.

    The snapshot is held as by :func:`read_table`. Raises :class:`UpsertRefusedError` for a mark that cannot be read,
    :class:`SnapshotRefusedError` (``no-mark``) for another table, and :class:`SourceDataError` for a table without
    segments, and where Spark cannot reach the objects itself: ``read_rows(..., with_validity=True)`` can.
    """
    opened = store.table(table)
    config = opened.config()
    taken = hold(spark, opened, mark=mark, low=None, high=None)
    if not all(spark_can_read(spark, one.uri) for one in taken.stores()):
        raise SourceDataError(f"table {table!r}: Spark cannot reach its objects; use read_rows(with_validity=True)")
    return rows_with_validity(spark, _native(spark, taken, visible_schema(schema_of(taken), config)), taken)


def create_view(
    spark: SparkSession,
    store: SegmentStore,
    table: str,
    *,
    view: str | None = None,
    mark: int | None = None,
    checkpoint: Time | None = None,
    region: str | None = None,
) -> int:
    """Make a temporary view, by default of the table's name, of an upsert table at ``mark``, at a ``checkpoint`` as
    :func:`read_table` takes it, or at the newest version; returns the mark. SQL needs no other change: whatever it asks
    sees one row a key, and every query the same ones.

    The snapshot is held as by :func:`read_table`; make the view again for newer rows. Raises what that raises, and
    :class:`SnapshotRefusedError` (``no-mark``) for another table.
    """
    opened = store.table(table)
    taken = hold(spark, opened, mark=opened.mark_at(mark, checkpoint, region), low=None, high=None)
    read_at = require_mark(taken)
    rows = _rows(spark, opened.config(), taken, None, None, None, None, None)
    rows.createOrReplaceTempView(view or table)
    return read_at


@contextmanager
def leased_table(
    spark: SparkSession,
    store: SegmentStore,
    table: str,
    *,
    start: Time | None = None,
    end: Time | None = None,
    as_of: str | None = None,
    mark: int | None = None,
    checkpoint: Time | None = None,
    region: str | None = None,
    columns: Sequence[str] | None = None,
    schema: StructType | None = None,
    through_arrow: bool | None = None,
) -> Iterator[DataFrame]:
    """:func:`read_table` with a lease of its own that ends with the block: read what you need within it.

    Raises :class:`LeaseLostError` at the end of the block when the lease was lost on the way: then what was read may be
    incomplete, and an action may have failed on a file that is gone.
    """
    opened = store.table(table)
    config = opened.config()
    low, high = _ms(start), _ms(end)
    wide = schema is None
    limits = (None, None) if wide else (low, high)
    mark = opened.mark_at(mark, checkpoint, region)
    with opened.snapshot(*limits, as_of=as_of, mark=mark, owner=owner_of(spark)) as taken:
        yield _rows(spark, config, taken, schema, low, high, columns, through_arrow)


def read_files(
    spark: SparkSession, snapshot: Snapshot, keys: Collection[str], schema: StructType, config: TableConfig
) -> DataFrame:
    """All rows of those objects of ``snapshot`` whose keys are given. The caller holds the snapshot's lease."""
    return _read(spark, snapshot.only(keys), schema, config, None, None)


def read_newest_rows(spark: SparkSession, snapshot: Snapshot, schema: StructType, config: TableConfig) -> DataFrame:
    """The newest row of each key of an upsert table at the snapshot's mark, delete records too, with all columns of
    ``schema``. The caller holds the snapshot's lease."""
    assert config.upsert is not None
    with_deletes = replace(config, upsert=replace(config.upsert, deletes=None))
    return _read(spark, snapshot, schema, with_deletes, None, None)


def _rows(
    spark: SparkSession,
    config: TableConfig,
    taken: Snapshot,
    schema: StructType | None,
    low: int | None,
    high: int | None,
    columns: Sequence[str] | None,
    through_arrow: bool | None,
) -> DataFrame:
    """The rows of a snapshot. Its schema is the table's, whatever the range: it must not change with the times."""
    found = schema if schema is not None else visible_schema(schema_of(taken), config)
    snapshot = taken if low is None and high is None else taken.within(low, high)
    rows = _read(spark, snapshot, found, config, columns, through_arrow)
    kept = time_filter(config, found, low, high)
    rows = rows if kept is None else rows.filter(kept)
    return rows if columns is None else rows.select(*(F.col(quoted(name)) for name in columns))


def _read(
    spark: SparkSession,
    snapshot: Snapshot,
    schema: StructType,
    config: TableConfig,
    columns: Sequence[str] | None,
    through_arrow: bool | None,
) -> DataFrame:
    if not len(snapshot):
        return spark.createDataFrame([], schema)
    if through_arrow is None:
        through_arrow = not all(spark_can_read(spark, store.uri) for store in snapshot.stores())
    parts: dict[tuple[Interval, ...], list[str]] = {}
    for segment in snapshot.segments if snapshot.cuts else ():
        parts.setdefault(segment.visible_in, []).append(segment.key)
    if not parts:
        return _objects(spark, snapshot, schema, config, columns, through_arrow)
    read = [
        _visible_rows(
            _objects(spark, snapshot.only(keys), schema, config, columns, through_arrow), config, schema, cuts
        )
        for cuts, keys in parts.items()
    ]
    return reduce(DataFrame.unionByName, read)


def _visible_rows(
    rows: DataFrame, config: TableConfig, schema: StructType, visible_in: Sequence[Interval]
) -> DataFrame:
    """The rows within the part of their segments' time that newer versions have left visible."""
    kept = [time_filter(config, schema, part.start_ms, part.end_ms) for part in visible_in]
    wanted = [one for one in kept if one is not None]
    return rows.filter(reduce(Column.__or__, wanted)) if wanted else rows


def _objects(
    spark: SparkSession,
    snapshot: Snapshot,
    schema: StructType,
    config: TableConfig,
    columns: Sequence[str] | None,
    through_arrow: bool,
) -> DataFrame:
    if through_arrow:
        return _arrow(spark, snapshot, schema, config, columns)
    if config.upsert is None:
        return _native(spark, snapshot, schema)
    return valid_rows(spark, snapshot, config.upsert, lambda part: _native(spark, part, schema))


def spark_can_read(spark: SparkSession, uri: str) -> bool:
    """Whether Spark's own readers reach objects at ``uri``."""
    scheme = urlparse(uri).scheme
    if scheme not in ("s3", "s3a"):
        return True
    try:
        spark._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_S3A)  # type: ignore[union-attr]
    except Exception:  # py4j's wrapper of ClassNotFoundException, and whatever a half-installed hadoop-aws raises
        return False
    return True


def time_filter(config: TableConfig, schema: StructType, low: int | None, high: int | None) -> Column | None:
    """``low <= time < high``, as a comparison of the bare column where it can be: Parquet readers skip data by it."""
    if low is None and high is None:
        return None
    ms = time_ms(config, schema)
    if ms is None:
        raise SourceDataError(f"table {config.name!r} has no time column: it can only be read whole")
    assert config.time_column is not None
    column, kind = F.col(quoted(config.time_column)), schema[config.time_column].dataType
    whole = F.lit(True)
    for bound, at in ((low, column.__ge__), (high, column.__lt__)):
        if bound is None or not MIN_MS < bound < MAX_MS:
            continue
        literal = _literal(config.time_format, kind, bound)
        if literal is None:
            at, literal = (ms.__ge__ if bound == low else ms.__lt__), F.lit(bound)
        whole = whole & at(literal)
    return whole & column.isNotNull()


def _literal(time_format: str, kind: object, ms: int) -> Column | None:
    """The smallest value of the time column at or after ``ms``; ``None`` when only the parsed time can be compared."""
    if time_format == "TIMESTAMP":
        match kind:
            case TimestampType():
                return F.timestamp_millis(F.lit(ms).cast("bigint"))
            case TimestampNTZType():
                since_epoch = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=ms)
                return F.expr(f"timestamp_ntz'{since_epoch.isoformat(sep=' ')}'")
            case DateType():
                return F.date_from_unix_date(F.lit(-(-ms // DAY_MS)))
    if isinstance(kind, IntegralType):
        match time_format:
            case "EPOCH_SECONDS":
                return F.lit(-(-ms // 1000)).cast("bigint")
            case "EPOCH_MILLIS":
                return F.lit(ms).cast("bigint")
            case "EPOCH_MICROS":
                return F.lit(ms * 1000).cast("bigint")
    return None


def _native(spark: SparkSession, snapshot: Snapshot, schema: StructType) -> DataFrame:
    for store in snapshot.stores():
        uri = urlparse(store.uri)
        if uri.scheme in ("s3", "s3a"):
            _configure_s3a(spark, uri.netloc, storage_options() if store is snapshot.storage else tiered_options())
    urls = (f"s3a://{url[5:]}" if url.startswith("s3://") else url for url in snapshot.urls)
    return spark.read.schema(schema).parquet(*urls)


def _configure_s3a(spark: SparkSession, bucket: str, options: dict[str, str]) -> None:
    """Give S3A the environment's credentials for this bucket, unless Spark's configuration has some."""
    names = {
        "access_key": "access.key",
        "secret_key": "secret.key",
        "session_token": "session.token",
        "endpoint_url": "endpoint",
        "region": "endpoint.region",
    }
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    if options.get("endpoint_url"):
        hadoop.setIfUnset(f"fs.s3a.bucket.{bucket}.path.style.access", "true")
    for option, value in options.items():
        hadoop.setIfUnset(f"fs.s3a.bucket.{bucket}.{names[option]}", value)


def _arrow(
    spark: SparkSession,
    snapshot: Snapshot,
    schema: StructType,
    config: TableConfig,
    columns: Sequence[str] | None,
) -> DataFrame:
    register(spark)
    needed = None if columns is None else {*columns, *([config.time_column] if config.time_column else [])}
    wanted = schema if needed is None else StructType([field for field in schema.fields if field.name in needed])
    bound = bound_to(snapshot, config)
    spark.dataSource.register(bound)
    return spark.read.format(bound.name()).schema(wanted).load()


def _ms(at: Time | None) -> int | None:
    return None if at is None else epoch_ms(at)
