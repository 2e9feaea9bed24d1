"""An offload is killed at each of its ZooKeeper writes and at each of its uploads, on both kinds of storage.

A child process ends (``os._exit``, nothing is cleaned up) right before or right after the k-th of them, and k counts up
until it survives. Then nothing is lost, everything stored is known to somebody, and the same call again, or giving the
segments up, leaves nothing behind.
"""

from __future__ import annotations

import itertools
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_segments.core.storage import folders, local
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.tiering import records
from airflow_provider_segments.core.zookeeper import Delete
from airflow_provider_segments.exceptions import ObjectNotFoundError
from tests.support.children import dies
from tests.support.owned import contents_of, drain, expected_keys, keys_in, push_owned
from tests.support.sessions import DyingSession, settings, store_on
from tests.support.tables import DAY_MS, QUICK, HandClock, make_table, queued_batches

MOST = 60
_TABLES = itertools.count(1)


class Case:
    """Segments a and b wait for their primary copies to go, c to e for their offload."""

    def __init__(self, store: SegmentStore, hand: HandClock) -> None:
        self.store, self.hand = store, hand
        self.table = make_table(store, f"t{next(_TABLES)}", replacedSegmentsRetentionPeriod="0s")
        push_owned(self.table, ["a", "b"])
        act(self.table)
        push_owned(self.table, ["c", "d", "e"])
        hand.advance(DAY_MS)
        self.before = contents_of(self.table)

    def check(self) -> None:
        """Nothing is lost, and nothing is stored that nobody knows of."""
        assert contents_of(self.table) == self.before
        known = [set(keys) for keys in expected_keys(self.table)]
        for batch in queued_batches(self.store):
            known[batch.offload is not None] |= {batch.prefix + ledger.file for ledger in batch.ledgers}
        parent = self.store.paths.offloads(self.table.name)
        for uuid in self.store.session.children(parent):
            node = self.store.session.get(f"{parent}/{uuid}")
            assert node is not None
            for planned in records.decode(node.data, uuid).shards:
                entry_id = planned.shard.partition("/")[2].partition(".")[0]
                known[1] |= {f"{self.table.name}/{entry_id}/{uuid}/{one.file}" for one in planned.ledgers}
        for storage, keys in zip((self.store.storage, self.store.tiered), known, strict=True):
            assert storage is not None
            assert keys_in(storage, self.table) <= keys

    def check_done(self) -> None:
        """After draining, each storage holds exactly what is registered there."""
        drain(self.store, self.hand)
        for storage, keys in zip((self.store.storage, self.store.tiered), expected_keys(self.table), strict=True):
            assert storage is not None
            assert keys_in(storage, self.table) == keys
        assert not self.store.session.children(self.store.paths.offloads(self.table.name))
        assert not self.store.queue.backlog().in_flight


def act(table: Table) -> None:
    """The step: what is old is offloaded, and primary copies go with the next call after a day."""
    table.offload(older_than_ms=DAY_MS, primary_lag_ms=DAY_MS)


class DyingStore:
    """Ends the process at the ``at``-th put."""

    def __init__(self, storage: ObjectStore, at: int, *, landed: bool) -> None:
        self._storage, self._at, self._landed = storage, at, landed
        self._puts, self._lock = 0, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def put_file(self, *args: Any, **how: Any) -> Any:
        with self._lock:
            self._puts += 1
            if self._puts == self._at and not self._landed:
                os._exit(9)
            done = self._storage.put_file(*args, **how)
            if self._puts == self._at:
                os._exit(9)
            return done


def killed(case: Case, hosts: str, at: int, *, landed: bool, uploads: bool) -> bool:
    """Run the step in a child that dies at its ``at``-th write or upload; whether it died."""
    store = case.store

    def work() -> None:
        primary, tiered = pickle.loads(pickle.dumps((store.storage, store.tiered)))
        with DyingSession.connect(settings(hosts)) as session:
            session.writes, session.at, session.landed = 0, 0 if uploads else at, landed
            cold = DyingStore(tiered, at, landed=landed) if uploads else tiered
            mine = store_on(session, store.paths.cluster, primary, tiered=cold, clock=store.clock, retry=QUICK)
            act(mine.table(case.table.name))

    return dies(work)


def end_of_session(case: Case) -> None:
    """What the server does when the killed process's session times out: its claim goes."""
    parent = case.store.paths.offloads(case.table.name)
    for uuid in case.store.session.children(parent):
        case.store.session.commit_many([[Delete(f"{parent}/{uuid}/claim", 0)]])


def run_again(case: Case) -> None:
    act(case.table)
    assert contents_of(case.table) == case.before


def give_up(case: Case) -> None:
    """Everything is replaced and cleaned first; the next call only has to clear away."""
    push_owned(case.table, ["new"], sorted(case.before))
    case.hand.advance(1)
    case.table.cleanup()
    case.table.offload(older_than_ms=10**13, primary_lag_ms=0)
    assert set(contents_of(case.table)) == {"new"}


@pytest.mark.parametrize("after", [run_again, give_up])
@pytest.mark.parametrize("landed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("uploads", [False, True], ids=["write", "upload"])
def test_an_offload_killed_anywhere_loses_nothing_and_leaves_nothing(
    tiered_store: SegmentStore,
    hand: HandClock,
    zk_hosts: str,
    uploads: bool,
    landed: bool,
    after: Callable[[Case], None],
) -> None:
    for at in range(1, MOST):
        case = Case(tiered_store, hand)
        died = killed(case, zk_hosts, at, landed=landed, uploads=uploads)
        case.check()
        if died:
            assert tiered_store.deleter().drain().total("dead") == 0
            case.check()
            end_of_session(case)
        after(case)
        case.check_done()
        if not died:
            print(f"killed at each of {at - 1}")
            assert at > 3
            return
    raise AssertionError("the offload never ended")


def test_without_the_announcement_a_killed_offload_leaves_orphans(
    tiered_store: SegmentStore, hand: HandClock, zk_hosts: str
) -> None:
    """The revert of the guard: with the record gone, nobody knows of the copies that were written."""
    case = Case(tiered_store, hand)
    assert killed(case, zk_hosts, 2, landed=True, uploads=True)
    end_of_session(case)
    parent = case.store.paths.offloads(case.table.name)
    (uuid,) = case.store.session.children(parent)
    case.store.session.commit([Delete(f"{parent}/{uuid}", 0)])
    with pytest.raises(AssertionError):
        case.check()
    run_again(case)
    with pytest.raises(AssertionError):
        case.check_done()
    found = case.table.reconcile(grace_ms=0, enqueue=True)
    assert found.orphans.count >= 1
    case.check_done()


def test_a_reader_about_to_take_its_lease_looks_again_when_a_primary_copy_was_given_up(
    tiered_store: SegmentStore, hand: HandClock
) -> None:
    """The snapshot points to primary storage, whose objects are deleted before its lease is there: the registry's root
    has changed, so the snapshot is taken again. Without that look (its revert), it would read what is gone."""
    case = Case(tiered_store, hand)
    taken, blind = case.table.snapshot(), case.table.snapshot()
    act(case.table)
    drain(case.store)
    with taken as held:
        for segment in held.segments:
            with held.store_of(segment.tiered).open(segment.key) as file:
                assert file.read() == case.before[segment.name]
    root = case.store.session.get(case.store.paths.registry(case.table.name))
    assert blind._holding is not None
    assert root is not None
    blind._holding.root_version = root.version
    with blind as held, pytest.raises(ObjectNotFoundError):
        for segment in held.segments:
            held.store_of(segment.tiered).open(segment.key)


def test_a_reader_with_a_lease_keeps_the_primary_copy_until_it_ends(
    tiered_store: SegmentStore, hand: HandClock
) -> None:
    """The copy is given up under it; the deletion waits, and then goes."""
    case = Case(tiered_store, hand)
    with case.table.snapshot() as held:
        act(case.table)
        assert drain(case.store, hand).total("deleted") == 0
        for segment in held.segments:
            assert segment.tiered is None
            with held.storage.open(segment.key) as file:
                assert file.read() == case.before[segment.name]
    case.check_done()


@pytest.mark.parametrize("tiered_store", ["files"], indirect=True)
def test_a_copy_killed_half_way_leaves_no_temporary_file(
    tiered_store: SegmentStore, hand: HandClock, zk_hosts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local store writes below a temporary name first; whoever takes the offload over clears it away."""
    assert isinstance(tiered_store.tiered, LocalStore)
    root = tiered_store.tiered.root
    case = Case(tiered_store, hand)
    with monkeypatch.context() as dying:
        dying.setattr(local, "_publish", lambda *_, **__: os._exit(9))
        assert killed(case, zk_hosts, MOST, landed=False, uploads=True)
    assert list(root.rglob(f"{folders.TEMP}*"))
    end_of_session(case)
    run_again(case)
    case.check_done()
    assert not list(root.rglob(f"{folders.TEMP}*"))
