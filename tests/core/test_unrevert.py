"""Rollbacks that cannot hurt: what would empty a table is refused, and what was rolled back can be brought back."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.lineage.guard import GuardState
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.replacement.forecast import Totals
from airflow_provider_segments.core.retention import cleanup
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import CommitConflictError, SetData
from airflow_provider_segments.exceptions import (
    EntryNotFoundError,
    RefusedError,
    RevertRefusedError,
    SegmentsError,
    UnrevertRefusedError,
)
from tests.support.tables import (
    HOUR_MS,
    HandClock,
    contents,
    make_table,
    object_path,
    on_clock,
    push,
    queued_keys,
    registered,
    stage,
    states,
    unchanged,
    visible,
)


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
    """A REFRESH table that keeps what was rolled back for two hours."""
    return make_table(timed, "t", "REFRESH", revertedSegmentsRetentionPeriod="2h")


def refused(rule: str, act: Any, *args: Any, **how: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        act(*args, **how)
    assert caught.value.rule == rule, caught.value
    return caught.value


# --- a table is not emptied by accident


def test_revert_that_would_leave_no_visible_rows_is_refused_and_changes_nothing(table: Table) -> None:
    """Two pushes, rolled back twice: the second rollback used to leave the table with 0 rows."""
    first, second = push(table, 2), push(table, 3)
    table.revert(second)
    before = contents(table.store)
    error = refused("would-be-empty", table.revert, first)
    assert "2 rows" in str(error)
    assert "--allow-empty" in error.hint
    assert str(refused("would-be-empty", table.preview_revert, first)) == str(error)
    assert contents(table.store) == before
    assert table.revert(first, allow_empty=True).after == Totals(0, 0, 0)
    assert visible(table) == set()


def test_segments_without_rows_do_not_count_as_visible_rows(table: Table) -> None:
    first = push(table, 2)
    second = table.start().entry_id
    stage(table, second, ["a"], rows=0)
    table.end(second)
    third = push(table, 1)
    table.revert(third, allow_empty=True)
    assert table.revert(second).after == Totals(2, 2, sum(segment.bytes for segment in table.snapshot().segments))
    refused("would-be-empty", table.revert, first)


def test_revert_and_unrevert_tell_what_readers_saw_and_see(table: Table) -> None:
    push(table, 2)
    small = table.snapshot()
    second = push(table, 3)
    large = table.snapshot()
    before, after = (Totals(len(taken), taken.rows, taken.bytes) for taken in (large, small))
    preview, done = table.preview_revert(second), table.revert(second)
    assert (preview.before, preview.after, done.before, done.after) == (before, after, before, after)
    preview, done = table.preview_unrevert(second), table.unrevert(second)
    assert (preview.before, preview.after, done.before, done.after) == (after, before, after, before)


def test_abort_of_a_push_in_progress_may_leave_an_empty_table(table: Table) -> None:
    aborted = table.revert(push(table, end=False), force=True)
    assert (aborted.before, aborted.after) == (None, None)


# --- what was rolled back can be brought back


def test_unrevert_brings_back_exactly_what_was_rolled_back(table: Table) -> None:
    push(table, 2)
    second = push(table, 3)
    seen = visible(table)
    table.revert(second)
    done = table.unrevert(second)
    assert visible(table) == seen == set(done.reappeared)
    entry = table.lineage().find(second)
    assert entry.state is EntryState.COMPLETED
    assert table.entry_state(second) is EntryState.COMPLETED
    assert table.revert(second).after == done.before


def test_lineage_of_an_unreverted_entry_is_one_that_pinot_reads(table: Table) -> None:
    """Four elements and one of Pinot's three states; the time is that of the present state."""
    first = push(table, 2)
    second = push(table, 1)
    table.revert(second)
    table.unrevert(second)
    entry = table.lineage().find(second)
    assert entry.extra == ()
    assert entry.timestamp_ms == table.store.clock.now_ms()
    assert entry.segments_from == table.lineage().find(first).segments_to


def test_what_was_rolled_back_is_kept_for_a_period_of_its_own(table: Table, hand: HandClock) -> None:
    push(table, 2)
    second = push(table, 3)
    brought = visible(table)
    table.revert(second)
    hand.advance(2 * HOUR_MS)
    assert "revertedSegmentsRetentionPeriod" in table.retain(dry_run=True).kept[second]
    table.retain()
    assert brought <= registered(table)
    table.unrevert(second)
    assert visible(table) == brought
    table.revert(second)
    hand.advance(2 * HOUR_MS + 1)
    assert table.retain(dry_run=True).marked[second].freed.segments == 3
    table.retain()
    assert brought.isdisjoint(registered(table))
    assert len(queued_keys(table.store, "t")) == 3
    error = refused("brought-are-deleted", table.unrevert, second)
    assert "Push the data again" in error.hint
    hand.advance(HOUR_MS)
    table.retain()
    assert second not in states(table)


def test_period_of_what_was_rolled_back_is_that_of_replaced_segments_unless_it_is_given() -> None:
    def config(**periods: str) -> TableConfig:
        return TableConfig.from_json({"tableName": "t", "segmentsConfig": periods})

    assert config().reverted_retention_ms == config().replaced_retention_ms == 4 * HOUR_MS
    assert config(replacedSegmentsRetentionPeriod="7h").reverted_retention_ms == 7 * HOUR_MS
    both = config(replacedSegmentsRetentionPeriod="7h", revertedSegmentsRetentionPeriod="1h")
    assert (both.replaced_retention_ms, both.reverted_retention_ms) == (7 * HOUR_MS, HOUR_MS)


def test_aborted_push_is_marked_at_once_and_cannot_be_brought_back(table: Table) -> None:
    push(table, 1)
    aborted = push(table, 2, end=False)
    table.abort(aborted)
    assert table.lineage().is_cleaning(aborted)
    refused("brought-are-deleted", table.unrevert, aborted)
    assert table.retain().marked[aborted].freed.segments == 2


def test_push_that_a_forced_start_reverted_cannot_be_brought_back(table: Table) -> None:
    push(table, 1)
    unfinished = push(table, 2, end=False)
    push(table, 3, force_cleanup=True)
    refused("brought-are-deleted", table.unrevert, unfinished)


def test_push_that_another_tool_aborted_cannot_be_brought_back(table: Table) -> None:
    """Pinot's controller knows neither our marks nor our guards."""
    push(table, 1)
    aborted = push(table, 2, end=False)
    stored = table._context.records.read()
    foreign = stored.lineage.put(stored.lineage.find(aborted).moved_to(EntryState.REVERTED, 0))
    table.store.session.commit([table._context.records.write(stored, foreign)])
    refused("never-completed", table.unrevert, aborted)
    table.cleanup()
    assert table.lineage().is_cleaning(aborted)


@pytest.mark.parametrize("ended", [True, False])
def test_unrevert_is_refused_by_name_when_something_was_built_since(table: Table, ended: bool) -> None:
    push(table, 2)
    second = push(table, 3)
    table.revert(second)
    third = push(table, 1, end=ended)
    error = refused("built-since", table.unrevert, second)
    assert third in str(error)
    assert third in error.hint
    table.revert(third, force=True)
    table.unrevert(second)
    assert len(visible(table)) == 3


def test_first_push_of_a_refresh_table_does_not_come_back_beside_a_later_one(table: Table) -> None:
    first = push(table, 2)
    table.revert(first, allow_empty=True)
    second = push(table, 1)
    error = refused("refresh-pushed-since", table.unrevert, first)
    assert second in str(error)
    table.revert(second, allow_empty=True)
    table.unrevert(first)
    refused("refresh-pushed-since", table.unrevert, second)


def test_first_push_that_was_started_while_the_table_was_empty_does_not_end_beside_one_brought_back(
    table: Table,
) -> None:
    first = push(table, 2)
    table.revert(first, allow_empty=True)
    second = push(table, 1, end=False)
    table.unrevert(first)
    refused("refresh-must-replace", table.end, second)


def test_removal_that_was_rolled_back_asks_before_it_empties_the_table_again(table: Table) -> None:
    push(table, 2)
    removal = table.start().entry_id
    table.end(removal, allow_empty=True)
    table.revert(removal)
    refused("would-be-empty", table.unrevert, removal)
    assert table.unrevert(removal, allow_empty=True).after == Totals(0, 0, 0)
    assert visible(table) == set()


def test_unrevert_of_what_is_not_reverted_is_refused(table: Table) -> None:
    refused("not-reverted", table.unrevert, push(table, 1))
    with pytest.raises(EntryNotFoundError):
        table.unrevert("00000000-0000-4000-8000-000000000000")


def test_unrevert_is_refused_when_what_it_replaced_is_no_longer_seen(timed: SegmentStore) -> None:
    table = make_table(timed, "a")
    first = push(table, ["a", "b"])
    second = push(table, ["c"], ["a"])
    table.revert(second)
    table.revert(first, allow_empty=True)
    error = refused("from-not-visible", table.unrevert, second)
    assert "'a'" in str(error)


def test_retried_unrevert_recognises_its_own_and_a_second_one_is_refused(table: Table) -> None:
    push(table, 2)
    second = push(table, 3)
    table.revert(second)
    assert not table.unrevert(second, identity="work").already
    assert table.unrevert(second, identity="work").already
    refused("not-reverted", table.unrevert, second, identity="somebody else")


def test_preview_of_an_unrevert_changes_nothing(table: Table) -> None:
    push(table, 2)
    second = push(table, 3)
    table.revert(second)
    unchanged(table.store, lambda: table.preview_unrevert(second))


def test_past_is_told_through_reverts_and_unreverts(table: Table) -> None:
    """A snapshot of the past knows what an entry was then, however often it was rolled back and brought back."""
    first = push(table, 2)
    second = push(table, 3)
    table.revert(second)
    table.unrevert(second)
    third = push(table, 4)
    table.revert(third)
    table.revert(second)
    table.unrevert(second)
    assert table.snapshot(as_of=first).rows == 2
    assert table.snapshot(as_of=second).rows == 3
    guard = table._context.guard(second)
    states_then = [guard.state_at(turn) for turn in guard.guard.turns]
    assert states_then == [GuardState.COMPLETED, GuardState.REVERTED] * 2


def test_clean_up_marks_what_was_rolled_back_before_the_first_segment_goes(
    table: Table, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unrevert that lands between the look of the clean-up and its mark wins; the clean-up removes nothing."""
    push(table, 2)
    second = push(table, 3)
    brought = visible(table)
    table.revert(second)
    hand.advance(3 * HOUR_MS)
    marked = cleanup._marked

    def late(*args: Any) -> Any:
        monkeypatch.setattr(cleanup, "_marked", marked)
        table.unrevert(second)
        return marked(*args)

    monkeypatch.setattr(cleanup, "_marked", late)
    table.retain()
    assert visible(table) == brought


def test_without_the_mark_a_late_clean_up_removes_what_was_brought_back(
    table: Table, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert of the guard."""
    push(table, 2)
    second = push(table, 3)
    table.revert(second)
    hand.advance(3 * HOUR_MS)

    def unmarked(_: Any, stored: Any, __: Any) -> Any:
        table.unrevert(second)
        return stored

    monkeypatch.setattr(cleanup, "_marked", unmarked)
    table.retain()
    assert visible(table) == set()


def test_unrevert_that_meets_a_removal_looks_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    push(table, 2)
    second = push(table, 3)
    table.revert(second)
    commit, refusals = table.store.session.commit, list[str]()

    def removed_meanwhile(ops: Any) -> Any:
        if not refusals:
            path = table._context.registry.path
            node = table.store.session.get(path)
            assert node is not None
            commit([SetData(path, node.data, node.version)])
            with pytest.raises(CommitConflictError) as refusal:
                commit(ops)
            refusals.append(refusal.value.op.path)
        return commit(ops)

    monkeypatch.setattr(table.store.session, "commit", removed_meanwhile)
    table.unrevert(second)
    assert refusals == [table._context.registry.path]
    assert len(visible(table)) == 3


def test_segments_staged_beside_to_stay_hidden_through_revert_and_unrevert(
    table: Table, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ``end`` died before it removed what is not in ``to``; the reverted entry leaves all the same."""
    from airflow_provider_segments.core.replacement import end

    push(table, ["a"])
    second = table.start().entry_id
    stage(table, second, ["b", "c"])
    with monkeypatch.context() as dying:
        dying.setattr(end, "remove_rest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            table.end(second, ["b"])
    assert visible(table) == {"b"}
    table.revert(second)
    table.unrevert(second)
    assert visible(table) == {"b"}
    table.revert(second)
    for _ in range(3):
        hand.advance(3 * HOUR_MS)
        table.retain()
    assert second not in states(table)
    assert registered(table) == {"a"}


def test_what_is_marked_by_hand_can_no_longer_be_brought_back(table: Table) -> None:
    push(table, ["a"])
    second = push(table, ["b", "c"])
    table.revert(second)
    table.mark_ledgers(["b"])
    refused("brought-are-deleted", table.unrevert, second)


# --- which entry is the latest


def test_latest_stands_behind_a_revert_only_after_one(table: Table) -> None:
    first, second = push(table, 1), push(table, 2)
    table.check_not_behind_revert(second)
    table.revert(second)
    assert table.resolve_entry("latest") == first
    error = refused("behind-revert", table.check_not_behind_revert, first)
    assert second in str(error)
    assert isinstance(error, RevertRefusedError)
    table.unrevert(second)
    table.check_not_behind_revert(table.resolve_entry("latest"))


def test_latest_is_asked_for_among_states(table: Table) -> None:
    first, second = push(table, 1), push(table, 2)
    running = table.start().entry_id
    assert table.resolve_entry("latest", [EntryState.IN_PROGRESS]) == running
    table.abort(running)
    with pytest.raises(EntryNotFoundError, match="no push in progress"):
        table.resolve_entry("latest", [EntryState.IN_PROGRESS])
    with pytest.raises(EntryNotFoundError, match="can be brought back"):
        table.resolve_entry("latest", [EntryState.REVERTED])
    table.revert(second)
    table.revert(first, allow_empty=True)
    assert table.resolve_entry("latest", [EntryState.REVERTED]) == first


# --- a REFRESH table in random hands


def test_random_hands_never_show_two_snapshots_of_a_refresh_table_and_lose_none_that_is_kept(
    timed: SegmentStore, hand: HandClock, tmp_path: Path
) -> None:
    """Pushes, forced ones too, reverts, unreverts, aborts and retention in any order: readers see one whole push or
    nothing, with all of its objects, and nothing but an allowed revert empties the table."""
    taken: Counter[str] = Counter()
    wanted = {"push", "start", "end", "revert", "unrevert", "abort", "retain", "built-since", "would-be-empty"}
    for seed in range(60):
        table = make_table(timed, f"r{seed}", "REFRESH", revertedSegmentsRetentionPeriod="2h")
        _RandomHands(table, hand, seed).play(40, taken)
        if seed >= 5 and wanted <= {*taken}:
            return
    raise AssertionError(f"not everything has happened: {taken}")


class _RandomHands:
    def __init__(self, table: Table, hand: HandClock, seed: int) -> None:
        self.table, self.hand, self.chance = table, hand, random.Random(seed)
        self.running: list[str] = []
        self.brought: dict[str, frozenset[str]] = {}
        self.log: list[str] = []

    def play(self, steps: int, taken: Counter[str]) -> None:
        for _ in range(steps):
            before = visible(self.table)
            kinds = ["push", "start", "end", "revert", "revert", "unrevert", "unrevert", "abort", "retain", "time"]
            kind = self.chance.choice(kinds)
            try:
                getattr(self, kind)()
                outcome = kind
            except SegmentsError as error:
                outcome = getattr(error, "rule", type(error).__name__)
            taken[outcome] += 1
            self.log.append(f"{kind}: {outcome}")
            after = visible(self.table)
            assert after in ({*()}, *self.brought.values()), self.log
            assert after or not before or kind == "revert", self.log
            for segment in self.table.snapshot().segments:
                assert object_path(self.table, segment.key).exists(), self.log

    def push(self) -> None:
        self.start()
        self.end()

    def start(self) -> None:
        entry_id = self.table.start(force_cleanup=self.chance.random() < 0.3).entry_id
        names = [f"{entry_id[:8]}_{number}" for number in range(self.chance.randint(1, 3))]
        stage(self.table, entry_id, names)
        self.running.append(entry_id)
        self.brought[entry_id] = frozenset(names)

    def end(self) -> None:
        if self.running:
            self.table.end(self.running.pop())

    def revert(self) -> None:
        self.table.revert(self.some(EntryState.COMPLETED), allow_empty=self.chance.random() < 0.3)

    def unrevert(self) -> None:
        self.table.unrevert(self.some(EntryState.REVERTED))

    def abort(self) -> None:
        self.table.abort(self.some(EntryState.IN_PROGRESS))

    def retain(self) -> None:
        self.table.retain()
        self.table.store.deleter().drain()

    def time(self) -> None:
        self.hand.advance(self.chance.choice([1, HOUR_MS, 3 * HOUR_MS]))

    def some(self, state: EntryState) -> str:
        found = [entry.entry_id for entry in self.table.lineage().in_state(state)]
        if not found:
            raise UnrevertRefusedError("nothing-there", "nothing there", table="")
        return self.chance.choice(sorted(found))


# --- a start that is run again without its build


def test_end_of_work_that_was_started_again_without_its_build_is_refused_even_if_it_may_be_empty(table: Table) -> None:
    """Clearing ``end`` of a successful run clears ``start``, which makes a new entry, and not the build. An empty end
    of that entry would take away all that the run had pushed."""
    first = push(table, 3, identity="run")
    again = table.start(identity="run").entry_id
    assert again != first
    for allow_empty in (False, True):
        error = refused("not-built", table.end, again, allow_empty=allow_empty)
        assert first in str(error)
        assert "empty" not in error.hint
    assert len(visible(table)) == 3


def test_removal_that_builds_nothing_may_be_done_again_by_the_same_work(timed: SegmentStore) -> None:
    table = make_table(timed, "a")
    for name in ("a", "b"):
        push(table, [name])
        removal = table.start([name], identity="removal").entry_id
        assert "Run the build first" in refused("nothing-staged", table.end, removal).hint
        table.end(removal, allow_empty=True)
    assert visible(table) == set()
