"""Leases that are kept alive: for as long as work goes on, through lost connections, and not beyond a lost lock."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from airflow_provider_segments.clock import system_now_ms
from airflow_provider_segments.core.locking import Denied, Granted, Lock, granted_lock
from airflow_provider_segments.core.locking.box import LockBox
from airflow_provider_segments.core.locking.renewal import KeptLeases, keep_leases
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from airflow_provider_segments.exceptions import LockLostError, LockRevokedError
from tests.locking.helpers import until, wanted
from tests.support.sessions import settings
from tests.support.tcp_proxy import TcpProxy

SHORT_MS = 2_000
"""A lease that a test can wait for, and that a busy machine renews in time."""


@pytest.fixture
def box(store: SegmentStore) -> LockBox:
    """An empty box."""
    return LockBox(store.cluster, "t")


def lock(box: LockBox, group: str = "g", day: int = 0, **other: Any) -> Lock:
    """Acquire what must be granted, under a short lease."""
    return granted_lock("t", box.acquire(wanted(group, day, day + 1, lease_ms=SHORT_MS, **other)))


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("segments-leases")}


def test_a_kept_lease_outlives_its_time_several_times_over(box: LockBox) -> None:
    held = lock(box)
    with keep_leases(box, "g", "g", SHORT_MS, [held.lock_id]) as kept:
        assert isinstance(box.acquire_blocking(wanted("thief"), 3 * SHORT_MS / 1000), Denied)
        kept.check()
    assert kept.renewed > 3
    assert not threads()


def test_without_renewals_the_lock_is_taken_after_its_lease(box: LockBox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Revert test: the thread is what keeps it."""
    held = lock(box)
    monkeypatch.setattr(KeptLeases, "run", lambda _: None)
    with keep_leases(box, "g", "g", SHORT_MS, [held.lock_id]):
        assert isinstance(box.acquire_blocking(wanted("thief"), 60), Granted)


def test_leaving_ends_the_renewals_at_once(box: LockBox) -> None:
    held = lock(box)
    before = time.monotonic()
    with keep_leases(box, "g", "g", 600_000, [held.lock_id]):
        assert threads()
    assert time.monotonic() - before < 30, "the next renewal would be in 200 s"
    assert not threads()


def test_work_that_fails_ends_the_renewals_and_its_error_comes_out(box: LockBox) -> None:
    held = lock(box)
    with pytest.raises(KeyError), keep_leases(box, "g", "g", SHORT_MS, [held.lock_id]):
        raise KeyError
    assert not threads()


@pytest.mark.parametrize("how", ["revoked", "released"])
def test_a_lost_lock_ends_the_renewals_and_says_why(box: LockBox, how: str) -> None:
    first, second = lock(box), lock(box, day=1)
    told: list[Exception] = []
    with keep_leases(box, "g", "g", SHORT_MS, [first.lock_id, second.lock_id], lost=told.append) as kept:
        if how == "revoked":
            box.acquire(wanted("thief", priority=75))
        else:
            box.release("g", "g", lock_ids=[first.lock_id])
        until(lambda: kept.error is not None)
        until(lambda: not threads())
        with pytest.raises(LockLostError) as caught:
            kept.check()
    assert told == [caught.value]
    assert isinstance(caught.value, LockRevokedError) == (how == "revoked")
    assert ("thief" in str(caught.value)) == (how == "revoked")


def test_work_does_not_begin_on_a_lock_that_is_gone(box: LockBox) -> None:
    held = lock(box)
    box.acquire(wanted("thief", priority=75))
    with pytest.raises(LockRevokedError, match="thief"), keep_leases(box, "g", "g", SHORT_MS, [held.lock_id]):
        pytest.fail("the block was entered")
    assert not threads()


def test_without_lock_ids_whatever_the_task_holds_at_the_time_is_renewed(box: LockBox) -> None:
    """One of its locks is revoked, another comes later: neither ends the renewals of the rest."""
    with keep_leases(box, "g", "g", SHORT_MS) as kept:
        lost, held = lock(box), lock(box, day=1)
        box.revoke([lost.lock_id], "somebody")
        until(lambda: kept.error is not None)
        late = lock(box, day=2)
        for day in (1, 2):
            assert isinstance(box.acquire_blocking(wanted("thief", day, day + 1), 2 * SHORT_MS / 1000), Denied)
        with pytest.raises(LockRevokedError, match="somebody"):
            kept.check()
        box.release("g", "g")
        before = kept.renewed
        again = lock(box, day=3)
        until(lambda: kept.renewed > before + 1)
    assert {held.lock_id, late.lock_id, again.lock_id}.isdisjoint({lost.lock_id})


def test_a_lost_connection_is_tried_again(zk_hosts: str, store: SegmentStore, box: LockBox) -> None:
    """Longer than the lease: nobody has taken the lock meanwhile, so it is renewed and the work goes on."""
    held = lock(box)
    with TcpProxy(zk_hosts) as proxy, ZooKeeperSession.connect(settings(proxy.hosts)) as session:
        through = LockBox(store.replace(session=session).cluster, "t")
        with keep_leases(through, "g", "g", SHORT_MS, [held.lock_id]) as kept:
            proxy.refuse()
            ended = box.locks()[0].lease_until_ms
            until(lambda: box.locks()[0].abandoned(system_now_ms()))
            proxy.heal()
            until(lambda: box.locks()[0].lease_until_ms > ended)
            kept.check()
            assert isinstance(box.acquire(wanted("thief")), Denied)


def test_a_lock_that_was_taken_while_the_connection_was_away_is_lost(
    zk_hosts: str, store: SegmentStore, box: LockBox
) -> None:
    held = lock(box)
    with TcpProxy(zk_hosts) as proxy, ZooKeeperSession.connect(settings(proxy.hosts)) as session:
        through = LockBox(store.replace(session=session).cluster, "t")
        with keep_leases(through, "g", "g", SHORT_MS, [held.lock_id]) as kept:
            proxy.refuse()
            taken = box.acquire_blocking(wanted("thief"), 60)
            assert isinstance(taken, Granted)
            proxy.heal()
            until(lambda: kept.error is not None)
            with pytest.raises(LockRevokedError, match=r"by thief of thief .* after its lease had ended"):
                kept.check()


def test_leaving_while_zookeeper_is_away_does_not_wait_for_it(zk_hosts: str, store: SegmentStore, box: LockBox) -> None:
    held = lock(box)
    with TcpProxy(zk_hosts) as proxy, ZooKeeperSession.connect(settings(proxy.hosts)) as session:
        through = LockBox(store.replace(session=session).cluster, "t")
        with keep_leases(through, "g", "g", SHORT_MS, [held.lock_id]):
            proxy.refuse()
            until(lambda: box.locks()[0].abandoned(system_now_ms()))
            left = time.monotonic()
        assert time.monotonic() - left < 7, "it waits for 2 s at most; ZooKeeper would take 10 s"
