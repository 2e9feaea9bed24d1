"""Change capture in Spark tells what the Arrow reader tells."""

from __future__ import annotations

import datetime
import random
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql import SparkSession

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.spark.changes import read_changes
from airflow_provider_segments.spark.read import read_table
from airflow_provider_segments.upsert import changes
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.changes import CHANGE
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.rollback import roll_back
from tests.replication.support import MINUTE, Log, arrow, region_config
from tests.upsert.world import Event, stage_bulk, to_arrow, upsert_config


@pytest.fixture
def filled(store: SegmentStore, tmp_path: Path) -> SegmentStore:
    """A table of 300 keys after ten versions, of which one was taken back; the first ones are compacted."""
    rnd = random.Random(5)
    store.apply_config(upsert_config())
    table = store.table("t")
    ingestor = UpsertIngestor(table, cache=tmp_path / "cache")
    for version in range(8):
        rows = [
            Event(
                rnd.randrange(900) + 100 * version,
                0,
                version * 100 + at,
                f"k{rnd.randrange(300)}",
                f"v{version}.{at}",
                at % 9 == 0,
            )
            for at in range(100)
        ]
        ingestor.ingest(to_arrow(rows))
        if version == 5:
            roll_back(table.context, 5)
            ingestor.ingest(to_arrow(rows))
    UpsertCompactor(table).run(floor=2)
    return store


def rows_of(rows: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows)


def told(found: changes.Changes[Any]) -> tuple[list[tuple[Any, ...]], int, Any]:
    rows = found.rows
    read = rows.to_pylist() if isinstance(rows, pyarrow.Table) else [row.asDict() for row in rows.collect()]
    return rows_of(read), found.to, found.vector


@pytest.mark.parametrize(
    ("since", "to"),
    [(2, None), (2, 3), (4, 9), (8, 10), (10, 10), ({}, None), ({"/0": 350}, None), ({"/0": 800}, None)],
)
def test_spark_tells_the_changes_that_arrow_tells(
    spark: SparkSession, filled: SegmentStore, since: Any, to: int | None
) -> None:
    found = read_changes(spark, filled, "t", since=since, to=to)
    assert found.rows.columns == ["k", "ts", "v", "deleted", CHANGE]
    wanted = told(changes.read_changes(filled.table("t"), since=since, to=to))
    assert told(found) == wanted
    kinds = {row[-1] for row in wanted[0]}
    if (since, to) == (2, None):
        assert kinds == {"insert", "update_preimage", "update_postimage", "delete"}
    if since == {"/0": 350}:
        assert kinds == {"upsert", "delete"}


def test_changes_lead_from_one_frame_to_the_next(spark: SparkSession, filled: SegmentStore) -> None:
    """Applied in SQL: the rows before, less those that were deleted or updated, and those that came."""
    before, after = (read_table(spark, filled, "t", mark=mark) for mark in (3, 10))
    found = read_changes(spark, filled, "t", since=3, to=10).rows
    gone = found.filter(f"`{CHANGE}` IN ('delete', 'update_preimage')").drop(CHANGE)
    came = found.filter(f"`{CHANGE}` IN ('insert', 'update_postimage')").drop(CHANGE)
    made = before.exceptAll(gone).unionAll(came)
    assert made.exceptAll(after).isEmpty() and after.exceptAll(made).isEmpty()
    assert before.count() - gone.count() + came.count() == after.count()
    assert gone.exceptAll(before).isEmpty(), "a row before is one that readers saw"


@pytest.mark.parametrize(("since", "rule"), [(1, "below-floor"), (6, "rolled-back"), ({"/0": 900}, "changes-behind")])
def test_a_range_that_cannot_be_told_is_refused_by_name(
    spark: SparkSession, filled: SegmentStore, since: Any, rule: str
) -> None:
    with pytest.raises(UpsertRefusedError) as refused:
        read_changes(spark, filled, "t", since=since)
    assert refused.value.rule == rule


def test_rows_of_ordinary_pushes_are_covered_by_no_vector(
    spark: SparkSession, filled: SegmentStore, tmp_path: Path
) -> None:
    table = filled.table("t")
    started = table.start(identity="bulk")
    rows = to_arrow([Event(1, 0, 0, "z", "bulk", False)]).drop_columns(["$partition", "$offset"])
    stage_bulk(table, started.entry_id, rows)
    table.end(started.entry_id)
    UpsertIngestor(table, cache=tmp_path / "bulk").ingest(None)
    with pytest.raises(UpsertRefusedError, match="changes-vector"):
        read_changes(spark, filled, "t", since={"/0": 350})
    UpsertCompactor(table).run(floor=require_record(table.lineage()).clock)
    with pytest.raises(UpsertRefusedError, match="ordinary pushes, which have no place"):
        read_changes(spark, filled, "t", since={"/0": 350})


def test_changes_between_two_checkpoints_are_what_the_region_wrote_between_its_heartbeats(
    spark: SparkSession, store: SegmentStore, tmp_path: Path
) -> None:
    store.apply_config(region_config(regions=["eu"]))
    table, log = store.table("t"), Log("eu", 2)
    for minute in (1, 2, 3):
        log.event("a", f"v{minute}", minute)
        log.event(f"k{minute}", "new", minute, part=1)
        log.beat(minute * MINUTE)
    held = None
    for at in range(0, len(log.rows), 5):
        _, held = ingest_to_barriers(UpsertIngestor(table, cache=tmp_path / "c"), arrow(log.rows[at : at + 5]), held)
    first, second = (table.checkpoint(minute * MINUTE, region="eu") for minute in (1, 2))
    found = read_changes(spark, store, "t", since=first, to=second)
    assert sorted((row[CHANGE], row["k"], row["v"]) for row in found.rows.collect()) == [
        ("insert", "k2", "new"),
        ("update_postimage", "a", "v2"),
        ("update_preimage", "a", "v1"),
    ]


def test_times_keep_their_instants_and_older_segments_lack_new_columns(
    spark: SparkSession, store: SegmentStore, tmp_path: Path
) -> None:
    document = upsert_config().to_json()
    document["upsertConfig"]["comparisonColumns"] = ["at"]
    store.apply_config(TableConfig.from_json(document))
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path / "c")
    at = datetime.datetime(2024, 3, 10, 7, 30, tzinfo=datetime.UTC)
    for version in range(2):
        rows = {
            "k": ["a", f"b{version}"],
            "at": pyarrow.array([at + datetime.timedelta(hours=version)] * 2, pyarrow.timestamp("us", "UTC")),
            "deleted": pyarrow.array([False, False]),
            "$partition": pyarrow.array([0, 0], pyarrow.int32()),
            "$offset": pyarrow.array([2 * version, 2 * version + 1], pyarrow.int64()),
        }
        ingestor.ingest(pyarrow.table(rows | ({"more": [1.5, 2.5]} if version else {})))
    found = read_changes(spark, store, "t", since=1).rows
    told = found.selectExpr("k", "unix_micros(at) AS us", "more", f"`{CHANGE}`").collect()
    first, second = (int((at + datetime.timedelta(hours=hour)).timestamp()) * 1_000_000 for hour in (0, 1))
    assert sorted(map(tuple, told), key=str) == [
        ("a", first, None, "update_preimage"),
        ("a", second, 1.5, "update_postimage"),
        ("b1", second, 2.5, "insert"),
    ]
