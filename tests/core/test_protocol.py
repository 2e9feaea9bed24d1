"""Start, stage, end, revert and clean-up on a real ZooKeeper with real files.

Numbers are those of the Pinot scenarios. Where a rule of ours is stricter, the test's docstring says so.
"""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from airflow_provider_segments.core.lineage import codec
from airflow_provider_segments.core.lineage.entries import EntryState, LineageEntry
from airflow_provider_segments.core.model.segment import StagedSegment
from airflow_provider_segments.core.replacement import stage as staging
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.replacement.start import ALL_VISIBLE
from airflow_provider_segments.core.retention import cleanup
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import SetData
from airflow_provider_segments.exceptions import (
    EndRefusedError,
    EntryNotFoundError,
    RefusedError,
    RevertRefusedError,
    SnapshotRefusedError,
    StageRefusedError,
    StartRefusedError,
)
from tests.support.tables import (
    DAY_MS,
    HOUR_MS,
    JANUARY_1,
    HandClock,
    build,
    contents,
    make_table,
    named,
    object_path,
    on_clock,
    push,
    queued_batches,
    queued_keys,
    queued_sweeps,
    registered,
    stage,
    states,
    visible,
)

FEBRUARY = "2013-02-01"


@pytest.fixture
def hand() -> HandClock:
    """A clock moved by hand."""
    return HandClock()


@pytest.fixture
def timed(store: SegmentStore, hand: HandClock) -> SegmentStore:
    """The store under that clock."""
    return on_clock(store, hand.clock())


@pytest.fixture
def table(timed: SegmentStore) -> Table:
    """An APPEND table."""
    return make_table(timed)


@pytest.fixture
def refresh(timed: SegmentStore) -> Table:
    """A REFRESH table."""
    return make_table(timed, "r", "REFRESH")


def refused(rule: str, kind: type[RefusedError], act: object, *args: object, **how: object) -> RefusedError:
    with pytest.raises(kind) as caught:
        act(*args, **how)  # type: ignore[operator]
    assert caught.value.rule == rule, caught.value
    return caught.value


def lose(table: Table, *names: str) -> None:
    """Take segments out of the registry behind the protocol's back (Pinot's bypass delete)."""
    shards = table._context.registry.read(lambda _: True).shards
    table._context.marker.mark(shards, lambda record: record.name not in names, reason="test")
    root = table._context.registry.root()
    table._context.session.commit([_touched(table, root.version)])


def stage_in_part(table: Table, ticket: StageTicket, segments: list[StagedSegment]) -> None:
    """What a stage of many segments does before it is killed: register some, and not say that they are all."""
    guard = table._context.guard(ticket.entry_id).guard
    staging._begin(table._context, ticket, guard)
    payloads = staging.shard_payloads(table._context, ticket, segments)
    table._context.registry.make_chunks(payloads)
    staging._register(table._context, ticket, guard, payloads)


def _touched(table: Table, version: int) -> SetData:
    path = table._context.registry.path
    node = table._context.session.get(path)
    assert node is not None
    return SetData(path, node.data, version)


# --- a push, step by step


def test_a_push_is_invisible_until_its_end_and_whole_after_it(table: Table) -> None:
    first = push(table, 2)
    before = visible(table)
    second = table.start(sorted(before)).entry_id
    stage(table, second, named(table, second, 3))
    assert visible(table) == before
    assert sorted(table.staged(second).names) == named(table, second, 3)
    ended = table.end(second)
    assert visible(table) == set(named(table, second, 3)) == set(ended.segments_to)
    assert (ended.rows, ended.already) == (3, False)
    assert states(table) == {first: "COMPLETED", second: "COMPLETED"}


def test_revert_brings_back_exactly_what_was_there(table: Table) -> None:
    push(table)
    before = visible(table)
    second = push(table, 3, sorted(before))
    preview = table.preview_revert(second)
    reverted = table.revert(second)
    assert set(reverted.reappeared) == set(preview.reappeared) == before
    assert sorted(reverted.hidden) == named(table, second, 3)
    assert visible(table) == before


def test_an_end_with_nothing_in_to_removes_what_was_there(table: Table) -> None:
    """Pinot's atomic removal; ours asks for ``allow_empty``, since a build that staged nothing looks the same."""
    push(table)
    gone = table.start(ALL_VISIBLE).entry_id
    refused("nothing-staged", EndRefusedError, table.end, gone)
    table.end(gone, allow_empty=True)
    assert visible(table) == set()
    table.revert(gone)
    assert len(visible(table)) == 2


def test_from_defaults_to_everything_on_refresh_and_nothing_on_append(table: Table, refresh: Table) -> None:
    for one, expected in ((table, set()), (refresh, {"a", "b"})):
        push(one, ["a", "b"])
        assert set(one.start().segments_from) == expected


# --- Pinot's scenarios


@pytest.fixture
def five(table: Table) -> Table:
    """The APPEND table with s0 to s4."""
    push(table, [f"s{number}" for number in range(5)])
    return table


def test_15_to_17_names_are_checked_against_what_is_visible(five: Table) -> None:
    before = contents(five.store)
    refused("to-visible", StartRefusedError, five.start, ["s1", "s2"], ["s3", "s4"])
    refused("from-and-to-overlap", StartRefusedError, five.start, ["s1", "s2"], ["s2"])
    refused("from-not-visible", StartRefusedError, five.start, ["s1", "s6"], ["s7"])
    assert contents(five.store) == before


def test_18_end_of_what_is_not_there_or_not_staged_is_refused(five: Table) -> None:
    entry_id = five.start((), ["s5", "s6"]).entry_id
    other = make_table(five.store, "other")
    before = contents(five.store)
    with pytest.raises(EntryNotFoundError):
        other.end(entry_id)
    with pytest.raises(EntryNotFoundError):
        five.end("invalid")
    assert contents(five.store) == before
    refused("not-staged", EndRefusedError, five.end, entry_id)
    assert states(five)[entry_id] == "IN_PROGRESS"


def test_21_the_from_of_a_reverted_entry_may_be_replaced(five: Table) -> None:
    e1 = push(five, ["s5", "s6"], announce=True)
    e2 = five.start(["s1", "s2"], ["m_0", "m_1"]).entry_id
    refused("from-replaced", StartRefusedError, five.start, ["s1", "s2"], ["m2_0", "m2_1"])
    refused("in-progress", RevertRefusedError, five.revert, e2)
    five.revert(e2, force=True)
    e3 = five.start(["s1", "s2"], ["m2_0", "m2_1"]).entry_id
    assert states(five).items() >= {(e1, "COMPLETED"), (e2, "REVERTED"), (e3, "IN_PROGRESS")}


def test_24_a_forced_start_of_the_same_names_takes_the_place_of_one_that_did_nothing(table: Table) -> None:
    e5 = table.start((), ["s7", "s8"]).entry_id
    e6 = table.start((), ["s7", "s8"], force_cleanup=True)
    assert e6.reverted == (e5,)
    assert states(table) == {e6.entry_id: "IN_PROGRESS"}
    with pytest.raises(EntryNotFoundError):
        table.open_stage(e5)


def test_24b_but_one_that_may_have_staged_stays_until_it_is_cleaned(table: Table) -> None:
    """Stricter than Pinot, which drops the entry at once: an entry that is gone reads as settled."""
    e5 = table.start((), ["s7", "s8"]).entry_id
    ticket = table.open_stage(e5)
    staged = build(table, ticket, ["s7", "s8"])
    table.stage(ticket, staged)
    e6 = table.start((), ["s7", "s8"], force_cleanup=True).entry_id
    assert states(table) == {e5: "REVERTED", e6: "IN_PROGRESS"}
    assert registered(table) == set()
    assert [(one.reason, one.entry_id) for one in queued_sweeps(table.store)] == [("reverted", e5)]
    assert table.lineage().entries[e5].segments_to == ()
    refused("reverted", StageRefusedError, table.stage, ticket, staged)
    assert visible(table) == set()
    stage(table, e6, ["s7", "s8"])
    table.end(e6)
    assert not table.cleanup().marked
    assert visible(table) == {"s7", "s8"}


def test_27_ending_a_completed_entry_again_succeeds_and_changes_nothing(table: Table) -> None:
    entry_id = push(table)
    before = contents(table.store)
    again = table.end(entry_id)
    assert again.already and (again.rows, again.switch_ms) == (2, 0.0)
    assert table.end(entry_id, ["whatever"]).already
    assert contents(table.store) == before


def test_30_end_may_name_a_part_of_what_was_announced(table: Table) -> None:
    """And what is left out is marked for deletion: in Pinot it appears with the switch."""
    entry_id = table.start((), ["s20", "s21"]).entry_id
    refused("not-announced", EndRefusedError, table.end, entry_id, ["s9", "s6"])
    stage(table, entry_id, ["s20", "s21"])
    assert table.end(entry_id, ["s21"]).segments_to == ("s21",)
    assert visible(table) == registered(table) == {"s21"}
    assert table.lineage().entries[entry_id].segments_to == ("s21",)
    assert [(batch.reason, len(batch.ledgers)) for batch in queued_batches(table.store)] == [("not-in-to", 1)]


def test_33_a_forced_start_on_refresh_keeps_two_snapshots_of_data(refresh: Table) -> None:
    """As in Pinot, and the segments that the reverted push had staged go with those of the oldest snapshot."""
    push(refresh, ["s0", "s1", "s2"])
    e1 = push(refresh, ["s3", "s4", "s5"])
    e2 = refresh.start(segments_to=["s6", "s7", "s8"]).entry_id
    stage(refresh, e2, ["s6"])
    e3 = refresh.start(segments_to=["s9", "s10", "s11"], force_cleanup=True)
    assert (e3.reverted, e3.cleaning) == ((e2,), (e1,))
    assert visible(refresh) == {"s3", "s4", "s5"}
    assert registered(refresh) == {"s3", "s4", "s5"}
    assert {states(refresh)[one] for one in (e1, e2, e3.entry_id)} == {"COMPLETED", "REVERTED", "IN_PROGRESS"}
    refused("replaced-are-deleted", RevertRefusedError, refresh.revert, e1)
    refresh.revert(e3.entry_id, force=True)
    refused("replaced-are-deleted", RevertRefusedError, refresh.revert, e1)
    refresh.cleanup()
    assert registered(refresh) == {"s3", "s4", "s5"}


def test_36_a_failed_push_can_be_run_again_and_again_under_other_names(refresh: Table) -> None:
    push(refresh, ["s3", "s4", "s5"])
    for names in (["s9", "s10"], ["s12", "s13"]):
        failed = refresh.start(segments_to=names, force_cleanup=True).entry_id
        stage(refresh, failed, names)
        assert visible(refresh) == {"s3", "s4", "s5"}
    refresh.end(failed)
    assert visible(refresh) == {"s12", "s13"}
    refresh.cleanup()
    assert registered(refresh) == {"s3", "s4", "s5", "s12", "s13"}


def test_39_names_taken_over_by_a_forced_start_survive_the_other_ones_clean_up(table: Table) -> None:
    """Pinot lets the new entry count the segment that the old one uploaded. Ours wants it staged again: a segment
    belongs to the push that wrote it, and the old push's object is swept with its prefix."""
    push(table, ["s21", "s22"])
    e9 = table.start(["s21", "s22"], ["s23", "s24"]).entry_id
    stage(table, e9, ["s23", "s24"])
    e10 = table.start(["s21", "s22"], ["s24", "s25"], force_cleanup=True).entry_id
    assert table.lineage().entries[e9].segments_to == ("s23",)
    stage(table, e10, ["s25"])
    refused("not-staged", EndRefusedError, table.end, e10)
    stage(table, e10, ["s24", "s25"])
    table.end(e10)
    assert visible(table) == {"s24", "s25"}
    table.cleanup()
    assert visible(table) == {"s24", "s25"}
    assert all(segment.entry_id == e10 for segment in table.snapshot().segments)


def test_42_a_push_that_lost_a_segment_cannot_end_and_can_be_aborted(table: Table) -> None:
    entry_id = table.start((), ["s1", "s2"]).entry_id
    stage(table, entry_id, ["s1", "s2"])
    lose(table, "s1")
    refused("not-staged", EndRefusedError, table.end, entry_id)
    refused("in-progress", RevertRefusedError, table.revert, entry_id)
    assert states(table)[entry_id] == "IN_PROGRESS"
    table.revert(entry_id, force=True)
    assert states(table)[entry_id] == "REVERTED"


def test_42b_a_push_whose_from_was_lost_cannot_end(five: Table) -> None:
    entry_id = push(five, 2, ["s1", "s2"], end=False)
    lose(five, "s1")
    refused("from-gone", EndRefusedError, five.end, entry_id)
    assert visible(five) == {"s0", "s2", "s3", "s4"}


def test_42c_a_completed_push_whose_from_was_lost_cannot_be_reverted(five: Table) -> None:
    entry_id = push(five, 2, ["s1", "s2"])
    lose(five, "s1")
    refused("from-gone", RevertRefusedError, five.revert, entry_id)


def test_48_a_fresh_push_is_left_alone_by_the_clean_up(refresh: Table) -> None:
    push(refresh, ["a", "b", "c"])
    push(refresh, ["d", "e", "f"], announce=True, end=False)
    before = contents(refresh.store)
    assert not refresh.cleanup().marked
    assert contents(refresh.store) == before
    assert visible(refresh) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("kind", "period", "kept", "gone"),
    [
        ("APPEND", None, 4 * HOUR_MS, 4 * HOUR_MS + 1),
        ("REFRESH", None, DAY_MS, DAY_MS + 1),
        ("APPEND", "7d", 7 * DAY_MS, 8 * DAY_MS),
        ("APPEND", "4h30m", 4 * HOUR_MS, 5 * HOUR_MS),
        ("REFRESH", "0s", 0, 1),
    ],
)
def test_51_what_was_replaced_is_kept_for_the_retention_period(
    timed: SegmentStore, hand: HandClock, kind: str, period: str | None, kept: int, gone: int
) -> None:
    """Kept, and can be rolled back to; after it, marked in one cycle, and the entry goes in the next."""
    table = make_table(timed, "k", kind, **({"replacedSegmentsRetentionPeriod": period} if period else {}))
    push(table, ["a"])
    hand.advance(100 * DAY_MS)
    table.cleanup()
    table.cleanup()
    second = push(table, ["b"], ["a"])
    hand.advance(kept)
    assert not table.cleanup().marked
    assert registered(table) == {"a", "b"}
    table.preview_revert(second)
    hand.advance(gone - kept)
    assert table.cleanup().marked == {second: 1}
    assert registered(table) == {"b"} == visible(table)
    refused("replaced-are-deleted", RevertRefusedError, table.revert, second)
    assert table.cleanup().dropped == [second]
    assert not table.lineage().entries
    assert table.lineage().custom_map is None
    assert visible(table) == {"b"}


# --- clean-up


def test_clean_up_takes_two_cycles_and_the_entry_leaves_last(table: Table, hand: HandClock) -> None:
    """An entry that left first would make what it hides appear."""
    entry_id = push(table, 3, end=False)
    table.abort(entry_id)
    assert table.cleanup().marked == {entry_id: 3}
    assert states(table) == {entry_id: "REVERTED"}
    assert registered(table) == visible(table) == set()
    hand.advance(HOUR_MS)
    assert not table.cleanup().dropped
    hand.advance(1)
    assert table.cleanup().dropped == [entry_id]
    assert table.store.session.children(f"/{table.store.paths.cluster}/ENTRIES/t") == []
    assert [(one.reason, one.entry_id) for one in queued_sweeps(table.store)] == [("reverted", entry_id)] * 2
    assert queued_keys(table.store, "t") == {
        str(path.relative_to(object_path(table, ""))) for path in object_path(table, "t").rglob("*.parquet")
    }


def test_a_push_nobody_ends_is_aborted_after_a_day_and_its_build_is_fenced(table: Table, hand: HandClock) -> None:
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    late = build(table, ticket, named(table, entry_id, 2))
    hand.advance(DAY_MS)
    assert not table.cleanup().aborted
    hand.advance(1)
    assert table.cleanup().aborted == [entry_id]
    refused("reverted", StageRefusedError, table.stage, ticket, late)
    hand.advance(HOUR_MS + 1)
    assert table.cleanup().dropped == [entry_id]
    with pytest.raises(EntryNotFoundError):
        table.stage(ticket, late)
    assert registered(table) == visible(table) == set()


def test_an_initial_push_can_be_rolled_back_within_the_retention_period(table: Table, hand: HandClock) -> None:
    """Stricter than Pinot, whose first clean-up pass drops the entry."""
    entry_id = push(table)
    hand.advance(3 * HOUR_MS)
    table.cleanup()
    table.revert(entry_id, allow_empty=True)
    assert visible(table) == set()


def test_clean_up_never_touches_a_hidden_segment_of_a_push_that_goes_on(table: Table, hand: HandClock) -> None:
    """Two pushes staged the same plain name; one published it, another replaced it. When that is cleaned up, the
    copy of the push that still goes on stays: its end decides, not somebody else's clean-up."""
    slow = table.start().entry_id
    stage(table, slow, ["x", "w"])
    push(table, ["x"])
    push(table, ["y"], ["x"])
    with pytest.raises(EndRefusedError, match=r"to-was-replaced|to-conflict"):
        table.end(slow)
    hand.advance(5 * HOUR_MS)
    table.cleanup()
    table.cleanup()
    assert set(table.staged(slow).names) == {"x", "w"}
    assert visible(table) == {"y"}
    table.end(slow)
    assert visible(table) == {"w", "x", "y"}


def test_revert_is_refused_when_what_it_would_hide_is_already_gone(table: Table, hand: HandClock) -> None:
    """F to X to Y. When the second entry has been cleaned up and dropped and the first has not, a revert of the first
    would show F beside Y, which replaced it."""
    push(table, ["f"])
    first = push(table, ["x"], ["f"])
    second = push(table, ["y"], ["x"])
    context = table._context
    hand.advance(5 * HOUR_MS)
    cleanup.remove_replaced(context, second)
    assert cleanup._drop(context, second, EntryState.COMPLETED)
    assert visible(table) == {"y"}
    refused("to-gone", RevertRefusedError, table.revert, first)
    assert visible(table) == {"y"}


# --- staging


def test_a_stage_can_be_repeated_with_the_same_segments_only(table: Table) -> None:
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    segments = build(table, ticket, named(table, entry_id, 3))
    assert table.stage(ticket, segments) == table.stage(ticket, segments)
    refused("staged-differently", StageRefusedError, table.stage, ticket, segments[:2])
    assert set(table.end(entry_id).segments_to) == set(named(table, entry_id, 3))


def test_a_newer_attempt_fences_a_zombie_and_only_its_segments_count(table: Table) -> None:
    entry_id = table.start().entry_id
    zombie = table.open_stage(entry_id)
    table.stage(zombie, build(table, zombie, ["z1", "z2", "z3"]))
    late = table.open_stage(entry_id)
    refused("superseded", StageRefusedError, table.stage, zombie, build(table, zombie, ["z4"]))
    table.stage(late, build(table, late, ["z1", "n2"]))
    table.end(entry_id)
    assert visible(table) == registered(table) == {"z1", "n2"}
    assert {segment.key.rsplit(".", 2)[1] for segment in table.snapshot().segments} == {"2"}


def test_a_zombie_that_registered_half_of_its_segments_leaves_nothing_visible(table: Table) -> None:
    entry_id = table.start().entry_id
    zombie = table.open_stage(entry_id)
    half = build(table, zombie, ["z1", "z2"])
    stage_in_part(table, zombie, half[:1])
    refused("stage-unfinished", EndRefusedError, table.end, entry_id)
    stage(table, entry_id, ["n1"])
    table.end(entry_id)
    assert visible(table) == registered(table) == {"n1"}


def test_end_is_refused_while_a_stage_is_open_and_the_build_can_go_on(table: Table) -> None:
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    refused("stage-unfinished", EndRefusedError, table.end, entry_id)
    table.stage(ticket, build(table, ticket, ["a"]))
    table.end(entry_id)
    assert visible(table) == {"a"}


@pytest.mark.parametrize(("settle", "rule"), [("end", "completed"), ("revert", "reverted")])
def test_nothing_is_staged_into_a_settled_entry(table: Table, settle: str, rule: str) -> None:
    entry_id = push(table, ["a"], end=False)
    ticket = table.open_stage(entry_id, "second")
    segments = build(table, ticket, ["b"])
    if settle == "end":
        table.end(entry_id, ["a"])
    else:
        table.revert(entry_id, force=True)
    before = contents(table.store)
    refused(rule, StageRefusedError, table.stage, ticket, segments)
    refused(rule, StageRefusedError, table.open_stage, entry_id)
    assert contents(table.store) == before


def test_stagers_of_one_entry_add_up(table: Table) -> None:
    entry_id = table.start().entry_id
    stage(table, entry_id, ["a1", "a2"], "north")
    stage(table, entry_id, ["b1"], "south")
    assert set(table.end(entry_id).segments_to) == visible(table) == {"a1", "a2", "b1"}


def test_two_stagers_with_the_same_segment_cannot_both_become_visible(table: Table) -> None:
    entry_id = table.start().entry_id
    stage(table, entry_id, ["a", "b"], "north")
    stage(table, entry_id, ["a"], "south")
    refused("staged-twice", EndRefusedError, table.end, entry_id)
    refused("staged-twice", EndRefusedError, table.end, entry_id, ["a"])
    assert visible(table) == set()


def test_segments_left_behind_by_a_failed_call_of_the_same_attempt_do_not_appear(table: Table) -> None:
    """A stage that failed half way is gone on with by the same segments only, whatever else is tried."""
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    half = build(table, ticket, ["z1", "z2"])
    stage_in_part(table, ticket, half[:1])
    refused(
        "staged-differently", StageRefusedError, table.stage, ticket, build(table, ticket, ["n1"], chunks=[FEBRUARY])
    )
    refused("stage-unfinished", EndRefusedError, table.end, entry_id)
    table.stage(ticket, half)
    table.end(entry_id)
    assert visible(table) == {"z1", "z2"}


# --- retries that find their own work


def test_a_retried_start_finds_its_own_entry_even_after_others_have_started(table: Table) -> None:
    push(table, ["a"])
    mine = table.start(["a"], ["b"], identity="dag/run/push")
    table.start((), ["z"], identity="dag/run/other")
    again = table.start(["a"], ["b"], identity="dag/run/push")
    assert (again.entry_id, again.born, again.segments_from, again.resumed) == (mine.entry_id, mine.born, ("a",), True)
    assert len(table.lineage()) == 3


@pytest.mark.parametrize("settle", ["end", "revert"])
def test_the_same_work_run_again_on_purpose_gets_an_entry_of_its_own(table: Table, settle: str) -> None:
    first = push(table, 1, identity="me")
    if settle == "revert":
        table.revert(first, allow_empty=True)
    second = table.start(identity="me")
    assert second.entry_id != first and not second.resumed
    assert table.start(identity="me").entry_id == second.entry_id


def test_a_retried_revert_recognises_its_own_and_a_second_one_is_refused(table: Table) -> None:
    entry_id = push(table)
    first = table.revert(entry_id, identity="rollback", allow_empty=True)
    before = contents(table.store)
    again = table.revert(entry_id, identity="rollback", allow_empty=True)
    assert again.already and again.hidden == first.hidden and again.was == first.was
    refused("already-reverted", RevertRefusedError, table.revert, entry_id, identity="somebody else")
    assert contents(table.store) == before


# --- snapshots


def test_a_snapshot_as_of_an_entry_shows_the_table_right_after_it(table: Table, hand: HandClock) -> None:
    first = push(table, ["a", "b"])
    second = push(table, ["c"], ["a"])
    third = push(table, ["d"], ["b"])
    table.revert(third)
    fourth = push(table, ["e"])
    seen = {one: set(table.snapshot(as_of=one).names) for one in (first, second, fourth)}
    assert seen == {first: {"a", "b"}, second: {"b", "c"}, fourth: {"b", "c", "e"}}
    refused("not-completed", SnapshotRefusedError, table.snapshot, as_of=third)
    with pytest.raises(EntryNotFoundError):
        table.snapshot(as_of="00000000-0000-4000-8000-000000000000")


def test_a_past_that_was_cleaned_up_is_refused_and_what_came_after_it_is_not(table: Table, hand: HandClock) -> None:
    push(table, ["z"])
    first = push(table, ["a", "b"], ["z"])
    second = push(table, ["c"], ["a"])
    hand.advance(5 * HOUR_MS)
    push(table, ["d"])
    assert table.cleanup().marked == {first: 1, second: 1}
    refused("history-cleaned", SnapshotRefusedError, table.snapshot, as_of=first)
    assert set(table.snapshot(as_of=second).names) == {"b", "c"}


def test_a_snapshot_of_a_time_range_is_that_part_of_the_whole(table: Table) -> None:
    push(table, ["a", "b", "c"])  # the first and third on January 1st
    day = set(table.snapshot(JANUARY_1, JANUARY_1 + DAY_MS).names)
    assert day == {"a", "c"}
    assert set(table.snapshot(JANUARY_1 + DAY_MS).names) == {"b"}
    assert not len(table.snapshot(JANUARY_1 + 2 * DAY_MS))
    assert not len(table.snapshot(JANUARY_1 + 2, JANUARY_1 + 3))  # a chunk overlaps, no segment's own times do
    with pytest.raises(ValueError):
        table.snapshot(5, 5)


def test_resolve_entry_knows_ids_beginnings_and_the_latest_by_zookeepers_order(table: Table, hand: HandClock) -> None:
    first = push(table, ["a"])
    hand.advance(-DAY_MS)  # the second completion's clock is behind
    second = push(table, ["b"])
    assert table.resolve_entry("latest") == second
    assert table.resolve_entry(first) == table.resolve_entry(first[:8]) == first
    table.revert(second)
    assert table.resolve_entry("latest") == first
    for wrong in ("", first[:3], "ffffffff"):
        with pytest.raises(EntryNotFoundError):
            table.resolve_entry(wrong)


# --- a lineage that Pinot wrote


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_entries_of_pinot_are_respected_and_kept_as_they_are(table: Table, hand: HandClock, packed: bool) -> None:
    """Five elements, gzip, a custom map: routed by, checked against, kept through our writes, reverted on request."""
    push(table, ["a", "b"])
    theirs = "0c1b0a7e-0000-4000-8000-000000000001"
    lineage = table.lineage()
    entry = LineageEntry(theirs, "a", "p", EntryState.IN_PROGRESS, hand.now_ms, ("true",))
    payload = codec.encode(replace(lineage.put(entry), custom_map={"who": "pinot"}))
    path = table.store.paths.lineage("t")
    node = table.store.session.get(path)
    assert node is not None
    table.store.session.commit([SetData(path, gzip.compress(payload) if packed else payload, node.version)])
    assert visible(table) == {"a", "b"}
    refused("from-replaced", StartRefusedError, table.start, ["a"])
    refused("to-conflict", StartRefusedError, table.start, (), ["p"])
    push(table, ["c"], ["b"])
    assert table.lineage().entries[theirs] == entry
    assert table.lineage().custom_map == {"who": "pinot"}
    with pytest.raises(EntryNotFoundError):
        table.end(theirs)
    table.revert(theirs, force=True)
    assert table.lineage().entries[theirs].extra == ("true",)
    assert visible(table) == {"a", "c"}
    hand.advance(2 * HOUR_MS)
    assert table.cleanup().dropped == [theirs]
    assert table.lineage().custom_map == {"who": "pinot"}


def test_the_same_work_run_again_after_its_entry_was_dropped_touches_nothing_of_the_first(
    store: SegmentStore,
) -> None:
    """Its entry gets another id: under the old one the segments of the first push would be hidden, and an abort would
    remove them."""
    hand = HandClock()
    table = make_table(on_clock(store, hand.clock()))
    first = push(table, 2, identity="dag/run/push")
    before = visible(table)
    hand.advance(30 * DAY_MS)
    assert table.cleanup().dropped == [first]
    second = table.start(identity="dag/run/push").entry_id
    assert second != first and visible(table) == before
    stage(table, second, named(table, second, 1))
    table.revert(second, force=True)
    hand.advance(30 * DAY_MS)
    table.cleanup()
    assert visible(table) == before
