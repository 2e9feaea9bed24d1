"""Upsert tables in Spark: every way to read gives the rows that Arrow reads at the same mark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import LockDeniedError, SourceDataError, UpsertRefusedError
from airflow_provider_segments.spark.read import create_view, read_table, read_with_validity, register
from airflow_provider_segments.spark.row_validity import dead_rows
from airflow_provider_segments.spark.upsert import ingest_stream
from airflow_provider_segments.upsert.columns import VALID_FROM, VALID_UNTIL
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.owner import own_key_partitions
from airflow_provider_segments.upsert.reading import read_rows
from airflow_provider_segments.upsert.rollback import roll_back
from tests.upsert.world import Event, newest, to_arrow, upsert_config


@pytest.fixture
def filled(store: SegmentStore, tmp_path: Path) -> SegmentStore:
    """A table of 300 keys after eight versions, with dead rows and delete records in most of its files."""
    rnd = random.Random(11)
    store.apply_config(upsert_config())
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path / "cache")
    for version in range(8):
        rows = [
            Event(
                rnd.randrange(1000), 0, version * 200 + at, f"k{rnd.randrange(300)}", f"v{version}.{at}", at % 17 == 0
            )
            for at in range(200)
        ]
        ingestor.ingest(to_arrow(rows))
    return store


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def wanted(store: SegmentStore, mark: int | None = None) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in read_rows(store.table("t"), mark=mark).to_pylist())


@pytest.mark.parametrize("through_arrow", [False, True])
def test_a_frame_has_one_row_a_key_at_every_mark(
    spark: SparkSession, filled: SegmentStore, through_arrow: bool
) -> None:
    for mark in (1, 5, 8, None):
        frame = read_table(spark, filled, "t", mark=mark, through_arrow=through_arrow)
        assert frame.columns == ["k", "ts", "v", "deleted"]
        assert rows_of(frame) == wanted(filled, mark)


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_files_whose_slots_meet_keep_their_own_dead_rows(
    spark: SparkSession, filled: SegmentStore, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    monkeypatch.setattr("airflow_provider_segments.spark.row_validity._MOST_SLOTS", slots)
    frame = read_table(spark, filled, "t")
    with filled.table("t").snapshot() as taken:
        cut = len(dead_rows(taken))
    scans = frame._jdf.queryExecution().executedPlan().toString().count("FileScan parquet")
    assert cut > 10
    assert scans >= cut / slots
    assert rows_of(frame) == wanted(filled)


@pytest.mark.parametrize("through_arrow", [False, True])
def test_filters_and_aggregates_see_valid_rows_only(
    spark: SparkSession, filled: SegmentStore, through_arrow: bool
) -> None:
    rows = wanted(filled)
    frame = read_table(spark, filled, "t", through_arrow=through_arrow)
    assert frame.count() == len(rows)
    assert frame.agg(F.sum("ts")).first()[0] == sum(row[1] for row in rows)
    assert rows_of(frame.filter("ts < 300")) == [row for row in rows if row[1] < 300]
    assert rows_of(frame.filter("k = 'k7'").select("v")) == [(row[2],) for row in rows if row[0] == "k7"]


def test_the_format_reads_the_newest_mark_or_an_earlier_one(
    spark: SparkSession, filled: SegmentStore, zk_hosts: str, cluster: str, storage_uri: str
) -> None:
    register(spark)
    options = {"zk_hosts": zk_hosts, "cluster": cluster, "storage_uri": storage_uri, "table": "t"}
    assert rows_of(spark.read.format("segments").options(**options).load()) == wanted(filled)
    assert rows_of(spark.read.format("segments").options(**options, mark="3").load()) == wanted(filled, 3)


def test_a_mark_that_is_not_published_is_an_error(spark: SparkSession, filled: SegmentStore) -> None:
    with pytest.raises(UpsertRefusedError, match="above-clock"):
        read_table(spark, filled, "t", mark=99)


def test_a_frame_stays_right_while_batches_and_a_compaction_go_on(
    spark: SparkSession, filled: SegmentStore, tmp_path: Path
) -> None:
    before = wanted(filled)
    frame = read_table(spark, filled, "t")
    UpsertIngestor(filled.table("t"), name="b", cache=tmp_path / "b").ingest(
        to_arrow([Event(5000, 1, at, f"k{at}", "new", False) for at in range(300)])
    )
    UpsertCompactor(filled.table("t")).run(floor=9)
    filled.table("t").cleanup()
    assert rows_of(frame) == before
    after = read_table(spark, filled, "t")
    assert {row[2] for row in rows_of(after)} == {"new"}
    assert after.count() == 300


def test_sql_on_a_view_sees_one_row_a_key_at_its_mark(
    spark: SparkSession, filled: SegmentStore, tmp_path: Path
) -> None:
    assert create_view(spark, filled, "t", view="past", mark=3) == 3
    assert create_view(spark, filled, "t") == 8
    counted = spark.sql("SELECT count(*), count(DISTINCT k), sum(ts) FROM t WHERE v > 'v1' OR ts < 4").collect()[0]
    chosen = [row for row in wanted(filled) if row[2] > "v1" or row[1] < 4]
    assert tuple(counted) == (len(chosen), len(chosen), sum(row[1] for row in chosen))
    assert rows_of(spark.sql("SELECT * FROM past")) == wanted(filled, 3)
    assert not spark.sql("SELECT k FROM t JOIN past USING (k) GROUP BY k HAVING count(*) > 1").count()


def test_all_rows_come_with_the_versions_between_which_they_are_seen(spark: SparkSession, filled: SegmentStore) -> None:
    for mark in (8, 3):
        frame = read_with_validity(spark, filled, "t", mark=mark)
        columns = ["k", "ts", "v", "deleted", VALID_FROM, VALID_UNTIL]
        assert frame.columns == columns
        rows = read_rows(filled.table("t"), mark=mark, columns=columns[:4], with_validity=True).to_pylist()
        assert sorted(map(str, frame.collect())) == sorted(str(Row(**row)) for row in rows)
    seen = frame.filter(f"`{VALID_FROM}` <= 2 AND (`{VALID_UNTIL}` IS NULL OR `{VALID_UNTIL}` > 2) AND NOT deleted")
    assert sorted(row.v for row in seen.collect()) == sorted(row[2] for row in wanted(filled, 2))


SCHEMA = "k STRING, ts BIGINT, v STRING, deleted BOOLEAN, `$partition` INT, `$offset` BIGINT"


def send(folder: Path, number: int, events: list[Event]) -> None:
    """One file of events; a file source takes it when it is there in whole."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{number}"
    pyarrow.parquet.write_table(to_arrow(events), hidden)
    hidden.rename(folder / f"{number:05d}.parquet")


def run_stream(spark: SparkSession, table: Table, folder: Path, checkpoint: str = "checkpoint") -> Any:
    stream = spark.readStream.format("parquet").schema(SCHEMA).option("maxFilesPerTrigger", 1).load(str(folder))
    return ingest_stream(
        spark, table, stream, checkpoint=str(folder.parent / checkpoint), cache=folder.parent / "cache", wait_s=60
    )


def test_a_stream_of_files_becomes_versions_and_a_new_checkpoint_replays_them(
    spark: SparkSession, store: SegmentStore, tmp_path: Path
) -> None:
    store.apply_config(upsert_config())
    table, folder = store.table("t"), tmp_path / "input"
    events = [Event(at % 7, 0, at, f"k{at % 10}", f"v{at}", False) for at in range(60)]
    for number in range(3):
        send(folder, number, events[number * 20 : number * 20 + 20])
    done = run_stream(spark, table, folder)
    assert (done.version, done.counts["replays"]) == (3, 0)
    assert {row[0]: row[2] for row in wanted(store)} == newest(events)
    again = run_stream(spark, table, folder, "another checkpoint")
    assert again.version == 3
    assert again.counts["winners"] == 0
    assert rows_of(read_table(spark, store, "t")) == wanted(store)


def test_what_a_rollback_has_taken_back_comes_again_with_the_next_run_of_the_stream(
    spark: SparkSession, store: SegmentStore, tmp_path: Path
) -> None:
    """The checkpoint says that those events were read."""
    store.apply_config(upsert_config())
    table, folder = store.table("t"), tmp_path / "input"
    events = [Event(at, 0, at, f"k{at % 4}", f"v{at}", False) for at in range(20)]
    for number in range(2):
        send(folder, number, events[number * 10 : number * 10 + 10])
    assert run_stream(spark, table, folder).version == 2
    roll_back(table.context, 1)
    assert {row[0]: row[2] for row in wanted(store)} == newest(events[:10])
    assert run_stream(spark, table, folder).version == 4
    assert {row[0]: row[2] for row in wanted(store)} == newest(events)


def test_a_second_ingestor_is_denied_until_the_first_has_ended(
    spark: SparkSession, store: SegmentStore, tmp_path: Path
) -> None:
    store.apply_config(upsert_config())
    table, folder = store.table("t"), tmp_path / "input"
    send(folder, 0, [Event(1, 0, 0, "a", "v", False)])
    stream = spark.readStream.format("parquet").schema(SCHEMA).load(str(folder))
    with own_key_partitions(table, "other"), pytest.raises(LockDeniedError, match="lock-denied"):
        ingest_stream(spark, table, stream, checkpoint=str(tmp_path / "c"), cache=tmp_path / "cache")
    assert run_stream(spark, table, folder).version == 1


def test_an_event_that_cannot_be_used_fails_the_run_or_is_rejected(
    spark: SparkSession, store: SegmentStore, tmp_path: Path
) -> None:
    config = upsert_config().to_json()
    store.apply_config(TableConfig.from_json(config))
    table, folder = store.table("t"), tmp_path / "input"
    send(folder, 0, [Event(1, 0, 0, "a", "v", False), Event(1, 0, 1, None, "w", False)])  # type: ignore[arg-type]
    with pytest.raises(SourceDataError, match="k is null"):
        run_stream(spark, table, folder)
    store.apply_config(TableConfig.from_json({**config, "segmentBuildConfig": {"onBadTime": "reject"}}))
    stream = spark.readStream.format("parquet").schema(SCHEMA).load(str(folder))
    rejects = tmp_path / "rejects"
    done = ingest_stream(
        spark,
        table,
        stream,
        checkpoint=str(tmp_path / "checkpoint"),
        cache=tmp_path / "cache",
        reject_folder=str(rejects),
    )
    assert (done.version, done.counts["rejected"]) == (1, 1)
    assert spark.read.json(str(rejects)).select("v", "`$reason`").collect() == [("w", "k is null")]


def test_places_are_stored_in_one_type_whatever_the_input_has(
    spark: SparkSession, store: SegmentStore, tmp_path: Path
) -> None:
    store.apply_config(upsert_config())
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path / "cache")
    event = to_arrow([Event(1, 3, 7, "a", "v", False)])
    wide = event.set_column(4, "$partition", event.column("$partition").cast(pyarrow.int64()))
    ingestor.ingest(wide.set_column(5, "$offset", wide.column("$offset").cast(pyarrow.int32())))
    [row] = read_with_validity(spark, store, "t").collect()
    assert (row["v"], row[VALID_FROM]) == ("v", 1)
    far = event.set_column(4, "$partition", pyarrow.array([2**40]))
    with pytest.raises(SourceDataError, match=r"\$partition cannot be read as int32"):
        ingestor.ingest(far)
