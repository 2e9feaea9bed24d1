"""Ingestion of one micro-batch: announce, resolve, write, publish. One transaction makes a version of it.

1. An entry is announced, before anything is read that the resolution depends on.
2. Heads, positions and what waits are read; the batch is compared with the newest rows of its keys.
3. Winners are written as segments, ends of older rows as an update log.
4. One transaction publishes: rows, update log, heads and source positions in one compare-and-set, which gives the
   version its number. It is refused if anything that was read in 2 has changed; then 2 and 3 are done again.

A run that is killed anywhere has published all of its batch or nothing. What it left is reverted by the next run, and a
batch that is sent again finds its own rows in the table: replays change nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy
import pyarrow

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.names import DEFAULT_STAGER
from airflow_provider_segments.core.model.segment import Segment, StagedSegment
from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.replication.heartbeat import TakenHeartbeat
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.upsert.record import (
    EventCounts,
    Head,
    Publication,
    UpsertRecord,
    require_record,
    waiting_bulks,
)
from airflow_provider_segments.exceptions import (
    ContentionError,
    EndRefusedError,
    OutcomeUnknownError,
    SegmentsError,
    UpsertRefusedError,
)
from airflow_provider_segments.upsert.columns import comparison_values, events_of
from airflow_provider_segments.upsert.events import DELETE, LOSER, Column, IngestionUpsertEvents
from airflow_provider_segments.upsert.key_store import KeyStore, default_root
from airflow_provider_segments.upsert.keys import key_partitions
from airflow_provider_segments.upsert.partial import AT, WINNER, Chains, chains, merged
from airflow_provider_segments.upsert.partitions import KeyPartitions, segment_events
from airflow_provider_segments.upsert.reading import read_rows_at
from airflow_provider_segments.upsert.rejects import SortedOut, sort_out
from airflow_provider_segments.upsert.resolve import Resolution, resolve
from airflow_provider_segments.upsert.source_read import SourceRead, without_heartbeats
from airflow_provider_segments.upsert.validity import log_of
from airflow_provider_segments.upsert.writing import SegmentWriter, names_of

IDENTITY = "upsert/"
"""How the identities of ingestion's entries begin, followed by the ingestor's name."""


_RESOLVE_AGAIN = ("upsert-head", "upsert-bulk", "upsert-cutoff")
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class IngestedBatch:
    """What became of a batch. ``version`` is the one that it was published as, or the table's when it changed nothing
    (``entry_id`` is then empty). ``winners`` are rows that became the newest of their keys, ``ended`` rows that they
    took the place of, ``losers`` rows that are never visible (of these ``late`` were older than what their keys had
    before), ``replays`` rows that had been there. ``expired`` rows were older than the cutoff, ``rejected`` ones could
    not be used."""

    version: int
    entry_id: str = ""
    winners: int = 0
    ended: int = 0
    losers: int = 0
    late: int = 0
    replays: int = 0
    expired: int = 0
    rejected: int = 0
    switch_ms: float = 0.0


@dataclass(slots=True)
class _Resolved:
    """One key partition of a batch: its events, and what becomes of them. ``rows`` are the contents of those winners
    that are not written yet, where they were merged with other rows."""

    partition: int
    head: Head
    store: KeyStore
    events: IngestionUpsertEvents
    names: list[str]
    holders: IngestionUpsertEvents
    found: Resolution
    rows: pyarrow.Table | None = None

    @property
    def unwritten(self) -> int:
        """The segment number of the batch's own rows, which are not written yet."""
        return len(self.store.segments)


@dataclass(slots=True)
class UpsertIngestor:
    """Ingests micro-batches into one upsert table, one at a time.

    ``name`` tells ingestors of one table apart: those that run at the same time must read different source partitions.
    ``cache`` is a folder for the key stores that no other process uses. ``locks`` are those under which versions are
    published (see :mod:`.owner`). ``on_rejected`` gets events that cannot be used, before anything is published.
    ``rollbacks``, for a source that goes on by itself, is how many rollbacks the table had when it began: after another
    one its batches are refused (``upsert-rolled-back``), because what was taken back would never come again.
    """

    table: Table
    name: str = "ingest"
    cache: Path | None = None
    locks: Sequence[HeldLock] = ()
    on_rejected: Callable[[pyarrow.Table], None] | None = None
    spark_schema: str | None = None
    rollbacks: int | None = None
    config: TableConfig = field(init=False)
    partitions: KeyPartitions = field(init=False)

    def __post_init__(self) -> None:
        self.config = self.table.config()
        if self.config.upsert is None:
            require_record(self.table.lineage())  # says what is missing
            raise UpsertRefusedError("no-upsert-config", "its config has lost upsertConfig", table=self.table.name)
        root = (self.cache or default_root()) / self.name
        self.partitions = KeyPartitions(self.table, self.config.upsert, root)

    @property
    def upsert(self) -> UpsertConfig:
        """The table's upsert config."""
        assert self.config.upsert is not None
        return self.config.upsert

    def positions(self) -> Mapping[str, int]:
        """By source partition (``<region>/<partition>``), the offset to read next."""
        return require_record(self.table.lineage()).positions

    def take_over(self) -> list[str]:
        """Revert what earlier runs of this ingestor have left in progress; returns the ids of those entries."""
        records = self.table.context.records
        running = [entry.entry_id for entry in self.table.lineage().in_state(EntryState.IN_PROGRESS)]
        left = [
            entry_id
            for entry_id, stored in records.guards(running).items()
            if (stored.guard.identity or "").startswith(f"{IDENTITY}{self.name}/")
        ]
        for entry_id in left:
            self.abort(entry_id)
        return left

    def ingest(
        self,
        events: pyarrow.Table | None = None,
        *,
        base: Mapping[str, int] | None = None,
        heartbeats: Sequence[TakenHeartbeat] = (),
    ) -> IngestedBatch:
        """Make a version of ``events`` and of the ordinary pushes that wait; without events of the pushes alone.

        Each event has the key columns, the comparison column, ``$partition`` and ``$offset``, and ``$region`` where
        there are several. ``base`` are the positions that the batch was read from: with it, a batch that somebody else
        has read meanwhile is refused (``upsert-positions``). ``heartbeats`` are those that the version takes, as
        :mod:`.barriers` finds them. Raises :class:`SourceDataError`, what ``start``, ``stage``
        and ``end`` raise, and storage errors; then nothing is published.
        """
        rows = None if events is None else without_heartbeats(events)
        sorted_out = sort_out(rows, self.config) if rows is not None and rows.num_rows else None
        if sorted_out is not None and sorted_out.rejected.num_rows and self.on_rejected is not None:
            self.on_rejected(sorted_out.rejected)
        read = None if events is None else SourceRead.of(events, self.upsert, heartbeats)
        if read is None or not read.ends:
            lineage = self.table.lineage()
            record = require_record(lineage)
            if not waiting_bulks(lineage, record):
                return IngestedBatch(record.clock)
        identity = f"{IDENTITY}{self.name}/{self.table.store.clock.new_id()}"
        started = self.table.start((), identity=identity, locks=self.locks, stager=DEFAULT_STAGER)
        assert started.ticket is not None
        try:
            return self._published(started.ticket, sorted_out, read, base)
        except OutcomeUnknownError:
            raise  # the version may be there: whoever sends the batch again finds its rows
        except SegmentsError:
            self.abort(started.entry_id)
            raise

    def _published(
        self,
        ticket: StageTicket,
        sorted_out: SortedOut | None,
        read: SourceRead | None,
        base: Mapping[str, int] | None,
    ) -> IngestedBatch:
        for _ in range(_ATTEMPTS):
            batch = _Batch(self, ticket, sorted_out, read, base)
            try:
                done = batch.publish()
            except EndRefusedError as refused:
                again = _RESOLVE_AGAIN if base is not None else (*_RESOLVE_AGAIN, "upsert-positions")
                if refused.rule not in again:
                    raise
                ticket = self.table.open_stage(ticket.entry_id)  # the objects of this one are written
                continue
            if done is not None:
                return done
        raise ContentionError(f"table {self.table.name!r}: its key partitions changed during all {_ATTEMPTS} attempts")

    def abort(self, entry_id: str) -> None:
        """Revert an entry that will not be published. One that cannot be reverted now is left to :meth:`take_over`."""
        with suppress(SegmentsError):
            self.table.abort(entry_id)


class _Batch:
    """One attempt to make a version of a batch."""

    def __init__(
        self,
        ingestor: UpsertIngestor,
        ticket: StageTicket,
        sorted_out: SortedOut | None,
        read: SourceRead | None,
        base: Mapping[str, int] | None,
    ) -> None:
        self.ingestor = ingestor
        self.table = ingestor.table
        self.ticket, self.entry_id = ticket, ticket.entry_id
        lineage = self.table.lineage()
        self.record: UpsertRecord = require_record(lineage)
        self.rows: pyarrow.Table | None = None
        self.sent_expired = self.rejected = 0
        if sorted_out is not None:
            self.rows = self._young(sorted_out.rows)
            self.sent_expired = sorted_out.rows.num_rows - self.rows.num_rows
            self.rejected = sorted_out.rejected.num_rows
        self.bulks = waiting_bulks(lineage, self.record)
        self.read = read
        ends = {} if read is None else read.ends
        known = self.record.positions if base is None else base
        self.base = {source: known.get(source) for source in ends}
        self.positions = {source: max(end, self.base[source] or 0) for source, end in ends.items()}
        self.expired: list[tuple[str, Column]] = []

    def publish(self) -> IngestedBatch | None:
        """Resolve, write and publish; ``None`` when a key partition has moved on before anything was written."""
        bulk = self._bulk_events()
        resolved = self._resolve(bulk)
        if resolved is None or not self._merge(resolved):
            return None
        done = self._counted(resolved)
        moves = any(self.record.positions.get(source) != at for source, at in self.positions.items())
        if not (done.winners or self.bulks or moves):
            self.ingestor.abort(self.entry_id)
            return done
        with tempfile.TemporaryDirectory(prefix="segments-upsert-") as folder:
            writer = SegmentWriter(
                self.ingestor.config, self.ticket, self.table.storage, Path(folder), self.ingestor.spark_schema
            )
            staged = self._write(writer, resolved)
        switch_ms = self._end(staged, resolved, done)
        version = require_record(self.table.lineage()).versions().get(self.entry_id, self.record.clock + 1)
        return replace(done, version=version, entry_id=self.entry_id, switch_ms=switch_ms)

    def _young(self, rows: pyarrow.Table) -> pyarrow.Table:
        """The events that are not older than the retention: the rows of those have ended, so they would come back as
        the first of their keys."""
        old = comparison_values(rows, self.ingestor.upsert.comparison_column) < self.record.cutoff
        return rows.filter(pyarrow.array(~old)) if old.any() else rows

    def _counted(self, resolved: Sequence[_Resolved]) -> IngestedBatch:
        def total(name: str) -> int:
            return sum(len(getattr(part.found, name)) for part in resolved)

        return IngestedBatch(
            self.record.clock,
            winners=total("winners"),
            ended=total("ended"),
            losers=total("losers"),
            late=total("late"),
            replays=total("replays"),
            expired=self.sent_expired + sum(len(numbers) for _, numbers in self.expired),
            rejected=self.rejected,
        )

    def _resolve(self, bulk: list[tuple[Segment, IngestionUpsertEvents]]) -> list[_Resolved] | None:
        config = self.ingestor.upsert
        own = IngestionUpsertEvents.of() if self.rows is None else events_of(self.rows, config, 0)
        whole = IngestionUpsertEvents.concat([own, *(events for _, events in bulk)])
        partition_of = key_partitions(whole.low, config.key_partitions)
        found: list[_Resolved] = []
        for partition in numpy.unique(partition_of).tolist():
            head = self.record.heads[partition]
            store = self.ingestor.partitions.at(partition, head)
            if store is None:
                return None
            names = [*store.segments, "", *(segment.name for segment, _ in bulk)]
            events = whole.take(partition_of == partition)
            # Segment 0 of the batch is the rows that are not written yet; bulk segments follow what the store knows.
            events = events.at(events.segment + len(store.segments), events.row)
            keys = numpy.unique(numpy.stack([events.high, events.low], axis=1), axis=0)
            holders = store.holders(keys[:, 0], keys[:, 1])
            holders = holders.take(holders.time >= self.record.cutoff)  # the rows of the others have ended
            found.append(_Resolved(partition, head, store, events, names, holders, resolve(events, holders)))
        return found

    def _merge(self, resolved: list[_Resolved]) -> bool:
        """With partial updates, merge new rows with those that they take the place of. Returns False when such a row is
        no longer where the key store has it: the key partition has moved on."""
        if not self.ingestor.upsert.is_partial or self.rows is None:
            return True
        with self.table.snapshot() as taken:
            sources = [(taken, one) for one in taken.segments]
            if self.bulks:
                waiting = self.table.held_back()
                sources += [(waiting, one) for one in waiting.segments]
            found = {segment.name: (source, segment) for source, segment in sources}
            for part in resolved:
                of_winners = self._chains(part)
                needed = {part.names[number] for number in numpy.unique(of_winners.segment)} - {""}
                if not needed <= found.keys():
                    return False
                part.rows = self._merged(part, of_winners, found)
        return True

    def _chains(self, part: _Resolved) -> Chains:
        """What the batch's own winners of a key partition are merged from."""
        assert self.rows is not None
        own = part.events.segment == part.unwritten
        is_whole = ~own
        if (deletes := self.ingestor.upsert.deletes) is not None:
            deleted = self.rows.column(deletes).fill_null(False).to_numpy()
            is_whole[own] = deleted[part.events.row[own]]
        winners = part.found.winners
        return chains(part.events, part.holders, winners[own[winners]], is_whole)

    def _merged(
        self, part: _Resolved, of_winners: Chains, segments: Mapping[str, tuple[Snapshot, Segment]]
    ) -> pyarrow.Table | None:
        assert self.rows is not None
        if not len(of_winners.row):
            return None
        pieces: list[pyarrow.Table] = []
        for number in numpy.unique(of_winners.segment):
            here = numpy.flatnonzero(of_winners.segment == number)
            numbers = of_winners.row[here]
            if number == part.unwritten:
                taken = self.rows.take(pyarrow.array(numbers))
            else:
                taken = read_rows_at(*segments[part.names[number]], numbers)
            taken = taken.append_column(WINNER, pyarrow.array(of_winners.winner[here]))
            pieces.append(taken.append_column(AT, pyarrow.array(here)))
        return merged(pyarrow.concat_tables(pieces, promote_options="permissive"), self.ingestor.upsert)

    def _write(self, writer: SegmentWriter, resolved: list[_Resolved]) -> list[StagedSegment]:
        staged: list[StagedSegment] = []
        log = [(numpy.full(len(rows), name, object), rows, LOSER) for name, rows in self.expired]
        for part in resolved:
            unwritten = part.unwritten
            names = numpy.array(part.names, object)
            winners = part.events.take(part.found.winners)
            losers = part.events.take(part.found.losers)
            replays = part.events.take(part.found.replays)
            ended = part.holders.take(part.found.ended)
            log.append((names[ended.segment], ended.row, DELETE))
            for lost in (losers, replays):
                standing = lost.take(lost.segment != unwritten)
                log.append((names[standing.segment], standing.row, LOSER))
            shown = losers.take(losers.segment == unwritten)
            placed, written = self._write_rows(writer, part, winners, shown, log)
            staged += written
            self._remember(part, placed, [*part.names, *names_of(written)])
        if events := _log_events(log):
            staged.append(writer.update_log(log_of(events)))
        return staged

    def _write_rows(
        self,
        writer: SegmentWriter,
        part: _Resolved,
        winners: IngestionUpsertEvents,
        losers: IngestionUpsertEvents,
        log: list[tuple[Column, Column, int]],
    ) -> tuple[IngestionUpsertEvents, list[StagedSegment]]:
        """Write the batch's own rows of a key partition; returns the winners where they are now."""
        unwritten, mark_late = part.unwritten, self.ingestor.upsert.out_of_order
        own = winners.segment == unwritten
        numbers = winners.row[own]
        if mark_late is not None:
            numbers = numpy.concatenate([numbers, losers.row])
        if not len(numbers):
            return winners, []
        assert self.rows is not None
        rows = self.rows.take(pyarrow.array(numbers))
        if part.rows is not None:
            rows = pyarrow.concat_tables([part.rows, rows.slice(part.rows.num_rows)], promote_options="default")
        if mark_late is not None:
            is_late = pyarrow.array(numpy.arange(len(numbers)) >= int(own.sum()))
            rows = _with_column(rows, mark_late, is_late)
        place = numpy.zeros((len(numbers), 2), numpy.int64)
        staged: list[StagedSegment] = []
        for one in writer.segments(rows, part.partition):
            place[one.rows, 0] = len(part.names) + len(staged)
            place[one.rows, 1] = numpy.arange(len(one.rows))
            staged.append(one.segment)
            late = numpy.flatnonzero(one.rows >= int(own.sum()))
            log.append((numpy.full(len(late), one.segment.record.name, object), late, LOSER))
        segment, row = winners.segment.copy(), winners.row.copy()
        segment[own], row[own] = place[: int(own.sum()), 0], place[: int(own.sum()), 1]
        return winners.at(segment, row), staged

    def _remember(self, part: _Resolved, winners: IngestionUpsertEvents, names: Sequence[str]) -> None:
        """Have the key store ready for the head that this publish makes. If the publish is refused, nobody finds it:
        the head names this entry."""
        part.store.prepare(Head(self.entry_id, part.head.generation), winners, names)

    def _end(
        self,
        staged: Sequence[StagedSegment],
        resolved: Sequence[_Resolved],
        done: IngestedBatch,
    ) -> float:
        publication = Publication(
            entry_id=self.entry_id,
            heads={part.partition: part.head for part in resolved},
            base=self.base,
            positions=self.positions,
            read=None if self.read is None else self.read.digests(self.base),
            heartbeats=() if self.read is None else self.read.heartbeats,
            cutoff=self.record.cutoff,
            bulks=self.bulks,
            events=EventCounts(
                ingested=done.winners + done.losers + done.replays,
                replayed=done.replays,
                late=done.late,
                expired=done.expired,
                rejected=done.rejected,
            ),
            rollbacks=self.ingestor.rollbacks,
            keep_versions=self.ingestor.upsert.keep_versions,
            at_ms=self.table.store.clock.now_ms(),
        )
        ended = self.table.publish(self.ticket, staged, allow_empty=True, switch=publication)
        return ended.switch_ms

    def _bulk_events(self) -> list[tuple[Segment, IngestionUpsertEvents]]:
        """The events of the pushes that wait, in segments numbered from 1, less those that are older than the
        retention."""
        found: list[tuple[Segment, IngestionUpsertEvents]] = []
        if not self.bulks:
            return found
        taken = self.table.held_back()
        for segment in taken.segments:
            if segment.entry_id in self.bulks:
                events = segment_events(taken, segment, self.ingestor.upsert, 1 + len(found))
                expired = events.time < self.record.cutoff
                self.expired.append((segment.name, events.row[expired]))
                found.append((segment, events.take(~expired)))
        return found


def _with_column(rows: pyarrow.Table, name: str, values: pyarrow.Array) -> pyarrow.Table:
    index = rows.schema.get_field_index(name)
    return rows.append_column(name, values) if index < 0 else rows.set_column(index, name, values)


def _log_events(parts: Sequence[tuple[Column, Column, int]]) -> dict[str, object] | None:
    """The columns of an update log; ``None`` when it would be empty."""
    segment = numpy.concatenate([names for names, _, _ in parts]) if parts else numpy.empty(0, object)
    if not len(segment):
        return None
    return {
        "segment": pyarrow.array(segment, pyarrow.string()).dictionary_encode(),
        "row": numpy.concatenate([rows for _, rows, _ in parts]),
        "kind": numpy.concatenate([numpy.full(len(rows), kind, numpy.uint8) for _, rows, kind in parts]),
        "version": pyarrow.nulls(len(segment), pyarrow.int64()),
    }
