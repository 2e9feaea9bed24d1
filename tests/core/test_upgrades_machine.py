"""Random sequences of calls on a table with concurrent locks, compared with the model of sets of rows.

Appends to hours, rewrites of whatever is visible of an hour, a day or a month, corrections and expiries are started,
ended at once or later, and reverted; hours pass, and clean-up runs. After each step every live row is seen once, whole
and by ranges. Nobody is ever denied a lock for an append, and an append ends whatever was published above it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.lineage.guard import Rewrite
from airflow_provider_segments.core.locking import LockRequest, LockType, Priority, granted_lock
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import LockDeniedError, LockLostError, RefusedError
from tests.core.versioned_model import (
    HOUR_MS,
    JANUARY_1,
    Push,
    World,
    day_chunk,
    hour_chunk,
    split,
    versioned_config,
)
from tests.support.machines import run_machine
from tests.support.tables import QUICK, HandClock

CLUSTERS = itertools.count()
STEPS = itertools.count()
HOURS = [hour_chunk(0, 1), hour_chunk(0, 2), hour_chunk(1, 1)]
CHUNKS = [hour_chunk(0, 1), hour_chunk(0, 2), day_chunk(0), day_chunk(1), "2013-01"]
RANGES = [(0, 2), (1, 3), (2, 24), (0, 48), (25, 26), (30, 60)]
LOST = {"lock-revoked", "lock-lost"}
NOT_REVERTED = {"already-reverted", "replaced-are-deleted", "built-upon", "from-gone", "to-gone", "beneath-version"}


class UpgradesMachine(RuleBasedStateMachine):
    """One table of hours with concurrent locks. ``done`` counts what came of the calls, over all runs."""

    def __init__(self, store: SegmentStore, done: dict[str, int], *, losses: bool) -> None:
        super().__init__()
        self.done, self.losses = done, losses
        cluster = f"{store.paths.cluster}_{next(CLUSTERS)}"
        self.store = SegmentStore(store.session, cluster, open_store(f"{store.storage.uri}/{cluster}"), retry=QUICK)
        self.seen: list[tuple[str, Interval]] = []
        self.chunks: dict[str, str] = {}

    @initialize()
    def make(self) -> None:
        hand = HandClock()
        timed = self.store.like(clock=hand.clock())
        timed.apply_config(replace(versioned_config(), concurrent_locks=True, raw={}))
        self.world = World(timed.table("t"), hand)
        self.world.append(*HOURS)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """One rule for everything: Hypothesis leaves rules out of whole runs, and without pushes there is nothing."""
        kinds = [self.append, self.append, self.rewrite, self.rewrite, self.rewrite, self.correct, self.expire]
        kinds += [self.revert, self.let_time_pass]
        if self.open():
            kinds += [self.end_what_was_left, self.end_what_was_left]
        if self.losses and self.losable():
            kinds += [self.lose_a_segment_of_a_rewrite]
        data.draw(st.sampled_from(kinds))(data)

    def append(self, data: st.DataObject) -> None:
        chunks = data.draw(st.lists(st.sampled_from(HOURS), min_size=1, max_size=3))
        push = self.world.start("append")
        self.world.stage(push, [(chunk, self.world.new_rows(chunk)) for chunk in chunks])
        if data.draw(st.booleans()):
            self.end(push)

    def rewrite(self, data: st.DataObject) -> None:
        """Some of what is visible inside a chunk, in a new version of it."""
        chunk = data.draw(st.sampled_from(CHUNKS))
        at = parse_chunk(chunk)
        inside = sorted(name for name, own in self.seen if at.contains(own))
        if not inside:
            return
        chosen = data.draw(st.lists(st.sampled_from(inside), min_size=1, unique=True))
        held = {name for push in self.live() for name in push.replaced}  # readers may have gone back to them
        pushes: list[Push] = []
        expected = {"lock-denied"} | ({"from-replaced"} if held & set(chosen) else set())
        if self.refused(lambda: pushes.append(self.start_rewrite(chunk, chosen)), expected):
            return
        [push] = pushes
        self.chunks[push.entry_id] = chunk
        parts = split(self.world.rows_of(chosen), data.draw(st.integers(1, 3)))
        self.world.stage(push, [(chunk, part) for part in parts])
        if data.draw(st.booleans()):
            self.end(push)

    def start_rewrite(self, chunk: str, names: Collection[str]) -> Push:
        at = parse_chunk(chunk)
        group = f"compaction {next(self.world.count)}"
        request = LockRequest(
            group=group, task="c", interval=at, lock_type=LockType.REPLACE, priority=Priority.COMPACTION
        )
        lock = granted_lock("t", self.world.table.locks.acquire(request))
        return self.world._start_under(names, HeldLock(lock.lock_id, group, "c"), Rewrite(at.start_ms, at.end_ms))

    def correct(self, data: st.DataObject) -> None:
        """Some segments give way to others with other rows."""
        chosen = self.some_visible(data)
        if push := self.started("replace", chosen):
            chunk = data.draw(st.sampled_from(HOURS))
            self.world.stage(push, [(chunk, self.world.new_rows(chunk))])
            self.end(push)

    def expire(self, data: st.DataObject) -> None:
        """Some segments give way to nothing."""
        if push := self.started("expire", self.some_visible(data)):
            self.world.end(push, allow_empty=True)

    def some_visible(self, data: st.DataObject) -> list[str]:
        names = [name for name, _ in self.seen]
        return data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)) if names else []

    def started(self, kind: str, names: Collection[str]) -> Push | None:
        if not names or any(push.replaced & set(names) for push in self.live()):
            return None
        return self.world.start(kind, names)

    def end_what_was_left(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.open())))

    def end(self, push: Push) -> None:
        """Appends lose no lock but by their own age. A rewrite may find wider segments, or have lost its lock."""
        old = self.world.hand.now_ms - push.at_ms > 300_000
        expected = LOST if old or push.kind == "rewrite" else set[str]()
        if push.kind == "rewrite":
            expected = expected | {"coarser-segment"}
        if push.replaced & self.world.lost:
            expected = expected | {"from-gone"}
        if self.losses:
            expected = expected | {"from-not-seen"}
        if not self.refused(lambda: self.world.end(push), expected):
            self.done[push.kind] = self.done.get(push.kind, 0) + 1

    def revert(self, data: st.DataObject) -> None:
        known = [push for push in self.world.pushes.values() if not push.dropped]
        push = known[-1] if data.draw(st.booleans()) else data.draw(st.sampled_from(known))
        completed = push.state == "COMPLETED"
        if not self.refused(lambda: self.world.revert(push, force=True), NOT_REVERTED) and completed:
            self.done[f"revert {push.kind}"] = self.done.get(f"revert {push.kind}", 0) + 1

    def let_time_pass(self, data: st.DataObject) -> None:
        """Clean-up may run."""
        self.world.hand.advance(data.draw(st.sampled_from([0, 1, 5, 25])) * HOUR_MS + 1)
        for _ in range(data.draw(st.integers(0, 3))):
            self.one_pass()

    def lose_a_segment_of_a_rewrite(self, data: st.DataObject) -> None:
        self.world.lose(data.draw(st.sampled_from(self.losable())))

    def losable(self) -> list[str]:
        """Visible segments of rewrites that readers may go back from."""
        back = self.world.gone_back_from(self.world.in_order())
        found = [push.brought for push in self.world.in_order() if push.falls_back and push.entry_id not in back]
        return sorted(frozenset().union(*found) & self.world.live_names())

    def one_pass(self) -> None:
        self.world.table.cleanup()
        lineage = self.world.table.lineage()
        for push in self.world.pushes.values():
            entry = lineage.get(push.entry_id)
            if entry is None:
                push.dropped = True
                continue
            if entry.state is EntryState.REVERTED and push.state == "IN_PROGRESS":
                push.state, push.at_ms = "REVERTED", self.world.hand.now_ms
                self.world.release(push)
            push.cleaning = lineage.is_cleaning(push.entry_id)

    def open(self) -> list[Push]:
        return [push for push in self.world.pushes.values() if push.state == "IN_PROGRESS" and not push.dropped]

    def live(self) -> list[Push]:
        return [push for push in self.world.pushes.values() if push.state != "REVERTED" and not push.dropped]

    def refused(self, act: Callable[[], object], expected: Collection[str]) -> str:
        """The rule that refused, which must be among the expected; empty when it was done."""
        try:
            act()
        except (RefusedError, LockDeniedError, LockLostError) as error:
            assert error.rule in expected, f"{error}\n{self.world.described()}"
            return error.rule
        return ""

    @invariant()
    def every_live_row_is_seen_once(self) -> None:
        if not hasattr(self, "world"):
            return
        first, last = RANGES[next(STEPS) % len(RANGES)]
        self.world.check(Interval(JANUARY_1 + first * HOUR_MS, JANUARY_1 + last * HOUR_MS))
        own = {
            record.name: parse_chunk(shard.chunk_of(record))
            for shard in self.world.shards()
            for record in shard.records
        }
        self.seen = sorted((name, own[name]) for name in self.world.visible())

    def teardown(self) -> None:
        """In the end what is registered is seen."""
        if not hasattr(self, "world"):
            return
        for _ in range(12):
            self.world.hand.advance(60 * HOUR_MS)
            self.one_pass()
            self.world.check()
        if not self.world.lost:
            assert self.world.registered() == set(self.world.visible())


def at_least(store: SegmentStore, steps: int, *, losses: bool = False) -> dict[str, int]:
    """Runs until so many steps were checked; what was done."""
    done: dict[str, int] = {}
    before = next(STEPS)
    while next(STEPS) - before < steps:
        run_machine(lambda: UpgradesMachine(store, done, losses=losses), 10, 50)
    print(done)
    return done


def test_random_histories_of_concurrent_locks_show_every_live_row_once(store: SegmentStore) -> None:
    done = at_least(store, 300)
    assert {"append", "rewrite", "replace"} <= done.keys()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("losses", [False, True])
def test_long_random_histories_of_concurrent_locks_show_every_live_row_once(store: SegmentStore, losses: bool) -> None:
    at_least(store, 20_000, losses=losses)
