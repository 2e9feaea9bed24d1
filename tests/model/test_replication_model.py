"""Two tables that read the same sources: every order and batching of small worlds, and of each guard what is seen
without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_segments.core.replication import leapfrog
from airflow_provider_segments.core.replication.vectors import Vector
from tests.model.replication_model import Beat, Event, World, faulty, healthy, worlds

FIRST, LAST = Beat(10, 0), Beat(20, 10)


def event(value: int | None = 1, *, key: str = "k", column: str = "v", time: int = 2) -> Event:
    return Event(key, column, value, time)


@pytest.mark.parametrize(("merged", "count"), [(False, 4), (True, 1)])
def test_healthy_tables_never_differ(merged: bool, count: int) -> None:
    """Batches, repeated events, rollbacks and compactions in any order; any two states compared. (Merged rows without
    compactions: where a cutoff was raised they are not compared.)"""
    outcome = healthy(worlds(count, 1, merged=merged))
    assert not outcome.bad, outcome.bad
    assert outcome.comparisons > 5_000


@pytest.mark.parametrize(("merged", "count"), [(False, 6), (True, 3)])
def test_each_fault_is_found_and_nothing_else(merged: bool, count: int) -> None:
    outcome = faulty(worlds(count, 2, merged=merged, events=2 if merged else 3))
    assert not outcome.bad, outcome.bad
    assert outcome.comparisons > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("merged", [False, True])
def test_very_many_worlds(merged: bool) -> None:
    size = 6 if merged else 60
    assert not (first := healthy(worlds(size, 3, merged=merged))).bad, first.bad
    assert not (second := faulty(worlds(size, 4, merged=merged))).bad, second.bad
    assert first.comparisons + second.comparisons > 500_000


# A guard -> the world that shows why it is there, and what is seen without it
IDLE: World = ((event(), FIRST, LAST), (FIRST, LAST))
GUARDS: dict[str, tuple[Callable[..., object], World, str]] = {
    "watermark: heartbeats": (faulty, ((event(), event(key="l"), FIRST, LAST), (FIRST, LAST)), "missed"),
    "watermark: rollbacks count": (healthy, ((event(1), FIRST), (event(2, time=3), FIRST)), "false finding"),
    "merged rows: positions of the version": (
        healthy,
        ((event(column="c1"), FIRST), (event(column="c2"), FIRST)),
        "false finding",
    ),
    "versions end whole": (healthy, ((event(1), event(2, time=3), FIRST), (FIRST,)), "false finding"),
    "cutoff": (healthy, ((event(1, time=1), event(None, time=1), FIRST), (FIRST,)), "false finding"),
    "delete records": (faulty, ((event(None), FIRST, LAST), (event(key="l"), FIRST, LAST)), "false finding"),
    "rollback: digests stay": (healthy, ((event(), FIRST), (FIRST,)), "false digest"),
    "digest: winners too few": (healthy, ((event(time=1), FIRST), (event(2), FIRST)), "false digest"),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_something_false_is_said_or_something_is_missed(guard: str) -> None:
    """And with it, of the same world, nothing."""
    run, world, expected = GUARDS[guard]
    assert not run(iter([world])).bad  # type: ignore[attr-defined]
    assert expected in run(iter([world]), [guard]).bad  # type: ignore[attr-defined]


def test_with_the_comparison_as_it_was_published_losses_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proposal's own text has covered as "not greater than"."""

    def published(watermark: Vector, vector: Vector) -> bool:
        return all(source in watermark and watermark[source] <= at for source, at in vector.items())  # type: ignore[operator]

    world: World = ((event(), event(key="l"), FIRST, LAST), (FIRST, LAST))
    assert not faulty(iter([world])).bad
    monkeypatch.setattr(leapfrog, "covers", published)
    assert "missed" in faulty(iter([world])).bad
