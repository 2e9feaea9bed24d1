"""Random sequences of calls against a real ZooKeeper, compared with a model of a few dictionaries.

Several pushes are open at once, starts are forced, wrong calls are made, hours pass, zombies come back, and connections
are lost before or after a write landed. After every call the table must show what the model says, hold what the model
says, and have its entries in the states the model says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.model.names import entry_tag
from airflow_provider_segments.core.replacement.end import EndedEntry
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.retention import cleanup
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.exceptions import EntryNotFoundError, RefusedError, SnapshotRefusedError
from tests.support.machines import run_machine
from tests.support.sessions import LossySession
from tests.support.sessions import settings as zk_settings
from tests.support.tables import DAY_MS, HOUR_MS, QUICK, HandClock, build, make_table, registered, states, visible

CLUSTERS = itertools.count()
LOSSES = st.lists(st.sampled_from(["", "", "before", "after"]), max_size=5)


@dataclass
class Push:
    """What the model knows of an entry. ``held`` are its registered names by attempt."""

    entry_id: str
    replaced: frozenset[str]
    at_ms: int
    state: str = "IN_PROGRESS"
    attempt: int = 0
    done: bool = False
    brought: frozenset[str] = frozenset()
    cleaning: bool = False
    dropped: bool = False
    content: frozenset[str] = frozenset()
    held: dict[int, set[str]] = field(default_factory=dict)

    @property
    def current(self) -> set[str]:
        return self.held.get(self.attempt, set()) if self.done else set()

    def names(self) -> set[str]:
        return set().union(*self.held.values())


class Refused(Exception):  # noqa: N818 - the model's word for what must be refused
    """The model expects a refusal with one of these rules, or an unknown entry."""

    def __init__(self, *rules: str) -> None:
        self.rules = rules


class TableMachine(RuleBasedStateMachine):
    """One table, REFRESH or APPEND."""

    def __init__(self, session: LossySession, store: SegmentStore) -> None:
        super().__init__()
        self.session = session
        self.hand = HandClock()
        self.losses: list[str] = []
        session.decide = lambda: self.losses.pop() if self.losses else ""  # type: ignore[method-assign]
        cluster = f"{store.paths.cluster}_{next(CLUSTERS)}"
        # The table's name is always the same, so that entry ids, and the order of names, are those of a replay.
        objects = open_store(f"{store.storage.uri}/{cluster}")
        self.store = SegmentStore(
            Cluster(session, ClusterPaths(cluster), objects, clock=self.hand.clock(), retry=QUICK)
        )
        self.pushes: list[Push] = []
        self.tickets: list[tuple[StageTicket, Push]] = []
        self.content: frozenset[str] = frozenset()
        self.count = 0
        self.removals = 0

    @initialize(kind=st.sampled_from(["APPEND", "REFRESH"]))
    def make(self, kind: str) -> None:
        self.refresh = kind == "REFRESH"
        self.table = make_table(self.store, "t", kind)

    def call(self, losses: list[str], expected: Any, act: Any, *arguments: Any, **how: Any) -> Any:
        """Ask the model first, then the table; both do it, or both refuse. Returns (model's answer, table's answer)."""
        try:
            wanted = expected()
        except Refused as refusal:
            with pytest.raises((RefusedError, EntryNotFoundError)) as caught:
                act(*arguments, **how)
            if isinstance(caught.value, RefusedError):
                assert caught.value.rule in refusal.rules
            else:
                assert not refusal.rules
            return None
        self.losses = list(losses)
        answer = act(*arguments, **how)
        self.losses = []
        return wanted, answer

    def pick(self, data: st.DataObject, *, live: bool = False) -> Push:
        open_ones = [push for push in self.pushes if push.state == "IN_PROGRESS" and not push.dropped]
        return data.draw(st.sampled_from(open_ones if live and open_ones else self.pushes))

    # --- calls

    @rule(data=st.data(), force=st.booleans(), everything=st.booleans(), losses=LOSSES)
    def start(self, data: st.DataObject, force: bool, everything: bool, losses: list[str]) -> None:
        chosen = sorted(self.content)
        if not everything:
            chosen = data.draw(st.lists(st.sampled_from(chosen), unique=True, max_size=3)) if chosen else []
        self.count += 1
        identity = str(self.count)

        def model() -> tuple[list[Push], list[Push]]:
            names = frozenset(chosen)
            if self.refresh and not names and self.content:
                raise Refused("refresh-must-replace")
            overlapping = [
                push
                for push in self.live("IN_PROGRESS")
                if push.replaced & names or (self.refresh and not push.replaced and not names)
            ]
            if overlapping and not force:
                raise Refused("from-replaced", "initial-conflict")
            cleaning = [
                push
                for push in self.live("COMPLETED")
                if force and self.refresh and names and push.replaced and push.brought == names and not push.cleaning
            ]
            return overlapping, cleaning

        if not (result := self.call(losses, model, self.table.start, chosen, identity=identity, force_cleanup=force)):
            return
        (overlapping, cleaning), started = result
        for push in overlapping:
            if push.attempt:
                self.revert_model(push)
            else:
                push.dropped = True
        for push in cleaning:
            push.cleaning = True
            self.remove(push.replaced)
        # What a forced start reverts is marked at once; one that found its own entry no longer knows which that was.
        for push in self.live("REVERTED") if force and started.resumed else overlapping:
            if push.cleaning or self.hand.now_ms - push.at_ms > self.retention:
                self.give_up(push)
        self.pushes.append(Push(started.entry_id, frozenset(chosen), self.hand.now_ms))

    @rule(data=st.data(), force=st.booleans(), number=st.integers(1, 3), losses=LOSSES)
    def replace_everything(self, data: st.DataObject, force: bool, number: int, losses: list[str]) -> None:
        """A whole push. Random calls alone rarely add up to one."""
        self._whole(data, force, everything=True, number=number, losses=losses)

    @rule(data=st.data(), force=st.booleans(), number=st.integers(1, 3), losses=LOSSES)
    def replace_some(self, data: st.DataObject, force: bool, number: int, losses: list[str]) -> None:
        self._whole(data, force, everything=False, number=number, losses=losses)

    def _whole(self, data: st.DataObject, force: bool, *, everything: bool, number: int, losses: list[str]) -> None:
        known = len(self.pushes)
        self.start(data, force, everything, [])
        if len(self.pushes) == known:
            return
        push = self.pushes[-1]
        self._open(push, losses)
        self._stage(*self.tickets[-1], number, losses)
        self._end(push, None, losses)

    @precondition(lambda self: self.pushes)
    @rule(data=st.data())
    def start_from_what_is_hidden(self, data: st.DataObject) -> None:
        push = self.pick(data)
        names = sorted((push.names() | push.replaced) - self.content) or ["never"]
        with pytest.raises(RefusedError, match="from-not-visible"):
            self.table.start(names[:1])

    @precondition(lambda self: self.pushes)
    @rule(data=st.data(), losses=LOSSES)
    def open_stage(self, data: st.DataObject, losses: list[str]) -> None:
        self._open(self.pick(data, live=True), losses)

    def _open(self, push: Push, losses: list[str]) -> None:
        def model() -> None:
            self.check_known(push)
            if push.state != "IN_PROGRESS":
                raise Refused("completed", "reverted")

        if not (result := self.call(losses, model, self.table.open_stage, push.entry_id)):
            return
        ticket = result[1]
        assert ticket.attempt > push.attempt  # a lost reply may have cost a number
        push.attempt, push.done = ticket.attempt, False
        self.tickets.append((ticket, push))

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), number=st.integers(0, 3), newest=st.booleans(), losses=LOSSES)
    def stage(self, data: st.DataObject, number: int, newest: bool, losses: list[str]) -> None:
        self._stage(*(self.tickets[-1] if newest else data.draw(st.sampled_from(self.tickets))), number, losses)

    def _stage(self, ticket: StageTicket, push: Push, number: int, losses: list[str]) -> None:
        names = [f"{entry_tag(push.entry_id)}_{ticket.attempt}_{index}" for index in range(number)]

        def model() -> None:
            self.check_known(push)
            if push.state != "IN_PROGRESS":
                raise Refused("completed", "reverted")
            if push.attempt != ticket.attempt:
                raise Refused("superseded")
            if push.done and push.held[ticket.attempt] != set(names):
                raise Refused("staged-differently")

        if self.call(losses, model, self.table.stage, ticket, build(self.table, ticket, names)):
            push.held[ticket.attempt] = set(names)
            push.done = True

    @rule(data=st.data(), force=st.booleans(), everything=st.booleans(), number=st.integers(1, 3), losses=LOSSES)
    def publish_something(
        self, data: st.DataObject, force: bool, everything: bool, number: int, losses: list[str]
    ) -> None:
        """A whole push again, its stage opened by itself and its end in the same transaction as its stage."""
        known = len(self.pushes)
        self.start(data, force, everything, [])
        if len(self.pushes) > known:
            self._open(self.pushes[-1], losses)
            self._publish(*self.tickets[-1], number, losses)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), number=st.integers(1, 3), newest=st.booleans(), losses=LOSSES)
    def publish(self, data: st.DataObject, number: int, newest: bool, losses: list[str]) -> None:
        self._publish(*(self.tickets[-1] if newest else data.draw(st.sampled_from(self.tickets))), number, losses)

    def _publish(self, ticket: StageTicket, push: Push, number: int, losses: list[str]) -> None:
        names = {f"{entry_tag(push.entry_id)}_{ticket.attempt}_{index}" for index in range(number)}
        if push.state == "COMPLETED" and push.attempt == ticket.attempt and not push.dropped:
            return  # the same call again succeeds, another one is refused: test_publish asks for both

        def model() -> frozenset[str]:
            self.check_known(push)
            if push.state != "IN_PROGRESS":
                raise Refused("completed", "reverted")
            if push.attempt != ticket.attempt:
                raise Refused("superseded")
            if push.done and push.held[ticket.attempt] != names:
                raise Refused("staged-differently")
            in_two_steps = push.done or any(push.held.values())
            if in_two_steps:
                push.held[ticket.attempt], push.done = set(names), True
            if self.refresh and not push.replaced and self.content:
                raise Refused("refresh-must-replace")
            return frozenset(names)

        result = self.call(losses, model, self.table.publish, ticket, build(self.table, ticket, sorted(names)))
        if result is not None:
            push.done = True
            self._completed(push, *result)

    @precondition(lambda self: self.pushes)
    @rule(data=st.data(), part=st.booleans(), losses=LOSSES)
    def end(self, data: st.DataObject, part: bool, losses: list[str]) -> None:
        push = self.pick(data, live=True)
        self._end(push, sorted(push.current)[:1] if part and push.current else None, losses)

    def _end(self, push: Push, wanted: list[str] | None, losses: list[str]) -> None:
        def model() -> frozenset[str] | None:
            if push.dropped and push.state == "COMPLETED" and push.brought & self.held():
                return None
            self.check_known(push)
            if push.state == "REVERTED":
                raise Refused("reverted")
            if push.state == "COMPLETED":
                return None
            if push.attempt and not push.done:
                raise Refused("stage-unfinished")
            if not push.current:
                raise Refused("nothing-staged")
            if self.refresh and not push.replaced and self.content:
                raise Refused("refresh-must-replace")
            return frozenset(wanted or push.current)

        result = self.call(losses, model, self.table.end, push.entry_id, wanted)
        if result is None or result[0] is None:
            return
        self._completed(push, *result)

    def _completed(self, push: Push, brought: frozenset[str], ended: EndedEntry) -> None:
        push.brought = brought
        assert set(ended.segments_to) == push.brought
        push.held = {push.attempt: set(push.brought)}
        push.state, push.at_ms = "COMPLETED", self.hand.now_ms
        self.content = self.content - push.replaced | push.brought
        push.content = self.content

    @precondition(lambda self: self.pushes)
    @rule(data=st.data(), force=st.booleans(), newest=st.booleans(), losses=LOSSES)
    def revert(self, data: st.DataObject, force: bool, newest: bool, losses: list[str]) -> None:
        push = self.pushes[-1] if newest else self.pick(data)

        def model() -> None:
            self.check_known(push)
            if push.state == "REVERTED":
                raise Refused("already-reverted")
            if push.state == "IN_PROGRESS" and not force:
                raise Refused("in-progress")
            if push.cleaning:
                raise Refused("replaced-are-deleted")
            if any(other.replaced & push.brought for other in self.live("IN_PROGRESS", "COMPLETED")):
                raise Refused("built-upon")
            if push.state == "COMPLETED" and not push.replaced | push.brought <= self.held():
                raise Refused("from-gone", "to-gone")

        if self.call(losses, model, self.table.revert, push.entry_id, force=force, allow_empty=True):
            self.revert_model(push)

    @precondition(lambda self: self.live("REVERTED"))
    @rule(data=st.data(), newest=st.booleans(), losses=LOSSES)
    def unrevert(self, data: st.DataObject, newest: bool, losses: list[str]) -> None:
        push = self.live("REVERTED")[-1] if newest else self.pick(data)

        def model() -> None:
            self.check_known(push)
            if push.state != "REVERTED":
                raise Refused("not-reverted")
            if not push.brought and not push.replaced:
                raise Refused("nothing-to-bring-back")
            if push.cleaning:
                raise Refused("brought-are-deleted")
            if any(other.replaced & push.replaced for other in self.live("IN_PROGRESS", "COMPLETED")):
                raise Refused("built-since")
            if not push.brought <= self.held():
                raise Refused("to-gone")
            if not push.replaced <= self.content:
                raise Refused("from-not-visible")
            if self.refresh and not push.replaced and self.content:
                raise Refused("refresh-pushed-since")

        if self.call(losses, model, self.table.unrevert, push.entry_id, allow_empty=True):
            push.state, push.at_ms = "COMPLETED", self.hand.now_ms
            self.content = self.content - push.replaced | push.brought
            push.content = self.content

    @rule(losses=LOSSES)
    def clean_up(self, losses: list[str]) -> None:
        """With losses a pass may find the work of its own lost write and go a cycle further: then compare where both
        end."""
        for _ in range(3 if any(losses) else 1):
            planned = cleanup.plan(self.table._context).report()
            self.losses = list(losses)
            done = self.table.cleanup()
            assert done == planned or any(losses)
            losses = []
            self.losses = []
            self.clean_model()

    @rule(hours=st.sampled_from([1, 3, 5, 25, -2]))
    def let_time_pass(self, hours: int) -> None:
        self.hand.advance(hours * HOUR_MS + 1)

    @precondition(lambda self: self.pushes)
    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        """The table as of an entry is what it was then, or refused because something of it was removed."""
        push = self.pick(data)
        try:
            snapshot = self.table.snapshot(as_of=push.entry_id)
        except EntryNotFoundError:
            assert push.dropped
        except SnapshotRefusedError as refused:
            assert refused.rule == ("history-cleaned" if push.state == "COMPLETED" else "not-completed")
            assert push.state != "COMPLETED" or self.removals
        else:
            assert push.state == "COMPLETED" and set(snapshot.names) == push.content

    @rule()
    def call_for_an_entry_that_never_was(self) -> None:
        for act in (self.table.end, self.table.revert, self.table.open_stage):
            with pytest.raises(EntryNotFoundError):
                act("00000000-0000-4000-8000-000000000000")

    # --- the model

    def live(self, *wanted: str) -> list[Push]:
        return [push for push in self.pushes if push.state in wanted and not push.dropped]

    def check_known(self, push: Push) -> None:
        if push.dropped:
            raise Refused

    def held(self) -> set[str]:
        return set().union(*(push.names() for push in self.pushes))

    def remove(self, names: frozenset[str] | set[str]) -> int:
        removed = names & self.held()
        self.removals += len(removed)
        for push in self.pushes:
            push.held = {attempt: held - names for attempt, held in push.held.items()}
        return len(removed)

    def revert_model(self, push: Push) -> None:
        if push.state == "COMPLETED":
            self.content = self.content - push.brought | push.replaced
        push.cleaning = push.state == "IN_PROGRESS"  # nothing was completed: there is nothing to bring back
        push.state, push.at_ms = "REVERTED", self.hand.now_ms

    def give_up(self, push: Push) -> int:
        """What a REVERTED push holds goes; it can no longer be brought back."""
        removed = self.remove(push.names())
        push.cleaning = push.cleaning or bool(removed)
        return removed

    @property
    def retention(self) -> int:
        """How long what was replaced, or rolled back, is kept."""
        return DAY_MS if self.refresh else 4 * HOUR_MS

    def clean_model(self) -> None:
        for push in sorted(self.live("COMPLETED", "IN_PROGRESS", "REVERTED"), key=lambda push: push.entry_id):
            age = self.hand.now_ms - push.at_ms
            if push.state == "COMPLETED" and age > self.retention:
                push.cleaning = True
                push.dropped = not self.remove(push.replaced)
                self.removals += push.dropped
                continue
            if push.state == "IN_PROGRESS" and age > DAY_MS:
                self.revert_model(push)
                age = 0
            if push.state == "REVERTED" and not push.cleaning and age <= self.retention:
                continue
            if push.state == "REVERTED" and not self.give_up(push):
                push.dropped = age > HOUR_MS
                self.removals += push.dropped

    # --- what must always hold

    @invariant()
    def readers_see_what_the_model_says(self) -> None:
        if not hasattr(self, "table"):
            return
        assert visible(self.table) == self.content
        assert registered(self.table) == self.held()
        assert states(self.table) == {push.entry_id: push.state for push in self.pushes if not push.dropped}


@pytest.fixture
def lossy(zk_hosts: str) -> Iterator[LossySession]:
    """A session that loses connections when told to."""
    with LossySession.connect(zk_settings(zk_hosts)) as session:
        yield session


def test_random_sequences_agree_with_the_model(lossy: LossySession, store: SegmentStore) -> None:
    run_machine(lambda: TableMachine(lossy, store), 40, 40)


@pytest.mark.slow
def test_long_random_sequences_agree_with_the_model(lossy: LossySession, store: SegmentStore) -> None:
    run_machine(lambda: TableMachine(lossy, store), 250, 60)
