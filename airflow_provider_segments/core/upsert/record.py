"""The upsert record of a table: its clock, and what makes a publish of a version safe. Pure.

The record is kept in the custom map of the lineage. So a reader takes lineage and marks in one read, and a version is
published by the one compare-and-set that also makes its segments visible.

A *version* is the number of a publish: the clock of the table plus one, given by the transaction that publishes, so no
number is ever half visible. Objects never contain their number; they take it from their entry. All versions up to the
*floor* are one to readers: no mark below the floor can be read any more. A *void* ``(r, c]`` is a range of numbers that
a rollback has taken back: nobody reads at a mark in it, and an end that was published in it is none.

``tests/upsert`` plays random histories against this, and shows what is seen when a guard is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage
from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.records import Record, RecordDecoder
from airflow_provider_segments.core.replication.heartbeat import TakenHeartbeat
from airflow_provider_segments.core.replication.stream import Digest, VersionStream
from airflow_provider_segments.exceptions import EndRefusedError, UpsertRefusedError

NO_CUTOFF = -(2**63)
MAX_BYTES = 200_000
"""Largest record: it shares one znode with the lineage. The oldest versions are given up for it."""


class Head(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of one key partition: the entry that changed it last, and how often its rows were moved since.

    A cache of the newest row a key belongs to exactly one head. Who publishes checks that the heads are still those
    that he resolved against."""

    entry_id: str = ""
    generation: int = 0


class EventCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Events of published batches since the table was made. ``ingested`` were compared with the rows of their keys; of
    these ``replayed`` had been there, and ``late`` were older than the row that their key had. ``expired`` were older
    than the cutoff, ``rejected`` could not be used. A rollback takes nothing off."""

    ingested: int = 0
    replayed: int = 0
    late: int = 0
    expired: int = 0
    rejected: int = 0

    def plus(self, other: EventCounts) -> EventCounts:
        """The sum of both."""
        ours, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return EventCounts(*(one + more for one, more in zip(ours, theirs, strict=True)))


class Published(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, forbid_unknown_fields=True):
    """A version above the floor. ``at_ms`` is the wall clock of its publish, for people and for lag. ``undo`` has the
    source positions that it changed, as they were before (``None``: there was none). ``bulks`` are the ids of the
    ordinary pushes that it resolved. A rollback is a version without an entry; ``entry_id`` is its own id then.
    ``cutoff`` is the one from before, of a version that has raised it."""

    version: int
    entry_id: str
    at_ms: int
    undo: dict[str, int | None] = {}
    bulks: tuple[str, ...] = ()
    is_rollback: bool = False
    cutoff: int | None = None


class UpsertRecord(Record, frozen=True, omit_defaults=True, tag_field=records.FORMAT, tag=1):
    """See the module. ``positions`` says, by source partition, the offset to read next. ``cutoff`` is the smallest
    comparison value that is still taken: no row that is valid now is older. ``waiting`` are the ids of ordinary pushes
    whose rows have not been compared with the table's yet: no reader sees them. ``events`` are for people. ``stream``
    has the heartbeats of a table that expects some."""

    key_partitions: int
    heads: tuple[Head, ...]
    clock: int = 0
    floor: int = 0
    cutoff: int = NO_CUTOFF
    positions: dict[str, int] = {}
    voids: tuple[tuple[int, int], ...] = ()
    published: tuple[Published, ...] = ()
    waiting: tuple[str, ...] = ()
    events: EventCounts = EventCounts()
    stream: VersionStream | None = None

    @classmethod
    def new(cls, key_partitions: int) -> UpsertRecord:
        """The record of an empty table."""
        return cls(key_partitions, (Head(),) * key_partitions)

    def is_void(self, version: int) -> bool:
        """Return True if a rollback has taken that version back."""
        return any(after < version <= until for after, until in self.voids)

    def versions(self) -> dict[str, int]:
        """The version of each entry that has one above the floor, those of resolved bulk pushes included. An entry
        that is not here was published at or below the floor, or waits."""
        return {entry_id: one.version for one in self.published for entry_id in (one.entry_id, *one.bulks) if entry_id}

    def check_mark(self, mark: int | None, table: str) -> int:
        """The mark to read at: ``mark``, or the newest. Raises :class:`UpsertRefusedError` for one that cannot be read
        (``above-clock``, ``below-floor``, ``rolled-back``)."""
        if mark is None:
            return self.clock
        if mark > self.clock:
            raise _refused("above-clock", f"version {mark} is not published yet; the newest is {self.clock}", table)
        if mark < self.floor:
            hint = "Read at a newer mark, or raise upsertConfig.keepVersions for the future."
            raise _refused(
                "below-floor", f"version {mark} can no longer be read; the oldest is {self.floor}", table, hint
            )
        if self.is_void(mark):
            raise _refused("rolled-back", f"version {mark} was taken back by a rollback", table)
        return mark

    def positions_at(self, version: int) -> dict[str, int]:
        """The source positions as they were right after ``version``, which must not be below the floor."""
        positions: dict[str, int | None] = dict(self.positions)
        for one in reversed(self.published):
            if one.version > version:
                positions.update(one.undo)
        return {source: at for source, at in positions.items() if at is not None}

    def cutoff_at(self, version: int) -> int:
        """The cutoff as it was right after ``version``, which must not be below the floor."""
        raised = (one.cutoff for one in self.published if one.version > version)
        return next((cutoff for cutoff in raised if cutoff is not None), self.cutoff)

    def raised(self, floor: int) -> UpsertRecord:
        """This record with a floor at or above ``floor``; what only lower marks needed is dropped. Voids stay: ends in
        them may be stored for as long as the table is."""
        floor = max(self.floor, floor)
        kept = tuple(one for one in self.published if one.version > floor)
        stream = None if self.stream is None else self.stream.raised(floor)
        return msgspec.structs.replace(self, floor=floor, published=kept, stream=stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A batch that wants to become a version.

    ``heads`` are those of the touched key partitions as they were read *after* the entry was announced; ``base`` and
    ``positions`` are the offsets of the batch's own source partitions before and after it; ``read`` are the digests of
    what is between, on a table that expects heartbeats; ``bulks`` are the waiting pushes that it resolves.
    ``rollbacks`` is how many rollbacks of the table the reader of the source knows of; ``None`` where ``base`` is what
    the batch was read from. ``cutoff`` is the one that its events were chosen by; ``raised_cutoff`` is a new one, of a
    version that ends all rows below it. ``changed`` are those of ``heads`` whose newest rows change, by default all.
    """

    entry_id: str
    heads: Mapping[int, Head]
    changed: Collection[int] | None = None
    base: Mapping[str, int | None] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)
    read: Mapping[str, Digest] | None = None
    heartbeats: Sequence[TakenHeartbeat] = ()
    cutoff: int = NO_CUTOFF
    raised_cutoff: int | None = None
    bulks: Sequence[str] = ()
    events: EventCounts = field(default_factory=EventCounts)
    rollbacks: int | None = None
    keep_versions: int = 1000
    at_ms: int = 0

    def switch(self, before: Lineage, completed: Lineage) -> Lineage:
        """The lineage after the publish: ``completed``, with the next version in the record of ``before``.

        Raises :class:`EndRefusedError`: ``upsert-head`` (somebody else changed a key partition since it was resolved
        against: resolve again), ``upsert-positions`` (somebody else has read the same events), ``upsert-rolled-back``,
        ``upsert-cutoff``, ``upsert-bulk``.
        """
        record = require_record(before)
        self._check_heads(before, record)
        self._check_positions(before, record)
        if record.cutoff != self.cutoff:
            raise self._refused(before, "upsert-cutoff", "the retention's cutoff has moved on", "Resolve again.")
        waiting = waiting_bulks(before, record)
        if gone := [entry_id for entry_id in self.bulks if entry_id not in waiting]:
            raise self._refused(before, "upsert-bulk", f"push {gone[0]} does not wait any more", "Resolve again.")
        return store_record(completed, self.apply(record))

    def apply(self, record: UpsertRecord) -> UpsertRecord:
        """The record with this batch as its next version, and as many older ones as it may keep."""
        version = record.clock + 1
        changed = self.heads if self.changed is None else self.changed
        undo = {source: record.positions.get(source) for source in self.positions}
        heads = [
            Head(self.entry_id, head.generation) if number in changed else head
            for number, head in enumerate(record.heads)
        ]
        before = None if self.raised_cutoff is None else record.cutoff
        done = Published(version, self.entry_id, self.at_ms, undo, tuple(self.bulks), cutoff=before)
        stream = record.stream
        if self.read is not None:
            stream = (stream or VersionStream()).published(version, self.read, self.heartbeats)
        after = msgspec.structs.replace(
            record,
            clock=version,
            stream=stream,
            positions={**record.positions, **self.positions},
            heads=tuple(heads),
            cutoff=record.cutoff if self.raised_cutoff is None else self.raised_cutoff,
            published=(*record.published, done),
            events=record.events.plus(self.events),
            waiting=tuple(entry_id for entry_id in record.waiting if entry_id not in self.bulks),
        )
        after = after.raised(version - self.keep_versions)
        while len(encode(after)) > MAX_BYTES and len(after.published) > 1:
            after = after.raised(after.published[len(after.published) // 2].version)
        return after

    def _check_heads(self, before: Lineage, record: UpsertRecord) -> None:
        for number, head in self.heads.items():
            if record.heads[number] != head:
                by = record.heads[number].entry_id or "none"
                detail = f"key partition {number} was changed by entry {by} since these rows were compared with it"
                raise self._refused(before, "upsert-head", detail, "Resolve again.")

    def _check_positions(self, before: Lineage, record: UpsertRecord) -> None:
        for source, at in self.base.items():
            now = record.positions.get(source)
            if now != at:
                detail = f"source partition {source!r} is at offset {now} by now, and this batch began at {at}"
                raise self._refused(before, "upsert-positions", detail, "Read the batch again from the positions.")
        if self.rollbacks is not None and self.rollbacks != len(record.voids):
            detail = "the table was rolled back since this stream began, so events before this batch would never come"
            raise self._refused(before, "upsert-rolled-back", detail, "Begin the stream again.")

    def _refused(self, lineage: Lineage, rule: str, detail: str, hint: str) -> EndRefusedError:
        return EndRefusedError(rule, f"end refused: {detail}", table=lineage.table, entry_id=self.entry_id, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """A compaction that wants to be published: it moves rows of key partitions and changes no key's newest row.

    ``heads`` are those it has read ends under. Their generations go up by one, so that no cache and no batch that was
    resolved before refers to rows that have moved."""

    entry_id: str
    heads: Mapping[int, Head]

    def switch(self, before: Lineage, completed: Lineage) -> Lineage:
        """The lineage after the publish. Raises :class:`EndRefusedError` (``upsert-head``)."""
        record = require_record(before)
        for number, head in self.heads.items():
            if record.heads[number] != head:
                raise EndRefusedError(
                    "upsert-head",
                    f"end refused: key partition {number} has changed since its ends were read",
                    table=before.table,
                    entry_id=self.entry_id,
                    hint="Carry the newer ends, and end it again.",
                )
        heads = tuple(
            Head(head.entry_id, head.generation + 1) if number in self.heads else head
            for number, head in enumerate(record.heads)
        )
        return store_record(completed, msgspec.structs.replace(record, heads=heads))


@dataclass(frozen=True, slots=True)
class Waiting:
    """An ordinary push into an upsert table: its rows wait until the next run of ingestion has resolved them."""

    entry_id: str

    def switch(self, before: Lineage, completed: Lineage) -> Lineage:
        """The lineage after the push: nothing of it is visible yet."""
        record = require_record(before)
        waiting = tuple(dict.fromkeys([*record.waiting, self.entry_id]))
        return store_record(completed, msgspec.structs.replace(record, waiting=waiting))


Switch = Publication | Movement | Waiting
"""What the end of an entry means on an upsert table."""


def waiting_bulks(lineage: Lineage, record: UpsertRecord) -> list[str]:
    """Ids of the pushes that wait to be resolved, in the order in which they were completed; not those that were
    rolled back meanwhile."""
    entries = ((entry_id, lineage.get(entry_id)) for entry_id in record.waiting)
    return [entry_id for entry_id, entry in entries if entry is None or entry.state is EntryState.COMPLETED]


def without_waiting(lineage: Lineage, entry_id: str) -> Lineage:
    """The lineage once a push that was rolled back before it was resolved has left it."""
    record = record_of(lineage)
    if record is None or entry_id not in record.waiting:
        return lineage
    waiting = tuple(one for one in record.waiting if one != entry_id)
    return store_record(lineage, msgspec.structs.replace(record, waiting=waiting))


def is_published(lineage: Lineage, entry_id: str) -> bool:
    """Return True if the COMPLETED entry is a part of a version, or has moved rows: it cannot be reverted alone. The
    drop of the table is neither."""
    record = record_of(lineage)
    return record is not None and entry_id not in record.waiting and lineage.dropped_by != entry_id


def record_of(lineage: Lineage) -> UpsertRecord | None:
    """The upsert record of a table; ``None`` for a table that is no upsert table. Raises
    :class:`CorruptRecordError`."""
    text = lineage.upsert
    if text is None:
        return None
    return _DECODER.decode(text.encode("utf-8", "surrogatepass"), f"lineage of table {lineage.table!r}")


def require_record(lineage: Lineage) -> UpsertRecord:
    """The upsert record. Raises :class:`UpsertRefusedError` (``no-upsert-table``)."""
    record = record_of(lineage)
    if record is None:
        hint = "Set upsertConfig.mode and schema.primaryKeyColumns when the table is made."
        raise _refused("no-upsert-table", "it is no upsert table and has no marks", lineage.table, hint)
    return record


def store_record(lineage: Lineage, record: UpsertRecord) -> Lineage:
    """The lineage with that upsert record."""
    return lineage.with_upsert(encode(record).decode())


def encode(record: UpsertRecord) -> bytes:
    """The record as it is stored."""
    return records.encode(record)


_DECODER = RecordDecoder(UpsertRecord, "upsert record")


def _refused(rule: str, detail: str, table: str, hint: str = "") -> UpsertRefusedError:
    return UpsertRefusedError(rule, detail, table=table, hint=hint)
