"""Change capture in Spark: :mod:`airflow_provider_segments.upsert.changes` over many tasks.

The driver says which rows of which objects have changed; tasks read those rows and no others, through Arrow, so it
works wherever the objects are. What is shuffled are the changed rows, to bring those of one key together. Since a
vector, all rows are looked at, by the reader of :mod:`.read`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from airflow_provider_segments.core.environment import worker_environment
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.spark.changed_rows import Work, read_work, work_of
from airflow_provider_segments.spark.leases import hold
from airflow_provider_segments.spark.read import read_newest_rows
from airflow_provider_segments.spark.row_validity import visible_schema
from airflow_provider_segments.spark.schema import schema_of, with_places
from airflow_provider_segments.spark.times import quoted
from airflow_provider_segments.upsert.changes import (
    CHANGE,
    HAS_BEGUN,
    Change,
    ChangedRows,
    Changes,
    Since,
    bulk_rows_refused,
    changed_rows,
    check_since,
    vector_of,
)
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION, REGION
from airflow_provider_segments.upsert.events import BULK_PARTITION
from airflow_provider_segments.upsert.reading import require_mark

_WORK = pyarrow.schema(
    zip(Work._fields, (pyarrow.string(), pyarrow.bool_(), pyarrow.binary(), pyarrow.bool_()), strict=True)
)


def read_changes(
    spark: SparkSession, store: SegmentStore, table: str, *, since: Since, to: int | None = None
) -> Changes[DataFrame]:
    """What has changed in an upsert table after ``since``, a version or a vector, up to version ``to`` or the newest:
    see :func:`.upsert.changes.read_changes`, which raises the same. The rows are in no order.

    The snapshot is held as by :func:`.read.read_table`.
    """
    opened = store.table(table)
    config = opened.config()
    taken = hold(spark, opened, mark=to, low=None, high=None)
    record = check_since(taken, config.upsert, since)
    assert config.upsert is not None
    if isinstance(since, int):
        images = _images(spark, taken, visible_schema(schema_of(taken), config), changed_rows(taken, since))
        rows = _paired(images, config.upsert)
    else:
        rows = _upserts(_unread_rows(spark, taken, config, since), config.upsert)
    return Changes(rows, require_mark(taken), vector_of(taken, record, config.upsert))


def _images(spark: SparkSession, taken: Snapshot, schema: StructType, changed: Iterable[ChangedRows]) -> DataFrame:
    """The changed rows as readers see them, delete records too."""
    spark.sparkContext.environment.update(worker_environment())
    taken.stores()  # a segment in a tiered storage that is not here is refused now, and not by a task
    work = [*work_of(changed)]
    told = StructType([*schema.fields]).add(HAS_BEGUN, "boolean")
    if not work:
        return spark.createDataFrame([], told)
    columns = [pyarrow.array(values, field.type) for values, field in zip(zip(*work, strict=True), _WORK, strict=True)]
    tasks = min(len(work), 4 * spark.sparkContext.defaultParallelism)
    frame = spark.createDataFrame(pyarrow.Table.from_arrays(columns, schema=_WORK)).repartition(tasks)
    return frame.mapInArrow(_reading(taken.storage, taken.tiered, to_arrow_schema(told, timezone="UTC")), told)


def _reading(
    storage: ObjectStore, tiered: ObjectStore | None, schema: pyarrow.Schema
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """The task that reads changed rows."""

    def task(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for work in zip(*batch.to_pydict().values(), strict=True):
                yield from read_work(Work(*work), storage, tiered, schema).combine_chunks().to_batches()

    return task


def _unread_rows(spark: SparkSession, taken: Snapshot, config: TableConfig, vector: Mapping[str, int]) -> DataFrame:
    """The newest rows of keys, delete records too, whose events the vector does not cover."""
    assert config.upsert is not None
    schema = schema_of(taken)
    rows = read_newest_rows(spark, taken, with_places(schema), config)
    part, offset = F.col(quoted(PARTITION)), F.col(quoted(OFFSET))
    if not rows.filter(part.isNull() | (part == BULK_PARTITION)).isEmpty():
        raise bulk_rows_refused(taken)
    region = F.coalesce(F.col(quoted(REGION)), F.lit(config.upsert.regions[0]))
    read_up_to = F.create_map(*(F.lit(one) for source in vector.items() for one in source)) if vector else None
    if read_up_to is not None:
        source = F.concat(region, F.lit("/"), part.cast("string"))
        rows = rows.filter(offset >= F.coalesce(F.try_element_at(read_up_to, source), F.lit(0)))
    return rows.select(*(F.col(quoted(name)) for name in visible_schema(schema, config).names))


def _paired(images: DataFrame, config: UpsertConfig) -> DataFrame:
    """The changes of rows before and after. A key that a delete record has taken away has no row after."""
    one_key = Window.partitionBy(*(F.col(quoted(name)) for name in config.primary_key))
    is_pair, has_begun = F.count(F.lit(1)).over(one_key) == 2, F.col(quoted(HAS_BEGUN))
    kind = (
        F.when(has_begun & is_pair, str(Change.AFTER_UPDATE))
        .when(has_begun, str(Change.INSERT))
        .when(is_pair, str(Change.BEFORE_UPDATE))
        .otherwise(str(Change.DELETE))
    )
    return images.filter(~_is_delete(images, config)).withColumn(CHANGE, kind).drop(HAS_BEGUN)


def _upserts(rows: DataFrame, config: UpsertConfig) -> DataFrame:
    return rows.withColumn(CHANGE, F.when(_is_delete(rows, config), str(Change.DELETE)).otherwise(str(Change.UPSERT)))


def _is_delete(rows: DataFrame, config: UpsertConfig) -> Column:
    if config.deletes is None or config.deletes not in rows.columns:
        return F.lit(False)
    return F.coalesce(F.col(quoted(config.deletes)), F.lit(False))
