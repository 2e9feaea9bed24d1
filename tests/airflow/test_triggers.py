"""The triggers of one triggerer: they share a ZooKeeper session, wake for what concerns them, and outlive its loss."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.core.deletion.messages import Backlog
from airflow_provider_segments.core.deletion.queue import DeletionQueue
from airflow_provider_segments.core.lineage.entries import EntryState, LineageEntry
from airflow_provider_segments.core.locking import Lock, LockBox, LockRequest, LockType, granted_lock
from airflow_provider_segments.core.model.interval import Interval, parse_time
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Delete
from airflow_provider_segments.exceptions import InvalidConfigError, MetadataUnavailableError
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.triggers import base
from airflow_provider_segments.triggers.base import SegmentsTrigger, shared_store
from airflow_provider_segments.triggers.deletion import DeletionBacklogTrigger
from airflow_provider_segments.triggers.lineage import LineageStateTrigger
from airflow_provider_segments.triggers.locks import LockGrantTrigger, SegmentLockTrigger
from tests.airflow.helpers import first_event, make_table, push_rows, stage_rows
from tests.support.sessions import close_elsewhere, expire
from tests.support.tcp_proxy import TcpProxy

JANUARY = Interval(parse_time("2013-01-01"), parse_time("2013-02-01"))
NEVER_S = 600.0
"""A poll interval that no test waits for: only a watch can have woken the trigger."""
SOON_S = 60.0
"""How long after a change its event may come on a slow machine, far below the poll interval. After a lost session a
trigger pauses for up to ten seconds before it looks again."""


@pytest.fixture
def table(store: SegmentStore, table_name: str) -> Table:
    return make_table(store, table_name, "APPEND")


class Watched:
    """What the triggers do with stores: which were opened and closed, in which threads, and what they look at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[SegmentStore] = []
        self.threads: list[int] = []
        self.looks: Counter[str] = Counter()
        self.delay = 0.0
        self._patch_stores(monkeypatch)
        self._patch_looks(monkeypatch)

    @property
    def open(self) -> list[SegmentStore]:
        return [store for store in self.opened if not store.session.closed]

    def looked(self, what: str, times: int) -> bool:
        return self.looks[what] >= times

    def again(self, *what: str) -> Callable[[], bool]:
        """Tells whether each of these was looked at once more since now."""
        before = self.looks.copy()
        return lambda: all(self.looked(one, before[one] + 1) for one in what)

    def _patch_stores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        connect, close = SegmentStore.connect.__func__, SegmentStore.close  # type: ignore[attr-defined]

        def connected(cls: type[SegmentStore], *args: Any, **options: Any) -> SegmentStore:
            self.threads.append(threading.get_ident())
            time.sleep(self.delay)
            store: SegmentStore = connect(cls, *args, **options)
            self.opened.append(store)
            return store

        def closed(store: SegmentStore) -> None:
            self.threads.append(threading.get_ident())
            time.sleep(self.delay)
            close(store)

        monkeypatch.setattr(SegmentStore, "connect", classmethod(connected))
        monkeypatch.setattr(SegmentStore, "close", closed)

    def _patch_looks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        entry_state, locks, backlog = Table.entry_state, LockBox.locks, DeletionQueue.backlog

        def looked_at(table: Table, entry_id: str) -> EntryState | None:
            self.looks[entry_id] += 1
            return entry_state(table, entry_id)

        def listed(box: LockBox) -> tuple[Lock, ...]:
            self.looks["locks"] += 1
            return locks(box)

        def counted(queue: DeletionQueue) -> Backlog:
            self.looks["backlog"] += 1
            return backlog(queue)

        monkeypatch.setattr(DeletionQueue, "backlog", counted)
        monkeypatch.setattr(Table, "entry_state", looked_at)
        monkeypatch.setattr(LockBox, "locks", listed)


@pytest.fixture
def watched(table: Table, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def on_entry(table: Table, entry_id: str, *states: str, poll: float = NEVER_S, **more: Any) -> LineageStateTrigger:
    wanted = list(states or ("COMPLETED",))
    return LineageStateTrigger(table=table.name, entry_id=entry_id, states=wanted, poll_interval=poll, **more)


def on_locks(table: Table, **more: Any) -> SegmentLockTrigger:
    where = {"start_ms": JANUARY.start_ms, "end_ms": JANUARY.end_ms}
    return SegmentLockTrigger(table=table.name, poll_interval=NEVER_S, **(where | more))


def lock_of(table: Table, group: str, interval: Interval = JANUARY, **more: Any) -> Lock:
    request = LockRequest(group=group, task=group, interval=interval, **more)
    return granted_lock(table.name, table.locks.acquire(request))


async def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Let the triggers work until it is so."""
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it never came true"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def waiting(*triggers: SegmentsTrigger) -> AsyncIterator[list[asyncio.Future[dict[str, Any]]]]:
    """The triggers' events to come, as tasks; what still waits at the end is cancelled, as the triggerer does it."""
    tasks = [asyncio.ensure_future(first_event(one)) for one in triggers]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def event_after(task: asyncio.Future[dict[str, Any]], change: Callable[[], Any]) -> tuple[dict[str, Any], float]:
    """The event, and how many seconds after the change it came."""
    assert not task.done()
    await asyncio.to_thread(change)
    began = time.monotonic()
    event = await asyncio.wait_for(task, 60)
    return event, time.monotonic() - began


async def ticking(work: Awaitable[Any]) -> tuple[Any, float]:
    """What came of ``work``, and for how many seconds at most the event loop stood still meanwhile."""
    ticks = [time.monotonic()]

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.01)
            ticks.append(time.monotonic())

    ticker = asyncio.ensure_future(tick())
    try:
        return await work, max(two - one for one, two in itertools.pairwise([*ticks, time.monotonic()]))
    finally:
        ticker.cancel()


def connections(hosts: str) -> int:
    """How many clients are connected to the server, as it counts them itself."""
    host, port = hosts.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as asking:
        asking.sendall(b"srvr")
        answer = b""
        while block := asking.recv(4096):
            answer += block
    [line] = [line for line in answer.decode().splitlines() if line.startswith("Connections:")]
    return int(line.split()[1])


# -- one session a connection ------------------------------------------------------------------------------------------


def test_200_deferred_triggers_of_one_connection_share_one_session(
    table: Table, tmp_path: Path, watched: Watched, zk_hosts: str
) -> None:
    """Open one ZooKeeper session for all of them, whatever they wait for, and close it after the last event."""
    entries = [str(table.start().entry_id) for _ in range(20)]
    lock_of(table, "other")
    triggers: list[SegmentsTrigger] = [on_entry(table, one, "REVERTED") for one in entries for _ in range(9)]
    triggers += [on_locks(table) for _ in range(10)]
    triggers += [
        LockGrantTrigger(
            table=table.name,
            group="mine",
            holder="mine",
            start_ms=JANUARY.start_ms,
            end_ms=JANUARY.end_ms,
            lock_type="EXCLUSIVE",
            priority=50,
            poll_interval=NEVER_S,
        )
        for _ in range(10)
    ]
    before = connections(zk_hosts)

    async def all_of_them() -> list[dict[str, Any]]:
        async with waiting(*triggers) as tasks:
            await until(lambda: all(watched.looked(one, 9) for one in entries) and watched.looked("locks", 40))
            assert not [task for task in tasks if task.done()]
            assert len(watched.opened) == 1
            await until(lambda: connections(zk_hosts) == before + 1, 10)

            def change() -> None:
                table.locks.release_group("other")
                for one in entries:
                    table.revert(one, force=True)

            await asyncio.to_thread(change)
            return list(await asyncio.wait_for(asyncio.gather(*tasks), 60))

    assert len(triggers) == 200
    events = asyncio.run(all_of_them())
    assert Counter(event["status"] for event in events) == {"reached": 180, "free": 20}
    assert (len(watched.opened), watched.open) == (1, [])
    asyncio.run(until(lambda: connections(zk_hosts) == before, 10))


def test_session_is_closed_with_its_last_trigger_and_not_before(table: Table, watched: Watched) -> None:
    """Keep it while one still waits, however the others end; open another one for those that come later."""
    gone, stays = (str(table.start().entry_id) for _ in range(2))

    async def one_by_one() -> None:
        async with waiting(on_entry(table, gone), on_entry(table, gone), on_entry(table, stays)) as tasks:
            await until(lambda: watched.looked(gone, 2) and watched.looked(stays, 1))
            tasks[0].cancel()
            event, _ = await event_after(tasks[1], lambda: table.revert(gone, force=True))
            assert event["status"] == "impossible"
            await asyncio.sleep(0.2)
            assert len(watched.open) == 1
            assert (await event_after(tasks[2], lambda: table.revert(stays, force=True)))[0]["status"] == "impossible"
        assert not watched.open
        assert (await first_event(on_entry(table, stays)))["status"] == "impossible"

    asyncio.run(one_by_one())
    assert (len(watched.opened), watched.open) == (2, [])


def test_connections_that_open_the_same_store_share_a_session_and_others_do_not(
    table: Table, watched: Watched, connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go by what a connection opens, not by what it is called."""
    entry_id = str(table.start().entry_id)
    monkeypatch.setenv("AIRFLOW_CONN_SAME", json.dumps(connection))
    other = {**connection, "extra": {**connection["extra"], "cluster": f"other_{table.name}"}}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(other))
    with SegmentsHook("other").get_conn() as opened:
        other_id = str(make_table(opened, table.name, "APPEND").start().entry_id)
    watched.opened.clear()

    async def together() -> None:
        triggers = [
            on_entry(table, entry_id),
            on_entry(table, entry_id, segments_conn_id="same"),
            on_entry(table, other_id, segments_conn_id="other"),
        ]
        async with waiting(*triggers):
            await until(lambda: watched.looked(entry_id, 2) and watched.looked(other_id, 1))
            found = {store.paths.cluster for store in watched.open}
            assert (len(watched.opened), found) == (2, {f"airflow_{table.name}", f"other_{table.name}"})

    asyncio.run(together())
    assert not watched.open


def test_event_loops_do_not_share_a_session(table: Table, watched: Watched) -> None:
    """A session's watches wake the loop that it was opened on."""
    entry_id = str(table.start().entry_id)

    async def waits() -> str:
        async with waiting(on_entry(table, entry_id, "REVERTED")) as [task]:
            return str((await asyncio.wait_for(task, 60))["state"])

    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(waits()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + 30
    while not watched.looked(entry_id, 2):
        assert time.monotonic() < limit
        time.sleep(0.02)
    table.revert(entry_id, force=True)
    for thread in threads:
        thread.join(30)
    assert found == ["REVERTED"] * 2
    assert (len(watched.opened), watched.open) == (2, [])


@pytest.mark.parametrize("ends", ["fires", "is cancelled", "is cancelled while it connects"])
def test_opening_and_closing_never_block_the_event_loop(table: Table, watched: Watched, ends: str) -> None:
    """Do both in a thread: a session is only closed when the server has answered."""
    entry_id = str(table.start().entry_id)
    watched.delay = 2.0

    async def live() -> None:
        async with waiting(on_entry(table, entry_id, "REVERTED")) as [task]:
            if ends == "is cancelled while it connects":
                await until(lambda: bool(watched.threads))
                return
            await until(lambda: watched.looked(entry_id, 1))
            if ends == "fires":
                await event_after(task, lambda: table.revert(entry_id, force=True))

    async def then() -> None:
        await live()
        await until(lambda: bool(watched.opened) and not watched.open)

    async def main() -> float:
        return (await ticking(then()))[1]

    stood_still = asyncio.run(main())
    assert stood_still < 1.2
    assert len(watched.threads) == 2, "it was opened and closed once"
    assert threading.get_ident() not in watched.threads, "the event loop's own thread did neither"


def test_connecting_that_fails_is_tried_anew_by_the_next_and_leaves_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wait ZooKeeper's absence out; give any other error to the trigger that has it, and let the next one try."""
    calls: list[float] = []
    answers: Iterator[Exception | None] = iter([MetadataUnavailableError("away"), InvalidConfigError("no"), None])
    connect = SegmentStore.connect.__func__  # type: ignore[attr-defined]

    def failing(cls: type[SegmentStore], **options: Any) -> Any:
        calls.append(time.monotonic())
        if error := next(answers):
            raise error
        return connect(cls, **options)

    monkeypatch.setattr(SegmentStore, "connect", classmethod(failing))
    settings = SegmentsHook().settings

    async def main() -> None:
        with pytest.raises(InvalidConfigError):
            async with shared_store(settings, 0.1):
                pytest.fail("it was not opened")
        async with shared_store(settings, 0.1) as one, shared_store(settings, 0.1) as two:
            assert one is two
            assert len(base._SHARED[asyncio.get_running_loop()]) == 1
        assert not base._SHARED[asyncio.get_running_loop()]

    asyncio.run(main())
    assert len(calls) == 3
    assert calls[1] - calls[0] >= 0.1


# -- what wakes a trigger ----------------------------------------------------------------------------------------------


def test_trigger_sleeps_through_everything_else_that_happens_to_the_table(
    table: Table, tmp_path: Path, watched: Watched
) -> None:
    """Look once, however many others push, stage, roll back and lock; look again when the own entry changes."""
    mine, other = (str(table.start().entry_id) for _ in range(2))

    def busy() -> None:
        for number in range(5):
            push_rows(table, tmp_path / str(number), {"a": [1]})
        stage_rows(table, other, tmp_path, {"a": [1]})
        table.end(other)
        table.revert(other)
        lock_of(table, "other")
        table.locks.release_group("other")

    async def main() -> None:
        async with waiting(on_entry(table, mine, "REVERTED"), on_entry(table, other, "REVERTED")) as [task, theirs]:
            await until(lambda: watched.looked(mine, 1) and watched.looked(other, 1))
            await asyncio.to_thread(busy)
            assert (await asyncio.wait_for(theirs, 30))["status"] == "reached"
            await asyncio.sleep(1)
            assert watched.looks[mine] == 1
            event, seconds = await event_after(task, lambda: table.revert(mine, force=True))
            assert (event["state"], seconds < SOON_S) == ("REVERTED", True)
            assert watched.looks[mine] == 2

    asyncio.run(main())


def test_trigger_looks_again_at_each_change_of_its_own_entry(table: Table, tmp_path: Path, watched: Watched) -> None:
    """Staging changes the entry's record, and not its state: then wait on, and hear of the end."""
    entry_id = str(table.start().entry_id)

    async def main() -> None:
        async with waiting(on_entry(table, entry_id)) as [task]:
            await until(lambda: watched.looked(entry_id, 1))
            await asyncio.to_thread(stage_rows, table, entry_id, tmp_path, {"a": [1]})
            await until(lambda: watched.looked(entry_id, 2))
            event, seconds = await event_after(task, lambda: table.end(entry_id))
            assert (event["status"], event["state"]) == ("reached", "COMPLETED")
            assert seconds < SOON_S
            assert watched.looks[entry_id] <= 6, "once a change, and not on and on"

    asyncio.run(main())


def test_entry_that_another_tool_made_is_watched_in_the_lineage(table: Table, tmp_path: Path, watched: Watched) -> None:
    """It has no record of its own; every push of the table wakes its trigger."""
    records = table._context.records
    entry = LineageEntry.of("00000000-0000-4000-8000-00000000000a", (), ("x",), EntryState.IN_PROGRESS, 1)

    def write(state: EntryState) -> None:
        stored = records.read()
        changed = stored.lineage.put(entry.moved_to(state, 1))
        table.store.session.commit([records.write(stored, changed)])

    write(EntryState.IN_PROGRESS)

    async def main() -> None:
        async with waiting(on_entry(table, entry.entry_id)) as [task]:
            await until(lambda: watched.looked(entry.entry_id, 1))
            await asyncio.to_thread(push_rows, table, tmp_path, {"a": [1]})
            await until(lambda: watched.looked(entry.entry_id, 2))
            event, seconds = await event_after(task, lambda: write(EntryState.COMPLETED))
            assert (event["status"], seconds < SOON_S) == ("reached", True)

    asyncio.run(main())


def test_entry_that_is_cleaned_up_meanwhile_ends_the_wait(table: Table, watched: Watched) -> None:
    """Say that it is gone: it never comes back."""
    entry_id = str(table.start(force_cleanup=True).entry_id)

    def dropped() -> None:
        stored, guard = table._context.records.read(), table._context.guard(entry_id)
        path = table._context.records.guard_path(entry_id)
        gone = table._context.records.write(stored, stored.lineage.without(entry_id))
        table.store.session.commit([gone, Delete(path, guard.version)])

    async def main() -> None:
        async with waiting(on_entry(table, entry_id)) as [task]:
            await until(lambda: watched.looked(entry_id, 1))
            event, seconds = await event_after(task, dropped)
            assert (event["status"], event["state"], seconds < SOON_S) == ("impossible", "GONE", True)

    asyncio.run(main())


def test_lock_trigger_sleeps_through_locks_that_are_not_in_its_way(table: Table, watched: Watched) -> None:
    """Watch the one lock in the way: appends to other time, renewals and revocations of others do not wake it."""
    held = lock_of(table, "first")
    elsewhere = Interval(JANUARY.end_ms, JANUARY.end_ms + 1)

    def busy() -> None:
        for number in range(10):
            lock_of(table, f"append {number}", elsewhere, lock_type=LockType.APPEND)
            table.locks.renew("first", "first")
        for number in range(10):
            table.locks.release_group(f"append {number}")

    async def main() -> None:
        async with waiting(on_locks(table)) as [task]:
            await until(lambda: watched.looked("locks", 2))
            await asyncio.sleep(0.5)
            before = watched.looks["locks"]
            await asyncio.to_thread(busy)
            await asyncio.sleep(1)
            assert watched.looks["locks"] == before
            event, seconds = await event_after(task, lambda: table.locks.revoke([held.lock_id], "somebody"))
            assert (event["status"], seconds < SOON_S) == ("free", True)

    asyncio.run(main())


def test_lock_trigger_moves_on_from_lock_to_lock_and_hears_of_each_ones_end(table: Table, watched: Watched) -> None:
    """Hear of a release, of a lock that was taken, and of the end of a lease that nobody renewed."""
    third = (JANUARY.end_ms - JANUARY.start_ms) // 3
    parts = [Interval(at, at + third) for at in range(JANUARY.start_ms, JANUARY.start_ms + 3 * third, third)]
    lock_of(table, "released", parts[0])
    lock_of(table, "taken", parts[1])
    lock_of(table, "left behind", parts[2], lease_ms=4000)

    async def main() -> float:
        async with waiting(on_locks(table)) as [task]:
            await until(lambda: watched.looked("locks", 2))
            await asyncio.to_thread(table.locks.release_group, "released")
            await asyncio.sleep(0.5)
            await asyncio.to_thread(lock_of, table, "taker", parts[1], priority=75)
            await asyncio.sleep(0.5)
            assert not task.done()
            event, _ = await event_after(task, lambda: table.locks.release_group("taker"))
            assert event["status"] == "free"
            return time.time()

    [left] = [lock for lock in table.locks.locks() if lock.group == "left behind"]
    ended = asyncio.run(main())
    assert left.lease_until_ms <= ended * 1000 < left.lease_until_ms + SOON_S * 1000


# -- a session that is lost --------------------------------------------------------------------------------------------


def test_session_that_expires_meanwhile_is_survived(table: Table, tmp_path: Path, watched: Watched) -> None:
    """Watch again on the session that comes after, and hear of the next change as soon as before."""
    first, second = (str(table.start().entry_id) for _ in range(2))
    lock_of(table, "other")

    async def main() -> None:
        async with waiting(on_entry(table, first), on_entry(table, second, "REVERTED"), on_locks(table)) as [
            ends,
            reverts,
            unlocked,
        ]:
            await until(lambda: watched.looked(first, 1) and watched.looked(second, 1) and watched.looked("locks", 2))
            await asyncio.sleep(0.3)
            for _ in range(2):
                looked_again = watched.again(first, second, "locks")
                [store] = watched.open
                await asyncio.to_thread(expire, store.session)
                await until(looked_again)
                await asyncio.sleep(0.5)
            await asyncio.to_thread(stage_rows, table, first, tmp_path, {"a": [1]})
            for task, change in (
                (ends, lambda: table.end(first)),
                (reverts, lambda: table.revert(second, force=True)),
                (unlocked, lambda: table.locks.release_group("other")),
            ):
                event, seconds = await event_after(task, change)
                assert event["status"] in ("reached", "free")
                assert seconds < SOON_S

    asyncio.run(main())
    assert (len(watched.opened), watched.open) == (1, [])


@pytest.fixture
def network(table: Table, connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpProxy]:
    """Between the triggers and ZooKeeper; the test itself has a connection of its own."""
    with TcpProxy(connection["host"]) as proxy:
        monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(connection | {"host": proxy.hosts}))
        yield proxy


def test_change_while_the_session_was_lost_is_not_missed(
    table: Table, watched: Watched, network: TcpProxy, connection: dict[str, Any]
) -> None:
    """Look again once there is a session."""
    entry_id = str(table.start().entry_id)

    async def main() -> None:
        async with waiting(on_entry(table, entry_id, "REVERTED")) as [task]:
            await until(lambda: watched.looked(entry_id, 1))
            await asyncio.sleep(0.3)
            [store] = watched.open
            lost = store.session._client.client_id
            network.refuse()
            await asyncio.to_thread(close_elsewhere, connection["host"], lost)
            await asyncio.to_thread(table.revert, entry_id, force=True)
            assert not task.done()
            network.heal()
            assert (await asyncio.wait_for(task, SOON_S))["state"] == "REVERTED"

    asyncio.run(main())


def test_backlog_trigger_looks_at_its_interval_and_survives_a_lost_session(watched: Watched) -> None:
    """Poll: a backlog is spread over many znodes, and nobody watches them all."""
    limit = -1  # which no backlog keeps to

    async def main() -> None:
        trigger = DeletionBacklogTrigger(max_in_flight=limit, poll_interval=0.2)
        async with waiting(trigger) as [task]:
            await until(lambda: watched.looked("backlog", 2))
            [store] = watched.open
            await asyncio.to_thread(expire, store.session)
            for _ in range(2):
                await until(watched.again("backlog"))
            assert not task.done()
            trigger.max_in_flight = 1_000_000
            assert "in_flight" in await asyncio.wait_for(task, SOON_S)

    asyncio.run(main())
    assert (len(watched.opened), watched.open) == (1, [])
