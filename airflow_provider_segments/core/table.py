"""``SegmentStore``, the one object a caller opens, and ``Table``, everything on one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from airflow_provider_segments.clock import SYSTEM_CLOCK, Clock
from airflow_provider_segments.core.deletion import mark_by_hand as request
from airflow_provider_segments.core.deletion.consumer import LedgerDeleter
from airflow_provider_segments.core.deletion.mark import Marker
from airflow_provider_segments.core.deletion.mark_by_hand import MarkReport
from airflow_provider_segments.core.deletion.queue import ZooKeeperQueue
from airflow_provider_segments.core.deletion.reconcile import Reconciler, ReconcileReport
from airflow_provider_segments.core.deletion.settings import DeletionSettings
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage
from airflow_provider_segments.core.lineage.guard import Rewrite
from airflow_provider_segments.core.lineage.records import LineageRecords
from airflow_provider_segments.core.locking import LockBox
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.names import check_table_name, is_entry_id
from airflow_provider_segments.core.model.segment import StagedSegment
from airflow_provider_segments.core.model.variables import DEFAULT_CLUSTER
from airflow_provider_segments.core.registry.leases import LeaseInfo, Leases
from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.replacement import end, revert, stage, start
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.replacement.end import EndedEntry
from airflow_provider_segments.core.replacement.revert import RevertedEntry
from airflow_provider_segments.core.replacement.stage import StagedPush, StageTicket
from airflow_provider_segments.core.replacement.staged import sort_out
from airflow_provider_segments.core.replacement.start import AllVisible, StartedEntry
from airflow_provider_segments.core.retention import cleanup
from airflow_provider_segments.core.retention import retain as retention
from airflow_provider_segments.core.retention.cleanup import CleanedUp
from airflow_provider_segments.core.retention.retain import RetentionReport
from airflow_provider_segments.core.snapshot import Snapshot, SnapshotReader, Standing
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table_config import ConfigStore
from airflow_provider_segments.core.tiering.offload import Offloader
from airflow_provider_segments.core.tiering.records import OffloadReport
from airflow_provider_segments.core.zookeeper import ZooKeeperSession, ZooKeeperSettings
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.core.zookeeper.retry import Retry
from airflow_provider_segments.exceptions import EntryNotFoundError, InvalidConfigError


class SegmentStore:
    """The tables of one cluster: metadata in ZooKeeper, data in one object store. Close it, or use it in a ``with``."""

    def __init__(
        self,
        session: ZooKeeperSession,
        cluster: str,
        storage: ObjectStore,
        *,
        tiered: ObjectStore | None = None,
        deletion: DeletionSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        retry: Retry | None = None,
    ) -> None:
        self.session = session
        self.storage = storage
        self.tiered = tiered
        self.paths = ClusterPaths(cluster)
        self.clock = clock
        self.retry = retry or Retry()
        self.configs = ConfigStore(session, self.paths)
        self.deletion = deletion or DeletionSettings()
        self.queue = ZooKeeperQueue(session, self.paths, clock, partitions=self.deletion.parallelism)

    @classmethod
    def connect(
        cls,
        zk_hosts: str = "",
        cluster: str = DEFAULT_CLUSTER,
        storage_uri: str = "",
        *,
        zookeeper: ZooKeeperSettings | None = None,
        storage: ObjectStore | None = None,
        tiered: ObjectStore | None = None,
        deletion: DeletionSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        retry: Retry | None = None,
    ) -> Self:
        """Open a cluster at ``zk_hosts`` (``host:port,host:port/chroot``) whose objects are at ``storage_uri``
        (``file:///folder`` or ``s3://bucket/prefix``); ``zookeeper`` and ``storage`` say more than the two can.
        ``tiered`` is where old segments are offloaded to, ``deletion`` how the second phase behaves.

        Raises :class:`MetadataUnavailableError` when no ZooKeeper answers, and :class:`InvalidConfigError`.
        """
        store = storage if storage is not None else open_store(storage_uri)
        settings = zookeeper or ZooKeeperSettings(hosts=zk_hosts)
        session = ZooKeeperSession.connect(settings, sleep=clock.sleep, monotonic=clock.monotonic)
        return cls(session, cluster, store, tiered=tiered, deletion=deletion, clock=clock, retry=retry)

    def table(self, name: str) -> Table:
        """One table; it need not exist yet. Raises :class:`InvalidNameError`."""
        return Table(self, name)

    def tables(self) -> list[str]:
        """Names of the tables, sorted."""
        return self.configs.tables()

    def apply_config(self, config: TableConfig) -> str:
        """Make or change a table: ``created``, ``updated`` or ``unchanged``. Applying the same config again is
        harmless."""
        what = f"apply_config of table {config.name!r}"
        return self.retry.run(what, self.session, self.clock, partial(self.configs.apply, config))

    def deleter(self) -> LedgerDeleter:
        """A consumer of the deletion queue: see :class:`.deletion.delete.LedgerDeleter`."""
        return LedgerDeleter(self.session, self.paths, self.clock, self.queue, self.storage, self.tiered, self.deletion)

    def like(
        self,
        *,
        session: ZooKeeperSession | None = None,
        storage: ObjectStore | None = None,
        deletion: DeletionSettings | None = None,
        clock: Clock | None = None,
        retry: Retry | None = None,
    ) -> SegmentStore:
        """The same cluster, with what is given in the place of this store's own."""
        return SegmentStore(
            session or self.session,
            self.paths.cluster,
            storage or self.storage,
            tiered=self.tiered,
            deletion=deletion or self.deletion,
            clock=clock or self.clock,
            retry=retry or self.retry,
        )

    def close(self) -> None:
        """End the ZooKeeper session."""
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Table:
    """Everything on one table. Methods are documented where the protocol is: ``lineage/start.py`` and its
    neighbours."""

    def __init__(self, store: SegmentStore, name: str) -> None:
        self.store = store
        self.name = check_table_name(name)
        self.storage = store.storage
        self.locks = LockBox(store.session, store.paths, name, clock=store.clock)
        records = LineageRecords(store.session, store.paths, name)
        registry = Registry(store.session, store.paths, name)
        leases = Leases(store.session, store.paths, store.clock, name)
        self._reader = SnapshotReader(name, records, registry, store.storage, leases, store.tiered)
        self._marker = Marker(store.session, registry, store.queue, store.clock)
        self._context = Context(
            name,
            store.session,
            records,
            registry,
            store.storage,
            self._marker,
            store.clock,
            store.retry,
            self.config,
            self._reader.visible,
            lambda end_ms: self._reader.take(None, end_ms).segments,
            lambda at: [(one.segment, one.state) for one in self._reader.standings(at.start_ms, at.end_ms)],
            self.locks,
        )

    def config(self) -> TableConfig:
        """The table's config. Raises :class:`TableNotFoundError`."""
        return self.store.configs.get(self.name)

    def lineage(self) -> Lineage:
        """The table's lineage now. Raises :class:`TableNotFoundError` and :class:`CorruptRecordError`."""
        self.config()
        return self._context.records.read().lineage

    def start(
        self,
        segments_from: Sequence[str] | AllVisible | None = None,
        segments_to: Sequence[str] = (),
        *,
        identity: str | None = None,
        force_cleanup: bool = False,
        locks: Sequence[HeldLock] = (),
        rewrite: Rewrite | None = None,
    ) -> StartedEntry:
        """Announce a replacement: see :func:`.lineage.start.start`.

        A forced start marks the segments of the snapshot before the last one, and of the pushes it reverted, for
        deletion here.
        """
        started = start.start(
            self._context,
            segments_from,
            segments_to,
            identity=identity,
            force_cleanup=force_cleanup,
            locks=locks,
            rewrite=rewrite,
        )
        if force_cleanup:
            cleanup.finish_forced_start(self._context, started)
        return started

    def running(self, identity: str) -> str | None:
        """The id of the entry in progress that ``identity`` started, if there is one. Raises
        :class:`TableNotFoundError`."""
        found = self._context.records.running_of(self.lineage(), identity)
        return found[0].entry_id if found else None

    def open_stage(self, entry_id: str, stager: str = "build") -> StageTicket:
        """Begin an attempt to stage into an entry: see :func:`.lineage.stage.open_stage`."""
        return stage.open_stage(self._context, entry_id, stager)

    def stage(self, ticket: StageTicket, segments: Sequence[StagedSegment]) -> StagedPush:
        """Register built segments, hidden, under their entry: see :func:`.lineage.stage.stage`."""
        return stage.stage(self._context, ticket, segments)

    def staged(self, entry_id: str) -> Snapshot:
        """What is staged into an entry and would become visible with its end. Raises :class:`EntryNotFoundError`."""
        guard = self._context.guard(entry_id)
        return self._reader.staged(sort_out(guard.guard, self._context.registry.of_entry(entry_id)).current)

    def end(self, entry_id: str, segments_to: Sequence[str] | None = None, *, allow_empty: bool = False) -> EndedEntry:
        """Switch: see :func:`.lineage.end.end`."""
        return end.end(self._context, entry_id, segments_to, allow_empty=allow_empty)

    def revert(self, entry_id: str, *, force: bool = False, identity: str | None = None) -> RevertedEntry:
        """Roll back: see :func:`.lineage.revert.revert`."""
        return revert.revert(self._context, entry_id, force=force, identity=identity)

    def preview_revert(self, entry_id: str, *, force: bool = False) -> RevertedEntry:
        """What :meth:`revert` would do, or the error it would raise. Changes nothing."""
        return revert.preview(self._context, entry_id, force=force)

    def cleanup(self) -> CleanedUp:
        """One pass of the lineage clean-up: see :func:`.lineage.cleanup.run`."""
        return cleanup.run(self._context)

    def retain(self, *, dry_run: bool = False) -> RetentionReport:
        """The lineage clean-up and the time retention in one pass: see :func:`.lineage.retention.retain`. A dry run
        says what would go and why, and writes nothing."""
        return retention.retain(self._context, dry_run=dry_run)

    def mark_ledgers(
        self, segments: Sequence[str] | None = None, *, entry_id: str | None = None, missing_ok: bool = False
    ) -> MarkReport:
        """Mark leftovers for deletion: see :func:`.deletion.request.mark_segments`, or, for all that an entry has left,
        :func:`.deletion.request.mark_entry`; that may be given as :meth:`resolve_entry` takes it, or as the whole id of
        one that has left the lineage. Raises :class:`ValueError` unless one of the two is given."""
        if (segments is None) == (entry_id is None):
            raise ValueError("give either segments or an entry_id")
        self.config()
        if entry_id is not None:
            whole = entry_id if is_entry_id(entry_id) else self.resolve_entry(entry_id)
            return request.mark_entry(self._context, whole, self.sent)
        return request.mark_segments(self._context, segments or (), self.sent, missing_ok=missing_ok)

    def offload(
        self,
        *,
        older_than_ms: int,
        primary_lag_ms: int,
        max_segments: int | None = None,
        progress: Callable[[OffloadReport], None] | None = None,
    ) -> OffloadReport:
        """Copy visible segments that ended more than ``older_than_ms`` ago to the tiered storage, and give up primary
        copies whose offload is ``primary_lag_ms`` old: see :meth:`.tiering.offload.Offloader.run`.

        Raises :class:`InvalidConfigError` when the store was opened without a tiered storage of its own.
        """
        self.config()
        return self._offloader().run(
            older_than_ms=older_than_ms, primary_lag_ms=primary_lag_ms, max_segments=max_segments, progress=progress
        )

    def reconcile(
        self, *, grace_ms: int, enqueue: bool = False, progress: Callable[[ReconcileReport], None] | None = None
    ) -> ReconcileReport:
        """Compare storage with what is known of it: see :meth:`.deletion.reconcile.Reconciler.run`."""
        self.config()
        store = self.store
        reconciler = Reconciler(
            self.name,
            store.session,
            store.paths,
            store.clock,
            store.queue,
            self.storage,
            store.tiered,
            self._marker.sent,
        )
        return reconciler.run(grace_ms=grace_ms, enqueue=enqueue, progress=progress)

    def _offloader(self) -> Offloader:
        tiered = self.store.tiered
        if tiered is None or tiered.uri == self.storage.uri:
            raise InvalidConfigError(
                f"table {self.name!r} cannot be offloaded: the store has "
                + ("no tiered storage" if tiered is None else f"the same tiered storage as primary, {tiered.uri}")
                + "; set SEGMENTS_TIERED_URI, or the tiered storage of the connection"
            )
        return Offloader(
            self.name,
            self.store.session,
            self.store.paths,
            self.store.clock,
            self.store.retry,
            self._context.registry,
            self.store.queue,
            self.storage,
            tiered,
            self.snapshot,
            self._marker.sent,
        )

    @property
    def sent(self) -> Counter[str]:
        """Deletion messages that this object has queued so far, by ledger type: PIP-186's count of what was sent. A
        transaction whose reply was lost is not in it."""
        return self._marker.sent

    def standings(self, start: int | None = None, end: int | None = None) -> list[Standing]:
        """Where each registered segment stands: see :meth:`.snapshot.SnapshotReader.standings`."""
        return self._reader.standings(start, end)

    def leases(self) -> Sequence[LeaseInfo]:
        """The leases of the table's readers, oldest first: what deletions wait for."""
        return self._reader.leases.held()

    def snapshot(
        self, start: int | None = None, end: int | None = None, *, as_of: str | None = None, owner: str = ""
    ) -> Snapshot:
        """What is visible: see :meth:`.snapshot.SnapshotReader.take`. ``with table.snapshot() as taken:`` keeps its
        objects from being deleted until the block ends."""
        return self._reader.take(start, end, as_of=as_of, owner=owner)

    def resolve_entry(self, entry: str) -> str:
        """The id meant by ``entry``: an id, the unique beginning of one (4 characters or more), or ``latest``, the
        entry that was completed last. Raises :class:`EntryNotFoundError`."""
        lineage = self.lineage()
        if entry == "latest":
            return self._latest(lineage)
        if entry in lineage.entries:
            return entry
        found = [entry_id for entry_id in lineage.entries if len(entry) >= 4 and entry_id.startswith(entry)]
        if len(found) != 1:
            problem = f"{len(found)} lineage entries begin with" if found else "no lineage entry is called"
            raise EntryNotFoundError(f"table {self.name!r}: {problem} {entry!r}")
        return found[0]

    def _latest(self, lineage: Lineage) -> str:
        """The order of completions is ZooKeeper's, not the clocks'. Entries of other tools have no guard and count
        first."""
        completed = {entry.entry_id: entry.timestamp_ms for entry in lineage.in_state(EntryState.COMPLETED)}
        if not completed:
            raise EntryNotFoundError(f"table {self.name!r} has no completed replacement")
        guards = self._context.records.guards(completed)
        zxids = {entry_id: guard.changed for entry_id, guard in guards.items()}
        return max(completed, key=lambda entry_id: (zxids.get(entry_id, 0), completed[entry_id]))


def with_clock(store: SegmentStore, **changes: Any) -> SegmentStore:
    """The same store and session under another clock: for tests, and for a clean-up at a given time."""
    return store.like(clock=replace(store.clock, **changes))
