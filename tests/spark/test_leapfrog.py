"""Two regions with a store each: what was done to one of them on purpose is found, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from airflow_provider_segments.cli.main import main as segments
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.spark.leapfrog import compare_regions, findings_table
from airflow_provider_segments.spark.read import read_table
from airflow_provider_segments.spark.schema import with_places
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.expiry import expire
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from airflow_provider_segments.upsert.rollback import roll_back
from tests.replication.support import MINUTE, Log, arrow, region_config
from tests.replication.test_ingest import interleaved, record_of

Rows = list[dict[str, Any]]


@pytest.fixture
def stores(zk_hosts: str, cluster: str, tmp_path: Path) -> Iterator[tuple[SegmentStore, SegmentStore]]:
    """One store a region."""
    folders = [(tmp_path / name).as_uri() for name in ("a", "b")]
    with (
        SegmentStore.connect(zk_hosts, f"{cluster}_a", folders[0]) as a,
        SegmentStore.connect(zk_hosts, f"{cluster}_b", folders[1]) as b,
    ):
        yield a, b


def make(stores: tuple[SegmentStore, SegmentStore], **upsert: Any) -> tuple[Table, Table]:
    for store in stores:
        store.apply_config(region_config(**upsert))
    return stores[0].table("t"), stores[1].table("t")


def history(rnd: random.Random, keys: int = 40) -> tuple[Log, Log]:
    """Two regions; each writes 60 events a minute, and a heartbeat after each of four minutes."""
    logs = Log("eu", 2), Log("us", 1)
    for minute in range(1, 5):
        for log in logs:
            for _ in range(60):
                value = None if rnd.random() < 0.15 else f"{log.region}{sum(log.sizes)}"
                log.event(
                    f"k{rnd.randrange(keys)}", value, 10 * minute + rnd.randrange(15), rnd.randrange(log.partitions)
                )
            log.beat(minute * MINUTE)
    return logs


def feed(table: Table, folder: Path, rows: Rows, rnd: random.Random, most: int = 120) -> None:
    """Ingest ``rows`` in random batches; now and then another process takes over, or a version is rolled back."""
    held, at, number = None, 0, 0
    while at < len(rows):
        number += 1
        ingestor = UpsertIngestor(table, cache=folder / f"{table.store.paths.cluster}{number % 3}")
        size = rnd.randrange(20, most)
        _, held = ingest_to_barriers(ingestor, arrow(rows[at : at + size]), held)
        at += size
        if rnd.random() < 0.15 and record_of(table).clock > 1:
            roll_back(table.context, record_of(table).clock - 1)
            positions, held = record_of(table).positions, None
            rows = [one for one in rows if one["$offset"] >= positions.get(f"{one['$region']}/{one['$partition']}", 0)]
            at = 0
        elif rnd.random() < 0.15:
            UpsertCompactor(table).run()
    assert held is None


def findings_of(spark: SparkSession, table: Table) -> list[tuple[str, str]]:
    return sorted((row["kind"], row["key"]) for row in read_table(spark, table.store, table.name).collect())


@pytest.mark.parametrize("seed", range(3))
def test_healthy_regions_agree(
    spark: SparkSession, stores: tuple[SegmentStore, SegmentStore], tmp_path: Path, seed: int
) -> None:
    """Other batches, other orders, rollbacks, compactions; at any two versions there is lag at most."""
    rnd = random.Random(seed)
    a, b = make(stores)
    logs = history(rnd)
    feed(a, tmp_path, interleaved(rnd, logs), rnd)
    rows = interleaved(rnd, logs)
    for part in (rows[: len(rows) // 2], rows):
        ingestor = UpsertIngestor(b, cache=tmp_path / "half")
        held = ingest_to_barriers(ingestor, arrow(part))[1]
        done = compare_regions(spark, a, b)
        assert set(done.counts) <= {"undecided"}, done
        if part is not rows:
            assert done.lag_b and not done.lag_a
    assert held is None
    assert done.counts == {} and (done.lag_a, done.lag_b) == ({}, {})


FAULTS = ("lost", "doubled", "altered", "reordered", "late")


def injected(rows: Rows, fault: str, rnd: random.Random) -> tuple[Rows, str]:
    """``rows`` with one fault of an event, and the source partition that it is in."""
    chosen = rnd.choice([at for at, row in enumerate(rows[:-60]) if row.get("k") is not None])
    row = rows[chosen]
    source = f"{row['$region']}/{row['$partition']}"
    match fault:
        case "lost":
            return rows[:chosen] + rows[chosen + 1 :], source
        case "doubled":
            return [*rows[: chosen + 1], row, *rows[chosen + 1 :]], source
        case "altered":
            return [*rows[:chosen], {**row, "v": "altered", "deleted": False}, *rows[chosen + 1 :]], source
        case "reordered":
            other = next(
                at
                for at in range(chosen + 1, len(rows))
                if rows[at].get("k") is not None and _source(rows[at]) == source
            )
            swapped = list(rows)
            swapped[chosen] = {**rows[other], "$offset": row["$offset"]}
            swapped[other] = {**row, "$offset": rows[other]["$offset"]}
            return swapped, source
    late = next(at for at in range(chosen + 1, len(rows)) if rows[at].get("k") is None and _source(rows[at]) == source)
    return [*rows[:chosen], *rows[chosen + 1 : late + 1], row, *rows[late + 1 :]], source


def _source(row: dict[str, Any]) -> str:
    return f"{row['$region']}/{row['$partition']}"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_the_way_in_is_found(
    spark: SparkSession, stores: tuple[SegmentStore, SegmentStore], tmp_path: Path, fault: str
) -> None:
    """The digest names its source partition, also where no row differs in the end; Leap Frog each key that does."""
    rnd = random.Random(fault)
    a, b = make(stores)
    logs = history(rnd)
    rows = interleaved(rnd, logs)
    feed(a, tmp_path, rows, rnd)
    broken, source = injected(interleaved(rnd, logs), fault, rnd)
    held = None
    for at in range(0, len(broken), 50):
        ingestor = UpsertIngestor(b, cache=tmp_path / "b cache")
        _, held = ingest_to_barriers(ingestor, arrow(broken[at : at + 50]), held)
    findings = findings_table(a.store, "found")
    done = compare_regions(spark, a, b, findings)
    shown = [{row["k"]: row for row in read_rows(table).to_pylist()} for table in (a, b)]
    differing = {key for key in shown[0].keys() | shown[1].keys() if shown[0].get(key) != shown[1].get(key)}
    found = findings_of(spark, findings)
    assert [key for kind, key in found if kind == "digest"] == [source]
    assert {key for kind, key in found if kind != "digest"} == {f'{{"k":"{key}"}}' for key in differing}
    assert done.has_diverged


def test_each_kind_of_difference_is_named_and_healed_by_a_later_event(
    spark: SparkSession, stores: tuple[SegmentStore, SegmentStore], tmp_path: Path
) -> None:
    """An altered, a lost and a last update lost, a lost delete record; then all of them are written again."""
    a, b = make(stores)
    findings = findings_table(a.store, "found")
    whole, broken = Log("eu"), Log("eu")
    for log, other in ((whole, "x"), (broken, "ALTERED")):
        log.event("altered", other)
        log.event("last update lost", "x")
        log.event("deleted", "x")
        log.event("same", "x")
        log.event("lost", "x", time=2)
        log.event("last update lost", "y", time=2)
        log.event("deleted", None, time=2)
        log.beat(MINUTE)
    broken.rows = broken.rows[:4] + broken.rows[7:]
    for table, log in ((a, whole), (b, broken)):
        ingest_to_barriers(UpsertIngestor(table, cache=tmp_path / table.store.paths.cluster), arrow(log.rows))
    first = compare_regions(spark, a, b, findings)
    assert first.counts == {"digest": 1, "mismatch": 3, "missing in b": 1}
    told = findings_of(spark, findings)
    assert ("missing in b", '{"k":"lost"}') in told
    same = compare_regions(spark, a, b, findings)
    assert same.counts == {"mismatch": 3, "missing in b": 1}
    assert (first.new, same.new, same.entry_id) == (5, 0, ""), "what stands as it did is told once"
    assert findings_of(spark, findings) == told
    later = Log("eu")
    later.sizes = list(whole.sizes)
    for key in ("altered", "last update lost", "deleted", "lost"):
        later.event(key, "again", time=3)
    for table in (a, b):
        ingest_to_barriers(UpsertIngestor(table, cache=tmp_path / table.store.paths.cluster), arrow(later.rows))
    second = compare_regions(spark, a, b, findings)
    assert second.counts == {"healed": 4}, "that not the same was read was told before"
    assert second.new == 0 and second.entry_id
    assert compare_regions(spark, a, b, findings).counts == {}


def test_a_repair_writes_rows_again_and_the_next_comparison_says_healed(
    spark: SparkSession,
    stores: tuple[SegmentStore, SegmentStore],
    tmp_path: Path,
    zk_hosts: str,
    cluster: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the command line: a dry run writes nothing; what is written heals an altered, a lost and a deleted key."""
    a, b = make(stores, regions=["eu"])
    folder = tmp_path / "eu"
    log = Log("eu")
    for key in ("altered", "deleted", "same"):
        log.event(key, "x")
    log.event("deleted", None, time=2)
    log.event("lost", "x")
    log.beat(MINUTE)
    folder.mkdir()
    pyarrow.parquet.write_table(arrow(log.rows), folder / "0.parquet")
    broken = [{**log.rows[0], "v": "ALTERED"}, *log.rows[1:3], log.rows[5]]
    feeds = {table: UpsertIngestor(table, cache=tmp_path / table.store.paths.cluster) for table in (a, b)}
    ingest_to_barriers(feeds[a], arrow(log.rows))
    ingest_to_barriers(feeds[b], arrow(broken))
    findings = findings_table(a.store, "t_findings")
    assert compare_regions(spark, a, b, findings).counts == {"digest": 1, "mismatch": 2, "missing in b": 1}
    where = ["--zookeeper", zk_hosts, "--cluster", f"{cluster}_a", "--storage", (tmp_path / "a").as_uri()]
    assert segments(["repair", "t", "--source", f"eu={folder}", *where]) == 0
    assert "3 rows of table t would be written again" in capsys.readouterr().out
    assert len(list(folder.glob("*.parquet"))) == 1
    assert segments(["repair", "t", "--apply", *where]) == 1
    assert "its source is not given" in capsys.readouterr().err
    assert segments(["repair", "t", "--source", f"eu={folder}", "--apply", *where]) == 0
    [added] = folder.glob("repair-*.parquet")
    for ingestor in feeds.values():
        ingest_to_barriers(ingestor, pyarrow.parquet.read_table(added))
    assert sorted((row["k"], row["v"]) for row in read_rows(b).to_pylist()) == [
        ("altered", "x"),
        ("lost", "x"),
        ("same", "x"),
    ]
    healed = compare_regions(spark, a, b, findings)
    assert healed.counts == {"healed": 3} and not healed.has_diverged


def test_what_one_has_not_read_yet_is_undecided_and_then_found(
    spark: SparkSession, stores: tuple[SegmentStore, SegmentStore], tmp_path: Path
) -> None:
    """An event that one region loses as its very last: found when that region has read past it, and not before."""
    a, b = make(stores, regions=["eu"])
    log = Log("eu")
    log.event("a", "x")
    log.event("b", "x")
    ingestors = [UpsertIngestor(table, cache=tmp_path / table.store.paths.cluster) for table in (a, b)]
    ingest_to_barriers(ingestors[0], arrow(log.rows))
    ingest_to_barriers(ingestors[1], arrow(log.rows[:1]))
    assert compare_regions(spark, a, b).counts == {"undecided": 1}
    log.beat(MINUTE)
    for ingestor in ingestors:
        ingest_to_barriers(ingestor, arrow(log.rows[2:]))
    assert compare_regions(spark, a, b).counts == {"digest": 1, "missing in b": 1}


def test_merged_rows_are_decided_by_the_positions_of_their_versions(
    spark: SparkSession, stores: tuple[SegmentStore, SegmentStore], tmp_path: Path
) -> None:
    """A row merged from both regions' events says of itself only that it is from one of them."""
    a, b = make(stores, mode="PARTIAL")
    eu, us = Log("eu"), Log("us")
    us.event("a", "x", time=1)
    eu.event("a", None, time=2)
    eu.rows[-1]["deleted"] = False  # keeps the value of the other region
    both = [UpsertIngestor(table, cache=tmp_path / table.store.paths.cluster) for table in (a, b)]
    ingest_to_barriers(both[0], arrow([*us.rows, *eu.rows]))
    ingest_to_barriers(both[1], arrow(eu.rows))
    assert compare_regions(spark, a, b).counts == {"undecided": 1}
    us.beat(MINUTE)
    ingest_to_barriers(both[1], arrow(us.rows[1:]))
    assert compare_regions(spark, a, b).counts == {"mismatch": 1}, "b has read past the event that it lost"
    expire(b, 1)
    with pytest.raises(InvalidConfigError, match="merges rows and has a cutoff"):
        compare_regions(spark, a, b)


def test_keys_below_the_greater_cutoff_are_not_judged(
    spark: SparkSession, stores: tuple[SegmentStore, SegmentStore], tmp_path: Path
) -> None:
    a, b = make(stores, regions=["eu"])
    log = Log("eu")
    log.event("a", "old", time=1)
    log.event("b", "new", time=9)
    ingest_to_barriers(UpsertIngestor(a, cache=tmp_path / "a cache"), arrow(log.rows))
    expire(b, 5)
    ingest_to_barriers(UpsertIngestor(b, cache=tmp_path / "b cache"), arrow(log.rows))
    assert read_rows(b).num_rows == 1
    assert compare_regions(spark, a, b).counts == {}


def test_a_schema_without_places_gets_them() -> None:
    """As a footer has it that the Spark job has written."""
    wider = with_places(StructType.fromDDL("k STRING"))
    assert wider.simpleString() == "struct<k:string,$region:string,$partition:int,$offset:bigint>"
    assert with_places(wider) == wider


def test_tables_that_tell_newer_by_other_columns_are_refused(
    spark: SparkSession, stores: tuple[SegmentStore, SegmentStore]
) -> None:
    stores[0].apply_config(region_config())
    stores[1].apply_config(region_config(deleteRecordColumn=None))
    with pytest.raises(InvalidConfigError, match="deletes is 'deleted' here"):
        compare_regions(spark, stores[0].table("t"), stores[1].table("t"))
