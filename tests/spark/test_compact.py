"""Compaction end to end: real Spark, real ZooKeeper, real files. What readers see never changes but for its files."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from airflow_provider_segments.core.compaction.settings import CompactionSettings
from airflow_provider_segments.core.model.interval import Granularity
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.names import entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.spark import compact
from airflow_provider_segments.spark.compact import CompactionReport, compact_table
from tests.spark.conftest import MakeTable
from tests.support.tables import unchanged

DAY_MS = 86_400_000
FIRST = int(datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC).timestamp()) * 1000


def append(table: Table, folder: Path, values: Iterable[int], day: int = 0) -> str:
    """One small push: a segment of that day, with these values, in falling order of time."""
    entry = table.start().entry_id
    ticket = table.open_stage(entry)
    name = f"{table.name}_{entry_tag(entry)}"
    numbers = list(values)
    times = [FIRST + day * DAY_MS + number % DAY_MS for number in numbers]
    path = folder / "append.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"at": times, "v": numbers}), path)
    owner = owner_metadata(table.name, name, ticket.generation)
    size = table.storage.put_file(path, f"{ticket.prefix}{name}.parquet", owner=owner).bytes
    record = SegmentRecord(name, f"{name}.parquet", len(numbers), size, 0, min(times), max(times))
    table.stage(ticket, [StagedSegment(f"2013-01-{day + 1:02d}", record)])
    table.end(entry)
    return entry


def values(table: Table) -> list[int]:
    """What a reader finds, in the order of the files."""
    found: list[int] = []
    for segment in table.snapshot().segments:
        with table.storage.open(segment.key) as file:
            found += pyarrow.parquet.read_table(file).column("v").to_pylist()
    return found


@pytest.fixture
def table(make_table: MakeTable) -> Table:
    """A table of days, cut at 100 rows."""
    return make_table(timeFormat="EPOCH_MILLIS", targetRowsPerSegment=100)


def run(spark: SparkSession, table: Table, identity: str = "me", **how: Any) -> CompactionReport:
    return compact_table(spark, table, identity=identity, **how)


def test_small_segments_become_large_sorted_ones_chunk_by_chunk(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    for number in range(12):
        append(table, tmp_path, range(number * 10 + 9, number * 10 - 1, -1), day=number % 2)
    before = sorted(values(table))
    seen: list[str] = []
    report = run(spark, table, progress=lambda group: seen.append(group.chunk))
    assert [(group.inputs, group.outputs, group.rows_after, group.how, group.error) for group in report.groups] == [
        (6, 1, 60, "merge", "")
    ] * 2
    assert sorted(seen) == ["2013-01-01", "2013-01-02"]
    assert sorted(values(table)) == before
    assert len(table.snapshot()) == 2
    for segment in table.snapshot().segments:
        with table.storage.open(segment.key) as file:
            times = pyarrow.parquet.read_table(file).column("at").to_pylist()
        assert times == sorted(times)
        assert (segment.min_time_ms, segment.max_time_ms) == (times[0], times[-1])
    assert run(spark, table, "again").groups == []


def test_a_compaction_can_be_rolled_back(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    for number in range(3):
        append(table, tmp_path, [number])
    names = table.snapshot().names
    [group] = run(spark, table).groups
    assert len(table.snapshot()) == 1
    table.revert(group.entry_id)
    assert sorted(table.snapshot().names) == sorted(names)
    assert sorted(values(table)) == [0, 1, 2]


def test_appends_go_on_while_a_chunk_is_compacted_and_do_not_make_it_start_over(
    spark: SparkSession, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        append(table, tmp_path, [number])
    merges: list[str] = []
    merge = compact._Run._merge

    def late_data(self: Any, group: Any, started: Any, ticket: Any) -> Any:
        merged = merge(self, group, started, ticket)
        merges.append(group.chunk)
        append(table, tmp_path, [77])
        return merged

    monkeypatch.setattr(compact._Run, "_merge", late_data)
    [group] = run(spark, table).groups
    assert (group.error, merges) == ("", ["2013-01-01"])
    assert sorted(values(table)) == [0, 1, 2, 77]


def test_one_chunks_failure_stops_no_other_and_leaves_it_as_it_was(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    for day in range(3):
        for number in range(2):
            append(table, tmp_path, [day * 10 + number], day=day)
    broken = table.snapshot().segments[2]
    path = Path(table.storage.url(broken.key).removeprefix("file://"))
    content = path.read_bytes()
    path.write_bytes(b"not Parquet")
    report = run(spark, table)
    assert [(group.chunk, bool(group.error)) for group in report.groups] == [
        ("2013-01-03", False),
        ("2013-01-02", True),
        ("2013-01-01", False),
    ]
    assert len(table.snapshot()) == 4
    path.write_bytes(content)
    [again] = run(spark, table).groups
    assert (again.chunk, again.error) == ("2013-01-02", "")
    assert sorted(values(table)) == [0, 1, 10, 11, 20, 21]


def test_a_killed_runs_entry_is_gone_on_with_or_given_up(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    for number in range(2):
        append(table, tmp_path, [number])
    names = table.snapshot().names
    left = table.start(names, identity="me/2013-01-01").entry_id
    table.open_stage(left, compact.STAGER)
    assert [(group.entry_id, group.error) for group in run(spark, table).groups] == [(left, "")]
    append(table, tmp_path, [5])
    stale = table.start(table.snapshot().names[:1], identity="you/2013-01-01").entry_id
    append(table, tmp_path, [6])
    [group] = run(spark, table, "you").groups
    assert (group.error, group.entry_id != stale) == ("", True)
    assert sorted(values(table)) == [0, 1, 5, 6]


def test_what_somebody_else_is_replacing_is_reported_and_left_to_them(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    for number in range(2):
        append(table, tmp_path, [number])
    other = table.start(table.snapshot().names[:1], identity="other").entry_id
    report = run(spark, table)
    assert (report.groups, report.failed) == ([], [])
    assert [(one.chunk, one.reason) for one in report.skipped] == [("2013-01-01", "changed meanwhile")]
    table.revert(other, force=True)
    assert [group.error for group in run(spark, table).groups] == [""]


def test_a_chunk_too_large_for_a_worker_is_sorted_by_spark(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    for number in range(4):
        append(table, tmp_path, range(number, 240, 4))
    [group] = run(spark, table, memory_bytes=1).groups
    assert (group.how, group.error, group.rows_after) == ("spark", "", 240)
    assert group.outputs <= 6
    assert sorted(values(table)) == list(range(240))
    assert run(spark, table, "again").groups == []


def test_a_dry_run_writes_nothing(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    for number in range(2):
        append(table, tmp_path, [number])
    reports: list[CompactionReport] = []
    table.storage.discard_unfinished(f"{table.name}/")

    def plan() -> None:
        reports.append(run(spark, table, dry_run=True))

    plan()  # the first lease makes its folder
    unchanged(table.store, plan)
    assert [(group.inputs, group.outputs) for group in reports[-1].groups] == [(2, 0)]
    assert reports[-1].as_dict()["dry_run"] is True


def test_days_are_compacted_to_a_month(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    for day in range(3):
        append(table, tmp_path, [day], day=day)
    settings = CompactionSettings.of(table.config(), granularity=Granularity.MONTH)
    [group] = run(spark, table, settings=settings).groups
    assert (group.error, group.inputs) == ("", 3)
    assert [segment.chunk for segment in table.snapshot().segments] == ["2013-01"]
    assert sorted(values(table)) == [0, 1, 2]


def test_the_last_of_each_key_is_kept_and_the_counts_say_so(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    for numbers in ([1, 2], [2, 3]):
        append(table, tmp_path, numbers)
    settings = CompactionSettings.of(table.config(), deduplicate=("v",))
    [group] = run(spark, table, settings=settings).groups
    assert (group.rows_before, group.rows_after, group.error) == (4, 3, "")
    assert sorted(values(table)) == [1, 2, 3]


def test_the_time_column_cannot_be_aggregated(spark: SparkSession, table: Table) -> None:
    with pytest.raises(InvalidConfigError, match="time column"):
        run(spark, table, settings=CompactionSettings.of(table.config(), rollup=(("at", "max"),)))
