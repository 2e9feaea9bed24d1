"""A table, and an hour of one, are taken away and brought back, as a person would type it."""

from __future__ import annotations

from tests.cli.conftest import DAILY, CommandLine


def test_a_table_is_dropped_on_a_clear_word_only_and_comes_back(segments: CommandLine) -> None:
    segments.make_table(**DAILY)
    segments.push(1, 2, 3)
    refused = segments("drop-table", "t")
    assert refused.code == 2
    assert "give --yes to drop it" in refused.err
    assert "30 rows in 3 segments" in segments.ok("drop-table", "t", "--dry-run").out
    assert segments.ok("snapshot", "t", "--json").json["rows"] == 30
    dropped = segments.ok("drop-table", "t", "--yes", "--json").json
    assert (dropped["rows"], dropped["already"], dropped["dry_run"]) == (30, False, False)
    seen = segments("snapshot", "t")
    assert seen.code == 1
    assert f"segments revert t {dropped['entry_id']}" in seen.err
    assert "dropped the table" in segments.ok("lineage", "t").out
    assert "is dropped already" in segments.ok("drop-table", "t", "--yes").out
    segments.ok("revert", "t", dropped["entry_id"])
    assert segments.ok("snapshot", "t", "--json").json["rows"] == 30


def test_an_hour_is_deleted_and_comes_back(segments: CommandLine) -> None:
    build = {"segmentLocking": True, "segmentGranularity": "DAY"}
    segments.make_table(kind="APPEND", **(DAILY | {"segmentBuildConfig": build}))
    segments.push(1, 2, 3)
    hours = ("--start", "2013-01-02", "--end", "2013-01-03T01:00")
    assert "2 segments with at most 20 rows there" in segments.ok("delete-time", "t", *hours, "--dry-run").out
    done = segments.json("delete-time", "t", *hours)
    assert (done["segments"], done["most_rows"], done["already"]) == (2, 20, False)
    assert segments.json("snapshot", "t")["segments"] == 2
    segments.ok("revert", "t", done["entry_id"])
    assert segments.json("snapshot", "t")["rows"] == 30
    assert segments("delete-time", "t", "--start", "2013-01-02", "--end", "2013-01-02").code == 2
