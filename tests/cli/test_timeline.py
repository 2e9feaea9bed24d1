"""``segments timeline``, as a person would type it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from airflow_provider_segments.core.locking import LockRequest, granted_lock
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval, format_ms, parse_chunk
from airflow_provider_segments.core.table import SegmentStore
from tests.cli.conftest import DAILY, CommandLine, parquet

LOCKING = {
    "segmentsConfig": {"timeColumnName": "at"},
    "segmentBuildConfig": {"segmentGranularity": "DAY", "segmentLocking": True},
}


HOUR_MS = 3_600_000


def overwrite(store: SegmentStore, interval: Interval) -> None:
    """A push that brings nothing, and so empties the time that it has locked."""
    table = store.table("t")
    lock = granted_lock("t", table.locks.acquire(LockRequest(group="g", task="g", interval=interval)))
    held = HeldLock(lock.lock_id, "g", "g")
    entry = table.start((), locks=[held], overwrites=[interval]).entry_id
    table.end(entry, allow_empty=True)
    table.locks.release_group("g")


def states(segments: CommandLine, *args: object) -> list[tuple[str, str, int]]:
    return [(one["chunk"], one["state"], one["segments"]) for one in segments.json("timeline", "t", *args)["lines"]]


def test_a_plain_table_shows_what_is_visible_staged_and_replaced(segments: CommandLine, tmp_path: Path) -> None:
    """Without versions the lineage says where a segment stands."""
    segments.make_table(**DAILY)
    segments.push(1, 2)
    segments.push(1, 2)
    entry = segments.json("start", "t")["entry_id"]
    segments.ok("stage", "t", entry, parquet(tmp_path, 3))
    lines = [line.split() for line in segments.ok("timeline", "t").out.splitlines()]
    assert lines[0] == ["INTERVAL", "STATE", "SEGMENTS", "ROWS", "SIZE", "VERSION", "PARTITIONS"]
    assert [(*line[:4], *line[-2:]) for line in lines[1:]] == [
        ("2013-01-01", "visible", "1", "10", "-", "-"),
        ("2013-01-01", "overshadowed", "1", "10", "-", "-"),
        ("2013-01-02", "visible", "1", "10", "-", "-"),
        ("2013-01-02", "overshadowed", "1", "10", "-", "-"),
        ("2013-01-03", "standby", "1", "10", "-", "-"),
    ]
    assert states(segments, "--start", "2013-01-03") == [("2013-01-03", "standby", 1)]
    document = segments.json("timeline", "t")
    assert {one["entry_id"] for one in document["segments"] if one["state"] == "standby"} == {entry}
    assert {(one["partition"], one["version"]) for one in document["segments"]} == {(None, 0)}


def test_a_table_with_segment_locking_shows_versions_and_ids(segments: CommandLine) -> None:
    """Show one line for the appends of a day, with their consecutive ids and the newest of their versions."""
    segments.make_table(kind="APPEND", **LOCKING)
    for _ in range(3):
        segments.push(1)
    document = segments.json("timeline", "t")
    [line] = document["lines"]
    assert (line["state"], line["segments"], line["partitions"]) == ("visible", 3, [0, 1, 2])
    in_order = [one["version"] for one in sorted(document["segments"], key=lambda one: one["partition"])]
    assert in_order == sorted(set(in_order)), "each append has a later version than the one before"
    assert line["versions"] == in_order[::-1]
    shown = segments.ok("timeline", "t").out.splitlines()[1]
    assert shown.endswith(f"{format_ms(in_order[-1])} and 2 older  0-2")
    assert not line["visible_in"]


def test_a_range_shows_the_time_chunks_that_share_time_with_it(segments: CommandLine) -> None:
    """Leave out the days beside it, also where the registry keeps all of them in one record."""
    segments.make_table(kind="APPEND", **DAILY)
    segments.push(*range(1, 11))
    found = states(segments, "--start", "2013-01-03T12:00", "--end", "2013-01-05")
    assert found == [("2013-01-03", "visible", 1), ("2013-01-04", "visible", 1)]
    assert "2013-01-05" not in segments.ok("timeline", "t", "--start", "2013-01-03", "--end", "2013-01-05").out


def test_an_overwrite_hides_what_it_holds_and_the_rest_stays_visible(
    segments: CommandLine, store: SegmentStore
) -> None:
    """Say in which part of its time a segment is still visible, and that what is hidden altogether is overshadowed."""
    segments.make_table(kind="APPEND", **LOCKING)
    segments.push(1)
    segments.push(2)
    day = parse_chunk("2013-01-01")
    morning = Interval(day.start_ms, day.start_ms + 6 * HOUR_MS)
    overwrite(store, morning)
    lines = [re.split("  +", line) for line in segments.ok("timeline", "t").out.splitlines()]
    afternoon = Interval(morning.end_ms, day.end_ms)
    assert lines[0][-1] == "VISIBLE IN"
    assert [(line[0], line[-1]) for line in lines[1:]] == [("2013-01-01", str(afternoon)), ("2013-01-02", "0")]
    first, second = segments.json("timeline", "t")["lines"]
    assert (first["state"], first["visible_in"], second["visible_in"]) == ("visible", [str(afternoon)], [])
    overwrite(store, day)
    assert states(segments) == [("2013-01-01", "overshadowed", 1), ("2013-01-02", "visible", 1)]
    segments.ok("revert", "t", "latest")
    assert states(segments) == [("2013-01-01", "visible", 1), ("2013-01-02", "visible", 1)]


def test_the_picture_is_written_beside_the_text(segments: CommandLine, tmp_path: Path) -> None:
    """Its path is the last line; a program finds the picture where it said."""
    segments.make_table(**DAILY)
    segments.push(1, 2)
    file = tmp_path / "t.svg"
    assert segments.ok("timeline", "t", "--svg", file).out.splitlines()[-1] == f"picture: {file}"
    root = ElementTree.fromstring(file.read_text())
    assert (root.findtext("{http://www.w3.org/2000/svg}title") or "").startswith("Table t at ")
    file.unlink()
    assert len(segments.json("timeline", "t", "--svg", file)["segments"]) == 2
    assert file.exists()
    refused = segments("timeline", "t", "--svg", tmp_path / "nowhere" / "t.svg")
    assert (refused.code, refused.out) == (2, "")
    assert "cannot write" in refused.err


def test_an_empty_timeline_is_a_remark_and_a_missing_table_an_error(segments: CommandLine) -> None:
    """Nothing on standard output in both cases."""
    assert segments("timeline", "t").code == 1
    segments.make_table(**DAILY)
    empty = segments("timeline", "t")
    assert (empty.code, empty.out) == (0, "")
    assert "has no segments" in empty.err
    assert segments.json("timeline", "t") == {"table": "t", "lines": [], "segments": []}
    assert segments("timeline", "t", "--start", "2013-01-02", "--end", "2013-01-01").code == 2
    with pytest.raises(SystemExit):
        segments("timeline", "t", "--start", "soon")
