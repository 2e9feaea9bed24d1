"""Compaction of an upsert table: rows that no mark shows any more are dropped, small segments and logs are merged.

The floor says which marks can still be read. Only segments at or below the floor are rewritten, so every row that is
kept is valid from the floor on, and needs no version of its own. Ends above the floor are carried with their rows, each
under the version that it came from: a rollback of that version takes the end back as well. The publish is refused when
a batch has ended further rows since the ends were read; then only the ends are read and carried again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import pyarrow

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.segment import Segment, StagedSegment
from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.upsert.record import Movement, UpsertRecord, require_record
from airflow_provider_segments.exceptions import ContentionError, EndRefusedError, OutcomeUnknownError, SegmentsError
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION, REGION
from airflow_provider_segments.upsert.events import BULK_PARTITION, Column
from airflow_provider_segments.upsert.expiry import expire, retention_cutoff
from airflow_provider_segments.upsert.floor import raise_floor
from airflow_provider_segments.upsert.keys import key_hashes, key_partitions
from airflow_provider_segments.upsert.moving import MovedRows, ends_to_keep
from airflow_provider_segments.upsert.reading import UpdateLogs, read_segment
from airflow_provider_segments.upsert.validity import NO_ENDS, RowEnds
from airflow_provider_segments.upsert.writing import SegmentWriter

IDENTITY = "upsert-compaction/"
DEAD_SHARE = 0.25
"""From this share of dead rows on a segment is rewritten: a grouped sum then costs about twice that of live rows."""

_ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did. ``entry_id`` is empty when there was nothing to do."""

    entry_id: str = ""
    segments_from: int = 0
    segments_to: int = 0
    logs_from: int = 0
    rows_from: int = 0
    rows_to: int = 0
    carried: int = 0
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is rewritten: groups of segments by time chunk and key partition (-1: any), and update logs to merge."""

    groups: tuple[tuple[str, int, tuple[Segment, ...]], ...]
    logs: tuple[Segment, ...]

    @property
    def segments(self) -> list[Segment]:
        return [segment for _, _, group in self.groups for segment in group]

    @property
    def names(self) -> list[str]:
        return [one.name for one in (*self.segments, *self.logs)]


@dataclass(slots=True)
class UpsertCompactor:
    """Compacts one upsert table. Ingestion and readers go on meanwhile."""

    table: Table
    dead_share: float = DEAD_SHARE
    config: TableConfig = field(init=False)

    def __post_init__(self) -> None:
        self.config = self.table.config()

    @property
    def upsert(self) -> UpsertConfig:
        """The table's upsert config."""
        assert self.config.upsert is not None
        return self.config.upsert

    def run(self, *, floor: int | None = None) -> Compacted:
        """One compaction of all that is worth it. ``floor`` raises the floor first: marks below it are given up. Where
        the table's config sets a time retention, rows that are older end before that.

        Raises what ``start``, ``stage`` and ``end`` raise, storage errors, and :class:`ContentionError` when ingestion
        was faster each time; then nothing has changed.
        """
        self.take_over()
        cutoff = retention_cutoff(self.table)
        if cutoff is not None:
            expire(self.table, cutoff)
        if floor is not None:
            raise_floor(self.table.context, floor)
        with self.table.snapshot(owner="upsert compaction") as taken:
            logs = UpdateLogs()
            ends = logs.ends(taken)
            plan = _plan(taken, ends, self.config, self.dead_share)
            if not plan.names:
                return Compacted()
            identity = IDENTITY + self.table.store.clock.new_id()
            entry_id = self.table.start(plan.names, identity=identity, moves_rows=True).entry_id
            try:
                return self._compacted(entry_id, _Rewriting(self.upsert, taken, plan, ends, logs))
            except OutcomeUnknownError:
                raise
            except SegmentsError:
                self._abort(entry_id)
                raise

    def take_over(self) -> None:
        """Revert what a compaction that was killed has left."""
        running = [entry.entry_id for entry in self.table.lineage().in_state(EntryState.IN_PROGRESS)]
        for entry_id, stored in self.table.context.records.guards(running).items():
            if (stored.guard.identity or "").startswith(IDENTITY):
                self._abort(entry_id)

    def _abort(self, entry_id: str) -> None:
        with suppress(SegmentsError):
            self.table.abort(entry_id)

    def _compacted(self, entry_id: str, rewriting: _Rewriting) -> Compacted:
        plan = rewriting.plan
        with tempfile.TemporaryDirectory(prefix="segments-upsert-") as folder:
            ticket = self.table.open_stage(entry_id, "rows")
            writer = SegmentWriter(self.config, ticket, self.table.storage, Path(folder))
            staged = rewriting.write(writer)
            self.table.stage(ticket, staged)
            carried = None
            attempts = 0
            while carried is None:
                if attempts == _ATTEMPTS:
                    raise ContentionError(f"table {self.table.name!r}: ingestion overtook all {_ATTEMPTS} attempts")
                carried = self._carry_and_publish(entry_id, rewriting, Path(folder))
                attempts += 1
        return Compacted(
            entry_id,
            len(plan.segments),
            len(staged),
            len(plan.logs),
            sum(segment.rows for segment in plan.segments),
            sum(one.record.rows for one in staged),
            carried,
            attempts,
        )

    def _carry_and_publish(self, entry_id: str, rewriting: _Rewriting, folder: Path) -> int | None:
        """Read the ends of now, and publish those that stay with the rows; ``None`` when a batch was faster. Between
        the look at the heads and the one transaction there is less to do than in any batch."""
        ticket = self.table.open_stage(entry_id, "ends")
        now = self.table.snapshot()  # the run's lease is older than any deletion of what it shows
        assert now.lineage is not None
        record = require_record(now.lineage)
        heads = {partition: record.heads[partition] for partition in rewriting.touched}
        log = rewriting.ends_to_keep(now)
        writer = SegmentWriter(self.config, ticket, self.table.storage, folder)
        logs = [writer.update_log(log)] if log.num_rows else []
        try:
            self.table.publish(ticket, logs, allow_empty=True, switch=Movement(entry_id=entry_id, heads=heads))
        except EndRefusedError as refused:
            if refused.rule != "upsert-head":
                raise
            return None
        return int(log.num_rows)


class _Rewriting:
    """The rows of one compaction, and where they go."""

    def __init__(
        self, upsert: UpsertConfig, taken: Snapshot, plan: _Plan, ends: Mapping[str, RowEnds], logs: UpdateLogs
    ) -> None:
        assert taken.lineage is not None
        self.upsert = upsert
        self.taken, self.plan, self.ends, self.logs = taken, plan, ends, logs
        self.record: UpsertRecord = require_record(taken.lineage)
        self.names: list[str] = []
        self.moved: dict[str, MovedRows] = {}
        everything = range(self.upsert.key_partitions)
        self.touched = sorted({number for _, part, _ in plan.groups for number in (everything if part < 0 else [part])})

    def write(self, writer: SegmentWriter) -> list[StagedSegment]:
        """Write the rows that are kept, and remember where each is."""
        staged: list[StagedSegment] = []
        for _, part, group in self.plan.groups:
            staged += self._write_group(writer, part, group)
        return staged

    def _write_group(self, writer: SegmentWriter, part: int, group: Sequence[Segment]) -> list[StagedSegment]:
        kept: list[tuple[Segment, Column]] = []
        tables: list[pyarrow.Table] = []
        for segment in group:
            rows = _placed(read_segment(self.taken, segment, None), segment, self.upsert)
            ends = self.ends.get(segment.name, NO_ENDS)
            numbers = numpy.flatnonzero(ends.valid_mask(self.record.floor, rows.num_rows))
            kept.append((segment, numbers))
            tables.append(rows.take(pyarrow.array(numbers)))
        whole = pyarrow.concat_tables(tables, promote_options="permissive")
        place = numpy.zeros((whole.num_rows, 2), numpy.int64)
        staged: list[StagedSegment] = []
        for number, chosen in self._by_partition(whole, part):
            for one in writer.segments(whole.take(pyarrow.array(chosen)), number):
                place[chosen[one.rows], 0] = len(self.names)
                place[chosen[one.rows], 1] = numpy.arange(len(one.rows))
                self.names.append(one.segment.record.name)
                staged.append(one.segment)
        at = 0
        for segment, numbers in kept:
            here = place[at : at + len(numbers)]
            self.moved[segment.name] = MovedRows(numbers, here[:, 0], here[:, 1])
            at += len(numbers)
        return staged

    def _by_partition(self, rows: pyarrow.Table, part: int) -> Iterator[tuple[int, Column]]:
        if part >= 0:
            if rows.num_rows:
                yield part, numpy.arange(rows.num_rows)
            return
        _, low = key_hashes(rows, self.upsert.primary_key)
        found = key_partitions(low, self.upsert.key_partitions)
        for number in numpy.unique(found).tolist():
            yield number, numpy.flatnonzero(found == number)

    def ends_to_keep(self, now: Snapshot) -> pyarrow.Table:
        """The ends of now that are told by no log that stays. Only logs that are new since the last call are read, so
        that little time passes until the publish."""
        merged = self.logs.ends(now, {log.name for log in self.plan.logs})
        return ends_to_keep(self.moved, self.names, self.logs.ends(now), merged, set(now.names))


def _plan(taken: Snapshot, ends: Mapping[str, RowEnds], config: TableConfig, dead_share: float) -> _Plan:
    """The segments at or below the floor that are small or have many dead rows, and the logs to merge."""
    assert taken.lineage is not None
    record = require_record(taken.lineage)
    versions = record.versions()
    groups: dict[tuple[str, int], list[tuple[Segment, bool]]] = {}
    mixed = {segment.chunk for segment in taken.segments if segment.key_partition < 0}
    for segment in taken.segments:
        if versions.get(segment.entry_id, 0) > record.floor:
            continue
        dead = len(ends.get(segment.name, NO_ENDS).dead_rows(record.floor))
        is_worn = dead >= dead_share * segment.rows
        if is_worn or segment.rows < config.target_rows // 2:
            part = -1 if segment.chunk in mixed else segment.key_partition
            groups.setdefault((segment.chunk, part), []).append((segment, is_worn and dead > 0))
    chosen = tuple(
        (chunk, part, tuple(segment for segment, _ in group))
        for (chunk, part), group in sorted(groups.items())
        if len(group) > 1 or group[0][1] or part < 0
    )
    settled = tuple(log for log in taken.logs().segments if versions.get(log.entry_id, 0) <= record.floor)
    return _Plan(chosen, settled if chosen or len(settled) > 1 else ())


def _placed(rows: pyarrow.Table, segment: Segment, config: UpsertConfig) -> pyarrow.Table:
    """The rows of an ordinary push with the place in the order that they were resolved under."""
    if PARTITION in rows.column_names:
        return rows
    count = rows.num_rows
    return (
        rows.append_column(REGION, pyarrow.array([config.regions[0]] * count, pyarrow.string()))
        .append_column(PARTITION, pyarrow.array(numpy.full(count, BULK_PARTITION, numpy.int32)))
        .append_column(OFFSET, pyarrow.array(numpy.full(count, segment.born, numpy.int64)))
    )
