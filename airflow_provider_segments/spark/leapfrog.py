"""Leap Frog as a Spark job: two tables in two regions that read the same sources, compared at one version each.

Both are read once. What is shuffled of a row is its key, a hash of its columns and its place in the source. Keys whose
hashes agree end there; the others are judged by :func:`.leapfrog.judge`, in the Python workers. Every run compares all
keys, so what was undecided in one is judged again in the next.

Findings become rows of a table of their own, by an ordinary push: key, what was found, which side is expected to win,
and where in the source both rows were. A key that was found before and agrees now is reported once more, as healed.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DateType, StructType, TimestampNTZType, TimestampType

from airflow_provider_segments.core.environment import connect
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import parse_time
from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.core.model.variables import DEFAULT_CLUSTER
from airflow_provider_segments.core.replication.comparisons import (
    FAIL_ON,
    ComparisonRecord,
    keep_comparison,
    name_of_other,
)
from airflow_provider_segments.core.replication.leapfrog import (
    Kind,
    LastRow,
    Side,
    expected_winner,
    has_diverged,
    judge,
    lag_behind,
)
from airflow_provider_segments.core.replication.stream import DigestDifference, VersionStream, differing_digests
from airflow_provider_segments.core.replication.vectors import Vector, covers, merge
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import NO_CUTOFF, UpsertRecord, require_record
from airflow_provider_segments.core.upsert.view import segment_versions
from airflow_provider_segments.exceptions import InvalidConfigError, RegionsDivergedError, SegmentsError
from airflow_provider_segments.spark import application
from airflow_provider_segments.spark.build import build_segments
from airflow_provider_segments.spark.leases import hold
from airflow_provider_segments.spark.read import read_newest_rows, read_table
from airflow_provider_segments.spark.schema import schema_of, with_places
from airflow_provider_segments.spark.times import quoted
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION, REGION, SOURCE_COLUMNS
from airflow_provider_segments.upsert.events import BULK_PARTITION

_LOG = logging.getLogger(__name__)

ROWS_A_TASK = 500_000
"""Keys that one task compares, at most about."""

_FINDING = (
    "kind STRING, key STRING, winner STRING, time_a BIGINT, region_a STRING, partition_a INT, offset_a BIGINT, "
    "time_b BIGINT, region_b STRING, partition_b INT, offset_b BIGINT, difference STRING"
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison has found. ``counts`` are keys by kind, and source partitions whose digests differ;
    ``lag_a`` and ``lag_b`` are, by source partition, the offsets that each has read less of than the other;
    ``new`` counts the findings that earlier comparisons have not told. ``entry_id`` is that of their push into the
    table of findings, empty when there was nothing to push. Compared were the versions ``version_a`` and ``version_b``,
    at ``at_ms``."""

    counts: dict[str, int]
    version_a: int
    version_b: int
    at_ms: int
    lag_a: dict[str, int] = field(default_factory=dict)
    lag_b: dict[str, int] = field(default_factory=dict)
    new: int = 0
    entry_id: str = ""

    @property
    def has_diverged(self) -> bool:
        """Whether anything was found that lag does not explain."""
        return has_diverged(self.counts)

    def record(self, other: str, findings: str) -> ComparisonRecord:
        """What is kept of it: see :mod:`.comparisons`."""
        return ComparisonRecord(
            other=other,
            at_ms=self.at_ms,
            version=self.version_a,
            other_version=self.version_b,
            counts=self.counts,
            behind=self.lag_a,
            other_behind=self.lag_b,
            new=self.new,
            findings=findings,
            entry_id=self.entry_id,
        )


def compare_regions(
    spark: SparkSession,
    table_a: Table,
    table_b: Table,
    findings: Table | None = None,
    *,
    checkpoint: tuple[str, int] | None = None,
) -> Comparison:
    """Compare two upsert tables that read the same sources, at their newest versions, or at the ``checkpoint`` of a
    region and a time (epoch milliseconds) in both; push into ``findings`` what was not found before, or is healed.

    Rows of ordinary pushes have no place in a source, and are not compared. Raises :class:`InvalidConfigError` for
    tables whose rows cannot be compared, :class:`UpsertRefusedError` for a checkpoint that there is none of, and what
    reading and pushing raise.
    """
    upsert = _check_comparable(table_a.config(), table_b.config())
    a, b = (_Compared.open(spark, table, checkpoint) for table in (table_a, table_b))
    if upsert.is_partial and (a.record.cutoff, b.record.cutoff) != (NO_CUTOFF, NO_CUTOFF):
        raise InvalidConfigError(
            f"table {table_a.name!r} merges rows and has a cutoff: an event below it may be in a row here and not there"
        )
    if not (len(a.taken) and len(b.taken)):
        raise InvalidConfigError(f"table {table_a.name!r} has no rows in one of the regions, and so no schema there")
    digests = differing_digests(a.record.stream or VersionStream(), b.record.stream or VersionStream())
    digests = _new_differences(spark, findings, digests)
    lag_a, lag_b = lag_behind(a.positions, b.positions), lag_behind(b.positions, a.positions)
    judged = _judged(a, b, upsert).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        counts = Counter({row["kind"]: row["count"] for row in judged.groupBy("kind").count().collect()})
        counts[Kind.DIGEST] += len(digests)
        told = judged.filter(F.col("kind") != Kind.UNDECIDED).unionByName(_digest_rows(spark, digests))
        before = None if findings is None else open_findings(spark, findings)
        if before is not None:
            told = told.subtract(before.select(told.columns))
        new = told.count()
        if before is not None:
            healed = _healed(before, judged)
            counts[Kind.HEALED] += healed.count()
            told = told.unionByName(healed)
        entry_id = ""
        if findings is not None and (new or counts[Kind.HEALED]):
            entry_id = _push(spark, findings, _with_run(told, a, b))
    finally:
        judged.unpersist()
    found = {str(kind): number for kind, number in sorted(counts.items()) if number}
    done = Comparison(found, a.version, b.version, a.found_ms, lag_a, lag_b, new, entry_id)
    _LOG.info("table %r: versions %d and %d: %s", table_a.name, a.version, b.version, found or "all keys agree")
    return done


@dataclass(frozen=True, slots=True)
class _Compared:
    """One table at one version."""

    spark: SparkSession
    config: TableConfig
    taken: Snapshot
    record: UpsertRecord
    version: int
    found_ms: int

    @classmethod
    def open(cls, spark: SparkSession, table: Table, checkpoint: tuple[str, int] | None) -> _Compared:
        mark = None if checkpoint is None else table.checkpoint(checkpoint[1], region=checkpoint[0])
        taken = hold(spark, table, mark=mark, low=None, high=None)
        assert taken.lineage is not None and taken.mark is not None
        now_ms = table.store.clock.now_ms()
        return cls(spark, table.config(), taken, require_record(taken.lineage), taken.mark, now_ms)

    @property
    def positions(self) -> dict[str, int]:
        return self.record.positions_at(self.version)

    @property
    def side(self) -> Side:
        return Side(self.positions, self.record.cutoff)

    def groups(self, other: _Compared) -> list[tuple[set[str], dict[str, int]]]:
        """Merged rows do not name all events that they were made from, so the positions of their versions stand for
        them. The keys of segments in two groups, those whose positions ``other`` has read past and the rest, each with
        a vector that covers its versions: what it decides is what each of them would.

        A version below the floor counts as the floor, which is no less."""
        record = self.record
        versions = segment_versions(record, {one.entry_id for one in self.taken.segments})
        vectors = {at: record.positions_at(max(at, record.floor)) for at in set(versions.values())}
        found: list[tuple[set[str], dict[str, int]]] = []
        for is_read in (True, False):
            group = {at for at, vector in vectors.items() if covers(other.positions, vector) is is_read}
            keys = {one.key for one in self.taken.segments if versions[one.entry_id] in group}
            found.append((keys, merge(vectors[at] for at in group)))
        return found

    def rows(self, upsert: UpsertConfig, other: _Compared) -> DataFrame:
        """Key and newest row of each key; of a merged row also the number of its group."""
        schema = with_places(schema_of(self.taken))
        if not upsert.is_partial:
            rows = read_newest_rows(self.spark, self.taken, schema, self.config)
            return _side_rows(rows, upsert, F.lit(None).cast("int"))
        parts = [
            _side_rows(read_newest_rows(self.spark, self.taken.only(keys), schema, self.config), upsert, F.lit(number))
            for number, (keys, _) in enumerate(self.groups(other))
        ]
        return reduce(DataFrame.unionByName, parts)


def _check_comparable(a: TableConfig, b: TableConfig) -> UpsertConfig:
    """The upsert config, in which both must agree as far as it decides which row wins."""
    if a.upsert is None or b.upsert is None:
        raise InvalidConfigError(f"table {a.name!r} is no upsert table in both regions: there are no keys to compare")
    for name in ("mode", "primary_key", "comparison_column", "deletes", "regions"):
        mine, other = getattr(a.upsert, name), getattr(b.upsert, name)
        if mine != other:
            raise InvalidConfigError(
                f"tables {a.name!r} and {b.name!r} cannot be compared: {name} is {mine!r} here, {other!r} there"
            )
    return a.upsert


def _side_rows(rows: DataFrame, upsert: UpsertConfig, merged_in: Column) -> DataFrame:
    """See :meth:`_Compared.rows`. Hashes have 128 bits: two values of a billion share one with a chance of 10^-21."""
    columns = sorted(name for name in rows.columns if name not in SOURCE_COLUMNS)
    key = _json(upsert.primary_key)
    region = F.coalesce(F.col(quoted(REGION)), F.lit(upsert.regions[0]))
    deletes = F.lit(False) if upsert.deletes is None else F.coalesce(F.col(quoted(upsert.deletes)), F.lit(False))
    placed = rows.filter(F.col(quoted(PARTITION)).isNotNull() & (F.col(quoted(PARTITION)) != BULK_PARTITION))
    side = F.struct(
        F.unhex(F.md5(_json(columns))).alias("value"),
        _comparison(rows.schema, upsert.comparison_column).alias("time"),
        F.array_position(F.array(*map(F.lit, upsert.regions)), region).cast("int").alias("region"),
        F.col(quoted(PARTITION)).cast("int").alias("partition"),
        F.col(quoted(OFFSET)).cast("bigint").alias("offset"),
        deletes.alias("is_delete"),
        merged_in.alias("merged_in"),
    )
    return placed.select(key.alias("key"), side.alias("side"))


def _json(columns: Iterable[str]) -> Column:
    """The columns as JSON text, nulls too: what is equal in both regions has the same text."""
    return F.to_json(F.struct(*(F.col(quoted(name)) for name in columns)), {"ignoreNullFields": "false"})


def _comparison(schema: StructType, name: str) -> Column:
    """The comparison column as a number, as ingestion has it: microseconds for times, days for dates."""
    match schema[name].dataType:
        case TimestampType():
            return F.unix_micros(F.col(quoted(name)))
        case TimestampNTZType():
            return F.expr(f"timestampdiff(MICROSECOND, timestamp_ntz'1970-01-01', {quoted(name)})")
        case DateType():
            return F.unix_date(F.col(quoted(name))).cast("bigint")
    return F.col(quoted(name)).cast("bigint")


def _judged(a: _Compared, b: _Compared, upsert: UpsertConfig) -> DataFrame:
    """The keys that differ, with what :func:`.leapfrog.judge` says of each."""
    # A number of our own: a Python worker for each of Spark's 200 partitions costs more than a small comparison. Spark
    # takes a smaller number than its default for no join, so the join's partitions are put together.
    tasks = max(a.spark.sparkContext.defaultParallelism, max(a.taken.rows, b.taken.rows) // ROWS_A_TASK + 1)
    rows_a = a.rows(upsert, b).withColumnRenamed("side", "a").repartition(tasks, "key")
    rows_b = b.rows(upsert, a).withColumnRenamed("side", "b").repartition(tasks, "key")
    differing = rows_a.join(rows_b, "key", "full_outer").filter(~F.col("a.value").eqNullSafe(F.col("b.value")))
    merged = ([], []) if not upsert.is_partial else ([v for _, v in a.groups(b)], [v for _, v in b.groups(a)])
    task = _judging(upsert.regions, (a.side, b.side), merged)
    return differing.select("key", "a", "b").coalesce(tasks).mapInArrow(task, _FINDING)


def _judging(
    regions: Sequence[str], sides: tuple[Side, Side], merged: tuple[Sequence[Vector], Sequence[Vector]]
) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """The task that judges keys. ``merged`` are the vectors of each side's groups of merged rows."""
    schema = to_arrow_schema(_ddl(_FINDING))

    def row_of(found: dict[str, Any] | None, groups: Sequence[Vector]) -> LastRow | None:
        if found is None:
            return None
        order = (found["time"], found["region"], found["partition"], found["offset"])
        own: Vector = {f"{regions[found['region'] - 1]}/{found['partition']}": found["offset"] + 1}
        made_from = own if found["merged_in"] is None else groups[found["merged_in"]]
        return LastRow(found["value"], order, found["is_delete"], made_from)

    def place(found: dict[str, Any] | None, side: str) -> dict[str, Any]:
        if found is None:
            return {}
        numbers = {f"{name}_{side}": found[name] for name in ("time", "partition", "offset")}
        return {**numbers, f"region_{side}": regions[found["region"] - 1]}

    def task(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for key, a, b in zip(*(batch.column(name).to_pylist() for name in ("key", "a", "b")), strict=True):
                last_a, last_b = row_of(a, merged[0]), row_of(b, merged[1])
                kind = judge(last_a, last_b, *sides)
                if kind is not None:
                    winner = expected_winner(last_a, last_b)
                    rows.append({"kind": str(kind), "key": key, "winner": winner, **place(a, "a"), **place(b, "b")})
            yield pyarrow.RecordBatch.from_pylist(rows, schema=schema)

    return task


def _ddl(text: str) -> StructType:
    schema = StructType.fromDDL(text)
    assert isinstance(schema, StructType)
    return schema


def _new_differences(
    spark: SparkSession, findings: Table | None, found: Mapping[str, DigestDifference]
) -> dict[str, DigestDifference]:
    """The differences that were not reported yet. An event that was lost once stays lost, and its difference the same:
    it is told once, and the next one again."""
    told: dict[str, str] = {}
    if findings is not None and found and len(findings.snapshot()):
        rows = read_table(spark, findings.store, findings.name).filter(F.col("kind") == Kind.DIGEST)
        told = {row["key"]: row["difference"] for row in rows.orderBy("found_ms").collect()}
    return {source: one for source, one in found.items() if one.difference != told.get(source)}


def _digest_rows(spark: SparkSession, digests: Mapping[str, DigestDifference]) -> DataFrame:
    """A finding for each source partition whose digests differ, with the time of the heartbeat that shows it."""
    schema = _ddl(_FINDING)
    empty = dict.fromkeys(schema.names)
    rows = [
        {
            **empty,
            "kind": str(Kind.DIGEST),
            "key": source,
            "time_a": one.heartbeat.time_ms,
            "difference": one.difference,
        }
        for source, one in digests.items()
    ]
    return spark.createDataFrame([tuple(row.values()) for row in rows], schema)


def _with_run(rows: DataFrame, a: _Compared, b: _Compared) -> DataFrame:
    """The findings with when they were found, and at which versions."""
    found_ms = F.lit(a.found_ms).cast("bigint").alias("found_ms")
    versions = (F.lit(one.version).cast("bigint").alias(name) for one, name in ((a, "version_a"), (b, "version_b")))
    return rows.select(found_ms, *versions, "*")


def open_findings(spark: SparkSession, findings: Table) -> DataFrame | None:
    """The newest finding of each key, as far as it was not healed since; ``None`` when nothing was ever found."""
    if not len(findings.snapshot()):
        return None
    newest = Window.partitionBy("key").orderBy(F.col("found_ms").desc())
    rows = read_table(spark, findings.store, findings.name).filter(F.col("kind") != Kind.DIGEST)
    last = rows.withColumn("place", F.row_number().over(newest)).filter("place = 1").drop("place")
    return last.filter(F.col("kind") != Kind.HEALED)


def _healed(before: DataFrame, judged: DataFrame) -> DataFrame:
    """A finding for each key that was found before, and of which there is nothing to say now."""
    healed = before.join(judged.select("key"), "key", "left_anti").withColumn("kind", F.lit(str(Kind.HEALED)))
    return healed.select(*_ddl(_FINDING).names)


def findings_table(store: SegmentStore, name: str) -> Table:
    """The table of findings, made if it is not there."""
    if name not in store.tables():
        store.apply_config(TableConfig.from_json({"tableName": name}))
    return store.table(name)


def _push(spark: SparkSession, findings: Table, rows: DataFrame) -> str:
    """Push the rows of one comparison; returns the entry's id. A push that fails is aborted."""
    entry_id = findings.start(()).entry_id
    try:
        build_segments(spark, findings, entry_id, rows)
        findings.end(entry_id)
    except SegmentsError:
        findings.abort(entry_id)
        raise
    return entry_id


def main(argv: Sequence[str] | None = None) -> int:
    """The application for ``spark-submit``. Returns the exit code: 1 also for what ``--fail-on`` names."""
    arguments = _parser().parse_args(argv)

    def work(spark: SparkSession, table: Table) -> int:
        checkpoint = None if arguments.checkpoint is None else (arguments.region, parse_time(arguments.checkpoint))
        findings = findings_table(table.store, arguments.findings)
        with connect(arguments.other_zk_hosts, arguments.other_storage_uri, arguments.other_cluster) as store:
            other = store.table(arguments.other_table or table.name)
            done = compare_regions(spark, table, other, findings, checkpoint=checkpoint)
        where = name_of_other(arguments.other_zk_hosts, arguments.other_cluster, other.name)
        keep_comparison(table.store.cluster, table.name, done.record(where, findings.name))
        if {"any": done.has_diverged, "new": done.new > 0, "never": False}[arguments.fail_on]:
            raise RegionsDivergedError(
                f"table {table.name!r} differs from {where}: {json.dumps(done.counts)}, of which {done.new} are new; "
                f"they are in table {findings.name!r}" + (f", entry {done.entry_id}" if done.entry_id else "")
            )
        return 0

    return application.run("segments-compare-regions", arguments, work)


def _parser() -> application.Parser:
    parser = application.parser("compare_regions.py", "Compare an upsert table with the one of another region.")
    parser.add_argument("--other-zk-hosts", required=True, help="ZooKeeper of the other region")
    parser.add_argument("--other-cluster", default=DEFAULT_CLUSTER)
    parser.add_argument("--other-storage-uri", required=True, help="storage of the other region")
    parser.add_argument("--other-table", help="the table's name there, if it is another one")
    parser.add_argument("--findings", required=True, help="the table that findings are pushed into; made if needed")
    parser.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default=FAIL_ON[0],
        help="fail when the regions have diverged, only when something was found that was not before, or never",
    )
    parser.add_argument("--checkpoint", help="compare at this time, ISO 8601; by default the newest versions")
    parser.add_argument("--region", help="the region whose checkpoint that is")
    return parser
