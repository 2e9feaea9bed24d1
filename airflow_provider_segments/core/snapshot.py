"""What is visible: the one place that decides it.

A snapshot is the lineage at zxid v and, of the registry read *after* it, the segments born at or before v whose entry
is COMPLETED in that lineage or has left it, less what the lineage hides. Writers cannot starve readers: a push that
starts or ends meanwhile changes nothing at v. Only a removal can; the registry's root says so, and then the reader
takes a newer lineage. ``tests/model`` explores every interleaving of this with pushes, reverts and clean-ups, and
shows a bad history for each part of the rule that is left out.

Of the segments that have a place in the timeline, or several, the timeline has the last word: see
:mod:`.timeline.overlay`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType, TracebackType

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage
from airflow_provider_segments.core.lineage.guard import GuardState, StoredGuard
from airflow_provider_segments.core.lineage.hiding import hidden_names, is_settled
from airflow_provider_segments.core.lineage.records import LineageRecords, StoredLineage
from airflow_provider_segments.core.model.interval import ALL_TIME, MAX_MS, MIN_MS, Interval, parse_chunk
from airflow_provider_segments.core.model.ledger import OffloadContext, ledger_prefix
from airflow_provider_segments.core.model.segment import Segment, SegmentRecord, Upgrade
from airflow_provider_segments.core.registry.leases import Lease, Leases
from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.registry.shard import Shard, ShardName
from airflow_provider_segments.core.replacement.rules import find
from airflow_provider_segments.core.storage.base import ObjectStore, entry_prefix
from airflow_provider_segments.core.timeline import Overlay, Placed, SegmentState, overlay, places_of
from airflow_provider_segments.exceptions import ContentionError, LeaseLostError, SnapshotRefusedError, StorageError

_Blocks = tuple[tuple[Shard, Sequence[SegmentRecord]], ...]
_Cuts = Mapping[str, tuple[Interval, ...]]
_Moved = Mapping[str, str]

_ATTEMPTS = 50  # each failure needs a new clean-up of this table within the milliseconds of a read


@dataclass(frozen=True)
class Snapshot:
    """The segments of one table that belong together, and the lineage ``zxid`` they were taken at.

    ``interval`` is the asked-for time range; segments are whole, so rows outside of it are the reader's to filter.
    ``cuts`` has, by name, the intervals in which a segment is visible where that is not all of its time: rows outside
    of them must be filtered, too. ``moved`` has, by name, the version in which a segment of several places is seen.
    Lists are in the order of the registry's time chunks. ``len()`` is the number of segments; totals count them
    whole."""

    table: str
    zxid: int
    interval: Interval
    blocks: tuple[tuple[Shard, Sequence[SegmentRecord]], ...] = field(repr=False)
    storage: ObjectStore = field(repr=False, compare=False)
    cuts: Mapping[str, tuple[Interval, ...]] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    tiered: ObjectStore | None = field(default=None, repr=False, compare=False)
    moved: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    lease: Lease | None = field(default=None, repr=False, compare=False)
    _holding: _Holding | None = field(default=None, repr=False, compare=False)

    def __enter__(self) -> Snapshot:
        """The snapshot under a reader's lease: none of its objects is deleted before the block ends.

        When something was removed since it was taken, it is taken again, so use what ``with`` gives. Raises
        :class:`ValueError` for one that cannot be held (staged segments), and what taking it raises.
        """
        if self._holding is None:
            raise ValueError("staged segments cannot be leased: their push holds them")
        return self._holding.enter(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives the lease back. Raises :class:`LeaseLostError` when it was lost on the way: what was read may be
        incomplete."""
        assert self._holding is not None
        self._holding.leave(failed=error is not None)

    def check_lease(self) -> None:
        """For long reads, between files. Raises :class:`LeaseLostError` when the lease is gone, or was never taken."""
        if self.lease is None:
            raise LeaseLostError(f"table {self.table!r}: this snapshot has no lease; use it in a with block")
        self.lease.check()

    def __len__(self) -> int:
        return sum(len(records) for _, records in self.blocks)

    @property
    def rows(self) -> int:
        """Rows of all segments."""
        return sum(record.rows for record in self._records())

    @property
    def bytes(self) -> int:
        """Bytes of all objects."""
        return sum(record.bytes for record in self._records())

    @cached_property
    def names(self) -> list[str]:
        """Names of the segments."""
        return [record.name for record in self._records()]

    @cached_property
    def files(self) -> list[str]:
        """Object keys of the segments, each in the store that has it: see :meth:`store_of`."""
        found: list[str] = []
        for shard, records in self.blocks:
            entry_id = shard.name.entry_id
            prefix = entry_prefix(self.table, entry_id)
            found += [
                prefix + record.file if record.primary else self._tiered_key(entry_id, record) for record in records
            ]
        return found

    @cached_property
    def urls(self) -> list[str]:
        """Addresses of the objects, for Spark and Arrow: of the copy that readers use. Raises what :meth:`store_of`
        raises."""
        stores = [self.store_of(record.location) for record in self._records()]
        return [store.url(key) for store, key in zip(stores, self.files, strict=True)]

    @cached_property
    def segments(self) -> list[Segment]:
        """The segments."""
        found: list[Segment] = []
        for shard, records in self.blocks:
            entry_id, born = shard.name.entry_id, shard.born
            prefix = entry_prefix(self.table, entry_id)
            found += [
                Segment(
                    record.name,
                    prefix + record.file if record.primary else self._tiered_key(entry_id, record),
                    at.chunk if at else shard.chunk_of(record),
                    entry_id,
                    born,
                    record.rows,
                    record.bytes,
                    record.crc32,
                    record.min_time_ms,
                    record.max_time_ms,
                    record.columns,
                    record.location,
                    record.fingerprint,
                    at.place if at else record.place,
                    self.cuts.get(record.name, ()),
                )
                for record, at in ((record, self._moved_to(record)) for record in records)
            ]
        return found

    def within(self, start: int | None = None, end: int | None = None) -> Snapshot:
        """This snapshot's segments that overlap ``[start, end)``, as :meth:`SnapshotReader.take` would choose them."""
        interval = Interval(MIN_MS if start is None else start, MAX_MS if end is None else end)
        chosen = (
            (shard, [record for record in records if _is_within(record, self.cuts.get(record.name, ()), interval)])
            for shard, records in self.blocks
            if shard.name.interval.overlaps(interval)
        )
        return replace(self, interval=interval, blocks=tuple((shard, records) for shard, records in chosen if records))

    def only(self, keys: Collection[str]) -> Snapshot:
        """This snapshot's segments whose object keys are among ``keys``."""
        wanted = frozenset(keys)
        chosen: list[tuple[Shard, Sequence[SegmentRecord]]] = []
        at = iter(self.files)
        for shard, records in self.blocks:
            if kept := [record for record, key in zip(records, at, strict=False) if key in wanted]:
                chosen.append((shard, kept))
        return replace(self, blocks=tuple(chosen))

    def store_of(self, tiered: OffloadContext | None) -> ObjectStore:
        """The store that has what lies at ``tiered`` (``Segment.tiered``; ``None`` is primary storage).

        Raises :class:`StorageError` when that is a tiered storage this snapshot was not taken with.
        """
        if tiered is None:
            return self.storage
        if self.tiered is None or self.tiered.uri != tiered.uri:
            here = "none" if self.tiered is None else self.tiered.uri
            raise StorageError(
                f"table {self.table!r}: a segment lives in tiered storage {tiered.uri} only, and the tiered storage "
                f"here is {here}; open the cluster with that one"
            )
        return self.tiered

    def stores(self) -> list[ObjectStore]:
        """The stores that the snapshot's objects are in. Raises what :meth:`store_of` raises."""
        places = dict.fromkeys(record.location for record in self._records())
        return [self.store_of(place) for place in places]

    def _moved_to(self, record: SegmentRecord) -> Upgrade | None:
        """The further place in which a segment is seen; ``None`` for its own."""
        version = self.moved.get(record.name) if record.upgrades else None
        return next((one for one in record.upgrades if one.version == version), None)

    def _tiered_key(self, entry_id: str, record: SegmentRecord) -> str:
        return ledger_prefix(self.table, entry_id, record.offload) + record.file

    def _records(self) -> Iterator[SegmentRecord]:
        return (record for _, records in self.blocks for record in records)


@dataclass(frozen=True, slots=True)
class Standing:
    """A registered segment and where it stands."""

    segment: Segment
    state: SegmentState


@dataclass(slots=True)
class _Holding:
    """Takes the lease of one snapshot, and gives it back.

    The lease comes after the snapshot, so a removal in between would not wait for it. Every removal changes the
    registry's root before the first object may go: a root that is still as the snapshot saw it, read after the lease
    was made, proves that there was none. Otherwise the snapshot is taken again, under the lease.
    """

    reader: SnapshotReader
    owner: str
    as_of: str | None
    root_version: int
    held: list[Lease] = field(default_factory=list)

    def enter(self, taken: Snapshot) -> Snapshot:
        """The snapshot, or a newer one, under a lease."""
        lease = self.reader.leases.take(self.owner)
        try:
            if self.reader.registry.root().version != self.root_version:
                taken = self.reader.retake(taken.interval, self.as_of)
        except BaseException:
            lease.release()
            raise
        self.held.append(lease)
        return replace(taken, lease=lease, _holding=None)

    def leave(self, *, failed: bool) -> None:
        """Give the lease back; an error that is on its way is not hidden by a lost lease."""
        lease = self.held.pop()
        try:
            if not failed:
                lease.check()
        finally:
            lease.release()


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Takes snapshots of one table."""

    table: str
    records: LineageRecords
    registry: Registry
    storage: ObjectStore
    leases: Leases
    tiered: ObjectStore | None = None

    def take(
        self, start: int | None = None, end: int | None = None, *, as_of: str | None = None, owner: str = ""
    ) -> Snapshot:
        """The visible segments of chunks and segments that overlap ``[start, end)`` (UTC milliseconds; ``None`` is
        open).

        ``as_of`` takes the table as it was right after that lineage entry was completed. In a ``with`` block the
        snapshot holds a lease for ``owner``, which people see who wonder what a deletion waits for. Raises
        :class:`ValueError` for an empty range, :class:`TableNotFoundError`, :class:`EntryNotFoundError`,
        :class:`SnapshotRefusedError` when the past is no longer there in full, and :class:`CorruptRecordError`.
        """
        interval = Interval(MIN_MS if start is None else start, MAX_MS if end is None else end)
        return self._take(interval, as_of, owner or f"{socket.gethostname()}:{os.getpid()}")[1]

    def retake(self, interval: Interval, as_of: str | None) -> Snapshot:
        """The snapshot once more, for one that has just got its lease."""
        return self._take(interval, as_of, "")[1]

    def visible(self, interval: Interval = ALL_TIME, /) -> tuple[StoredLineage, Collection[str]]:
        """The lineage and, under exactly that lineage, the names of the visible segments of ``interval``."""
        stored, snapshot = self._take(interval, None, "")
        return stored, snapshot.names

    def standings(self, start: int | None = None, end: int | None = None) -> list[Standing]:
        """Where each registered segment of ``[start, end)`` stands, in order of time: in the place in which it is seen,
        else in its own. For people: a picture, not a snapshot."""
        interval = Interval(MIN_MS if start is None else start, MAX_MS if end is None else end)
        stored = self.records.read()
        view = _present(stored)
        read = self.registry.read(lambda _: True, interval)
        visible = _Visible.of(self.table, view, [one for one in read.shards if view.may_show(one.name)])
        running = {entry.entry_id for entry in stored.lineage.in_state(EntryState.IN_PROGRESS)}
        found: list[Standing] = []
        for shard in _in_time_order(read.shards):
            settled = view.may_show(shard.name)
            if settled or shard.name.entry_id in running:
                whole = self._snapshot(0, ALL_TIME, ((shard, shard.records),), visible.cuts, visible.moved)
                states = (visible.state_of(shard, one) if settled else SegmentState.STANDBY for one in shard.records)
                found += [Standing(segment, state) for segment, state in zip(whole.segments, states, strict=True)]
        return found

    def staged(self, shards: Sequence[Shard]) -> Snapshot:
        """The segments of one entry's shards as a snapshot of their own, for looking at a push before its switch."""
        return self._snapshot(0, ALL_TIME, tuple((shard, shard.records) for shard in _in_time_order(shards)), {}, {})

    def _take(self, interval: Interval, as_of: str | None, owner: str) -> tuple[StoredLineage, Snapshot]:
        for _ in range(_ATTEMPTS):
            stored = self.records.read()
            view = _present(stored) if as_of is None else self._past(stored, as_of)
            read = self.registry.read(view.may_show, interval)
            if read.root.root.removed_at > stored.zxid:
                continue
            if as_of is not None and read.root.root.history_floor > view.horizon:
                raise _forgotten(self.table, as_of)
            visible = _Visible.of(self.table, view, read.shards)
            taken = self._snapshot(stored.zxid, interval, visible.blocks(interval), visible.cuts, visible.moved)
            holding = _Holding(self, owner, as_of, read.root.version) if owner else None
            return stored, replace(taken, _holding=holding)
        raise ContentionError(f"snapshot of table {self.table!r}: a clean-up overtook all {_ATTEMPTS} attempts")

    def _snapshot(self, zxid: int, interval: Interval, blocks: _Blocks, cuts: _Cuts, moved: _Moved) -> Snapshot:
        return Snapshot(self.table, zxid, interval, blocks, self.storage, cuts, self.tiered, moved)

    def _past(self, stored: StoredLineage, as_of: str) -> _View:
        """The lineage as it was right after ``as_of`` was completed, put together from the guards' zxids."""
        entry = find(stored.lineage, as_of)
        guards = self.records.guards(stored.lineage.entries)
        if entry.state is not EntryState.COMPLETED or as_of not in guards:
            raise SnapshotRefusedError(
                "not-completed", f"snapshot refused: the entry is {entry.state.value}", table=self.table, entry_id=as_of
            )
        horizon = guards[as_of].changed
        past = Lineage(stored.lineage.table, custom_map=stored.lineage.custom_map)
        for one in stored.lineage:
            past = past.put(one.moved_to(_state_at(guards.get(one.entry_id), one.state, horizon), one.timestamp_ms))
        return _View(past, horizon)


@dataclass(frozen=True)
class _View:
    """A lineage and the zxid up to which entries may have been born."""

    lineage: Lineage
    horizon: int

    def may_show(self, name: ShardName) -> bool:
        """Whether the shard's entry is completed, or has left the lineage and so is settled."""
        return is_settled(self.lineage, name.entry_id)

    @cached_property
    def hidden(self) -> set[str]:
        """Names the lineage hides."""
        return hidden_names(self.lineage)


def _present(stored: StoredLineage) -> _View:
    return _View(stored.lineage, stored.zxid)


def _state_at(guard: StoredGuard | None, state: EntryState, horizon: int) -> EntryState:
    """The state an entry had at ``horizon``. Without a guard (another tool made it) its present state has to do."""
    if guard is None or guard.changed <= horizon:
        return state
    if guard.guard.state is GuardState.REVERTED and 0 < guard.guard.completed_at <= horizon:
        return EntryState.COMPLETED
    return EntryState.IN_PROGRESS if guard.guard.state is not GuardState.REVERTED else EntryState.REVERTED


@dataclass(frozen=True, slots=True)
class _Visible:
    """The filters, one after the other: the lineage, then the timeline for the segments that have a place in it."""

    view: _View
    shards: Sequence[Shard]
    overlay: Overlay | None

    @classmethod
    def of(cls, table: str, view: _View, shards: Sequence[Shard]) -> _Visible:
        born = [shard for shard in _in_time_order(shards) if shard.born <= view.horizon]
        placed = [one for shard in born for one in _placed(shard)]
        return cls(view, born, overlay(table, view.lineage, view.hidden, placed) if placed else None)

    @property
    def cuts(self) -> _Cuts:
        """Where what is visible is so in a part of its time only."""
        if self.overlay is None:
            return {}
        return {name: parts for name, parts in self.overlay.visible.items() if parts}

    @property
    def moved(self) -> _Moved:
        """The version in which a segment of several places is seen."""
        return self.overlay.moved if self.overlay is not None else {}

    def blocks(self, interval: Interval) -> _Blocks:
        """What is visible of chunks and segments that overlap ``interval``."""
        found = [(shard, self._shown(shard)) for shard in self.shards]
        if interval != ALL_TIME:
            cuts = self.cuts
            found = [
                (shard, [one for one in shown if _is_within(one, cuts.get(one.name, ()), interval)])
                for shard, shown in found
            ]
        return tuple((shard, shown) for shard, shown in found if shown)

    def state_of(self, shard: Shard, record: SegmentRecord) -> SegmentState:
        """Where a segment of a settled entry stands."""
        if self.overlay is not None and record.place is not None:
            return self.overlay.state_of(next(_places(shard, record)))
        return SegmentState.OVERSHADOWED if record.name in self.view.hidden else SegmentState.VISIBLE

    def _shown(self, shard: Shard) -> list[SegmentRecord]:
        if self.overlay is not None and _has_places(shard):
            return [record for record in shard.records if record.name in self.overlay.visible]
        hidden = self.view.hidden
        return [record for record in shard.records if record.name not in hidden] if hidden else shard.records


def _has_places(shard: Shard) -> bool:
    """A stage gives all its segments a place, or none, and a shard is one stage's."""
    return bool(shard.records) and shard.records[0].place is not None


def _placed(shard: Shard) -> Iterator[Placed]:
    if _has_places(shard):
        for record in shard.records:
            yield from _places(shard, record)


def _places(shard: Shard, record: SegmentRecord) -> Iterator[Placed]:
    return places_of(shard.name.entry_id, parse_chunk(shard.chunk_of(record)), record)


def _is_within(record: SegmentRecord, parts: Sequence[Interval], interval: Interval) -> bool:
    """Whether a part of the segment that is visible reaches into the interval."""
    return _overlaps(record, interval) and (not parts or any(part.overlaps(interval) for part in parts))


def _overlaps(record: SegmentRecord, interval: Interval) -> bool:
    """Whether the segment's own times reach into the interval. Both of its ends are inclusive."""
    if record.min_time_ms is None or record.max_time_ms is None:
        return record.chunk is None or parse_chunk(record.chunk).overlaps(interval)
    return record.min_time_ms < interval.end_ms and record.max_time_ms >= interval.start_ms


def _in_time_order(shards: Sequence[Shard]) -> list[Shard]:
    return sorted(shards, key=lambda shard: (shard.name.interval.start_ms, shard.name.path))


def _forgotten(table: str, as_of: str) -> SnapshotRefusedError:
    return SnapshotRefusedError(
        "history-cleaned",
        "snapshot refused: segments that were visible then have been cleaned up",
        table=table,
        entry_id=as_of,
        hint="Lengthen replacedSegmentsRetentionPeriod to keep more history.",
    )
