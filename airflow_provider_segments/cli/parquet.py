"""Staging Parquet files that were made elsewhere: they are uploaded as they are, and described from their footers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import Granularity, parse_chunk, to_ms
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.names import check_segment_name, entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.exceptions import InvalidConfigError, SourceDataError
from airflow_provider_segments.text import count

if TYPE_CHECKING:
    from airflow_provider_segments.core.replacement.stage import StagedPush, StageTicket
    from airflow_provider_segments.core.table import Table

_EPOCH_UNITS = {"EPOCH_SECONDS": (1000, 1), "EPOCH_MILLIS": (1, 1), "EPOCH_MICROS": (1, 1000)}


@dataclass(frozen=True, slots=True)
class _Described:
    """A file before its upload. Times are in milliseconds, both ends inclusive."""

    path: Path
    chunk: str
    rows: int
    bytes: int
    crc32: int
    min_time_ms: int | None
    max_time_ms: int | None


def stage_files(
    table: Table, entry_id: str, paths: Sequence[Path], *, stager: str, chunk: str | None = None
) -> tuple[StagedPush, list[StagedSegment]]:
    """Upload ``paths`` and stage them into the entry, each as one segment, all of them or none.

    All files are looked at before the attempt is opened, so that a bad one leaves nothing behind. Raises
    :class:`SourceDataError` for a file that cannot become a segment, and what ``open_stage``, ``put_file`` and
    ``stage`` raise.
    """
    config = table.config()
    described = [_describe(path, config, chunk) for path in paths]
    ticket = table.open_stage(entry_id, stager)
    segments = list(_upload(table, ticket, described))
    return table.stage(ticket, segments), segments


def _upload(table: Table, ticket: StageTicket, described: Sequence[_Described]) -> Iterator[StagedSegment]:
    for number, one in enumerate(described):
        tag = entry_tag(ticket.entry_id)
        name = check_segment_name(f"{table.name}_{one.chunk}_{tag}_{ticket.stager}_{number:05d}")
        file = f"{name}.{ticket.attempt}.parquet"
        owner = owner_metadata(table.name, name, ticket.generation)
        stored = table.storage.put_file(one.path, ticket.prefix + file, owner=owner)
        if stored.bytes != one.bytes:
            raise SourceDataError(f"{one.path} changed while it was uploaded: stage finished files only")
        record = SegmentRecord(name, file, one.rows, one.bytes, one.crc32, one.min_time_ms, one.max_time_ms)
        yield StagedSegment(one.chunk, record)


def _describe(path: Path, config: TableConfig, chunk: str | None) -> _Described:
    footer = _footer(path)
    if footer.num_rows == 0:
        raise SourceDataError(f"{path} has no rows")
    low, high = _times(path, footer, config) if config.time_column is not None else (None, None)
    found = chunk if chunk is not None else _chunk(path, config, low, high)
    interval = parse_chunk(found)
    if low is not None and high is not None and not interval.start_ms <= low <= high < interval.end_ms:
        raise SourceDataError(f"{path} has times outside of the chunk {found}")
    crc, size = _checksum(path)
    return _Described(path, found, footer.num_rows, size, crc, low, high)


def _footer(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidConfigError("staging Parquet files needs pyarrow: install it") from error
    try:
        return pyarrow.parquet.read_metadata(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise SourceDataError(f"{path} is not a readable Parquet file: {error}") from error


def _chunk(path: Path, config: TableConfig, low: int | None, high: int | None) -> str:
    if config.granularity is Granularity.ALL:
        return "ALL"
    if low is None or high is None:
        raise SourceDataError(
            f"{path}: the footer does not bound the time column {config.time_column!r}; say the chunk with --chunk"
        )
    first, last = config.granularity.chunk_name(low), config.granularity.chunk_name(high)
    if first != last:
        raise SourceDataError(
            f"{path} spans the {config.granularity.name} chunks {first} to {last}; one file must lie in one chunk"
        )
    return first


def _times(path: Path, footer: Any, config: TableConfig) -> tuple[int | None, int | None]:
    """The bounds of the time column; ``None`` when the footer does not tell them."""
    names = [footer.schema.column(at).path for at in range(footer.num_columns)]
    if config.time_column not in names:
        raise SourceDataError(f"{path} has no column {config.time_column!r}, the time column of table {config.name!r}")
    at = names.index(config.time_column)
    bounds: list[int] = []
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(at).statistics
        if statistics is not None and statistics.null_count:
            raise SourceDataError(
                f"{path} has {count(statistics.null_count, 'row')} without a time in {config.time_column!r}"
            )
        if statistics is None or not statistics.has_min_max:
            return None, None
        for value in (statistics.min, statistics.max):
            if (milliseconds := _milliseconds(value, config.time_format)) is None:
                return None, None
            bounds.append(milliseconds)
    return min(bounds), max(bounds)


def _milliseconds(value: Any, time_format: str) -> int | None:
    """A statistic as milliseconds, rounded down; ``None`` for text, whose order need not be the order of time."""
    if isinstance(value, datetime):
        return to_ms(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
    if isinstance(value, date):
        return to_ms(datetime(value.year, value.month, value.day, tzinfo=UTC))
    if isinstance(value, int) and time_format in _EPOCH_UNITS:
        times, over = _EPOCH_UNITS[time_format]
        return value * times // over
    return None


def _checksum(path: Path) -> tuple[int, int]:
    crc = size = 0
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            crc, size = zlib.crc32(block, crc), size + len(block)
    return crc, size
