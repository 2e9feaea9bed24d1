"""What is visible: the one place that decides it.

A row is seen if and only if the push that brought it is COMPLETED, no COMPLETED entry replaces its segment, and no
later COMPLETED overwrite holds its time. :class:`Visibility` is that rule as a pure function of a lineage and registry
shards: first the names that the lineage hides (:mod:`.lineage.hiding`), then the time that overwrites hold
(:mod:`.versions.overwrites`).

A snapshot is the lineage at zxid v and, of the registry read *after* it, the segments born at or before v. Writers
cannot starve readers: a push that starts or ends meanwhile changes nothing at v. Only a removal can; the registry's
root says so, and then the reader takes a newer lineage. ``tests/model`` explores every interleaving of this with
pushes, reverts and clean-ups, and shows a bad history for each part of the rule that is left out.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType, TracebackType

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry, Overwrite
from airflow_provider_segments.core.lineage.fallback import fallen_back
from airflow_provider_segments.core.lineage.guard import GuardState, StoredGuard
from airflow_provider_segments.core.lineage.hiding import hidden_names, is_settled
from airflow_provider_segments.core.lineage.records import LineageRecords, StoredLineage
from airflow_provider_segments.core.model.interval import ALL_TIME, MAX_MS, MIN_MS, Interval, parse_chunk
from airflow_provider_segments.core.model.ledger import OffloadContext, ledger_prefix
from airflow_provider_segments.core.model.segment import Segment, SegmentRecord, SegmentState
from airflow_provider_segments.core.registry.leases import Lease, Leases
from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.registry.shard import Shard, ShardName
from airflow_provider_segments.core.storage.base import ObjectStore, entry_prefix
from airflow_provider_segments.core.upsert.record import record_of, require_record
from airflow_provider_segments.core.upsert.view import at_mark
from airflow_provider_segments.core.versions.overwrites import Parts, TimeFilter, Window
from airflow_provider_segments.exceptions import ContentionError, LeaseLostError, SnapshotRefusedError, StorageError

Blocks = tuple[tuple[Shard, Sequence[SegmentRecord]], ...]
"""Segments as they are registered: shards, and the records of each that are meant."""

_Cuts = Mapping[str, Parts]

_ATTEMPTS = 50  # each failure needs a new clean-up of this table within the milliseconds of a read


@dataclass(frozen=True)
class Snapshot:
    """The segments of one table that belong together, and the lineage ``zxid`` they were taken at.

    ``interval`` is the asked-for time range; segments are whole, so rows outside of it are the reader's to filter.
    ``cuts`` has, by name, the parts of a segment's time in which it is visible where that is not all of it: rows
    outside of them must be filtered, too. ``lineage`` is the lineage it was taken under. Lists are in the order of the
    registry's time chunks. ``len()`` is the number of segments; totals count them whole.

    Of an upsert table it is what readers see at version ``mark``: the objects also hold rows that are not valid then,
    which ``update_logs`` tell. Read them with :mod:`airflow_provider_segments.upsert.reading` or in Spark."""

    table: str
    zxid: int
    interval: Interval
    blocks: Blocks = field(repr=False)
    storage: ObjectStore = field(repr=False, compare=False)
    cuts: _Cuts = field(default_factory=lambda: MappingProxyType({}), repr=False)
    tiered: ObjectStore | None = field(default=None, repr=False, compare=False)
    lineage: Lineage | None = field(default=None, repr=False, compare=False)
    mark: int | None = None
    update_logs: Blocks = field(default=(), repr=False)
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
                    shard.chunk_of(record),
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
                    record.version,
                    record.partition,
                    self.cuts.get(record.name, ()),
                    record.key_partition,
                )
                for record in records
            ]
        return found

    def logs(self) -> Snapshot:
        """The update logs of an upsert table, as a snapshot of them."""
        return replace(self, blocks=self.update_logs, update_logs=(), cuts=MappingProxyType({}), mark=None)

    def within(self, start: int | None = None, end: int | None = None) -> Snapshot:
        """This snapshot's segments that overlap ``[start, end)``, as :meth:`SnapshotReader.take` would choose them."""
        interval = _interval(start, end)
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

    def _tiered_key(self, entry_id: str, record: SegmentRecord) -> str:
        return ledger_prefix(self.table, entry_id, record.offload) + record.file

    def _records(self) -> Iterator[SegmentRecord]:
        return (record for _, records in self.blocks for record in records)


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """A registered segment and its state."""

    segment: Segment
    state: SegmentState


@dataclass(slots=True)
class _Holding:
    """Takes the lease of one snapshot, and gives it back.

    The lease comes after the snapshot, so a removal in between would not wait for it. Every removal changes the
    registry's root before the first object may go: a root that is still as the snapshot saw it, read after the lease
    was made, proves that there was none. Otherwise the snapshot is taken again, under the lease. ``root_version`` is
    that of before the shards were read: an offload between the two would else leave us with addresses that are going.
    """

    reader: SnapshotReader
    owner: str
    as_of: str | None
    root_version: int
    mark: int | None = None
    held: list[Lease] = field(default_factory=list)

    def enter(self, taken: Snapshot) -> Snapshot:
        """The snapshot, or a newer one, under a lease."""
        lease = self.reader.leases.take(self.owner)
        try:
            if self.reader.registry.root().version != self.root_version:
                taken = self.reader.retake(taken.interval, self.as_of, self.mark)
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

    cluster: Cluster
    table: str

    @property
    def records(self) -> LineageRecords:
        """The table's lineage and guards."""
        return LineageRecords(self.cluster, self.table)

    @property
    def registry(self) -> Registry:
        """The table's registry."""
        return Registry(self.cluster, self.table)

    @property
    def leases(self) -> Leases:
        """The leases of the table's readers."""
        return Leases(self.cluster, self.table)

    def take(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        as_of: str | None = None,
        mark: int | None = None,
        owner: str = "",
        known: Snapshot | None = None,
    ) -> Snapshot:
        """The visible segments of chunks and segments that overlap ``[start, end)`` (UTC milliseconds; ``None`` is
        open).

        ``as_of`` takes the table as it was right after that lineage entry was completed; ``mark`` takes an upsert table
        at that version, by default the newest. In a ``with`` block the snapshot holds a lease for ``owner``, which
        people see who wonder what a deletion waits for. ``known`` is a snapshot that was taken before, outside of a
        ``with`` block: it is returned when the same request would give the same, which one look at two versions tells.
        Raises :class:`ValueError` for an empty range,
        :class:`TableNotFoundError`, :class:`EntryNotFoundError`, :class:`SnapshotRefusedError` when the past is no
        longer there in full, :class:`UpsertRefusedError` for a mark that cannot be read, and
        :class:`CorruptRecordError`.
        """
        reader = owner or f"{socket.gethostname()}:{os.getpid()}"
        interval = _interval(start, end)
        if known is not None and self._is_current(known, _Holding(self, reader, as_of, 0, mark), interval):
            return known
        stored, taken = self._take(interval, as_of, reader, mark)
        return self._marked(stored, taken, mark, as_of)

    def _is_current(self, known: Snapshot, asked: _Holding, interval: Interval) -> bool:
        """Return True if nothing that readers see has changed since ``known`` was taken, as ``asked`` and of
        ``interval``.

        What is visible is decided by the lineage, over shards that a settled entry no longer adds to: they only lose
        segments, or say that one is in tiered storage only, and both change the registry's root. So with the root as
        the snapshot saw it, asked after a lineage that is the same, there was nothing to see. The past is read anew.
        """
        holding = known._holding
        if holding is None or holding.as_of is not None or asked.as_of is not None:
            return False
        same = (known.table, known.interval, holding.owner, holding.mark) == (
            self.table, interval, asked.owner, asked.mark,
        )  # fmt: skip
        if not same or holding.reader.cluster is not self.cluster:
            return False
        lineage, root = self.cluster.session.stats([self.records.path, self.registry.path])
        return lineage is not None and root is not None and (lineage[1], root[0]) == (known.zxid, holding.root_version)

    def held_back(self) -> Snapshot:
        """The segments of an upsert table whose rows wait to be resolved: no mark shows them."""
        stored, taken = self._take(ALL_TIME, None, "")
        record = require_record(stored.lineage)
        return replace(taken, blocks=at_mark(stored.lineage, record, taken.blocks, record.clock).held_back)

    def retake(self, interval: Interval, as_of: str | None, mark: int | None) -> Snapshot:
        """The snapshot once more, for one that has just got its lease."""
        stored, taken = self._take(interval, as_of, "")
        return self._marked(stored, taken, mark, as_of)

    def _marked(self, stored: StoredLineage, taken: Snapshot, mark: int | None, as_of: str | None) -> Snapshot:
        """The snapshot at a mark, when the table is an upsert table. One read gave lineage and marks."""
        record = require_record(stored.lineage) if mark is not None else record_of(stored.lineage)
        if record is None:
            return taken
        if as_of is not None:
            raise SnapshotRefusedError(
                "upsert-as-of",
                "snapshot refused: the past of an upsert table is read by version",
                table=self.table,
                entry_id=as_of,
                hint="Give a mark instead of an entry.",
            )
        checked = record.check_mark(mark, self.table)
        blocks = at_mark(stored.lineage, record, taken.blocks, checked)
        return replace(taken, blocks=blocks.segments, update_logs=blocks.update_logs, mark=checked)

    def visible(self, interval: Interval = ALL_TIME) -> tuple[StoredLineage, Snapshot]:
        """The lineage and, under exactly that lineage, the visible segments of ``interval``."""
        return self._take(interval, None, "")

    def fallen_back(self, lineage: Lineage, interval: Interval = ALL_TIME) -> tuple[frozenset[str], frozenset[str]]:
        """The rewrites in ``interval`` that readers fall back from, and the names that are registered there."""
        shards = self.registry.read(lambda name: is_settled(lineage, name.entry_id), interval).shards
        names = frozenset(record.name for shard in shards for record in shard.records)
        return _fallen_back(lineage, shards, interval), names

    def states(self, start: int | None = None, end: int | None = None) -> list[SegmentStatus]:
        """The state of each registered segment whose time chunk overlaps ``[start, end)``, in order of time. For
        people: a picture, not a snapshot."""
        interval = _interval(start, end)
        stored = self.records.read()
        shards = self.registry.read(lambda _: True, interval).shards
        found: list[SegmentStatus] = []
        by_shard, cuts = states_by_shard(_present(stored), shards, interval)
        for shard, states in by_shard:
            segments = self._snapshot(stored, ALL_TIME, ((shard, shard.records),), cuts).segments
            both = zip(segments, states, strict=True)
            found += [SegmentStatus(one, state) for one, state in both if one.interval.overlaps(interval)]
        return found

    def staged(self, shards: Sequence[Shard]) -> Snapshot:
        """The segments of one entry's shards as a snapshot of their own, for looking at a push before its switch."""
        blocks = tuple((shard, shard.records) for shard in _in_time_order(shards))
        return Snapshot(self.table, 0, ALL_TIME, blocks, self.cluster.storage, tiered=self.cluster.tiered)

    def _take(
        self, interval: Interval, as_of: str | None, owner: str, mark: int | None = None
    ) -> tuple[StoredLineage, Snapshot]:
        for _ in range(_ATTEMPTS):
            stored = self.records.read()
            view = _present(stored) if as_of is None else self._past(stored, as_of)
            read = self.registry.read(view.may_show, interval)
            if read.root.root.removed_at > stored.zxid:
                continue
            if as_of is not None and read.root.root.history_floor > view.horizon:
                raise _forgotten(self.table, as_of)
            visible = Visibility(view, _in_time_order(read.shards), interval)
            taken = self._snapshot(stored, interval, visible.blocks, visible.cuts)
            holding = _Holding(self, owner, as_of, read.version, mark) if owner else None
            return stored, replace(taken, _holding=holding)
        raise ContentionError(f"snapshot of table {self.table!r}: a clean-up overtook all {_ATTEMPTS} attempts")

    def _snapshot(self, stored: StoredLineage, interval: Interval, blocks: Blocks, cuts: _Cuts) -> Snapshot:
        return Snapshot(
            self.table,
            stored.zxid,
            interval,
            blocks,
            self.cluster.storage,
            cuts,
            self.cluster.tiered,
            stored.lineage,
        )

    def _past(self, stored: StoredLineage, as_of: str) -> View:
        """The lineage as it was right after ``as_of`` was completed, put together from the guards' zxids."""
        entry = stored.lineage.find(as_of)
        guards = self.records.guards(stored.lineage.entries)
        if entry.state is not EntryState.COMPLETED or as_of not in guards:
            raise SnapshotRefusedError(
                "not-completed", f"snapshot refused: the entry is {entry.state.value}", table=self.table, entry_id=as_of
            )
        return past_view(stored.lineage, guards, guards[as_of].changed)


@dataclass(frozen=True)
class View:
    """A lineage and the zxid up to which entries may have been born."""

    lineage: Lineage
    horizon: int

    def may_show(self, name: ShardName) -> bool:
        """Return True if the shard's entry is COMPLETED, or has left the lineage and so is settled."""
        return is_settled(self.lineage, name.entry_id)


def past_view(lineage: Lineage, guards: Mapping[str, StoredGuard], zxid: int) -> View:
    """The lineage as it was at an earlier ``zxid``, put together from the guards of its entries."""
    entries = {one.entry_id: _at(one, guards.get(one.entry_id), zxid) for one in lineage}
    return View(replace(lineage, entries=MappingProxyType(entries)), zxid)


def _present(stored: StoredLineage) -> View:
    return View(stored.lineage, stored.zxid)


def _at(entry: LineageEntry, guard: StoredGuard | None, zxid: int) -> LineageEntry:
    """The entry in the state it had at ``zxid``. Without a guard (another tool made it) its present state has to do."""
    if guard is None or guard.changed <= zxid:
        return entry
    state = _ENTRY_STATES[guard.state_at(zxid)]
    return entry if state is entry.state else entry.moved_to(state, entry.timestamp_ms)


_ENTRY_STATES = {
    GuardState.OPEN: EntryState.IN_PROGRESS,
    GuardState.COMPLETED: EntryState.COMPLETED,
    GuardState.REVERTED: EntryState.REVERTED,
}


class Visibility:
    """The one rule for what readers see, over the shards of settled entries that share time with an interval.

    ``blocks`` are the visible segments that share time with the interval; ``cuts`` has the parts of their time in which
    they are visible, for those that an overwrite hides in part.
    """

    def __init__(self, view: View, shards: Sequence[Shard], interval: Interval = ALL_TIME) -> None:
        born = [shard for shard in shards if shard.born <= view.horizon]
        self._lineage = view.lineage
        self._fallen_back = _fallen_back(view.lineage, born, interval)
        self._hidden = hidden_names(view.lineage, self._fallen_back)
        self._partial = view.lineage.partial
        self._times = TimeFilter(_near(view.lineage, born))
        self._cuts: dict[str, Parts] = {}
        found = [(shard, self._visible(shard)) for shard in born]
        if interval != ALL_TIME:
            found = [(shard, [one for one in shown if self._is_within(one, interval)]) for shard, shown in found]
        self.blocks: Blocks = tuple((shard, shown) for shard, shown in found if shown)

    @property
    def cuts(self) -> _Cuts:
        """The parts of their time in which segments are visible that an overwrite hides in part."""
        return self._cuts

    def states(self, shard: Shard) -> list[SegmentState]:
        """The states of a shard's segments, in their order."""
        visible = {record.name for record in self._visible(shard)}
        hidden = SegmentState.STANDBY if shard.name.entry_id in self._fallen_back else SegmentState.OVERSHADOWED
        return [SegmentState.VISIBLE if record.name in visible else hidden for record in shard.records]

    def _visible(self, shard: Shard) -> Sequence[SegmentRecord]:
        shown = self._unhidden(shard)
        if not self._times:
            return shown
        whole = self._times.window(shard.name.interval)  # of all chunks that the shard keeps
        if not whole.newest:
            return shown
        # The newest and the oldest of the whole time bound those of each chunk in it: most segments need no more.
        newest, oldest = whole.newest, whole.oldest
        return [
            record
            for record in shown
            if record.version >= newest
            or (record.version >= oldest and self._has_visible_part(record, self._window(record, whole)))
        ]

    def _unhidden(self, shard: Shard) -> Sequence[SegmentRecord]:
        """The lineage's filter: no name that it hides, and of a partial entry only what is its ``to``."""
        shown: Sequence[SegmentRecord] = shard.records
        if self._hidden:
            shown = [record for record in shown if record.name not in self._hidden]
        if shard.name.entry_id not in self._partial:
            return shown
        if shard.name.attempt_name not in self._partial[shard.name.entry_id]:
            return []
        brought = frozenset(self._lineage.entries[shard.name.entry_id].segments_to)
        return [record for record in shown if record.name in brought]

    def _window(self, record: SegmentRecord, whole: Window) -> Window:
        return whole if record.chunk is None else self._times.window(parse_chunk(record.chunk))

    def _has_visible_part(self, record: SegmentRecord, window: Window) -> bool:
        """The time filter: return True if some of the segment's time is visible, and note which if it is not all."""
        if record.version >= window.newest:
            return True
        parts = window.visible_parts(record.version)
        if parts:
            self._cuts[record.name] = parts
        return parts is not None

    def _is_within(self, record: SegmentRecord, interval: Interval) -> bool:
        return _is_within(record, self._cuts.get(record.name, ()), interval)


def states_by_shard(
    view: View, shards: Iterable[Shard], interval: Interval = ALL_TIME
) -> tuple[list[tuple[Shard, list[SegmentState]]], _Cuts]:
    """The states of the segments of each shard whose entry is settled or in progress, in the order of time, and the
    parts of their time in which segments are visible that an overwrite hides in part. ``shards`` are those whose time
    chunk overlaps ``interval``."""
    ordered = _in_time_order(shards)
    visible = Visibility(view, [shard for shard in ordered if view.may_show(shard.name)], interval)
    running = {entry.entry_id for entry in view.lineage.in_state(EntryState.IN_PROGRESS)}
    found: list[tuple[Shard, list[SegmentState]]] = []
    for shard in ordered:
        if view.may_show(shard.name):
            found.append((shard, visible.states(shard)))
        elif shard.name.entry_id in running:
            found.append((shard, [SegmentState.STANDBY] * len(shard.records)))
    return found, visible.cuts


def _fallen_back(lineage: Lineage, shards: Sequence[Shard], interval: Interval) -> frozenset[str]:
    """The rewrites in ``interval`` that readers fall back from: see :mod:`.lineage.fallback`."""
    rewrites = {entry_id for entry_id, chunk in lineage.rewrites.items() if chunk.overlaps(interval)}
    if not rewrites:
        return frozenset()
    registered: dict[str, set[str]] = {entry_id: set() for entry_id in rewrites}
    for shard in shards:
        if shard.name.entry_id in registered:
            registered[shard.name.entry_id].update(record.name for record in shard.records)
    return fallen_back(lineage, registered)


def _near(lineage: Lineage, shards: Sequence[Shard]) -> list[Overwrite]:
    """The overwrites in force in the time of ``shards``: a reader of one day sorts only those of that day."""
    overwrites = lineage.overwrites_in_force
    if not overwrites or not shards:
        return []
    chunks = {shard.name.chunk: shard.name.interval for shard in shards}.values()
    start, end = min(chunk.start_ms for chunk in chunks), max(chunk.end_ms for chunk in chunks)
    return [one for one in overwrites if one.start_ms < end and start < one.end_ms]


def _interval(start: int | None, end: int | None) -> Interval:
    return Interval(MIN_MS if start is None else start, MAX_MS if end is None else end)


def _is_within(record: SegmentRecord, parts: Sequence[Interval], interval: Interval) -> bool:
    """Whether a part of the segment that is visible reaches into the interval."""
    return _overlaps(record, interval) and (not parts or any(part.overlaps(interval) for part in parts))


def _overlaps(record: SegmentRecord, interval: Interval) -> bool:
    """Whether the segment's own times reach into the interval. Both of its ends are inclusive."""
    if record.min_time_ms is None or record.max_time_ms is None:
        return record.chunk is None or parse_chunk(record.chunk).overlaps(interval)
    return record.min_time_ms < interval.end_ms and record.max_time_ms >= interval.start_ms


def _in_time_order(shards: Iterable[Shard]) -> list[Shard]:
    return sorted(shards, key=lambda shard: (shard.name.interval.start_ms, shard.name.path))


def _forgotten(table: str, as_of: str) -> SnapshotRefusedError:
    return SnapshotRefusedError(
        "history-cleaned",
        "snapshot refused: segments that were visible then have been cleaned up",
        table=table,
        entry_id=as_of,
        hint="Lengthen replacedSegmentsRetentionPeriod to keep more history.",
    )
