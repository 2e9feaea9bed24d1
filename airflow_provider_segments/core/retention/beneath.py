"""What lies beneath overwrites: it stays hidden for as long as it is registered, and leaves in its time. Pure.

An overwrite hides by time, so nothing names what it hides. Two things follow for the clean-up:

* **What is hidden for good goes**, as if it had been replaced: a segment all of whose time is held by overwrites that
  clean-up has marked, so that nobody can roll them back any more.
* **An overwrite stays** in the lineage as long as a segment of a lower version is registered in its time, whatever
  hides that now: it would be seen again, or could be brought back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, Overwrite
from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.versions.overwrites import TimeFilter


@dataclass(frozen=True, slots=True)
class HiddenSegment:
    """A segment that is hidden for good, and the shard that has it."""

    shard: Shard
    record: SegmentRecord

    @property
    def entry_id(self) -> str:
        """The entry that brought it."""
        return self.shard.name.entry_id


def settled_overwrites(lineage: Lineage) -> list[Overwrite]:
    """The overwrites in force that clean-up has marked: nobody can roll them back any more."""
    return [one for one in lineage.overwrites_in_force if lineage.is_cleaning(one.entry_id)]


def hidden_for_good(lineage: Lineage, shards: Iterable[Shard]) -> list[HiddenSegment]:
    """The segments in ``shards`` that settled overwrites hold all of the time of.

    Left out are those of an entry that can still be rolled back, so that it stays so, and those that an entry names:
    they leave with that entry.
    """
    times = TimeFilter(settled_overwrites(lineage))
    named = {name for entry in lineage for name in entry.segments_from}
    return [
        HiddenSegment(shard, record)
        for shard in shards
        if _is_final(lineage, shard.name.entry_id)
        for record in shard.records
        if record.name not in named
        and times.window(parse_chunk(shard.chunk_of(record))).visible_parts(record.version) is None
    ]


def lies_beneath(overwrites: Iterable[Overwrite], shards: Iterable[Shard]) -> bool:
    """Return True if a segment in ``shards`` has a lower version than one of ``overwrites`` in its time."""
    held = list(overwrites)
    return any(
        record.version < one.version and one.overlaps(parse_chunk(shard.chunk_of(record)))
        for shard in shards
        for record in shard.records
        for one in held
    )


def _is_final(lineage: Lineage, entry_id: str) -> bool:
    """Return True if the entry has left, or is COMPLETED and can no longer be rolled back."""
    entry = lineage.get(entry_id)
    return entry is None or (entry.state is EntryState.COMPLETED and lineage.is_cleaning(entry_id))
