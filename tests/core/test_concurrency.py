"""Many processes on one table: nothing lost, nothing doubled, nothing erased, and readers that never see it happen."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import pytest

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import ZooKeeperSettings
from airflow_provider_segments.exceptions import EndRefusedError, StartRefusedError
from tests.support.sessions import settings
from tests.support.tables import build, make_table, named, push, registered, stage, states, visible

FORK = multiprocessing.get_context("fork")
WRITERS = 8
PUSHES = 20
ROUNDS = 20
SNAPSHOTS = 3_000


class Crew:
    """Processes, each with a store of its own; their exceptions fail the test."""

    def __init__(self, hosts: str, store: SegmentStore) -> None:
        self.settings = settings(hosts)
        self.cluster = store.paths.cluster
        self.uri = store.storage.uri
        self.reports: Queue[Any] = FORK.Queue()
        self.processes: list[Any] = []

    def start(self, work: Callable[..., Any], *arguments: Any) -> None:
        process = FORK.Process(
            target=_member, args=(self.settings, self.cluster, self.uri, self.reports, work, arguments), daemon=True
        )
        process.start()
        self.processes.append(process)

    def join(self) -> list[Any]:
        """What every process returned."""
        answers = [self.reports.get(timeout=60) for _ in self.processes]
        for process in self.processes:
            process.join()
        self.processes = []
        for answer in answers:
            if isinstance(answer, str):
                raise AssertionError(answer)
        return [answer for answer in answers if answer is not None]


def _member(
    how: ZooKeeperSettings, cluster: str, uri: str, reports: Queue[Any], work: Callable[..., Any], arguments: Any
) -> None:
    try:
        with SegmentStore.connect(zookeeper=how, cluster=cluster, storage_uri=uri) as store:
            reports.put(work(store, *arguments))
    except BaseException as error:
        reports.put(f"{error!r}\n{traceback.format_exc()}")


def append(store: SegmentStore, writer: int, pushes: int, stop: Synchronized[int]) -> None:
    """Pushes of two segments in two chunks, each run with an identity of its own; every other one is published in one
    transaction."""
    table = store.table("append")
    for number in range(pushes):
        started = table.start(identity=f"{writer}/{number}", stager="build")
        entry_id = started.entry_id
        if number % 2:
            assert started.ticket is not None
            table.publish(started.ticket, build(table, started.ticket, named(table, entry_id, 2)))
            continue
        stage(table, entry_id, named(table, entry_id, 2))
        table.end(entry_id)
    with stop.get_lock():
        stop.value += 1


def refresh(store: SegmentStore, enough: Synchronized[int]) -> int:
    """Whole snapshots of four segments, each replacing the last, with every third rolled back, until readers have
    enough. Forced starts let the snapshot before the last go, so there are removals under the readers, too."""
    table = store.table("refresh")
    done = 0
    while not enough.value:
        entry_id = push(table, 4, force_cleanup=True)
        done += 1
        if done % 3 == 0:
            table.revert(entry_id, allow_empty=True)
            table.cleanup()
    return 0


def read_appends(
    store: SegmentStore, seen: Synchronized[int], enough: Synchronized[int]
) -> tuple[str, list[float], int]:
    """Every push whole or not at all, nothing that was seen ever gone, zxids never back."""
    table = store.table("append")
    before: set[str] = set()
    times = []
    zxid = 0
    while not enough.value:
        began = time.perf_counter()
        snapshot = table.snapshot()
        names = snapshot.names
        times.append(time.perf_counter() - began)
        assert len(set(names)) == len(names), "a segment twice"
        by_entry: dict[str, int] = {}
        for shard, records in snapshot.blocks:
            by_entry[shard.name.entry_id] = by_entry.get(shard.name.entry_id, 0) + len(records)
        assert set(by_entry.values()) == {2}, f"a part of a push: {by_entry}"
        assert before <= set(names), f"gone: {before - set(names)}"
        assert snapshot.zxid >= zxid
        before, zxid = set(names), snapshot.zxid
        with seen.get_lock():
            seen.value += 1
    return "append", times, len(before)


def read_refreshes(
    store: SegmentStore, seen: Synchronized[int], enough: Synchronized[int]
) -> tuple[str, list[float], int]:
    """Exactly one push at a time, whole; never two, never a part, never nothing."""
    table = store.table("refresh")
    times = []
    found: set[str] = set()
    zxid = 0
    while not enough.value:
        began = time.perf_counter()
        snapshot = table.snapshot()
        times.append(time.perf_counter() - began)
        entries = {shard.name.entry_id for shard, _ in snapshot.blocks}
        assert len(entries) == 1, f"a mix or nothing: {snapshot.names}"
        assert sorted(snapshot.names) == named(table, next(iter(entries)), 4)
        assert snapshot.zxid >= zxid
        zxid = snapshot.zxid
        found |= entries
        with seen.get_lock():
            seen.value += 1
    return "refresh", times, len(found)


def quantile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000


def storm(store: SegmentStore, hosts: str, *, pushes: int, snapshots: int) -> None:
    """Eight appending writers and one replacing writer at full speed, and three readers that check every snapshot."""
    appends, refreshes = make_table(store, "append"), make_table(store, "refresh", "REFRESH")
    base = push(appends, 2)
    push(refreshes, 4)
    finished, appended, enough = FORK.Value("i", 0), FORK.Value("i", 0), FORK.Value("i", 0)
    seen = FORK.Value("i", 0)
    crew = Crew(hosts, store)
    began = time.monotonic()
    crew.start(read_refreshes, seen, enough)
    crew.start(read_refreshes, seen, enough)
    crew.start(refresh, enough)
    crew.start(read_appends, seen, appended)
    for writer in range(WRITERS):
        crew.start(append, writer, pushes, finished)
    pushed = 0.0
    while finished.value < WRITERS or seen.value < snapshots:
        time.sleep(0.05)
        if finished.value == WRITERS and not pushed:
            pushed = time.monotonic() - began
            appended.value = 1
        if any(process.exitcode for process in crew.processes) or time.monotonic() - began > 500:
            break
        if not all(process.is_alive() for process in crew.processes[:3]):
            break
    enough.value = appended.value = 1
    reports = [report for report in crew.join() if isinstance(report, tuple)]
    total = 0
    for name, times, found in reports:
        total += len(times)
        print(
            f"{name}: {len(times):,} snapshots checked, p50 {quantile(times, 0.5):.1f} ms, "
            f"p99 {quantile(times, 0.99):.1f} ms, longest {max(times) * 1000:.0f} ms; "
            f"{found} different {'segments' if name == 'append' else 'pushes'} seen"
        )
    print(f"{total:,} snapshots; {WRITERS} x {pushes} pushes in {pushed:.1f} s")
    entries = [entry for entry in appends.lineage() if entry.entry_id != base]
    assert len(entries) == WRITERS * pushes
    assert {entry.state for entry in entries} == {EntryState.COMPLETED}
    expected = {
        name for entry in [*entries, appends.lineage().entries[base]] for name in named(appends, entry.entry_id, 2)
    }
    assert visible(appends) == registered(appends) == expected
    assert total >= snapshots


def test_160_pushes_by_8_processes_all_complete_and_readers_see_only_whole_snapshots(
    store: SegmentStore, zk_hosts: str
) -> None:
    """None lost, none doubled; no mix, no gap, no empty table in 3,000 snapshots taken meanwhile."""
    storm(store, zk_hosts, pushes=PUSHES, snapshots=SNAPSHOTS)


@pytest.mark.slow
def test_the_same_for_longer(store: SegmentStore, zk_hosts: str) -> None:
    storm(store, zk_hosts, pushes=60, snapshots=40_000)


def first_writer(store: SegmentStore, writer: int, barrier: Any) -> None:
    for number in range(ROUNDS):
        table = store.table(f"race{number}")
        barrier.wait()
        entry_id = table.start(identity=str(writer)).entry_id
        stage(table, entry_id, named(table, entry_id, 1))
        table.end(entry_id)


def test_first_writers_of_a_table_never_erase_each_other(store: SegmentStore, zk_hosts: str) -> None:
    """20 tables without a lineage, 8 processes that start on each at the same moment (apache/pinot #10103)."""
    tables: list[Table] = [make_table(store, f"race{number}") for number in range(ROUNDS)]
    crew, barrier = Crew(zk_hosts, store), FORK.Barrier(WRITERS)
    for writer in range(WRITERS):
        crew.start(first_writer, writer, barrier)
    crew.join()
    for table in tables:
        assert list(states(table).values()) == ["COMPLETED"] * WRITERS
        assert visible(table) == {name for entry_id in states(table) for name in named(table, entry_id, 1)}


def test_only_one_of_many_first_pushes_of_a_refresh_table_is_started(store: SegmentStore, zk_hosts: str) -> None:
    """And of many that replace the same snapshot: the others are refused, and what is visible is one push."""
    table = make_table(store, "r", "REFRESH")
    for _ in range(2):
        crew, barrier = Crew(zk_hosts, store), FORK.Barrier(4)
        for _ in range(4):
            crew.start(_try_to_replace, barrier)
        assert sorted(crew.join()) == [0, 0, 0, 1]
        assert len(visible(table)) == 2


def _try_to_replace(store: SegmentStore, barrier: Any) -> int:
    table = store.table("r")
    barrier.wait()
    try:
        entry_id = table.start().entry_id
    except StartRefusedError as refused:
        barrier.wait()
        assert refused.rule in ("initial-conflict", "from-replaced")
        return 0
    barrier.wait()
    stage(table, entry_id, named(table, entry_id, 2))
    table.end(entry_id)
    return 1


def test_ends_of_one_entry_at_the_same_time_complete_it_once(store: SegmentStore, zk_hosts: str) -> None:
    """A zombie task and its successor both end the push: one switches, both succeed."""
    table = make_table(store)
    for _ in range(5):
        before = visible(table)
        entry_id = push(table, 3, end=False)
        crew, barrier = Crew(zk_hosts, store), FORK.Barrier(4)
        for _ in range(4):
            crew.start(_end, entry_id, barrier)
        assert sum(crew.join()) == 1
        assert visible(table) == before | set(named(table, entry_id, 3))


def _end(store: SegmentStore, entry_id: str, barrier: Any) -> int:
    barrier.wait()
    return int(not store.table("t").end(entry_id).already)


def test_an_end_and_a_forced_revert_at_the_same_time_agree(store: SegmentStore, zk_hosts: str) -> None:
    """Whoever is first, the entry ends REVERTED or the revert comes after the end; the table is the old one."""
    table = make_table(store)
    push(table, ["a", "b"])
    for _ in range(10):
        entry_id = push(table, 3, ["a"], end=False)
        crew, barrier = Crew(zk_hosts, store), FORK.Barrier(2)
        crew.start(_end_or_refused, entry_id, barrier)
        crew.start(_revert, entry_id, barrier)
        crew.join()
        assert states(table)[entry_id] == "REVERTED"
        assert visible(table) == {"a", "b"}


def _end_or_refused(store: SegmentStore, entry_id: str, barrier: Any) -> None:
    barrier.wait()
    try:
        store.table("t").end(entry_id)
    except EndRefusedError as refused:
        assert refused.rule == "reverted"


def _revert(store: SegmentStore, entry_id: str, barrier: Any) -> None:
    barrier.wait()
    store.table("t").revert(entry_id, force=True)
