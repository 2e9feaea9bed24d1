"""The readers of ``scripts/cluster chaos`` tell what no reader may see."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from airflow_provider_segments.cli.parquet import stage_files
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from cluster.chaos import APPEND_CONFIG, PUSH_CONFIG, Ended, expect_pushes
from cluster.readers import APPENDED, LOOKS, PUSHED, WrongReadError, rows_of_append, rows_of_push
from demo.airflow import DemoFailedError


class World:
    """Two tables, and pushes of as many rows as a test wants."""

    def __init__(self, store: SegmentStore, folder: Path) -> None:
        self.store, self.folder = store, folder
        for table, config in ((PUSHED, PUSH_CONFIG), (APPENDED, APPEND_CONFIG)):
            store.apply_config(TableConfig.from_json({"tableName": table, **config}))

    def push(self, table: str, number: int, rows: int) -> str:
        """Replace what is visible of the pushed table, or append to the other; returns the entry."""
        path = self.folder / f"{table}{number}.parquet"
        at = [datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)] * rows
        pyarrow.parquet.write_table(pa.table({"at": at, "push": [number] * rows}), path)
        opened = self.store.table(table)
        entry = (opened.start(()) if table == APPENDED else opened.start()).entry_id
        stage_files(opened, entry, [path], stager="test")
        opened.end(entry)
        return entry


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper", sync=False) as server,
        SegmentStore.connect(server.hosts, storage_uri=(tmp_path / "store").as_uri()) as store,
    ):
        yield World(store, tmp_path)


def test_a_push_is_seen_whole_and_never_an_older_one(world: World) -> None:
    look = LOOKS[PUSHED]()
    assert look(world.store) == 0
    world.push(PUSHED, 1, rows_of_push(1))
    assert look(world.store) == 1
    world.push(PUSHED, 2, rows_of_push(2) - 1)
    with pytest.raises(WrongReadError, match="2001 rows of push 2 of 2002"):
        look(world.store)
    world.push(PUSHED, 0, rows_of_push(0))
    with pytest.raises(WrongReadError, match="after push 1"):
        look(world.store)


def test_appends_are_seen_whole_and_stay(world: World) -> None:
    look = LOOKS[APPENDED]()
    entry = world.push(APPENDED, 0, rows_of_append(0))
    world.push(APPENDED, 1, rows_of_append(1))
    assert look(world.store) == 1
    world.store.table(APPENDED).revert(entry)
    with pytest.raises(WrongReadError, match=r"gone: \[0\]"):
        look(world.store)
    world.push(APPENDED, 2, 1)
    with pytest.raises(WrongReadError, match=r"parts of appends: \{2: 1\}"):
        look(world.store)


def test_a_lost_push_is_told(world: World) -> None:
    """Of the table of snapshots the last one must be visible; of appends all, whatever else is."""
    world.push(PUSHED, 0, rows_of_push(0))
    entry = world.push(APPENDED, 0, rows_of_append(0))
    runs = {"push": [Ended(0, "success", True)], "append": [Ended(0, "failed", True), Ended(1, "failed", False)]}
    expect_pushes(world.store, runs)
    with pytest.raises(DemoFailedError, match="push 1 is lost"):
        expect_pushes(world.store, {**runs, "push": [*runs["push"], Ended(1, "success", True)]})
    world.store.table(APPENDED).revert(entry, allow_empty=True)
    with pytest.raises(DemoFailedError, match=r"appends are lost: \[0\]"):
        expect_pushes(world.store, runs)
