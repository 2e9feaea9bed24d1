"""Random sequences of calls on a versioned table, compared with a model of sets of rows.

Appends, rewrites of any segments, new versions of wider time, corrections and expiries are started, staged, staged
again, ended, reverted and left lying; hours pass and clocks go back; retention periods change; and clean-up runs. After
each step every live row is seen once, whole and by ranges. With ``losses``, records of rewrites are also lost behind
everybody's back, any number of them in one time chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.locking import APPEND_VERSION
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.retention import cleanup
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import (
    EntryNotFoundError,
    LockDeniedError,
    LockLostError,
    RefusedError,
    SnapshotRefusedError,
)
from tests.core.versioned_model import (
    DAY_MS,
    HOUR_MS,
    JANUARY_1,
    Push,
    Rows,
    World,
    day_chunk,
    hour_chunk,
    split,
    versioned_config,
)
from tests.support.machines import run_machine
from tests.support.tables import QUICK, HandClock

CLUSTERS = itertools.count()
CHUNKS = {
    "HOUR": [hour_chunk(0, 1), hour_chunk(0, 2), hour_chunk(1, 1)],
    "DAY": [day_chunk(0), day_chunk(1)],
}
WIDER = {"HOUR": [hour_chunk(0, 1), day_chunk(0), day_chunk(1), "2013-01"], "DAY": [day_chunk(0), "2013-01"]}
RANGES = [(0, 2), (1, 3), (2, 24), (0, 48), (25, 26), (30, 60)]
STEPS = itertools.count()


class VersionedMachine(RuleBasedStateMachine):
    """One versioned APPEND table of hours or of days."""

    def __init__(self, store: SegmentStore, *, losses: bool) -> None:
        super().__init__()
        self.losses = losses
        cluster = f"{store.paths.cluster}_{next(CLUSTERS)}"
        objects = open_store(f"{store.storage.uri}/{cluster}")
        self.store = SegmentStore(store.session, cluster, objects, retry=QUICK)
        self.steps = 0

    @initialize(granularity=st.sampled_from(["HOUR", "DAY"]))
    def make(self, granularity: str) -> None:
        self.granularity = granularity
        self.world = World.make(self.store, HandClock(), granularity)
        self.retention_ms = 4 * HOUR_MS
        self.segments: list[Segment] = []
        self.world.append(*CHUNKS[granularity])

    # --- pushes

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """One rule for everything: Hypothesis leaves rules out of whole runs, and without pushes there is nothing."""
        kinds = [self.append, self.rewrite, self.rewrite, self.rewrite, self.found_a_version, self.correct, self.expire]
        kinds = kinds if self.segments else [self.append]
        kinds += [self.revert, self.let_time_pass, self.let_time_pass, self.look_back]
        if self.open():
            kinds += [self.stage_again, self.end_what_was_left]
        if self.losses and self.losable():
            kinds += [self.lose_a_segment_of_a_rewrite] * 3
        data.draw(st.sampled_from(kinds))(data)

    def append(self, data: st.DataObject) -> None:
        chunks = data.draw(st.lists(st.sampled_from(CHUNKS[self.granularity]), min_size=1, max_size=3))
        push = self.world.start("append")
        if self.stage(push, [(chunk, self.world.new_rows(chunk)) for chunk in chunks]) and self.ends(data):
            self.end(push)

    def rewrite(self, data: st.DataObject) -> None:
        """Any visible segments of one chunk and version."""
        groups: dict[tuple[str, str], list[str]] = {}
        for one in self.segments:
            groups.setdefault((one.chunk, one.version), []).append(one.name)
        group = groups[data.draw(st.sampled_from(sorted(groups)))]
        chosen = data.draw(st.lists(st.sampled_from(group), min_size=1, unique=True))
        if push := self.started(lambda: self.world.start_rewrite(chosen), chosen, self.overlapped(chosen)):
            self.stage_rewrite(push, data)
            if self.ends(data):
                self.end(push)

    def found_a_version(self, data: st.DataObject) -> None:
        """All of a chunk, in a new version of it."""
        chunk = data.draw(st.sampled_from(WIDER[self.granularity]))
        interval = parse_chunk(chunk)
        there = [one for one in self.segments if one.interval.overlaps(interval)]
        inside = all(
            interval.start_ms <= one.interval.start_ms < one.interval.end_ms <= interval.end_ms for one in there
        )
        if not there or not inside:
            return
        names = [one.name for one in there]
        if push := self.started(lambda: self.world.start_version(chunk), names, self.locked(interval)):
            self.stage_rewrite(push, data)
            if self.ends(data):
                self.end(push)

    def correct(self, data: st.DataObject) -> None:
        """Some segments give way to others with other rows."""
        chosen = self.some_visible(data)
        chunk = data.draw(st.sampled_from(CHUNKS[self.granularity]))
        push = self.started(lambda: self.world.start("replace", chosen), chosen)
        if push and self.stage(push, [(chunk, self.world.new_rows(chunk)) for _ in range(2)]):
            self.end(push)

    def expire(self, data: st.DataObject) -> None:
        """Some segments give way to nothing."""
        chosen = self.some_visible(data)
        if push := self.started(lambda: self.world.start("expire", chosen), chosen):
            self.world.end(push, allow_empty=True)

    def some_visible(self, data: st.DataObject) -> list[str]:
        names = [one.name for one in self.segments]
        return data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))

    def stage_again(self, data: st.DataObject) -> None:
        """A newer attempt, with other segments."""
        push = data.draw(st.sampled_from(self.open()))
        if push.kind == "rewrite":
            self.stage_rewrite(push, data)
            return
        chunk = data.draw(st.sampled_from(CHUNKS[self.granularity]))
        self.stage(push, [(chunk, self.world.new_rows(chunk))])

    def end_what_was_left(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.open())))

    def revert(self, data: st.DataObject) -> None:
        newest = data.draw(st.booleans())
        known = [push for push in self.world.pushes.values() if not push.dropped]
        if not known:
            return
        push = known[-1] if newest else data.draw(st.sampled_from(known))
        expected = self.why_not_reverted(push)
        if not self.refused(lambda: self.world.revert(push, force=True), expected):
            assert expected <= {"from-gone", "to-gone"}  # nobody looks when nothing was removed but what was lost

    # --- what else happens

    def lose_a_segment_of_a_rewrite(self, data: st.DataObject) -> None:
        self.world.lose(data.draw(st.sampled_from(self.losable())))

    def let_time_pass(self, data: st.DataObject) -> None:
        """The clock may go back; somebody may change the retention; clean-up may run."""
        hours = data.draw(st.sampled_from([0, 1, 3, 5, 25, -2, -4]))
        retention = data.draw(st.sampled_from([None, None, None, 0, 1, 4, 8]))
        passes = data.draw(st.integers(0, 3))
        self.world.hand.advance(hours * HOUR_MS + 1)
        if retention is not None:
            config = versioned_config(self.granularity, replacedSegmentsRetentionPeriod=f"{retention}h")
            self.store.apply_config(config)
            self.retention_ms = retention * HOUR_MS
        for _ in range(passes):
            self.one_pass()

    def look_back(self, data: st.DataObject) -> None:
        push = data.draw(st.sampled_from(list(self.world.pushes.values())))
        try:
            taken = self.world.table.snapshot(as_of=push.entry_id)
        except EntryNotFoundError:
            assert push.dropped
        except SnapshotRefusedError as refused:
            assert refused.rule == ("history-cleaned" if push.state == "COMPLETED" else "not-completed")
        else:
            self.world.check_snapshot(taken, None, self.world.live_as_of(push))

    # --- helpers

    def ends(self, data: st.DataObject) -> bool:
        """Whether a push is ended at once; others are left lying, perhaps for good."""
        return data.draw(st.sampled_from([True, True, True, False]))

    def stage_rewrite(self, push: Push, data: st.DataObject) -> None:
        """The rows of its inputs in 1 to 4 segments, by one stager or by two."""
        chunk = self.chunk_of(push)
        outputs, first = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 2))
        parts = [(chunk, part) for part in split(self.world.rows_of(push.replaced), outputs)]
        first = 0 if first >= len(parts) else first
        if (first or "second" in push.stages) and not self.stage(push, parts[:first], stager="second"):
            return
        self.stage(push, parts[first:])

    def chunk_of(self, push: Push) -> str:
        rewrite = self.world.table._context.guard(push.entry_id).guard.rewrite
        assert rewrite is not None
        known = {*CHUNKS[self.granularity], *WIDER[self.granularity]}
        return next(one for one in known if parse_chunk(one) == rewrite.interval)

    def stage(self, push: Push, parts: Sequence[tuple[str, Rows]], stager: str = "build") -> bool:
        """Stage, unless its locks are gone, or others are in the way."""
        expected = {"lock-revoked", "lock-lost"} if self.lost_locks(push) or self.abandoned(push) else set()
        if any(self.locked(parse_chunk(chunk)) for chunk, _ in parts):
            expected.add("lock-denied")
        return not self.refused(lambda: self.world.stage(push, parts, stager=stager), expected)

    def end(self, push: Push) -> None:
        """The switch; refused when a lock is lost, or what it needs."""
        expected = {"lock-revoked", "lock-lost"} if self.lost_locks(push) else set()
        gone_back_from = push.replaced - self.world.live_names()
        if not push.staged:
            expected.add("nothing-staged")
        guard = self.world.table._context.guard(push.entry_id).guard
        if any(not stage.done for stage in guard.stages.values()):
            expected.add("stage-unfinished")
        rewritten = frozenset().union(*(one.brought for one in self.world.in_order() if one.falls_back))
        must = bool(expected or gone_back_from & rewritten)
        maybe = expected | {"version-gone"} | ({"from-not-seen", "from-gone"} if gone_back_from else set())
        done = not self.refused(lambda: self.world.end(push), maybe)
        assert not (done and must)

    def started(self, act: Callable[[], Push], names: Collection[str], blocked: Collection[str] = ()) -> Push | None:
        """Start, or be refused because something else replaces a name, or locks it."""
        held = any(push.replaced & set(names) for push in self.live())
        expected = ({"from-replaced"} if held else set()) | ({"lock-denied"} if blocked else set())
        pushes: list[Push] = []
        if self.refused(lambda: pushes.append(act()), expected):
            return None
        assert not held
        return pushes[0]

    def refused(self, act: Callable[[], object], expected: Collection[str]) -> str:
        """The rule that refused, which must be among the expected; empty when it was done."""
        try:
            act()
        except (RefusedError, LockDeniedError, LockLostError) as error:
            assert error.rule in expected, f"{error}\n{self.world.described()}"
            return error.rule
        return ""

    def live(self) -> list[Push]:
        return [push for push in self.world.pushes.values() if push.state != "REVERTED" and not push.dropped]

    def open(self) -> list[Push]:
        return [push for push in self.live() if push.state == "IN_PROGRESS"]

    def locked(self, interval: Interval) -> list[str]:
        return [lock.lock_id for lock in self.world.table.locks.locks() if lock.active and lock.overlaps(interval)]

    def overlapped(self, names: Collection[str]) -> list[str]:
        chosen = [one.interval for one in self.segments if one.name in names]
        return [lock for at in chosen for lock in self.locked(at)]

    def lost_locks(self, push: Push) -> bool:
        guard = self.world.table._context.guard(push.entry_id).guard
        active = {lock.lock_id for lock in self.world.table.locks.locks() if lock.active}
        return any(lock.lock_id not in active for lock in guard.all_locks)

    def abandoned(self, push: Push) -> bool:
        """Whether a lease is over: the box drops such a lock a day later, with whatever it is asked next."""
        now_ms = self.world.hand.now_ms
        mine = {lock.lock_id for lock in self.world.table._context.guard(push.entry_id).guard.all_locks}
        return any(lock.lock_id in mine and lock.abandoned(now_ms) for lock in self.world.table.locks.locks())

    def losable(self) -> list[str]:
        """Visible segments of rewrites that readers may go back from."""
        back = self.world.gone_back_from(self.world.in_order())
        found = [push.brought for push in self.world.in_order() if push.falls_back and push.entry_id not in back]
        return sorted(frozenset().union(*found) & self.world.live_names())

    def why_not_reverted(self, push: Push) -> set[str]:
        if push.state == "REVERTED":
            return {"already-reverted"}
        if push.state == "IN_PROGRESS":
            return set()
        found: set[str] = set()
        if push.cleaning:
            found.add("replaced-are-deleted")
        if any(other.replaced & push.brought for other in self.live()):
            found.add("built-upon")
        registered = self.world.registered()
        if not push.replaced <= registered:
            found.add("from-gone")
        if not push.brought <= registered and not push.falls_back:
            found.add("to-gone")
        if self.is_joined(push):
            found.add("version-joined")
        if self.is_beneath(push):
            found.add("beneath-version")
        return found

    def is_beneath(self, push: Push) -> bool:
        """Whether something that it replaced is of time that a newer version of others holds by now."""
        settled = {one.entry_id for one in self.world.in_order()} - {push.entry_id}
        there = [one.segment for one in self.world.table.standings() if one.segment.entry_id in settled]
        back = [one for one in there if one.name in push.replaced]
        tops = [one for one in there if one.name not in push.replaced]
        return any(top.version > one.version and top.interval.overlaps(one.interval) for one in back for top in tops)

    def is_joined(self, push: Push) -> bool:
        all_ = [one.segment for one in self.world.table.standings()]
        mine = {(one.chunk, one.version) for one in all_ if one.name in push.brought and one.version != APPEND_VERSION}
        founded = {
            at for at in mine if any(one.place and one.place.founds and one.name in push.brought for one in all_)
        }
        settled = {one.entry_id for one in self.world.in_order()} - {push.entry_id}
        return any((one.chunk, one.version) in founded and one.entry_id in settled for one in all_)

    def one_pass(self) -> None:
        """What goes may go: see ``_may_go``. Then the model takes over what became of the entries."""
        allowed, droppable = self._may_go(), self._may_drop()
        before = self.world.registered()
        cleanup.run(self.world.table._context)
        gone = before - self.world.registered()
        assert gone <= allowed, f"must not go: {sorted(gone - allowed)}\n{self.world.described()}"
        lineage = self.world.table.lineage()
        for push in self.world.pushes.values():
            entry = lineage.get(push.entry_id)
            if entry is None:
                assert push.dropped or push.entry_id in droppable, push
                push.dropped = True
                continue
            if entry.state is EntryState.REVERTED and push.state == "IN_PROGRESS":
                assert self.world.hand.now_ms - push.at_ms > DAY_MS
                push.state, push.at_ms = "REVERTED", self.world.hand.now_ms
                self.world.release(push)
            push.cleaning = lineage.is_cleaning(push.entry_id)

    def _may_go(self) -> set[str]:
        """Replaced segments after their time, unless a rewrite that brought them, or readers, may need them; and all of
        what was reverted or given up."""
        found: set[str] = set()
        needed = self.world.live_names()
        for push in self.world.pushes.values():
            if self._is_due(push):
                found |= push.replaced - needed
            elif push.state == "REVERTED" or self.world.hand.now_ms - push.at_ms > DAY_MS:
                found |= push.names if push.state != "COMPLETED" else frozenset()
        return found

    def _may_drop(self) -> set[str]:
        age = {push.entry_id: self.world.hand.now_ms - push.at_ms for push in self.world.pushes.values()}
        found = {push.entry_id for push in self.world.pushes.values() if self._is_due(push)}
        return found | {one for one, ms in age.items() if self.world.pushes[one].state == "REVERTED" and ms > HOUR_MS}

    def _is_due(self, push: Push) -> bool:
        age = self.world.hand.now_ms - push.at_ms
        if push.state != "COMPLETED" or age <= self.retention_ms:
            return False
        return not any(
            other.falls_back and other.counts and push.replaced & other.brought for other in self.world.pushes.values()
        )

    # --- what must always hold

    @invariant()
    def every_live_row_is_seen_once(self) -> None:
        if not hasattr(self, "world"):
            return
        next(STEPS)
        self.steps += 1
        first, last = RANGES[self.steps % len(RANGES)]
        whole = self.world.check(Interval(JANUARY_1 + first * HOUR_MS, JANUARY_1 + last * HOUR_MS))
        self.segments = sorted(whole.segments, key=lambda one: one.name)

    def teardown(self) -> None:
        """In the end nothing is kept for nobody: what is registered is seen, unless readers have gone back from it."""
        if not hasattr(self, "world"):
            return
        before: object = None
        now: object = ()
        while before != now:
            self.world.hand.advance(60 * HOUR_MS)
            self.one_pass()
            self.world.check()
            before, now = now, (dict(self.world.table.lineage().entries), self.world.registered())
        if not self.world.gone_back_from(self.world.in_order()):
            assert self.world.registered() == set(self.world.visible())
            assert not self.world.table.lineage().entries


def run(store: SegmentStore, examples: int, steps: int, *, losses: bool) -> int:
    """Random runs; how many steps were checked."""
    before = next(STEPS)
    run_machine(lambda: VersionedMachine(store, losses=losses), examples, steps)
    return next(STEPS) - before - 1


def at_least(store: SegmentStore, steps: int, *, losses: bool) -> None:
    """Runs until so many steps were checked."""
    done = 0
    while done < steps:
        done += run(store, 25, 50, losses=losses)
    print(f"{done} steps")


def test_random_histories_show_every_live_row_once(store: SegmentStore) -> None:
    at_least(store, 1_000, losses=False)


def test_random_histories_with_losses_show_every_row_that_is_there_once(store: SegmentStore) -> None:
    at_least(store, 1_500, losses=True)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("losses", [False, True])
def test_long_random_histories_show_every_live_row_once(store: SegmentStore, losses: bool) -> None:
    at_least(store, 100_000, losses=losses)
