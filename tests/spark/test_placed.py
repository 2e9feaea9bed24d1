"""Tables with segment locking, in Spark: compaction beside overwrites, and reading what an overwrite hides in part."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from airflow_provider_segments.core.compaction.settings import CompactionSettings
from airflow_provider_segments.core.locking import LockRequest, LockType, Priority, granted_lock
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Granularity, parse_chunk
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.names import entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord, SegmentState, StagedSegment
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.zookeeper import Delete
from airflow_provider_segments.spark.compact import compact_table
from airflow_provider_segments.spark.read import read_table, register
from tests.spark.conftest import MakeTable
from tests.spark.test_compact import FIRST, append, values

HOUR_MS = 3_600_000


@pytest.fixture
def table(make_table: MakeTable) -> Table:
    """A table of days with segment locking, cut at 100 rows."""
    return make_table(timeFormat="EPOCH_MILLIS", targetRowsPerSegment=100, segmentLocking=True)


def states(table: Table) -> dict[SegmentState, int]:
    """How many segments are in each state."""
    found: dict[SegmentState, int] = {}
    for one in table.segment_states():
        found[one.state] = found.get(one.state, 0) + 1
    return found


def settings_of(table: Table, granularity: Granularity) -> CompactionSettings:
    return CompactionSettings.of(table.config(), granularity=granularity)


def test_a_compaction_replaces_what_it_merged_and_gives_its_locks_back(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    for number in range(25):
        append(table, tmp_path, range(number * 10, number * 10 + 10))
    before = sorted(values(table))
    newest = max(segment.version for segment in table.snapshot().segments)
    [group] = compact_table(spark, table, identity="me").groups
    assert (group.error, group.inputs, group.outputs) == ("", 25, 3)
    segments = table.snapshot().segments
    assert {segment.version for segment in segments} == {newest}
    assert len({segment.partition for segment in segments}) == 3
    assert sorted(values(table)) == before
    assert states(table) == {SegmentState.VISIBLE: 3, SegmentState.OVERSHADOWED: 25}
    assert table.locks.locks() == ()
    table.revert(group.entry_id)
    assert (sorted(values(table)), len(table.snapshot())) == (before, 25)


def test_when_a_part_of_a_compaction_is_lost_readers_go_back_to_what_it_merged(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    for number in range(5):
        append(table, tmp_path, range(number * 10, number * 10 + 10))
    before = sorted(values(table))
    [group] = compact_table(spark, table, identity="me").groups
    [lost] = table._context.registry.of_entry(group.entry_id)
    table.store.session.commit([Delete(lost.name.path, lost.version)])
    assert sorted(values(table)) == before
    rows = read_table(spark, table.store, table.name).select("v").toPandas()["v"]
    assert sorted(rows.tolist()) == before
    assert len(table.snapshot()) == 5


def test_a_coarser_granularity_replaces_what_it_merged_and_later_appends_stay_beside_it(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    for day in range(4):
        append(table, tmp_path, [day], day=day)
    [group] = compact_table(spark, table, settings_of(table, Granularity.MONTH), identity="me").groups
    assert (group.error, group.inputs, group.outputs) == ("", 4, 1)
    [month] = table.snapshot().segments
    assert month.chunk == "2013-01"
    append(table, tmp_path, [100], day=2)
    late = max(table.snapshot().segments, key=lambda one: one.version)
    assert (late.chunk, late.version > month.version) == ("2013-01-03", True)
    assert sorted(values(table)) == [0, 1, 2, 3, 100]
    table.revert(group.entry_id)
    assert sorted(values(table)) == [0, 1, 2, 3, 100]
    table.revert(late.entry_id)
    assert sorted(values(table)) == [0, 1, 2, 3]


def test_time_that_somebody_has_locked_is_left_alone(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    for day in (0, 0, 1, 1):
        append(table, tmp_path, [day], day=day)
    locked = LockRequest(group="other", task="t", interval=parse_chunk("2013-01-01"), priority=Priority.BATCH)
    granted_lock(table.name, table.locks.acquire(locked))
    report = compact_table(spark, table, identity="me")
    assert [group.chunk for group in report.groups] == ["2013-01-02"]
    assert [(one.chunk, one.reason) for one in report.skipped] == [("2013-01-01", "locked")]


def test_an_overwritten_hour_cuts_the_day_beneath_it_for_every_reader(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    hours = [hour * HOUR_MS for hour in range(24)]
    append(table, tmp_path, hours)
    _overwrite(table, tmp_path, "2013-01-01T05", 5 * HOUR_MS, 777)
    [day] = [one for one in table.snapshot().segments if one.chunk == "2013-01-01"]
    fifth = parse_chunk("2013-01-01T05")
    assert [(part.start_ms, part.end_ms) for part in day.visible_in] == [
        (FIRST, fifth.start_ms),
        (fifth.end_ms, FIRST + 24 * HOUR_MS),
    ]
    expected = sorted([777, *(value for value in hours if value != 5 * HOUR_MS)])
    for through_arrow in (False, True):
        rows = read_table(spark, table.store, table.name, through_arrow=through_arrow)
        assert sorted(row.v for row in rows.select("v").collect()) == expected
    register(spark)
    source = spark.read.format("segments").option("table", table.name).option("cluster", table.store.paths.cluster)
    hosts = table.store.session.settings.hosts
    found = source.option("zk_hosts", hosts).option("storage_uri", table.storage.uri).load()
    assert sorted(row.v for row in found.select("v").collect()) == expected
    assert found.count() == 24


@pytest.mark.parametrize(("memory_bytes", "how"), [(1 << 30, "merge"), (1, "spark")])
def test_a_time_chunk_that_an_overwrite_has_cut_is_compacted_as_readers_see_it_once_that_is_settled(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, memory_bytes: int, how: str
) -> None:
    table = make_table(timeFormat="EPOCH_MILLIS", targetRowsPerSegment=100, segmentLocking=True)
    append(table, tmp_path, [hour * HOUR_MS for hour in range(24)])
    append(table, tmp_path, [5 * HOUR_MS + 1, 6 * HOUR_MS + 1])
    _overwrite(table, tmp_path, "2013-01-01T05", 5 * HOUR_MS, 777)
    before = seen(spark, table)
    assert len(before) == 25 and 777 in before
    early = compact_table(spark, table, identity="early", dry_run=True)
    assert [group.inputs for group in early.groups] == [1], "the hour alone: the day beneath it waits"
    [waits] = early.skipped
    assert (waits.segments, waits.reason) == (2, "beneath an overwrite that can still be rolled back")
    settle(table)
    cut = [one.visible_in for one in table.snapshot().segments]
    [group] = compact_table(spark, table, identity="me", memory_bytes=memory_bytes).groups
    assert (group.error, group.how, group.inputs, group.rows_before, group.rows_after) == ("", how, 3, 25, 25)
    assert "partly hidden" in group.reason
    [merged] = table.snapshot().segments
    assert (merged.chunk, merged.rows, merged.visible_in) == ("2013-01-01", 25, ())
    assert seen(spark, table) == before
    assert compact_table(spark, table, identity="again", memory_bytes=memory_bytes).groups == []
    table.revert(group.entry_id)
    assert [one.visible_in for one in table.snapshot().segments] == cut
    assert seen(spark, table) == before


def settle(table: Table) -> None:
    """Let the period go by in which an overwrite can be rolled back."""
    clock = table.store.clock
    later = dataclasses.replace(clock, now_ms=lambda: clock.now_ms() + 48 * HOUR_MS)
    table.store.replace(clock=later).table(table.name).cleanup()


def seen(spark: SparkSession, table: Table) -> list[int]:
    """The values that readers see."""
    return sorted(row.v for row in read_table(spark, table.store, table.name).select("v").collect())


def _overwrite(table: Table, folder: Path, chunk: str, at_ms: int, value: int) -> None:
    """Puts one row in the place of an hour, under a lock on that hour."""
    request = LockRequest(group="run", task="lock", interval=parse_chunk(chunk), lock_type=LockType.EXCLUSIVE)
    lock = granted_lock(table.name, table.locks.acquire(request))
    entry = table.start((), locks=[HeldLock(lock.lock_id, "run", "lock")]).entry_id
    ticket = table.open_stage(entry)
    name = f"{table.name}_{entry_tag(entry)}"
    path = folder / "overwrite.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"at": [FIRST + at_ms], "v": [value]}), path)
    owner = owner_metadata(table.name, name, ticket.generation)
    size = table.storage.put_file(path, f"{ticket.prefix}{name}.parquet", owner=owner).bytes
    record = SegmentRecord(name, f"{name}.parquet", 1, size, 0, FIRST + at_ms, FIRST + at_ms)
    table.stage(ticket, [StagedSegment(chunk, record)])
    table.end(entry)
    table.locks.release("run", "lock")
