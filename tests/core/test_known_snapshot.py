"""A reader that looks again and again: it gets what it has while nothing has changed, and only then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_segments.core.snapshot import SnapshotReader
from airflow_provider_segments.core.table import SegmentStore, Table
from tests.support.tables import DAY_MS, HandClock, make_table, on_clock, push


def requests(store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests to ZooKeeper from now on, by kind."""
    client: Any = store.session._client
    found: Counter[str] = Counter()
    send: Callable[..., Any] = client._call

    def call(request: Any, pending: Any) -> Any:
        found[type(request).__name__] += 1
        return send(request, pending)

    monkeypatch.setattr(client, "_call", call)
    return found


def test_a_snapshot_of_an_unchanged_table_is_given_again_for_a_look_at_two_versions(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A push in progress shows nothing once it is announced, whatever it stages."""
    table = make_table(store)
    push(table, 3)
    running = table.start()
    ticket = table.open_stage(running.entry_id)
    known = table.snapshot()
    table.stage(ticket, [])
    sent = requests(store, monkeypatch)
    assert table.snapshot(known=known) is known
    assert sent == {"Exists": 2}
    with table.snapshot(known=known) as held:
        assert held.names == known.names


def changes(table: Table, hand: HandClock) -> dict[str, Callable[[], object]]:
    """Everything that readers notice, one after the other."""
    entries: list[str] = []
    return {
        "push": lambda: entries.append(push(table, 2)),
        "revert": lambda: table.revert(entries[-1]),
        "unrevert": lambda: table.unrevert(entries[-1]),
        "replace": lambda: entries.append(push(table, 1, sorted(table.snapshot().names))),
        "clean-up": lambda: (hand.advance(3 * DAY_MS), table.cleanup()),
        "append": lambda: entries.append(push(table, 1)),
    }


def mistakes(store: SegmentStore) -> list[str]:
    """The changes after which a known snapshot is not what a new one is."""
    hand = HandClock()
    table = on_clock(store, hand.clock()).table(make_table(store).name)
    push(table, 2)
    found = []
    for name, change in changes(table, hand).items():
        known = table.snapshot()
        change()
        if table.snapshot(known=known).segments != table.snapshot().segments:
            found.append(name)
    return found


def test_after_every_change_a_known_snapshot_gives_way_to_a_new_one(store: SegmentStore) -> None:
    assert mistakes(store) == []


def test_without_its_look_a_known_snapshot_is_given_after_changes(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert of the guard."""
    monkeypatch.setattr(SnapshotReader, "_is_current", lambda *_: True)
    assert {"push", "revert", "unrevert", "replace", "append"} <= set(mistakes(store))


def test_a_known_snapshot_of_something_else_is_not_given(store: SegmentStore) -> None:
    """Of another time, of another table, of the past, and one under a lease, which ends with its block."""
    table, other = make_table(store), make_table(store, "other")
    entry_id = push(table, 2)
    push(other, 1)
    known = table.snapshot()
    with known as held:
        assert table.snapshot(known=held) is not held
    assert table.snapshot(0, DAY_MS, known=known) is not known
    assert other.snapshot(known=known).table == "other"
    assert table.snapshot(as_of=entry_id, known=known) is not known
    assert table.snapshot(known=table.snapshot(as_of=entry_id)).names == known.names
