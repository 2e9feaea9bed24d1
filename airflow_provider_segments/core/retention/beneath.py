"""What newer versions hide without having replaced it: it is never seen again by accident, and leaves in its time.

An overwrite (a push under an EXCLUSIVE lock that names no ``from``) hides older versions in its time, and the lineage
knows nothing of that. Two things follow for the clean-up:

* **What hides stays.** A replaced segment does not leave the registry as long as something older would be seen again
  without it, whole or in the part of its time that it holds. Druid writes tombstones for this; here the records
  are kept, hidden, until what is beneath is gone: it was compacted, replaced, or has expired.
* **What is hidden for good goes**, as if it had been replaced: a segment all of whose time is held by versions that
  nobody can roll back any more. What that leaves in the store is what a rollback may still need.

Both take for granted that every entry that can be rolled back may be: what only such an entry hides is not hidden for
good, and what would be seen again once some were rolled back counts as seen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.locking import APPEND_VERSION
from airflow_provider_segments.core.model.interval import ALL_TIME, Interval
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.replacement.places import Known, Versions, registered


@dataclass(frozen=True)
class Beneath:
    """The settled segments of the time in which a table has, or had, newer versions than that of its appends."""

    known: tuple[Known, ...] = ()

    @cached_property
    def _by_name(self) -> Mapping[str, Known]:
        return {one.name: one for one in self.known}

    @classmethod
    def read(cls, context: Context, stored: StoredLineage, where: Interval = ALL_TIME) -> Beneath:
        """What there is of ``where``. Reads nothing but the lock box for a table without newer versions. Raises
        :class:`CorruptRecordError`."""
        newer = [one for one in context.locks.read().counters if one.version > APPEND_VERSION]
        if not newer:
            return cls()
        start = max(where.start_ms, min(one.start_ms for one in newer))
        end = min(where.end_ms, max(one.end_ms for one in newer))
        if start >= end:
            return cls()
        return cls(tuple(one for one in registered(context, stored, Interval(start, end)) if one.settled))

    def without(self, names: Collection[str]) -> Beneath:
        """This when those segments have left the registry."""
        gone = frozenset(names)
        return Beneath(tuple(one for one in self.known if one.name not in gone))

    def uncovered_by(self, lineage: Lineage, entry: LineageEntry) -> list[str]:
        """What readers might see again, or no longer, if what ``entry`` replaced left the registry. It can no longer be
        rolled back; what others of that kind have replaced nobody sees again, either."""
        gone = set(entry.segments_from)
        hiding = [one for name in gone if (one := self._by_name.get(name)) and one.place.version > APPEND_VERSION]
        if not hiding:
            return []
        near = self._around(hiding)
        before = near._held(lineage, _revertable(lineage), gone)
        with_it, without_it = Versions(before), Versions(one for one in before if one.name not in gone)
        never = {name for one in lineage if lineage.is_cleaning(one.entry_id) for name in one.segments_from}
        left = (one for one in near.known if one.name not in never)
        return [one.name for one in left if with_it.cover(one) != without_it.cover(one)]

    def _around(self, some: Collection[Known]) -> Beneath:
        """What may lie beneath ``some``, with all that may hide it, too: what shares time with what shares theirs."""
        return self._overlapping(self._overlapping(some).known)

    def _overlapping(self, some: Collection[Known]) -> Beneath:
        start = min(one.interval.start_ms for one in some)
        span = Interval(start, max(one.interval.end_ms for one in some))
        return Beneath(tuple(one for one in self.known if one.interval.overlaps(span)))

    def hidden_for_good(self, lineage: Lineage) -> list[Known]:
        """What nothing can bring back to readers, and no entry of the lineage says anything of."""
        named = {name for entry in lineage for name in entry.segments_from}
        versions = Versions(self._held(lineage, _revertable(lineage)))
        return [
            one
            for one in self.known
            if one.entry_id not in lineage.entries and one.name not in named and versions.hide(one)
        ]

    def _held(self, lineage: Lineage, revertable: Collection[str], stay: Collection[str] = ()) -> list[Known]:
        """What is left when those entries are rolled back, or readers have gone back from them: the segments ``stay``
        cannot be. What joined a version that such an entry had founded hides nothing, either."""
        founded = {lineage.founded_by(entry_id) for entry_id in revertable}
        return [
            one
            for one in self.known
            if one.name in stay or (one.entry_id not in revertable and one.version not in founded)
        ]


def _revertable(lineage: Lineage) -> set[str]:
    return {one.entry_id for one in lineage.in_state(EntryState.COMPLETED) if not lineage.is_cleaning(one.entry_id)}
