"""The upsert job: events of a Spark stream become versions of an upsert table, a micro-batch a version.

The source is any stream whose rows say where in their input they were: files with the columns ``$partition`` and
``$offset``, or Kafka (:func:`from_kafka`). Spark sends a micro-batch again when it does not know that it was done; then
its rows are found in the table, and it changes nothing. So every event counts exactly once, whatever is killed.

Resolution and writing run in the driver, on Arrow (:mod:`airflow_provider_segments.upsert.ingest`): a micro-batch has
to fit into its memory.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import StructType

from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.spark import application
from airflow_provider_segments.spark.held import HeldEvents
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION, REGION
from airflow_provider_segments.upsert.ingest import IngestedBatch, UpsertIngestor
from airflow_provider_segments.upsert.owner import LEASE_MS, own_key_partitions

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class IngestedStream:
    """What a run of ingestion did. ``version`` is that of the table at its end."""

    version: int = 0
    batches: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, batch: IngestedBatch) -> None:
        """Count a batch."""
        self.version = batch.version
        self.batches += 1
        for name in ("winners", "ended", "losers", "late", "replays", "expired", "rejected"):
            self.counts[name] = self.counts.get(name, 0) + getattr(batch, name)


def ingest_stream(
    spark: SparkSession,
    table: Table,
    stream: DataFrame,
    *,
    checkpoint: str,
    name: str = "ingest",
    cache: Path | None = None,
    reject_folder: str | None = None,
    every_seconds: float | None = None,
    lease_ms: int = LEASE_MS,
    wait_s: float = 0.0,
) -> IngestedStream:
    """Ingest ``stream`` into an upsert table: all that is there now, or, with ``every_seconds``, until it is stopped.

    ``checkpoint`` is Spark's folder for the stream. After a rollback of the table a new one is begun in it, so that
    what was taken back is read again; a stream that goes on meanwhile is refused (``upsert-rolled-back``). ``name`` and
    ``cache`` are those of :class:`.UpsertIngestor`.
    Ordinary pushes that wait are resolved first. Events that cannot be used go to ``reject_folder`` as JSON where the
    table's config says ``onBadTime: reject``, else they fail the run. Raises :class:`LockDeniedError` when another
    process ingests into the table and has not ended after ``wait_s`` seconds, and what
    :meth:`.UpsertIngestor.ingest` raises.
    """
    done = IngestedStream()
    schema = StructType([one for one in stream.schema.fields if not one.name.startswith("$")])
    with own_key_partitions(table, name, lease_ms=lease_ms, wait_s=wait_s) as lock:
        ingestor = UpsertIngestor(
            table,
            name=name,
            cache=cache,
            locks=(lock,),
            on_rejected=_reject_to(spark, reject_folder),
            spark_schema=schema.json(),
            rollbacks=len(require_record(table.lineage()).voids),
        )
        if left := ingestor.take_over():
            _LOG.warning("table %r: reverted what an earlier run had left: %s", table.name, ", ".join(left))
        done.add(ingestor.ingest())
        if ingestor.rollbacks:
            checkpoint = f"{checkpoint.rstrip('/')}/rollback-{ingestor.rollbacks}"
        held = HeldEvents(checkpoint) if ingestor.upsert.heartbeat_ms is not None else None

        def ingest(events: pyarrow.Table, batch: int) -> None:
            before = None if held is None else held.before(batch)
            versions, after = ingest_to_barriers(ingestor, events, before)
            for version in versions:
                done.add(version)
            if held is not None:
                held.store(batch, after)

        _run(stream, checkpoint, every_seconds, ingest)
    _LOG.info("table %r: version %d after %d batches: %s", table.name, done.version, done.batches, done.counts)
    return done


def from_kafka(messages: DataFrame, schema: StructType | str, *, topics: int = 1) -> DataFrame:
    """Events from messages of Spark's Kafka source whose values are JSON objects of ``schema`` (or of what SQL calls
    it). A value that is no such object becomes an event without a key, which is rejected or fails the run.

    Partitions are numbered in each topic anew: where there are several, an event's ``$region`` is its topic.
    """
    columns = [
        F.from_json(F.col("value").cast("string"), schema).alias("event"),
        F.col("partition").alias(PARTITION),
        F.col("offset").alias(OFFSET),
        *([F.col("topic").alias(REGION)] if topics > 1 else []),
    ]
    events = messages.select(*columns)
    return events.select("event.*", *(f"`{name}`" for name in events.columns if name != "event"))


def _run(
    stream: DataFrame, checkpoint: str, every_seconds: float | None, ingest: Callable[[pyarrow.Table, int], None]
) -> None:
    """Run the query to its end. An error of ours comes out as it was raised, not as the text that Spark makes of it."""
    errors: list[Exception] = []

    def each(batch: DataFrame, number: int) -> None:
        try:
            events = batch.toArrow()
            if events.num_rows:
                ingest(events, number)
        except Exception as error:
            errors.append(error)
            raise

    writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)
    if every_seconds is None:
        query = writer.trigger(availableNow=True).start()
    else:
        query = writer.trigger(processingTime=f"{every_seconds} seconds").start()
    try:
        query.awaitTermination()
    except Exception:
        if errors:
            raise errors[0] from None
        raise
    finally:
        query.stop()


def _reject_to(spark: SparkSession, folder: str | None) -> Callable[[pyarrow.Table], None] | None:
    if folder is None:
        return None

    def put(rejected: pyarrow.Table) -> None:
        spark.createDataFrame(rejected).write.mode("append").json(folder)

    return put


def main(argv: Sequence[str] | None = None) -> int:
    """The application for ``spark-submit``. Returns the exit code."""
    arguments = application.parse_with_input(_parser(), argv)

    def work(spark: SparkSession, table: Table) -> int:
        ingest_stream(
            spark,
            table,
            read_stream(spark, arguments),
            checkpoint=arguments.checkpoint,
            name=arguments.name,
            cache=None if arguments.cache is None else Path(arguments.cache),
            reject_folder=arguments.reject_folder,
            every_seconds=arguments.every_seconds,
            wait_s=arguments.wait_seconds,
        )
        return 0

    return application.run("segments-upsert", arguments, work)


def read_stream(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    """The stream of events that the application was told to ingest. Kafka's begins with the earliest one unless an
    option says otherwise: what is in the table already changes nothing."""
    options = {"startingOffsets": "earliest"} if arguments.format == "kafka" else {}
    reader = spark.readStream.format(arguments.format).options(**{**options, **arguments.options})
    if arguments.max_files is not None:
        reader = reader.option("maxFilesPerTrigger", arguments.max_files)
    if arguments.format == "kafka":
        topics = len(arguments.input.split(","))
        return from_kafka(reader.option("subscribe", arguments.input).load(), arguments.schema, topics=topics)
    return reader.schema(arguments.schema).load(arguments.input)


def _parser() -> application.Parser:
    parser = application.parser("upsert_segments.py", "Ingest events from files or Kafka into an upsert table.")
    application.add_input(
        parser,
        source="the folder that files of events arrive in, or for kafka the topics, joined by commas",
        formats="parquet, json, csv or another file source of Spark, or kafka: messages that are JSON objects",
    )
    parser.add_argument("--schema", required=True, help="as SQL would have it: id STRING, ..., `$partition` INT, ...")
    parser.add_argument("--checkpoint", required=True, help="Spark's folder for the stream")
    parser.add_argument("--name", default="ingest", help="tells ingestors of one table apart")
    parser.add_argument("--cache", help="local folder for the key stores; by default in the user's cache folder")
    parser.add_argument("--max-files", type=int, help="most files of one micro-batch")
    parser.add_argument("--reject-folder", help="where events go that cannot be used, if the table config rejects them")
    parser.add_argument("--every-seconds", type=float, help="go on, with a batch this often; without it, end when done")
    parser.add_argument("--wait-seconds", type=float, default=0.0, help="for how long to wait for another ingestor")
    return parser
