"""Versioned tables on a real ZooKeeper: placement, refusals, losses, clean-up, and what fails without each guard."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage
from airflow_provider_segments.core.lineage.guard import Rewrite
from airflow_provider_segments.core.locking import APPEND_VERSION, LockRequest, Priority, granted_lock
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.segment import SegmentRecord, TimelinePlace, decode_records, encode_record
from airflow_provider_segments.core.registry import shard as shards
from airflow_provider_segments.core.replacement import end, placement
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.retention import cleanup, decide
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.timeline import SegmentState
from airflow_provider_segments.core.zookeeper import SetData
from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    EndRefusedError,
    InvalidNameError,
    LockDeniedError,
    LockLostError,
    LockRevokedError,
    RefusedError,
    RevertRefusedError,
    StageRefusedError,
)
from tests.core.versioned_model import (
    DAY_MS,
    HOUR_MS,
    JANUARY_1,
    Push,
    World,
    day_chunk,
    hour_chunk,
    split,
    staged_segment,
    versioned_config,
)
from tests.support.tables import HandClock, contents, make_table, push

overlays = importlib.import_module(
    "airflow_provider_segments.core.timeline.overlay"
)  # there is a function of that name, too
NINE = hour_chunk(0, 9)
TEN = hour_chunk(0, 10)
DAY = day_chunk(0)


@pytest.fixture
def world(store: SegmentStore) -> World:
    """A versioned table of hours."""
    return World.make(store, HandClock())


@pytest.fixture
def two(world: World) -> World:
    """The same with two segments at nine."""
    world.append(NINE)
    world.append(NINE)
    return world


def refused(
    world: World, kind: type[RefusedError], rule: str, act: Callable[[], object], *, says: Sequence[str]
) -> RefusedError:
    """``act`` is refused by that rule, its message has all of ``says``, and neither readers, the lineage nor the
    registry notice anything."""

    def seen() -> tuple[object, ...]:
        entries = dict(world.table.lineage().entries)
        return world.visible(), entries, [shard.payload for shard in world.shards()]

    before = seen()
    with pytest.raises(kind) as caught:
        act()
    assert caught.value.rule == rule, caught.value
    for text in ["table 't'", *says]:
        assert text in str(caught.value), caught.value
    assert seen() == before
    return caught.value


def late_pass(world: World, times: int = 1) -> None:
    """Clean-up when everything is old enough, and the rows are checked after each pass."""
    for _ in range(times):
        world.hand.advance(9 * HOUR_MS)
        cleanup.run(world.table._context)
        take_over(world)
        world.check()


def take_over(world: World) -> None:
    """Tell the model what a clean-up did with the entries."""
    lineage = world.table.lineage()
    for one in world.pushes.values():
        one.dropped = lineage.get(one.entry_id) is None
        one.cleaning = lineage.is_cleaning(one.entry_id)


# --- placement


def test_appends_to_a_chunk_count_up_its_ids(two: World) -> None:
    segments = two.table.snapshot().segments
    assert [(one.chunk, one.version, one.partition) for one in segments] == [
        (NINE, APPEND_VERSION, 0),
        (NINE, APPEND_VERSION, 1),
    ]


def test_an_append_lands_in_the_newest_version_and_in_its_wider_chunk(two: World) -> None:
    two.new_version(DAY, 2)
    appended = two.segment(min(two.append(TEN).brought))
    assert appended.chunk == DAY and appended.version > APPEND_VERSION and appended.partition == 2
    two.check(Interval(JANUARY_1 + 9 * HOUR_MS, JANUARY_1 + 10 * HOUR_MS))


def test_a_second_attempt_of_a_new_version_shows_its_own_segments(two: World) -> None:
    """Its ids do not begin at 0: those are the first attempt's, and gone."""
    push = two.start_version(DAY)
    rows = two.rows_of(push.replaced)
    two.stage(push, [(DAY, part) for part in split(rows, 3)])
    two.stage(push, [(DAY, part) for part in split(rows, 2)])
    two.end(push)
    two.check()
    assert set(two.visible()) == push.brought


def test_two_stagers_of_a_rewrite_are_hidden_and_shown_together(two: World) -> None:
    push = two.start_rewrite(two.visible())
    left, right = split(two.rows_of(push.replaced), 2)
    two.stage(push, [(NINE, left)], stager="first")
    two.stage(push, [(NINE, right)], stager="second")
    two.end(push)
    two.check()
    assert set(two.visible()) == push.brought
    two.lose(min(push.brought))
    two.check()


def test_an_append_leaves_no_lock_behind(two: World) -> None:
    """Also when it first asked for ids of a version that is no longer the newest: such a lock would keep compactions
    away until its lease ends, and fill the box for a day."""
    two.new_version(DAY)
    for _ in range(3):
        two.append(TEN)
    assert two.table.locks.locks() == ()


def test_hours_and_days_that_are_staged_side_by_side_do_not_both_appear(world: World) -> None:
    """They would overlap in one version, and the table could not be read any more."""
    hours, days = world.append(NINE, end=False), world.start("append")
    try:
        world.stage(days, [(DAY, world.new_rows(DAY))])
    except (LockDeniedError, StageRefusedError):
        world.end(hours)
    else:
        world.end(hours)
        with pytest.raises(EndRefusedError):
            world.end(days)
    world.check()


def test_one_push_cannot_bring_an_hour_and_its_day(world: World) -> None:
    push = world.start("append")
    with pytest.raises(StageRefusedError):
        world.stage(push, [(NINE, world.new_rows(NINE)), (DAY, world.new_rows(DAY))])
    world.revert(push, force=True)
    world.check()


# --- refusals


def test_a_segment_of_a_day_is_refused_where_the_table_has_hours(two: World) -> None:
    push = two.start("append")
    refused(
        two,
        StageRefusedError,
        "finer-granularity",
        lambda: two.stage(push, [(DAY, two.new_rows(DAY))]),
        says=[push.entry_id, DAY, NINE, "Compact the table to the coarser granularity first"],
    )
    assert two.table.locks.locks() == ()


def test_a_rewrite_brings_segments_of_one_chunk_only(two: World) -> None:
    push = two.start_rewrite(two.visible())
    ticket = two.table.open_stage(push.entry_id)
    parts = zip((NINE, TEN), split(two.rows_of(push.replaced), 2), strict=True)
    segments = [staged_segment(two.table, ticket, f"n{at}", *part) for at, part in enumerate(parts)]
    before = contents(two.table.store)
    refused(
        two,
        StageRefusedError,
        "many-chunks",
        lambda: two.table.stage(ticket, segments),
        says=[push.entry_id, "one time chunk, not of 2"],
    )
    assert contents(two.table.store) == before


def test_an_append_into_locked_time_is_denied_and_told_by_whom(world: World) -> None:
    request = LockRequest(group="nightly run", task="backfill", interval=parse_chunk(DAY), priority=Priority.REALTIME)
    granted_lock("t", world.table.locks.acquire(request))
    push = world.start("append")
    ticket = world.table.open_stage(push.entry_id)
    segments = [staged_segment(world.table, ticket, "n", NINE, world.new_rows(NINE))]
    before = contents(world.table.store)
    refused(
        world,
        LockDeniedError,
        "lock-denied",
        lambda: world.table.stage(ticket, segments),
        says=["nightly run", "priority 75", "Wait for its release"],
    )
    assert contents(world.table.store) == before


@pytest.mark.parametrize("kind", ["rewrite", "version"])
def test_a_rewrite_whose_lock_was_revoked_cannot_end_and_is_told_by_whom(two: World, kind: str) -> None:
    push = two.rewrite(two.visible(), end=False) if kind == "rewrite" else two.new_version(DAY, end=False)
    two.table.locks.revoke([lock.lock_id for lock in push.locks], "jane")
    says = ["jane", "run the work again under a new lock"]
    refused(two, LockRevokedError, "lock-revoked", lambda: two.table.end(push.entry_id), says=says)
    two.check()


@pytest.mark.parametrize("kind", ["rewrite", "version"])
def test_a_rewrite_whose_lock_was_revoked_cannot_stage(two: World, kind: str) -> None:
    push = two.start_rewrite(two.visible()) if kind == "rewrite" else two.start_version(DAY)
    chunk = NINE if kind == "rewrite" else DAY
    two.table.locks.revoke([lock.lock_id for lock in push.locks], "jane")
    act = lambda: two.stage(push, [(chunk, two.rows_of(push.replaced))])  # noqa: E731
    refused(two, LockRevokedError, "lock-revoked", act, says=["jane"])


def test_an_append_whose_lock_was_taken_after_its_lease_cannot_end(two: World) -> None:
    """It would appear in a version that is hidden by then."""
    late = two.append(NINE, end=False)
    two.hand.advance(HOUR_MS)
    two.new_version(DAY)
    refused(two, LockRevokedError, "lock-revoked", lambda: two.table.end(late.entry_id), says=["after its lease"])
    two.check()


def test_the_place_is_not_the_builds_to_say(world: World) -> None:
    push = world.start("append")
    ticket = world.table.open_stage(push.entry_id)
    one = staged_segment(world.table, ticket, "n", NINE, world.new_rows(NINE))
    placed = replace_record(one, place=TimelinePlace(APPEND_VERSION, 7))
    before = contents(world.table.store)
    with pytest.raises(InvalidNameError, match="'n': its chunk, its place and where it lives are not the build's"):
        world.table.stage(ticket, [placed])
    assert contents(world.table.store) == before


def replace_record(staged: Any, **changes: Any) -> Any:
    """The staged segment with another record."""
    return msgspec.structs.replace(staged, record=msgspec.structs.replace(staged.record, **changes))


def test_a_version_that_others_have_joined_cannot_be_reverted(two: World) -> None:
    founded = two.new_version(DAY)
    joined = two.append(TEN)
    refused(
        two,
        RevertRefusedError,
        "version-joined",
        lambda: two.table.revert(founded.entry_id),
        says=[min(joined.brought), "Revert those pushes first"],
    )
    two.revert(joined)
    two.revert(founded)
    two.check()


def test_who_wants_to_join_a_version_that_was_reverted_meanwhile_cannot_end(two: World) -> None:
    founded = two.new_version(DAY)
    late = two.append(TEN, end=False)
    two.revert(founded)
    refused(
        two, EndRefusedError, "version-gone", lambda: two.table.end(late.entry_id), says=[DAY, "Run the build again"]
    )
    two.check()


def test_a_revert_does_not_bring_segments_back_beneath_a_newer_version(two: World) -> None:
    """Nobody would see them: whoever reverts an expiry must be told."""
    expired = two.expire(two.visible()[:1])
    two.new_version(DAY)
    with pytest.raises(RevertRefusedError):
        two.revert(expired)
    two.check()


def test_a_new_version_cannot_end_when_a_revert_has_brought_something_back_beneath_it(two: World) -> None:
    expired = two.expire(two.visible()[:1])
    late = two.new_version(DAY, end=False)
    two.revert(expired)
    with pytest.raises(EndRefusedError):
        two.end(late)
    two.check()


# --- what is stored


def test_a_record_with_a_place_round_trips() -> None:
    place = TimelinePlace("2013-01-01T00:00:00.000Z", 9, ((0, 3), (5, 6)), ((9, 11),))
    record = SegmentRecord("n", "f", 1, 2, 3, 4, 5, place=place)
    encoded = encode_record(record)
    assert encoded.endswith(b',["2013-01-01T00:00:00.000Z",9,[[0,3],[5,6]],[[9,11]]]]')
    assert decode_records(b"[" + encoded + b"]", "here") == [record]


def test_a_record_without_a_place_is_stored_as_before() -> None:
    assert encode_record(SegmentRecord("n", "f", 1, 2, 3, 4, 5)) == b'["n","f",1,2,3,4,5]'
    full = SegmentRecord("n", "f", 1, 2, 3, 4, 5, {"a": [1, 2, 0]}, "2013", fingerprint="x")
    assert encode_record(full) == b'["n","f",1,2,3,4,5,{"a":[1,2,0]},"2013",null,true,0,"x"]'


def test_a_table_without_segment_locking_stores_no_place_and_takes_no_lock(store: SegmentStore) -> None:
    table = make_table(store)
    push(table, 3)
    shard = table._context.registry.read(lambda _: True).shards[0]
    assert all(len(record) < 10 for record in msgspec_lists(bytes(shard.payload)))
    assert store.session.get(table.locks.path) is None


def msgspec_lists(payload: bytes) -> list[list[Any]]:
    """The raw records."""
    return msgspec.json.decode(payload, type=list[list[Any]])


@pytest.mark.parametrize("grouped", [False, True])
def test_two_records_of_one_place_are_corrupt_and_both_are_named(two: World, grouped: bool) -> None:
    one, other = two.shards()
    twin = one.records[0].place
    assert twin is not None
    if grouped:
        twin = TimelinePlace(twin.version, twin.partition, (), ((twin.partition, twin.partition + 2),))
    record = msgspec.structs.replace(other.records[0], place=twin)
    payload = shards.encode(other.name.entry_id, other.born, [encode_record(record)])
    two.table.store.session.commit([SetData(other.name.path, payload, other.version)])
    with pytest.raises(CorruptRecordError) as caught:
        two.table.snapshot()
    for text in ("table 't'", one.records[0].name, other.records[0].name, "partition 0", APPEND_VERSION):
        assert text in str(caught.value)


# --- standings


def test_standings_tell_what_is_visible_replaced_and_waiting(two: World) -> None:
    inputs = two.visible()
    rewrite = two.rewrite(inputs, 2)
    running = two.append(NINE, end=False)
    reverted = two.append(NINE)
    two.revert(reverted)
    states = {one.segment.name: one.state for one in two.table.standings()}
    assert states == {
        **dict.fromkeys(inputs, SegmentState.OVERSHADOWED),
        **dict.fromkeys(rewrite.brought, SegmentState.VISIBLE),
        **dict.fromkeys(running.staged, SegmentState.STANDBY),
    }


def test_standings_show_the_rest_of_a_group_that_lost_a_segment_as_waiting(two: World) -> None:
    inputs = two.visible()
    first, second = sorted(two.rewrite(inputs, 2).brought)
    two.lose(first)
    states = {one.segment.name: one.state for one in two.table.standings()}
    assert states == {**dict.fromkeys(inputs, SegmentState.VISIBLE), second: SegmentState.STANDBY}


def test_what_was_replaced_by_nothing_stands_overshadowed(two: World) -> None:
    first, second = two.visible()
    two.expire([first])
    states = {one.segment.name: one.state for one in two.table.standings()}
    assert states == {first: SegmentState.OVERSHADOWED, second: SegmentState.VISIBLE}


def test_a_part_of_a_segments_time_is_cut_where_a_newer_version_holds_it(world: World) -> None:
    """A new version of an hour within a day, by somebody who replaces that hour whatever is in it."""
    world.append(DAY)
    over = world.overwrite(TEN)
    [day] = [one for one in world.table.snapshot().segments if one.chunk == DAY]
    ten = parse_chunk(TEN)
    assert day.visible_in == (Interval(JANUARY_1, ten.start_ms), Interval(ten.end_ms, JANUARY_1 + DAY_MS))
    within = world.table.snapshot().within(ten.start_ms, ten.end_ms).names
    assert within == world.table.snapshot(ten.start_ms, ten.end_ms).names == list(over.brought)


def test_a_rewrite_after_segment_locking_was_switched_off_is_left_to_the_lineage(two: World) -> None:
    """Its segments have no place, so nobody could go back from them: the inputs would be seen beside them."""
    off = versioned_config().to_json() | {"segmentBuildConfig": {"segmentGranularity": "HOUR"}}
    two.table.store.apply_config(TableConfig.from_json(off))
    rewrite = two.rewrite(two.visible(), 2)
    two.check()
    assert set(two.visible()) == rewrite.brought


# --- losses


@pytest.mark.parametrize("outputs", [1, 3])
def test_when_a_rewrite_loses_a_segment_its_inputs_show_all_rows_again(two: World, outputs: int) -> None:
    inputs = two.visible()
    rewrite = two.rewrite(inputs, outputs)
    two.lose(min(rewrite.brought))
    two.check(parse_chunk(NINE), parse_chunk(TEN))
    assert two.visible() == inputs


def test_inputs_that_readers_have_gone_back_to_are_never_cleaned(two: World, caplog: pytest.LogCaptureFixture) -> None:
    inputs = two.visible()
    rewrite = two.rewrite(inputs, 2)
    two.lose(min(rewrite.brought))
    late_pass(two, 4)
    assert set(inputs) <= two.registered()
    assert rewrite.entry_id in caplog.text and "compact the table again" in caplog.text


def test_after_a_loss_the_rewrite_can_be_reverted_and_the_table_compacted_again(two: World) -> None:
    rewrite = two.rewrite(two.visible(), 2)
    two.lose(min(rewrite.brought))
    two.revert(rewrite)
    two.check()
    again = two.rewrite(two.visible())
    two.check()
    assert set(two.visible()) == again.brought
    late_pass(two, 5)
    assert two.registered() == set(two.visible())


def test_a_rewrite_with_a_loss_can_be_reverted_after_other_things_were_cleaned(two: World) -> None:
    """The registry has changed since the rewrite, so the revert looks what is there."""
    two.revert(two.append(TEN))
    rewrite = two.rewrite(two.visible(), 2)
    two.lose(min(rewrite.brought))
    late_pass(two, 2)
    two.revert(rewrite)
    two.check()


def test_a_new_version_that_lost_a_segment_shows_what_was_appended_to_it_beside_its_inputs(two: World) -> None:
    founded = two.new_version(DAY, 2)
    two.append(TEN)
    two.lose(min(founded.brought))
    two.check(parse_chunk(NINE), parse_chunk(TEN))
    two.append(TEN)
    two.append(NINE)
    two.check(parse_chunk(NINE), parse_chunk(TEN))


def test_a_new_version_that_lost_all_segments_does_not_leave_its_time_to_what_was_appended(two: World) -> None:
    founded = two.new_version(DAY)
    two.append(TEN)
    two.lose(min(founded.brought))
    two.check(parse_chunk(NINE), parse_chunk(TEN))


def test_when_a_group_of_which_a_part_was_rewritten_loses_another_all_rows_stay(two: World) -> None:
    """The later rewrite is gone back from, too: its rows are those of a part of the group."""
    first, second, _ = sorted(two.rewrite(two.visible(), 3).brought)
    two.rewrite([first])
    two.check()
    two.lose(second)
    two.check()
    late_pass(two, 4)


def test_going_back_never_brings_rows_back_that_were_corrected(two: World) -> None:
    """The rows of the lost segment are gone then: whatever holds them also holds what was replaced on purpose."""
    first, second, _ = sorted(two.rewrite(two.visible(), 3).brought)
    corrected = two.replace([first], NINE)
    two.lose(second)
    two.check()
    two.revert(corrected)
    two.check()


def test_a_look_back_shows_no_half_of_a_group_either(two: World) -> None:
    rewrite = two.rewrite(two.visible(), 2)
    two.lose(min(rewrite.brought))
    two.check_snapshot(two.table.snapshot(as_of=rewrite.entry_id), None, two.live_as_of(rewrite))


def test_a_rewrite_of_a_rewrite_goes_back_one_step_at_a_time(two: World) -> None:
    inputs = two.visible()
    older = two.rewrite(inputs, 2)
    newer = two.rewrite(sorted(older.brought), 2)
    two.lose(min(newer.brought))
    two.check()
    assert set(two.visible()) == older.brought
    two.lose(min(older.brought))
    two.check()
    assert two.visible() == inputs


def test_a_dry_run_says_of_a_loss_what_the_pass_does(two: World) -> None:
    rewrite = two.rewrite(two.visible(), 2)
    two.lose(min(rewrite.brought))
    two.hand.advance(9 * HOUR_MS)
    planned = cleanup.plan(two.table._context).report()
    done = cleanup.run(two.table._context)
    assert done.marked == planned.marked == {}
    assert done.dropped == planned.dropped and rewrite.entry_id not in done.dropped
    assert "gone back" in done.reasons[rewrite.entry_id]


# --- several losses


def test_a_loss_of_everything_above_the_inputs_shows_the_inputs(two: World) -> None:
    """Nothing is left of the newest rewrite but its name: it is found through what it had replaced."""
    inputs = two.visible()
    older = two.rewrite(inputs)
    newer = two.rewrite(sorted(older.brought))
    newest = two.rewrite(sorted(newer.brought))
    for one in (newest, newer, older):
        two.lose(min(one.brought))
        two.check(parse_chunk(NINE))
    assert two.visible() == inputs
    late_pass(two, 4)
    assert two.registered() == set(inputs)


def lose_beside_a_correction(world: World) -> Push:
    """A correction of one of three segments of a rewrite is under way when another one is lost."""
    first, second, _ = sorted(world.rewrite(world.visible(), 3).brought)
    late = world.replace([first], NINE, end=False)
    world.lose(second)
    return late


def test_a_correction_of_what_readers_have_gone_back_from_cannot_end(two: World) -> None:
    """It would hide the inputs for good, and with them the rows of the lost segment."""
    late = lose_beside_a_correction(two)
    inputs = two.visible()
    says = [min(late.replaced), "was lost", "run the work again"]
    refused(two, EndRefusedError, "from-not-seen", lambda: two.table.end(late.entry_id), says=says)
    two.revert(late, force=True)
    assert two.visible() == inputs
    two.check()


def append_beneath(world: World) -> Push:
    """A new version loses a segment while that is rewritten, and new rows land beneath the version."""
    founded = world.new_version(DAY, 2)
    late = world.rewrite([min(founded.brought)], end=False)
    world.lose(min(founded.brought))
    appended = world.segment(min(world.append(TEN).brought))
    assert (appended.chunk, appended.version) == (TEN, APPEND_VERSION)
    return late


def test_what_is_appended_beneath_a_version_that_lost_a_segment_is_not_hidden_by_a_late_rewrite(two: World) -> None:
    late = append_beneath(two)
    two.check()
    with pytest.raises(EndRefusedError):
        two.end(late)
    two.check(parse_chunk(TEN))


def test_after_a_loss_in_a_new_version_it_can_be_reverted_and_founded_again(two: World) -> None:
    founded = two.new_version(DAY, 2)
    two.lose(min(founded.brought))
    two.append(TEN)
    two.check()
    two.revert(founded)
    two.check()
    again = two.new_version(DAY)
    two.check()
    late_pass(two, 6)
    assert two.registered() == again.brought


def test_a_new_version_of_a_part_of_what_readers_have_gone_back_to_cannot_end(two: World) -> None:
    """What the lost rewrite replaced is visible, though the lineage hides it: it has to be in the new version, too."""
    two.lose(min(two.rewrite(two.visible()).brought))
    appended = two.append(NINE)
    lock = two.time_lock(parse_chunk(DAY), newest=APPEND_VERSION)
    day = parse_chunk(DAY)
    push = two.start("rewrite", appended.brought, [lock], Rewrite(day.start_ms, day.end_ms))
    two.stage(push, [(DAY, two.rows_of(appended.brought))])
    refused(two, EndRefusedError, "not-covered", lambda: two.table.end(push.entry_id), says=["would be hidden"])
    two.check()


def test_an_entry_that_readers_have_gone_back_from_stays_when_its_inputs_are_lost_too(two: World) -> None:
    """Else what is left of it would come back, over what was appended beneath it meanwhile."""
    older = two.rewrite(two.visible(), 2)
    one, other = sorted(older.brought)
    two.expire([other])
    founded = two.new_version(DAY, 2)
    two.lose(min(founded.brought))
    two.lose(one)
    two.append(NINE)
    two.check()
    late_pass(two, 4)
    assert two.table.lineage().get(founded.entry_id) is not None


def test_a_new_version_whose_lock_is_gone_is_told_so_when_it_stages(two: World) -> None:
    """Not that its granularity does not fit what it would lie beneath without the lock."""
    push = two.start_version(DAY)
    two.release(push)
    refused(
        two,
        LockLostError,
        "lock-lost",
        lambda: two.stage(push, [(DAY, two.rows_of(push.replaced))]),
        says=["it was released", "under a new lock"],
    )


# --- clean-up


def test_clean_up_removes_the_inputs_of_rewrites_oldest_first(two: World) -> None:
    older = two.rewrite(two.visible(), 2)
    newer = two.rewrite(sorted(older.brought)[:1])
    late_pass(two, 4)
    assert two.registered() == set(two.visible()) == {*sorted(older.brought)[1:], *newer.brought}
    assert not two.table.lineage().entries


def made_before_its_input(world: World) -> tuple[Push, Push]:
    """A rewrite, and a rewrite of its segments that is older by the clock, which went back."""
    older = world.rewrite(world.visible(), 2)
    world.hand.advance(-3 * HOUR_MS)
    return older, world.rewrite(sorted(older.brought)[:1])


def test_a_rewrite_waits_for_the_one_beneath_it_whatever_the_clocks_say(two: World) -> None:
    older, newer = made_before_its_input(two)
    two.hand.advance(4 * HOUR_MS + 1)
    for _ in range(3):
        done = cleanup.run(two.table._context)
        assert older.entry_id in done.reasons[newer.entry_id]
        two.check()
    assert older.brought <= two.registered()
    late_pass(two, 4)
    assert two.registered() == set(two.visible())


# --- scale


def test_reading_ten_thousand_versioned_segments(world: World) -> None:
    chunks = [hour_chunk(day, hour) for day in range(2) for hour in range(24)][:25]
    push = world.start("append")
    ticket = world.table.open_stage(push.entry_id)
    rows = {chunk: world.new_rows(chunk) for chunk in chunks}
    segments = [
        staged_segment(world.table, ticket, f"{chunk}_{at}", chunk, rows[chunk])
        for chunk in chunks
        for at in range(400)
    ]
    began = time.perf_counter()
    world.table.stage(ticket, segments)
    staged = time.perf_counter()
    world.table.end(push.entry_id)
    ended = time.perf_counter()
    everything = world.table.snapshot()
    whole = time.perf_counter()
    hour = world.table.snapshot(JANUARY_1, JANUARY_1 + HOUR_MS)
    last = time.perf_counter()
    assert (len(everything), len(hour)) == (10_000, 400)
    print(
        f"10,000 segments in 25 chunks: stage {staged - began:.2f} s, end {ended - staged:.2f} s, "
        f"whole snapshot {1000 * (whole - ended):.0f} ms, an hour {1000 * (last - whole):.0f} ms"
    )


# --- with a guard switched off, readers see something wrong


def append_after_a_new_version(world: World) -> None:
    world.new_version(DAY)
    world.append(TEN)
    world.check()


def clean_the_newer_first(world: World) -> None:
    made_before_its_input(world)
    world.hand.advance(4 * HOUR_MS + 1)
    for _ in range(3):
        cleanup.run(world.table._context)
        world.check()


def correct_a_segment(world: World) -> None:
    world.lose(min(world.rewrite(world.append(TEN).brought).brought))
    world.replace([one.name for one in world.table.snapshot().segments if one.chunk == NINE], NINE)
    world.check()


def end_after_a_revocation(world: World) -> None:
    push = world.rewrite(world.visible(), end=False)
    world.table.locks.revoke([lock.lock_id for lock in push.locks], "jane")
    with pytest.raises(LockRevokedError):
        world.table.end(push.entry_id)


def end_after_going_back(world: World) -> None:
    late = append_beneath(world)
    with suppress(EndRefusedError):
        world.end(late)
    world.check()


def first_look_only(_: object, chunks: Iterable[str]) -> dict[str, Any]:
    return {chunk: placement._Target(chunk, APPEND_VERSION) for chunk in chunks}


def everything_replaced(lineage: Lineage, *_: object) -> frozenset[str]:
    entries = lineage.in_state(EntryState.COMPLETED)
    return frozenset(name for entry in entries for name in entry.segments_from)


GUARDS = {
    "the look after the lock": (placement._Placer, "_targets", first_look_only, append_after_a_new_version),
    "the rewrite beneath goes first": (decide, "_rewriter_of", lambda *_: None, clean_the_newer_first),
    "what the lineage hides": (overlays, "_left_to_the_timeline", everything_replaced, correct_a_segment),
    "the look at what readers went back from": (end, "check_not_gone_back", lambda *_: None, end_after_going_back),
    "the fence": (Context, "fence", lambda *_: [], end_after_a_revocation),
}


@pytest.mark.parametrize("name", GUARDS)
def test_without_this_guard_something_goes_wrong(two: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    where, what, nothing, scenario = GUARDS[name]
    monkeypatch.setattr(where, what, nothing)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        scenario(two)


@pytest.mark.parametrize("name", GUARDS)
def test_with_this_guard_the_same_goes_well(two: World, name: str) -> None:
    GUARDS[name][3](two)


def test_without_the_look_at_readers_a_clean_up_after_a_loss_loses_rows(two: World) -> None:
    rewrite = two.rewrite(two.visible(), 2)
    two.lose(min(rewrite.brought))
    two.hand.advance(9 * HOUR_MS)
    two.check()
    cleanup.run(replace(two.table._context, standings=lambda _: ()))
    with pytest.raises(AssertionError, match="missing"):
        two.check()
