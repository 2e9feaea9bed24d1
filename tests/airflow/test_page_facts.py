"""What the page remembers of a table is what a reader would find now, and costs three reads while nothing changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.model.segment import SegmentState
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import RefusedError
from airflow_provider_segments.plugins.facts import FactsCache
from tests.airflow.helpers import make_table
from tests.support.tables import push

STEPS = 120


def assert_true_now(cache: FactsCache, table: Table) -> None:
    facts, seen = cache.get(table.name), table.snapshot()
    assert facts.visible is not None
    assert facts.visible.as_dict() == {"segments": len(seen), "rows": seen.rows, "bytes": seen.bytes}
    running = {entry.entry_id for entry in table.lineage().in_state(EntryState.IN_PROGRESS)}
    settled = [status for status in table.segment_states() if status.segment.entry_id not in running]
    shown = [status.segment for status in settled if status.state is SegmentState.VISIBLE]
    hidden = [status.segment for status in settled if status.state is not SegmentState.VISIBLE]
    assert (facts.shown.segments, facts.hidden.segments) == (len(shown), len(hidden))
    assert facts.hidden.bytes == sum(segment.bytes for segment in hidden)
    if facts.latest is not None:
        assert facts.latest == table.resolve_entry("latest")


@pytest.mark.parametrize("kind", ["REFRESH", "APPEND"])
def test_facts_follow_every_change(store: SegmentStore, table_name: str, kind: str) -> None:
    """Random pushes, aborted ones, rollbacks, returns and clean-ups; the cache is asked after each."""
    table = make_table(store, table_name, kind)
    cache, choose, done = FactsCache(store), random.Random(7), dict.fromkeys(("push", "stage", "revert", "unrevert"), 0)

    def entries(state: EntryState) -> list[str]:
        return [entry.entry_id for entry in table.lineage().in_state(state)]

    def on_any(state: EntryState, act: Callable[[str], Any]) -> bool:
        found = entries(state)
        for one in choose.sample(found, len(found)):
            with suppress(RefusedError):
                act(one)
                return True
        return False

    for _ in range(STEPS):
        step = choose.choice(list(done))
        try:
            happened = {
                "push": lambda: bool(push(table, choose.randint(1, 3))),
                "stage": lambda: bool(push(table, 1, end=False)) and on_any(EntryState.IN_PROGRESS, table.abort),
                "revert": lambda: on_any(EntryState.COMPLETED, lambda one: table.revert(one, allow_empty=True)),
                "unrevert": lambda: on_any(EntryState.REVERTED, lambda one: table.unrevert(one, allow_empty=True)),
            }[step]()
        except RefusedError:
            happened = False
        done[step] += happened
        assert_true_now(cache, table)
    print(done)
    assert min(done.values()) > 0, "a kind of step was never made"


def test_a_table_that_did_not_change_costs_three_reads(
    store: SegmentStore, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(store, table_name, "APPEND")
    for _ in range(5):
        push(table, 2)
    cache = FactsCache(store)
    first = cache.get(table_name)
    asked: list[str] = []
    ask = type(store.session).get_many

    def counted(session: Any, paths: Any) -> Any:
        asked.extend(paths)
        return ask(session, paths)

    monkeypatch.setattr(type(store.session), "get_many", counted)
    assert cache.get(table_name) is first
    assert len(asked) == 3
    push(table, 1, end=False)
    assert cache.get(table_name).visible == first.visible


def test_an_entry_has_the_totals_of_what_it_replaced(store: SegmentStore, table_name: str) -> None:
    table = make_table(store, table_name)
    push(table, 2)
    second = push(table, 3)
    cache = FactsCache(store)
    replaced = cache.get(table_name).replaced[second]
    assert replaced is not None
    assert (replaced.segments, replaced.rows) == (2, 2)
