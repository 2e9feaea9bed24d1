"""What the page says of regions: how long ago each was heard, by source partition, and the last comparisons."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_provider_segments.core.replication.comparisons import (
    MOST_OTHERS,
    ComparisonRecord,
    keep_comparison,
    read_comparisons,
)
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import SetData
from airflow_provider_segments.plugins.segments_plugin import PREFIX
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from tests.airflow.helpers import make_table
from tests.airflow.test_page_routes import headers, headers_of, server
from tests.replication.support import MINUTE, Log, arrow, region_config
from tests.support.tables import HandClock, on_clock

__all__ = ["headers", "server"]
ALL = f"{PREFIX}/api/connections/segments_default/regions"


@pytest.fixture
def regions(store: SegmentStore, connection: dict[str, Any], table_name: str) -> Table:
    assert connection
    store.apply_config(region_config(table_name, regions=["eu", "us", "asia", "moon"]))
    return store.table(table_name)


def hear(table: Table, folder: Path, region: str, age_ms: int, partitions: int = 1) -> None:
    """Have a version take a heartbeat of that age from each source partition."""
    log = Log(region, partitions)
    log.beat(time.time_ns() // 1_000_000 - age_ms)
    ingest_to_barriers(UpsertIngestor(table, cache=folder / "cache"), arrow(log.rows))


def compared(other: str = "there", at_ms: int = 1, **more: Any) -> ComparisonRecord:
    return ComparisonRecord(other=other, at_ms=at_ms, version=3, other_version=4, **more)


def asked(server: TestClient, table: Table) -> dict[str, Any]:
    """The table's regions, which the route of the table and that of all tables tell alike."""
    found = server.get(ALL, headers=headers_of("viewer")).json()["tables"]
    path = f"{PREFIX}/api/connections/segments_default/tables/{table.name}/regions"
    own = server.get(path, headers=headers_of("viewer")).json()
    [listed] = [one for one in found if one["table"] == table.name]
    for region in [*own["regions"], *listed["regions"]]:  # a millisecond has passed between the two
        region["lag_ms"] = region["lag_ms"] and region["lag_ms"] // MINUTE
        for part in region["partitions"]:
            part["lag_ms"] = part["lag_ms"] and part["lag_ms"] // MINUTE
    assert own == listed
    return dict(own)


def test_each_region_is_heard_silent_ahead_or_was_never_heard(
    server: TestClient, regions: Table, tmp_path: Path
) -> None:
    hear(regions, tmp_path, "eu", 1_000, partitions=2)
    hear(regions, tmp_path, "us", 5 * MINUTE + 1_000)
    hear(regions, tmp_path, "asia", -5 * MINUTE)
    found = asked(server, regions)
    assert found["interval_ms"] == MINUTE
    states = {one["region"]: (one["state"], one["lag_ms"]) for one in found["regions"]}
    assert states == {"eu": ("heard", 0), "us": ("silent", 5), "asia": ("clock ahead", 0), "moon": ("never", None)}
    parts = {one["region"]: [(p["partition"], p["position"]) for p in one["partitions"]] for one in found["regions"]}
    assert parts == {"eu": [(0, 1), (1, 1)], "us": [(0, 1)], "asia": [(0, 1)], "moon": []}


def test_a_source_partition_that_was_given_up_has_a_lag_of_its_own(
    server: TestClient, regions: Table, tmp_path: Path
) -> None:
    """The region goes on without it, so only the partition's own heartbeats tell that it is silent."""
    now_ms, log = time.time_ns() // 1_000_000, Log("eu", 2)
    log.beat(now_ms - 20 * MINUTE - 1_000)
    log.beat(now_ms - 10 * MINUTE - 1_000, parts=[0])
    hand = HandClock()
    ingestor = UpsertIngestor(on_clock(regions.store, hand.clock()).table(regions.name), cache=tmp_path / "cache")
    _, held = ingest_to_barriers(ingestor, arrow(log.rows))
    hand.advance(4 * MINUTE)
    ingest_to_barriers(ingestor, arrow([]), held)
    [eu] = [one for one in asked(server, regions)["regions"] if one["region"] == "eu"]
    assert {part["partition"]: part["lag_ms"] for part in eu["partitions"]} == {0: 10, 1: 20}


def test_the_last_comparison_with_each_other_region_is_kept_and_told(server: TestClient, regions: Table) -> None:
    cluster = regions.store.cluster
    for number in range(MOST_OTHERS + 5):
        keep_comparison(cluster, regions.name, compared(f"region {number}", number))
    found = {"counts": {"mismatch": 2}, "behind": {"eu/0": 7}, "findings": "f", "entry_id": "e"}
    keep_comparison(cluster, regions.name, compared("region 20", 99, **found))
    kept = read_comparisons(cluster, regions.name)
    assert (len(kept), kept[0].other, kept[0].at_ms) == (MOST_OTHERS, "region 20", 99)
    assert len({one.other for one in kept}) == MOST_OTHERS
    told = asked(server, regions)["comparisons"]
    assert (told[0]["has_diverged"], told[0]["counts"], told[0]["findings"]) == (True, {"mismatch": 2}, "f")
    assert not any(one["has_diverged"] for one in told[1:])
    for harmless in ("undecided", "healed"):
        assert not compared(counts={harmless: 1}).has_diverged


def test_tables_without_regions_are_left_out_and_a_broken_one_says_so(
    server: TestClient, regions: Table, store: SegmentStore
) -> None:
    make_table(store, f"{regions.name}_plain")
    keep_comparison(store.cluster, regions.name, compared())
    path = store.paths.comparisons(regions.name)
    node = store.session.get(path)
    assert node is not None
    store.session.commit([SetData(path, b"\xff torn", node.version)])
    [told] = server.get(ALL, headers=headers_of("viewer")).json()["tables"]
    assert (told["table"], path in told["error"]) == (regions.name, True)


def test_a_config_that_gains_regions_is_noticed(server: TestClient, store: SegmentStore, regions: Table) -> None:
    """The configs are remembered for as long as their znodes have not changed."""
    assert len(asked(server, regions)["regions"]) == 4
    grown = region_config(regions.name, regions=["eu", "us", "asia", "moon", "mars"])
    store.apply_config(grown)
    assert len(asked(server, regions)["regions"]) == 5
