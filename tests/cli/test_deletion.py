"""Retention, deletion, dead letters and leases, as a person would type them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.model.ledger import (
    DeletionBatch,
    LedgerType,
    OffloadContext,
    PendingDeleteLedgerInfo,
)
from airflow_provider_segments.core.table import SegmentStore
from tests.cli.conftest import DAILY, CommandLine, said_to

ENTRY = "00000000-0000-4000-8000-000000000001"


@pytest.fixture
def store(segments: CommandLine) -> Iterator[SegmentStore]:
    """The store behind the command line, with a consumer that gives up at once."""
    hosts, cluster, storage = (os.environ[f"SEGMENTS_{name}"] for name in ("ZOOKEEPER", "CLUSTER", "STORAGE"))
    settings = DeletionSettings(max_retry_delete_count=0)
    with SegmentStore.connect(hosts, cluster, storage, deletion=settings) as opened:
        yield opened


@pytest.fixture
def rolled_back(segments: CommandLine) -> str:
    """Two pushes of a REFRESH table, the second one (of two segments) rolled back. Its entry."""
    kept = {"segmentsConfig": {**DAILY["segmentsConfig"], "revertedSegmentsRetentionPeriod": "0s"}}
    segments.make_table(**(DAILY | kept))
    segments.push(1, 2, 3)
    entry = segments.push(4, 5)
    segments.ok("revert", "t", "latest")
    return entry


def objects(segments: CommandLine) -> list[Path]:
    return sorted((segments.folder / "store" / "t").rglob("*.parquet"))


def dead_letter(store: SegmentStore, name: str = "x") -> None:
    """A message about a copy in a tiered storage that this store does not have, given up."""
    nowhere = OffloadContext("s3", "nowhere", ENTRY)
    ledgers = (PendingDeleteLedgerInfo(name, f"{name}.parquet", 2048),)
    batch = DeletionBatch("t", ENTRY, f"{ENTRY}:1:b:1", ledgers, LedgerType.OFFLOAD_LEDGER, offload=nowhere)
    store.queue.send([batch])
    store.deleter().drain()


def test_retention_then_drain_frees_a_rolled_back_push(segments: CommandLine, rolled_back: str) -> None:
    dry = segments.ok("retention", "t", "--dry-run").out
    assert ".." not in dry, "a reason is never cut"
    [row] = [line.split() for line in dry.splitlines() if rolled_back[:8] in line]
    assert row[:4] == ["t", "mark", rolled_back[:8], "2"]
    assert "t: dry run, nothing was changed: marked for deletion 2 segments (" in dry
    assert len(objects(segments)) == 5
    [report] = segments.json("retention", "--all")
    assert (report["totals"]["marked_segments"], report["dry_run"]) == (2, False)
    waiting = segments.json("deletions")
    assert (waiting["in_flight"], waiting["pending"], waiting["dead"]) == (2, 2, 0)
    assert segments.ok("deletions").out.startswith("in flight     2\npending       2\n")
    drained = segments.ok("drain").out
    assert drained.startswith("deleted 2 objects (")
    assert "of 2 messages" in drained
    assert len(objects(segments)) == 3
    assert segments.json("snapshot", "t")["segments"] == 3
    assert segments.ok("deletions", "--watch").out.startswith("0 in flight")
    assert segments.json("drain")["received"] == 0


def test_drain_keeps_to_its_limits_and_says_what_is_left(segments: CommandLine, rolled_back: str) -> None:
    segments.ok("retention", "t")
    done = segments.ok("drain", "--max-seconds", "0.000001").out
    assert done.splitlines()[0].startswith("deleted 0 objects")
    assert "stopped at the time limit" in done
    assert "2 messages still in flight; next due now" in done


def test_leftovers_are_marked_by_name_or_by_entry_and_nothing_else(segments: CommandLine, rolled_back: str) -> None:
    entries = {one["entry_id"]: one for one in segments.json("lineage", "t")["entries"]}
    lost = entries[rolled_back]["segments_to"]
    shown = next(one for one in entries.values() if one["entry_id"] != rolled_back)["segments_to"]
    refused = segments("mark", "t", lost[0], shown[0])
    assert (refused.code, refused.out) == (1, "")
    assert "[visible]" in refused.err
    assert segments("mark", "t").code == segments("mark", "t", "x", "--entry", "y").code == 2
    assert segments.ok("mark", "t", lost[0]).out == "table t: 1 segment marked for deletion\n"
    report = segments.json("mark", "t", "--entry", rolled_back[:8])
    assert (report["segments"], report["sent"], report["swept"]) == (1, {"Ledger": 1}, rolled_back)
    assert segments.json("drain")["deleted"] == 2
    assert "[completed]" in segments("mark", "t", "--entry", "latest").err


def test_dead_letters_are_listed_redriven_and_purged(segments: CommandLine, store: SegmentStore) -> None:
    segments.make_table(**DAILY)
    assert "no dead letters" in segments("dead-letters", "list").err
    dead_letter(store, "x")
    dead_letter(store, "y")
    text = segments.ok("dead-letters", "list").out
    assert max(map(len, text.splitlines())) <= 100
    assert [line.split()[1:3] for line in text.splitlines()[1:]] == [["t", "tiered"]] * 2
    assert "offloaded to s3://nowhere" in text
    letters = segments.json("dead-letters", "list")
    assert sorted(one["segments"] for one in letters) == [["x"], ["y"]]
    assert {(one["attempts"], one["bytes"], one["table"]) for one in letters} == {(1, 2048, "t")}
    assert "dead-letters list" in segments("deletions").err
    assert segments("dead-letters", "redrive").code == 2
    assert segments("dead-letters", "redrive", "nothing").code == 1
    assert segments.ok("dead-letters", "redrive", letters[0]["id"][:6]).out == "1 message enqueued anew\n"
    assert (segments.json("deletions")["in_flight"], segments.json("deletions")["dead"]) == (1, 1)
    assert segments.ok("dead-letters", "purge", "--all").out.startswith("1 message purged\ntheir objects stay")
    assert segments.json("deletions")["dead"] == 0


def test_leases_say_who_reads_and_drain_says_whom_it_waits_for(
    segments: CommandLine, store: SegmentStore, rolled_back: str
) -> None:
    assert "no reader" in segments("leases").err
    segments.ok("drain")
    with store.table("t").snapshot(owner="report of ada"):
        text = segments.ok("leases", "t").out
        assert "report of ada" in text
        [lease] = segments.json("leases")
        assert (lease["table"], lease["owner"]) == ("t", "report of ada")
        segments.ok("retention", "t")
        waits = segments.ok("drain").out
        assert "2 wait for readers or writers" in waits
        assert "leased by report of ada" in waits
        assert "next due in 9m" in waits
    assert segments.json("leases") == []
    assert len(objects(segments)) == 5


def test_reconcile_and_offload_report_each_table(
    segments: CommandLine, rolled_back: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [found] = segments.json("reconcile", "--all")
    assert (found["referenced"]["count"], found["hidden"]["count"], found["orphans"]["count"]) == (3, 2, 0)
    text = segments.ok("reconcile", "t", "--grace", "1h").out
    assert "t: 5 objects, nothing is lost or forgotten" in text
    assert ["t", "referenced", "3"] in [line.split()[:3] for line in text.splitlines()]
    with pytest.raises(SystemExit):
        segments("offload", "t")
    refused = segments("offload", "t", "--older-than", "0s")
    assert refused.code == 1
    assert "tiered" in refused.err
    monkeypatch.setenv("SEGMENTS_TIERED_URI", (segments.folder / "cold").as_uri())
    [report] = segments.json("offload", "t", "--older-than", "0s", "--primary-lag", "1d")
    assert (report["offloaded"], report["primary_marked"]) == (3, 0)
    assert "offloaded" in segments.ok("offload", "t", "--older-than", "0s").out


def test_tables_are_named_or_all_of_them(segments: CommandLine) -> None:
    for command in (["retention"], ["reconcile"], ["offload", "--older-than", "1d"]):
        assert segments(*command).code == 2
    with pytest.raises(SystemExit):
        segments("reconcile", "t", "--grace", "soon")


def test_watching_in_json_is_refused(segments: CommandLine) -> None:
    assert segments("deletions", "--watch", "--json").code == 2


def test_drain_shows_its_progress_on_a_terminal_and_wipes_it(segments: CommandLine, rolled_back: str) -> None:
    segments.ok("retention", "t")
    terminal, other_end = os.openpty()
    command = [sys.executable, "-m", "airflow_provider_segments.cli.main", "drain"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=other_end, text=True, check=True)
    os.close(other_end)
    shown = said_to(terminal).decode()
    assert "\r\x1b[K2 messages, 2 objects deleted, 1.6 KiB" in shown
    assert shown.endswith("\r\x1b[K")
    assert done.stdout.startswith("deleted 2 objects")
