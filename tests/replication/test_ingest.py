"""Heartbeats through ingestion, on a real ZooKeeper: barriers, checkpoints, digests, what is held."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from airflow_provider_segments.core.replication.emission import HeartbeatEmitter
from airflow_provider_segments.core.replication.heartbeat import Heartbeat
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import UpsertRecord, require_record
from airflow_provider_segments.exceptions import SourceDataError, UpsertRefusedError
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.event_source import write_heartbeat
from airflow_provider_segments.upsert.file_source import FileSource
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from airflow_provider_segments.upsert.rollback import roll_back
from tests.replication.support import MINUTE, Log, arrow, region_config
from tests.support.tables import HandClock, on_clock


def record_of(table: Table) -> UpsertRecord:
    return require_record(table.lineage())


def shown(table: Table, mark: int | None = None) -> dict[str, str]:
    return {row["k"]: row["v"] for row in read_rows(table, mark=mark).to_pylist()}


def feed(table: Table, folder: Path, rows: list[dict[str, Any]], sizes: list[int]) -> None:
    """Ingest ``rows`` in batches of ``sizes``, one process after the other."""
    held: pyarrow.Table | None = None
    for number, size in enumerate(sizes):
        ingestor = UpsertIngestor(table, name="i", cache=folder / f"{table.name}{number % 2}")
        _, held = ingest_to_barriers(ingestor, arrow(rows[:size]), held)
        rows = rows[size:]
    assert held is None, "everything that was written is in the table"


def history(rnd: random.Random) -> tuple[Log, Log]:
    """Two regions that write the same keys; each ends with two heartbeats."""
    logs = Log("eu", 2), Log("us", 1)
    for minute in range(1, 6):
        for log in logs:
            for _ in range(rnd.randrange(4)):
                value = None if rnd.random() < 0.2 else f"{log.region}{sum(log.sizes)}"
                log.event(rnd.choice("abc"), value, minute + rnd.randrange(3), rnd.randrange(log.partitions))
            log.beat(minute * MINUTE)
    return logs


def interleaved(rnd: random.Random, logs: tuple[Log, ...]) -> list[dict[str, Any]]:
    """All events in an order in which they may arrive: that of each source partition is kept."""
    queues: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in (row for log in logs for row in log.rows):
        queues.setdefault((row["$region"], row["$partition"]), []).append(row)
    order = [at for at, rows in queues.items() for _ in rows]
    rnd.shuffle(order)
    return [queues[at].pop(0) for at in order]


def sizes_of(rnd: random.Random, total: int) -> list[int]:
    found: list[int] = []
    while sum(found) < total:
        found.append(rnd.randrange(1, 8))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_two_regions_read_the_same_at_every_checkpoint(store: SegmentStore, tmp_path: Path, seed: int) -> None:
    """However events were batched and ordered on their way: the same heartbeats, digests, rows of one region."""
    rnd = random.Random(seed)
    logs = history(rnd)
    tables: list[Table] = []
    for name in ("a", "b"):
        store.apply_config(region_config(name))
        tables.append(store.table(name))
        rows = interleaved(rnd, logs)
        feed(tables[-1], tmp_path, rows, sizes_of(rnd, len(rows)))
    a, b = tables
    assert shown(a) == shown(b)
    assert record_of(a).positions == record_of(b).positions
    for log in logs:
        for minute in range(1, 5):
            at = [one.checkpoint(minute * MINUTE + 7, region=log.region) for one in tables]
            streams = [record_of(one).stream for one in tables]
            for part in range(log.partitions):
                source = f"{log.region}/{part}"
                assert len({record_of(t).positions_at(v)[source] for t, v in zip(tables, at, strict=True)}) == 1
                assert len({s.digests_at(v)[source] for s, v in zip(streams, at, strict=True) if s}) == 1


def test_a_version_of_a_heartbeat_alone_passes_the_time(store: SegmentStore, tmp_path: Path) -> None:
    store.apply_config(region_config(regions=["eu"]))
    table, log = store.table("t"), Log("eu", 2)
    for minute in (1, 2, 3):
        log.beat(minute * MINUTE)
    feed(table, tmp_path, log.rows, [2, 4])
    assert table.snapshot().mark == 3
    assert table.checkpoint(2 * MINUTE, region="eu") == 2
    assert len(table.snapshot()) == 0


def test_events_behind_a_heartbeat_are_held_until_all_source_partitions_have_it(
    store: SegmentStore, tmp_path: Path
) -> None:
    store.apply_config(region_config(regions=["eu"]))
    table, log = store.table("t"), Log("eu", 2)
    log.event("a", "before", part=0)
    log.beat(MINUTE, parts=[0])
    log.event("a", "after", time=2, part=0)
    ingestor = UpsertIngestor(table, cache=tmp_path / "c")
    done, held = ingest_to_barriers(ingestor, arrow(log.rows))
    assert [one.winners for one in done] == [1]
    assert held is not None and held.num_rows == 2
    assert shown(table) == {"a": "before"}
    other = Log("eu", 2)
    other.beat(MINUTE, parts=[1])
    done, held = ingest_to_barriers(ingestor, arrow(other.rows), held)
    assert held is None
    assert shown(table) == {"a": "after"}
    assert shown(table, mark=2) == {"a": "before"}, "the version of the heartbeat has what was before it"


def test_a_silent_source_partition_is_given_up_after_three_intervals(store: SegmentStore, tmp_path: Path) -> None:
    hand = HandClock()
    store = on_clock(store, hand.clock())
    store.apply_config(region_config(regions=["eu"]))
    table, log = store.table("t"), Log("eu", 2)
    log.beat(MINUTE, parts=[0])
    log.event("a", "after", part=0)
    ingestor = UpsertIngestor(table, cache=tmp_path / "c")
    _, held = ingest_to_barriers(ingestor, arrow(log.rows))
    hand.advance(3 * MINUTE)
    _, held = ingest_to_barriers(ingestor, arrow([]), held)
    assert held is not None, "three intervals are not too long yet"
    hand.advance(1)
    _, held = ingest_to_barriers(ingestor, arrow([]), held)
    assert held is None
    assert shown(table) == {"a": "after"}
    stream = record_of(table).stream
    assert stream is not None and stream.last()["eu"].missing == (1,)
    with pytest.raises(UpsertRefusedError, match="no heartbeat"):
        table.checkpoint(MINUTE, region="eu")


def test_a_batch_that_is_sent_again_counts_once(store: SegmentStore, tmp_path: Path) -> None:
    store.apply_config(region_config(regions=["eu"]))
    table, log = store.table("t"), Log("eu", 1)
    for minute in (1, 2):
        log.event("a", f"v{minute}", minute)
        log.beat(minute * MINUTE)
    feed(table, tmp_path, log.rows, [4])
    before = record_of(table)
    feed(table, tmp_path, log.rows, [3, 1])
    assert record_of(table).stream == before.stream
    assert record_of(table).clock == before.clock


def test_a_rollback_takes_the_heartbeats_back_and_digests_count_once(store: SegmentStore, tmp_path: Path) -> None:
    store.apply_config(region_config(regions=["eu"]))
    table, log = store.table("t"), Log("eu", 1)
    for minute in (1, 2, 3):
        log.event("a", f"v{minute}", minute)
        log.beat(minute * MINUTE)
    feed(table, tmp_path, log.rows, [6])
    whole = record_of(table)
    assert whole.stream is not None
    first = whole.stream.taken("eu")[0].version
    roll_back(table.context, first)
    taken_back = record_of(table).stream
    assert taken_back is not None and taken_back.last()["eu"].time_ms == MINUTE
    feed(table, tmp_path, log.rows, [6])
    again = record_of(table)
    assert again.stream is not None
    assert again.stream.digests_at(again.clock) == whole.stream.digests_at(whole.clock)
    assert table.checkpoint(2 * MINUTE, region="eu") > whole.clock


def test_a_heartbeat_that_cannot_be_read_is_named(store: SegmentStore, tmp_path: Path) -> None:
    store.apply_config(region_config(regions=["eu"]))
    rows = [{"$region": "eu", "$partition": 0, "$offset": 4, "$heartbeat": "{}"}]
    with pytest.raises(SourceDataError, match="offset 4 of source partition 'eu/0'"):
        ingest_to_barriers(UpsertIngestor(store.table("t"), cache=tmp_path / "c"), arrow(rows))


def test_each_takeover_is_a_new_term_and_times_rise_over_all_of_them(store: SegmentStore) -> None:
    hand = HandClock()
    store = on_clock(store, hand.clock())
    store.apply_config(region_config())
    sent: list[Heartbeat] = []
    first, second = (HeartbeatEmitter(store.cluster, "t", "eu", name) for name in ("first", "second"))
    first.emit(2, sent.append)
    first.emit(2, sent.append)
    hand.advance(-MINUTE)

    def killed(_: Heartbeat) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        second.emit(2, killed)
    second.emit(2, sent.append)
    assert [one.term for one in sent] == [1, 1, 2]
    assert sorted(one.time_ms for one in sent) == [one.time_ms for one in sent]
    assert [one.previous_ms for one in sent] == [0, sent[0].time_ms, sent[1].time_ms]


def test_heartbeats_in_files_follow_the_events_of_each_source_partition(store: SegmentStore, tmp_path: Path) -> None:
    store.apply_config(region_config(regions=["eu"]))
    log = Log("eu", 2)
    log.event("a", "x", part=1)
    folder = tmp_path / "source"
    folder.mkdir()
    pyarrow.parquet.write_table(arrow(log.rows), folder / "0.parquet")
    emitter = HeartbeatEmitter(store.cluster, "t", "eu", "me")
    for _ in range(2):
        emitter.emit(2, lambda heartbeat: write_heartbeat(FileSource(folder), "eu", heartbeat))
    files = sorted(folder.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    rows = [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
    assert sorted((row["$partition"], row["$offset"]) for row in rows) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    feed(store.table("t"), tmp_path, rows, [5])
    assert record_of(store.table("t")).positions == {"eu/0": 2, "eu/1": 3}
    stream = record_of(store.table("t")).stream
    assert stream is not None and len(stream.taken("eu")) == 2
