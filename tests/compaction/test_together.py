"""Appends and compaction on the same time chunks at once: each appended row is seen exactly once in every snapshot, no
append waits, and no compaction starts over because of late data.

Real ZooKeeper, real Parquet files, processes of their own. Figures are printed (``-s``); those of a quiet machine are
in docs/compaction.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.spark.compact import CompactedGroup, compact_table
from tests.compaction.support import (
    HOUR_MS,
    ROWS,
    SPAN,
    Appended,
    Board,
    Compacted,
    Crew,
    HookedSession,
    InProcess,
    Read,
    append,
    compact_once,
    keep_appending,
    keep_cleaning,
    keep_compacting,
    keep_reading,
    rows_in,
    settings_of,
    settle,
    versioned_table,
    warm_up,
)
from tests.spark.conftest import spark  # noqa: F401 - a fixture
from tests.support.sessions import settings as session_settings
from tests.support.tables import DAY_MS, JANUARY_1, on_session

WRITERS, COMPACTORS, CHUNKS = 4, 2, 3
DAYS = [JANUARY_1 + day * DAY_MS for day in range(CHUNKS)]
HOURS = [JANUARY_1 + day * DAY_MS + hour * HOUR_MS for day in range(16) for hour in (0, 1, 13)]
LIMIT_S = 60.0
LOST_TO_ANOTHER = ("from-replaced", "from-not-visible")
"""Rules that refuse a compaction whose inputs another compaction has taken between its look and its start."""


def expected(board: Board) -> list[int]:
    """Every row whose append has ended."""
    return [writer * SPAN + number for writer, rows in enumerate(board.ended[:]) for number in range(rows)]


def let_work(crew: Crew, seconds: float, enough: Callable[[], bool] = lambda: True) -> float:
    """Let them work for that long, then until there is enough of it; sooner over when one of them has failed. Returns
    the seconds it took."""
    began = time.monotonic()
    while not crew.failed() and (time.monotonic() < began + seconds or not enough()):
        assert time.monotonic() < began + seconds + LIMIT_S, "hardly anything was done"
        time.sleep(0.02)
    return time.monotonic() - began


def enough(board: Board) -> bool:
    """Whether they have met often enough for a test to say something."""
    return board.published.value >= 2 * CHUNKS and board.late.value > 0 and board.snapshots.value > 20


def in_ms(times: Sequence[float], share: float) -> float:
    """A quantile; 0 of nothing."""
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000 if times else 0.0


def report(
    seconds: float, alone: float, appends: list[Appended], compactions: list[Compacted], reads: list[Read]
) -> None:
    """Print the figures."""
    times = [one for found in appends for one in found.times]
    quiet, busy = [at for at, beside in times if not beside], [at for at, beside in times if beside]
    outcomes = [one for found in compactions for one in found.outcomes]
    late = [rows for found in compactions for rows in found.late_rows]
    taken = [at for found in reads for at in found.times]
    print(f"\n{WRITERS} processes append for {seconds + alone:.0f} s, {len(compactions)} compact for {seconds:.0f} s")
    print(f"appends: {len(times):,}, {len(times) / (seconds + alone):.1f}/s, of {ROWS} rows each")
    for what, some in (("no compaction beside them", quiet), ("beside a compaction", busy)):
        print(
            f"  {what}: {len(some):,}, median {in_ms(some, 0.5):.0f} ms, 99 % {in_ms(some, 0.99):.0f} ms, "
            f"longest {in_ms(some, 1):.0f} ms"
        )
    done = [one for one in outcomes if not one.error and not one.left_alone]
    inputs, outputs = sum(one.inputs for one in done), sum(one.outputs for one in done)
    print(
        f"compactions published: {len(done):,} ({inputs:,} segments into {outputs:,}), "
        f"{sum(1 for rows in late if rows)} with appends of late data while they merged ({sum(late):,} rows); "
        f"left to another: {sum(1 for one in outcomes if one.left_alone or one.error) - len(started_over(outcomes))}; "
        f"started over: {len(started_over(outcomes))}"
    )
    print(
        f"snapshots checked: {len(taken):,} by {len(reads)} readers, median {in_ms(taken, 0.5):.0f} ms, longest "
        f"{in_ms(taken, 1):.0f} ms; {sum(found.files for found in reads):,} files read; "
        f"at most {max(found.most_segments for found in reads)} segments"
    )


def check_outcomes(outcomes: Sequence[CompactedGroup]) -> None:
    """A compaction was published, or another compaction had the same inputs first; nothing else ever stops one."""
    other = started_over(outcomes)
    assert not other, f"{len(other)} of {len(outcomes)} compactions failed: {other[0]}"


def check_left_alone(compactions: Sequence[Compacted]) -> None:
    """Only another compaction makes one leave a group alone: it has locked the same segments, or replaced them. No
    append does."""
    for reason in (reason for compaction in compactions for reason in compaction.left_alone):
        by_rule = any(f"[{rule}]" in reason for rule in LOST_TO_ANOTHER)
        assert by_rule or ("[lock-denied]" in reason and " of compactor " in reason), reason


def started_over(outcomes: Sequence[CompactedGroup]) -> list[str]:
    """Why compactions failed for anything but that another one had the same inputs: the next run starts them over."""
    errors = [one.error for one in outcomes if one.error]
    return [error for error in errors if not any(f"[{rule}]" in error for rule in LOST_TO_ANOTHER)]


def storm(
    store: SegmentStore,
    hosts: str,
    *,
    alone: float,
    together: float,
    clean: bool = False,
    readers: int = 2,
) -> Table:
    """Appends, readers, then compactions beside them. Returns the table once all have stopped."""
    warm_up(store)
    table = versioned_table(store, **({"replacedSegmentsRetentionPeriod": "0s"} if clean else {}))
    board = Board(WRITERS)
    with Crew(hosts, store) as crew:
        for writer in range(WRITERS):
            crew.start(keep_appending, board, writer, table.name, DAYS)
        for worker in range(COMPACTORS):
            crew.start(keep_compacting, board, worker, table.name, {})
        watching = Crew(hosts, store)
        with watching:
            for _ in range(readers):
                watching.start(keep_reading, board, table.name)
            if clean:
                crew.start(keep_cleaning, board, table.name)
            alone = let_work(crew, alone, lambda: min(board.ended[:]) > 0)
            board.start_compacting.set()
            together = let_work(crew, together, lambda: enough(board))
            board.stop.set()
            found = crew.join()
            board.readers_stop.set()
            reads: list[Read] = watching.join()
    appends, compactions = found[:WRITERS], found[WRITERS : WRITERS + COMPACTORS]
    report(together, alone, appends, compactions, reads)
    if clean:
        print(f"objects deleted meanwhile: {found[-1]:,}")
    outcomes = [one for compaction in compactions for one in compaction.outcomes]
    check_outcomes(outcomes)
    check_left_alone(compactions)
    check_nothing_locked(table)
    assert rows_in(table) == expected(board)
    for worker in range(3):  # what is left over, so that something was surely compacted after the last append
        check_outcomes(compact_once(table, f"last/{worker}"))
    assert rows_in(table) == expected(board)
    settle(store, table.name)
    assert rows_in(table) == expected(board)
    return table


def test_appends_and_compactions_of_the_same_chunks_go_on_side_by_side(store: SegmentStore, zk_hosts: str) -> None:
    storm(store, zk_hosts, alone=0.5, together=3)


@pytest.mark.slow
def test_one_minute_of_appends_and_compactions_of_the_same_chunks(store: SegmentStore, zk_hosts: str) -> None:
    storm(store, zk_hosts, alone=15, together=60)


@pytest.mark.slow
def test_half_a_minute_of_appends_and_compactions_while_what_was_replaced_is_deleted(
    store: SegmentStore, zk_hosts: str
) -> None:
    """Readers read every file, and none is deleted under their lease."""
    storm(store, zk_hosts, alone=5, together=30, clean=True)


# --- another granularity


class Rounds:
    """Hours that are to become one day, again and again, each time with an append at another moment."""

    def __init__(self, store: SegmentStore, number: int) -> None:
        self.store = store
        self.table = versioned_table(store, f"t{number}", granularity="HOUR")
        for hour in range(3):
            append(self.table, range(hour * ROWS, (hour + 1) * ROWS), JANUARY_1 + hour * HOUR_MS)
        self.rows = list(range(3 * ROWS))
        self.seen: list[int] = []

    def late(self) -> None:
        """An append to one of the hours; readers see it, and everything else."""
        append(self.table, range(3 * ROWS, 4 * ROWS), JANUARY_1 + HOUR_MS)
        self.seen = rows_in(self.table)

    def to_days(self, table: Table, identity: str = "compactor") -> CompactedGroup | None:
        found = compact_once(table, identity, settings_of(table, granularity="DAY"))
        return found[0] if found else None

    def chunks(self) -> list[str]:
        """Time chunks of the segments that readers see."""
        return sorted(segment.chunk for segment in self.table.snapshot().segments)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_append_at_any_moment_of_a_change_of_granularity_stops_nobody(
    store: SegmentStore, zk_hosts: str, when: str
) -> None:
    """The compaction is always published, and the append stays beside the day until the next compaction takes it in.
    Reverting the compaction brings the hours back, the append among them."""
    for at in range(1, 60):
        case = Rounds(store, at)
        with HookedSession.connect(session_settings(zk_hosts)) as session:
            session.hook(at, when, case.late)
            outcome = case.to_days(on_session(store, session).table(case.table.name))
        assert outcome is not None and not outcome.error and not outcome.left_alone
        check_nothing_locked(case.table)
        if not case.seen:
            assert at > 8
            print(f"append {when} each of {at - 1} writes: every compaction published")
            return
        assert case.seen == list(range(4 * ROWS)) == rows_in(case.table)
        assert case.chunks() == ["2013-01-01", "2013-01-01T01"]
        if at % 2:
            case.table.revert(outcome.entry_id)
            assert case.chunks() == [f"2013-01-01T0{hour}" for hour in (0, 1, 1, 2)]
        else:
            check_outcomes([one for one in [case.to_days(case.table, "again")] if one])
            assert case.chunks() == ["2013-01-01"]
        assert rows_in(case.table) == list(range(4 * ROWS))
        append(case.table, range(4 * ROWS, 5 * ROWS), JANUARY_1 + 2 * HOUR_MS)
        assert rows_in(case.table) == list(range(5 * ROWS))
    raise AssertionError("the compaction never ran out of writes")


def check_nothing_locked(table: Table) -> None:
    """Everybody is done."""
    held = [str(lock) for lock in table.locks.locks() if lock.active]
    assert not held, f"everybody is done, and {len(held)} locks are held: {held[0]}"


def test_an_append_beside_a_coarser_segment_leaves_no_lock_behind(store: SegmentStore) -> None:
    """A lock that is left there is in the way of overwrites of that time until its lease is over, and a thousand of
    them fill the lock box."""
    case = Rounds(store, 1)
    outcome = case.to_days(case.table)
    assert outcome is not None and not outcome.error
    case.late()
    check_nothing_locked(case.table)


def test_an_append_of_an_hour_does_not_make_a_compaction_of_its_day_start_over(store: SegmentStore) -> None:
    """Late data of an hour of a day that is compacted as a day, before and during the compaction."""
    case = Rounds(store, 1)
    case.to_days(case.table)
    append(case.table, range(100, 100 + ROWS), JANUARY_1)

    class Late(InProcess):
        __slots__ = ()

        def _merge(self, group: Any, started: Any, ticket: Any) -> Any:
            append(case.table, range(200, 200 + ROWS), JANUARY_1)
            return super()._merge(group, started, ticket)

    [outcome] = compact_once(case.table, "late", settings_of(case.table, granularity="DAY"), run=Late)
    assert outcome.error == "" and not outcome.left_alone
    assert rows_in(case.table) == [*case.rows, *range(100, 100 + ROWS), *range(200, 200 + ROWS)]


def granularity_storm(store: SegmentStore, hosts: str, seconds: float, days: int) -> None:
    """Appends to hours while another process turns days of them into days: nobody waits, is denied or starts over."""
    warm_up(store)
    table = versioned_table(store, granularity="HOUR")
    board = Board(2)
    with Crew(hosts, store) as crew, Crew(hosts, store) as watching:
        for writer in range(2):
            crew.start(keep_appending, board, writer, table.name, HOURS[: days * 3], 0.02)
        crew.start(keep_compacting, board, 0, table.name, {"granularity": "DAY"})
        watching.start(keep_reading, board, table.name)
        board.start_compacting.set()
        took = let_work(crew, seconds, lambda: board.published.value >= 3 and board.late.value > 0)
        board.stop.set()
        *appends, compaction = crew.join()
        board.readers_stop.set()
        reads = watching.join()
    report(took, 0.0, appends, [compaction], reads)
    assert not started_over(compaction.outcomes), "nobody is revoked"
    assert not any(one.left_alone for one in compaction.outcomes), "nobody is denied"
    assert rows_in(table) == expected(board)
    settle(store, table.name, granularity="HOUR")
    assert rows_in(table) == expected(board)
    check_nothing_locked(table)


def test_appends_to_hours_go_on_while_they_become_days(store: SegmentStore, zk_hosts: str) -> None:
    granularity_storm(store, zk_hosts, 2, days=6)


@pytest.mark.slow
def test_one_minute_of_appends_to_hours_while_they_become_days(store: SegmentStore, zk_hosts: str) -> None:
    granularity_storm(store, zk_hosts, 60, days=16)


# --- with Spark


@pytest.mark.slow
def test_the_spark_job_compacts_beside_appends(
    store: SegmentStore,
    zk_hosts: str,
    spark: Any,  # noqa: F811 - the fixture
) -> None:
    """One Spark application, two threads, real workers; again and again while four processes append."""
    warm_up(store)
    table = versioned_table(store)
    board = Board(WRITERS)
    groups: list[CompactedGroup] = []
    late: list[int] = []
    with Crew(zk_hosts, store) as crew, Crew(zk_hosts, store) as watching:
        for writer in range(WRITERS):
            crew.start(keep_appending, board, writer, table.name, DAYS, 0.05)
        watching.start(keep_reading, board, table.name)
        let_work(crew, 2, lambda: min(board.ended[:]) > 0)
        began = time.monotonic()
        number = 0
        while time.monotonic() < began + 40 and not crew.failed():
            before = board.appended
            with board.at_compaction():
                groups += compact_table(spark, table, identity=f"spark/{number}").groups
            late.append(board.appended - before)
            number += 1
        took = time.monotonic() - began
        board.stop.set()
        appends = crew.join()
        board.readers_stop.set()
        reads = watching.join()
    report(took, 2.0, appends, [Compacted(groups, late)], reads)
    check_outcomes(groups)
    assert len(groups) > CHUNKS
    assert any(late)
    assert rows_in(table) == expected(board)
    check_outcomes(compact_table(spark, table, identity="spark/last").groups)
    settle(store, table.name)
    assert rows_in(table) == expected(board)
    check_nothing_locked(table)
