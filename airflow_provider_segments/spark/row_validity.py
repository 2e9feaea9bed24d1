"""Which rows of an upsert table's files Spark's own reader gives: those that are valid at the snapshot's mark.

Files without dead rows are read as those of any table. Of the others a bitmap a file is broadcast and joined by the
file's name; a row's number in its file, which Spark's reader tells, picks its bit. Push-down, pruning and the
vectorised reader are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import numpy
import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import StructType

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.core.upsert.view import segment_versions
from airflow_provider_segments.spark.times import quoted
from airflow_provider_segments.upsert.columns import SOURCE_COLUMNS, VALID_FROM, VALID_UNTIL
from airflow_provider_segments.upsert.reading import read_ends, require_mark
from airflow_provider_segments.upsert.validity import NEVER

_FILE, _ROW, _WORDS = "__segments_file", "__segments_row", "__segments_dead"
_WORD_LISTS = pyarrow.list_(pyarrow.int64())
_FROM, _UNTIL = "__segments_from", "__segments_until"


def visible_schema(schema: StructType, config: TableConfig) -> StructType:
    """The schema less the columns that say where in its input a row was."""
    if config.upsert is None:
        return schema
    return StructType([field for field in schema.fields if field.name not in SOURCE_COLUMNS])


def dead_rows(snapshot: Snapshot) -> dict[str, bytes]:
    """By segment, the numbers of the rows that are not valid at the snapshot's mark (64-bit, ascending); nothing for a
    table that is no upsert table."""
    if snapshot.mark is None:
        return {}
    mark, wanted = snapshot.mark, set(snapshot.names)
    found = {name: ends.dead_rows(mark).tobytes() for name, ends in read_ends(snapshot).items() if name in wanted}
    return {name: rows for name, rows in found.items() if rows}


def rows_with_validity(spark: SparkSession, rows: DataFrame, snapshot: Snapshot) -> DataFrame:
    """All rows, which Spark's Parquet reader gives for the snapshot's files, with ``$validFrom`` and ``$validUntil`` as
    its mark knows them; both are null for a row that is never visible. Raises :class:`SnapshotRefusedError`
    (``no-mark``)."""
    mark = require_mark(snapshot)
    assert snapshot.lineage is not None
    segments = snapshot.segments
    files = {segment.name: segment.key.rpartition("/")[2] for segment in segments}
    versions = segment_versions(require_record(snapshot.lineage), {one.entry_id for one in segments})
    begins = pyarrow.table(
        {_FILE: [*files.values()], _FROM: pyarrow.array([versions[one.entry_id] for one in segments], pyarrow.int64())}
    )
    dead = {name: ends for name, ends in read_ends(snapshot).items() if name in files}
    ends = pyarrow.table(
        {
            _FILE: pyarrow.array([files[name] for name, ends in dead.items() for _ in ends.rows], pyarrow.string()),
            _ROW: numpy.concatenate([numpy.empty(0, numpy.int64), *(ends.rows for ends in dead.values())]),
            _UNTIL: numpy.concatenate([numpy.empty(0, numpy.int64), *(ends.until for ends in dead.values())]),
        }
    )
    columns = [F.col(quoted(name)) for name in rows.columns]
    told = rows.select("*", F.col("_metadata.file_name").alias(_FILE), F.col("_metadata.row_index").alias(_ROW))
    joined = told.join(F.broadcast(spark.createDataFrame(begins)), _FILE).join(
        spark.createDataFrame(ends), [_FILE, _ROW], "left"
    )
    until = F.col(_UNTIL)
    return joined.select(
        *columns,
        F.when(until.isNull() | (until != NEVER), F.col(_FROM)).alias(VALID_FROM),
        F.when((until != NEVER) & (until <= mark), until).alias(VALID_UNTIL),
    )


def valid_rows(
    spark: SparkSession, snapshot: Snapshot, config: UpsertConfig, read: Callable[[Snapshot], DataFrame]
) -> DataFrame:
    """The rows of the snapshot's files, as ``read`` gives them by Spark's Parquet reader, that are valid at its mark.
    Raises :class:`SnapshotRefusedError` (``no-mark``)."""
    require_mark(snapshot)
    dead = dead_rows(snapshot)
    whole = [segment.key for segment in snapshot.segments if segment.name not in dead]
    parts = [read(snapshot.only(whole))] if whole else []
    if dead:
        cut = [segment.key for segment in snapshot.segments if segment.name in dead]
        parts.append(_alive(spark, snapshot.only(cut), dead, read))
    rows = reduce(DataFrame.union, parts)
    if config.deletes is not None and config.deletes in rows.columns:
        rows = rows.filter(~F.coalesce(F.col(quoted(config.deletes)), F.lit(False)))
    return rows


def _alive(
    spark: SparkSession, cut: Snapshot, dead: Mapping[str, bytes], read: Callable[[Snapshot], DataFrame]
) -> DataFrame:
    """The rows of files of which some rows are ``dead``, less those."""
    rows = read(cut)
    bitmaps = pyarrow.table(
        {
            _FILE: [segment.key.rpartition("/")[2] for segment in cut.segments],
            _WORDS: pyarrow.array([_words(dead[segment.name]) for segment in cut.segments], _WORD_LISTS),
        }
    )
    told = rows.select("*", F.col("_metadata.file_name").alias(_FILE), F.col("_metadata.row_index").alias(_ROW))
    joined = told.join(F.broadcast(spark.createDataFrame(bitmaps)), _FILE)
    # A row behind a short bitmap gives null: it is alive.
    bit = f"shiftright(get({_WORDS}, cast({_ROW} >> 6 as int)), cast({_ROW} & 63 as int)) & 1L"
    return joined.filter(F.expr(f"coalesce({bit}, 0L) = 0L")).select(*(F.col(quoted(name)) for name in rows.columns))


def _words(dead: bytes) -> list[int]:
    """Row numbers as a bitmap of 64-bit words, the first row being the lowest bit of the first."""
    rows = numpy.frombuffer(dead, numpy.int64)
    bits = numpy.zeros((int(rows[-1]) // 64 + 1) * 64, bool)
    bits[rows] = True
    words: list[int] = numpy.packbits(bits, bitorder="little").view("<i8").tolist()
    return words
