"""The build job: rows of any Spark source become hidden segments of a lineage entry.

1. ``open_stage`` announces the attempt, before any object is written, and shuts out every earlier one.
2. One pass counts the rows of each time chunk and looks for rows without a usable time.
3. Spark shuffles the rows so that one task holds one segment's worth (:mod:`.planning`); Arrow sorts, writes and
   uploads in the Python workers (:mod:`~.arrow.writing`), which report a record for each file.
4. The driver stages what the tasks that count reported. Until ``end``, nobody sees any of it.

A job that fails anywhere has staged nothing. Its objects lie under the entry's prefix, where the clean-up of the entry
finds them; nothing is deleted here. The source is read twice. A source that is more than a scan of files (a join, an
aggregation, a sample, ...) is kept in Spark's memory and disk between the two, so that it is computed once and both
passes see the same rows.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import AtomicType, LongType, StructType

from airflow_provider_segments.arrow.push import (
    BuiltPush,
    WrittenRows,
    bad_times,
    build_push,
    check_reject_folder,
    no_rows,
)
from airflow_provider_segments.arrow.writing import WriteJob
from airflow_provider_segments.core.compaction.settings import CompactionSettings
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.names import DEFAULT_STAGER
from airflow_provider_segments.core.model.segment import StagedSegment
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.spark import application, planning
from airflow_provider_segments.spark.connect import parallelism
from airflow_provider_segments.spark.progress import logged_progress
from airflow_provider_segments.spark.sources import check_columns, is_cheap
from airflow_provider_segments.spark.tasks import decode, task
from airflow_provider_segments.spark.times import chunk_start, quoted, time_ms
from airflow_provider_segments.text import count

_LOG = logging.getLogger(__name__)
_TIME, _PARTITION = "__segments_time_ms", "__segments_partition"


def build_segments(
    spark: SparkSession,
    table: Table,
    entry_id: str,
    source: DataFrame,
    *,
    stager: str = DEFAULT_STAGER,
    allow_empty: bool = False,
    reject_folder: str | None = None,
    cache: bool | None = None,
    config: TableConfig | None = None,
    fingerprint: str | None = None,
) -> BuiltPush:
    """Build ``source`` into segments of ``table`` and stage them in ``entry_id``.

    ``reject_folder`` is where rows without a usable time go (as JSON, below ``<table>/<entry id>.<attempt>``) when the
    table's config says ``onBadTime: reject``. ``cache`` keeps the source between its two readings; by default only when
    it is more than a scan of files. Executors use the table's object store, which reaches them inside the pickled task:
    its credentials are in no setting, log or process list. ``config`` builds as another config of the table would have
    it, and ``fingerprint`` says for which compaction settings that is; by default both are the table's own.

    Raises :class:`SourceDataError` for input that cannot become segments, :class:`StageRefusedError` when the entry
    takes none, :class:`InvalidConfigError`, :class:`TableNotFoundError`, and Spark's own errors when a task fails.
    """
    config = config or table.config()
    check_reject_folder(config, reject_folder)

    def write(ticket: StageTicket) -> WrittenRows:
        build = _Build(spark, config, ticket, source, table.storage, reject_folder, fingerprint)
        with build.kept(cache):
            return build.run(allow_empty)

    return build_push(table, config, entry_id, stager, write)


class _Build:
    """One attempt."""

    def __init__(
        self,
        spark: SparkSession,
        config: TableConfig,
        ticket: StageTicket,
        source: DataFrame,
        storage: ObjectStore,
        reject_folder: str | None,
        fingerprint: str | None = None,
    ) -> None:
        self.fingerprint = fingerprint
        self.spark = spark
        self.config = config
        self.ticket = ticket
        self.source = source
        self.storage = storage
        self.reject_folder = reject_folder
        check_columns(config, source.schema)
        self.time = time_ms(config, source.schema)

    @contextmanager
    def kept(self, cache: bool | None) -> Iterator[None]:
        """Keep the source between the passes if it has to be."""
        if not (not is_cheap(self.source) if cache is None else cache):
            yield
            return
        self.source = self.source.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield
        finally:
            self.source.unpersist()

    def run(self, allow_empty: bool) -> WrittenRows:
        """Write the segments."""
        keys = self._keys()
        counted = planning.count(self.source, keys, self.config.target_rows)
        rejected = self._sort_out(counted.bad)
        rows = sum(counted.rows.values())
        if rows == 0:
            if not allow_empty:
                raise no_rows(self.config, rejected)
            return WrittenRows([], rejected)
        plan = planning.make_plan(counted, self.config.target_rows, parallelism(self.spark))
        _LOG.info(
            "table %r: %s in %s, %s",
            self.config.name,
            count(rows, "row"),
            count(len(plan.chunks), "time chunk"),
            count(plan.partitions, "task"),
        )
        segments = self._write(plan, keys)
        written = sum(segment.record.rows for segment in segments)
        if written != rows:
            _LOG.warning(
                "table %r: the input changed while it was read: %d rows, then %d", self.config.name, rows, written
            )
        return WrittenRows(segments, rejected)

    def _keys(self) -> planning.Keys:
        config, schema = self.config, self.source.schema
        chunk = F.lit(0).cast("bigint") if self.time is None else chunk_start(config.granularity, self.time)
        if self.time is not None:
            chunk = F.when(self.time.isNotNull(), chunk)
        spread = F.xxhash64(*([F.col(quoted(name)) for name in _hashable(schema)] or [F.lit(0)]))
        known = [F.col(quoted(name)) for name in config.sort_columns] + ([] if self.time is None else [self.time])
        if config.sort_columns:
            first = config.sort_columns[0]
            value, kind = planning.sort_value(F.col(quoted(first)), schema[first].dataType)
            return planning.Keys(chunk, value, kind, F.xxhash64(*known), spread)
        return planning.Keys(chunk, self.time, LongType(), F.xxhash64(*known) if known else spread, spread)

    def _sort_out(self, bad: int) -> int:
        """Refuse rows without a usable time, or put them into the reject folder."""
        if not bad:
            return 0
        assert self.time is not None
        rows = self.source.filter(self.time.isNull())
        if self.config.on_bad_time != "reject":
            raise bad_times(self.config, bad, _example(rows))
        folder = (
            f"{str(self.reject_folder).rstrip('/')}/{self.config.name}/{self.ticket.entry_id}.{self.ticket.attempt}"
        )
        rows.write.mode("error").json(folder)
        _LOG.warning("table %r: %d rows without a usable time were put into %s", self.config.name, bad, folder)
        return bad

    def _write(self, plan: planning.Plan, keys: planning.Keys) -> list[StagedSegment]:
        source = self.source
        if self.time is not None:
            source = source.withColumn(_TIME, self.time)
            if self.config.on_bad_time == "reject":
                source = source.filter(F.col(_TIME).isNotNull())
        placed = planning.partition_column(self.spark, source, plan, keys, _PARTITION)
        shuffled = placed.repartitionById(plan.partitions, _PARTITION).drop(_PARTITION)
        shuffled = shuffled.toDF(*(f"c{index}" for index in range(len(shuffled.columns))))  # mapInArrow dislikes dots
        job = self._job(plan)
        with logged_progress(self.spark, self.config.name, plan.rows) as report:
            found = shuffled.mapInArrow(task(job, report), "segment binary").collect()
        return [decode(row[0]) for row in found]

    def _job(self, plan: planning.Plan) -> WriteJob:
        fingerprint = self.fingerprint or CompactionSettings.of(self.config).fingerprint
        job = replace(
            WriteJob.of(self.config, self.ticket, self.storage, fingerprint),
            columns=tuple(self.source.columns),
            spark_schema=self.source.schema.json(),
            slices=plan.slices,
        )
        # Too long a name shows now, and not in a task.
        job.segment_name(self.config.granularity.chunk_name(0), plan.partitions)
        return job


def _hashable(schema: StructType) -> list[str]:
    return [field.name for field in schema.fields if isinstance(field.dataType, AtomicType)]


def _example(rows: DataFrame) -> str:
    """One of the rows, as JSON."""
    example = rows.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"})).limit(1).collect()
    return str(example[0][0]) if example else "gone when it was looked for"


def main(argv: Sequence[str] | None = None) -> int:
    """The application for ``spark-submit``. Returns the exit code."""
    arguments = parse_arguments(argv)

    def work(spark: SparkSession, table: Table) -> int:
        build_segments(
            spark,
            table,
            arguments.entry_id,
            read_source(spark, arguments.input, arguments.format, arguments.options, arguments.schema),
            stager=arguments.stager,
            allow_empty=arguments.allow_empty,
            reject_folder=arguments.reject_folder,
        )
        return 0

    return application.run("segments-build", arguments, work)


def read_source(
    spark: SparkSession,
    source: str,
    kind: str = "parquet",
    options: Mapping[str, str] | None = None,
    schema: str | None = None,
) -> DataFrame:
    """The input: ``source`` is a table's name for ``kind`` ``table``, a query for ``sql``, else comma-separated paths.

    Raises :class:`SourceDataError` when it cannot be found or understood.
    """
    try:
        found = _read(spark, source, kind, dict(options or {}), schema)
        found.schema  # noqa: B018 - Spark Connect looks for the input only when it is asked what it has
    except AnalysisException as error:
        raise SourceDataError(f"input {source[:200]!r} ({kind}) cannot be read: {error.getMessage()}") from error
    return found


def _read(spark: SparkSession, source: str, kind: str, options: dict[str, str], schema: str | None) -> DataFrame:
    if kind == "sql":
        return spark.sql(source)
    if kind == "table":
        return spark.read.options(**options).table(source)
    reader = spark.read.format(kind).options(**options)
    if schema:
        reader = reader.schema(schema)
    return reader.load([path.strip() for path in source.split(",") if path.strip()])


def _parser() -> application.Parser:
    parser = application.parser(
        "build_segments.py", "Build segments of a table from any Spark source and stage them in a lineage entry."
    )
    parser.add_argument("--entry-id", required=True, help="the lineage entry to stage in")
    parser.add_argument("--stager", default=DEFAULT_STAGER, help="name of this build where an entry has several")
    application.add_input(
        parser,
        source="comma-separated paths, a table name, or a query",
        formats="csv, json, parquet, orc, table, sql or another Spark source",
    )
    parser.add_argument("--schema", help="schema of the source as SQL would have it: a INT, b STRING")
    parser.add_argument("--allow-empty", action="store_true", help="an input without rows is no error")
    parser.add_argument("--reject-folder", help="where rows without a usable time go, if the table config rejects them")
    return parser


def parse_arguments(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> argparse.Namespace:
    """The arguments: see :func:`.application.parse_with_input`."""
    return application.parse_with_input(_parser(), argv, environ)
