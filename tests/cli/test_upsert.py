"""``segments upsert``, as the engineer who is called at night would type it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.upsert.marks import HeldVersions
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from tests.cli.conftest import CommandLine
from tests.upsert.world import Event, to_arrow, upsert_config


@pytest.fixture
def filled(store: SegmentStore, tmp_path: Path) -> SegmentStore:
    """Three versions of one key."""
    store.apply_config(upsert_config())
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path / "cache")
    for at in range(3):
        ingestor.ingest(to_arrow([Event(at, 0, at, "a", f"v{at}", False)]))
    return store


def test_status_says_what_is_seen_and_where_ingestion_goes_on(segments: CommandLine, filled: SegmentStore) -> None:
    HeldVersions(filled.cluster, "t").report("extract", 2)
    said = " ".join(segments.ok("upsert", "status", "t").out.split())
    for line in ("version 3, published", "oldest mark 0", "low-water mark 2 of 1 reader"):
        assert line in said
    assert "3, 2 of them not valid any more" in said
    assert "next offsets /0 3" in said
    assert "extract 2" in said
    told = segments.json("upsert", "status", "t")
    assert (told["version"], told["rows"], told["dead_rows"], told["positions"]) == (3, 3, 2, {"/0": 3})


def test_rollback_shows_an_earlier_version_again(segments: CommandLine, filled: SegmentStore) -> None:
    said = segments.ok("upsert", "rollback", "t", "--to", "1").out
    assert "shows version 1 again, as version 4; took back 2 versions" in said
    assert "/0 1" in said
    assert [row["v"] for row in read_rows(filled.table("t")).to_pylist()] == ["v0"]
    assert "taken back 2 to 3" in " ".join(segments.ok("upsert", "status", "t").out.split())


def test_cutoff_keeps_older_events_out(segments: CommandLine, filled: SegmentStore, tmp_path: Path) -> None:
    """It never falls, older rows end with it, and a number that no column can hold is a usage error."""
    assert (
        "takes no events below 2 any more; ended 0 rows with version 4" in segments.ok("upsert", "cutoff", "t", "2").out
    )
    assert segments.json("upsert", "cutoff", "t", "1")["cutoff"] == 2
    done = UpsertIngestor(filled.table("t"), cache=tmp_path / "c").ingest(to_arrow([Event(1, 0, 9, "z", "", False)]))
    assert (done.expired, done.winners) == (1, 0)
    assert "3 ingested, 1 expired" in " ".join(segments.ok("upsert", "status", "t").out.split())
    assert segments.json("upsert", "cutoff", "t", "9")["rows"] == 1
    assert not read_rows(filled.table("t")).num_rows
    assert segments.json("upsert", "status", "t")["cutoff"] == 9
    for wrong in ("9" * 19, "1.5", "now"):
        with pytest.raises(SystemExit):
            segments("upsert", "cutoff", "t", wrong)


def test_a_reader_that_is_gone_is_forgotten(segments: CommandLine, filled: SegmentStore) -> None:
    HeldVersions(filled.cluster, "t").report("extract", 1)
    assert "extract holds no version" in segments.ok("upsert", "forget", "t", "extract").out
    assert segments.json("upsert", "forget", "t", "extract")["was_there"] is False
    assert segments.json("upsert", "status", "t")["low_water_mark"] == 3


def test_compact_drops_what_no_mark_shows(segments: CommandLine, filled: SegmentStore) -> None:
    assert "3 rows became 1 segment with 1" in segments.ok("upsert", "compact", "t", "--floor", "3").out
    assert [row["v"] for row in read_rows(filled.table("t")).to_pylist()] == ["v2"]
