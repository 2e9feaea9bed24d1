"""What still needs a ledger: the question the second phase asks before it deletes anything.

Everything is read after a ``sync``, and after the message was read. A lease older than the message stood when the
message was written, so it is seen; a registry that had the segment when the message was written is not taken for one
that never had it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.lineage.guard import GuardState
from airflow_provider_segments.core.lineage.records import LineageRecords
from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.model.ledger import (
    DeletionBatch,
    LedgerComponent,
    LedgerType,
    PendingDeleteLedgerInfo,
)
from airflow_provider_segments.core.model.names import is_entry_id
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.leases import LeaseInfo, Leases
from airflow_provider_segments.core.registry.registry import Registry


class Verdict(enum.Enum):
    """What may happen to a ledger.

    UNUSED: delete it, if it is what the message says. STALE: a table uses it, so the message was forged, or is one of
    two. WAITING: somebody may still read or write it.
    """

    UNUSED = "unused"
    STALE = "stale"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class TableUse:
    """What is known to need ledgers of one table: entries that a push may still write for, what is ``registered`` by
    entry and file, readers' leases, offloads under way, and other ledgers that are in use."""

    in_progress: Collection[str]
    registered: Mapping[str, Mapping[str, SegmentRecord]]
    leases: Sequence[LeaseInfo]
    offloading: Collection[str]
    others: Collection[tuple[str, str]]

    def entry_in_progress(self, entry_id: str) -> bool:
        """Whether a push may still be writing under the entry's prefix."""
        return entry_id in self.in_progress

    def user_of(self, batch: DeletionBatch, ledger: PendingDeleteLedgerInfo) -> SegmentRecord | None:
        """The registered segment whose data this very ledger is."""
        found = self.registered.get(batch.entry_id, {}).get(ledger.file)
        if found is None:
            return None
        if batch.ledger_type is LedgerType.LEDGER:
            return found if found.primary else None
        offload, asked = found.offload, batch.offload
        # The copy's key is made from the uuid alone, so however the message spells the rest, that copy is meant.
        return found if offload is not None and asked is not None and offload.uuid == asked.uuid else None


@dataclass(frozen=True, slots=True)
class UsageReader:
    """Reads what needs a table's ledgers."""

    cluster: Cluster

    def read(self, table: str, entries: Collection[str], components: Collection[LedgerComponent] = ()) -> TableUse:
        """Everything about ``entries`` of ``table``.

        Whether an entry is in progress is asked of its guard, which is born, changed and dropped in the lineage's own
        transactions: nobody stages without one, and the lineage would have to be read with every name in it. A table
        that is not there uses nothing: that is ZooKeeper's own answer, after a sync (T4). Raises
        :class:`CorruptRecordError`.
        """
        session, paths = self.cluster.session, self.cluster.paths
        session.sync("/")
        ours = [entry_id for entry_id in sorted(entries) if is_entry_id(entry_id)]
        guards = LineageRecords(self.cluster, table).guards(ours)
        registered: dict[str, dict[str, SegmentRecord]] = {}
        for shard in Registry(self.cluster, table).shards_of(entries):
            found = registered.setdefault(shard.name.entry_id, {})
            found.update((record.file, record) for record in shard.records)
        return TableUse(
            {entry_id for entry_id, stored in guards.items() if stored.guard.state is GuardState.OPEN},
            registered,
            Leases(self.cluster, table).held(),
            frozenset(session.children(paths.offloads(table))),
            self._others(table, components),
        )

    def _others(self, table: str, components: Collection[LedgerComponent]) -> frozenset[tuple[str, str]]:
        names = [one.value for one in components if one is not LedgerComponent.MANAGED_LEDGER]
        parents = [self.cluster.paths.other_ledgers(table, name) for name in names]
        below = self.cluster.session.children_many(parents)
        return frozenset((name, one) for name, found in zip(names, below, strict=True) for one in found)


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides about one batch's ledgers. ``marked`` is the zxid of the mark."""

    use: TableUse
    batch: DeletionBatch
    marked: int
    now_ms: int
    settings: DeletionSettings

    def verdict(self, ledger: PendingDeleteLedgerInfo) -> tuple[Verdict, str]:
        """What may happen to the ledger, and why not more."""
        if self.batch.component is not LedgerComponent.MANAGED_LEDGER:
            return self._other()
        if self.use.user_of(self.batch, ledger) is not None:
            return Verdict.STALE, "the segment is registered"
        if self.use.entry_in_progress(self.batch.entry_id):
            return Verdict.WAITING, f"entry {self.batch.entry_id} is IN_PROGRESS"
        if self.batch.offload is not None and self.batch.offload.uuid in self.use.offloading:
            return Verdict.WAITING, f"offload {self.batch.offload.uuid} is under way"
        return self._leased()

    def _other(self) -> tuple[Verdict, str]:
        if (self.batch.component.value, self.batch.component_id) in self.use.others:
            return Verdict.STALE, f"{self.batch.component.value} {self.batch.component_id!r} is in use"
        return self._leased()

    def _leased(self) -> tuple[Verdict, str]:
        for lease in self.use.leases:
            if lease.zxid > self.marked:
                break
            age = self.now_ms - lease.taken_ms
            if not self.settings.max_lease_age_ms or age <= self.settings.max_lease_age_ms:
                return Verdict.WAITING, f"leased by {lease.owner} for {age // 1000} s"
        return Verdict.UNUSED, ""

    def overruled(self) -> Sequence[LeaseInfo]:
        """Leases that are older than the mark and too old to be waited for."""
        limit = self.settings.max_lease_age_ms
        return [
            lease
            for lease in self.use.leases
            if limit and self.now_ms - lease.taken_ms > limit and lease.zxid < self.marked
        ]
