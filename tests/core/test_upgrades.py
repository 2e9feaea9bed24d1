"""Concurrent append and replace: what is appended while a REPLACE lock is held is carried into the new version.

In every test the table's rows are known by the names of the appends that brought them; a compaction's segment stands
for those it was made from. Each snapshot must show every row exactly once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from airflow_provider_segments.core.compaction.locks import choose_lock
from airflow_provider_segments.core.compaction.plan import whole_group
from airflow_provider_segments.core.locking import (
    APPEND_VERSION,
    LockType,
)
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.segment import (
    SegmentRecord,
    StagedSegment,
    TimelinePlace,
    Upgrade,
    decode_records,
    encode_record,
)
from airflow_provider_segments.core.replacement import upgrade
from airflow_provider_segments.core.retention import cleanup
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.timeline import SegmentState, as_svg, timeline_lines
from airflow_provider_segments.exceptions import (
    EndRefusedError,
    InvalidConfigError,
    InvalidNameError,
    LockDeniedError,
    LockLostError,
    RefusedError,
    RevertRefusedError,
    StageRefusedError,
)
from tests.core.upgrades_lab import CONFIG, DAY, MONTH, NEXT_DAY, Lab, build
from tests.support.tables import (
    DAY_MS,
    named,
    states,
    visible,
)


@pytest.fixture
def lab(store: SegmentStore) -> Lab:
    return Lab.make(store)


def test_a_late_append_is_carried_when_the_replacement_ends(lab: Lab) -> None:
    first, second = lab.append(), lab.append()
    held = lab.lock()
    rewrite = lab.rewrite([*first.names, *second.names], held)
    late = lab.append()
    assert lab.seen() == sorted([*first.names, *second.names, *late.names])
    lab.end(rewrite, held)
    assert visible(lab.table) == {*rewrite.names, *late.names}
    version = lab.places()[rewrite.names[0]][1]
    assert lab.places()[late.names[0]] == (DAY, version, 1) and version > APPEND_VERSION
    assert lab.seen() == sorted([*first.names, *second.names, *late.names])


def test_an_append_prepared_before_the_replacement_commits_and_ended_after_is_visible(lab: Lab) -> None:
    """Druid #16393, the one way round."""
    first = lab.append()
    held = lab.lock()
    rewrite = lab.rewrite(first.names, held)
    late = lab.prepare()
    lab.end(rewrite, held)
    assert lab.seen() == first.names
    lab.table.end(late.entry_id)
    assert lab.seen() == sorted([*first.names, *late.names])
    assert lab.places()[late.names[0]][1] == lab.places()[rewrite.names[0]][1]


def test_an_append_that_ends_between_the_look_and_the_switch_of_a_replacement_is_carried(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Druid #16393, the other way round."""
    first = lab.append()
    held = lab.lock()
    rewrite, late = lab.rewrite(first.names, held), lab.prepare()
    _after_first(monkeypatch, lambda: lab.table.end(late.entry_id))
    lab.end(rewrite, held)
    assert lab.seen() == sorted([*first.names, *late.names])
    assert visible(lab.table) == {*rewrite.names, *late.names}


def test_a_replacement_that_ends_between_the_look_and_the_switch_of_an_append_is_followed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lab.append()
    held = lab.lock()
    rewrite, late = lab.rewrite(first.names, held), lab.prepare()
    _after_first(monkeypatch, lambda: lab.table.end(rewrite.entry_id))
    lab.table.end(late.entry_id)
    assert lab.seen() == sorted([*first.names, *late.names])
    assert visible(lab.table) == {*rewrite.names, *late.names}


def test_a_rollback_shows_what_was_replaced_and_what_was_carried_or_appended_since(lab: Lab) -> None:
    first = lab.append(2)
    held = lab.lock()
    rewrite, late = lab.rewrite(first.names, held), lab.append()
    lab.end(rewrite, held)
    later = lab.append()
    everything = sorted([*first.names, *late.names, *later.names])
    assert lab.seen() == everything
    lab.table.revert(rewrite.entry_id)
    assert visible(lab.table) == set(everything)
    lab.settle()
    assert visible(lab.table) == set(everything) and rewrite.entry_id not in states(lab.table)
    assert lab.append().names[0] in visible(lab.table)


def test_compactions_one_above_the_other_are_rolled_back_in_any_order(lab: Lab) -> None:
    """The second one rewrites only what came since, and carries what the first one wrote."""
    for order in itertools.permutations(range(2)):
        table = Lab.make(lab.store, f"t{order[0]}")
        first, more = table.append(2), table.append()
        made = [table.compact(first.names)]
        made.append(table.compact([*more.names, *table.append().names]))
        table.append()
        for number in order:
            assert table.seen() == table.appended()
            table.table.revert(made[number].entry_id)
        assert table.seen() == table.appended() and len(table.seen()) == 5


def test_a_month_takes_in_the_days_that_were_appended_meanwhile(lab: Lab) -> None:
    first = lab.append(2, (DAY, NEXT_DAY))
    held = lab.lock(MONTH)
    rewrite = lab.rewrite(first.names, held, MONTH)
    late, pending = lab.append(2, (DAY, NEXT_DAY)), lab.prepare(2, (DAY, NEXT_DAY))
    lab.end(rewrite, held)
    lab.table.end(pending.entry_id)
    assert lab.seen() == sorted([*first.names, *late.names, *pending.names])
    assert {chunk for chunk, _, _ in lab.places().values()} == {MONTH}
    assert len(set(lab.places().values())) == 5
    assert not any(one.visible_in for one in lab.table.snapshot().segments)


def test_what_is_not_replaced_is_carried_without_being_written_again(lab: Lab) -> None:
    """A compaction need not rewrite all of its time chunk."""
    small, good = lab.append(3), lab.append()
    before = {one.name: one.key for one in lab.table.snapshot().segments}
    rewrite = lab.compact(small.names)
    after = {one.name: one.key for one in lab.table.snapshot().segments}
    assert after.keys() == {*rewrite.names, *good.names} and after[good.names[0]] == before[good.names[0]]


def test_a_replaced_segment_comes_back_in_the_new_version_when_its_own_replacement_is_rolled_back(lab: Lab) -> None:
    first, expired = lab.append(), lab.append()
    expiry = lab.table.start(expired.names, identity="expiry").entry_id
    lab.table.end(expiry, allow_empty=True)
    lab.compact(first.names)
    assert lab.seen() == first.names
    lab.table.revert(expiry)
    assert lab.seen() == sorted([*first.names, *expired.names])


def test_a_lost_segment_of_the_new_version_brings_its_inputs_back_beside_what_was_carried(lab: Lab) -> None:
    first = lab.append(2)
    held = lab.lock()
    rewrite, late = lab.rewrite(first.names, held, count=2), lab.append()
    lab.end(rewrite, held)
    later = lab.append()
    for lost in rewrite.names:
        _lose(lab, lost)
        assert lab.seen() == sorted([*first.names, *late.names, *later.names])


def test_a_lost_segment_of_a_carried_compaction_brings_its_inputs_back_in_the_newer_version(lab: Lab) -> None:
    first, more = lab.append(2), lab.append()
    lower = lab.compact(first.names, count=2)
    lab.append()
    lab.compact(more.names)
    assert set(lower.names) <= visible(lab.table)
    _lose(lab, lower.names[0])
    assert lab.seen() == lab.appended()


def test_an_append_of_a_wider_time_chunk_is_refused(lab: Lab) -> None:
    first = lab.append()
    held = lab.lock()
    for ended in (False, True):
        with pytest.raises(StageRefusedError) as refused:
            lab.prepare(1, (MONTH,))
        assert refused.value.rule == "finer-granularity" and "finer one" in str(refused.value)
        if not ended:  # the lock is still held: the refusal took it away from nobody
            lab.end(lab.rewrite(first.names, held), held)


def test_a_replacement_narrower_than_a_segment_that_it_does_not_replace_is_refused(lab: Lab) -> None:
    wide = lab.append(1, (MONTH,))
    held = lab.lock(DAY)
    narrow = lab.rewrite([], held)
    with pytest.raises(EndRefusedError) as refused:
        lab.table.end(narrow.entry_id)
    assert refused.value.rule == "coarser-segment"
    assert visible(lab.table) == set(wide.names)


def test_a_lock_of_the_narrower_chunk_waits_for_the_wider_append(lab: Lab) -> None:
    lab.prepare(1, (MONTH,))
    with pytest.raises(LockDeniedError):
        lab.lock(DAY)


def test_two_granularities_at_once_never_make_a_table_that_cannot_be_read(lab: Lab) -> None:
    day, month = lab.prepare(1, (DAY,)), lab.prepare(1, (MONTH,))
    lab.table.end(day.entry_id)
    with pytest.raises(EndRefusedError) as refused:
        lab.table.end(month.entry_id)
    assert refused.value.rule == "granularity-differs"
    assert visible(lab.table) == set(day.names)


def test_appends_take_append_locks_and_give_them_back(lab: Lab) -> None:
    late = lab.prepare()
    assert [lock.lock_type for lock in lab.table.locks.locks()] == [LockType.APPEND]
    held = lab.lock()
    lab.release(held)
    lab.table.end(late.entry_id)
    assert not lab.table.locks.locks()


def test_a_replacement_whose_lock_was_revoked_carries_nothing(lab: Lab) -> None:
    first = lab.append()
    held = lab.lock()
    rewrite = lab.rewrite(first.names, held)
    lab.table.locks.revoke([held.lock_id], "a person")
    late = lab.append()
    with pytest.raises(LockLostError):
        lab.table.end(rewrite.entry_id)
    assert not any(record.upgrades for record in lab.records().values())
    assert lab.seen() == sorted([*first.names, *late.names])


def test_a_replacement_run_again_under_another_lock_leaves_no_places_of_the_old_version_that_count(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, outside = lab.append(), lab.append(1, (NEXT_DAY,))
    held = lab.lock(MONTH)
    rewrite = lab.rewrite(first.names, held, MONTH, identity="me")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        _after_first(patch, _interrupt)
        lab.table.end(rewrite.entry_id)
    assert lab.records()[outside.names[0]].upgrades
    lab.release(held)
    held = lab.lock(DAY)
    again = lab.rewrite(first.names, held, DAY, identity="me")
    assert again.entry_id == rewrite.entry_id
    lab.end(again, held)
    assert lab.places()[outside.names[0]][1] == APPEND_VERSION
    assert lab.seen() == sorted([*first.names, *outside.names])


def test_places_in_versions_that_are_gone_are_forgotten(lab: Lab) -> None:
    """Each compaction rewrites what the one before it wrote; once that is cleaned up, its version is no more."""
    good, last = lab.append(), lab.append()
    for _ in range(3):
        last = lab.compact([*last.names, *lab.append().names])
    assert len(lab.records()[good.names[0]].upgrades) == 3
    lab.settle()
    lab.compact(lab.append().names)
    assert len(lab.records()[good.names[0]].upgrades) == 2
    assert lab.seen() == lab.appended()


# --- overwrites, other modes, deletion --------------------------------------------------------------------------------


def test_what_an_overwrite_hides_is_not_carried_above_it_nor_brought_back_beneath(lab: Lab) -> None:
    """An overwrite names nothing that it replaces: its version hides what is beneath."""
    old = lab.append(2)
    over = lab.overwrite()
    assert lab.seen() == over.names
    small = lab.append(2)
    rewrite = lab.compact(small.names)
    assert visible(lab.table) == {*over.names, *rewrite.names}
    with pytest.raises(RevertRefusedError) as refused:
        lab.table.revert(over.entry_id)
    assert refused.value.rule == "beneath-version" and rewrite.entry_id in str(refused.value)
    lab.table.revert(rewrite.entry_id)
    lab.table.revert(over.entry_id)
    assert lab.seen() == sorted([*old.names, *small.names])


def test_an_overwrite_above_another_one_is_rolled_back_by_itself(lab: Lab) -> None:
    lab.append()
    lower, upper = lab.overwrite(), lab.overwrite()
    lab.table.revert(lower.entry_id)
    assert lab.seen() == upper.names


def test_a_segment_that_an_overwrite_of_a_part_of_its_time_has_cut_is_not_carried(lab: Lab) -> None:
    day, small = lab.append(), lab.append(2)
    held = lab.lock()
    rewrite = lab.rewrite(small.names, held)
    lab.release(held)
    hour = lab.overwrite(f"{DAY}T07")
    held = lab.lock()
    rewrite = lab.rewrite([], held)
    with pytest.raises(EndRefusedError) as refused:
        lab.table.end(rewrite.entry_id)
    assert refused.value.rule == "coarser-segment"
    assert visible(lab.table) == {*day.names, *small.names, *hour.names}


def test_what_narrower_overwrites_hide_together_is_in_nobody_s_way(lab: Lab) -> None:
    lab.append()
    hours = [name for hour in range(24) for name in lab.overwrite(f"{DAY}T{hour:02d}").names]
    assert visible(lab.table) == set(hours)
    rewrite = lab.compact(hours)
    assert visible(lab.table) == set(rewrite.names)
    lab.hand.advance(DAY_MS)
    lab.settle()
    assert lab.records().keys() == set(rewrite.names)


def test_the_mode_of_a_table_may_change_at_any_time(lab: Lab) -> None:
    """What a push relies on are its locks, and what a segment shows by are its places; the config says neither."""
    first, waiting = lab.append(2), lab.prepare()
    rewrite = lab.compact(first.names)
    lab.apply(segmentLocking=True)
    with pytest.raises(LockDeniedError, match="APPEND"):
        lab.append()  # until the appends of the other mode have ended
    [denied] = [one for one, state in states(lab.table).items() if state == "IN_PROGRESS" and one != waiting.entry_id]
    lab.table.revert(denied, force=True)
    lab.table.end(waiting.entry_id)
    joined = lab.append()
    assert lab.places()[joined.names[0]][1] == lab.places()[rewrite.names[0]][1]
    with pytest.raises(RevertRefusedError) as refused:
        lab.table.revert(rewrite.entry_id)
    assert refused.value.rule == "version-joined"
    lab.apply(segmentLocking="concurrent")
    late = lab.append()
    again = lab.compact([*joined.names, *late.names])
    assert visible(lab.table) == {*rewrite.names, *waiting.names, *again.names}
    lab.table.revert(again.entry_id)
    assert lab.seen() == lab.appended()
    lab.settle()
    assert lab.seen() == lab.appended()


def test_an_object_is_kept_while_its_segment_has_a_place_that_counts_and_goes_with_it(lab: Lab) -> None:
    """One record with several places: deletion has no copies to count, whichever of them comes or goes."""
    first, good = lab.append(2), lab.append()
    rewrite = lab.compact(first.names)
    upper = lab.compact(rewrite.names)
    late = lab.append()
    for entry_id, left in ((upper.entry_id, rewrite.names), (rewrite.entry_id, first.names)):
        lab.table.revert(entry_id)
        lab.table.cleanup()
        lab.store.deleter().drain()
        assert visible(lab.table) == {*left, *good.names, *late.names}
        report = lab.table.reconcile(grace_ms=0, enqueue=True)
        assert (report.enqueued, report.missing.count, report.referenced.count) == (0, 0, len(left) + 2)
    lab.settle()
    assert visible(lab.table) == {*first.names, *good.names, *late.names} == set(lab.records())
    last = lab.compact(first.names)
    expiry = lab.table.start([*good.names, *last.names], identity="expiry").entry_id
    lab.table.end(expiry, allow_empty=True)
    lab.settle()
    assert visible(lab.table) == set(late.names) == set(lab.records())
    assert lab.table.reconcile(grace_ms=0).listed == 1


def test_a_message_about_a_carried_segment_deletes_nothing(lab: Lab) -> None:
    """Whoever asks for its deletion by mistake: it is registered, in whatever place."""
    first, good = lab.append(2), lab.append()
    lab.compact(first.names)
    with pytest.raises(RefusedError):
        lab.table.mark_ledgers(good.names)
    lab.settle()
    assert good.names[0] in visible(lab.table)


def test_a_stage_that_brings_places_of_its_own_is_refused(lab: Lab) -> None:
    entry_id = lab.table.start().entry_id
    ticket = lab.table.open_stage(entry_id)
    [one] = build(lab.table, ticket, named(lab.table, entry_id, 1), (DAY,))
    for mine in ({"upgrades": (Upgrade(DAY, "v", 1),)}, {"place": TimelinePlace("v", 1)}):
        with pytest.raises(InvalidNameError, match="not the build's to say"):
            lab.table.stage(ticket, [StagedSegment(DAY, msgspec.structs.replace(one.record, **mine))])


def test_a_picture_shows_a_carried_segment_in_the_version_in_which_it_is_seen(lab: Lab) -> None:
    first, good = lab.append(2, (DAY, NEXT_DAY)), lab.append(1, (NEXT_DAY,))
    rewrite = lab.compact(first.names, MONTH)
    version = lab.places()[rewrite.names[0]][1]
    lines = [(one.chunk, one.version, one.state, one.segments) for one in timeline_lines(lab.table.standings())]
    assert sorted(lines, reverse=True) == [
        (NEXT_DAY, APPEND_VERSION, SegmentState.OVERSHADOWED, 1),
        (DAY, APPEND_VERSION, SegmentState.OVERSHADOWED, 1),
        (MONTH, version, SegmentState.VISIBLE, 2),
    ]
    assert "<svg" in as_svg(lab.table.standings())
    lab.table.revert(rewrite.entry_id)
    lines = [(one.chunk, one.state, one.segments) for one in timeline_lines(lab.table.standings())]
    assert lines == [(DAY, SegmentState.VISIBLE, 1), (NEXT_DAY, SegmentState.VISIBLE, 2)]
    assert good.names[0] in visible(lab.table)


@pytest.mark.parametrize(("concurrent", "lock_type"), [(False, LockType.EXCLUSIVE), (True, LockType.REPLACE)])
def test_a_compaction_takes_the_lock_of_its_table_s_mode(lab: Lab, concurrent: bool, lock_type: LockType) -> None:
    lab.append(2)
    segments = lab.table.snapshot().segments
    wider = choose_lock(whole_group(MONTH, segments, ""), "g", "t", concurrent=concurrent)
    assert wider.request is not None and wider.request.lock_type is lock_type and wider.whole_chunk
    own = choose_lock(whole_group(DAY, segments, ""), "g", "t", concurrent=concurrent)
    assert own.request is not None and not own.whole_chunk
    assert (own.request.lock_type is LockType.REPLACE) == concurrent == (not own.request.partitions)


def test_the_config_takes_concurrent_and_nothing_else() -> None:
    config = TableConfig.from_json(CONFIG)
    assert config.segment_locking and config.concurrent_locks
    assert TableConfig.from_json(config.to_json()).concurrent_locks
    plain = TableConfig(name="t", segment_locking=True, concurrent_locks=True)
    assert TableConfig.from_json(plain.to_json()).concurrent_locks
    with pytest.raises(InvalidConfigError):
        TableConfig.from_json({**CONFIG, "segmentBuildConfig": {"segmentLocking": "both"}})


def test_a_record_keeps_its_upgrades_and_one_without_is_as_short_as_before() -> None:
    plain = SegmentRecord("s", "f", 1, 2, 3, place=TimelinePlace(APPEND_VERSION, 4))
    carried = SegmentRecord("s", "f", 1, 2, 3, place=plain.place, upgrades=(Upgrade(DAY, "v", 1),))
    assert encode_record(plain).endswith(b'["%s",4,[],[]]]' % APPEND_VERSION.encode())
    assert encode_record(carried).endswith(b'[["2013-01-01","v",1]]]')
    assert decode_records(b"[" + encode_record(plain) + b"," + encode_record(carried) + b"]", "") == [plain, carried]


def _after_first(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Run ``act`` once, when the first end has settled its places and not switched yet."""
    from airflow_provider_segments.core.replacement import end

    settle = upgrade.settle_places
    done: list[bool] = []

    def settled(*arguments: Any) -> bool:
        carries = settle(*arguments)
        if not done:
            done.append(True)
            act()
        return carries

    monkeypatch.setattr(end, "settle_places", settled)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _lose(lab: Lab, name: str) -> None:
    """Take a segment out of the registry, as nothing of ours does while it counts."""
    context = lab.table._context
    cleanup.remember_removal(context, context.records.read(), 0)
    context.marker.mark(context.registry.stream(lambda _: True), lambda one: one.name != name, reason="lost")
