"""Reading every znode of a cluster, and comparing what they say of each other and of the stores. Writes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from airflow_provider_segments.core.binding import StoreRole, bound_stores, check_store
from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.doctor.kinds import PINOTS, kind_of
from airflow_provider_segments.core.doctor.report import DoctorReport, Severity
from airflow_provider_segments.core.lineage.entries import EntryState, Lineage
from airflow_provider_segments.core.lineage.guard import GuardState, StoredGuard
from airflow_provider_segments.core.lineage.records import LineageRecords
from airflow_provider_segments.core.locking import LockBox
from airflow_provider_segments.core.model.names import is_entry_id, is_table_name
from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.snapshot import SnapshotReader
from airflow_provider_segments.core.table_config import TableConfigs
from airflow_provider_segments.core.zookeeper import Node
from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    NewerRecordError,
    SegmentsError,
    StorageError,
    WrongStoreError,
)

_READ = 256  # znodes held at once
_LOOKS = 20  # objects of a table that are looked for, unless all are
_CLOCK_MS = 5_000
_PINOT_TOOLS = frozenset({"PROPERTYSTORE", *PINOTS})


def examine(cluster: Cluster, *, all_objects: bool = False) -> DoctorReport:
    """Look at everything of a cluster: each znode, what they say of each other, and objects of every table (some, or
    with ``all_objects`` every registered one).

    Raises :class:`ClusterNotFoundError` and :class:`MetadataUnavailableError`; anything else becomes a finding.
    """
    report = DoctorReport(cluster.paths.cluster)
    cluster.check_made()
    _read_all(cluster, report)
    _check_access(cluster, report)
    storage = _check_stores(cluster, report)
    for table in TableConfigs(cluster).tables():
        report.tables += 1
        _Table(cluster, table, report).check(all_objects=all_objects, storage=storage)
    _check_leftovers(cluster, report)
    return report


# --- znodes by themselves


def _read_all(cluster: Cluster, report: DoctorReport) -> None:
    newest = 0
    for path, node in _walk(cluster):
        newest = max(newest, node.made_ms)
        parts = tuple(path.removeprefix(cluster.paths.root).strip("/").split("/")) if path != cluster.paths.root else ()
        kind = kind_of(parts)
        if kind is None:
            report.znodes["foreign"] += 1
            pinots = parts[0] in _PINOT_TOOLS
            detail = "kept by Helix or Pinot" if pinots else "this version writes nothing there; it is left alone"
            report.add(Severity.NOTE if pinots else Severity.WARNING, "foreign-znode", path, detail)
            continue
        report.znodes[kind.name] += 1
        if kind.name == "config" and not is_table_name(parts[-1]):
            report.add(Severity.WARNING, "foreign-znode", path, "it stands among the table configs and is no table's")
        elif kind.read is not None:
            try:
                kind.read(path, node.data)
            except NewerRecordError as error:
                report.add(Severity.ERROR, "newer-format", path, error)
            except SegmentsError as error:
                report.add(Severity.ERROR, "unreadable", path, error)
    ahead = newest - cluster.clock.now_ms()
    if ahead > _CLOCK_MS:
        detail = f"this clock is {ahead / 1000:.0f} s behind ZooKeeper's; periods are counted by both"
        report.add(Severity.WARNING, "clock", "clock", detail)


def _walk(cluster: Cluster) -> Iterator[tuple[str, Node]]:
    """Every znode of the cluster, some at a time; deep first, so that no level of it is held as a whole."""
    pending = [cluster.paths.root]
    while pending:
        paths, pending = pending[-_READ:], pending[:-_READ]
        for path, node in zip(paths, cluster.session.get_many(paths), strict=True):
            if node is not None:
                yield path, node
        below = cluster.session.children_many(paths)
        pending += [f"{path}/{name}" for path, names in zip(paths, below, strict=True) for name in names]


def _check_access(cluster: Cluster, report: DoctorReport) -> None:
    """Znodes that anybody may change."""
    protected = cluster.session.settings.username is not None
    for path in (cluster.paths.root, cluster.paths.configs, cluster.paths.lineages, cluster.paths.registries):
        if any(acl.id.scheme == "world" and acl.perms & ~1 for acl in cluster.session.acl(path)):
            why = "although credentials are used; what was made before stays open" if protected else ""
            detail = f"everybody who reaches ZooKeeper may change it {why}".rstrip()
            report.add(Severity.WARNING if protected else Severity.NOTE, "open-to-all", path, detail)


def _check_stores(cluster: Cluster, report: DoctorReport) -> bool:
    """Return True if primary storage can be asked about objects."""
    usable = True
    for role in StoreRole:
        try:
            check_store(cluster, role)
        except (WrongStoreError, CorruptRecordError) as error:
            report.add(Severity.ERROR, "wrong-store", f"{role.value} storage", error)
            usable &= role is not StoreRole.PRIMARY
        except StorageError as error:
            report.add(Severity.ERROR, "storage-unavailable", f"{role.value} storage", error)
            usable &= role is not StoreRole.PRIMARY
    try:
        if StoreRole.TIERED.value in bound_stores(cluster) and cluster.tiered is None:
            report.add(
                Severity.NOTE, "no-tiered-storage", "tiered storage", "the cluster has one and it was not opened here"
            )
    except CorruptRecordError:
        pass  # named with the other znodes
    return usable


def _check_leftovers(cluster: Cluster, report: DoctorReport) -> None:
    """What stands of tables that have no config, and markers of batches that are gone."""
    session, paths = cluster.session, cluster.paths
    tables = set(TableConfigs(cluster).tables())
    for parent in (paths.lineages, paths.registries, f"{paths.root}/ENTRIES"):
        for name in session.children(parent):
            if name not in tables:
                report.add(Severity.WARNING, "no-config", f"{parent}/{name}", "there is no config of such a table")
    partitions = session.children(paths.pending_deletions)
    below = session.children_many([f"{paths.pending_deletions}/{number}" for number in partitions])
    batches = {name for names in below for name in names}
    for marker in session.children(paths.deletion_retries):
        if ".".join(marker.split(".")[2:]) not in batches:
            detail = "it waits beside a deletion batch that is not there; harmless"
            report.add(Severity.NOTE, "marker-without-batch", f"{paths.deletion_retries}/{marker}", detail)
    if dead := session.children(paths.dead_letters):
        detail = f"{len(dead)} deletions were given up and wait for a person: dead-letters list"
        report.add(Severity.WARNING, "dead-letters", paths.dead_letters, detail)


# --- one table


class _Table:
    """What the records of one table say of each other."""

    def __init__(self, cluster: Cluster, table: str, report: DoctorReport) -> None:
        self.cluster = cluster
        self.table = table
        self.report = report
        self.records = LineageRecords(cluster, table)
        self.registry = Registry(cluster, table)

    def check(self, *, all_objects: bool, storage: bool) -> None:
        """Compare. What cannot be read was named already, and ends the comparison of this table only."""
        try:
            self._compare()
            self._check_locks()
            if storage:
                self._check_objects(all_objects=all_objects)
        except (CorruptRecordError, SegmentsError) as error:
            self._error("not-compared", f"table {self.table}", error)

    def _compare(self) -> None:
        lineage = self.records.read().lineage
        parent = self.cluster.paths.entries(self.table)
        listed = self.cluster.session.children(parent)
        guards = self.records.guards([name for name in listed if is_entry_id(name)])
        for name in set(listed) - guards.keys():
            if not is_entry_id(name):
                self.report.add(Severity.WARNING, "foreign-znode", f"{parent}/{name}", "not the guard of an entry")
        for entry_id, guard in guards.items():
            self._check_guard(lineage, entry_id, guard)
        shards = list(self.registry.stream(lambda _: True))
        for shard in shards:
            self._check_shard(lineage, guards.get(shard.name.entry_id), shard)
        self._check_visible_names(lineage, guards, {record.name for shard in shards for record in shard.records})

    def _check_guard(self, lineage: Lineage, entry_id: str, guard: StoredGuard) -> None:
        path = self.records.guard_path(entry_id)
        entry = lineage.get(entry_id)
        if entry is None:
            self._error(
                "guard-without-entry", path, "its entry is not in the lineage: was that restored from a backup?"
            )
        elif entry.state is EntryState.IN_PROGRESS and guard.guard.state is not GuardState.OPEN:
            detail = f"it says {guard.guard.state.value}, the lineage IN_PROGRESS: the entry cannot be ended any more"
            self._error("guard-differs", path, detail)
        elif entry.state is not EntryState.IN_PROGRESS and guard.guard.state.value != entry.state.value:
            detail = f"it says {guard.guard.state.value}, the lineage {entry.state.value}: another tool has changed it"
            self.report.add(Severity.NOTE, "guard-differs", path, f"{detail}; the next clean-up brings it in line")

    def _check_shard(self, lineage: Lineage, guard: StoredGuard | None, shard: Shard) -> None:
        if guard is not None and guard.born != shard.born:
            detail = f"its entry was born at {shard.born:#x}, the guard at {guard.born:#x}"
            self._error("born-differs", shard.name.path, detail)
        if guard is None and lineage.get(shard.name.entry_id) is not None:
            self._error("shard-without-guard", shard.name.path, "its entry is in the lineage and has no guard")

    def _check_visible_names(self, lineage: Lineage, guards: dict[str, StoredGuard], registered: set[str]) -> None:
        """A COMPLETED entry's segments stay registered until something is removed: with no removal since, one that is
        not registered is a record that was lost."""
        changed = self.registry.root().changed
        replaced = {name for entry in lineage for name in entry.segments_from}
        for entry in lineage.in_state(EntryState.COMPLETED):
            guard = guards.get(entry.entry_id)
            if guard is None or changed > guard.born:
                continue
            if lost := [name for name in entry.segments_to if name not in registered and name not in replaced]:
                detail = f"{len(lost)} of its segments are not registered, {lost[0]} for one: rows are missing"
                self._error("record-lost", f"entry {entry.entry_id} of table {self.table}", detail)

    def _check_locks(self) -> None:
        box = LockBox(self.cluster, self.table)
        fences = set(self.cluster.session.children(box.path))
        active = {lock.lock_id for lock in box.read().locks if lock.active}
        for lock_id in active - fences:
            self._error("lock-without-fence", box.fence_path(lock_id), "the lock protects nothing: release it")
        for lock_id in fences - active:
            self.report.add(
                Severity.WARNING, "fence-without-lock", box.fence_path(lock_id), "no active lock has this fence"
            )

    def _check_objects(self, *, all_objects: bool) -> None:
        """Visible segments in primary storage: each is there, and as large as the registry says."""
        storage = self.cluster.storage
        segments: Sequence[Segment] = [
            segment for segment in SnapshotReader(self.cluster, self.table).take().segments if segment.tiered is None
        ]
        if not all_objects and len(segments) > _LOOKS:
            segments = random.Random(len(segments)).sample(segments, _LOOKS)  # noqa: S311 - a sample
        for segment in segments:
            self.report.objects += 1
            try:
                info = storage.head(segment.key)
            except CorruptRecordError as error:
                self._error("object-unreadable", storage.url(segment.key), error)
                continue
            if info is None:
                self._error(
                    "object-missing", storage.url(segment.key), f"segment {segment.name} is visible: data is lost"
                )
            elif info.bytes != segment.bytes:
                detail = f"it has {info.bytes:,} bytes, segment {segment.name} has {segment.bytes:,}"
                self._error("object-size", storage.url(segment.key), detail)

    def _error(self, check: str, subject: str, detail: object) -> None:
        self.report.add(Severity.ERROR, check, subject, detail)
