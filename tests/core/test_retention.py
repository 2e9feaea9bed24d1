"""Retention: what goes, when and why; that a dry run says the same and writes nothing; that what lives is kept.

The part that is about the lineage's two cycles is in ``test_protocol.py``, the kills at every write in
``test_crash.py``.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.period import format_period, parse_period
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.replacement.end import end
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.replacement.start import StartOptions, start
from airflow_provider_segments.core.retention import cleanup, expiry
from airflow_provider_segments.core.retention.rules import WRITE_GRACE_MS
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from airflow_provider_segments.exceptions import RecordTooLargeError, RevertRefusedError, StageRefusedError
from tests.support.sessions import settings
from tests.support.tables import (
    DAY_MS,
    HOUR_MS,
    JANUARY_1,
    HandClock,
    build,
    make_table,
    named,
    on_clock,
    on_session,
    push,
    queued_sweeps,
    registered,
    stage,
    states,
    unchanged,
    visible,
)

WEEK = {"retentionTimeUnit": "DAYS", "retentionTimeValue": "7"}
DAYS = ("2013-01-01", "2013-01-02", "2013-01-03", "2013-01-04")


@pytest.fixture
def hand() -> HandClock:
    """A clock moved by hand; it begins with the year that the segments are of."""
    return HandClock(JANUARY_1)


@pytest.fixture
def timed(store: SegmentStore, hand: HandClock) -> SegmentStore:
    """The store under that clock."""
    return on_clock(store, hand.clock())


@pytest.fixture
def table(timed: SegmentStore) -> Table:
    """An APPEND table that keeps a week."""
    return make_table(timed, **WEEK)


def settled(table: Table, hand: HandClock, names: Sequence[str], **how: Any) -> None:
    """A push that no lineage entry holds any more."""
    entry_id = table.start().entry_id
    stage(table, entry_id, names, **how)
    table.end(entry_id)
    let_go(table, hand)


def let_go(table: Table, hand: HandClock) -> None:
    """Let clean-up drop every completed entry, in no time."""
    hand.advance(4 * HOUR_MS + 1)
    while table.cleanup().dropped:
        pass
    hand.advance(-4 * HOUR_MS - 1)


def stage_records(table: Table, *records: tuple[str, str, int | None]) -> None:
    """Push segments of given name, chunk and greatest time, and let go of them."""
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    segments = []
    for one in build(table, ticket, [name for name, _, _ in records]):
        name, chunk, last = next(wanted for wanted in records if wanted[0] == one.record.name)
        record = SegmentRecord(name, one.record.file, 1, one.record.bytes, 7, None if last is None else 0, last)
        segments.append(StagedSegment(chunk, record))
    table.stage(ticket, segments)
    table.end(entry_id)


def put(table: Table, ticket: StageTicket, name: str, folder: Path) -> str:
    """An object that says whose it is, as a build writes it; nobody registers it. Returns its key."""
    file = folder / name
    file.write_bytes(b"data")
    key = f"{ticket.prefix}{name}.{ticket.stager}.{ticket.attempt}.parquet"
    table.storage.put_file(file, key, owner=owner_metadata(table.name, name, ticket.generation))
    return key


def drain(table: Table) -> None:
    """The second phase, until nothing is due."""
    table.store.deleter().drain()


# --- time retention: what goes


def test_a_segment_goes_when_its_last_row_is_older_than_the_retention(table: Table, hand: HandClock) -> None:
    """Strictly older, as in Pinot: by its own greatest time, whatever its chunk."""
    settled(table, hand, ["a", "b"])
    hand.now_ms = JANUARY_1 + 1 + 7 * DAY_MS
    assert table.retain().expired == []
    hand.advance(1)
    report = table.retain()
    (expired,) = report.expired
    assert (expired.freed.segments, expired.freed.bytes) == (1, 1)
    assert "retentionTimeValue (7d)" in expired.reason
    assert visible(table) == {"b"}
    assert table.retain().expired == []
    hand.advance(DAY_MS)
    table.retain()
    assert visible(table) == set()


def test_a_segment_without_times_goes_when_its_whole_chunk_is_older(table: Table, hand: HandClock) -> None:
    stage_records(table, ("day", "2013-01-01", None), ("hour", "2013-01-01T05", None), ("month", "2013-01", None))
    let_go(table, hand)
    hand.now_ms = JANUARY_1 + 7 * DAY_MS + 6 * HOUR_MS - 1
    assert table.retain().expired == []
    hand.advance(1)
    table.retain()
    assert visible(table) == {"day", "month"}
    hand.now_ms = JANUARY_1 + 8 * DAY_MS
    table.retain()
    assert visible(table) == {"month"}


def test_a_segment_in_chunk_all_goes_by_its_own_time_only(table: Table, hand: HandClock) -> None:
    stage_records(table, ("timeless", "ALL", None), ("old", "ALL", JANUARY_1), ("new", "ALL", JANUARY_1 + 90 * DAY_MS))
    let_go(table, hand)
    hand.now_ms = JANUARY_1 + 30 * DAY_MS
    (skipped,) = table.retain().skipped
    assert visible(table) == {"timeless", "new"}
    assert (skipped.freed.segments, skipped.reason) == (1, "in chunk ALL, and without a time of its own")


def test_segments_that_a_live_lineage_entry_holds_are_skipped_and_named(table: Table, hand: HandClock) -> None:
    """In the ``from`` of a push in progress, or in the ``to`` of a completed one that can still be reverted. (Pinot
    scenario 54.)"""
    settled(table, hand, ["a", "b", "c"], chunks=DAYS[:1])
    hand.advance(30 * DAY_MS)
    fresh = push(table, ["d"])
    running = push(table, ["e"], ["b"], end=False)
    report = table.retain()
    assert visible(table) == {"b", "d"}
    assert {one.entry_id: one.freed.segments for one in report.skipped} == {fresh: 1, running: 1}
    table.end(running)
    hand.advance(4 * HOUR_MS + 1)
    for _ in range(3):
        table.retain()
    assert visible(table) == set()


def test_what_a_live_entry_holds_would_otherwise_stop_its_own_rollback(
    table: Table, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert test of that rule: without it, a bad push of old data could no longer be rolled back."""
    hand.advance(30 * DAY_MS)
    entry_id = push(table, ["a"])
    monkeypatch.setattr(expiry.Aged, "free", lambda aged: list(aged.sizes))
    table.retain()
    with pytest.raises(RevertRefusedError, match="built-upon"):
        table.revert(entry_id)


def test_a_refresh_table_and_one_without_a_retention_keep_everything(timed: SegmentStore, hand: HandClock) -> None:
    refresh, endless = make_table(timed, "r", "REFRESH", **WEEK), make_table(timed, "e")
    push(refresh, ["a"])
    push(endless, ["a"])
    hand.advance(365 * DAY_MS)
    assert visible(refresh) == visible(endless) == {"a"}
    assert [one.reason.partition(",")[0] for one in refresh.retain().skipped] == ["time retention is for APPEND tables"]
    assert not endless.retain().skipped
    assert visible(refresh) == visible(endless) == {"a"}


# --- time retention: one replacement


def test_an_expiry_is_one_replacement_that_can_be_reverted_until_it_is_cleaned(table: Table, hand: HandClock) -> None:
    settled(table, hand, ["a", "b", "c", "d"], chunks=DAYS)
    hand.advance(8 * DAY_MS + HOUR_MS)
    with table.snapshot() as before:
        (expired,) = table.retain().expired
        assert set(before.names) == {"a", "b", "c", "d"}
    entry = table.lineage().entries[expired.entry_id]
    assert (set(entry.segments_from), entry.segments_to, entry.state) == ({"a", "b"}, (), EntryState.COMPLETED)
    assert visible(table) == {"c", "d"} and registered(table) == {"a", "b", "c", "d"}
    table.revert(expired.entry_id)
    assert visible(table) == {"a", "b", "c", "d"}
    (again,) = table.retain().expired
    assert again.entry_id != expired.entry_id and visible(table) == {"c", "d"}
    hand.advance(4 * HOUR_MS + 1)
    report = table.retain()
    assert report.marked[again.entry_id].freed.segments == 2
    assert registered(table) == visible(table) == {"c", "d"}
    with pytest.raises(RevertRefusedError, match="replaced-are-deleted"):
        table.revert(again.entry_id)
    assert again.entry_id in table.retain().dropped
    assert not table.lineage().entries


def test_an_expiry_that_a_killed_pass_announced_is_ended_by_the_next(table: Table, hand: HandClock) -> None:
    settled(table, hand, ["a"], chunks=DAYS[:1])
    hand.advance(30 * DAY_MS)
    left = start(table._context, ["a"], (), StartOptions(identity=expiry.IDENTITY)).entry_id
    (expired,) = table.retain().expired
    assert expired.entry_id == left and states(table)[left] == "COMPLETED"
    assert visible(table) == set()


def test_under_another_identity_what_a_killed_pass_left_stands_in_the_way(
    table: Table, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert test: a pass that does not know its own work skips what it holds until it is aborted for its age."""
    settled(table, hand, ["a"], chunks=DAYS[:1])
    hand.advance(30 * DAY_MS)
    start(table._context, ["a"], (), StartOptions(identity=expiry.IDENTITY))
    monkeypatch.setattr(expiry, "IDENTITY", "somebody-else")
    assert not table.retain().expired and visible(table) == {"a"}


def test_an_announced_expiry_is_reverted_when_the_retention_was_lengthened_since(
    timed: SegmentStore, table: Table, hand: HandClock
) -> None:
    settled(table, hand, ["a"], chunks=DAYS[:1])
    hand.advance(30 * DAY_MS)
    left = start(table._context, ["a"], (), StartOptions(identity=expiry.IDENTITY)).entry_id
    make_table(timed, retentionTimeUnit="DAYS", retentionTimeValue="60")
    planned = table.retain(dry_run=True)
    report = table.retain()
    assert [one.entry_id for one in planned.skipped] == [one.entry_id for one in report.skipped] == [left]
    assert "is reverted" in report.skipped[0].reason
    assert states(table)[left] == "REVERTED" and visible(table) == {"a"}


def test_a_forced_push_that_takes_over_what_is_about_to_expire_keeps_it(
    table: Table, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reverts the expiry between its start and its end; the pass says so, and goes on with the others."""
    settled(table, hand, ["a", "b"], chunks=DAYS[:1])
    hand.advance(30 * DAY_MS)
    pushes: list[str] = []

    def overtaken(context: TableContext, entry_id: str, **how: Any) -> object:
        if not pushes:
            pushes.append(table.start(["a"], force_cleanup=True).entry_id)
        return end(context, entry_id, **how)

    monkeypatch.setattr(expiry, "end", overtaken)
    report = table.retain()
    assert visible(table) == {"a"}
    assert [one.freed.segments for one in report.expired] == [1]
    assert ["has no lineage entry" in one.reason for one in report.skipped] == [True, False]
    assert report.skipped[1].entry_id == pushes[0]


def test_passes_beside_each_other_expire_everything_once(
    table: Table, hand: HandClock, zk_hosts: str, timed: SegmentStore
) -> None:
    settled(table, hand, [f"s{number}" for number in range(40)], chunks=DAYS[:1])
    hand.advance(30 * DAY_MS)
    sessions = [ZooKeeperSession.connect(settings(zk_hosts)) for _ in range(4)]
    failures: list[Exception] = []

    def work(session: ZooKeeperSession) -> None:
        try:
            on_session(timed, session).table("t").retain()
        except Exception as error:
            failures.append(error)

    threads = [Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for session in sessions:
        session.close()
    assert not failures
    assert visible(table) == set()
    removed = [name for entry in table.lineage() if entry.is_live for name in entry.segments_from]
    assert len(removed) == len(set(removed)) == 40


def test_an_expiry_of_more_segments_than_a_lineage_can_hold_goes_on_in_later_passes(
    table: Table, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest first, each part atomic, and always with room left for the pushes of others."""
    names = [f"{number:04d}.{'x' * 40}" for number in range(400)]
    settled(table, hand, names, chunks=DAYS)
    hand.advance(30 * DAY_MS)
    monkeypatch.setattr(expiry, "_FEWEST", 20)
    monkeypatch.setattr(expiry, "_ROOM", 800)
    planned = table.retain(dry_run=True)
    report = table.retain()
    assert foretold(report.as_dict()) == foretold(planned.as_dict() | {"dry_run": False})
    gone = sum(one.freed.segments for one in report.expired)
    assert 0 < gone < 400 and len(visible(table)) == 400 - gone
    left = [one for one in report.skipped if "no room" in one.reason]
    assert [one.freed.segments for one in left] == [400 - gone]
    oldest_first = sorted(names, key=lambda name: (int(name[:4]) % 4, name))
    assert set(names) - visible(table) == set(oldest_first[:gone])
    assert not table.retain().expired
    for _ in range(40):
        hand.advance(4 * HOUR_MS + 1)
        table.retain()
    assert visible(table) == set()


def test_without_that_limit_an_expiry_fails_for_ever(
    table: Table, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert test, at the real limit: 9,000 long names that hardly compress are more than a lineage can hold."""
    names = [hashed(number) for number in range(9_000)]
    for first in (0, 4_500):
        settled(table, hand, names[first : first + 4_500], chunks=DAYS[:1])
    hand.advance(30 * DAY_MS)
    with monkeypatch.context() as patch:
        patch.setattr(expiry, "_has_room", lambda *_: True)
        for _ in range(2):
            with pytest.raises(RecordTooLargeError):
                table.retain()
    (expired,) = table.retain().expired
    assert 1000 < expired.freed.segments < 9_000
    assert len(table.snapshot().names) == 9_000 - expired.freed.segments


def hashed(number: int) -> str:
    """A name that gzip can do little with."""
    digests = b"".join(sha256(f"{number}.{part}".encode()).digest() for part in range(4))
    return "t_" + urlsafe_b64encode(digests).decode()


# --- dry run


def everything_at_once(table: Table, hand: HandClock) -> None:
    """A table with an entry for every rule."""
    settled(table, hand, ["a", "b", "c", "d"], chunks=DAYS)
    stage_records(table, ("timeless", "ALL", None))
    table.revert(push(table, ["f"]))
    push(table, ["g", "h"], end=False)
    hand.advance(30 * DAY_MS)
    push(table, ["i"], ["d"])
    push(table, ["j"], end=False)
    table.revert(push(table, ["k"]))
    start(table._context, ["b"], (), StartOptions(identity=expiry.IDENTITY))


def foretold(report: dict[str, Any]) -> dict[str, Any]:
    """What a dry run can know of a report: an entry that is yet to be made has no id."""
    expired = [{key: value for key, value in one.items() if key != "entry_id"} for one in report["expired"]]
    return report | {"expired": expired}


@pytest.mark.parametrize("prepare", [everything_at_once, lambda table, hand: None], ids=["everything", "nothing"])
def test_a_dry_run_writes_nothing_and_says_what_the_pass_then_does(
    table: Table, hand: HandClock, prepare: Callable[[Table, HandClock], None]
) -> None:
    """Cycle after cycle, to the end."""
    prepare(table, hand)
    for _ in range(5):
        unchanged(table.store, lambda: table.retain(dry_run=True))
        planned = table.retain(dry_run=True).as_dict()
        done = table.retain().as_dict()
        assert planned["dry_run"] and foretold(planned | {"dry_run": False}) == foretold(done)
        assert json.loads(json.dumps(done)) == done
        hand.advance(25 * HOUR_MS)


def test_the_report_says_what_went_and_why(table: Table, hand: HandClock) -> None:
    everything_at_once(table, hand)
    report = table.retain().as_dict()
    assert set(report) == {"table", "dry_run", "aborted", "expired", "marked", "dropped", "kept", "skipped", "totals"}
    assert report["totals"] == {
        "aborted": 1,
        "expired_segments": 3,
        "expired_bytes": 3,
        "marked_segments": 3,
        "marked_bytes": 3,
        "dropped": 1,
    }
    (aborted,) = report["aborted"].values()
    assert aborted == "IN_PROGRESS for 30d, longer than lineageEntryCleanupRetentionPeriod (1d)"
    assert report["kept"] and all("not longer than" in reason for reason in report["kept"].values())
    assert all(one["segments"] == one["bytes"] for one in report["marked"].values())


def test_a_pass_over_a_table_with_nothing_to_do_writes_nothing(table: Table, hand: HandClock) -> None:
    push(table, ["a"])
    unchanged(table.store, table.retain)


# --- sweeps


def test_what_a_killed_build_left_goes_soon_after_its_push_was_reverted(table: Table, tmp_path: Path) -> None:
    """Not only when the tombstone is dropped."""
    entry_id = table.start().entry_id
    key = put(table, table.open_stage(entry_id), "x", tmp_path)
    drain(table)
    assert table.storage.head(key) is not None
    table.revert(entry_id, force=True)
    drain(table)
    assert table.storage.head(key) is None
    assert states(table) == {entry_id: "REVERTED"}


def test_so_does_what_an_aborted_push_and_one_that_a_forced_start_reverted_left(
    table: Table, hand: HandClock, tmp_path: Path
) -> None:
    old = table.start().entry_id
    keys = [put(table, table.open_stage(old), "x", tmp_path)]
    hand.advance(DAY_MS + 1)
    table.cleanup()
    forced = table.start((), ["y"]).entry_id
    keys.append(put(table, table.open_stage(forced), "y", tmp_path))
    table.start((), ["y"], force_cleanup=True)
    drain(table)
    assert [table.storage.head(key) for key in keys] == [None, None]


def test_without_the_first_sweep_it_stays_until_the_tombstone_goes(
    table: Table, tmp_path: Path, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert test."""
    entry_id = table.start().entry_id
    key = put(table, table.open_stage(entry_id), "x", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(TableContext, "sweep", lambda *_, **__: [])
        table.revert(entry_id, force=True)
    drain(table)
    assert table.storage.head(key) is not None
    hand.advance(WRITE_GRACE_MS + 1)
    table.cleanup()
    drain(table)
    assert table.storage.head(key) is None


def test_an_object_that_lands_after_the_first_sweep_is_found_by_the_second(
    table: Table, hand: HandClock, tmp_path: Path
) -> None:
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    table.revert(entry_id, force=True)
    drain(table)
    key = put(table, ticket, "late", tmp_path)
    hand.advance(WRITE_GRACE_MS + 1)
    assert table.cleanup().dropped == [entry_id]
    drain(table)
    assert table.storage.head(key) is None


def test_what_superseded_attempts_and_zombies_of_a_completed_push_left_goes_with_its_entry(
    table: Table, hand: HandClock, tmp_path: Path
) -> None:
    """Not before the longest late write can be over, and never what the push brought."""
    entry_id = table.start().entry_id
    zombie = table.open_stage(entry_id)
    lost = put(table, zombie, "lost", tmp_path)
    ticket = table.open_stage(entry_id)
    key = put(table, ticket, "a", tmp_path)
    record = SegmentRecord("a", key.removeprefix(ticket.prefix), 1, 4, 7, JANUARY_1, JANUARY_1)
    table.stage(ticket, [StagedSegment("2013-01-01", record)])
    table.end(entry_id)
    hand.advance(4 * HOUR_MS + 1)
    late = put(table, zombie, "late", tmp_path)
    assert table.cleanup().dropped == [entry_id]
    (request,) = queued_sweeps(table.store)
    assert (request.reason, request.entry_id) == ("completed", entry_id)
    drain(table)
    assert [table.storage.head(one) for one in (lost, late)] == [None, None]
    assert visible(table) == {"a"}


def test_the_sweep_of_a_completed_push_waits_for_the_longest_write(timed: SegmentStore, hand: HandClock) -> None:
    table = make_table(timed, replacedSegmentsRetentionPeriod="0s")
    completed_ms = hand.now_ms
    push(table, ["a"])
    hand.advance(1)
    table.cleanup()
    assert [one.not_before_ms for one in queued_sweeps(table.store)] == [completed_ms + WRITE_GRACE_MS]


def test_an_entry_into_which_nothing_was_ever_staged_asks_for_no_sweep(table: Table, hand: HandClock) -> None:
    table.revert(table.start().entry_id, force=True)
    hand.advance(WRITE_GRACE_MS + 1)
    assert len(table.cleanup().dropped) == 1
    assert not queued_sweeps(table.store)


def settled_by_another_tool(table: Table, state: EntryState = EntryState.REVERTED) -> tuple[str, StageTicket]:
    """A push under way whose entry Pinot ends or reverts: it knows nothing of our guard."""
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    records = table._context.records
    stored = records.read()
    theirs = stored.lineage.entries[entry_id].moved_to(state, table.store.clock.now_ms())
    table.store.session.commit([records.write(stored, stored.lineage.put(theirs))])
    return entry_id, ticket


def test_an_entry_that_another_tool_reverted_is_closed_and_swept_by_the_next_pass(table: Table, tmp_path: Path) -> None:
    entry_id, ticket = settled_by_another_tool(table)
    key = put(table, ticket, "x", tmp_path)
    table.cleanup()
    with pytest.raises(StageRefusedError, match="reverted"):
        table.stage(ticket, build(table, ticket, ["y"]))
    drain(table)
    assert table.storage.head(key) is None
    assert states(table) == {entry_id: "REVERTED"}


def test_one_that_another_tool_ended_takes_no_more_segments_and_leaves_in_time(table: Table, hand: HandClock) -> None:
    """Its build would otherwise stage what is visible at once."""
    entry_id, ticket = settled_by_another_tool(table, EntryState.COMPLETED)
    table.cleanup()
    with pytest.raises(StageRefusedError, match="completed"):
        table.stage(ticket, build(table, ticket, ["y"]))
    hand.advance(4 * HOUR_MS + 1)
    assert table.cleanup().dropped == [entry_id]
    assert visible(table) == set()


def test_unless_it_is_closed_it_is_not_dropped(table: Table, hand: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The revert test: a build that goes on could register what appears once the entry is gone."""
    entry_id, ticket = settled_by_another_tool(table)
    monkeypatch.setattr(cleanup, "_settle_guards", lambda context: None)
    hand.advance(WRITE_GRACE_MS + 1)
    assert not table.cleanup().dropped
    table.stage(ticket, build(table, ticket, ["y"]))
    assert registered(table) == {"y"} and visible(table) == set()
    assert states(table) == {entry_id: "REVERTED"}


def test_a_forced_start_that_died_before_it_marked_anything_is_finished_by_its_retry(table: Table) -> None:
    first = table.start((), ["a"]).entry_id
    stage(table, first, ["a"])
    start(table._context, (), ["a"], StartOptions(identity="me", force_cleanup=True))
    assert registered(table) == {"a"}
    assert table.start((), ["a"], identity="me", force_cleanup=True).resumed
    assert registered(table) == set()


# --- quota


def with_quota(store: SegmentStore, quota: int | str | None) -> Table:
    """The table ``t`` with a storage quota."""
    document: dict[str, Any] = {"tableName": "t", "segmentsConfig": {"timeColumnName": "ts"}}
    if quota is not None:
        document["quota"] = {"storage": str(quota)}
    store.apply_config(TableConfig.from_json(document))
    return store.table("t")


def over_quota(table: Table, ticket: StageTicket, segments: list[StagedSegment]) -> StageRefusedError:
    """The refusal, after making sure that nothing was changed."""
    errors: list[StageRefusedError] = []

    def act() -> None:
        with pytest.raises(StageRefusedError) as caught:
            table.stage(ticket, segments)
        errors.append(caught.value)

    unchanged(table.store, act)
    assert errors[0].rule == "quota"
    return errors[0]


def test_a_stage_that_would_exceed_the_quota_is_refused_with_both_numbers(timed: SegmentStore) -> None:
    table = with_quota(timed, 5)
    push(table, ["aa", "bb"])
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    refused = str(over_quota(table, ticket, build(table, ticket, ["cc"])))
    assert "would occupy 6 bytes" in refused and "quota.storage is 5 bytes" in refused and entry_id in refused
    stage(table, entry_id, ["c"])
    table.end(entry_id)
    assert visible(table) == {"aa", "bb", "c"}


def test_hidden_and_staged_segments_count_until_they_are_marked(timed: SegmentStore, hand: HandClock) -> None:
    table = with_quota(timed, 4)
    push(table, ["a"])
    push(table, ["b"], ["a"])
    push(table, ["c"], end=False)
    aborted = push(table, ["d"], end=False)
    table.abort(aborted)
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    segments = build(table, ticket, ["e"])
    over_quota(table, ticket, segments)
    table.cleanup()
    table.stage(ticket, segments)
    assert registered(table) == {"a", "b", "c", "e"}


def test_a_stage_that_landed_succeeds_again_and_a_retried_task_is_not_refused_for_its_first_try(
    timed: SegmentStore,
) -> None:
    table = with_quota(timed, 3)
    entry_id = table.start().entry_id
    first = table.open_stage(entry_id)
    segments = build(table, first, ["aa"])
    table.stage(first, segments)
    with_quota(timed, 1)
    assert table.stage(first, segments).bytes == 2
    with_quota(timed, 3)
    stage(table, entry_id, ["aa"])
    table.end(entry_id)
    assert visible(table) == {"aa"}


def test_without_that_exception_the_retry_is_refused(timed: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The revert test."""
    table = with_quota(timed, 30)
    entry_id = table.start().entry_id
    names = named(table, entry_id, 1)
    stage(table, entry_id, names)
    stage(table, entry_id, names)
    read = table._context.registry.read
    monkeypatch.setattr(table._context.registry, "read", lambda wanted, interval=None: read(lambda _: True, interval))
    with pytest.raises(StageRefusedError, match="quota"):
        stage(table, entry_id, names)


def test_a_table_without_a_quota_pays_nothing_for_it(timed: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the config nor the registry is read; a quota set later counts for the pushes started after it."""
    table = with_quota(timed, None)
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    segments = build(table, ticket, named(table, entry_id, 2))
    with_quota(timed, 1)
    monkeypatch.setattr(timed.configs, "get", None)
    table.stage(ticket, segments)
    monkeypatch.undo()
    second = table.start().entry_id
    ticket = table.open_stage(second)
    over_quota(table, ticket, build(table, ticket, ["c"]))


def test_a_quota_holds_for_a_push_of_many_requests_too(timed: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would first say that it begins."""
    table = with_quota(timed, 5)
    monkeypatch.setattr(type(table._context.registry), "in_one_request", lambda *_: None)
    ticket = table.open_stage(table.start().entry_id)
    over_quota(table, ticket, build(table, ticket, ["aa", "bb", "cc"]))


@pytest.mark.parametrize("text", ["1d", "4h30m", "0s", "1d2h3m4s"])
def test_a_period_is_written_as_it_is_read(text: str) -> None:
    assert format_period(parse_period(text)) == text
