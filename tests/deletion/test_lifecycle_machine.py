"""Random lives of a table: pushes, reverts, clean-ups, offloads, readers, consumers, bad storage, lost connections.

While it runs, every object that a live reader has resolved can be opened, and every object is accounted for. In the
end readers leave, time passes, consumers drain, dead letters are enqueued anew; then storage holds exactly the visible
and retained segments, and queue and lineage are empty.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_segments.core.deletion.consumer import LedgerDeleter
from airflow_provider_segments.core.deletion.in_use import Judge, Verdict
from airflow_provider_segments.core.deletion.sweep import Sweeper
from airflow_provider_segments.core.model.ledger import ledger_prefix
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.storage.s3 import S3Store
from airflow_provider_segments.dev.s3 import S3Server
from airflow_provider_segments.exceptions import SegmentsError
from tests.deletion.support import LATER, FaultyStore, World, check_equation
from tests.support.http_faults import CUT, HANG, LOSE_REPLY, PASS, FaultyProxy
from tests.support.machines import run_machine
from tests.support.sessions import LossySession
from tests.support.sessions import settings as zk_settings
from tests.support.tables import HOUR_MS

LOSSES = st.lists(st.sampled_from(["", "", "", "before", "after"]), max_size=4)
FAULTS = st.lists(st.sampled_from(["", "", "", "fault"]), max_size=6)


class Lifecycle(RuleBasedStateMachine):
    """One REFRESH table whose replaced segments are retained for an hour."""

    def __init__(self, world: World, hosts: str, faults: list[Any], storage: Any) -> None:
        super().__init__()
        self.sure = world
        self.faults = faults
        self.losses: list[str] = []
        self.session = LossySession.connect(zk_settings(hosts))
        self.session.decide = lambda: self.losses.pop() if self.losses else ""  # type: ignore[method-assign]
        self.world = world.on_session(self.session, storage)
        self.table = world.table(kind="REFRESH", replacedSegmentsRetentionPeriod="1h")
        self.lossy = self.world.store.table("t")
        self.readers: list[tuple[Snapshot, Snapshot]] = []
        self.entries: list[str] = []
        self.pushes = 0
        self.report = self.world.drain()

    def attempt(self, losses: list[str], faults: list[str], act: Callable[[], Any]) -> Any:
        """Do it over a bad network; whatever it raises on purpose, the invariants must hold afterwards."""
        self.losses, self.faults[:] = list(losses), list(faults)
        try:
            return act()
        except SegmentsError:
            return None
        finally:
            self.losses, self.faults[:] = [], []

    @rule(number=st.integers(1, 3), end=st.sampled_from([True, True, False]), losses=LOSSES, faults=FAULTS)
    def push(self, number: int, end: bool, losses: list[str], faults: list[str]) -> None:
        self.pushes += 1
        names = [f"s{self.pushes}_{index}" for index in range(number)]

        def act() -> None:
            entry_id = self.lossy.start(identity=str(self.pushes), force_cleanup=True).entry_id
            self.entries.append(entry_id)
            ticket = self.lossy.open_stage(entry_id)
            self.lossy.stage(ticket, self.world.write(self.lossy, ticket, names))
            if end:
                self.lossy.end(entry_id)

        self.attempt(losses, faults, act)

    @rule(losses=LOSSES, faults=FAULTS, read=st.booleans())
    def replace_and_let_go(self, losses: list[str], faults: list[str], read: bool) -> None:
        """What a day brings: all is replaced, and what was replaced is marked and delivered. Random calls alone rarely
        add up to it."""
        if read:
            self.begin_to_read([])
        self.push(1, True, losses, faults)
        self.clean_up(3, losses)
        self.consume(None, True, losses, faults)

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), hours=st.sampled_from([1, 25]), losses=LOSSES)
    def revert_and_let_go(self, data: st.DataObject, hours: int, losses: list[str]) -> None:
        """A push is taken back, whatever it has reached, and its leftovers go."""
        self.revert(data, True, losses)
        self.clean_up(hours, losses)
        self.consume(None, True, losses, [])

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), losses=LOSSES, faults=FAULTS)
    def end_or_build_again(self, data: st.DataObject, losses: list[str], faults: list[str]) -> None:
        entry_id = data.draw(st.sampled_from(self.entries[-3:]))

        def act() -> None:
            if data.draw(st.booleans()):
                ticket = self.lossy.open_stage(entry_id)
                self.lossy.stage(ticket, self.world.write(self.lossy, ticket, [f"r{self.pushes}_{entry_id[:4]}"]))
            self.lossy.end(entry_id)

        self.attempt(losses, faults, act)

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), force=st.booleans(), losses=LOSSES)
    def revert(self, data: st.DataObject, force: bool, losses: list[str]) -> None:
        entry_id = data.draw(st.sampled_from(self.entries[-3:]))
        self.attempt(losses, [], lambda: self.lossy.revert(entry_id, force=force, allow_empty=True))

    @rule(hours=st.sampled_from([0, 1, 3, 25]), losses=LOSSES)
    def clean_up(self, hours: int, losses: list[str]) -> None:
        self.sure.hand.advance(hours * HOUR_MS + 1)
        self.attempt(losses, [], self.lossy.cleanup)

    @rule(losses=LOSSES)
    def begin_to_read(self, losses: list[str]) -> None:
        taken = self.lossy.snapshot()
        if (entered := self.attempt(losses, [], taken.__enter__)) is not None:
            self.readers.append((taken, entered))

    @precondition(lambda self: self.readers)
    @rule(data=st.data(), losses=LOSSES)
    def end_to_read(self, data: st.DataObject, losses: list[str]) -> None:
        taken, entered = self.readers.pop(data.draw(st.integers(0, len(self.readers) - 1)))
        self.read(entered)
        self.attempt(losses, [], lambda: taken.__exit__(None, None, None))

    @rule(lag=st.sampled_from([0, HOUR_MS]), most=st.sampled_from([1, None]), losses=LOSSES, faults=FAULTS)
    def offload(self, lag: int, most: int | None, losses: list[str], faults: list[str]) -> None:
        """Segments get a second ledger, and earlier ones lose their first."""
        self.attempt(losses, faults, lambda: self.lossy.offload(older_than_ms=0, primary_lag_ms=lag, max_segments=most))

    @rule(limit=st.sampled_from([1, 3, None]), later=st.booleans(), losses=LOSSES, faults=FAULTS)
    def consume(self, limit: int | None, later: bool, losses: list[str], faults: list[str]) -> None:
        if later:
            self.sure.hand.advance(LATER)
        report = self.attempt(losses, faults, lambda: self.world.drain(max_ledgers=limit))
        if report is not None:
            self.report.merge(report)

    @rule(losses=LOSSES)
    def redrive(self, losses: list[str]) -> None:
        for name, _ in list(self.sure.store.queue.dead_letters()):
            self.attempt(losses, [], lambda name=name: self.world.store.queue.redrive(name))  # type: ignore[misc]

    # --- what must always hold

    @invariant()
    def readers_can_open_what_they_resolved(self) -> None:
        for _, entered in self.readers:
            self.read(entered)

    @invariant()
    def what_is_registered_is_there_and_nothing_is_forgotten(self) -> None:
        self.sure.check(self.table, strict=False)
        check_equation(self.report)

    def read(self, taken: Snapshot) -> None:
        for segment in taken.segments:
            store = self.sure.store.storage if segment.tiered is None else self.sure.store.tiered
            assert store is not None
            assert store.head(segment.key) is not None, f"{segment.key} went under a reader"

    def teardown(self) -> None:
        """Everybody leaves, everything is cleaned, everything that is due is delivered."""
        try:
            self.finish()
        finally:
            self.session.close()

    def finish(self) -> None:
        for taken, entered in self.readers:
            self.read(entered)
            taken.__exit__(None, None, None)
        self.session.close()  # claims whose reply was lost, too
        queue = self.sure.store.queue
        for _ in range(8):
            self.sure.hand.advance(26 * HOUR_MS)
            self.table.offload(older_than_ms=100 * 365 * 24 * HOUR_MS, primary_lag_ms=0)  # what was begun is finished
            self.table.cleanup()
            self.sure.drain_all()
            for name, _ in list(queue.dead_letters()):
                queue.redrive(name)
            self.sure.drain_all()
        self.what_is_registered_is_there_and_nothing_is_forgotten()
        visible = self.table.snapshot()
        assert not self.table.lineage().entries and not queue.backlog().in_flight and not queue.backlog().dead
        assert {record.name for shard in self.sure.shards(self.table) for record in shard.records} == set(visible.names)
        here, there = set(), set()
        for shard, records in visible.blocks:
            for record in records:
                for place in record.stores():
                    key = ledger_prefix("t", shard.name.entry_id, place) + record.file
                    (here if place is None else there).add(key)
        assert self.sure.stored() == here
        assert self.sure.store.tiered is not None
        assert {one.key for one in self.sure.store.tiered.list("t/")} == there


def on_files(make_world: Callable[..., World], hosts: str) -> Lifecycle:
    world = make_world("files", tiered=True, max_lease_age_ms=0, max_retry_delete_count=2, batches_at_once=2)
    faults: list[Any] = []
    storage = FaultyStore(world.store.storage, lambda *_: faults.pop() if faults else "")
    return Lifecycle(world, hosts, faults, storage)


def test_storage_ends_with_exactly_what_is_visible(make_world: Callable[..., World], zk_hosts: str) -> None:
    run_machine(lambda: on_files(make_world, zk_hosts), 8, 25)


@pytest.mark.slow
def test_storage_ends_with_exactly_what_is_visible_after_long_lives(
    make_world: Callable[..., World], zk_hosts: str
) -> None:
    run_machine(lambda: on_files(make_world, zk_hosts), 150, 50)


HTTP_FAULTS = (403, 500, 503, CUT, LOSE_REPLY, HANG)


def test_storage_ends_with_exactly_what_is_visible_on_s3_over_a_bad_network(
    make_world: Callable[..., World], zk_hosts: str, s3_server: S3Server
) -> None:
    run_on_s3(make_world, zk_hosts, s3_server, 2, 12)


@pytest.mark.slow
def test_storage_ends_with_exactly_what_is_visible_on_s3_after_long_lives(
    make_world: Callable[..., World], zk_hosts: str, s3_server: S3Server
) -> None:
    run_on_s3(make_world, zk_hosts, s3_server, 25, 30)


def run_on_s3(make_world: Callable[..., World], hosts: str, server: S3Server, examples: int, steps: int) -> None:
    """Faults are injected between boto3 and the server."""
    faults: list[Any] = []
    kinds = itertools.cycle(HTTP_FAULTS)

    def decide(method: str, path: str, count: int) -> str | int:
        return next(kinds) if faults and faults.pop() else PASS

    with FaultyProxy(server.endpoint_url, decide) as proxy:

        def machine() -> Lifecycle:
            world = make_world("s3", tiered=True, max_lease_age_ms=0, max_retry_delete_count=2, batches_at_once=2)
            options = {**server.options, "endpoint_url": proxy.url}
            prefix = world.store.storage.uri.removeprefix("s3://deletion/")
            return Lifecycle(world, hosts, faults, S3Store("deletion", prefix, reply_seconds=0.5, **options))

        run_machine(machine, examples, steps)


@pytest.mark.parametrize("guard", ["lease", pytest.param("retry", marks=pytest.mark.slow), "sweep"])
def test_the_machine_finds_a_guard_that_is_switched_off(
    make_world: Callable[..., World], zk_hosts: str, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    """The revert test of the machine: a reader loses a file, or an object is forgotten."""
    if guard == "lease":
        monkeypatch.setattr(Judge, "_leased", lambda *_: (Verdict.UNUSED, ""))
    elif guard == "retry":
        monkeypatch.setattr(LedgerDeleter, "_failed", lambda *_: None)
    else:
        monkeypatch.setattr(Sweeper, "_pages", lambda *_: iter(()))
    with pytest.raises((AssertionError, ExceptionGroup)):
        once = {"derandomize": True, "phases": [Phase.generate], "report_multiple_bugs": False}
        run_machine(lambda: on_files(make_world, zk_hosts), 120, 30, **once)  # it ends with the first one it finds
