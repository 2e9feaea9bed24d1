"""Heartbeats through a Spark stream: what a barrier holds outlives the process, also when a batch is sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.spark.held import HeldEvents
from airflow_provider_segments.spark.upsert import ingest_stream
from airflow_provider_segments.upsert.reading import read_rows
from tests.replication.support import MINUTE, Log, arrow, region_config
from tests.replication.test_ingest import record_of

SCHEMA = (
    "k STRING, ts BIGINT, v STRING, deleted BOOLEAN, `$region` STRING, `$partition` INT, `$offset` BIGINT, "
    "`$heartbeat` STRING"
)


@pytest.mark.parametrize("as_uri", [False, True])
def test_what_a_micro_batch_left_is_found_by_the_next_one_also_if_it_is_sent_again(
    tmp_path: Path, as_uri: bool
) -> None:
    def held() -> HeldEvents:
        return HeldEvents(tmp_path.as_uri() if as_uri else str(tmp_path))

    def found(batch: int) -> list[int] | None:
        table = held().before(batch)
        return None if table is None else table.to_pydict().get("n", [])

    assert found(0) is None
    held().store(0, pyarrow.table({"n": [1]}))
    held().store(1, pyarrow.table({"n": [1, 2]}))
    assert (found(0), found(1), found(2)) == (None, [1], [1, 2])
    held().store(1, pyarrow.table({"n": [2]}))
    assert (found(1), found(2)) == ([1], [2])
    held().store(3, None)
    assert found(3) == [2]
    assert found(9) == []
    assert len(list((tmp_path / "held").iterdir())) == 2, "older ones are gone"


def test_a_stream_holds_events_behind_a_heartbeat_over_runs(
    spark: SparkSession, store: SegmentStore, tmp_path: Path
) -> None:
    """One file a micro-batch; the run ends while the second source partition has not reached the heartbeat."""
    store.apply_config(region_config(regions=["eu"]))
    table, folder = store.table("t"), tmp_path / "input"
    folder.mkdir()
    log = Log("eu", 2)
    log.event("a", "before", part=0)
    log.beat(MINUTE, parts=[0])
    log.event("a", "after", time=2, part=0)
    log.event("b", "x", part=1)
    log.beat(MINUTE, parts=[1])
    log.event("b", "y", time=2, part=1)

    def run(number: int, rows: list[dict[str, Any]]) -> None:
        pyarrow.parquet.write_table(arrow(rows), folder / f".{number}")
        (folder / f".{number}").rename(folder / f"{number}.parquet")
        stream = spark.readStream.format("parquet").schema(SCHEMA).option("maxFilesPerTrigger", 1).load(str(folder))
        ingest_stream(spark, table, stream, checkpoint=str(tmp_path / "checkpoint"), cache=tmp_path / "c", wait_s=60)

    def shown(mark: int | None = None) -> dict[str, str]:
        return {row["k"]: row["v"] for row in read_rows(table, mark=mark).to_pylist()}

    run(0, log.rows[:3])
    run(1, log.rows[3:4])
    assert shown() == {"a": "before", "b": "x"}
    run(2, log.rows[4:])
    assert shown() == {"a": "after", "b": "y"}
    stream = record_of(table).stream
    assert stream is not None
    [taken] = stream.taken("eu")
    assert (taken.time_ms, taken.missing) == (MINUTE, ())
    assert shown(taken.version) == {"a": "before", "b": "x"}, "exactly what came before it"
