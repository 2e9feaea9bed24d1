"""``segments timeline``, as a person would type it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import DAILY, CommandLine, parquet

LOCKING = {
    "segmentsConfig": {"timeColumnName": "at"},
    "segmentBuildConfig": {"segmentGranularity": "DAY", "segmentLocking": True},
}


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
    assert lines[0] == ["INTERVAL", "VERSION", "STATE", "SEGMENTS", "ROWS", "SIZE", "PARTITIONS"]
    assert [line[:5] for line in lines[1:]] == [
        ["2013-01-01", "-", "visible", "1", "10"],
        ["2013-01-01", "-", "overshadowed", "1", "10"],
        ["2013-01-02", "-", "visible", "1", "10"],
        ["2013-01-02", "-", "overshadowed", "1", "10"],
        ["2013-01-03", "-", "standby", "1", "10"],
    ]
    assert states(segments, "--start", "2013-01-03") == [("2013-01-03", "standby", 1)]
    document = segments.json("timeline", "t")
    assert {one["entry_id"] for one in document["segments"] if one["state"] == "standby"} == {entry}
    assert {one["partition"] for one in document["segments"]} == {None}


def test_a_table_with_segment_locking_shows_versions_and_ids(segments: CommandLine) -> None:
    """Appends of one day get consecutive ids of one version."""
    segments.make_table(kind="APPEND", **LOCKING)
    for _ in range(3):
        segments.push(1)
    [line] = segments.json("timeline", "t")["lines"]
    assert (line["state"], line["segments"], line["partitions"]) == ("visible", 3, [0, 1, 2])
    assert line["version"] == "1970-01-01T00:00:00.000Z"
    assert segments.ok("timeline", "t").out.splitlines()[1].split()[-1] == "0-2"


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
