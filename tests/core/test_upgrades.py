"""Concurrent append and replace: what is appended while a REPLACE lock is held is carried into the new version.

In every test the table's rows are known by the names of the appends that brought them; a compaction's segment stands
for those it was made from. Each snapshot must show every row exactly once.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from airflow_provider_segments.compaction.locks import choose_lock
from airflow_provider_segments.compaction.plan import whole_group
from airflow_provider_segments.exceptions import (
    EndRefusedError,
    EntryNotFoundError,
    InvalidConfigError,
    InvalidNameError,
    LockDeniedError,
    LockLostError,
    RefusedError,
    RevertRefusedError,
    StageRefusedError,
)
from airflow_provider_segments.lineage import cleanup, upgrade
from airflow_provider_segments.lineage.guard import Rewrite
from airflow_provider_segments.lineage.stage import StageTicket
from airflow_provider_segments.locking import (
    APPEND_VERSION,
    LockRequest,
    LockType,
    Priority,
    granted_lock,
)
from airflow_provider_segments.model.config import TableConfig
from airflow_provider_segments.model.identity import HeldLock
from airflow_provider_segments.model.interval import parse_chunk
from airflow_provider_segments.model.segment import (
    SegmentRecord,
    StagedSegment,
    TimelinePlace,
    Upgrade,
    decode_records,
    encode_record,
)
from airflow_provider_segments.store import SegmentStore, Table
from airflow_provider_segments.timeline import Placed, SegmentState, as_svg, timeline_lines
from tests.support.owned import build_owned
from tests.support.sessions import CountingSession, settings
from tests.support.tables import (
    DAY_MS,
    HOUR_MS,
    HandClock,
    named,
    object_path,
    on_clock,
    on_session,
    states,
    visible,
)

overlays = importlib.import_module("airflow_provider_segments.timeline.overlay")  # the package has a function so named
DAY = "2013-01-01"
NEXT_DAY = "2013-01-02"
MONTH = "2013-01"
CONFIG = {
    "tableName": "t",
    "segmentsConfig": {"timeColumnName": "ts", "replacedSegmentsRetentionPeriod": "1h"},
    "segmentBuildConfig": {"segmentLocking": "concurrent"},
}


@dataclass
class Open:
    """A push that was staged and not ended."""

    entry_id: str
    names: list[str]


@dataclass
class Lab:
    """A table with concurrent locks, and which rows each of its segments has."""

    store: SegmentStore
    hand: HandClock
    table: Table
    rows: dict[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def make(cls, store: SegmentStore, name: str = "t") -> Lab:
        hand = HandClock()
        mine = on_clock(store, hand.clock())
        mine.apply_config(TableConfig.from_json({**CONFIG, "tableName": name}))
        return cls(mine, hand, mine.table(name))

    def prepare(self, count: int = 1, chunks: Sequence[str] = (DAY,), **start: Any) -> Open:
        """An append up to its end."""
        entry_id = self.table.start(**start).entry_id
        names = named(self.table, entry_id, count)
        ticket = self.table.open_stage(entry_id)
        self.table.stage(ticket, _build(self.table, ticket, names, chunks))
        self.rows |= {name: frozenset([name]) for name in names}
        return Open(entry_id, names)

    def append(self, count: int = 1, chunks: Sequence[str] = (DAY,)) -> Open:
        """A whole append."""
        made = self.prepare(count, chunks)
        self.table.end(made.entry_id)
        return made

    def lock(self, chunk: str = DAY, lock_type: LockType = LockType.REPLACE, group: str = "compaction") -> HeldLock:
        """A time-chunk lock with the priority of compaction."""
        request = LockRequest(
            group=group, task="c", interval=parse_chunk(chunk), lock_type=lock_type, priority=Priority.COMPACTION
        )
        lock = granted_lock("t", self.table.locks.acquire(request))
        return HeldLock(lock.lock_id, group, "c")

    def rewrite(self, inputs: Sequence[str], held: HeldLock, chunk: str = DAY, count: int = 1, **start: Any) -> Open:
        """A compaction of ``inputs`` up to its end; its segments share their rows."""
        at = parse_chunk(chunk)
        started = self.table.start(inputs, locks=[held], rewrite=Rewrite(at.start_ms, at.end_ms), **start)
        names = named(self.table, started.entry_id, count)
        ticket = self.table.open_stage(started.entry_id)
        self.table.stage(ticket, _build(self.table, ticket, names, (chunk,)))
        rows = sorted(row for name in inputs for row in self.rows[name])
        self.rows |= {name: frozenset(rows[number::count]) for number, name in enumerate(names)}
        return Open(started.entry_id, names)

    def end(self, push: Open, held: HeldLock | None = None) -> None:
        """End, and give the lock back."""
        self.table.end(push.entry_id)
        if held is not None:
            self.release(held)

    def release(self, held: HeldLock) -> None:
        self.table.locks.release(held.group, held.task)

    def compact(self, inputs: Sequence[str], chunk: str = DAY, count: int = 1) -> Open:
        """A whole compaction."""
        held = self.lock(chunk)
        made = self.rewrite(inputs, held, chunk, count)
        self.end(made, held)
        return made

    def overwrite(self, chunk: str = DAY) -> Open:
        """A push under an EXCLUSIVE lock that replaces nothing by name."""
        held = self.lock(chunk, LockType.EXCLUSIVE)
        made = self.prepare(1, (chunk,), locks=[held])
        self.end(made, held)
        return made

    def apply(self, **build: Any) -> None:
        """Change the table's config."""
        self.store.apply_config(TableConfig.from_json({**CONFIG, "segmentBuildConfig": build}))

    def seen(self) -> list[str]:
        """The rows of a snapshot of everything, sorted; the same as day by day."""
        whole = sorted(row for name in visible(self.table) for row in self.rows[name])
        by_day: set[str] = set()
        for chunk in (DAY, NEXT_DAY):
            at = parse_chunk(chunk)
            by_day.update(self.table.snapshot(at.start_ms, at.end_ms).names)
        assert by_day == set(self.table.snapshot().names)
        return whole

    def appended(self) -> list[str]:
        """All rows that were ever appended."""
        return sorted(name for name, rows in self.rows.items() if rows == {name})

    def places(self) -> dict[str, tuple[str, str, int]]:
        """Chunk, version and id of each visible segment."""
        return {one.name: (one.chunk, one.version, one.partition) for one in self.table.snapshot().segments}

    def records(self) -> dict[str, SegmentRecord]:
        shards = self.table._context.registry.read(lambda _: True).shards
        return {record.name: record for shard in shards for record in shard.records}

    def settle(self) -> None:
        """Clean up until nothing is left to do, and delete what was let go."""
        for _ in range(4):
            self.hand.advance(3 * HOUR_MS)
            self.table.cleanup()
        self.hand.advance(DAY_MS)
        self.store.deleter().drain()
        name = self.table.name
        folder = object_path(self.table, name)
        there = (
            {str(path.relative_to(folder.parent)) for path in folder.rglob("*.parquet")} if folder.exists() else set()
        )
        shards = self.table._context.registry.read(lambda _: True).shards
        assert there == {f"{name}/{shard.name.entry_id}/{one.file}" for shard in shards for one in shard.records}


def _build(table: Table, ticket: StageTicket, names: Sequence[str], chunks: Sequence[str]) -> list[StagedSegment]:
    """An object that says whose it is for each name; chunks take turns, and times are those of the chunk."""
    staged = build_owned(table, ticket, names, chunks=chunks)
    at = [parse_chunk(one.chunk).start_ms for one in staged]
    return [
        StagedSegment(one.chunk, msgspec.structs.replace(one.record, min_time_ms=start, max_time_ms=start + 1))
        for one, start in zip(staged, at, strict=True)
    ]


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
    [one] = _build(lab.table, ticket, named(lab.table, entry_id, 1), (DAY,))
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
    from airflow_provider_segments.lineage import end

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


# --- every interleaving of two ends, a rollback, a clean-up and readers, one preemption at any write ------------------


class Killed(BaseException):
    """The process ends here."""


class StoppingSession(CountingSession):
    """Calls ``stop`` around each write, with the number of the moment: twice a write, before and after."""

    stop: Callable[[int], object] = staticmethod(lambda _: None)
    moments = 0

    def before(self) -> None:
        self._moment()

    def after(self) -> None:
        self._moment()

    def _moment(self) -> None:
        self.moments += 1
        self.stop(self.moments)


@pytest.fixture
def stopping(zk_hosts: str) -> Iterator[StoppingSession]:
    session = StoppingSession.connect(settings(zk_hosts))
    yield session
    session.close()


class Scene:
    """A base of two rows that a replacement rewrites, beside an append that ended meanwhile and two that are staged."""

    def __init__(self, store: SegmentStore, name: str, prepare: str = "") -> None:
        self.lab = lab = Lab.make(store, name)
        first = lab.append(2)
        held = lab.lock()
        self.late = lab.append()
        self.a, self.b = lab.prepare(), lab.prepare()
        self.r = lab.rewrite(first.names, held, count=2)
        self.base = [*first.names, *self.late.names]
        for step in prepare.split():
            self.act(step, lab.table)

    def act(self, step: str, table: Table) -> None:
        """One call; refusals are answers, too."""
        with suppress(RefusedError, EntryNotFoundError):
            self._act(step, table)

    def _act(self, step: str, table: Table) -> None:
        match step:
            case "end_a":
                table.end(self.a.entry_id)
            case "end_b":
                table.end(self.b.entry_id)
            case "end_r":
                table.end(self.r.entry_id)
            case "revert":
                table.revert(self.r.entry_id, force=True, identity="revert")
            case "clean":
                self.lab.hand.advance(3 * HOUR_MS)
                table.cleanup()

    def ended(self) -> set[str]:
        found = states(self.lab.table)
        running = ("IN_PROGRESS", "REVERTED")
        return {name for push in (self.a, self.b) if found.get(push.entry_id) not in running for name in push.names}

    def check(self) -> None:
        """Every row that was ended exactly once; a reader may be a moment older than the look at the lineage."""
        before = self.ended()
        seen = self.lab.seen()
        after = self.ended()
        assert len(set(seen)) == len(seen), f"twice: {seen}"
        assert {*self.base, *before} <= set(seen) <= {*self.base, *after}, "rows are missing, or came too early"


STEPS = ("end_r", "end_a", "revert", "clean")
HISTORIES = ("", "end_r", "end_r end_b", "end_r revert", "end_r end_b revert clean", "end_b", "end_a end_r revert")


RACES = [
    ("", "end_r", ("end_a",)),
    ("end_b", "end_a", ("end_r",)),
    ("end_r", "end_a", ("revert",)),
    ("end_r", "revert", ("end_a",)),
    ("", "end_r", ("revert",)),
    ("end_r end_b revert clean", "clean", ("end_a",)),
    ("end_r end_b revert clean", "end_a", ("clean", "clean")),
]


@pytest.mark.parametrize(("history", "outer", "inner"), RACES)
def test_whatever_happens_at_any_write_of_a_step_each_row_is_seen_once(
    store: SegmentStore, stopping: StoppingSession, history: str, outer: str, inner: Sequence[str]
) -> None:
    """The races that matter most, and a reader at every write."""
    for moment in itertools.count(1):
        if not _preempted(store, stopping, history, outer, inner, moment):
            break


@pytest.mark.slow
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("outer", STEPS)
def test_all_histories_with_one_step_at_any_write_of_another(
    store: SegmentStore, stopping: StoppingSession, outer: str, history: str
) -> None:
    others = [step for step in STEPS if step != outer]
    for inner in [*itertools.permutations(others, 1), *itertools.permutations(others, 2), ("end_b", "end_a")]:
        for moment in itertools.count(1):
            if not _preempted(store, stopping, history, outer, inner, moment):
                break


def _preempted(
    store: SegmentStore, stopping: StoppingSession, history: str, outer: str, inner: Sequence[str], moment: int
) -> bool:
    """Run ``outer``, and all of ``inner`` at its n-th moment; whether it came to that."""
    scene = Scene(store, f"t{next(COUNT)}", history)
    came = []

    def stop(now: int) -> None:
        scene.check()
        if now == moment:
            came.append(now)
            for step in inner:
                scene.act(step, scene.lab.table)
                scene.check()

    stopping.moments, stopping.stop = 0, stop  # type: ignore[method-assign]
    try:
        scene.act(outer, on_session(scene.lab.store, stopping).table(scene.lab.table.name))
        scene.check()
        for step in (*STEPS, "clean", "clean"):
            stopping.stop = lambda _: None  # type: ignore[method-assign]
            scene.act(step, scene.lab.table)
            scene.check()
    except AssertionError as error:
        raise AssertionError(f"{history!r}, then {outer} with {inner} at moment {moment}: {error}") from error
    return bool(came)


COUNT = itertools.count()


@pytest.mark.parametrize(
    ("history", "step"),
    [
        ("", "end_r"),
        ("end_r", "end_a"),
        ("end_r end_b revert clean", "clean"),
        pytest.param("end_b", "end_r", marks=pytest.mark.slow),
        pytest.param("end_r end_b", "revert", marks=pytest.mark.slow),
        pytest.param("end_r end_b revert", "clean", marks=pytest.mark.slow),
    ],
)
def test_a_step_that_was_killed_at_any_write_is_run_again_or_rolled_back(
    store: SegmentStore, stopping: StoppingSession, history: str, step: str
) -> None:
    for then in ([step], ["revert", "clean", "clean", "end_a"]):
        for moment in itertools.count(1):
            scene = Scene(store, f"t{next(COUNT)}", history)
            if not _killed(scene, stopping, step, moment):
                break
            scene.check()
            for again in then:
                scene.act(again, scene.lab.table)
                scene.check()
            for again in ("end_r", "end_a", "end_b"):
                scene.act(again, scene.lab.table)
            scene.check()
            scene.lab.settle()
            scene.check()


def _killed(scene: Scene, stopping: StoppingSession, step: str, moment: int) -> bool:
    def stop(now: int) -> None:
        if now == moment:
            raise Killed

    stopping.moments, stopping.stop = 0, stop  # type: ignore[method-assign]
    try:
        scene.act(step, on_session(scene.lab.store, stopping).table(scene.lab.table.name))
    except Killed:
        return True
    return False


# --- what happens without each guard ---------------------------------------------------------------------------------


def test_without_upgrades_at_the_end_of_a_replacement_appended_rows_are_lost(
    store: SegmentStore, stopping: StoppingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade._Carrying, "run", lambda *_: None)
    with pytest.raises(AssertionError, match="missing"):
        _preempted(store, stopping, "", "end_r", (), 1)


def test_without_places_for_a_late_append_its_rows_are_lost(
    store: SegmentStore, stopping: StoppingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade._Following, "run", lambda *_: None)
    with pytest.raises(AssertionError, match="missing"):
        _preempted(store, stopping, "end_r", "end_a", (), 1)


def test_were_places_to_count_without_their_version_what_a_rollback_brings_back_is_hidden(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, good = lab.append(), lab.append()
    rewrite = lab.compact(first.names)
    lab.table.revert(rewrite.entry_id)
    assert lab.seen() == sorted([*first.names, *good.names])
    monkeypatch.setattr(overlays._Carried, "of", _all_of_them)
    assert lab.seen() == good.names


def _all_of_them(further: Iterable[Placed], *_: Any) -> overlays._Carried:
    places = list(further)
    return overlays._Carried(places, {one.record.name: one.within for one in places if one.within})


def test_without_a_place_in_every_lineage_that_is_compared_the_race_loses_rows(
    store: SegmentStore, stopping: StoppingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Druid #16393: decided once, before the first try, is not enough."""
    once: set[str] = set()
    settle = upgrade.settle_places

    def first_only(context: Any, stored: Any, push: Any, *rest: Any) -> bool:
        if push.entry.entry_id in once:
            return True
        once.add(push.entry.entry_id)
        return settle(context, stored, push, *rest)

    from airflow_provider_segments.lineage import end

    monkeypatch.setattr(end, "settle_places", first_only)
    with pytest.raises(AssertionError, match="missing"):
        for moment in range(1, 30):
            _preempted(store, stopping, "", "end_a", ("end_r",), moment)
