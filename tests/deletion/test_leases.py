"""Reader leases: what a reader has resolved is in the store until it has read it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from airflow_provider_segments.clock import system_now_ms
from airflow_provider_segments.core.deletion.in_use import Judge, Verdict
from airflow_provider_segments.core.snapshot import Snapshot, _Holding
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.zookeeper import Create, ZooKeeperSession
from airflow_provider_segments.exceptions import LeaseLostError, ObjectNotFoundError
from tests.deletion.support import LATER, World
from tests.support.sessions import CountingSession, LossySession, expire, settings
from tests.support.tables import HOUR_MS

DAY = 24 * HOUR_MS


def refresh(world: World) -> Table:
    return world.table(kind="REFRESH", replacedSegmentsRetentionPeriod="1h")


def replace_all(world: World, table: Table, *names: str) -> None:
    """Replace everything, and let what was replaced go: marked, and delivered to consumers."""
    world.push(table, list(names), table.snapshot().names)
    world.hand.advance(2 * HOUR_MS)
    for _ in range(3):
        table.cleanup()


def read(taken: Snapshot) -> int:
    """Open every object."""
    total = 0
    for key in taken.files:
        with taken.storage.open(key) as file:
            total += len(file.read())
    return total


def held(world: World, table: str = "t") -> list[str]:
    return world.store.session.children(world.store.paths.readers(table))


def test_a_reader_in_mid_scan_keeps_every_file_until_it_ends(world: World) -> None:
    """Its table is replaced twice, cleaned and drained meanwhile. Then they go."""
    table = refresh(world)
    world.push(table, ["a", "b", "c"])
    with table.snapshot(owner="the reader") as taken:
        for names in (["d", "e"], ["f"]):
            replace_all(world, table, *names)
            report = world.drain()
            assert report.total("waiting") >= 3 and any("the reader" in why for why in report.errors)
            assert read(taken) == 30
            taken.check_lease()
            world.hand.advance(LATER)
        assert set(table.snapshot().names) == {"f"}
    assert world.drain_all().total("deleted") >= 3
    assert {key.rpartition("/")[2][0] for key in world.stored()} == {"f"}
    world.check(table, strict=False)


def test_a_deletion_that_was_marked_before_the_lease_does_not_wait_for_it(world: World) -> None:
    table = world.table()
    world.push(table, ["a", "b"])
    world.mark(table, {"a"})
    with table.snapshot() as taken:
        world.mark(table, {"b"})
        report = world.drain()
        assert (report.total("deleted"), report.total("waiting")) == (1, 1)
        assert taken.names == ["b"] and read(taken) == 10
    assert world.drain_all().total("deleted") == 1


def test_the_oldest_lease_decides(local: World) -> None:
    table = local.table()
    local.push(table, ["a"])
    first = table.snapshot(owner="first")
    with first, table.snapshot(owner="second"):
        local.mark(table, {"a"})
        assert any("first" in why for why in local.drain().errors)
        local.hand.advance(LATER)
    local.push(table, ["b"])
    with table.snapshot(owner="third"):
        assert local.drain().total("deleted") == 1


def test_waiting_for_a_lease_does_not_use_up_the_attempts(make_world: Callable[..., World]) -> None:
    world = make_world("files", max_retry_delete_count=0)
    table = world.table()
    world.push(table, ["a"])
    with table.snapshot():
        world.mark(table, {"a"})
        for _ in range(15):
            assert world.drain().total("waiting") == 1
            world.hand.advance(LATER)
        assert all(one.attempts == 0 for batch in world.batches() for one in batch.ledgers)
    assert world.drain().total("deleted") == 1 and not world.dead()


def test_a_lease_that_is_too_old_holds_up_nothing_and_its_owner_is_named(
    make_world: Callable[..., World], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(kind, max_lease_age_ms=DAY)
    world.hand.now_ms = system_now_ms() - HOUR_MS  # ZooKeeper says when the lease was made
    table = world.table()
    world.push(table, ["a", "b"])
    with table.snapshot(owner="a forgotten notebook"):
        world.mark(table, {"a"})
        world.hand.advance(DAY)
        assert world.drain().total("waiting") == 1
        assert "forgotten" not in caplog.text, "nothing was deleted under it yet"
        world.hand.advance(HOUR_MS + LATER)
        with caplog.at_level(logging.WARNING):
            assert world.drain().total("deleted") == 1
        (warning,) = [record.getMessage() for record in caplog.records if "maximum lease age" in record.getMessage()]
        assert ("a forgotten notebook" in warning and "'t'" in warning) or "Table t" in warning


def test_without_a_maximum_age_a_lease_holds_as_long_as_its_session(make_world: Callable[..., World]) -> None:
    world = make_world("files", max_lease_age_ms=0)
    table = world.table()
    world.push(table, ["a"])
    with table.snapshot():
        world.mark(table, {"a"})
        world.hand.advance(1000 * DAY)
        assert world.drain().total("waiting") == 1


def test_a_lease_that_cannot_be_read_counts(local: World) -> None:
    table = local.table()
    local.push(table, ["a"])
    local.store.session.ensure([local.store.paths.readers("t")])
    path = f"{local.store.paths.readers('t')}/strange"
    local.store.session.commit([Create(path, b"\xff{[", ephemeral=True)])
    local.mark(table, {"a"})
    report = local.drain()
    assert report.total("waiting") == 1 and any("unknown" in why for why in report.errors)


@pytest.mark.parametrize("segments", [1, 200])
def test_a_lease_costs_one_znode_whatever_it_protects(local: World, zk_hosts: str, segments: int) -> None:
    table = local.table()
    local.push(table, [f"s{number}" for number in range(segments)])
    with table.snapshot():
        pass  # makes the parent
    with CountingSession.connect(settings(zk_hosts)) as session:
        snapshot = local.on_session(session).store.table("t").snapshot()
        session.writes = 0
        with snapshot as taken:
            assert len(taken) == segments and len(held(local)) == 1 and session.writes == 1
        assert session.writes == 2
    assert not held(local)


def test_a_snapshot_without_a_with_block_holds_nothing(local: World) -> None:
    table = local.table()
    local.push(table, ["a"])
    taken = table.snapshot()
    assert not held(local)
    with pytest.raises(LeaseLostError, match="no lease"):
        taken.check_lease()
    local.mark(table, {"a"})
    assert local.drain().total("deleted") == 1


def test_a_reader_whose_session_ended_is_told(world: World, zk_hosts: str) -> None:
    table = world.table()
    world.push(table, ["a"])
    with ZooKeeperSession.connect(settings(zk_hosts)) as session:
        mine = world.on_session(session).store.table("t")
        with pytest.raises(LeaseLostError, match=r"'t'.*take a new snapshot"), mine.snapshot() as taken:
            expire(session)
            with pytest.raises(LeaseLostError):
                taken.check_lease()
        with mine.snapshot() as taken:
            taken.check_lease()
        with pytest.raises(KeyError), mine.snapshot():
            expire(session)
            raise KeyError("an error of the reader is not hidden by the lost lease")


@pytest.mark.parametrize("fate", ["before", "after"])
def test_a_lease_whose_reply_was_lost_is_neither_lost_nor_left_behind(local: World, zk_hosts: str, fate: str) -> None:
    table = local.table()
    local.push(table, ["a"])
    with LossySession.connect(settings(zk_hosts)) as session:
        mine = local.on_session(session).store.table("t")
        for losses in ([fate], [fate, fate], ["", fate], ["", fate, fate]):
            pending = iter(losses)
            session.decide = lambda pending=pending: next(pending, "")  # type: ignore[misc,method-assign]
            with mine.snapshot() as taken:
                taken.check_lease()
                assert len(held(local)) == 1
            assert not held(local)


# --- between the snapshot and its lease


def test_a_snapshot_is_taken_again_when_something_was_removed_before_its_lease(world: World) -> None:
    table = refresh(world)
    world.push(table, ["a", "b"])
    early = table.snapshot()
    replace_all(world, table, "c")
    world.drain_all()
    with early as taken:
        assert set(taken.names) == {"c"} and read(taken) == 10
    with pytest.raises(ObjectNotFoundError):
        read(early)


def test_a_snapshot_that_nothing_happened_to_is_not_taken_again(local: World) -> None:
    table = refresh(local)
    local.push(table, ["a"])
    early = table.snapshot()
    local.push(table, ["b"], ["a"])
    with early as taken:
        assert taken.zxid == early.zxid and taken.names == ["a"]


def test_without_the_look_at_the_root_a_file_goes_under_a_reader(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The revert test of taking the snapshot again."""

    def enter(self: _Holding, taken: Snapshot) -> Snapshot:
        self.held.append(self.reader.leases.take(self.owner))
        return taken

    monkeypatch.setattr(_Holding, "enter", enter)
    table = refresh(world)
    world.push(table, ["a"])
    early = table.snapshot()
    replace_all(world, table, "b")
    with early as taken:
        world.drain_all()
        with pytest.raises(ObjectNotFoundError):
            read(taken)


def test_without_waiting_for_leases_a_file_goes_under_a_reader(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The revert test of the wait."""
    monkeypatch.setattr(Judge, "_leased", lambda *_: (Verdict.UNUSED, ""))
    table = refresh(world)
    world.push(table, ["a"])
    with table.snapshot() as taken:
        replace_all(world, table, "b")
        world.drain()
        with pytest.raises(ObjectNotFoundError):
            read(taken)


def test_leases_of_another_table_hold_up_nothing(local: World) -> None:
    table, other = local.table("t"), local.table("u")
    local.push(table, ["a"])
    local.push(other, ["a"])
    with other.snapshot():
        local.mark(table, {"a"})
        assert local.drain().total("deleted") == 1
        assert len(local.store.table("u").leases()) == 1
