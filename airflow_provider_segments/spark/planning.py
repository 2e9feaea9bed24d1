"""Which row goes to which task, so that no task holds more rows than one segment may have.

One pass over the time and sort columns counts the rows of every time chunk and samples the first sort column where a
chunk may have to be split. Small chunks share a task; a chunk above the target is cut into ranges of the first sort
column, equal in rows but for the sampling error, so that its segments do not overlap in it. Ties are broken by a hash
of the other known columns, so that one frequent value does not make one huge range.

The plan decides about balance and speed only. What a segment holds, and that it never exceeds the target, is decided
by the writer from the rows it really gets.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow
import pyarrow.compute
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from airflow_provider_segments.spark.times import quoted

_SAMPLES = 2_000  # of the sort column, a segment: about 2 % error in its size
_MOST_SAMPLED = 0.1
_TASKS_PER_CORE = 4  # so that no core waits long for the last one
_SMALLEST_TASK = 20_000  # rows; below, starting a task costs more than its work

_CHUNK, _VALUE, _HASH, _SAMPLED, _COUNT = "chunk", "value", "hash", "sampled", "count"
_SAMPLED_FLAG = "__segments_sampled"


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Where one chunk's rows go: to ``ways`` partitions from ``first`` on, split at the ``(value, hash)`` ``bounds``.

    Without bounds, the rows of a chunk with several ways are spread by the hash alone.
    """

    start_ms: int
    rows: int
    first: int
    ways: int = 1
    bounds: tuple[tuple[Any, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Partitions ``0`` to ``partitions - 1``, and the chunks in them in order of time."""

    partitions: int
    chunks: tuple[ChunkPlan, ...]

    @property
    def rows(self) -> int:
        """Rows that were counted."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def slices(self) -> dict[int, int]:
        """For each partition that holds one slice of a chunk: the slice's number."""
        return {chunk.first + way: way for chunk in self.chunks if chunk.ways > 1 for way in range(chunk.ways)}


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows by chunk, rows without a usable time, and the sample: ``chunk``, ``value``, ``hash``, ``count``."""

    rows: dict[int, int]
    bad: int
    sample: pyarrow.Table


@dataclass(frozen=True, slots=True)
class Keys:
    """What rows are planned by: ``chunk`` (null without a usable time), ``value`` and ``tie`` (``None`` when the table
    has neither sort columns nor a time), and ``spread``, a hash of everything that can be hashed."""

    chunk: Column
    value: Column | None
    value_type: DataType
    tie: Column
    spread: Column


def sort_value(column: Column, kind: DataType) -> tuple[Column, DataType]:
    """``column`` in a form with the same order that can go to the driver and back: Python's naive times cannot."""
    if isinstance(kind, TimestampType):
        return F.unix_micros(column), LongType()
    if isinstance(kind, TimestampNTZType):
        since_epoch = column - F.expr("timestamp_ntz'1970-01-01 00:00:00'")
        return F.floor(since_epoch.cast("decimal(20,6)") * 1_000_000).cast("bigint"), LongType()
    return column, kind


def count(source: DataFrame, keys: Keys, target_rows: int) -> Counted:
    """The counting pass: a plain hash aggregation, with every sampled row as a group of its own."""
    fraction = min(_MOST_SAMPLED, _SAMPLES / target_rows) if keys.value is not None else 0.0
    value = F.lit(None).cast("int") if keys.value is None else keys.value
    flagged = source.withColumn(_SAMPLED_FLAG, (F.rand(42) < fraction) if fraction else F.lit(False))
    sampled = F.col(_SAMPLED_FLAG)
    groups = (
        flagged.select(
            keys.chunk.alias(_CHUNK),
            sampled.alias(_SAMPLED),
            F.when(sampled, value).alias(_VALUE),
            F.when(sampled, keys.tie).alias(_HASH),
        )
        .groupBy(_CHUNK, _SAMPLED, _VALUE, _HASH)
        .agg(F.count(F.lit(1)).alias(_COUNT))
    )
    found = groups.toArrow()
    totals = found.group_by(_CHUNK).aggregate([(_COUNT, "sum")]).to_pydict()
    rows = dict(zip(totals[_CHUNK], totals[f"{_COUNT}_sum"], strict=True))
    bad = rows.pop(None, 0)
    return Counted(rows, bad, found.filter(found[_SAMPLED]).drop_columns([_SAMPLED]))


def make_plan(counted: Counted, target_rows: int, parallelism: int) -> Plan:
    """Partitions for the counted rows: whole small chunks packed together, large chunks in slices."""
    total = sum(counted.rows.values())
    capacity = min(target_rows, max(math.ceil(total / (_TASKS_PER_CORE * parallelism)), _SMALLEST_TASK))
    fill = _fill(target_rows)
    chunks: list[ChunkPlan] = []
    partition, held = 0, 0
    for start in sorted(counted.rows):
        rows = counted.rows[start]
        if held and held + rows > capacity:
            partition, held = partition + 1, 0
        if rows <= target_rows:
            chunks.append(ChunkPlan(start, rows, partition))
            held += rows
            continue
        ways = math.ceil(rows / (target_rows * fill))
        chunks.append(ChunkPlan(start, rows, partition, ways, _bounds(counted.sample, start, ways)))
        partition, held = partition + ways, 0
    return Plan(max(1, partition + (held > 0)), tuple(chunks))


def partition_column(spark: SparkSession, source: DataFrame, plan: Plan, keys: Keys, name: str) -> DataFrame:
    """``source`` with the column ``name``: the partition of each row.

    Rows of a chunk that was not there at the count go to partition 0; the writer sorts them out. The partition depends
    on nothing but the row, so a task that Spark runs again sends every row where the first one did.
    """
    chunk = f"{name}_chunk"
    if not plan.chunks or (len(plan.chunks) == 1 and plan.chunks[0].ways == 1):
        return source.withColumn(name, F.lit(0))
    split = any(chunk_plan.ways > 1 for chunk_plan in plan.chunks)
    depth = _depth(plan)
    lookup = F.broadcast(_lookup(spark, plan, keys, name))
    before = source.columns
    wide = source.withColumn(chunk, keys.chunk)
    if split:
        tie = keys.tie if keys.value is not None else keys.spread
        value = F.lit(None).cast("int") if keys.value is None else keys.value
        wide = wide.withColumns({f"{name}_value": value, f"{name}_tie": tie})
    wide = wide.join(lookup, wide[chunk] == lookup[f"{name}_start"], "left")
    offset: Column = F.lit(0)
    if split:
        wide = wide.withColumn(f"{name}_low", F.lit(0))
        for power in range(depth - 1, -1, -1):
            wide = wide.withColumn(f"{name}_low", _search_step(name, 1 << power))
        spread = F.pmod(F.col(f"{name}_tie"), F.col(f"{name}_ways").cast("bigint")).cast("int")
        offset = F.when(F.col(f"{name}_ways") == 1, 0).when(F.col(f"{name}_bounds") == 0, spread)
        offset = offset.otherwise(F.col(f"{name}_low"))
    target = F.coalesce(F.col(f"{name}_first") + offset, F.lit(0)).cast("int")
    return wide.select(*(F.col(quoted(column)) for column in before), target.alias(name))


def _search_step(name: str, step: int) -> Column:
    """One halving of a binary search for the number of bounds at or below the row; null counts as greatest."""
    at = F.col(f"{name}_low") + step
    value, tie = F.col(f"{name}_value"), F.col(f"{name}_tie")
    bound, bound_tie = F.get(F.col(f"{name}_at"), at - 1), F.get(F.col(f"{name}_tie_at"), at - 1)
    below = F.coalesce(bound < value, value.isNull() & bound.isNotNull())
    below |= value.eqNullSafe(bound) & (bound_tie <= tie)
    return F.when((at <= F.col(f"{name}_bounds")) & below, at).otherwise(F.col(f"{name}_low"))


def _lookup(spark: SparkSession, plan: Plan, keys: Keys, name: str) -> DataFrame:
    schema = StructType(
        [
            StructField(f"{name}_start", LongType(), False),
            StructField(f"{name}_first", IntegerType(), False),
            StructField(f"{name}_ways", IntegerType(), False),
            StructField(f"{name}_bounds", IntegerType(), False),
            StructField(f"{name}_at", ArrayType(keys.value_type), False),
            StructField(f"{name}_tie_at", ArrayType(LongType()), False),
        ]
    )
    rows = [
        (
            chunk.start_ms,
            chunk.first,
            chunk.ways,
            len(chunk.bounds),
            [value for value, _ in chunk.bounds],
            [tie for _, tie in chunk.bounds],
        )
        for chunk in plan.chunks
    ]
    return spark.createDataFrame(rows, schema)


def _depth(plan: Plan) -> int:
    """Halvings that a search in the longest list of bounds takes."""
    return max((len(chunk.bounds) for chunk in plan.chunks), default=0).bit_length()


def _bounds(sample: pyarrow.Table, start: int, ways: int) -> tuple[tuple[Any, int], ...]:
    """The sample's quantiles: the first element of every slice but the first. Values ascend, NaN and null come last."""
    if sample.num_rows == 0:
        return ()
    mine = sample.filter(pyarrow.compute.equal(sample[_CHUNK], start))
    if mine.num_rows < 2 * ways:  # hardly anything to go by
        return ()
    keys = [(_VALUE, "ascending"), (_HASH, "ascending")]
    mine = mine.take(pyarrow.compute.sort_indices(mine, sort_keys=keys))
    weights = pyarrow.compute.cumulative_sum(mine[_COUNT]).to_pylist()
    cuts = [_first_at(weights, way * weights[-1] / ways) for way in range(1, ways)]
    picked = mine.take(cuts)
    return tuple(zip(picked[_VALUE].to_pylist(), picked[_HASH].to_pylist(), strict=True))


def _first_at(cumulated: Sequence[int], share: float) -> int:
    return min(bisect_left(cumulated, share), len(cumulated) - 1)


def _fill(target_rows: int) -> float:
    """How full a slice is planned, so that sampling error (three sigma) seldom makes it overflow."""
    sampled = target_rows * min(_MOST_SAMPLED, _SAMPLES / target_rows)
    return max(0.5, 1 - 3 / math.sqrt(max(sampled, 1)))
