"""``segments heartbeats`` and ``segments checkpoint``."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from tests.cli.conftest import CommandLine
from tests.replication.support import MINUTE, Log, arrow, region_config
from tests.upsert.world import upsert_config


@pytest.fixture
def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def filled(store: SegmentStore, tmp_path: Path, now_ms: int) -> SegmentStore:
    """A table of four regions: heard just now, silent for an hour, ahead, never heard."""
    store.apply_config(region_config(regions=["eu", "us", "ap", "sa"]))
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path / "cache")
    for region, at in (
        ("eu", now_ms - MINUTE),
        ("eu", now_ms),
        ("us", now_ms - 60 * MINUTE),
        ("ap", now_ms + 10 * MINUTE),
    ):
        log = Log(region)
        log.previous_ms = now_ms - MINUTE
        log.sizes[0] = at % 1_000_000_007
        log.beat(at)
        ingest_to_barriers(ingestor, arrow(log.rows))
    return store


def test_heartbeats_say_which_region_is_silent(segments: CommandLine, filled: SegmentStore) -> None:
    lines = [line.split() for line in segments.ok("heartbeats", "t").out.splitlines()[1:]]
    assert {line[0]: line[-1] for line in lines} == {"eu": "heard", "us": "silent", "ap": "ahead", "sa": "silent"}
    assert "never" in lines[3]
    told = {one["region"]: one for one in segments.json("heartbeats", "t")["regions"]}
    assert told["sa"]["lag_ms"] is None and told["sa"]["is_silent"]
    assert told["us"]["lag_ms"] >= 60 * MINUTE
    assert 0 <= told["ap"]["lag_ms"] < MINUTE and told["ap"]["is_ahead"], "heard when its version was published"


def test_checkpoint_says_the_version_of_a_time_or_why_there_is_none(
    segments: CommandLine, filled: SegmentStore, now_ms: int
) -> None:
    from datetime import UTC, datetime

    def text(ms: int) -> str:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat()

    assert segments.ok("checkpoint", "t", text(now_ms - MINUTE // 2), "--region", "eu").out == "1\n"
    assert segments.json("checkpoint", "t", text(now_ms - MINUTE // 2), "--region", "eu")["version"] == 1
    refused = segments("checkpoint", "t", text(now_ms + MINUTE), "--region", "eu")
    assert (refused.code, "checkpoint-too-early" in refused.err) == (1, True)


def test_a_table_without_heartbeats_says_so(segments: CommandLine, store: SegmentStore) -> None:
    store.apply_config(upsert_config("plain"))
    refused = segments("heartbeats", "plain")
    assert (refused.code, "no-heartbeats" in refused.err) == (1, True)
