"""Every step is killed at each of its writes, enumerated: right before it is sent, and right after it landed.

A child process runs the step through a session that ends the process (``os._exit``, nothing is cleaned up) at the k-th
write; k counts up until the step survives. Afterwards readers see exactly the old table or the new one, and the same
call again, or a clean-up, brings everything to where one uninterrupted run would have.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import pytest

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.lineage.guard import GuardState
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.replacement import stage as staging
from airflow_provider_segments.core.retention import expiry
from airflow_provider_segments.core.table import SegmentStore, Table
from tests.support.children import dies
from tests.support.sessions import DyingSession, settings
from tests.support.tables import (
    DAY_MS,
    HOUR_MS,
    HandClock,
    build,
    make_table,
    named,
    object_path,
    on_clock,
    on_session,
    push,
    queued_keys,
    queued_sweeps,
    registered,
    stage,
    states,
    visible,
)

MOST_WRITES = 60


class Case(ABC):
    """A table of its own, a step on it, and what must be true after the step was killed and after it was run again."""

    kind = "APPEND"

    config: ClassVar[dict[str, str]] = {}
    foreign: str | None = None
    """An entry that another tool has changed, so that its guard may say something else."""

    def __init__(self, store: SegmentStore, name: str) -> None:
        self.hand = HandClock()
        self.store = on_clock(store, self.hand.clock())
        self.table = make_table(self.store, name, self.kind, **self.config)
        self.old = push(self.table, ["a", "b", "c"])
        self.prepare()
        self.before = visible(self.table)

    def prepare(self) -> None:
        """Bring the table to where the step begins."""

    @abstractmethod
    def act(self, table: Table) -> None:
        """The step, as its task runs it; the same for every attempt."""

    def after(self) -> set[str]:
        """What readers see once it is done."""
        return self.before

    def between(self) -> list[set[str]]:
        """What readers may see of a step that is not atomic as a whole, besides ``before`` and ``after``."""
        return []

    def check_done(self) -> None:
        """What else is true once it is done."""

    def begin(self, count: int = 3) -> None:
        """A push that replaces a and b, with its segments staged."""
        self.entry_id = self.table.start(["a", "b"], identity="me").entry_id
        self.names = named(self.table, self.entry_id, count)
        stage(self.table, self.entry_id, self.names, chunks=("2013-01-01", "2013-03-01"))


class Start(Case):
    def act(self, table: Table) -> None:
        table.start(["a", "b"], identity="me")

    def check_done(self) -> None:
        assert sorted(states(self.table).values()) == ["COMPLETED", "IN_PROGRESS"]


class ForcedStart(Case):
    """On a REFRESH table, where it also reverts a push and lets the snapshot before the last one go."""

    kind = "REFRESH"

    def prepare(self) -> None:
        push(self.table, ["d", "e"])
        self.other = push(self.table, ["f"], end=False)

    def act(self, table: Table) -> None:
        table.start(identity="me", force_cleanup=True)

    def check_done(self) -> None:
        assert states(self.table)[self.other] == "REVERTED"
        assert registered(self.table) == {"d", "e"}


class OpenStage(Case):
    def prepare(self) -> None:
        self.entry_id = self.table.start(identity="me").entry_id

    def act(self, table: Table) -> None:
        table.open_stage(self.entry_id)

    def check_done(self) -> None:
        stage(self.table, self.entry_id, ["x"])
        self.table.end(self.entry_id)
        assert visible(self.table) == registered(self.table) == {"a", "b", "c", "x"}


class Stage(Case):
    """A new attempt, as a retried task makes it; in chunks that exist and in new ones."""

    def prepare(self) -> None:
        self.entry_id = self.table.start(["a", "b"], identity="me").entry_id
        self.names = named(self.table, self.entry_id, 4)

    def act(self, table: Table) -> None:
        chunks = ("2013-01-01", "2013-02-01", "2013-03-01")
        stage(table, self.entry_id, self.names, chunks=chunks)

    def check_done(self) -> None:
        assert set(self.table.staged(self.entry_id).names) == set(self.names)
        self.table.end(self.entry_id)
        assert visible(self.table) == {"c", *self.names}
        assert registered(self.table) == {"a", "b", "c", *self.names}


class StageAgain(Stage):
    """The same attempt, as ``stage`` called again with its own ticket."""

    def prepare(self) -> None:
        super().prepare()
        self.ticket = self.table.open_stage(self.entry_id)
        self.segments = build(self.table, self.ticket, self.names, chunks=("2013-01-01", "2013-02-01"))

    def act(self, table: Table) -> None:
        table.stage(self.ticket, self.segments)


class End(Case):
    def prepare(self) -> None:
        self.begin()

    def act(self, table: Table) -> None:
        table.end(self.entry_id)

    def after(self) -> set[str]:
        return {"c", *self.names}

    def check_done(self) -> None:
        assert states(self.table)[self.entry_id] == "COMPLETED"


class EndWithPart(End):
    """An end that also drops what is not in ``to``, and what an earlier attempt has left."""

    def prepare(self) -> None:
        self.entry_id = self.table.start(["a", "b"], identity="me").entry_id
        stage(self.table, self.entry_id, ["old1", "old2"])
        self.names = named(self.table, self.entry_id, 2)
        stage(self.table, self.entry_id, [*self.names, "rest"], chunks=("2013-01-01", "2013-03-01", "2013-04-01"))

    def act(self, table: Table) -> None:
        table.end(self.entry_id, self.names)

    def check_done(self) -> None:
        super().check_done()
        assert registered(self.table) == {"a", "b", "c", *self.names}


class Publish(Case):
    """A whole push by one process, announced and published; in a chunk that exists and in a new one."""

    identity = "me"

    def act(self, table: Table) -> None:
        if "COMPLETED" in self.own(table).values():
            return
        started = table.start(["a", "b"], identity=self.identity, stager="build")
        assert started.ticket is not None
        names = named(table, started.entry_id, 3)
        table.publish(started.ticket, build(table, started.ticket, names, chunks=("2013-01-01", "2013-03-01")))

    def own(self, table: Table) -> dict[str, str]:
        return {entry_id: state for entry_id, state in states(table).items() if entry_id != self.old}

    def after(self) -> set[str]:
        completed = [entry_id for entry_id, state in self.own(self.table).items() if state == "COMPLETED"]
        return {"c", *named(self.table, completed[0], 3)} if completed else self.before

    def check_done(self) -> None:
        assert list(self.own(self.table).values()) == ["COMPLETED"]
        assert registered(self.table) == {"a", "b", "c", *self.after()}


class PublishAfterAnAttempt(Publish):
    """An earlier attempt has registered some of its segments: it takes two steps, and those leave."""

    def prepare(self) -> None:
        ticket = self.table.start(["a", "b"], identity="me", stager="build").ticket
        assert ticket is not None
        lost = build(self.table, ticket, named(self.table, ticket.entry_id, 2))
        guard = self.table._context.guard(ticket.entry_id).guard
        staging._begin(self.table._context, ticket, guard)
        payloads = staging.shard_payloads(self.table._context, ticket, lost)
        self.table._context.registry.make_chunks(payloads)
        staging._register(self.table._context, ticket, guard, payloads)


class PublishUnderLocks(Publish):
    """Its segments get versions under locks, which are given back."""

    def prepare(self) -> None:
        config = json.loads(json.dumps(dict(self.table.config().raw)))
        config["segmentBuildConfig"] = {"segmentLocking": True}
        self.store.apply_config(TableConfig.from_json(config))

    def check_done(self) -> None:
        super().check_done()
        assert all(segment.version for segment in self.table.snapshot().segments if segment.name != "c")


class Revert(Case):
    def prepare(self) -> None:
        self.begin()
        self.table.end(self.entry_id)

    def act(self, table: Table) -> None:
        table.revert(self.entry_id, identity="rollback", allow_empty=True)

    def after(self) -> set[str]:
        return {"a", "b", "c"}

    def check_done(self) -> None:
        assert states(self.table)[self.entry_id] == "REVERTED"


class RevertForced(Case):
    def prepare(self) -> None:
        self.begin()

    def act(self, table: Table) -> None:
        table.revert(self.entry_id, force=True, identity="rollback")

    def check_done(self) -> None:
        assert states(self.table)[self.entry_id] == "REVERTED"


class Cleanup(Case):
    """Two cycles over a completed, a reverted and an abandoned push."""

    def prepare(self) -> None:
        push(self.table, ["d"], ["a"])
        self.table.revert(push(self.table, ["e", "f"], ["b"]))
        push(self.table, ["g", "h"], end=False)
        self.hand.advance(2 * DAY_MS)

    def act(self, table: Table) -> None:
        for _ in range(3):
            table.cleanup()

    def check_done(self) -> None:
        self.hand.advance(DAY_MS)
        for _ in range(3):
            self.table.cleanup()
        assert registered(self.table) == visible(self.table) == {"b", "c", "d"}
        assert not self.table.lineage().entries and self.table.lineage().custom_map is None
        assert not self.store.session.children(f"/{self.store.paths.cluster}/ENTRIES/{self.table.name}")


class DropCompleted(Case):
    """An entry that leaves, and the sweep of its prefix with it: an attempt that was superseded has left an object."""

    def prepare(self) -> None:
        self.entry_id = self.table.start(identity="me").entry_id
        build(self.table, self.table.open_stage(self.entry_id), ["lost"])
        stage(self.table, self.entry_id, ["d"])
        self.table.end(self.entry_id)
        self.hand.advance(5 * HOUR_MS)

    def act(self, table: Table) -> None:
        table.cleanup()

    def check_done(self) -> None:
        assert not self.table.lineage().entries
        assert sorted(one.reason for one in queued_sweeps(self.store) if one.entry_id == self.entry_id) == ["completed"]


class RevertUnstaged(Case):
    """A build that was killed before it staged: the revert asks for the first sweep, once."""

    def prepare(self) -> None:
        self.entry_id = self.table.start(identity="me").entry_id
        build(self.table, self.table.open_stage(self.entry_id), ["lost"])

    def act(self, table: Table) -> None:
        table.revert(self.entry_id, force=True, identity="rollback")

    def check_done(self) -> None:
        assert [one.reason for one in queued_sweeps(self.store) if one.entry_id == self.entry_id] == ["reverted"]


class FoundReverted(RevertUnstaged):
    """Reverted by another tool, which leaves the guard open."""

    def prepare(self) -> None:
        super().prepare()
        records = self.table._context.records
        stored = records.read()
        self.foreign = self.entry_id
        theirs = stored.lineage.entries[self.entry_id].moved_to(EntryState.REVERTED, self.hand.now_ms)
        self.store.session.commit([records.write(stored, stored.lineage.put(theirs))])

    def act(self, table: Table) -> None:
        table.cleanup()


class Expire(Case):
    """The time retention takes what is too old out of sight; a push in progress keeps what it replaces."""

    config: ClassVar[dict[str, str]] = {"retentionTimeUnit": "DAYS", "retentionTimeValue": "7"}

    def prepare(self) -> None:
        self.hand.advance(5 * HOUR_MS)
        self.table.cleanup()
        self.held = push(self.table, ["d"], ["c"], end=False)

    def act(self, table: Table) -> None:
        table.retain()

    def after(self) -> set[str]:
        return {"c"}

    def check_done(self) -> None:
        expiries = [entry for entry in self.table.lineage() if entry.entry_id != self.held]
        assert [(set(one.segments_from), one.segments_to) for one in expiries] == [({"a", "b"}, ())]
        assert registered(self.table) == {"a", "b", "c", "d"}
        self.table.revert(expiries[0].entry_id, allow_empty=True)
        assert visible(self.table) == self.before
        self.table.retain()
        for _ in range(3):
            self.hand.advance(DAY_MS)
            self.table.retain()
        self.table.retain()
        assert registered(self.table) == visible(self.table) == set()


class ExpireInParts(Expire):
    """More than one replacement, as of a table that is too large for one."""

    def act(self, table: Table) -> None:
        whole = expiry._part
        expiry._part = lambda lineage, names: whole(lineage, names)[:1]
        try:
            table.retain()
        finally:
            expiry._part = whole

    def between(self) -> list[set[str]]:
        return [{"b", "c"}]

    def check_done(self) -> None:
        removed = [name for entry in self.table.lineage() if entry.is_live for name in entry.segments_from]
        assert sorted(removed) == ["a", "b", "c"]


STEPS = [Start, ForcedStart, OpenStage, Stage, StageAgain, End, EndWithPart, Revert, RevertForced, Cleanup]
STEPS += [Publish, PublishAfterAnAttempt, PublishUnderLocks]
STEPS += [DropCompleted, RevertUnstaged, FoundReverted, Expire, ExpireInParts]


def killed(case: Case, hosts: str, at: int, *, landed: bool) -> bool:
    """Run the step in a child that dies at its ``at``-th write; whether it died."""

    def work() -> None:
        with DyingSession.connect(settings(hosts)) as session:
            session.writes, session.at, session.landed = 0, at, landed
            case.act(on_session(case.store, session).table(case.table.name))

    return dies(work)


def check_consistent(table: Table, foreign: str | None = None) -> None:
    """What must hold at every moment: lineage, guards, registry, queue and objects agree. (The guard of ``foreign``
    need not.)"""
    lineage = table.lineage()
    guards = table._context.records.guards(
        table.store.session.children(f"/{table.store.paths.cluster}/ENTRIES/{table.name}")
    )
    assert set(guards) == set(lineage.entries)
    legal = {
        EntryState.IN_PROGRESS: {GuardState.OPEN},
        EntryState.COMPLETED: {GuardState.COMPLETED},
        EntryState.REVERTED: {GuardState.REVERTED},
    }
    for entry in lineage:
        if entry.entry_id != foreign:
            assert guards[entry.entry_id].guard.state in legal[entry.state], entry
    shards = table._context.registry.read(lambda _: True).shards
    known = {f"{table.name}/{shard.name.entry_id}/{record.file}" for shard in shards for record in shard.records}
    queued = queued_keys(table.store, table.name)
    swept = {request.entry_id for request in queued_sweeps(table.store)}
    assert not known & queued, "a registered object is queued for deletion"
    root = object_path(table, "")
    for file in (root / table.name).rglob("*.parquet"):
        key = str(file.relative_to(root))
        entry_id = key.split("/")[1]
        announced = entry_id in lineage.entries or entry_id in swept or key in known | queued
        assert announced, f"nobody knows of the object {key}"


@pytest.mark.parametrize("landed", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_killed_at_any_write_leaves_old_or_new_and_can_be_run_again(
    store: SegmentStore, zk_hosts: str, step: Callable[[SegmentStore, str], Case], landed: bool
) -> None:
    for at in range(1, MOST_WRITES):
        case = step(store, f"t{at}")
        died = killed(case, zk_hosts, at, landed=landed)
        assert visible(case.table) in (case.before, case.after(), *case.between())
        check_consistent(case.table, case.foreign)
        if died:
            case.act(case.table)
        assert visible(case.table) == case.after()
        check_consistent(case.table)
        case.check_done()
        check_consistent(case.table)
        if not died:
            print(f"{step.__name__}: killed at each of {at - 1} writes")
            assert at > 1
            return
    raise AssertionError("the step never ran out of writes")


@pytest.mark.parametrize("landed", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("step", [Start, OpenStage, Stage, End, EndWithPart, Publish, PublishUnderLocks])
def test_a_step_killed_at_any_write_can_also_be_given_up(
    store: SegmentStore, zk_hosts: str, step: Callable[[SegmentStore, str], Case], landed: bool
) -> None:
    """Nobody runs it again: the push is reverted, or just left to the clean-up, and nothing of it stays."""
    for at in range(1, MOST_WRITES):
        case = step(store, f"t{at}")
        died = killed(case, zk_hosts, at, landed=landed)
        for entry in list(case.table.lineage()):
            if at % 2 and entry.state is EntryState.IN_PROGRESS:
                case.table.revert(entry.entry_id, force=True)
        seen = visible(case.table)
        assert seen in (case.before, case.after())
        for _ in range(4):
            case.hand.advance(2 * DAY_MS)
            case.table.cleanup()
        assert visible(case.table) == registered(case.table) == seen
        assert not case.table.lineage().entries
        check_consistent(case.table)
        if not died:
            return
    raise AssertionError("the step never ran out of writes")


def test_the_harness_notices_a_write_that_is_not_counted(store: SegmentStore, zk_hosts: str) -> None:
    """The sweep enumerates every change of ZooKeeper: its count is the number of zxids a step takes."""
    case = End(store, "t")
    with DyingSession.connect(settings(zk_hosts)) as session:
        session.ensure([f"/{store.paths.cluster}/probe"])
        before = store.session.get(f"/{store.paths.cluster}/probe")
        session.writes = 0
        case.act(on_session(case.store, session).table("t"))
        counted = session.writes
        session.ensure([f"/{store.paths.cluster}/probe2"])
        after = store.session.get(f"/{store.paths.cluster}/probe2")
    assert before is not None and after is not None
    assert after.czxid - before.czxid == counted + 1
