"""``SegmentStore``, the one object a caller opens, and ``Table``, everything on one table."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_segments.clock import SYSTEM_CLOCK, Clock
from airflow_provider_segments.core import access, audit, deletion, replacement, retention, tiering
from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import OWN_IDENTITY, GuardState, StoredGuard
from airflow_provider_segments.core.locking.types import Priority
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval, Time, epoch_ms
from airflow_provider_segments.core.model.names import DEFAULT_STAGER, check_table_name, check_text, is_entry_id
from airflow_provider_segments.core.model.segment import StagedSegment
from airflow_provider_segments.core.model.variables import DEFAULT_CLUSTER
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replication import stream
from airflow_provider_segments.core.snapshot import SegmentStatus, Snapshot
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table_config import TableConfigs
from airflow_provider_segments.core.upsert.lag import require_heartbeats
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.core.zookeeper import ZooKeeperSession, ZooKeeperSettings
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.exceptions import (
    EntryNotFoundError,
    InvalidConfigError,
    InvalidNameError,
    RevertRefusedError,
    TableDroppedError,
)

if TYPE_CHECKING:
    from airflow_provider_segments.core.deletion.consumer import LedgerDeleter
    from airflow_provider_segments.core.deletion.mark_by_hand import MarkReport
    from airflow_provider_segments.core.deletion.queue import DeletionQueue
    from airflow_provider_segments.core.deletion.reconcile import ReconcileReport
    from airflow_provider_segments.core.locking import LockBox
    from airflow_provider_segments.core.registry.leases import LeaseInfo
    from airflow_provider_segments.core.replacement.end import EndedEntry
    from airflow_provider_segments.core.replacement.history import TableRead
    from airflow_provider_segments.core.replacement.revert import RevertedEntry
    from airflow_provider_segments.core.replacement.stage import StagedPush, StageTicket
    from airflow_provider_segments.core.replacement.start import AllVisible, StartedEntry
    from airflow_provider_segments.core.replacement.unrevert import UnrevertedEntry
    from airflow_provider_segments.core.retention.cleanup import CleanedUp
    from airflow_provider_segments.core.retention.drop import DroppedTable
    from airflow_provider_segments.core.retention.retain import RetentionReport
    from airflow_provider_segments.core.tiering.offload import Offloader
    from airflow_provider_segments.core.tiering.records import OffloadReport
    from airflow_provider_segments.core.upsert.record import Switch


class SegmentStore:
    """The tables of one cluster: metadata in ZooKeeper, data in one object store. Close it, or use it in a ``with``."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.configs = TableConfigs(cluster)

    @classmethod
    def connect(
        cls,
        zk_hosts: str = "",
        cluster: str = DEFAULT_CLUSTER,
        storage_uri: str = "",
        *,
        zookeeper: ZooKeeperSettings | None = None,
        storage: ObjectStore | None = None,
        **options: Any,
    ) -> Self:
        """Open a cluster at ``zk_hosts`` (``host:port,host:port/chroot``) whose objects are at ``storage_uri``
        (``file:///folder`` or ``s3://bucket/prefix``); ``zookeeper`` and ``storage`` say more than the two can.

        ``options`` are those of :class:`~.cluster.Cluster`: ``tiered``, ``deletion``, ``clock``, ``retry``. Raises
        :class:`MetadataUnavailableError` when no ZooKeeper answers, and :class:`InvalidConfigError`.
        """
        primary = storage if storage is not None else open_store(storage_uri)
        settings = zookeeper or ZooKeeperSettings(hosts=zk_hosts)
        paths = ClusterPaths(cluster)
        clock: Clock = options.get("clock", SYSTEM_CLOCK)
        session = ZooKeeperSession.connect(settings, sleep=clock.sleep, monotonic=clock.monotonic)
        try:
            access.adopt(session, paths)
            return cls(Cluster(session, paths, primary, **options))
        except BaseException:
            session.close()
            raise

    @cached_property
    def queue(self) -> DeletionQueue:
        """The cluster's deletion queue."""
        return deletion.queue.DeletionQueue(self.cluster)

    @property
    def session(self) -> ZooKeeperSession:
        """The ZooKeeper session."""
        return self.cluster.session

    @property
    def paths(self) -> ClusterPaths:
        """Where everything lives in ZooKeeper."""
        return self.cluster.paths

    @property
    def storage(self) -> ObjectStore:
        """Primary storage."""
        return self.cluster.storage

    @property
    def tiered(self) -> ObjectStore | None:
        """Tiered storage, if there is any."""
        return self.cluster.tiered

    @property
    def clock(self) -> Clock:
        """The clock of everything that this store does."""
        return self.cluster.clock

    @property
    def deletion(self) -> DeletionSettings:
        """How the second phase of deletion behaves."""
        return self.cluster.deletion

    def table(self, name: str) -> Table:
        """One table; it need not exist yet. Raises :class:`InvalidNameError`."""
        return Table(self, name)

    def tables(self) -> list[str]:
        """Names of the tables, sorted."""
        return self.configs.tables()

    def apply_config(self, config: TableConfig) -> str:
        """Make or change a table: ``created``, ``updated`` or ``unchanged``. Applying the same config again is
        harmless. Raises :class:`CorruptRecordError` when the table has lost its lineage."""
        return self.cluster.retried(f"apply_config of table {config.name!r}", partial(self.configs.apply, config))

    def deleter(self) -> LedgerDeleter:
        """A consumer of the deletion queue: see :class:`.deletion.consumer.LedgerDeleter`."""
        return deletion.consumer.LedgerDeleter(self.cluster, self.queue)

    def replace(self, **changes: Any) -> SegmentStore:
        """The same cluster with other ``session``, ``storage``, ``deletion``, ``clock`` or ``retry``."""
        return SegmentStore(dataclasses.replace(self.cluster, **changes))

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
    """Everything on one table. Methods are documented where the protocol is: :mod:`.replacement.start` and
    its neighbours."""

    def __init__(self, store: SegmentStore, name: str) -> None:
        self.store = store
        self.name = check_table_name(name)
        self._context = TableContext(store.cluster, self.name)

    @property
    def storage(self) -> ObjectStore:
        """Primary storage."""
        return self.store.storage

    @property
    def locks(self) -> LockBox:
        """The table's lock box."""
        return self._context.locks

    def config(self) -> TableConfig:
        """The table's config. Raises :class:`TableNotFoundError`."""
        return self._context.config()

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
        overwrites: Sequence[Interval] = (),
        rewrite: str | None = None,
        moves_rows: bool = False,
        stager: str | None = None,
    ) -> StartedEntry:
        """Announce a replacement: see :func:`.replacement.start.start` and :class:`.replacement.start.StartOptions`.

        A forced start marks the segments of the snapshot before the last one, and of the pushes it reverted, for
        deletion here.
        """
        options = replacement.start.StartOptions(
            identity=_check_identity(identity),
            force_cleanup=force_cleanup,
            locks=locks,
            overwrites=overwrites,
            rewrite=rewrite,
            moves_rows=moves_rows,
            stager=stager,
        )
        started = replacement.start.start(self._context, segments_from, segments_to, options)
        if force_cleanup:
            retention.cleanup.finish_forced_start(self._context, started)
        return started

    def entry_state(self, entry_id: str) -> EntryState | None:
        """The state of an entry, from its own small record where that tells; ``None`` when it is gone. Raises
        :class:`InvalidNameError` and :class:`CorruptRecordError`."""
        guard = self._context.records.guard(entry_id)
        if guard is not None and guard.guard.state is not GuardState.OPEN:
            return EntryState[guard.guard.state.value]
        entry = self._context.records.read().lineage.get(entry_id)
        return None if entry is None else entry.state

    def entry_path(self, entry_id: str) -> str:
        """The znode that changes when the entry's state does: its guard, or the lineage for an entry of another
        tool."""
        records = self._context.records
        return records.path if records.guard(entry_id) is None else records.guard_path(entry_id)

    def running(self, identity: str) -> list[str]:
        """The ids of the entries in progress that ``identity`` started, or the instances of that task when it is mapped
        (``identity/0``, ``identity/1`` ...). Raises :class:`TableNotFoundError`."""
        running = self._context.records.running_of(self.lineage(), identity, mapped=True)
        return [entry.entry_id for entry in running]

    def open_stage(self, entry_id: str, stager: str = DEFAULT_STAGER) -> StageTicket:
        """Begin an attempt to stage into an entry: see :func:`.replacement.stage.open_stage`."""
        return replacement.stage.open_stage(self._context, entry_id, stager)

    def stage(self, ticket: StageTicket, segments: Sequence[StagedSegment]) -> StagedPush:
        """Register built segments, hidden, under their entry: see :func:`.replacement.stage.stage`."""
        return replacement.stage.stage(self._context, ticket, segments)

    def staged(self, entry_id: str) -> Snapshot:
        """What is staged into an entry and would become visible with its end. Raises :class:`EntryNotFoundError`."""
        guard = self._context.guard(entry_id)
        return self._context.reader.staged(
            replacement.staged.sort_out(guard.guard, self._context.registry.of_entry(entry_id)).current
        )

    def held_back(self) -> Snapshot:
        """The segments of an upsert table that wait to be resolved: no reader sees them yet. Raises
        :class:`UpsertRefusedError` for another table."""
        return self._context.reader.held_back()

    def end(
        self,
        entry_id: str,
        segments_to: Sequence[str] | None = None,
        *,
        allow_empty: bool = False,
        switch: Switch | None = None,
    ) -> EndedEntry:
        """Switch: see :func:`.replacement.end.end`."""
        return replacement.end.end(self._context, entry_id, segments_to, allow_empty=allow_empty, switch=switch)

    def publish(
        self,
        ticket: StageTicket,
        segments: Sequence[StagedSegment],
        *,
        allow_empty: bool = False,
        switch: Switch | None = None,
    ) -> EndedEntry:
        """Stage and end in one transaction: see :func:`.replacement.publish.publish`."""
        return replacement.publish.publish(self._context, ticket, segments, allow_empty=allow_empty, switch=switch)

    def revert(
        self, entry_id: str, *, force: bool = False, allow_empty: bool = False, identity: str | None = None
    ) -> RevertedEntry:
        """Roll back: see :func:`.replacement.revert.revert`. ``force`` also aborts a push in progress; ``allow_empty``
        also leaves the table without visible rows."""
        how, who = replacement.rules.Force.ALSO if force else replacement.rules.Force.NEVER, _check_identity(identity)
        access.require_operator(self.store.cluster, "revert")
        return replacement.revert.revert(self._context, entry_id, force=how, allow_empty=allow_empty, identity=who)

    def unrevert(self, entry_id: str, *, allow_empty: bool = False, identity: str | None = None) -> UnrevertedEntry:
        """Bring back what was rolled back: see :func:`.replacement.unrevert.unrevert`."""
        who = _check_identity(identity)
        access.require_operator(self.store.cluster, "unrevert")
        return replacement.unrevert.unrevert(self._context, entry_id, allow_empty=allow_empty, identity=who)

    def abort(self, entry_id: str, *, identity: str | None = None) -> RevertedEntry:
        """Revert a push in progress, and nothing else: one that was completed meanwhile is refused (``completed``)."""
        return replacement.revert.revert(
            self._context, entry_id, force=replacement.rules.Force.ONLY, identity=_check_identity(identity)
        )

    def preview_revert(self, entry_id: str, *, force: bool = False, allow_empty: bool = False) -> RevertedEntry:
        """What :meth:`revert` would do, or the error it would raise. Changes nothing."""
        how = replacement.rules.Force.ALSO if force else replacement.rules.Force.NEVER
        return replacement.revert.preview(self._context, entry_id, force=how, allow_empty=allow_empty)

    def preview_unrevert(self, entry_id: str, *, allow_empty: bool = False) -> UnrevertedEntry:
        """What :meth:`unrevert` would do, or the error it would raise. Changes nothing."""
        return replacement.unrevert.preview(self._context, entry_id, allow_empty=allow_empty)

    def drop(self, *, identity: str | None = None) -> DroppedTable:
        """Drop the table: see :mod:`.retention.drop`. Reverting the entry that this makes brings it back."""
        access.require_operator(self.store.cluster, "drop of a table")
        return retention.drop.drop(self._context, identity=_check_identity(identity))

    def preview_drop(self) -> DroppedTable:
        """What :meth:`drop` would do now. Changes nothing."""
        return retention.drop.preview(self._context)

    def delete_time(
        self, interval: Interval, *, identity: str | None = None, priority: int = Priority.BATCH
    ) -> EndedEntry:
        """Remove the rows of a stretch of time from sight: see :func:`.replacement.overwrite.delete_time`."""
        return replacement.overwrite.delete_time(
            self._context, interval, identity=_check_identity(identity), priority=priority
        )

    def cleanup(self) -> CleanedUp:
        """One pass of the lineage clean-up: see :func:`.retention.cleanup.run`."""
        access.require_operator(self.store.cluster, "clean-up")
        audit.trim(self.store.cluster, self.name)
        return retention.cleanup.run(self._context)

    def retain(self, *, dry_run: bool = False) -> RetentionReport:
        """The lineage clean-up and the time retention in one pass: see :func:`.retention.retain.retain`. A dry run
        says what would go and why, and writes nothing."""
        if not dry_run:
            access.require_operator(self.store.cluster, "retention")
            audit.trim(self.store.cluster, self.name)
        return retention.retain.retain(self._context, dry_run=dry_run)

    def mark_ledgers(
        self, segments: Sequence[str] | None = None, *, entry_id: str | None = None, missing_ok: bool = False
    ) -> MarkReport:
        """Mark leftovers for deletion: the named ``segments``, or all that an entry has left. See
        :func:`.deletion.mark_by_hand.mark_segments` and :func:`.deletion.mark_by_hand.mark_entry`.

        ``entry_id`` may be given as :meth:`resolve_entry` takes it, or as the whole id of an entry that has left the
        lineage. Raises :class:`ValueError` unless one of the two is given.
        """
        if (segments is None) == (entry_id is None):
            raise ValueError("give either segments or an entry_id")
        self.config()
        access.require_operator(self.store.cluster, "mark for deletion")
        if entry_id is not None:
            whole = entry_id if is_entry_id(entry_id) else self.resolve_entry(entry_id)
            return deletion.mark_by_hand.mark_entry(self._context.marker, whole)
        return deletion.mark_by_hand.mark_segments(self._context.marker, segments or (), missing_ok=missing_ok)

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
        access.require_operator(self.store.cluster, "offload")
        return self._offloader().run(
            older_than_ms=older_than_ms, primary_lag_ms=primary_lag_ms, max_segments=max_segments, progress=progress
        )

    def reconcile(
        self, *, grace_ms: int, enqueue: bool = False, progress: Callable[[ReconcileReport], None] | None = None
    ) -> ReconcileReport:
        """Compare storage with what is known of it: see :meth:`.deletion.reconcile.Reconciler.run`."""
        self.config()
        reconciler = deletion.reconcile.Reconciler(self.store.cluster, self.name, self.sent)
        if enqueue:
            access.require_operator(self.store.cluster, "reconcile with enqueue")
        return reconciler.run(grace_ms=grace_ms, enqueue=enqueue, progress=progress)

    def _offloader(self) -> Offloader:
        tiered = self.store.tiered
        if tiered is None or tiered.uri == self.storage.uri:
            raise InvalidConfigError(
                f"table {self.name!r} cannot be offloaded: the store has "
                + ("no tiered storage" if tiered is None else f"the same tiered storage as primary, {tiered.uri}")
                + "; set SEGMENTS_TIERED_URI, or the tiered storage of the connection"
            )
        return tiering.offload.Offloader(self.store.cluster, self.name, tiered, self.sent)

    @property
    def sent(self) -> Counter[str]:
        """Deletion messages that this object has queued so far, by ledger type: PIP-186's count of what was sent. A
        transaction whose reply was lost is not in it."""
        return self._context.sent

    def segment_states(self, start: int | None = None, end: int | None = None) -> list[SegmentStatus]:
        """The state of each registered segment: see :meth:`.snapshot.SnapshotReader.states`."""
        return self._context.reader.states(start, end)

    def read_whole(self, before: TableRead | None = None) -> TableRead:
        """The whole table in one read, for a look at its past: see :func:`.replacement.history.read_table`."""
        return replacement.history.read_table(self._context, before)

    def events(self) -> list[audit.LoggedEvent]:
        """The table's audit trail, newest first: see :mod:`.audit`. Raises :class:`CorruptRecordError`."""
        return audit.events(self.store.cluster, self.name)

    def leases(self) -> Sequence[LeaseInfo]:
        """The leases of the table's readers, oldest first: what deletions wait for."""
        return self._context.reader.leases.held()

    def snapshot(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        as_of: str | None = None,
        mark: int | None = None,
        owner: str = "",
        known: Snapshot | None = None,
    ) -> Snapshot:
        """What is visible: see :meth:`.snapshot.SnapshotReader.take`. ``with table.snapshot() as taken:`` keeps its
        objects from being deleted until the block ends. A process that looks again and again gives what it has got
        last as ``known``, and gets it back while nothing has changed."""
        taken = self._context.reader.take(start, end, as_of=as_of, mark=mark, owner=owner, known=known)
        dropped_by = taken.lineage.dropped_by if taken.lineage is not None else None
        if dropped_by is not None:
            raise TableDroppedError(
                f"table {self.name!r} was dropped; to bring it back: segments revert {self.name} {dropped_by}"
            )
        return taken

    def checkpoint(self, at: Time, *, region: str) -> int:
        """The version of an upsert table that holds exactly what ``region`` had written up to its last heartbeat at or
        before ``at``, to be read as ``mark``: see :func:`.replication.stream.checkpoint`. Raises what that raises, and
        :class:`UpsertRefusedError` (``no-heartbeats``, ``no-region``)."""
        record = require_record(self.lineage())
        require_heartbeats(self.config(), [region])
        known = record.stream or stream.VersionStream()
        return stream.checkpoint(known, region, epoch_ms(at), floor=record.floor, table=self.name)

    def mark_at(self, mark: int | None, checkpoint: Time | None, region: str | None) -> int | None:
        """The mark that a reader asks for: ``mark``, or the ``checkpoint`` of a time in ``region``; ``None``, the
        newest, without either. Raises what :meth:`checkpoint` raises, and :class:`ValueError` for both, or for one of
        time and region without the other."""
        if checkpoint is None and region is None:
            return mark
        if checkpoint is None or region is None or mark is not None:
            raise ValueError("a checkpoint is a time and a region, and takes the place of a mark")
        return self.checkpoint(checkpoint, region=region)

    @property
    def context(self) -> TableContext:
        """What the steps of the protocol work with, for an engine that has steps of its own."""
        return self._context

    def resolve_entry(self, entry: str, among: Collection[EntryState] = (EntryState.COMPLETED,)) -> str:
        """The id meant by ``entry``: an id, the unique beginning of one (4 characters or more), or ``latest``, the
        entry that came last into one of the states ``among``. Of REVERTED ones, ``latest`` is one that can be brought
        back. Raises :class:`EntryNotFoundError`."""
        lineage = self.lineage()
        if entry == "latest":
            return self._latest(lineage, among)
        if entry in lineage.entries:
            return entry
        found = [entry_id for entry_id in lineage.entries if len(entry) >= 4 and entry_id.startswith(entry)]
        if len(found) != 1:
            problem = f"{len(found)} lineage entries begin with" if found else "no lineage entry is called"
            raise EntryNotFoundError(f"table {self.name!r}: {problem} {entry!r}")
        return found[0]

    def check_not_behind_revert(self, entry_id: str) -> None:
        """Raise :class:`RevertRefusedError` (``behind-revert``) if an entry that was completed after this one is
        rolled back already. Who asked for "the latest" twice would else roll back twice."""
        lineage = self.lineage()
        reverted = [entry.entry_id for entry in lineage.in_state(EntryState.REVERTED)]
        guards = self._context.records.guards([entry_id, *reverted])
        completed = guards[entry_id].changed if entry_id in guards else 0
        later = {at: one for one in reverted if one in guards and (at := guards[one].guard.completed_at) > completed}
        if later:
            raise RevertRefusedError(
                "behind-revert",
                f"the latest entry is this one now, and entry {later[max(later)]}, which was completed after it, "
                "is rolled back already",
                table=self.name,
                entry_id=entry_id,
                hint="To roll this one back, too, name it by its id.",
            )

    def _latest(self, lineage: Lineage, among: Collection[EntryState]) -> str:
        """See :func:`newest_of`."""
        found = [
            entry
            for entry in lineage.in_state(*among)
            if entry.state is not EntryState.REVERTED or not lineage.is_cleaning(entry.entry_id)
        ]
        newest = newest_of(found, self._context.records.guards(entry.entry_id for entry in found))
        if newest is None:
            what = " or ".join(_NO_ENTRY[state] for state in among)
            raise EntryNotFoundError(f"table {self.name!r} has no {what}")
        return newest


def newest_of(entries: Iterable[LineageEntry], guards: Mapping[str, StoredGuard]) -> str | None:
    """The id of the entry that came last into its state, by ZooKeeper's order; ``None`` without entries. Entries of
    other tools have no guard and count first."""

    def age(entry: LineageEntry) -> tuple[int, int]:
        stored = guards.get(entry.entry_id)
        if stored is None:
            return 0, entry.timestamp_ms
        return stored.born if stored.guard.state is GuardState.OPEN else stored.changed, entry.timestamp_ms

    newest = max(entries, key=age, default=None)
    return None if newest is None else newest.entry_id


_NO_ENTRY = {
    EntryState.COMPLETED: "completed replacement",
    EntryState.IN_PROGRESS: "push in progress",
    EntryState.REVERTED: "replacement that was rolled back and can be brought back",
}


def _check_identity(identity: str | None) -> str | None:
    if identity is None:
        return None
    if check_text("identity", identity).startswith(OWN_IDENTITY):
        raise InvalidNameError(f"identity {identity[:80]!r} begins as this package's own work does; choose another")
    return identity
