"""Tables whose objects say whose they are, and the invariants of deletion."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from airflow_provider_segments.core.deletion.messages import DeadLetters
from airflow_provider_segments.core.deletion.report import DeletionReport
from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.model import ledger as ledgers
from airflow_provider_segments.core.model.ledger import (
    DeletionBatch,
    OffloadContext,
    PendingDeleteLedgerInfo,
    ledger_prefix,
    owner_metadata,
)
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment, encode_record
from airflow_provider_segments.core.registry import shard as shards
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.storage.base import (
    ListedObject,
    ObjectInfo,
    ObjectStore,
    OwnedOutcome,
)
from airflow_provider_segments.core.storage.identity import KEY
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Create, SetData
from airflow_provider_segments.exceptions import CorruptRecordError, StorageUnavailableError
from tests.support.tables import DAY_MS, DAYS, JANUARY_1, QUICK, HandClock, everything, make_table, queued_batches

LATER = 600_001
"""Just longer than ``reconsume_later_ms``, in milliseconds."""


CONTENT = b"0123456789"
CRC = zlib.crc32(CONTENT)


@dataclass
class World:
    """A cluster, its clock, and what tests do with both."""

    store: SegmentStore
    hand: HandClock
    body: Path

    def table(self, name: str = "t", kind: str = "APPEND", **config: str) -> Table:
        return make_table(self.store, name, kind, **config)

    def write(self, table: Table, ticket: StageTicket, names: Iterable[str]) -> list[StagedSegment]:
        """Store an object for each name, with its owner metadata, as the attempt that holds ``ticket``."""
        staged = []
        for number, name in enumerate(names):
            file = f"{name}.{ticket.stager}.{ticket.attempt}.parquet"
            self.put(table.storage, ticket.prefix + file, owner_metadata(table.name, name, ticket.generation))
            at = JANUARY_1 + (number % len(DAYS)) * DAY_MS
            size = self.body.stat().st_size
            staged.append(StagedSegment(DAYS[number % len(DAYS)], SegmentRecord(name, file, 1, size, CRC, at, at + 1)))
        return staged

    def put(self, storage: ObjectStore, key: str, owner: Mapping[str, str]) -> None:
        self.body.write_bytes(CONTENT)
        storage.put_file(self.body, key, owner=owner)

    def push(
        self, table: Table, names: Sequence[str], segments_from: Sequence[str] | None = None, *, end: bool = True
    ) -> str:
        """A whole push; returns its entry id."""
        entry_id = table.start(segments_from).entry_id
        ticket = table.open_stage(entry_id)
        table.stage(ticket, self.write(table, ticket, names))
        if end:
            table.end(entry_id)
        return entry_id

    def mark(self, table: Table, names: Collection[str]) -> int:
        """The first phase, for segments that a test takes out of the registry by hand."""
        found = table._context.registry.read(lambda _: True).shards
        return table._context.marker.mark(found, lambda record: record.name not in names, reason="test")

    def shards(self, table: Table) -> tuple[Shard, ...]:
        return table._context.registry.read(lambda _: True).shards

    def generation(self, table: Table, entry_id: str) -> str:
        """Of the first attempt of the stager ``build``."""
        guard = table._context.records.guard(entry_id)
        born = (
            guard.born
            if guard is not None
            else next(shard.born for shard in self.shards(table) if shard.name.entry_id == entry_id)
        )
        return f"{entry_id}:{born}:build:1"

    def generation_of_key(self, key: str) -> str:
        """As its object says."""
        info = self.store.storage.head(key)
        assert info is not None
        return info.owner["generation"]

    def offload(self, table: Table, names: Collection[str], uuid: str) -> OffloadContext:
        """Copy segments to tiered storage and register the copies."""
        tiered = self.store.tiered
        assert tiered is not None
        context = OffloadContext.at(tiered.uri, uuid)
        for shard in self.shards(table):
            entry_id = shard.name.entry_id
            generation = f"{entry_id}:{shard.born}:{shard.name.stager}:{shard.name.attempt}"
            records = []
            for record in shard.records:
                if record.name in names:
                    key = ledger_prefix(table.name, entry_id, context) + record.file
                    self.put(tiered, key, owner_metadata(table.name, record.name, generation))
                    record = msgspec.structs.replace(record, offload=context)
                records.append(encode_record(record))
            payload = shards.encode(entry_id, shard.born, records)
            self.store.session.commit([SetData(shard.name.path, payload, shard.version)])
        return context

    def with_storage(self, storage: ObjectStore, **deletion: Any) -> World:
        """The same cluster with another store (a wrapper of its own, mostly) and other settings."""
        settings = replace(self.store.deletion, **deletion)
        return World(self.store.replace(storage=storage, deletion=settings), self.hand, self.body)

    def with_settings(self, **deletion: Any) -> World:
        return self.with_storage(self.store.storage, **deletion)

    def on_session(self, session: Any, storage: ObjectStore | None = None) -> World:
        """The same cluster through another session."""
        storage = self.store.storage if storage is None else storage
        return World(self.store.replace(session=session, storage=storage, retry=QUICK), self.hand, self.body)

    def drain(self, **limits: Any) -> DeletionReport:
        """One drain, whose counts must add up."""
        report = self.store.deleter().drain(**limits)
        check_equation(report)
        return report

    def drain_all(self, most: int = 40) -> DeletionReport:
        """Drain, wait, drain again, until nothing is in flight."""
        whole = DeletionReport()
        for _ in range(most):
            report = self.drain()
            whole.merge(report)
            backlog = self.store.queue.backlog()
            if not backlog.in_flight and not backlog.sweeps:
                check_equation(whole)
                return whole
            self.hand.advance(LATER)
        raise AssertionError(f"still in flight after {most} drains: {self.store.queue.backlog()}, {whole.as_dict()}")

    # --- looking

    def stored(self, table: str = "t") -> set[str]:
        """Keys of the table's objects in primary storage."""
        return {one.key for one in self.store.storage.list(f"{table}/")}

    def objects(self, *tables: str) -> dict[str, tuple[int, Mapping[str, str] | str]]:
        """Everything in both storages, with sizes and owner metadata: equal before and after means untouched."""
        found: dict[str, tuple[int, Mapping[str, str] | str]] = {}
        for storage in [self.store.storage, *([self.store.tiered] if self.store.tiered is not None else [])]:
            for table in tables or ("t",):
                for one in storage.list(f"{table}/"):
                    try:
                        info = storage.head(one.key)
                    except CorruptRecordError as error:
                        found[storage.url(one.key)] = (one.bytes, str(error))
                        continue
                    assert info is not None
                    found[storage.url(one.key)] = (info.bytes, dict(info.owner))
        return found

    def batches(self) -> list[DeletionBatch]:
        return queued_batches(self.store)

    def pending_paths(self) -> list[str]:
        found = everything(self.store.session, self.store.paths.pending_deletions)
        return [path for path, node in found.items() if node.data]

    def dead(self) -> list[DeadLetters]:
        found = [letters for _, letters in self.store.queue.dead_letters()]
        assert all(isinstance(one, DeadLetters) for one in found)
        return found  # type: ignore[return-value]

    def enqueue(self, payload: bytes | DeletionBatch, name: str = "") -> str:
        """Put a payload into the queue as somebody would who can write there; returns its path."""
        self.store.queue.prepare()
        data = payload if isinstance(payload, bytes) else ledgers.encode(payload)
        path = f"{self.store.paths.pending_deletions}/0/{name or self.store.clock.new_id() + '.1'}"
        self.store.session.commit([Create(path, data)])
        return path

    def alter(self, path: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Rewrite a message that stands in the queue."""
        node = self.store.session.get(path)
        assert node is not None
        document = msgspec.json.decode(node.data)
        change(document)
        self.store.session.commit([SetData(path, msgspec.json.encode(document), node.version)])

    def check(self, *tables: Table, foreign: Collection[str] = (), strict: bool = True) -> None:
        """I1 to I3 of the notes: what is registered is there; what is there is registered, queued, dead, or lies under
        a prefix that a push in progress or a sweep has announced. ``foreign`` keys are not ours, and must be there.

        Without ``strict``, a prefix whose entry is still in the lineage counts: it is swept when the entry leaves.
        """
        queued = {(batch.offload, batch.prefix + one.file) for batch in self.batches() for one in batch.ledgers}
        queued |= {(d.batch.offload, d.batch.prefix + one.file) for d in self.dead() for one in d.batch.ledgers}
        sweeps = everything(self.store.session, self.store.paths.sweeps)
        swept = {
            request.entry_id
            for path, node in sweeps.items()
            if node.data
            for request in [ledgers.decode_sweep(node.data, path)]
        }
        for table in tables:
            lineage = table.lineage()
            known: set[tuple[OffloadContext | None, str]] = set()
            for shard in self.shards(table):
                for record in shard.records:
                    for place in record.stores():
                        prefix = ledger_prefix(table.name, shard.name.entry_id, place)
                        known.add((place, prefix + record.file))
            there: set[tuple[str, str]] = {("", key) for key in self.stored(table.name)}
            if self.store.tiered is not None:
                there |= {(self.store.tiered.uri, one.key) for one in self.store.tiered.list(f"{table.name}/")}
            for place, key in known:
                at = "" if place is None else place.uri
                assert (at, key) in there, f"I1: {key} is registered and its object is gone"
            assert {("", key) for key in foreign} <= there, "I3: an object was deleted that says it is not ours"
            names = {("" if place is None else place.uri, key) for place, key in known | queued}
            for at, key in there - names:
                entry_id = key.split("/")[1]
                entry = lineage.get(entry_id)
                announced = entry is not None and (entry.state is EntryState.IN_PROGRESS or not strict)
                announced |= bool(at) and key.split("/")[2] in self.store.session.children(
                    self.store.paths.offloads(table.name)
                )
                assert announced or entry_id in swept or key in foreign, f"I2: nobody knows of {at}{key}"


def check_equation(report: DeletionReport) -> None:
    """acknowledged = received - retried - open, in total and by ledger type, and every message has one ending."""
    counted = report.as_dict()
    assert report.acknowledged == report.deliveries - report.retried - report.open, counted
    assert sum(report.counts.values()) == report.acknowledged + report.retried
    assert min(report.counts.values(), default=0) >= 0


def batch_of(table: str, entry_id: str, generation: str, *names: str, attempt: int = 1, **other: Any) -> DeletionBatch:
    """A message about segments, as ``World.write`` names their files."""
    listed = tuple(PendingDeleteLedgerInfo(name, f"{name}.build.{attempt}.parquet", 10) for name in names)
    return DeletionBatch(table, entry_id, generation, listed, **other)


@dataclass
class FaultyStore:
    """A store that fails when told to. ``fault(operation, key)`` gives the reason, or nothing; ``calls`` counts."""

    inner: ObjectStore
    fault: Callable[[str, str], str] = lambda operation, key: ""
    before: Callable[[str], None] = lambda operation: None
    after: Callable[[str], None] = lambda operation: None
    calls: dict[str, int] = field(default_factory=dict)

    @property
    def uri(self) -> str:
        return self.inner.uri

    def _count(self, operation: str) -> None:
        self.calls[operation] = self.calls.get(operation, 0) + 1

    def _maybe(self, operation: str, key: str) -> None:
        self._count(operation)
        if why := self.fault(operation, key):
            raise StorageUnavailableError(f"{key}: {why}")

    def put_file(self, path: Path, key: str, *, owner: Mapping[str, str], **how: bool) -> ObjectInfo:
        self._maybe("put", key)
        return self.inner.put_file(path, key, owner=owner, **how)

    def head(self, key: str) -> ObjectInfo | None:
        if key != KEY:  # that is looked at once a connection: here, before the faults begin
            self._maybe("head", key)
        return self.inner.head(key)

    def open(self, key: str) -> BinaryIO:
        self._maybe("open", key)
        return self.inner.open(key)

    def delete_owned(self, owners: Mapping[str, str]) -> OwnedOutcome:
        self._count("delete_owned")
        self.before("delete_owned")
        failed = {key: why for key in owners if (why := self.fault("delete", key))}
        outcome = self.inner.delete_owned({key: owner for key, owner in owners.items() if key not in failed})
        self.after("delete_owned")
        return OwnedOutcome(outcome.deleted, outcome.missing, outcome.foreign, {**outcome.failed, **failed})

    def list(self, prefix: str) -> Iterator[ListedObject]:
        self._maybe("list", prefix)
        return self.inner.list(prefix)

    def discard_unfinished(self, prefix: str) -> int:
        self._maybe("discard", prefix)
        return self.inner.discard_unfinished(prefix)

    def url(self, key: str) -> str:
        return self.inner.url(key)
