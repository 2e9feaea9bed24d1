"""Time chunks without segments leave ZooKeeper, and whoever stages into one that goes meanwhile makes it again."""

from __future__ import annotations

import pytest

from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.table import SegmentStore, Table
from tests.support.sessions import CountingSession, settings
from tests.support.tables import DAY_MS, DAYS, HandClock, build, make_table, on_clock, on_session, push, visible


def chunks(table: Table) -> list[str]:
    """Time chunks that have a znode."""
    return table.store.session.children(table.store.paths.registry(table.name))


def test_chunks_of_dropped_segments_go_and_the_others_stay(store: SegmentStore) -> None:
    """An hourly table would otherwise grow for ever, and every listing pay for it."""
    hand = HandClock()
    table = make_table(on_clock(store, hand.clock()), replacedSegmentsRetentionPeriod="0s")
    push(table, ["a", "b"])
    entry = table.start(["b"]).entry_id
    table.end(entry, allow_empty=True)
    assert chunks(table) == list(DAYS)
    for _ in range(3):
        hand.advance(2 * DAY_MS)
        table.cleanup()
    assert visible(table) == {"a"}
    assert chunks(table) == [DAYS[0]]


@pytest.mark.parametrize("count", [2, 3000], ids=["one-request", "many-shards"])
def test_a_chunk_that_goes_while_a_push_stages_into_it_is_made_again(
    store: SegmentStore, zk_hosts: str, count: int
) -> None:
    """Every empty chunk is removed before each write of the stage."""
    made = make_table(store)

    class Removing(CountingSession):
        removed = 0

        def before(self) -> None:
            if self.removed < 8:
                self.removed += Registry(store.cluster, made.name).remove_empty_chunks()

    with Removing.connect(settings(zk_hosts)) as session:
        table = on_session(store, session).table(made.name)
        entry = table.start().entry_id
        ticket = table.open_stage(entry)
        table.stage(ticket, build(table, ticket, [f"s{number}" for number in range(count)]))
        table.end(entry)
        assert session.removed >= 2
    assert len(made.snapshot()) == count
    assert chunks(made) == list(DAYS)
