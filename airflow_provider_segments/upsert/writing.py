"""Segments and update logs of a version, as objects of its push."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet

from airflow_provider_segments.arrow.statistics import ColumnStatistics
from airflow_provider_segments.arrow.times import arrow_times
from airflow_provider_segments.arrow.writing import ROW_GROUP_ROWS, SPARK_SCHEMA_KEY, encodings_of, in_utc
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import Granularity
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.names import check_segment_name, entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.upsert.events import Column

_ALL = "ALL"


@dataclass(frozen=True, slots=True)
class WrittenSegment:
    """A segment that was written, and which of the given rows it has, in its order."""

    segment: StagedSegment
    rows: Column


@dataclass(slots=True)
class SegmentWriter:
    """Writes what one stage attempt brings. ``folder`` is a local one for files before their upload; ``spark_schema``
    is kept in the footers, if there is one."""

    config: TableConfig
    ticket: StageTicket
    storage: ObjectStore = field(repr=False)
    folder: Path
    spark_schema: str | None = None
    written: int = 0

    def segments(self, rows: pyarrow.Table, key_partition: int) -> Iterator[WrittenSegment]:
        """Write ``rows`` of one key partition: a segment a time chunk, or several where it has too many rows."""
        rows = in_utc(rows)
        times = self._times(rows)
        for chunk, chosen in self._by_chunk(times, rows.num_rows):
            ordered = chosen[self._order(rows.take(pyarrow.array(chosen)))]
            for first in range(0, len(ordered), self.config.target_rows):
                taken = ordered[first : first + self.config.target_rows]
                yield WrittenSegment(self._segment(rows, times, taken, chunk, key_partition), taken)

    def update_log(self, log: pyarrow.Table, suffix: str = "") -> StagedSegment:
        """Write an update log."""
        name = self._name(f"updates{suffix}")
        path = self.folder / f"{name}.{self.ticket.attempt}.parquet"
        in_order = {"row": "DELTA_BINARY_PACKED"}
        pyarrow.parquet.write_table(log, path, compression="zstd", use_dictionary=["segment"], column_encoding=in_order)
        record = SegmentRecord(name, path.name, log.num_rows, 0, 0, is_update_log=True)
        return StagedSegment(_ALL, self._uploaded(path, record))

    def _segment(
        self, rows: pyarrow.Table, times: Column | None, taken: Column, chunk: str, key_partition: int
    ) -> StagedSegment:
        name = self._name(f"{chunk}_k{key_partition:03d}_{self.written:05d}")
        self.written += 1
        path = self.folder / f"{name}.{self.ticket.attempt}.parquet"
        data = rows.take(pyarrow.array(taken)).combine_chunks()
        columns = [data.column(index).chunk(0) for index in range(data.num_columns)]
        order = numpy.arange(len(taken))
        dictionaries, encodings = encodings_of(data.schema, columns, order)
        pyarrow.parquet.write_table(
            data.replace_schema_metadata(self._footer(name)),
            path,
            compression="NONE" if self.config.compression == "none" else self.config.compression,
            write_statistics=[one.name for one in data.schema if not _misleads(one.type)],
            write_page_index=True,
            use_dictionary=dictionaries,
            column_encoding=encodings or None,
            row_group_size=ROW_GROUP_ROWS,
        )
        low, high = (None, None) if times is None else (int(times[taken].min()), int(times[taken].max()))
        found = self._statistics(data)
        record = SegmentRecord(name, path.name, len(taken), 0, 0, low, high, found or None, key_partition=key_partition)
        return StagedSegment(chunk, self._uploaded(path, record))

    def _uploaded(self, path: Path, record: SegmentRecord) -> SegmentRecord:
        payload = path.read_bytes()
        owner = owner_metadata(self.config.name, record.name, self.ticket.generation)
        self.storage.put_file(path, self.ticket.prefix + record.file, owner=owner, consume=True)
        path.unlink(missing_ok=True)
        return msgspec.structs.replace(record, bytes=len(payload), crc32=zlib.crc32(payload))

    def _statistics(self, data: pyarrow.Table) -> dict[str, list[object]]:
        names = [name for name in self.config.statistics_columns if name in data.column_names]
        found = {}
        for name in names:
            statistics = ColumnStatistics()
            statistics.add(data.column(name).chunk(0))
            found[name] = statistics.as_list()
        return found

    def _times(self, rows: pyarrow.Table) -> Column | None:
        """The time column in epoch milliseconds. Raises :class:`SourceDataError`."""
        name = self.config.time_column
        if name is None:
            return None
        times = arrow_times(rows.column(name), self.config.time_format)
        if times is None:
            raise SourceDataError(
                f"table {self.config.name!r}: column {name!r} of type {rows.column(name).type} has no times that are "
                f"read as {self.config.time_format}"
            )
        values: Column = times.to_numpy()
        return values

    def _by_chunk(self, times: Column | None, rows: int) -> Iterator[tuple[str, Column]]:
        granularity = self.config.granularity
        if times is None or granularity is Granularity.ALL:
            yield _ALL, numpy.arange(rows)
            return
        values, codes = numpy.unique(times, return_inverse=True)
        names = [granularity.chunk_name(value) for value in values.tolist()]
        of_row = numpy.array(names)[codes]
        for chunk in dict.fromkeys(names):
            yield chunk, numpy.flatnonzero(of_row == chunk)

    def _order(self, rows: pyarrow.Table) -> Column:
        wanted = [(name, "ascending") for name in self.config.sort_columns if name in rows.column_names]
        if not wanted:
            return numpy.arange(rows.num_rows)
        order: Column = pyarrow.compute.sort_indices(rows, sort_keys=wanted).to_numpy()
        return order

    def _name(self, rest: str) -> str:
        tag = entry_tag(self.ticket.entry_id)
        return check_segment_name(f"{self.config.name}_{tag}_{self.ticket.stager}{self.ticket.attempt}_{rest}")

    def _footer(self, name: str) -> dict[bytes, bytes]:
        owner = owner_metadata(self.config.name, name, self.ticket.generation)
        footer = {f"segments.{key}".encode(): value.encode() for key, value in owner.items()}
        return footer if self.spark_schema is None else footer | {SPARK_SCHEMA_KEY: self.spark_schema.encode()}


def names_of(segments: Sequence[StagedSegment]) -> list[str]:
    """Names of staged segments."""
    return [one.record.name for one in segments]


def _misleads(kind: pyarrow.DataType) -> bool:
    """Whether minimum and maximum in a footer could mislead a reader: NaN is left out of them, and nested columns."""
    return bool(pyarrow.types.is_floating(kind) or pyarrow.types.is_nested(kind))
