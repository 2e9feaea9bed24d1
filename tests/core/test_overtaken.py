"""A step that others overtake between its look and its write neither starves nor trusts what is no longer so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import pytest

from airflow_provider_segments.core.lineage.guard import Rewrite
from airflow_provider_segments.core.locking import APPEND_VERSION, LockType
from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.model.segment import Segment
from airflow_provider_segments.core.replacement.start import ALL_VISIBLE
from airflow_provider_segments.core.retention import cleanup
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Node
from airflow_provider_segments.exceptions import StartRefusedError
from tests.core.versioned_model import HOUR_MS, Push, World, day_chunk, hour_chunk, versioned_config
from tests.support.sessions import CountingSession, settings
from tests.support.tables import DAY_MS, HandClock, make_table, on_clock, on_session, push, visible


class Overtaken(CountingSession):
    """Before each write of ours the next one of ``rivals`` acts; ``looks`` counts how often a registry is listed, and
    ``shards`` how many of its shards are read."""

    rivals: Iterator[Callable[[], object]] = iter(())
    looks = 0
    shards = 0

    def before(self) -> None:
        for act in self.rivals:
            act()
            return

    def children(self, path: str) -> list[str]:
        self.looks += "/SEGMENTS/" in path
        return super().children(path)

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        self.shards += sum("/SEGMENTS/" in path for path in paths)
        return super().get_many(paths)


@pytest.fixture
def session(zk_hosts: str) -> Iterator[Overtaken]:
    """A session that is to be overtaken."""
    with Overtaken.connect(settings(zk_hosts)) as connected:
        yield connected


@pytest.fixture
def hand() -> HandClock:
    """A clock moved by hand."""
    return HandClock()


@pytest.fixture
def table(store: SegmentStore, hand: HandClock) -> Table:
    """An APPEND table with the segments a, b and c."""
    made = make_table(on_clock(store, hand.clock()), replacedSegmentsRetentionPeriod="0s")
    push(made, ["a", "b", "c"])
    return made


def ours(table: Table, session: Overtaken, *rivals: Callable[[], object]) -> Table:
    """The table as it is started on while ``rivals`` overtake."""
    session.rivals, session.looks, session.shards = iter(rivals), 0, 0
    return on_session(table.store, session).table(table.name)


def test_appends_that_overtake_it_do_not_make_it_look_again(table: Table, session: Overtaken) -> None:
    appends = [lambda: push(table, 1)] * 5
    started = ours(table, session, *appends).start(["a", "b"])
    assert set(started.segments_from) == {"a", "b"}
    assert session.looks == 1
    assert len(visible(table)) == 8


def test_a_rewrite_under_locks_does_not_look_again_either(store: SegmentStore, session: Overtaken) -> None:
    world = World.make(store, HandClock(), "DAY")
    names = [name for _ in range(3) for name in world.append(day_chunk(0)).brought]
    overtaken = replace(
        world, table=ours(world.table, session, lambda: None, *[lambda: world.append(day_chunk(0))] * 5)
    )
    running = overtaken.start_rewrite(names)  # its first write takes the lock
    assert session.looks == len(names) + 1  # the model looks each of them up
    world.stage(running, [(day_chunk(0), world.rows_of(names))])
    world.end(running)
    assert len(world.check()) == 6


def test_what_was_replaced_meanwhile_is_refused(table: Table, session: Overtaken) -> None:
    with pytest.raises(StartRefusedError) as refused:
        ours(table, session, lambda: push(table, 1, ["a"])).start(["a", "b"])
    assert refused.value.rule == "from-not-visible"


def test_what_was_rolled_back_meanwhile_is_refused(table: Table, session: Overtaken) -> None:
    later = push(table, ["d"])
    with pytest.raises(StartRefusedError) as refused:
        ours(table, session, lambda: table.revert(later)).start(["d"])
    assert refused.value.rule == "from-not-visible"


def test_what_was_replaced_and_cleaned_up_meanwhile_is_refused(
    table: Table, session: Overtaken, hand: HandClock
) -> None:
    """Then the lineage does not know the name any more; that something was removed says the registry's root."""

    def replace_and_clean() -> None:
        push(table, 1, ["a"])
        for _ in range(3):
            hand.advance(DAY_MS)
            cleanup.run(table._context)

    with pytest.raises(StartRefusedError) as refused:
        ours(table, session, replace_and_clean).start(["a", "b"])
    assert refused.value.rule == "from-not-visible"
    assert session.looks == 2


def test_everything_visible_includes_what_was_appended_meanwhile(table: Table, session: Overtaken) -> None:
    appended: list[str] = []
    started = ours(table, session, lambda: appended.append(push(table, ["late"]))).start(ALL_VISIBLE)
    assert set(started.segments_from) == {"a", "b", "c", "late"}


def test_a_push_without_locks_looks_again_where_others_may_hide_what_it_replaces(
    store: SegmentStore, session: Overtaken
) -> None:
    world = World.make(store, HandClock(), "DAY")
    world.append(day_chunk(0))
    [segment] = _segments(world)
    remote = ours(world.table, session, lambda: world.append(day_chunk(0)))
    assert remote.start([segment.name]).segments_from == (segment.name,)
    assert session.looks == 2


def test_a_stage_that_finds_a_newer_version_asks_for_ids_of_that_one(store: SegmentStore, session: Overtaken) -> None:
    """Even if the first free id is the same in both."""
    world = World.make(store, HandClock())
    world.append(hour_chunk(0, 1))
    world.revert(world.new_version(day_chunk(0)))  # from now on a stage looks before it takes a lock
    overtaken = replace(world, table=ours(world.table, session, *[lambda: None] * 2, lambda: _wider(world)))
    late = overtaken.start("append")
    overtaken.stage(late, [(hour_chunk(0, 1), world.new_rows(hour_chunk(0, 1)))])
    session.rivals = iter(())
    overtaken.end(late)
    assert {(one.chunk, one.partition) for one in world.check().segments} == {(day_chunk(0), 0), (day_chunk(0), 1)}


INPUTS = 20


@pytest.fixture
def concurrent(store: SegmentStore) -> World:
    """A table with concurrent locks and a day of small segments."""
    world = World.make(store, HandClock(), "DAY")
    world.table.store.apply_config(replace(versioned_config("DAY"), concurrent_locks=True, raw={}))
    for _ in range(INPUTS):
        world.append(day_chunk(0))
    return world


def _staged_rewrite(world: World, session: Overtaken, names: Collection[str]) -> tuple[World, Push]:
    """A rewrite under a REPLACE lock, up to its end."""
    day = parse_chunk(day_chunk(0))
    overtaken = replace(world, table=ours(world.table, session))
    lock = overtaken.time_lock(day, newest=APPEND_VERSION, lock_type=LockType.REPLACE)
    rewrite = overtaken._start_under(names, lock, Rewrite(day.start_ms, day.end_ms))
    overtaken.stage(rewrite, [(day_chunk(0), world.rows_of(names))])
    session.shards = 0
    return overtaken, rewrite


def test_an_end_that_is_overtaken_reads_only_what_is_new(concurrent: World, session: Overtaken) -> None:
    """Else appends would starve it: each try reads all of the time chunk, and they write the lineage many times
    meanwhile."""
    names = concurrent.visible()
    overtaken, rewrite = _staged_rewrite(concurrent, session, names)
    late = 8
    session.rivals = iter([lambda: concurrent.append(day_chunk(0))] * late)
    overtaken.end(rewrite)
    assert next(session.rivals, None) is None
    assert INPUTS + late <= session.shards < 2 * INPUTS + 4 * late
    assert len(concurrent.check()) == 1 + late


def test_an_end_sees_what_was_removed_and_rolled_back_meanwhile(concurrent: World, session: Overtaken) -> None:
    [gone, undone, *names] = concurrent.visible()
    overtaken, rewrite = _staged_rewrite(concurrent, session, names)
    of = {name: push for push in concurrent.pushes.values() for name in push.brought}

    def remove() -> None:
        concurrent.expire([gone])
        concurrent.hand.advance(5 * HOUR_MS)
        cleanup.run(concurrent.table._context)

    session.rivals = iter([lambda: None, lambda: None, lambda: concurrent.revert(of[undone]), remove])
    overtaken.end(rewrite)
    assert next(session.rivals, None) is None and gone not in concurrent.registered()
    assert concurrent.visible() == sorted(rewrite.brought)
    concurrent.check()


def _wider(world: World) -> None:
    world.new_version(day_chunk(0))


def _segments(world: World) -> list[Segment]:
    return [one.segment for one in world.table.standings()]
