"""Offloading segments to tiered storage.

An offload is announced before it writes: ``OFFLOADS/<table>/<uuid>`` lists what may be copied, and stands until one
transaction has recorded the copies in the registry and queued, for deletion, those of segments that left meanwhile. So
a copy is at every moment announced, registered or queued. An ephemeral claim below the record says that its run is
alive; a record without one is of a run that was killed, and the next call goes on with it.

The primary copy goes in a later call, at the earliest ``primary_lag_ms`` after: one transaction stops the registry
pointing to it, queues it, and touches the registry's root, so that a reader that is about to take its lease looks
again. Readers with an older lease keep it until they end. The two copies are then deleted each by its own message.

What is left: a write of a run that lost its claim long ago may land after its offload is over. Reconciliation finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import msgspec

from airflow_provider_segments.clock import Clock
from airflow_provider_segments.core.binding import StoreRole, check_store
from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.deletion.messages import in_batches, totals
from airflow_provider_segments.core.deletion.queue import DeletionQueue
from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.model.ledger import (
    DeletionBatch,
    LedgerType,
    OffloadContext,
    PendingDeleteLedgerInfo,
    generation_of,
    ledger_prefix,
    owner_metadata,
)
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry import shard as shards
from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.registry.shard import Shard, ShardName
from airflow_provider_segments.core.snapshot import Blocks, SnapshotReader
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.tiering import records
from airflow_provider_segments.core.tiering.copying import DamagedError, check_object, copy_segment
from airflow_provider_segments.core.tiering.records import OffloadRecord, OffloadReport, PlannedShard
from airflow_provider_segments.core.zookeeper import Create, Delete, Op, SetData, ZooKeeperSession
from airflow_provider_segments.exceptions import SegmentsError

_PLAN_SEGMENTS = 256
_REQUEST = 900_000  # bytes of one recording transaction, as estimated
_MARK_SEGMENTS = 1000

Progress = Callable[[OffloadReport], None]
_Item = tuple[Shard, SegmentRecord]
_Names = frozenset[tuple[str, str]]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Claimed:
    """An announced offload that this run works on; any other claim of it changes ``version``."""

    path: str
    record: OffloadRecord
    version: int

    @property
    def claim(self) -> str:
        return f"{self.path}/claim"


@dataclass(frozen=True, slots=True)
class Offloader:
    """Offloads one table's segments from ``primary`` to ``tiered`` storage. ``sent`` counts the messages that were
    queued, by ledger type. ``parallel`` copies run at once, each with a temporary file below ``scratch`` (by default
    the system's folder for them)."""

    cluster: Cluster
    table: str
    tiered: ObjectStore
    sent: Counter[str] = field(default_factory=Counter)
    parallel: int = 4
    scratch: Path | None = None

    @property
    def primary(self) -> ObjectStore:
        """Where the segments are now."""
        return self.cluster.storage

    @property
    def session(self) -> ZooKeeperSession:
        """The cluster's ZooKeeper session."""
        return self.cluster.session

    @property
    def clock(self) -> Clock:
        """The cluster's clock."""
        return self.cluster.clock

    @property
    def registry(self) -> Registry:
        """The table's registry."""
        return Registry(self.cluster, self.table)

    def _visible(self) -> Blocks:
        return SnapshotReader(self.cluster, self.table).take().blocks

    def run(
        self,
        *,
        older_than_ms: int,
        primary_lag_ms: int,
        max_segments: int | None = None,
        progress: Progress | None = None,
    ) -> OffloadReport:
        """Mark primary copies whose lag is over, finish what killed runs have left, then offload at most
        ``max_segments`` visible segments that ended more than ``older_than_ms`` ago.

        Running it again is harmless, at any moment and by several at once. ``progress`` gets the totals so far. Raises
        :class:`StorageError` when a store cannot be used (the next call goes on from there), and
        :class:`WrongStoreError`. The first offload binds the cluster to its tiered storage.
        """
        check_store(self.cluster, StoreRole.PRIMARY)
        check_store(self.cluster, StoreRole.TIERED, bind=True)
        report = OffloadReport(self.table, self.tiered.uri)
        tell: Progress = progress or _quiet
        self._mark_primary(primary_lag_ms, report, tell)
        taken = self._resume(report, tell)
        room = None if max_segments is None else max(max_segments - report.offloaded, 0)
        for plan in self._plans(older_than_ms, taken, room, report):
            claimed = self._announce(plan)
            self._work(claimed, report)
            tell(report)
        return report

    # --- choosing

    def _plans(
        self, older_than_ms: int, taken: set[str], room: int | None, report: OffloadReport
    ) -> Iterator[tuple[PlannedShard, ...]]:
        """Old segments in groups that one transaction can record. ``taken`` are those another offload holds."""
        before = self.clock.now_ms() - older_than_ms
        left = room
        growth = 2 * len(self.tiered.uri) + 120
        plan: list[PlannedShard] = []
        size = count = 0
        for shard, visible in self._visible():
            old = [one for one in visible if _is_due(shard, one, before) and one.name not in taken]
            base = len(bytes(shard.payload)) + 500
            while old and left != 0:
                costs = [growth + 2 * (len(one.name) + len(one.file)) for one in old]
                most = min(_PLAN_SEGMENTS - count, len(old) if left is None else left)
                number = _fitting(costs, _REQUEST - size - base, most)
                if number == 0 and not plan:
                    report.full += len(old)
                    break
                if number:
                    plan.append(PlannedShard(shard.name.address, shard.born, tuple(map(_ledger, old[:number]))))
                    size, count = size + base + sum(costs[:number]), count + number
                    base += sum(costs[:number])  # the next transaction finds the shard grown by that
                    left = None if left is None else left - number
                    old = old[number:]
                if old:  # this transaction has no room for the rest
                    yield tuple(plan)
                    plan, size, count = [], 0, 0
        if plan:
            yield tuple(plan)

    # --- announcing and claiming

    def _announce(self, plan: tuple[PlannedShard, ...]) -> _Claimed:
        """Say what is about to be written, and claim it."""
        uuid, mine = self.clock.new_id(), self.clock.new_id().encode()
        record = OffloadRecord(OffloadContext.at(self.tiered.uri, uuid), plan, self.clock.now_ms())
        path = f"{self.cluster.paths.offloads(self.table)}/{uuid}"
        self.session.ensure([self.cluster.paths.offloads(self.table)])

        def attempt() -> _Claimed:
            claimed = _Claimed(path, record, 0)
            if self.session.get(path) is None:  # else a reply was lost: nobody else makes this name
                self.session.commit([Create(path, records.encode(record)), Create(claimed.claim, mine, ephemeral=True)])
            return claimed

        return self._retried(attempt)

    def _resume(self, report: OffloadReport, tell: Progress) -> set[str]:
        """Finish offloads of runs that are gone; returns the segments that others hold."""
        parent = self.cluster.paths.offloads(self.table)
        taken: set[str] = set()
        for uuid in self.session.children(parent):
            node = self.session.get(f"{parent}/{uuid}")
            if node is None:
                continue
            record = records.decode(node.data, f"{parent}/{uuid}")
            claimed = None
            if record.context.uri != self.tiered.uri:
                report.elsewhere += 1
            elif (claimed := self._claim(f"{parent}/{uuid}", record)) is None:
                report.busy += 1
            if claimed is None:
                taken.update(ledger.segment for planned in record.shards for ledger in planned.ledgers)
                continue
            self._work(claimed, report)
            self._discard_unfinished(record)
            report.resumed += 1
            tell(report)
        return taken

    def _claim(self, path: str, record: OffloadRecord) -> _Claimed | None:
        """The offload, if nobody alive works on it."""
        mine = self.clock.new_id().encode()

        def attempt() -> _Claimed | None:
            node, claim = self.session.get_many([path, f"{path}/claim"])
            if node is None:
                return None
            if claim is not None:  # ours when a reply was lost
                return _Claimed(path, record, node.version) if claim.data == mine else None
            claimed = _Claimed(path, record, node.version + 1)
            self.session.commit([Create(claimed.claim, mine, ephemeral=True), SetData(path, node.data, node.version)])
            return claimed

        return self._retried(attempt)

    def _discard_unfinished(self, record: OffloadRecord) -> None:
        """Remove what the writes of a run that was killed have left half-done. Only that offload wrote there."""
        for entry_id in {self._name(planned.shard).entry_id for planned in record.shards}:
            self.tiered.discard_unfinished(ledger_prefix(self.table, entry_id, record.context))

    # --- copying and recording

    def _work(self, claimed: _Claimed, report: OffloadReport) -> None:
        """Copy what is still registered, then record it. After an error the claim is given back, the record stays."""
        try:
            damaged = self._copy(claimed.record)
            recorded = self._retried(lambda: self._record(claimed, damaged))
        except BaseException:  # a task that Airflow stops, too
            with suppress(SegmentsError):  # the claim is this session's, and ends with it at the latest
                self.session.commit_many([[Delete(claimed.claim, 0)]])
            raise
        report.offloaded += len(recorded)
        report.bytes += sum(record.bytes for record in recorded)
        report.note_damaged({name: why for (name, _), why in damaged.items()})

    def _copy(self, record: OffloadRecord) -> dict[tuple[str, str], str]:
        """Copy the planned segments; says of those that could not be (by name and file) why."""
        wanted = [
            (shard, one)
            for names, shard in self._standing(record)
            for one in shard.records
            if (one.name, one.file) in names and one.offload is None and one.primary
        ]
        damaged: dict[tuple[str, str], str] = {}

        def copy(item: _Item) -> None:
            shard, one = item
            entry_id = shard.name.entry_id
            try:
                copy_segment(
                    self.primary,
                    self.tiered,
                    one,
                    self._owner(shard, one),
                    key=ledger_prefix(self.table, entry_id) + one.file,
                    tiered_key=ledger_prefix(self.table, entry_id, record.context) + one.file,
                    scratch=self.scratch,
                )
            except DamagedError as error:
                damaged[one.name, one.file] = str(error)

        self._each(copy, wanted)
        return damaged

    def _record(self, claimed: _Claimed, damaged: Mapping[tuple[str, str], str]) -> list[SegmentRecord]:
        """One transaction: the copies are registered, the others queued, the announcement ends."""
        context = claimed.record.context
        ops: list[Op] = []
        recorded: list[SegmentRecord] = []
        for names, shard in self._standing(claimed.record):
            copied = names - damaged.keys()
            fresh = {
                one.file: msgspec.structs.replace(one, offload=context, offloaded_ms=self.clock.now_ms())
                for one in shard.records
                if (one.name, one.file) in copied and one.offload is None and one.primary
            }
            recorded += [*fresh.values(), *(one for one in shard.records if one.offload == context)]
            if fresh:
                ops.append(shard.with_records(fresh.get(one.file, one) for one in shard.records))
        if self.session.get(claimed.path) is None:
            return recorded if not ops else []  # done, by us with a lost reply or by whoever took it over
        kept = {(one.name, one.file) for one in recorded}
        batches = list(self._leftovers(claimed.record, kept))
        removal = [Delete(claimed.claim, 0), Delete(claimed.path, claimed.version)]
        self.session.commit([*ops, *DeletionQueue(self.cluster).send_ops(batches), *removal])
        self._count(batches)
        return recorded

    def _leftovers(self, record: OffloadRecord, kept: set[tuple[str, str]]) -> Iterator[DeletionBatch]:
        """Messages about copies that may have been written and that no segment has."""
        for planned in record.shards:
            left = tuple(one for one in planned.ledgers if (one.segment, one.file) not in kept)
            name = self._name(planned.shard)
            if left:
                yield DeletionBatch(
                    self.table,
                    name.entry_id,
                    generation_of(name.entry_id, planned.born, name.stager, name.attempt),
                    left,
                    LedgerType.OFFLOAD_LEDGER,
                    reason="offload given up",
                    at_ms=self.clock.now_ms(),
                    offload=record.context,
                )

    # --- the primary copies

    def _mark_primary(self, lag_ms: int, report: OffloadReport, tell: Progress) -> None:
        """Give up primary copies whose tiered ones were recorded long enough ago and are still there."""
        until = self.clock.now_ms() - lag_ms
        found = [
            (shard, one)
            for shard, visible in self._visible()
            for one in visible
            if one.primary and one.offload is not None and one.offloaded_ms <= until
        ]
        here = [(shard, one) for shard, one in found if one.offload and one.offload.uri == self.tiered.uri]
        for group in _transactions(here):
            damaged: dict[str, str] = {}

            def check(item: _Item, damaged: dict[str, str] = damaged) -> None:
                shard, one = item
                key = ledger_prefix(self.table, shard.name.entry_id, one.offload) + one.file
                try:
                    check_object(self.tiered, key, one, self._owner(shard, one))
                except DamagedError as error:
                    damaged[one.name] = str(error)

            self._each(check, group)
            sound = [(shard, one) for shard, one in group if one.name not in damaged]
            marked = self._retried(lambda sound=sound: self._give_up_primary(sound))  # type: ignore[misc]
            report.primary_marked += len(marked)
            report.primary_bytes += sum(one.bytes for one in marked)
            report.note_damaged(damaged)
            tell(report)

    def _give_up_primary(self, items: Sequence[_Item]) -> list[SegmentRecord]:
        """One transaction: readers go to the tiered copies, the primary ones are queued, the root changes."""
        names = {shard.name.path: shard.name for shard, _ in items}
        wanted = {(shard.name.path, one.file): one.offload for shard, one in items}
        ops: list[Op] = []
        batches: list[DeletionBatch] = []
        marked: list[SegmentRecord] = []
        for shard in self.registry.shards_named(list(names.values())):
            mine = [one for one in shard.records if wanted.get((shard.name.path, one.file), "") == one.offload]
            marked += mine
            fresh = {one.file: msgspec.structs.replace(one, primary=False) for one in mine if one.primary}
            if fresh:
                ops.append(shard.with_records(fresh.get(one.file, one) for one in shard.records))
                batches += self._primary_batches(shard, list(fresh.values()))
        root = self.session.get(self.registry.path)
        if ops and root is not None:
            # Unchanged but for its version: a snapshot that is about to be leased compares that one, and looks again.
            ops.append(SetData(self.registry.path, root.data, root.version))
            self.session.commit([*ops, *DeletionQueue(self.cluster).send_ops(batches)])
            self._count(batches)
        return marked

    def _primary_batches(self, shard: Shard, gone: Sequence[SegmentRecord]) -> Iterator[DeletionBatch]:
        whole = DeletionBatch(
            self.table,
            shard.name.entry_id,
            shard.generation,
            tuple(map(_ledger, gone)),
            reason="offloaded",
            at_ms=self.clock.now_ms(),
        )
        yield from in_batches(whole)

    # --- helpers

    def _standing(self, record: OffloadRecord) -> list[tuple[_Names, Shard]]:
        """The planned shards that are still registered, as they are now, each with what is planned of it."""
        planned = {self._name(one.shard).path: one for one in record.shards}
        found = self.registry.shards_named([self._name(one.shard) for one in record.shards])
        return [
            (frozenset((one.segment, one.file) for one in planned[shard.name.path].ledgers), shard)
            for shard in found
            if shard.born == planned[shard.name.path].born
        ]

    def _name(self, place: str) -> ShardName:
        chunk, _, node = place.partition("/")
        return shards.parse_name(chunk, f"{self.registry.path}/{chunk}", node)

    def _owner(self, shard: Shard, record: SegmentRecord) -> dict[str, str]:
        return owner_metadata(self.table, record.name, shard.generation)

    def _each(self, do: Callable[[_Item], None], items: Sequence[_Item]) -> None:
        """Do it for all items, some at a time; the first error is raised when all that were begun have ended."""
        with ThreadPoolExecutor(self.parallel, thread_name_prefix="segments-offload") as pool:
            pending = [pool.submit(do, item) for item in items]
            try:
                for one in pending:
                    one.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _count(self, batches: Iterable[DeletionBatch]) -> None:
        self.sent.update(totals(batches))

    def _retried(self, attempt: Callable[[], _T]) -> _T:
        return self.cluster.retried(f"offload on table {self.table!r}", attempt)


def _is_due(shard: Shard, record: SegmentRecord, before: int) -> bool:
    """Whether the segment has no copy and ended before ``before``: by its own times, else by its chunk."""
    if record.offload is not None or not record.primary:
        return False
    if record.max_time_ms is not None:
        return record.max_time_ms < before
    return parse_chunk(shard.chunk_of(record)).end_ms <= before


def _fitting(costs: Sequence[int], room: int, most: int) -> int:
    """How many of ``costs``, at most ``most``, fit into ``room``."""
    for number, cost in enumerate(costs[:most]):
        if cost > room:
            return number
        room -= cost
    return min(most, len(costs))


def _transactions(items: Sequence[_Item]) -> Iterator[list[_Item]]:
    """Items of whole shards as long as one request holds the shards and the messages."""
    group: list[_Item] = []
    size = 0
    for _, of_shard in groupby(items, key=lambda item: item[0].name.path):
        rest = list(of_shard)
        while rest:
            part, rest = rest[:_MARK_SEGMENTS], rest[_MARK_SEGMENTS:]
            cost = len(bytes(part[0][0].payload)) + sum(100 + len(one.name) + len(one.file) for _, one in part)
            if group and (size + cost > _REQUEST or len(group) + len(part) > _MARK_SEGMENTS or rest):
                yield group
                group, size = [], 0
            group += part
            size += cost
            if rest:
                yield group
                group, size = [], 0
    if group:
        yield group


def _ledger(record: SegmentRecord) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(record.name, record.file, record.bytes)


def _quiet(_: OffloadReport) -> None:
    """Nobody listens."""
