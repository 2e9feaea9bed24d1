"""What the page remembers of a table is what a reader would find now, and costs three reads while nothing changes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.model.segment import SegmentState
from airflow_provider_segments.core.replacement import history
from airflow_provider_segments.core.replacement.forecast import Totals
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import RefusedError
from airflow_provider_segments.plugins import overview, past
from airflow_provider_segments.plugins.facts import FactsCache
from airflow_provider_segments.plugins.overview import Opened
from tests.airflow.helpers import make_table
from tests.support.tables import push, stage

STEPS = 120
NOBODY: Any = None
"""The settings of a connection: what is asked for here needs none."""


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
    remembered, anew = (Opened(NOBODY, table.store, one) for one in (cache, FactsCache(table.store)))
    for describe in (
        lambda opened: past.describe_timeline(opened, table.name, past.Stretch(None, None, None)),
        lambda opened: past.describe_history(opened, table.name, offset=0, limit=5),
    ):
        assert describe(remembered) == describe(anew)


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


def test_a_change_of_a_large_table_costs_what_is_new(
    store: SegmentStore, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a push: its guard and its shard, not those of all others. After a clean-up, all of them."""
    table = make_table(store, table_name, "APPEND")
    for _ in range(12):
        push(table, 1)
    opened = Opened(NOBODY, store, FactsCache(store))
    past.describe_history(opened, table_name, offset=0, limit=50)
    asked: list[str] = []
    ask = type(store.session).get_many

    def counted(session: Any, paths: Any) -> Any:
        asked.extend(paths)
        return ask(session, paths)

    entry_id = push(table, 1)
    monkeypatch.setattr(type(store.session), "get_many", counted)
    visible = opened.facts.get(table_name).visible
    assert visible is not None and visible.segments == 13
    assert sorted(path for path in asked if "/ENTRIES/" in path) == [store.paths.guard(table_name, entry_id)]
    assert [entry_id in path for path in asked if path.startswith(f"{store.paths.registry(table_name)}/")] == [True]
    told = past.describe_history(opened, table_name, offset=0, limit=50).after[entry_id]
    assert told is not None and told.segments == 13
    table.revert(entry_id)
    table.mark_ledgers(entry_id=entry_id)
    asked.clear()
    assert opened.facts.get(table_name).rolled_back == Totals(0, 0, 0)
    assert len([path for path in asked if path.startswith(f"{store.paths.registry(table_name)}/")]) == 12


def test_pushes_that_failed_are_told_until_one_succeeds(store: SegmentStore, table_name: str) -> None:
    table = make_table(store, table_name, "APPEND")
    opened = Opened(SimpleNamespace(deployment="tests"), store, FactsCache(store))  # type: ignore[arg-type]

    def failed() -> str | None:
        told = overview.table_row(opened, table_name, opened.facts.get(table_name)).failed
        return None if told is None else told.entry_id

    push(table, 1)
    undone = push(table, 1)
    table.revert(undone)
    assert failed() is None, "a rollback is no push that failed"
    aborted = push(table, 1, end=False)
    assert failed() is None
    table.abort(aborted)
    assert failed() == aborted
    push(table, 1)
    assert failed() is None


def test_what_was_stored_after_each_push_is_told(store: SegmentStore, table_name: str) -> None:
    """What readers saw, and what was kept besides."""
    table = make_table(store, table_name)
    first, second = push(table, 2), push(table, 3)
    told = past.describe_history(Opened(NOBODY, store, FactsCache(store)), table_name, offset=0, limit=9)
    seen = {key: after.bytes for key, after in told.after.items() if after is not None}
    assert told.stored == {first: seen[first], second: seen[first] + seen[second]}
    assert seen[first] < seen[second]


def test_the_picture_shows_what_a_push_in_progress_stages(store: SegmentStore, table_name: str) -> None:
    """Staging changes none of the znodes by which a change is told, so nothing is remembered meanwhile."""
    table = make_table(store, table_name, "APPEND")
    opened = Opened(NOBODY, store, FactsCache(store))

    def states() -> dict[str, int]:
        found: Counter[str] = Counter()
        for block in past.describe_timeline(opened, table_name, past.Stretch(None, None, None)).blocks:
            found[block.state] += block.totals.segments
        return dict(found)

    push(table, 2)
    assert states() == {"visible": 2}
    entry_id = str(table.start().entry_id)
    assert states() == {"visible": 2}
    stage(table, entry_id, ["a", "b", "c"])
    assert states() == {"visible": 2, "standby": 3}
    table.end(entry_id)
    assert states() == {"visible": 5}


def test_a_picture_is_made_once_for_as_long_as_the_table_does_not_change(
    store: SegmentStore, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(store, table_name, "APPEND")
    for _ in range(3):
        push(table, 1)
    opened = Opened(NOBODY, store, FactsCache(store))
    whole = past.Stretch(None, None, None)
    first = (
        past.describe_timeline(opened, table_name, whole),
        past.describe_history(opened, table_name, offset=0, limit=9),
    )
    monkeypatch.setattr(Table, "read_whole", None)
    monkeypatch.setattr(past, "states_by_shard", None)
    monkeypatch.setattr(history, "_totals", None)
    again = (
        past.describe_timeline(opened, table_name, whole),
        past.describe_history(opened, table_name, offset=0, limit=9),
    )
    assert again == first
    assert len(again[1].after) == 3


def test_an_entry_has_the_totals_of_what_it_replaced(store: SegmentStore, table_name: str) -> None:
    table = make_table(store, table_name)
    push(table, 2)
    second = push(table, 3)
    cache = FactsCache(store)
    replaced = cache.get(table_name).replaced[second]
    assert replaced is not None
    assert (replaced.segments, replaced.rows) == (2, 2)
