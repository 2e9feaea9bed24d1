"""One attempt to build a push, whatever engine writes its segments: announce it, write, stage, say what came of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.segment import StagedSegment
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.exceptions import InvalidConfigError, SourceDataError
from airflow_provider_segments.text import count

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltPush:
    """What a build has staged. ``rejected`` rows had no usable time and went to the reject folder."""

    entry_id: str
    segments: int
    rows: int
    bytes: int
    rejected: int
    seconds: float


def build_push(
    table: Table, config: TableConfig, entry_id: str, stager: str, write: Callable[[StageTicket], WrittenRows]
) -> BuiltPush:
    """Open an attempt of ``stager``, have ``write`` upload its segments, and stage them.

    Any error names the table and the entry, and has left nothing staged.
    """
    began = time.monotonic()
    ticket = table.open_stage(entry_id, stager)
    _LOG.info(
        "table %r, entry %s: attempt %d of %r builds below %s",
        table.name,
        entry_id,
        ticket.attempt,
        stager,
        ticket.prefix,
    )
    with _explained(config, entry_id):
        written = write(ticket)
        staged = table.stage(ticket, written.segments)
    rejected = written.rejected
    built = BuiltPush(entry_id, staged.segments, staged.rows, staged.bytes, rejected, time.monotonic() - began)
    _LOG.info(
        "table %r, entry %s: staged %s, %s, %s in %.1f s%s",
        table.name,
        entry_id,
        count(built.segments, "segment"),
        count(built.rows, "row"),
        count(built.bytes, "byte"),
        built.seconds,
        f" ({count(rejected, 'row')} rejected)" if rejected else "",
    )
    return built


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Segments that were written and are not staged yet, and the number of rows that were rejected."""

    segments: list[StagedSegment]
    rejected: int = 0


def check_reject_folder(config: TableConfig, reject_folder: str | None) -> None:
    """Raise :class:`InvalidConfigError` when rows are to be rejected and there is no folder for them."""
    if config.time_column and config.on_bad_time == "reject" and not reject_folder:
        raise InvalidConfigError(f"table {config.name!r} says onBadTime: reject; give a reject folder")


def no_rows(config: TableConfig, rejected: int) -> SourceDataError:
    """The refusal of an input without rows."""
    return SourceDataError(
        f"table {config.name!r}: the input has no rows{' with a usable time' if rejected else ''}; "
        "allow empty input if that is right"
    )


def bad_times(config: TableConfig, rows: int, example: str) -> SourceDataError:
    """The refusal of an input in which ``rows`` have no usable time; ``example`` is one of them as JSON."""
    return SourceDataError(
        f"table {config.name!r}: {count(rows, 'row')} without a usable time in column {config.time_column!r} "
        f"(timeFormat {config.time_format}); for example {example[:500]}. Correct them, or set onBadTime to reject"
    )


@contextmanager
def _explained(config: TableConfig, entry_id: str) -> Iterator[None]:
    """Have any error name the table and the entry, and say what a failed build leaves behind."""
    try:
        yield
    except BaseException as error:
        error.add_note(
            f"build of table {config.name!r} into entry {entry_id} failed: nothing of this attempt is staged; "
            "its objects lie under the entry's prefix and go with the entry. The build can be run again."
        )
        raise
