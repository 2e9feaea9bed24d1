"""A stream of changes keeps a copy of an upsert table, over restarts, and fails by name when its version is gone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.spark.read import register
from airflow_provider_segments.upsert.changes import CHANGE
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from airflow_provider_segments.upsert.rollback import roll_back
from tests.upsert.world import Event, stage_bulk, to_arrow, upsert_config


class Copy:
    """A copy of the table, by key, and a stream that keeps it."""

    def __init__(self, spark: SparkSession, options: dict[str, str], checkpoint: Path) -> None:
        self.spark, self.options, self.checkpoint = spark, options, checkpoint
        self.rows: dict[str, str] = {}
        self.changes: list[int] = []

    def run(self) -> None:
        """Take all that is there, as a new process would. Spark gives a Python worker ten seconds to start, which a
        busy machine may not make; the stream is begun again then, and goes on where it was."""
        for attempt in range(4):
            stream = self.spark.readStream.format("segments_changes").options(**self.options).load()
            writer = stream.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
            query = writer.trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(180)
                return
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error) or attempt == 3:
                    raise
            finally:
                query.stop()

    def _take(self, batch: DataFrame, _: int) -> None:
        changes = batch.collect()
        before = dict(self.rows)
        for row in changes:
            match row[CHANGE]:
                case "update_preimage":
                    assert before[row["k"]] == row["v"]
                case "delete":
                    assert self.rows.pop(row["k"]) == row["v"]
                case "insert":
                    assert row["k"] not in before
                    self.rows[row["k"]] = row["v"]
                case "update_postimage":
                    self.rows[row["k"]] = row["v"]
        self.changes.append(len(changes))


def test_a_stream_keeps_a_copy_over_restarts_until_its_version_is_taken_back(
    spark: SparkSession, store: SegmentStore, tmp_path: Path, zk_hosts: str, cluster: str, storage_uri: str
) -> None:
    rnd, number = random.Random(3), 0
    store.apply_config(upsert_config())
    table = store.table("t")
    register(spark)
    options = {"zk_hosts": zk_hosts, "cluster": cluster, "storage_uri": storage_uri, "table": "t", "since": "0"}
    copy = Copy(spark, options, tmp_path / "checkpoint")

    def ingest(batches: int) -> None:
        nonlocal number
        ingestor = UpsertIngestor(table, cache=tmp_path / "cache")
        for _ in range(batches):
            rows = [
                Event(number + at, 0, number + at, f"k{rnd.randrange(40)}", f"v{number + at}", rnd.random() < 0.3)
                for at in range(30)
            ]
            ingestor.ingest(to_arrow(rows))
            number += 30

    def shown() -> dict[str, str]:
        return {row["k"]: row["v"] for row in read_rows(table).to_pylist()}

    ingest(2)
    copy.run()
    assert copy.rows == shown()
    taken = require_record(table.lineage()).clock
    ingest(3)
    started = table.start(identity="bulk")
    bulk = to_arrow([Event(10_000, 0, 0, f"k{at}", "bulk", False) for at in range(5)])
    stage_bulk(table, started.entry_id, bulk.drop_columns(["$partition", "$offset"]))
    table.end(started.entry_id)
    ingest(1)
    UpsertCompactor(table).run(floor=taken)
    copy.run()
    assert copy.rows == shown()
    assert list(copy.rows.values()).count("bulk") == 5
    seen = list(copy.changes)
    copy.run()
    assert sum(copy.changes) == sum(seen), "nothing comes twice"
    roll_back(table.context, require_record(table.lineage()).clock - 1)
    with pytest.raises(StreamingQueryException, match="rolled-back"):
        copy.run()
