"""Few segments over many time chunks share the registry's shards, and readers notice nothing of it."""

from __future__ import annotations

import datetime

import pytest

from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.registry import shard as shards
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import InvalidNameError
from tests.support.tables import make_table, object_path

DAY_MS = 86_400_000
DAYS = [str(datetime.date(2013, 1, 1) + datetime.timedelta(days=day)) for day in range(365)]


def record(name: str, chunk: str | None = None) -> SegmentRecord:
    return SegmentRecord(name, f"{name}.parquet", 1, 1, 1, chunk=chunk)


@pytest.mark.parametrize(
    ("chunks", "each", "kept"),
    [
        (DAYS[:31], 1, ["2013-01"]),
        (DAYS[:7], 1, DAYS[:7]),  # too few chunks
        (DAYS[:31], 9, DAYS[:31]),  # too many segments
        ([f"2013-01-01T{hour:02d}" for hour in range(24)], 1, ["2013-01-01"]),
        ([f"2013-01-{day:02d}T{hour:02d}" for day in range(1, 9) for hour in range(24)], 1, ["2013-01"]),
        (DAYS[:240], 1, ["2013"]),
        (DAYS, 1, [f"2013-{month:02d}" for month in range(1, 13)]),
        ([f"2013-W{week:02d}" for week in range(1, 53)], 1, [f"2013-W{week:02d}" for week in range(1, 53)]),
        ([str(year) for year in range(2000, 2020)], 1, [str(year) for year in range(2000, 2020)]),
        (["ALL"], 300, ["ALL"]),
    ],
)
def test_where_records_are_kept(chunks: list[str], each: int, kept: list[str]) -> None:
    by_chunk = {chunk: [record(f"{chunk}_{number}") for number in range(each)] for chunk in chunks}
    shared = shards.share(by_chunk)
    assert sorted(shared) == sorted(kept)
    found = [(one.chunk or chunk, one.name) for chunk, records in shared.items() for one in records]
    assert sorted(found) == sorted((chunk, one.name) for chunk, records in by_chunk.items() for one in records)
    for chunk, records in shared.items():
        whole = parse_chunk(chunk)
        for one in records:
            inner = parse_chunk(one.chunk or chunk)
            assert whole.start_ms <= inner.start_ms and inner.end_ms <= whole.end_ms


@pytest.mark.parametrize("with_times", [True, False])
def test_a_year_of_days_reads_as_if_each_day_had_its_own(store: SegmentStore, with_times: bool) -> None:
    table = make_table(store)
    entry = table.start(identity="year")
    ticket = table.open_stage(entry.entry_id)
    segments = []
    for day in DAYS:
        start = parse_chunk(day).start_ms
        times = (start, start + DAY_MS - 1) if with_times else (None, None)
        segments.append(StagedSegment(day, SegmentRecord(f"s_{day}", f"s_{day}.1.0.parquet", 1, 1, 1, *times)))
    object_path(table, ticket.prefix).mkdir(parents=True)
    for one in segments:
        object_path(table, ticket.prefix + one.record.file).write_bytes(b"x")
    table.stage(ticket, segments)
    table.end(entry.entry_id)
    whole = table.snapshot()
    assert [(one.name, one.chunk) for one in whole.segments] == [(f"s_{day}", day) for day in DAYS]
    assert len(whole.blocks) == 12
    for day in (DAYS[0], DAYS[151], DAYS[364]):
        start = parse_chunk(day).start_ms
        assert table.snapshot(start, start + DAY_MS).names == [f"s_{day}"]
        assert table.snapshot(start, start + DAY_MS).segments[0].interval == parse_chunk(day)


def test_a_record_that_names_a_chunk_of_its_own_is_refused(store: SegmentStore) -> None:
    table = make_table(store)
    ticket = table.open_stage(table.start().entry_id)
    with pytest.raises(InvalidNameError, match="not the build's to say"):
        table.stage(ticket, [StagedSegment("2013-01-01", record("s", "2014"))])
    assert table.staged(ticket.entry_id).names == []
