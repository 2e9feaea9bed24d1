"""What Druid's segment locking promises (proposal #7491), each promise through a real table on a real ZooKeeper.

The table in docs/compaction.md names these tests. What readers see under processes, kills and random histories is in
``tests/compaction`` and ``tests/histories``; here each promise is one short history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from airflow_provider_segments.core.locking import (
    Denied,
    Granted,
    LockGranularity,
    LockRequest,
    LockType,
    Priority,
    Revoked,
)
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Delete
from airflow_provider_segments.exceptions import (
    LockDeniedError,
    LockRevokedError,
    RevertRefusedError,
    StartRefusedError,
)
from tests.compaction.support import versioned_table
from tests.support.tables import build, named, registered

DAY = "2013-01-01"
HOUR = "2013-01-01T09"
OTHER_HOUR = "2013-01-01T10"
SEGMENTS = LockGranularity.SEGMENT


@pytest.fixture
def table(store: SegmentStore) -> Table:
    """A table whose segments have places."""
    return versioned_table(store)


def append(table: Table, count: int = 1, chunk: str = DAY, *, end: bool = True) -> str:
    """Append that many segments; returns the entry id."""
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    table.stage(ticket, build(table, ticket, named(table, entry_id, count), chunks=(chunk,)))
    if end:
        table.end(entry_id)
    return entry_id


def request(task: str, chunk: str = DAY, **options: object) -> LockRequest:
    """A request for an EXCLUSIVE lock, unless ``options`` say otherwise, of a group named as the task."""
    return LockRequest(group=task, task=task, interval=parse_chunk(chunk), **options)  # type: ignore[arg-type]


def lock(table: Table, task: str, chunk: str = DAY, **options: object) -> HeldLock:
    """A lock that must be granted."""
    result = table.locks.acquire(request(task, chunk, **options))
    assert isinstance(result, Granted), result
    return HeldLock(result.lock.lock_id, task, task)


def overwrite(
    table: Table, task: str, count: int = 1, chunk: str = DAY, *, held: Sequence[Interval] = (), end: bool = True
) -> str:
    """Overwrite ``chunk`` with that many segments under an EXCLUSIVE lock, which is released afterwards."""
    entry_id = table.start((), locks=[lock(table, task, chunk)], overwrites=held).entry_id
    ticket = table.open_stage(entry_id)
    table.stage(ticket, build(table, ticket, named(table, entry_id, count), chunks=(chunk,)))
    if end:
        table.end(entry_id, allow_empty=True)
        table.locks.release_group(task)
    return entry_id


def start_rewrite(table: Table, inputs: Iterable[Segment], task: str, chunk: str = DAY) -> str:
    """Start a rewrite of ``inputs`` into ``chunk`` under the lock that a compaction takes."""
    segments = list(inputs)
    if all(segment.chunk == chunk for segment in segments):
        partitions = frozenset(segment.partition for segment in segments)
        held = lock(table, task, chunk, granularity=SEGMENTS, partitions=partitions, priority=Priority.COMPACTION)
    else:
        held = lock(table, task, chunk, lock_type=LockType.REPLACE, priority=Priority.COMPACTION)
    return table.start([segment.name for segment in segments], locks=[held], rewrite=chunk).entry_id


def stage_rewrite(table: Table, entry_id: str, count: int = 1, chunk: str = DAY, stager: str = "build") -> None:
    """Stage the outputs of a rewrite."""
    ticket = table.open_stage(entry_id, stager)
    names = [f"{name}_{stager}" for name in named(table, entry_id, count)]
    table.stage(ticket, build(table, ticket, names, chunks=(chunk,)))


def rewrite(table: Table, inputs: Iterable[Segment], task: str, count: int = 1, chunk: str = DAY) -> str:
    """Rewrite ``inputs`` into ``count`` segments of ``chunk``."""
    entry_id = start_rewrite(table, inputs, task, chunk)
    stage_rewrite(table, entry_id, count, chunk)
    table.end(entry_id)
    table.locks.release_group(task)
    return entry_id


def visible(table: Table) -> list[Segment]:
    """What readers see, by partition id."""
    return sorted(table.snapshot().segments, key=lambda segment: (segment.chunk, segment.partition))


def entries(table: Table) -> list[str]:
    """The entries whose segments readers see."""
    return sorted({segment.entry_id for segment in visible(table)})


def states(table: Table) -> dict[str, list[str]]:
    """The states of each entry's registered segments."""
    found: dict[str, list[str]] = {}
    for status in table.segment_states():
        found.setdefault(status.segment.entry_id, []).append(status.state.value)
    return found


def lose(table: Table, entry_id: str) -> None:
    """A registry record of the entry is gone, by nobody's doing of ours."""
    shard = table._context.registry.of_entry(entry_id)[0]
    table.store.session.commit([Delete(shard.name.path, shard.version)])


# --- locks


def test_segment_locks_of_one_time_chunk_let_two_rewrites_of_other_segments_run_at_once(table: Table) -> None:
    for _ in range(4):
        append(table)
    first, second, third, fourth = visible(table)
    left = start_rewrite(table, [first, second], "left")
    right = start_rewrite(table, [third, fourth], "right")
    denied = table.locks.acquire(
        request("late", granularity=SEGMENTS, partitions=frozenset({second.partition}), priority=Priority.COMPACTION)
    )
    assert isinstance(denied, Denied) and [one.group for one in denied.blockers] == ["left"]
    for entry_id in (right, left):
        stage_rewrite(table, entry_id)
        table.end(entry_id)
    assert entries(table) == sorted([left, right])


def test_inputs_need_not_be_consecutive(table: Table) -> None:
    """Druid's root ranges cannot have a hole."""
    for _ in range(3):
        append(table)
    first, hole, third = visible(table)
    entry_id = rewrite(table, [first, third], "compaction")
    assert entries(table) == sorted([hole.entry_id, entry_id])


@pytest.mark.parametrize("granularity", ["SEGMENT", "TIME_CHUNK"])
def test_a_higher_priority_revokes_a_lock_of_either_granularity_and_its_push_changes_nothing(
    table: Table, granularity: str
) -> None:
    append(table)
    chunk = DAY if granularity == "SEGMENT" else "2013-01"
    entry_id = start_rewrite(table, visible(table), "compaction", chunk)
    [held] = table.locks.locks()
    assert held.granularity.value == granularity
    stage_rewrite(table, entry_id, chunk=chunk)
    before = visible(table)
    winner = overwrite(table, "winner", end=False)
    with pytest.raises(LockRevokedError, match="winner"):
        table.end(entry_id)
    assert visible(table) == before
    table.end(winner)
    assert entries(table) == [winner]


def test_the_same_or_a_lower_priority_is_denied_and_changes_nothing(table: Table) -> None:
    push = overwrite(table, "first", end=False)
    for priority in (Priority.BATCH, Priority.COMPACTION):
        denied = table.locks.acquire(request("second", priority=priority))
        assert isinstance(denied, Denied) and [one.group for one in denied.blockers] == ["first"]
    with pytest.raises(LockDeniedError, match="first"):
        append(table)
    table.end(push)
    assert entries(table) == [push]


def test_shared_locks_coexist_and_keep_overwrites_and_appends_out_until_the_last_is_released(table: Table) -> None:
    """SHARED is for work that needs the time to stand still, such as a check or an export."""
    kept = append(table)
    for task in ("export", "check"):
        lock(table, task, lock_type=LockType.SHARED)
    assert isinstance(table.locks.acquire(request("overwrite")), Denied)
    with pytest.raises(LockDeniedError):
        append(table)
    table.locks.release_group("export")
    assert isinstance(table.locks.acquire(request("overwrite")), Denied)
    table.locks.release_group("check")
    assert entries(table) == [kept]
    entry_id = overwrite(table, "overwrite")
    assert entries(table) == [entry_id]


def test_asking_again_is_the_same_lock_and_staging_again_gets_the_same_places(table: Table) -> None:
    first, again = table.locks.acquire(request("run")), table.locks.acquire(request("run"))
    assert isinstance(first, Granted) and isinstance(again, Granted)
    assert first.lock.lock_id == again.lock.lock_id and first.new and not again.new
    table.locks.release_group("run")
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    segments = build(table, ticket, named(table, entry_id, 3), chunks=(DAY, "2013-01-02"))
    table.stage(ticket, segments)
    places = [(one.name, one.version, one.partition) for one in table.staged(entry_id).segments]
    held = table.locks.locks()
    table.stage(ticket, segments)
    assert [(one.name, one.version, one.partition) for one in table.staged(entry_id).segments] == places
    assert table.locks.locks() == held and len(held) == 2


def test_a_revoked_lock_stays_revoked_for_its_owner_until_it_is_released(table: Table) -> None:
    lock(table, "slow", priority=Priority.COMPACTION)
    lock(table, "fast")
    table.locks.release_group("fast")
    assert isinstance(table.locks.acquire(request("slow", priority=Priority.COMPACTION)), Revoked)
    table.locks.release_group("slow")
    assert isinstance(table.locks.acquire(request("slow", priority=Priority.COMPACTION)), Granted)


# --- ids


def test_ids_come_one_by_one_or_in_bulk_under_the_lock_and_are_never_given_twice(table: Table) -> None:
    one, bulk = append(table), append(table, 3)
    aborted = append(table, 2, end=False)
    table.abort(aborted)
    last = append(table)
    ids = {segment.partition: segment.entry_id for segment in visible(table)}
    assert ids == {0: one, 1: bulk, 2: bulk, 3: bulk, 6: last}
    inputs = [segment for segment in visible(table) if segment.entry_id == bulk]
    output = rewrite(table, inputs, "compaction", 2)
    assert [one.partition for one in visible(table) if one.entry_id == output] == [7, 8], "one id space for all"


def test_an_allocation_that_is_denied_gives_no_id_and_takes_no_lock(table: Table) -> None:
    """Of two days one is locked by somebody else: all or nothing."""
    lock(table, "other", "2013-01-02")
    before = table.locks.read()
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    with pytest.raises(LockDeniedError, match="other"):
        table.stage(ticket, build(table, ticket, named(table, entry_id, 2), chunks=(DAY, "2013-01-02")))
    assert table.locks.read() == before


# --- overshadowing


def test_an_atomic_update_group_is_standby_until_all_of_it_is_there_and_then_visible_at_once(table: Table) -> None:
    old = append(table, 2)
    entry_id = start_rewrite(table, visible(table), "compaction")
    stage_rewrite(table, entry_id, 1, stager="one")
    assert states(table) == {old: ["visible"] * 2, entry_id: ["standby"]}
    stage_rewrite(table, entry_id, 2, stager="two")
    assert states(table) == {old: ["visible"] * 2, entry_id: ["standby"] * 3}
    table.end(entry_id)
    assert states(table) == {old: ["overshadowed"] * 2, entry_id: ["visible"] * 3}


def test_overshadowing_over_several_hops_and_back_again_one_loss_at_a_time(table: Table) -> None:
    """Rewrites of rewrites. Each loss brings back what that rewrite was made from, with what was appended since."""
    first, second = append(table), append(table)
    lower = rewrite(table, visible(table), "lower", 2)
    late = append(table)
    upper = rewrite(table, visible(table), "upper", 2)
    top = rewrite(table, visible(table), "top")
    assert entries(table) == [top]
    assert states(table)[first] == states(table)[second] == ["overshadowed"]
    lose(table, top)
    assert entries(table) == [upper]
    lose(table, upper)
    assert entries(table) == sorted([lower, late])
    lose(table, lower)
    assert entries(table) == sorted([first, second, late])


def test_half_of_a_group_that_is_lost_hides_the_other_half_and_brings_the_inputs_back(table: Table) -> None:
    old = append(table, 2)
    entry_id = start_rewrite(table, visible(table), "compaction")
    for stager in ("one", "two"):
        stage_rewrite(table, entry_id, 1, stager=stager)
    table.end(entry_id)
    lose(table, entry_id)
    assert states(table) == {old: ["visible"] * 2, entry_id: ["standby"]}


def test_what_was_replaced_on_purpose_does_not_come_back_with_a_loss(table: Table) -> None:
    """One output was removed since. When the other one is lost, the inputs would show the removed rows again."""
    old = append(table, 2)
    group = start_rewrite(table, visible(table), "compaction")
    for stager in ("one", "two"):
        stage_rewrite(table, group, 1, stager=stager)
    table.end(group)
    lost, removed = sorted(table.snapshot().names)
    table.end(table.start([removed]).entry_id, allow_empty=True)
    lose(table, group)
    assert registered(table) == {removed, *named(table, old, 2)} and lost.endswith("_one")
    assert states(table) == {old: ["overshadowed"] * 2, group: ["overshadowed"]}


def test_an_overwrite_whose_record_is_lost_does_not_fall_back(table: Table) -> None:
    """It did not bring the rows of what it hides: falling back would show what somebody replaced on purpose. Nor can it
    be reverted, for a segment that is gone may have been replaced since: the way back is another push."""
    old = append(table)
    entry_id = overwrite(table, "overwrite")
    lose(table, entry_id)
    assert states(table) == {old: ["overshadowed"]}
    with pytest.raises(RevertRefusedError, match="to-gone"):
        table.revert(entry_id)
    again = overwrite(table, "again")
    assert entries(table) == [again]


# --- time


def test_a_later_overwrite_hides_an_earlier_one_and_appends_in_between_and_reverting_it_brings_them_back(
    table: Table,
) -> None:
    append(table)
    first = overwrite(table, "first")
    beside = append(table)
    versions = {segment.entry_id: segment.version for segment in visible(table)}
    assert versions[first] < versions[beside], "an append after an overwrite is newer, and lies beside it"
    second = overwrite(table, "second")
    assert entries(table) == [second]
    table.revert(second)
    assert entries(table) == sorted([first, beside])


def test_an_overwrite_of_an_hour_cuts_a_day_and_one_without_rows_leaves_a_gap(store: SegmentStore) -> None:
    table = versioned_table(store, granularity="HOUR")
    day = append(table, chunk=DAY)
    overwrite(table, "hour", chunk=HOUR)
    overwrite(table, "gap", 0, OTHER_HOUR, held=[parse_chunk(OTHER_HOUR)])
    [cut] = [segment for segment in visible(table) if segment.entry_id == day]
    start, end = cut.interval.start_ms, cut.interval.end_ms
    nine, eleven = parse_chunk(HOUR).start_ms, parse_chunk(OTHER_HOUR).end_ms
    assert cut.visible_in == (Interval(start, nine), Interval(eleven, end))


def test_appends_go_on_beside_an_overwrite_of_other_time_and_wait_for_one_of_the_same(store: SegmentStore) -> None:
    table = versioned_table(store, granularity="HOUR")
    running = overwrite(table, "overwrite", chunk=HOUR, end=False)
    elsewhere = append(table, chunk=OTHER_HOUR)
    with pytest.raises(LockDeniedError, match="overwrite"):
        append(table, chunk=HOUR)
    table.end(running)
    table.locks.release_group("overwrite")
    after = append(table, chunk=HOUR)
    assert entries(table) == sorted([running, elsewhere, after])


def test_appends_go_on_beside_a_change_of_granularity_and_stay_beside_its_output(store: SegmentStore) -> None:
    table = versioned_table(store, granularity="HOUR")
    append(table, chunk=HOUR)
    running = start_rewrite(table, visible(table), "compaction")
    late = append(table, chunk=HOUR)
    stage_rewrite(table, running)
    table.end(running)
    table.locks.release_group("compaction")
    assert [segment.chunk for segment in visible(table)] == [DAY, HOUR]
    assert entries(table) == sorted([running, late])
    coarser = rewrite(table, visible(table), "again")
    assert entries(table) == [coarser]
    table.revert(coarser)
    assert entries(table) == sorted([running, late])


def test_a_version_is_given_out_once_and_a_rewrite_takes_the_newest_of_its_inputs(table: Table) -> None:
    """Two pushes never share a version, so what one push brings hides nothing of itself."""
    for _ in range(3):
        append(table)
    versions = [segment.version for segment in visible(table)]
    assert sorted(set(versions)) == versions
    rewrite(table, visible(table), "compaction", 2)
    assert [segment.version for segment in visible(table)] == [versions[-1]] * 2


def test_what_is_cut_waits_for_the_overwrite_so_that_a_rollback_never_depends_on_a_compaction(
    store: SegmentStore,
) -> None:
    table = versioned_table(store, granularity="HOUR")
    day = append(table, chunk=DAY)
    hour = overwrite(table, "hour", chunk=HOUR)
    [cut] = [segment for segment in visible(table) if segment.entry_id == day]
    with pytest.raises(StartRefusedError, match="overwrite-unsettled"):
        start_rewrite(table, [cut], "compaction")
    table.revert(hour)
    assert entries(table) == [day] and visible(table)[0].visible_in == ()


def test_reading_by_place_is_not_needed_every_segment_is_found_by_its_name(table: Table) -> None:
    """Names are unique in a table; two places never mean one segment."""
    append(table, 3)
    segments = visible(table)
    places = {(segment.chunk, segment.version, segment.partition) for segment in segments}
    assert len(places) == len({segment.name for segment in segments}) == 3
    assert {segment.name for segment in segments} == registered(table)


def test_a_wider_lock_leaves_the_narrower_ones_of_its_task(table: Table) -> None:
    """What was staged under the narrower lock still relies on it."""
    narrow = lock(table, "run", DAY)
    entry_id = table.start((), locks=[narrow]).entry_id
    ticket = table.open_stage(entry_id)
    table.stage(ticket, build(table, ticket, named(table, entry_id, 1), chunks=(DAY,)))
    wide = lock(table, "run", "2013-01")
    assert [one.lock_id for one in table.locks.locks() if one.active] == [narrow.lock_id, wide.lock_id]
    table.end(entry_id)
    assert entries(table) == [entry_id]
