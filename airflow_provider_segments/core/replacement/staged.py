"""What counts as staged into an entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_segments.core.lineage.guard import Guard
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.shard import Shard


@dataclass(frozen=True, slots=True)
class Staged:
    """An entry's shards: those of each stager's newest, finished attempt, and the leftovers of all others."""

    current: tuple[Shard, ...]
    leftover: tuple[Shard, ...]

    def records(self) -> Iterable[SegmentRecord]:
        """Records of the current shards."""
        return (record for shard in self.current for record in shard.records)


def sort_out(guard: Guard, found: Iterable[Shard]) -> Staged:
    """Tell what counts from what an earlier or unfinished attempt has left."""
    current: list[Shard] = []
    leftover: list[Shard] = []
    for shard in found:
        stage = guard.stages.get(shard.name.stager)
        counts = stage is not None and stage.done and stage.attempt == shard.name.attempt
        (current if counts else leftover).append(shard)
    return Staged(tuple(current), tuple(leftover))
