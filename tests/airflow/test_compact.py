"""The compaction DAG: a real task, a real ``spark-submit``."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet

from airflow_provider_segments.core.table import SegmentStore, Table
from tests.airflow.helpers import RunDag, make_table, push_rows, states
from tests.airflow.test_dags import asset_changes, dags


def rows(table: Table) -> list[int]:
    found: list[int] = []
    for key in table.snapshot().files:
        with table.storage.open(key) as file:
            found += pyarrow.parquet.read_table(file).column("a").to_pylist()
    return found


def test_compaction_dag_merges_small_pushes_and_can_be_rolled_back(
    run_dag: RunDag, store: SegmentStore, table_name: str, tmp_path: Path
) -> None:
    table = make_table(store, table_name, "APPEND")
    for number in range(3):
        push_rows(table, tmp_path, {"a": [number]})
    before = table.snapshot().names

    looked = run_dag(dags()["segments_compaction"], {"table": table_name, "dry_run": True})
    assert looked.state == "success", states(looked)
    assert table.snapshot().names == before
    assert asset_changes(table_name, store.paths.cluster) == []

    run = run_dag(dags()["segments_compaction"], {"table": table_name})
    assert run.state == "success", states(run)
    assert len(table.snapshot()) == 1
    assert sorted(rows(table)) == [0, 1, 2]
    assert asset_changes(table_name, store.paths.cluster) == ["compact"]
    idle = run_dag(dags()["segments_compaction"], {"table": table_name})
    assert (idle.state, asset_changes(table_name, store.paths.cluster)) == ("success", ["compact"]), (
        "nothing was left to compact"
    )

    table.revert(table.resolve_entry("latest"))
    assert sorted(table.snapshot().names) == sorted(before)
