"""A table is dropped by one switch, brought back by a revert, and gone without a trace once its time is over."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_segments.core.locking import LockRequest
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import (
    EndRefusedError,
    LockDeniedError,
    StartRefusedError,
    TableDroppedError,
    TableNotFoundError,
    UnrevertRefusedError,
)
from tests.support.children import dies
from tests.support.owned import push_owned
from tests.support.sessions import DyingSession, settings
from tests.support.tables import (
    DAY_MS,
    HOUR_MS,
    JANUARY_1,
    HandClock,
    contents,
    everything,
    make_table,
    object_path,
    on_clock,
    on_session,
    push,
    stage,
    visible,
)

MOST = 60
_TABLES = itertools.count(1)


@pytest.fixture
def hand() -> HandClock:
    return HandClock()


def passes(table: Table, hand: HandClock, most: int = 12) -> int:
    """Retention passes, two days apart, until the table is gone; how many it took."""
    for number in range(1, most):
        hand.advance(2 * DAY_MS)
        table.retain()
        if table.name not in table.store.tables():
            return number
    raise AssertionError(f"table {table.name} is still there after {most} passes: {table.retain().kept}")


@pytest.mark.parametrize("kind", ["APPEND", "REFRESH"])
def test_a_dropped_table_is_hidden_by_one_switch_and_a_revert_brings_it_back(store: SegmentStore, kind: str) -> None:
    table = make_table(store, kind=kind)
    push(table, ["a", "b"])
    before = contents(store)
    preview = table.preview_drop()
    assert contents(store) == before
    assert (preview.segments, preview.rows, preview.already) == (2, 2, False)
    dropped = table.drop(identity="me")
    with pytest.raises(TableDroppedError, match=dropped.entry_id):
        table.snapshot()
    assert (again := table.drop(identity="me")).already
    assert again.entry_id == table.resolve_entry("latest") == dropped.entry_id
    table.revert(dropped.entry_id)
    assert visible(table) == {"a", "b"}
    with pytest.raises(UnrevertRefusedError, match="nothing-to-bring-back"):
        table.unrevert(dropped.entry_id)
    push(table, ["c"])
    assert visible(table) == ({"c"} if kind == "REFRESH" else {"a", "b", "c"})


def test_no_push_starts_or_ends_in_a_dropped_table(store: SegmentStore) -> None:
    table = make_table(store)
    push(table, ["a"])
    running = table.start().entry_id
    stage(table, running, ["b"])
    dropped = table.drop()
    assert dropped.running == (running,)
    with pytest.raises(StartRefusedError, match="table-dropped"):
        table.start()
    with pytest.raises(EndRefusedError, match=f"segments revert t {dropped.entry_id}"):
        table.end(running)
    table.revert(dropped.entry_id)
    table.end(running)
    assert visible(table) == {"a", "b"}


def test_a_dropped_table_is_gone_when_its_time_is_over(store: SegmentStore, hand: HandClock) -> None:
    """Its objects by two-phase deletion, its znodes in the end; a table of the same name begins anew."""
    timed = on_clock(store, hand.clock())
    nothing = everything(store.session, "/")
    table = make_table(timed)
    push_owned(table, ["a", "b"])
    push_owned(table, ["c"], ["a"])
    push_owned(table, ["dead"], end=False)
    folder = object_path(table, table.name)
    table.drop()
    table.retain()
    assert visible_objects(table) == 4
    took = passes(table, hand)
    assert took <= 6
    timed.deleter().drain()
    hand.advance(DAY_MS)
    timed.deleter().drain()
    assert not list(folder.rglob("*.parquet"))
    left = {path for path in everything(store.session, "/") if f"/{table.name}" in path}
    assert not left - set(nothing)
    with pytest.raises(TableNotFoundError):
        table.snapshot()
    push(make_table(timed), ["a"])
    assert visible(table) == {"a"}


def visible_objects(table: Table) -> int:
    """Objects that are stored."""
    return len(list(object_path(table, table.name).rglob("*.parquet")))


def test_a_reader_and_a_lock_hold_up_the_end_of_a_dropped_table(store: SegmentStore, hand: HandClock) -> None:
    table = make_table(on_clock(store, hand.clock()))
    push(table, ["a"])
    with table.snapshot():
        table.drop()
        table.locks.acquire(LockRequest(group="g", task="t", interval=Interval(0, 1), lease_ms=100 * DAY_MS))
        for _ in range(8):
            hand.advance(2 * DAY_MS)
            kept = table.retain().kept
        assert "1 reader leases, 1 locks" in str(kept)
    table.locks.release_group("g")
    assert passes(table, hand) <= 2


def test_a_drop_and_its_end_killed_at_every_write_are_finished_by_the_next(
    store: SegmentStore, hand: HandClock, zk_hosts: str
) -> None:
    timed = on_clock(store, hand.clock())
    for landed in (False, True):
        for at in range(1, MOST):
            table = make_table(timed, f"t{next(_TABLES)}", replacedSegmentsRetentionPeriod="0s")
            push(table, ["a", "b"])

            def work(table: Table = table, at: int = at, landed: bool = landed) -> None:
                with DyingSession.connect(settings(zk_hosts)) as session:
                    session.writes, session.at, session.landed = 0, at, landed
                    mine = on_session(timed, session).table(table.name)
                    mine.drop(identity="me")
                    for _ in range(6):
                        hand.advance(2 * DAY_MS)
                        if mine.retain().table in mine.store.tables():
                            continue
                        return

            died = dies(work)
            if table.name in timed.tables() and table.lineage().dropped_by is None:
                assert visible(table) == {"a", "b"}
                table.drop(identity="me")
            if table.name in timed.tables():
                passes(table, hand)
            assert not [path for path in everything(store.session, "/") if f"/{table.name}/" in f"{path}/"]
            if not died:
                assert at > 3
                break
        else:
            raise AssertionError("the drop never ended")


def test_an_hour_is_deleted_and_brought_back(store: SegmentStore) -> None:
    """However many segments have rows of it, it is one entry that names none of them."""
    document = {
        "tableName": "t",
        "segmentsConfig": {"timeColumnName": "ts"},
        "segmentBuildConfig": {"segmentLocking": True},
    }
    store.apply_config(TableConfig.from_json(document))
    table = store.table("t")
    push(table, 2)
    hour = Interval(JANUARY_1 + 9 * HOUR_MS, JANUARY_1 + 10 * HOUR_MS)
    day = Interval(JANUARY_1, JANUARY_1 + DAY_MS)
    ended = table.delete_time(hour, identity="cut")
    assert table.lineage().entries[ended.entry_id].joined_from == ""
    [cut] = table.snapshot().cuts.values()
    assert [(part.start_ms, part.end_ms) for part in cut] == [(day.start_ms, hour.start_ms), (hour.end_ms, day.end_ms)]
    assert table.delete_time(hour, identity="cut").already, "a retry removes nothing that came since"
    table.delete_time(day)
    assert len(table.snapshot()) == 1
    assert not table.locks.locks()
    for _ in range(2):
        table.revert(table.resolve_entry("latest"))
    assert not table.snapshot().cuts
    assert len(table.snapshot()) == 2


def test_time_that_somebody_else_has_locked_is_not_deleted(store: SegmentStore) -> None:
    table = make_table(store)
    table.locks.acquire(LockRequest(group="g", task="t", interval=Interval(0, DAY_MS)))
    with pytest.raises(LockDeniedError):
        table.delete_time(Interval(0, HOUR_MS))
    with pytest.raises(StartRefusedError, match="overwrite-not-locked"):
        table.delete_time(Interval(DAY_MS, 2 * DAY_MS))
    assert len(table.locks.locks()) == 1
