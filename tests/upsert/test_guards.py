"""Each guard of the protocol is needed: without it, some random history shows what no reader may see."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from airflow_provider_segments.core.lineage.entries import Lineage
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.upsert import record as records
from airflow_provider_segments.core.upsert.record import Movement, Publication, UpsertRecord
from airflow_provider_segments.exceptions import RefusedError
from airflow_provider_segments.upsert import compaction, key_store, partitions, reading
from airflow_provider_segments.upsert.events import IngestionUpsertEvents
from airflow_provider_segments.upsert.validity import ends_by_segment, log_of
from tests.upsert.histories import run_history
from tests.upsert.world import World

SEEDS = 60
"""Each guard's absence is noticed within so many histories."""


def publish_whatever_the_heads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Publication, "_check_heads", lambda *_: None)


def move_without_a_generation(patch: pytest.MonkeyPatch) -> None:
    """Caches and batches from before a compaction refer to rows that have moved."""

    def switch(self: Movement, before: Lineage, completed: Lineage) -> Lineage:
        return records.store_record(completed, records.require_record(before))

    patch.setattr(Movement, "switch", switch)


def carry_no_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compaction._Rewriting, "ends_to_keep", lambda *_: log_of())


def carry_ends_as_old_ones(patch: pytest.MonkeyPatch) -> None:
    """A carried end that does not name its version counts from the floor on."""
    whole = compaction._Rewriting.ends_to_keep

    def without_versions(self: Any, now: Any) -> Any:
        log = whole(self, now)
        index = log.schema.get_field_index("version")
        return log.set_column(index, log.schema.field("version"), pyarrow.nulls(log.num_rows, pyarrow.int64()))

    patch.setattr(compaction._Rewriting, "ends_to_keep", without_versions)


def count_ends_that_were_rolled_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "ends_by_segment", lambda logs, _: ends_by_segment(logs))


def leave_positions_on_rollback(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UpsertRecord, "positions_at", lambda self, _: dict(self.positions))


def forget_delete_records_in_a_rebuild(patch: pytest.MonkeyPatch) -> None:
    """A late event brings a deleted key back."""
    whole = partitions.segment_events

    def living(taken: Any, segment: Any, config: Any, number: int) -> IngestionUpsertEvents:
        events = whole(taken, segment, config, number)
        rows = reading.read_segment(taken, segment, [config.deletes])
        deleted = rows.column(0).fill_null(False).to_numpy()
        return events.at(events.segment, events.row).take(~deleted)

    patch.setattr(partitions, "segment_events", living)


def keep_the_cutoff_on_rollback(patch: pytest.MonkeyPatch) -> None:
    """Rows are there again that are older than the cutoff, so they count as gone."""
    patch.setattr(UpsertRecord, "cutoff_at", lambda self, _: self.cutoff)


def publish_whatever_the_cutoff(patch: pytest.MonkeyPatch) -> None:
    real = Publication.switch

    def switch(self: Publication, before: Lineage, completed: Lineage) -> Lineage:
        now = records.require_record(before).cutoff
        return real(replace(self, cutoff=now), before, completed)

    patch.setattr(Publication, "switch", switch)


def use_a_cache_of_another_head(patch: pytest.MonkeyPatch) -> None:
    real = key_store.SortedRuns.open

    def any_state(self: Any, head: Any) -> bool:
        return real(self, head) or self._manifest.generation >= 0

    patch.setattr(key_store.SortedRuns, "open", any_state)


def read_what_waits(patch: pytest.MonkeyPatch) -> None:
    """Rows of an ordinary push are visible before they were compared."""
    patch.setattr(records.Waiting, "switch", lambda _, __, completed: completed)


GUARDS: list[Callable[[pytest.MonkeyPatch], None]] = [
    publish_whatever_the_heads,
    move_without_a_generation,
    carry_no_ends,
    carry_ends_as_old_ones,
    count_ends_that_were_rolled_back,
    leave_positions_on_rollback,
    forget_delete_records_in_a_rebuild,
    keep_the_cutoff_on_rollback,
    publish_whatever_the_cutoff,
    use_a_cache_of_another_head,
    read_what_waits,
]


@pytest.mark.slow
@pytest.mark.parametrize("without", GUARDS, ids=lambda guard: guard.__name__)
def test_without_the_guard_a_history_shows_what_no_reader_may_see(
    without: Callable[[pytest.MonkeyPatch], None], store: SegmentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch)
    with pytest.raises((AssertionError, RefusedError, IndexError)) as seen:
        for seed in range(SEEDS):
            world = World(store, tmp_path / str(seed), random.Random(1000 + seed))
            try:
                run_history(world, 40)
            finally:
                world.close()
    print(f"{without.__name__}: seed {1000 + seed}: {str(seen.value)[:160]}")
