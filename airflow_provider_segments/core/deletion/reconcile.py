"""Comparing storage with what is known (PIP-186 C15: what if the queue is lost?).

One table's objects are listed page by page, in primary and in tiered storage, and each is put into exactly one class:
registered, written by something in progress, waiting for its deletion, dead-lettered, too young to judge, foreign, or
an orphan that nobody knows. The other way round, a registered object that is not there is *missing*: data is lost.
Nothing is deleted; orphans may be queued, and then every check of the second phase decides about them.

Memory: the registered segments of one push, the names of the table's shards, and ``PAGE`` objects that are not
registered. The queue is read through once for each such page, a batch at a time.

Nothing stands still meanwhile, so each doubtful find is looked at again: an object is an orphan only if it is still
there after the queue was read and still not registered; it is missing only if it is still registered after the listing
and then asked for by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby

from airflow_provider_segments.core.binding import StoreRole, check_store
from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.deletion.in_use import UsageReader
from airflow_provider_segments.core.deletion.messages import DeadLetters, in_batches, totals
from airflow_provider_segments.core.deletion.queue import DeletionQueue
from airflow_provider_segments.core.deletion.sweep import join_generations, message_about
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage
from airflow_provider_segments.core.lineage.hiding import hidden_names, is_settled
from airflow_provider_segments.core.lineage.records import LineageRecords
from airflow_provider_segments.core.model import ledger as ledgers
from airflow_provider_segments.core.model.ledger import DeletionBatch, LedgerComponent
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.registry.shard import ShardName
from airflow_provider_segments.core.storage.base import ListedObject, ObjectInfo, ObjectStore
from airflow_provider_segments.exceptions import CorruptRecordError

PAGE = 10_000
"""Unregistered objects that are judged together."""

_EXAMPLES = 20
_LOOKS = 8  # objects looked at at once
_READ = 8  # batches of the queue read at once
_FOLDERS = {"_cursors": LedgerComponent.MANAGED_CURSOR}

Progress = Callable[["ReconcileReport"], None]


@dataclass(slots=True)
class Found:
    """Objects of one class: how many, their bytes, and the addresses of some."""

    count: int = 0
    bytes: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, url: str, size: int) -> None:
        """Count one object."""
        self.count += 1
        self.bytes += size
        if len(self.examples) < _EXAMPLES:
            self.examples.append(url)


@dataclass(slots=True)
class ReconcileReport:
    """What one look has found, both storages together; every object listed is in exactly one class.

    ``referenced``: registered and visible. ``hidden``: registered, replaced or reverted, and still kept.
    ``in_progress``: a push or an offload that is under way may be writing it. ``in_flight``: queued for deletion, or
    below a prefix that will be swept. ``dead``: its deletion was given up, see the dead letters. ``young``: unknown,
    and younger than the grace period. ``orphans``: ours, and nobody knows it. ``foreign``: not ours. ``missing``:
    registered, and not in storage. ``enqueued`` orphans were queued for deletion; ``elsewhere`` registered copies are
    in a tiered storage that could not be looked at.
    """

    table: str
    grace_ms: int
    tiered: str | None = None
    referenced: Found = field(default_factory=Found)
    hidden: Found = field(default_factory=Found)
    in_progress: Found = field(default_factory=Found)
    in_flight: Found = field(default_factory=Found)
    dead: Found = field(default_factory=Found)
    young: Found = field(default_factory=Found)
    orphans: Found = field(default_factory=Found)
    foreign: Found = field(default_factory=Found)
    missing: Found = field(default_factory=Found)
    enqueued: int = 0
    elsewhere: int = 0

    @property
    def listed(self) -> int:
        """Objects judged so far."""
        return sum(getattr(self, name).count for name in CLASSES if name != "missing")

    def as_dict(self) -> dict[str, object]:
        """Plain values, for XCom, JSON and logs."""
        found = {name: getattr(self, name) for name in CLASSES}
        return {
            "table": self.table,
            "grace_ms": self.grace_ms,
            "tiered": self.tiered,
            "listed": self.listed,
            "enqueued": self.enqueued,
            "elsewhere": self.elsewhere,
            **{
                name: {"count": one.count, "bytes": one.bytes, "examples": list(one.examples)}
                for name, one in found.items()
            },
        }


CLASSES = (
    "referenced",
    "hidden",
    "in_progress",
    "in_flight",
    "dead",
    "young",
    "orphans",
    "foreign",
    "missing",
)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Compares one table's storage with what is known of it. ``sent`` counts the messages that were queued."""

    cluster: Cluster
    table: str
    sent: Counter[str] = field(default_factory=Counter)

    def run(self, *, grace_ms: int, enqueue: bool = False, progress: Progress | None = None) -> ReconcileReport:
        """Look at all objects of the table; with ``enqueue``, queue the orphans for deletion.

        Objects last written less than ``grace_ms`` ago are left alone: choose longer than the longest write that may
        be under way without a lineage entry. Their age is by the store's clock. ``progress`` gets the report so far.
        Raises :class:`StorageError`, :class:`TableNotFoundError` and :class:`CorruptRecordError`.
        """
        storage, tiered = self.cluster.storage, self.cluster.tiered
        report = ReconcileReport(self.table, grace_ms, None if tiered is None else tiered.uri)
        self.cluster.session.sync("/")
        for role in StoreRole:
            check_store(self.cluster, role)
        look = _Look(self, report, enqueue=enqueue, progress=progress)
        look.at(storage, tiered=False)
        if tiered is not None:
            look.at(tiered, tiered=True)
        return report


class _Look:
    """One run of a :class:`Reconciler`."""

    def __init__(
        self, reconciler: Reconciler, report: ReconcileReport, *, enqueue: bool, progress: Progress | None
    ) -> None:
        self.cluster = reconciler.cluster
        self.table = reconciler.table
        self.sent = reconciler.sent
        self.queue = DeletionQueue(reconciler.cluster)
        self.report = report
        self.enqueue = enqueue
        self.progress = progress
        self.lineage: Lineage = LineageRecords(self.cluster, self.table).read().lineage
        self.hidden = hidden_names(self.lineage)
        self.registry = Registry(self.cluster, self.table)
        self.registry.root()  # a table that was never made has no objects to judge by
        self.shards: dict[str, list[ShardName]] = {}
        for name in self.registry.shard_names():
            self.shards.setdefault(name.entry_id, []).append(name)

    def at(self, store: ObjectStore, *, tiered: bool) -> None:
        """Look at one store. A listing gives the objects of one push together."""
        unknown: list[ListedObject] = []
        seen: set[str] = set()
        offloads = frozenset(self.cluster.session.children(self.cluster.paths.offloads(self.table)) if tiered else ())
        for entry_id, objects in groupby(store.list(f"{self.table}/"), _entry_of):
            seen.add(entry_id)
            expected = self._registered(entry_id, store, tiered=tiered)
            in_use = self._components(entry_id)
            writing = self._is_in_progress(entry_id)
            for one in objects:
                below = one.key.split("/", 2)[2] if one.key.count("/") > 1 else ""
                record = expected.pop(below, None)
                if record is not None:
                    self._class_of(entry_id, record).add(store.url(one.key), one.bytes)
                elif below.partition("/")[0] in in_use:
                    self.report.referenced.add(store.url(one.key), one.bytes)
                elif writing or below.partition("/")[0] in offloads:
                    self.report.in_progress.add(store.url(one.key), one.bytes)
                else:
                    unknown.append(one)
                if len(unknown) >= PAGE:
                    self._judge(store, unknown, tiered=tiered)
                    unknown = []
            self._missing(entry_id, store, expected, tiered=tiered)
        for entry_id in self.shards.keys() - seen:
            self._missing(entry_id, store, self._registered(entry_id, store, tiered=tiered), tiered=tiered)
        self._judge(store, unknown, tiered=tiered)

    # --- what is registered

    def _registered(self, entry_id: str, store: ObjectStore, *, tiered: bool) -> dict[str, SegmentRecord]:
        """What the entry has in the store; counts, once, copies that no storage here can have."""
        found = list(self._records(self.shards.get(entry_id, ())))
        if not tiered:
            places = [one.offload.uri for one in found if one.offload is not None]
            self.report.elsewhere += sum(uri != self.report.tiered for uri in places)
        return self._expected(found, store, tiered=tiered)

    def _records(self, names: Sequence[ShardName]) -> Iterator[SegmentRecord]:
        return (record for shard in self.registry.shards_named(names) for record in shard.records)

    def _expected(
        self, records: Iterable[SegmentRecord], store: ObjectStore, *, tiered: bool
    ) -> dict[str, SegmentRecord]:
        """The records by where their objects are in the store, below their entry's prefix."""
        if not tiered:
            return {one.file: one for one in records if one.primary}
        return {
            f"{one.offload.uuid}/{one.file}": one
            for one in records
            if one.offload is not None and one.offload.uri == store.uri
        }

    def _class_of(self, entry_id: str, record: SegmentRecord) -> Found:
        if self._is_in_progress(entry_id):
            return self.report.in_progress
        visible = is_settled(self.lineage, entry_id) and record.name not in self.hidden
        return self.report.referenced if visible else self.report.hidden

    def _components(self, folder: str) -> Collection[str]:
        """Ids of the cursors in use, when ``folder`` is theirs."""
        component = _FOLDERS.get(folder)
        if component is None:
            return ()
        return frozenset(self.cluster.session.children(self.cluster.paths.other_ledgers(self.table, component.value)))

    def _is_in_progress(self, entry_id: str) -> bool:
        entry = self.lineage.get(entry_id)
        return entry is not None and entry.state is EntryState.IN_PROGRESS

    def _missing(
        self, entry_id: str, store: ObjectStore, expected: Mapping[str, SegmentRecord], *, tiered: bool
    ) -> None:
        """Registered, not listed: look again at both, since the listing is older than this moment."""
        if not expected:
            return
        now = self._expected(self._records(self.shards[entry_id]), store, tiered=tiered)
        keys = {f"{self.table}/{entry_id}/{below}": one for below, one in expected.items() if below in now}
        for key, info in zip(keys, _looked_at(store, list(keys)), strict=True):
            found = self.report.missing if info is None else self._class_of(entry_id, keys[key])
            found.add(store.url(key), keys[key].bytes)
        self._tell()

    # --- what is not

    def _judge(self, store: ObjectStore, unknown: Sequence[ListedObject], *, tiered: bool) -> None:
        """Put unregistered objects into their classes. The queue before the dead letters, and both before the objects:
        messages move from the one to the other, and then the object goes before its message does."""
        left = {one.key: one for one in unknown}
        where = store.uri if tiered else None
        self._take(store, left, self._queued(where), self.report.in_flight)
        if not tiered:
            swept = self._swept()
            prefixes = (key for key, one in left.items() if _entry_of(one) in swept)
            self._take(store, left, list(prefixes), self.report.in_flight)
        self._take(store, left, self._dead(where), self.report.dead)
        limit = self.cluster.clock.now_ms() - self.report.grace_ms
        young = [key for key, one in left.items() if one.modified_ms > limit]
        self._take(store, left, young, self.report.young)
        self._take(store, left, self._used_now(left, store, tiered=tiered), self.report.in_progress)
        self._orphans(store, list(left.values()), where)
        self._tell()

    def _take(self, store: ObjectStore, left: dict[str, ListedObject], keys: Iterable[str], found: Found) -> None:
        for key in keys:
            one = left.pop(key, None)
            if one is not None:
                found.add(store.url(key), one.bytes)

    def _queued(self, where: str | None) -> Iterator[str]:
        """Keys, in one storage, that the queue asks to delete."""
        session, parent = self.cluster.session, self.cluster.paths.pending_deletions
        partitions = session.children(parent)
        below = session.children_many([f"{parent}/{number}" for number in partitions])
        paths = [f"{parent}/{number}/{one}" for number, names in zip(partitions, below, strict=True) for one in names]
        for start in range(0, len(paths), _READ):
            for node in session.get_many(paths[start : start + _READ]):
                if node is not None:
                    yield from self._keys(node.data, where)

    def _dead(self, where: str | None) -> Iterator[str]:
        for _, dead in self.queue.dead_letters():
            if isinstance(dead, DeadLetters):
                yield from self._keys_of(dead.batch, where)

    def _keys(self, payload: bytes, where: str | None) -> Iterator[str]:
        try:
            batch, _ = ledgers.decode_batch(payload, "a queued batch")
        except CorruptRecordError:
            return  # the second phase deletes nothing on its word; doctor names it
        yield from self._keys_of(batch, where)

    def _keys_of(self, batch: DeletionBatch, where: str | None) -> Iterator[str]:
        if batch.table == self.table and (batch.offload.uri if batch.offload else None) == where:
            prefix = batch.prefix
            yield from (prefix + one.file for one in batch.ledgers)

    def _swept(self) -> Collection[str]:
        """Entries whose prefix will be looked under: a request stands, or will when the reverted entry is dropped."""
        session, parent = self.cluster.session, self.cluster.paths.sweeps
        found = {entry.entry_id for entry in self.lineage.in_state(EntryState.REVERTED)}
        for name in session.children(parent):
            node = session.get(f"{parent}/{name}")
            if node is None:
                continue
            try:
                request = ledgers.decode_sweep(node.data, name)
            except CorruptRecordError:
                continue
            if request.table == self.table:
                found.add(request.entry_id)
        return found

    def _used_now(self, left: Mapping[str, ListedObject], store: ObjectStore, *, tiered: bool) -> list[str]:
        """What has become somebody's since the look began."""
        if not left:
            return []
        reader = UsageReader(self.cluster)
        use = reader.read(self.table, {_entry_of(one) for one in left.values()})
        used: list[str] = []
        for entry_id, group in groupby(left.values(), _entry_of):
            expected = self._expected(use.registered.get(entry_id, {}).values(), store, tiered=tiered)
            prefix = f"{self.table}/{entry_id}/"
            for one in group:
                below = one.key.removeprefix(prefix)
                offloading = tiered and below.partition("/")[0] in use.offloading
                if below in expected or offloading or use.entry_in_progress(entry_id):
                    used.append(one.key)
        return used

    def _orphans(self, store: ObjectStore, left: Sequence[ListedObject], where: str | None) -> None:
        """What says that it is ours becomes messages, if that is wanted. What is gone by now is nothing."""
        batches: list[DeletionBatch] = []
        now = self.cluster.clock.now_ms()
        for one, info in zip(left, _looked_at(store, [one.key for one in left]), strict=True):
            if info is None:
                continue
            batch = message_about(info, "orphan", now, tiered=where)
            if batch is None:
                self.report.foreign.add(store.url(one.key), one.bytes)
                continue
            self.report.orphans.add(store.url(one.key), one.bytes)
            batches.append(batch)
        if not self.enqueue:
            return
        for whole in join_generations(batches):
            for batch in in_batches(whole):
                self.queue.send([batch])
                self.sent.update(totals([batch]))
                self.report.enqueued += len(batch.ledgers)

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(self.report)


def _entry_of(one: ListedObject) -> str:
    return one.key.split("/", 2)[1]


def _looked_at(store: ObjectStore, keys: Sequence[str]) -> Iterator[ObjectInfo | None]:
    """Each object by itself, some at a time."""
    if not keys:
        return
    with ThreadPoolExecutor(_LOOKS, thread_name_prefix="segments-reconcile") as pool:
        yield from pool.map(lambda key: _look(store, key), keys)


def _look(store: ObjectStore, key: str) -> ObjectInfo | None:
    """One whose metadata cannot be read belongs to nobody we know."""
    try:
        return store.head(key)
    except CorruptRecordError:
        return ObjectInfo(key, 0, {})
