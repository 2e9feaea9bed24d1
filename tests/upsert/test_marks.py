"""Readers that keep copies: the mark at which they can answer together, and what they report."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pyarrow
import pytest

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.upsert.marks import HeldVersion, HeldVersions, low_water_mark
from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from tests.upsert.world import Event, to_arrow, upsert_config


def held(reader: str, version: int, *, is_caught_up: bool = True, at_ms: int = 0) -> HeldVersion:
    return HeldVersion(reader=reader, version=version, is_caught_up=is_caught_up, at_ms=at_ms)


def test_the_mark_is_the_smallest_version_that_all_readers_have() -> None:
    assert low_water_mark(20, [held("a", 10), held("b", 15)]) == 10


def test_without_readers_of_copies_the_mark_is_the_clock() -> None:
    assert low_water_mark(20, []) == 20


def test_a_reader_that_has_not_caught_up_holds_nobody_back() -> None:
    assert low_water_mark(20, [held("a", 10), held("new", 2, is_caught_up=False)]) == 10


def test_a_silent_reader_keeps_its_mark_and_is_told() -> None:
    silent = held("a", 10, at_ms=1_000)
    assert low_water_mark(20, [silent]) == 10
    assert silent.is_silent(70_000, 60_000)
    assert not silent.is_silent(50_000, 60_000)


def test_whatever_order_reports_come_in_a_mark_never_goes_back() -> None:
    rnd = random.Random(3)
    for _ in range(200):
        known, before = held("a", 0), 0
        for version in rnd.sample(range(50), 20):
            known = known.followed_by(held("a", version))
            assert known.version >= before
            before = known.version


def test_reports_are_stored_and_one_above_the_clock_is_refused(store: SegmentStore, tmp_path: object) -> None:
    store.apply_config(upsert_config())
    table = store.table("t")
    ingestor = UpsertIngestor(table, cache=tmp_path)  # type: ignore[arg-type]
    for number in range(3):
        ingestor.ingest(to_arrow([Event(number, 0, number, "a", "v", False)]))
    versions = HeldVersions(store.cluster, "t")
    assert versions.report("extract", 2).version == 2
    assert versions.report("extract", 1).version == 2
    with pytest.raises(UpsertRefusedError, match="above-clock"):
        versions.report("extract", 4)
    with pytest.raises(UpsertRefusedError, match="no-report"):
        versions.read(["extract", "another"])
    assert low_water_mark(table.snapshot().mark or 0, versions.read()) == 2


def test_a_reader_that_joins_behind_the_others_does_not_count_until_it_holds_what_they_hold(
    store: SegmentStore, tmp_path: object
) -> None:
    """Else the common mark would go back."""
    store.apply_config(upsert_config())
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path)  # type: ignore[arg-type]
    for number in range(4):
        ingestor.ingest(to_arrow([Event(number, 0, number, "a", "v", False)]))
    versions = HeldVersions(store.cluster, "t")
    assert versions.report("first", 2).is_caught_up
    assert not versions.report("new", 1).is_caught_up
    assert low_water_mark(4, versions.read()) == 2
    versions.report("first", 3)
    assert not versions.report("new", 2).is_caught_up, "the others have gone on"
    assert versions.report("new", 4).is_caught_up
    assert low_water_mark(4, versions.read()) == 3
    assert versions.forget("first") and not versions.forget("first")
    assert low_water_mark(4, versions.read()) == 4


def test_the_common_mark_never_goes_back_while_readers_join_and_report_at_once(
    store: SegmentStore, tmp_path: object
) -> None:
    store.apply_config(upsert_config())
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path)  # type: ignore[arg-type]
    for number in range(12):
        ingestor.ingest(to_arrow([Event(number, 0, number, "a", "v", False)]))
    versions = HeldVersions(store.cluster, "t")
    versions.report("r0", 1)

    def reader(name: str, first: int) -> None:
        for version in range(first, 13):
            versions.report(name, version)

    marks = [0]
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(reader, f"r{at}", at + 1) for at in range(4)]
        while not all(one.done() for one in running):
            marks.append(low_water_mark(12, versions.read()))
        for one in running:
            one.result()
    assert marks == sorted(marks)
    assert low_water_mark(12, versions.read()) == 12


def test_an_event_without_a_place_in_its_source_is_refused(store: SegmentStore, tmp_path: object) -> None:
    store.apply_config(upsert_config())
    rows = pyarrow.table({"k": ["a"], "ts": [1], "deleted": [False]})
    with pytest.raises(ValueError, match=r"\$partition"):
        UpsertIngestor(store.table("t"), cache=tmp_path).ingest(rows)  # type: ignore[arg-type]
