"""Steps that were refused, retried or overtaken, and what they must not have done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_segments.core.lineage import codec
from airflow_provider_segments.core.lineage.entries import EntryState, LineageEntry
from airflow_provider_segments.core.replacement.start import ALL_VISIBLE
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Delete, znrecord
from airflow_provider_segments.exceptions import CorruptRecordError
from tests.compaction.support import HookedSession
from tests.core.test_protocol import lose, stage_in_part
from tests.regressions.helpers import assert_refused
from tests.support.sessions import LossySession, settings
from tests.support.tables import (
    HOUR_MS,
    HandClock,
    build,
    contents,
    make_table,
    named,
    on_clock,
    on_session,
    push,
    queued_keys,
    registered,
    stage,
    states,
    visible,
)


@pytest.fixture
def hand() -> HandClock:
    """A clock moved by hand."""
    return HandClock()


@pytest.fixture
def table(store: SegmentStore, hand: HandClock) -> Table:
    """An APPEND table."""
    return make_table(on_clock(store, hand.clock()), replacedSegmentsRetentionPeriod="2h")


@pytest.fixture
def refresh(store: SegmentStore) -> Table:
    """A REFRESH table."""
    return make_table(store, "r", "REFRESH")


def removed(table: Table) -> str:
    """Push to the table, remove everything; returns the entry of the removal."""
    push(table, ["a"])
    entry_id = table.start(ALL_VISIBLE).entry_id
    table.end(entry_id, allow_empty=True)
    return entry_id


def test_a_removal_is_not_rolled_back_beside_what_was_pushed_since(refresh: Table) -> None:
    """REFRESH: push a, replace it by nothing, push b, revert the removal: a and b were both visible."""
    removal = removed(refresh)
    push(refresh, ["b"])
    assert_refused("refresh-pushed-since", refresh.revert, removal)
    assert visible(refresh) == {"b"}


def test_a_first_push_does_not_end_beside_what_was_rolled_back_meanwhile(refresh: Table) -> None:
    """The same when the revert of the removal falls into the push of b."""
    removal = removed(refresh)
    entry_id = refresh.start().entry_id
    stage(refresh, entry_id, ["b"])
    refresh.revert(removal)
    assert_refused("refresh-must-replace", refresh.end, entry_id)
    assert visible(refresh) == {"a"}


def test_an_end_that_is_refused_has_removed_and_queued_nothing(table: Table) -> None:
    """``end(entry, ["x"])`` had already removed and queued what was staged beside x when it was refused."""
    push(table, ["a"])
    entry_id = table.start(["a"]).entry_id
    stage(table, entry_id, ["x", "y"])
    lose(table, "a")
    queued = queued_keys(table.store, table.name)
    assert_refused("from-gone", table.end, entry_id, ["x"])
    assert registered(table) == {"x", "y"} and queued_keys(table.store, table.name) == queued


def test_a_segment_that_was_not_announced_is_refused_also_with_the_tag_of_its_entry(table: Table) -> None:
    """With announced names, an extra staged segment whose name carries the tag was dropped without a word."""
    entry_id = table.start((), ["a"]).entry_id
    assert_refused("not-announced", stage, table, entry_id, ["a", *named(table, entry_id, 1)])


@pytest.mark.parametrize("opened", [False, True])
def test_an_end_that_comes_too_early_does_not_shut_the_build_out(table: Table, opened: bool) -> None:
    """The entry stayed sealed, and the build was refused without a hint."""
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id) if opened else None
    assert_refused("stage-unfinished" if opened else "nothing-staged", table.end, entry_id)
    ticket = ticket or table.open_stage(entry_id)
    table.stage(ticket, build(table, ticket, ["a"]))
    table.end(entry_id)
    assert visible(table) == {"a"}


def test_an_abort_never_rolls_back_an_end_that_lands_in_between(table: Table, zk_hosts: str) -> None:
    """The safety net read IN_PROGRESS and reverted with force; an ``end`` in between was rolled back."""
    entry_id = push(table, ["a"], end=False)
    with HookedSession.connect(settings(zk_hosts)) as session:
        session.hook(1, "before", lambda: table.end(entry_id))
        assert_refused("completed", on_session(table.store, session).table(table.name).abort, entry_id)
    assert visible(table) == {"a"}


def test_a_clean_up_goes_on_behind_an_entry_whose_mark_has_no_room(
    table: Table, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stopped there, and a dead push behind it was never aborted."""
    push(table, ["a"])
    replaced = push(table, ["b"], ["a"])
    dead = push(table, 2, end=False)
    hand.advance(30 * HOUR_MS)
    stored = table._context.records.read()
    room = len(codec.encode(stored.lineage.put(stored.lineage.entries[dead].moved_to(EntryState.REVERTED, 0))))
    monkeypatch.setattr(znrecord, "_LEVELS", ())  # nothing is made smaller
    monkeypatch.setattr(znrecord, "WRITE_LIMIT", room + 100)
    report = table.cleanup()
    assert report.aborted == [dead] and report.reasons[replaced].startswith("put off")
    assert states(table)[dead] == "REVERTED" and {"a", "b"} <= registered(table)
    monkeypatch.undo()
    table.cleanup()
    assert "a" not in registered(table)


def test_a_revert_of_another_tools_entry_whose_reply_was_lost_recognises_its_own(table: Table, zk_hosts: str) -> None:
    """An entry of another tool has no guard, so the retry of a revert said ``already-reverted``."""
    push(table, ["a"])
    stored = table._context.records.read()
    foreign = LineageEntry.of("00000000-0000-4000-8000-000000000000", (), ("elsewhere",), EntryState.IN_PROGRESS, 1)
    table.store.session.commit([table._context.records.write(stored, stored.lineage.put(foreign))])
    fates = iter(["after"])
    with LossySession.connect(settings(zk_hosts)) as session:
        session.decide = lambda: next(fates, "")
        on_session(table.store, session).table(table.name).revert(foreign.entry_id, force=True)
    assert states(table)[foreign.entry_id] == "REVERTED"


def test_a_lineage_that_is_gone_is_damage_and_not_an_empty_lineage(table: Table) -> None:
    """Read as empty, it made replaced and unfinished segments visible."""
    push(table, ["a"])
    push(table, ["b"], ["a"])
    push(table, ["c"], end=False)
    path = table._context.records.path
    node = table.store.session.get(path)
    assert node is not None
    table.store.session.commit([Delete(path, node.version)])
    before = contents(table.store)
    for act in (table.snapshot, table.start, table.cleanup):
        with pytest.raises(CorruptRecordError, match="Restore the znode"):
            act()
    assert contents(table.store) == before


def test_an_end_that_is_retried_after_its_entry_was_cleaned_away_is_done(table: Table, hand: HandClock) -> None:
    """Its reply was lost, and the retry came after the entry had left the lineage: not-found was raised."""
    entry_id = push(table, ["a"])
    hand.advance(30 * HOUR_MS)
    table.cleanup()
    assert not states(table)
    ended = table.end(entry_id)
    assert ended.already and ended.segments_to == ("a",)


def test_a_stage_that_is_repeated_with_fewer_segments_says_what_to_do(table: Table) -> None:
    """A stage was killed when it had registered its segments, and was run again under its ticket with fewer: a conflict
    for ever. Under a new ticket it is done."""
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    staged = build(table, ticket, ["a", "b"])
    stage_in_part(table, ticket, staged)
    assert_refused("staged-differently", table.stage, ticket, staged[:1])
    stage(table, entry_id, ["a"])
    table.end(entry_id)
    assert visible(table) == {"a"}


def test_nobody_elses_revert_counts_as_done_because_of_its_name(table: Table, hand: HandClock) -> None:
    """Clean-up aborts a dead push; ``revert(identity="cleanup")`` took that for its own work."""
    entry_id = push(table, end=False)
    hand.advance(30 * HOUR_MS)
    assert table.cleanup().aborted == [entry_id]
    assert_refused("already-reverted", table.revert, entry_id, identity="cleanup")


def test_the_age_of_a_lease_is_zookeepers_and_not_its_readers(table: Table) -> None:
    """A reader whose clock is wrong held a lease that looked years old, or new for ever."""
    wrong = table.store.replace(clock=replace(table.store.clock, now_ms=lambda: 1)).table(table.name)
    push(table, ["a"])
    with wrong.snapshot(owner="reader"):
        [lease] = table.leases()
        made = table.store.session.get(f"{table.store.paths.readers(table.name)}/{lease_name(table)}")
        assert made is not None and lease.taken_ms == made.made_ms > 1_600_000_000_000


def lease_name(table: Table) -> str:
    """The name of the only lease."""
    [name] = table.store.session.children(table.store.paths.readers(table.name))
    return name
