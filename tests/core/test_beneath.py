"""What an overwrite hides: it is never seen again by accident, and leaves the store in its time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from airflow_provider_segments.core.lineage.guard import Rewrite
from airflow_provider_segments.core.locking import APPEND_VERSION, LockType
from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.retention import beneath, cleanup
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import LockDeniedError, LockLostError, RefusedError
from tests.core.versioned_model import (
    HOUR_MS,
    Push,
    Row,
    World,
    day_chunk,
    hour_chunk,
    shown_rows,
    split,
    versioned_config,
)
from tests.support.machines import run_machine
from tests.support.tables import QUICK, HandClock

CLUSTERS = itertools.count()
STEPS = itertools.count()
NINE, TEN, DAY = hour_chunk(0, 9), hour_chunk(0, 10), day_chunk(0)


@pytest.fixture
def world(store: SegmentStore) -> World:
    return dense(World.make(store, HandClock()))


def dense(world: World) -> World:
    """Each hour of a day has rows."""
    world.density = 24
    return world


def seen(world: World, names: Collection[str] | None = None) -> frozenset[Row]:
    """The rows that readers see, each once; of some segments only."""
    taken = world.table.snapshot()
    if names is not None:
        taken = taken.only([one.key for one in taken.segments if one.name in names])
    rows = Counter(shown_rows(taken, world.rows, None))
    assert set(rows.values()) <= {1}, f"rows twice\n{world.described()}"
    return frozenset(rows)


def later(world: World, times: int = 4) -> None:
    """Everything is old enough, and clean-up runs; readers notice nothing."""
    before = seen(world)
    for _ in range(times):
        world.hand.advance(30 * HOUR_MS)
        planned, done = cleanup.plan(world.table._context).report(), world.table.cleanup()
        assert (planned.marked, planned.dropped) == (done.marked, done.dropped)
        assert seen(world) == before, f"clean-up changed what readers see\n{world.described()}"


def test_what_is_hidden_for_good_leaves_when_nobody_can_roll_the_overwrite_back_any_more(world: World) -> None:
    old = world.append(TEN, NINE)
    over = world.overwrite(TEN)
    assert len(world.registered()) == 3
    world.table.cleanup()
    world.revert(over)
    assert seen(world) == world.rows_of(old.brought)
    over = world.overwrite(TEN)
    later(world)
    [nine] = old.brought & world.registered()
    assert world.segment(nine).chunk == NINE and world.registered() == {nine, *over.brought}
    assert set(world.visible()) == {nine, *over.brought}


@pytest.mark.parametrize("older", [TEN, DAY])
def test_an_expired_overwrite_hides_what_is_beneath_until_that_is_gone(world: World, older: str) -> None:
    old = world.append(older)
    over = world.overwrite(TEN)
    left = seen(world) - world.rows_of(over.brought)
    world.expire(over.brought)
    assert seen(world) == left
    later(world)
    if older == TEN:
        assert not world.registered()
        return
    assert world.registered() == old.brought | over.brought
    [entry] = [one for one in world.table.lineage() if over.brought == set(one.segments_from)]
    reason = cleanup.plan(world.table._context).report().reasons[entry.entry_id]
    assert min(old.brought) in reason and "would be seen again" in reason
    world.expire(old.brought)
    later(world)
    assert not world.registered()


def test_a_stack_of_overwrites_leaves_from_below(world: World) -> None:
    world.append(DAY)
    pushes = [world.overwrite(chunk) for chunk in (TEN, DAY, NINE, DAY)]
    last = pushes[-1]
    assert seen(world) == world.rows_of(last.brought)
    later(world)
    assert world.registered() == last.brought
    world.expire(last.brought)
    later(world)
    assert not world.registered()


def test_two_entries_whose_segments_hide_each_other_s_do_not_wait_for_each_other(world: World) -> None:
    days = [world.append(DAY), world.append(DAY)]
    hours = [world.overwrite(NINE), world.overwrite(TEN)]
    for day, hour in zip(days, hours, strict=True):
        world.expire(day.brought | hour.brought)
    assert not seen(world)
    later(world)
    assert not world.registered()


def test_what_only_an_append_would_go_on_hiding_is_not_uncovered(world: World) -> None:
    """An append joined the version of an overwrite, which was expired. The append can still be rolled back."""
    day, over = world.append(DAY), world.overwrite(TEN)
    world.hand.advance(100 * HOUR_MS)
    world.table.cleanup()
    world.expire(over.brought)
    world.hand.advance(23 * HOUR_MS)
    joined = world.append(TEN)
    assert world.segment(min(joined.brought)).version > APPEND_VERSION
    world.hand.advance(3 * HOUR_MS)
    for _ in range(3):
        world.table.cleanup()
    assert over.brought <= world.registered()
    before = seen(world, day.brought)
    world.revert(joined)
    assert seen(world) == before
    later(world)
    assert over.brought <= world.registered()


def test_a_forced_start_uncovers_nothing(store: SegmentStore) -> None:
    """It lets what was replaced go before its time, and finds that it cannot yet."""
    world = dense(World.make(store, HandClock()))
    day, over = world.append(DAY), world.overwrite(TEN)
    gone = world.expire(over.brought)
    before = seen(world)
    world.table.start(sorted(day.brought), identity="forced", force_cleanup=True)
    assert seen(world) == before and over.brought <= world.registered()
    assert world.table.lineage().get(gone.entry_id) is not None


def test_without_the_guards_what_was_overwritten_is_seen_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beneath.Beneath, "uncovered_by", lambda *_: [])
    world.append(DAY)
    world.expire(world.overwrite(TEN).brought)
    with pytest.raises(AssertionError, match="clean-up changed what readers see"):
        later(world)


def test_without_looking_at_who_can_be_rolled_back_too_much_would_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beneath, "_revertable", lambda *_, **__: set())
    old = world.append(TEN)
    world.hand.advance(30 * HOUR_MS)
    world.table.cleanup()
    over = world.overwrite(TEN)
    world.table.cleanup()
    world.revert(over)
    assert seen(world) != world.rows_of(old.brought)


def test_nothing_is_read_for_a_table_without_newer_versions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(beneath, "registered")
    world.append(TEN)
    world.rewrite(world.visible())
    later(world)
    assert len(world.registered()) == 1


class OverwritesMachine(RuleBasedStateMachine):
    """Appends, overwrites, compactions, corrections and expiries of hours and days, rolled back in any order, with
    clean-up between them. Each changes the rows that readers see as it says, and clean-up does not change them."""

    def __init__(self, store: SegmentStore, done: Counter[str], *, concurrent: bool) -> None:
        super().__init__()
        self.done, self.concurrent = done, concurrent
        cluster = f"{store.paths.cluster}_{next(CLUSTERS)}"
        self.store = SegmentStore(store.session, cluster, open_store(f"{store.storage.uri}/{cluster}"), retry=QUICK)
        self.before: frozenset[Row] = frozenset()
        self.last: tuple[Push, frozenset[Row]] | None = None

    @initialize()
    def make(self) -> None:
        hand = HandClock()
        timed = self.store.like(clock=hand.clock())
        timed.apply_config(replace(versioned_config("DAY"), concurrent_locks=self.concurrent, raw={}))
        self.world = dense(World(timed.table("t"), hand))
        self.world.append(DAY)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        next(STEPS)
        kinds = [self.append, self.overwrite, self.overwrite, self.compact, self.expire, self.correct, self.revert]
        data.draw(st.sampled_from([*kinds, self.let_time_pass, self.let_time_pass]))(data)

    def append(self, data: st.DataObject) -> None:
        chunk = data.draw(st.sampled_from([NINE, TEN, DAY]))
        self.push("append", lambda: self.world.append(chunk), lambda push: self.before | self.rows(push))

    def overwrite(self, data: st.DataObject) -> None:
        chunk = data.draw(st.sampled_from([NINE, TEN, DAY]))
        at = parse_chunk(chunk)
        self.push(
            "overwrite",
            lambda: self.world.overwrite(chunk),
            lambda push: {row for row in self.before if not at.start_ms <= row.at_ms < at.end_ms} | self.rows(push),
        )

    def compact(self, data: st.DataObject) -> None:
        """All that is visible in a day, in a new version: also what is cut."""
        parts = data.draw(st.integers(1, 2))
        self.push("compact", lambda: self.compaction(parts), lambda _: self.before)

    def compaction(self, parts: int) -> Push:
        at = parse_chunk(DAY)
        kind = LockType.REPLACE if self.concurrent else LockType.EXCLUSIVE
        lock = self.world.time_lock(at, newest=APPEND_VERSION, lock_type=kind)
        names = self.world.visible()
        push = self.world._start_under(names, lock, Rewrite(at.start_ms, at.end_ms))
        self.world.stage(push, [(DAY, some) for some in split(seen(self.world, names), parts)])
        self.world.end(push, allow_empty=True)
        return push

    def expire(self, data: st.DataObject) -> None:
        chosen = self.some_visible(data)
        less = seen(self.world, chosen)
        self.push("expire", lambda: self.world.expire(chosen), lambda _: self.before - less)

    def correct(self, data: st.DataObject) -> None:
        chosen, chunk = self.some_visible(data), data.draw(st.sampled_from([NINE, TEN, DAY]))
        less = seen(self.world, chosen)
        self.push(
            "correct",
            lambda: self.world.replace(chosen, chunk),
            lambda push: (self.before - less) | self.rows(push),
        )

    def some_visible(self, data: st.DataObject) -> list[str]:
        names = self.world.visible()
        return data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)) if names else []

    def rows(self, push: Push) -> frozenset[Row]:
        return self.world.rows_of(push.brought)

    def push(self, kind: str, act: Callable[[], Push], expected: Callable[[Push], Collection[Row]]) -> None:
        """Do it; what readers see then is as expected, or, when it is refused, as before."""
        self.before = seen(self.world)
        known = set(self.world.pushes)
        try:
            push = act()
        except (RefusedError, LockDeniedError, LockLostError) as error:
            self.done[f"{kind} refused: {error.rule}"] += 1
            assert seen(self.world) == self.before, self.world.described()
            for entry_id in set(self.world.pushes) - known:
                self.world.revert(self.world.pushes[entry_id], force=True)
            return
        self.done[kind] += 1
        assert seen(self.world) == frozenset(expected(push)), f"after {push}\n{self.world.described()}"
        self.last = push, self.before

    def revert(self, data: st.DataObject) -> None:
        """The last one, which brings back what was seen before, or any other."""
        known = [push for push in self.world.pushes.values() if push.state == "COMPLETED"]
        if not known:
            return
        push = known[-1] if data.draw(st.booleans()) else data.draw(st.sampled_from(known))
        before = seen(self.world)
        try:
            self.world.revert(push)
        except RefusedError as error:
            self.done[f"revert refused: {error.rule}"] += 1
            assert seen(self.world) == before
            return
        except LookupError:
            return  # it has left the lineage
        self.done["revert"] += 1
        now = seen(self.world)
        if self.last is not None and self.last[0] is push:
            assert now == self.last[1], f"after rolling {push} back\n{self.world.described()}"
        self.last = None

    def let_time_pass(self, data: st.DataObject) -> None:
        before = seen(self.world)
        self.world.hand.advance(data.draw(st.sampled_from([0, 2, 5, 26])) * HOUR_MS + 1)
        done = self.world.table.cleanup()
        self.done["marked"] += sum(done.marked.values())
        self.done["held"] += sum("would be seen again" in reason for reason in done.reasons.values())
        self.done["hidden for good"] += sum("newer versions" in done.reasons[one] for one in done.marked)
        assert seen(self.world) == before, f"clean-up changed what readers see\n{self.world.described()}"

    def teardown(self) -> None:
        """In the end what is left is visible, or hides a part of what is visible."""
        if not hasattr(self, "world"):
            return
        later(self.world, 12)
        standing = {one.name: one for one in self.world.table.snapshot().segments}
        cut = any(one.visible_in for one in standing.values())
        assert cut or self.world.registered() == set(standing), self.world.described()


def run(store: SegmentStore, steps: int, *, concurrent: bool) -> Counter[str]:
    done: Counter[str] = Counter()
    before = next(STEPS)
    while next(STEPS) - before < steps:
        run_machine(lambda: OverwritesMachine(store, done, concurrent=concurrent), 10, 30)
    print(dict(done))
    return done


@pytest.mark.parametrize("concurrent", [False, True])
def test_random_overwrites_are_never_undone_by_clean_up(store: SegmentStore, concurrent: bool) -> None:
    done = run(store, 200, concurrent=concurrent)
    assert {"append", "overwrite", "compact", "expire", "correct", "revert", "held", "hidden for good"} <= (
        +done
    ).keys()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("concurrent", [False, True])
def test_long_random_overwrites_are_never_undone_by_clean_up(store: SegmentStore, concurrent: bool) -> None:
    run(store, 10_000, concurrent=concurrent)
