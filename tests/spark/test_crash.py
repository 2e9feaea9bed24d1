"""The build is killed at each of its writes, enumerated: to ZooKeeper in the driver, to the store in the workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.storage.base import ObjectInfo
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.spark.build import build_segments
from tests.spark.conftest import MakeTable

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
def test_a_driver_killed_at_any_write_shows_nothing_and_can_be_run_again(
    spark: SparkSession, store: SegmentStore, make_table: MakeTable, landed: bool
) -> None:
    """After each death nothing is visible and every object lies under the entry; the next attempt and ``end`` then show
    each row once, whatever the dead one had staged."""
    deaths = 0
    for at in range(1, 20):
        table = make_table(f"events{at}", segmentGranularity="DAY", targetRowsPerSegment=100)
        entry = table.start().entry_id
        code = _build_in_a_process(store, table, entry, at, landed)
        if code == 0:
            break
        assert code == 9
        deaths += 1
        assert len(table.snapshot()) == 0
        assert table.lineage().entries[entry].state is EntryState.IN_PROGRESS
        assert all(found.key.startswith(f"{table.name}/{entry}/") for found in table.storage.list(f"{table.name}/"))
        source = spark.range(300).selectExpr("timestamp_millis(id % 2 * 86400000) AS at", "id AS x")
        build_segments(spark, table, entry, source)
        table.end(entry)
        assert table.snapshot().rows == 300
        registered = {name.entry_id for name in table._context.registry.shard_names()}
        assert registered == {entry}
    assert deaths >= 3


def _build_in_a_process(store: SegmentStore, table: Table, entry: str, at: int, landed: bool) -> int:
    where = [store.session.settings.hosts, store.paths.cluster, store.storage.uri, table.name, entry]
    command = [sys.executable, "-m", "tests.spark.dying_build", *where, str(at), str(landed)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=180).returncode


class DyingStore(LocalStore):
    """Ends the worker's process right before or right after an upload, as long as ``fuse`` has files to burn."""

    def __init__(self, root: Path, fuse: Path, after: bool) -> None:
        super().__init__(root)
        self.fuse = fuse
        self.after = after

    def put_file(self, path: Path, key: str, *, owner: Mapping[str, str], **how: bool) -> ObjectInfo:
        if not self.after:
            self._burn()
        done = super().put_file(path, key, owner=owner, **how)
        if self.after:
            self._burn()
        return done

    def _burn(self) -> None:
        for mark in sorted(self.fuse.iterdir()):
            mark.unlink(missing_ok=True)
            os._exit(9)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_worker_killed_at_an_upload_is_replaced_and_nothing_doubles(
    spark: SparkSession, make_table: MakeTable, tmp_path: Path, after: bool
) -> None:
    """Spark runs the task again under another attempt; what the dead one had uploaded is not staged."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    table = make_table(segmentGranularity="DAY", targetRowsPerSegment=100)
    fuse = tmp_path / "fuse"
    fuse.mkdir()
    (fuse / "one").touch()
    dying = DyingStore(tmp_path / "objects", fuse, after)
    table = table.store.replace(storage=dying).table(table.name)
    entry = table.start().entry_id
    source = spark.range(300).selectExpr("timestamp_millis(id % 2 * 86400000) AS at", "id AS x")
    built = build_segments(spark, table, entry, source)
    assert not list(fuse.iterdir())
    assert (built.rows, table.staged(entry).rows) == (300, 300)
    table.end(entry)
    assert table.snapshot().rows == 300
    found = {found.key for found in table.storage.list(f"{table.name}/{entry}/")}
    assert set(table.snapshot().files) <= found
    assert (len(found) > len(table.snapshot())) is after
