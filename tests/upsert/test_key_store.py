"""The key store against a dictionary: whatever runs it has, it knows the newest row of each key."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import numpy

from airflow_provider_segments.core.upsert.record import Head
from airflow_provider_segments.upsert.events import IngestionUpsertEvent, IngestionUpsertEvents
from airflow_provider_segments.upsert.key_store import SortedRuns


def event(key: int, time: int, segment: int) -> IngestionUpsertEvent:
    return IngestionUpsertEvent(key // 3, key, time, 0, 0, time, segment, 0)


def asked(store: SortedRuns, keys: Iterable[int]) -> dict[int, int]:
    high, low = zip(*((key // 3, key) for key in keys), strict=True)
    return {one.low: one.time for one in store.holders(numpy.array(high, numpy.uint64), numpy.array(low, numpy.uint64))}


def fill(store: SortedRuns, batches: int, size: int, keys: int) -> tuple[dict[int, int], int]:
    """Batches of random keys; returns what must be known, and how many rows were written to the disk."""
    chance, known, written = random.Random(4), dict[int, int](), 0
    store.rebuild(Head(), IngestionUpsertEvents.of(), ())
    for number in range(1, batches + 1):
        batch = chance.sample(range(keys), size)
        known |= dict.fromkeys(batch, number)
        names = [*store.segments, "", f"s{number}"]
        before = {path.name for path in store.folder.glob("*.run")}
        store.prepare(
            Head(f"e{number}", 0), IngestionUpsertEvents.of(event(key, number, len(names) - 1) for key in batch), names
        )
        assert store.open(Head(f"e{number}", 0))
        written += sum(run.rows for run in store._manifest.runs if run.file not in before)
        wanted = chance.sample(range(keys), 20)
        assert asked(store, wanted) == {key: known[key] for key in wanted if key in known}
    return known, written


def test_it_knows_the_newest_row_of_each_key_after_every_batch(tmp_path: Path) -> None:
    store = SortedRuns(tmp_path)
    known, _ = fill(store, 120, 15, 500)
    assert asked(store, range(500)) == known
    again = SortedRuns(tmp_path)
    assert again.open(Head("e120", 0))
    assert asked(again, range(500)) == known
    found = again.holders(
        *(numpy.array(part, numpy.uint64) for part in zip(*((k // 3, k) for k in known), strict=True))
    )
    assert {again.segments[one.segment] for one in found} == {f"s{time}" for time in known.values()}
    assert not again.open(Head("e119", 1))


def test_a_row_is_written_a_few_times_however_many_keys_there_are(tmp_path: Path) -> None:
    """Small batches into a large store must not cost what the store is large."""
    store = SortedRuns(tmp_path)
    known, written = fill(store, 400, 20, 8_000)
    assert len(known) > 4_000
    assert written / (400 * 20) < 8
    assert len(store._manifest.runs) < 20
