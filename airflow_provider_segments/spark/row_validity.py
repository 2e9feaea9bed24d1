"""Which rows of an upsert table's files Spark's own reader gives: those that are valid at the snapshot's mark.

Files without dead rows are read as those of any table. The bitmaps of the others are one array, a constant of a query.
A row finds its bit by what Spark's reader tells of it: its file's name and its number there. The name is hashed to a
slot, and the slot has the place of the file's first word. Files whose slots meet are read in scans of their own.
Push-down, pruning and the vectorised reader are kept; a join with the bitmaps costs several times more a row.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import numpy
import pyarrow
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit
from pyspark.sql.types import StructType

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.core.upsert.view import segment_versions
from airflow_provider_segments.spark.times import quoted
from airflow_provider_segments.upsert.columns import SOURCE_COLUMNS, VALID_FROM, VALID_UNTIL
from airflow_provider_segments.upsert.events import Column
from airflow_provider_segments.upsert.reading import read_ends, require_mark
from airflow_provider_segments.upsert.validity import NEVER

_FILE, _ROW = "__segments_file", "__segments_row"
_MOST_SLOTS = 1 << 18  # 2 MiB; among 10,000 files some 200 meet, and are read in a second scan
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
    whole = [segment for segment in snapshot.segments if segment.name not in dead]
    parts = [read(snapshot.only([segment.key for segment in whole]))] if whole else []
    if dead:
        cut = [segment for segment in snapshot.segments if segment.name in dead]
        slots = min(256 * len(cut), _MOST_SLOTS)
        for by_slot in _told_apart(cut, slots):
            rows = read(snapshot.only([segment.key for segment in by_slot.values()]))
            parts.append(rows.filter(_is_alive(spark, _words(by_slot, slots, dead), slots)))
    rows = reduce(DataFrame.union, parts)
    if config.deletes is not None and config.deletes in rows.columns:
        rows = rows.filter(~F.coalesce(F.col(quoted(config.deletes)), F.lit(False)))
    return rows


def _told_apart(segments: Sequence[Segment], slots: int) -> list[dict[int, Segment]]:
    """The segments by slot, in groups, nearly always one, in which no two have the same."""
    groups: list[dict[int, Segment]] = []
    for segment in segments:
        slot = zlib.crc32(segment.key.rpartition("/")[2].encode()) % slots  # as Spark computes it in _is_alive
        group = next((some for some in groups if slot not in some), None)
        if group is None:
            groups.append(group := {})
        group[slot] = segment
    return groups


def _words(by_slot: Mapping[int, Segment], slots: int, dead: Mapping[str, bytes]) -> Column:
    """In each slot the place of its file's first word, then the words: a bit a row, the lowest for the first."""
    bitmaps = [_bitmap(dead[segment.name], segment.rows) for segment in by_slot.values()]
    places = numpy.zeros(slots, numpy.int64)
    places[[*by_slot]] = slots + numpy.cumsum([0, *map(len, bitmaps)])[:-1]
    return numpy.concatenate([places, *bitmaps])


def _is_alive(spark: SparkSession, words: Column, slots: int) -> SparkColumn:
    """Whether a row's bit in ``words`` is not set."""
    array = pyarrow.ListArray.from_arrays([0, len(words)], words)
    of_query = spark.createDataFrame(pyarrow.table({"words": array})).scalar()
    first = F.get(of_query, F.pmod(F.crc32("_metadata.file_name"), F.lit(slots)).cast("int"))
    word = F.get(of_query, (first + F.shiftright("_metadata.row_index", 6)).cast("int"))
    bit = F.call_function("shiftright", word, F.col("_metadata.row_index").bitwiseAND(63).cast("int")).bitwiseAND(1)
    return bit == 0


def _bitmap(dead: bytes, rows: int) -> Column:
    """Row numbers of a file of ``rows`` as a bitmap of 64-bit words."""
    bits = numpy.zeros(-(-rows // 64) * 64, bool)
    bits[numpy.frombuffer(dead, numpy.int64)] = True
    return numpy.packbits(bits, bitorder="little").view("<i8")
