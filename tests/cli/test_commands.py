"""Every command, as text for people and as JSON for programs, on a real ZooKeeper."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import DAILY, CommandLine, parquet


def test_config_is_applied_shown_and_listed(segments: CommandLine) -> None:
    assert "was never made" in segments("tables").err
    segments.make_table("b")
    segments.make_table("a", **DAILY)
    file = segments.folder / "a.json"
    assert segments.ok("config", "apply", file).out == "table a: unchanged\n"
    assert segments.json("config", "apply", file) == {"table": "a", "outcome": "unchanged"}
    assert segments.json("config", "show", "a") == json.loads(file.read_text())
    assert segments.ok("tables").out == "a\nb\n"
    assert segments.json("tables") == ["a", "b"]


def test_config_is_read_from_standard_input(segments: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO('{"tableName": "piped"}'))
    assert segments.ok("config", "apply", "-").out == "table piped: created\n"


def test_push_is_announced_staged_switched_and_rolled_back(segments: CommandLine) -> None:
    """The life of two pushes, as a person would type it."""
    segments.make_table(**DAILY)
    first = segments.push(1, 2)
    started = segments.ok("start", "t").out
    second = started.split()[2]
    assert started == f"started entry {second} of table t, replacing 2 segments\n"
    files = [parquet(segments.folder, day, rows=3) for day in (1, 2, 3)]
    staged = segments.ok("stage", "t", second[:8], *files).out
    assert staged.startswith(f"staged 3 segments into entry {second} of table t: 9 rows, ")
    assert segments.json("snapshot", "t")["rows"] == 20
    ended = segments.ok("end", "t", second).out
    assert ended.startswith(
        f"completed entry {second} of table t: 3 segments with 9 rows in place of 2; the switch took"
    )
    assert segments.json("snapshot", "t")["rows"] == 9
    assert segments.ok("end", "t", second).out == f"entry {second} of table t had been completed before\n"
    dry = segments.ok("revert", "t", "latest", "--dry-run").out
    assert dry.startswith(
        f"would revert entry {second} of table t, which was COMPLETED\nvisible again: 2 segments: t_2013"
    )
    assert "\nreaders see: 9 rows in 3 segments, " in dry
    assert "\nthey would see: 20 rows in 2 segments, " in dry
    assert segments.json("snapshot", "t")["rows"] == 9
    assert segments.ok("revert", "t", "latest").out.startswith(f"reverted entry {second} of table t")
    assert segments.json("snapshot", "t")["rows"] == 20
    assert segments.json("lineage", "t")["latest"] == first


def test_second_rollback_of_latest_does_not_walk_back_behind_the_first(segments: CommandLine) -> None:
    """The second "revert latest" used to answer exit 0 and leave a table with 0 rows."""
    segments.make_table(**DAILY)
    first, second, third = segments.push(1, 2), segments.push(3), segments.push(4)
    segments.ok("revert", "t", "latest")
    again = segments("revert", "t", "latest")
    assert (again.code, again.out) == (1, "")
    assert third in again.err
    assert "--yes" in again.err
    assert segments.json("snapshot", "t")["rows"] == 10
    looked = segments("revert", "t", "latest", "--dry-run")
    assert looked.code == 0
    assert third in looked.err
    assert segments("revert", "t", "latest", "--yes").code == 0
    assert segments.json("snapshot", "t")["rows"] == 20
    empty = segments("revert", "t", first)
    assert empty.code == 1
    assert "[would-be-empty]" in empty.err
    assert "--allow-empty" in empty.err
    assert segments("revert", "t", first, "--dry-run").err == empty.err
    assert segments.ok("unrevert", "t", "latest").out.startswith(f"brought back entry {second} of table t; the switch")
    assert segments.json("snapshot", "t")["rows"] == 10


def test_person_is_asked_before_latest_walks_back_behind_a_revert(
    segments: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments.make_table(**DAILY)
    for day in (1, 2, 3):
        segments.push(day)
    segments.ok("revert", "t", "latest")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for answer, code in (("", 2), ("n", 2), ("y", 0)):
        monkeypatch.setattr("builtins.input", lambda _, said=answer: said)
        assert segments("revert", "t", "latest").code == code
    assert segments.json("snapshot", "t")["rows"] == 10


def test_latest_is_a_push_in_progress_where_one_is_asked_for(segments: CommandLine) -> None:
    segments.make_table(**DAILY)
    segments.push(1)
    second = segments.json("start", "t")["entry_id"]
    assert segments.json("stage", "t", "latest", parquet(segments.folder, 2))["entry_id"] == second
    assert segments.json("end", "t", "latest")["entry_id"] == second
    assert "no push in progress" in segments("end", "t", "latest").err
    third = segments.json("start", "t")["entry_id"]
    assert segments.json("revert", "t", "latest", "--force")["entry_id"] == third


def test_json_of_a_push_names_its_segments(segments: CommandLine) -> None:
    segments.make_table("t", "APPEND", **DAILY)
    started = segments.json("start", "t", "--identity", "work 7")
    entry = started["entry_id"]
    assert segments.json("start", "t", "--identity", "work 7") == started | {"resumed": True}
    staged = segments.json("stage", "t", entry, parquet(segments.folder, 5), parquet(segments.folder, 6))
    assert (staged["rows"], len(staged["segments"])) == (20, 2)
    ended = segments.json("end", "t", entry, "--to", staged["segments"][0])
    assert (ended["segments_to"], ended["rows"], ended["already"]) == (staged["segments"][:1], 10, False)
    reverted = segments.json("revert", "t", entry, "--identity", "r", "--allow-empty")
    assert (reverted["was"], reverted["hidden"], reverted["dry_run"]) == ("COMPLETED", staged["segments"][:1], False)
    assert (reverted["before"]["rows"], reverted["after"]["rows"]) == (10, 0)
    assert segments.json("revert", "t", entry, "--identity", "r")["already"] is True
    back = segments.json("unrevert", "t", "latest")
    assert (back["reappeared"], back["before"]["rows"], back["after"]["rows"]) == (staged["segments"][:1], 0, 10)


def test_from_and_to_are_given_by_name(segments: CommandLine) -> None:
    segments.make_table("t", "APPEND", **DAILY)
    segments.push(1, 2, 3)
    names = sorted(segments.json("lineage", "t")["entries"][0]["segments_to"])
    one = segments.json("start", "t", "--from", ",".join(names[:2]), "--to", "x,y", "--to", "z")
    assert (sorted(one["segments_from"]), one["segments_to"]) == (names[:2], ["x", "y", "z"])
    forced = segments.ok("start", "t", "--from-all", "--force").out
    assert f"reverted entry {one['entry_id']}, which was in the way" in forced
    assert "replacing 3 segments" in forced
    assert segments.json("start", "t", "--from-none")["segments_from"] == []
    assert segments("start", "t", "--from-none", "--from-all").code == 2


def test_lineage_fits_a_hundred_columns(segments: CommandLine) -> None:
    segments.make_table("a_table_with_a_rather_long_name", **DAILY)
    assert "no lineage entries" in segments("lineage", "a_table_with_a_rather_long_name").err
    first = segments.push(1, 2, table="a_table_with_a_rather_long_name")
    second = segments.push(3, table="a_table_with_a_rather_long_name")
    segments.json("start", "a_table_with_a_rather_long_name")
    lines = segments.ok("lineage", "a_table_with_a_rather_long_name").out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == ["ENTRY", "STATE", "SINCE", "(UTC)", "AGE", "FROM", "TO"]
    by_entry = {line.split()[0]: line for line in lines[1:]}
    assert by_entry[second[:8]].endswith("latest")
    assert "COMPLETED" in by_entry[first[:8]]
    assert not by_entry[first[:8]].endswith("latest")
    assert sum("IN_PROGRESS" in line for line in lines) == 1


def test_snapshot_shows_totals_ranges_files_and_the_past(segments: CommandLine) -> None:
    segments.make_table(**DAILY)
    first = segments.push(1, 2, 3)
    segments.push(9)
    text = segments.ok("snapshot", "t").out
    assert [line.split()[:2] for line in text.splitlines()][:3] == [["table", "t"], ["rows", "10"], ["segments", "1"]]
    assert "2013-01-09 to 2013-01-09" in text
    past = segments.json("snapshot", "t", "--as-of", first[:8], "--start", "2013-01-02", "--end", "2013-01-03T00:00Z")
    assert (past["rows"], past["interval"]) == (10, "2013-01-02T00:00:00Z/2013-01-03T00:00:00Z")
    assert [chunk["chunk"] for chunk in past["chunks"]] == ["2013-01-02"]
    urls = segments.ok("snapshot", "t", "--as-of", first, "--files").out.splitlines()
    assert [pq.read_table(url.removeprefix("file://")).num_rows for url in urls] == [10, 10, 10]
    assert segments.json("snapshot", "t", "--as-of", first, "--files")["files"] == urls
    assert "as of" in segments.ok("snapshot", "t", "--as-of", first).out
    assert segments("snapshot", "t", "--start", "2013-01-02", "--end", "2013-01-02").code == 2


def test_staged_objects_carry_their_owner(segments: CommandLine) -> None:
    from airflow_provider_segments.core.storage import open_store

    segments.make_table()
    entry = segments.json("start", "t")["entry_id"]
    staged = segments.json("stage", "t", entry, parquet(segments.folder, 1))
    store = open_store((segments.folder / "store").as_uri())
    (listed,) = store.list(f"t/{entry}/")
    info = store.head(listed.key)
    assert info is not None
    assert (info.owner["table"], info.owner["segment"]) == ("t", staged["segments"][0])
    assert info.owner["generation"].startswith(entry)


def bad_files(folder: Path) -> list[tuple[Path, str]]:
    text = folder / "text.parquet"
    text.write_text("no")
    empty = parquet(folder, 1, rows=0)
    other = folder / "other.parquet"
    pq.write_table(pa.table({"n": [1]}), other)
    hole = folder / "hole.parquet"
    pq.write_table(pa.table({"at": pa.array([0, None], pa.timestamp("us"))}), hole)
    blind = folder / "blind.parquet"
    pq.write_table(pa.table({"at": pa.array([0], pa.timestamp("us"))}), blind, write_statistics=False)
    return [
        (text, "not a readable Parquet file"),
        (folder / "absent.parquet", "not a readable Parquet file"),
        (empty, "has no rows"),
        (other, "has no column 'at'"),
        (hole, "1 row without a time"),
        (blind, "--chunk"),
        (parquet(folder, 1, 2), "spans the DAY chunks 2013-01-01 to 2013-01-02"),
    ]


def test_file_that_cannot_become_a_segment_is_refused_and_leaves_nothing(segments: CommandLine) -> None:
    segments.make_table(**DAILY)
    entry = segments.json("start", "t")["entry_id"]
    good = parquet(segments.folder, 1)
    for bad, says in bad_files(segments.folder):
        refused = segments("stage", "t", entry, good, bad)
        assert (refused.code, refused.out) == (1, "")
        assert says in refused.err
        assert refused.err.startswith("error: ")
    assert not (segments.folder / "store" / "t").exists()
    blind = segments.folder / "blind.parquet"
    assert segments("stage", "t", entry, good, "--chunk", "2013-01-02").code == 1
    assert segments.json("stage", "t", entry, blind, "--chunk", "1970-01-01")["rows"] == 1
