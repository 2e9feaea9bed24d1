"""No part of the one rule is superfluous: without it, readers see what the rule forbids.

Each guard is switched off in the code that runs. Then random histories of the laboratory (:mod:`tests.histories.lab`)
are played until one fails, or a short history is played that needs just that guard. The first table says with which
seed to begin, so that a failure comes soon; a change of the laboratory moves the seeds, and then a few more are played.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from airflow_provider_segments.core import snapshot
from airflow_provider_segments.core.lineage.entries import Lineage
from airflow_provider_segments.core.lineage.guard import Guard
from airflow_provider_segments.core.locking import LockBox, LockType
from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.replacement import end, revert, rules, start
from airflow_provider_segments.core.replacement import stage as staging
from airflow_provider_segments.core.retention import beneath, cleanup
from airflow_provider_segments.core.retention import rules as retention_rules
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.versions.overwrites import TimeFilter
from airflow_provider_segments.exceptions import RefusedError
from tests.compaction.support import HookedSession
from tests.histories.lab import play
from tests.regressions.helpers import DAY, HOUR_9, bring, lock, lose, overwrite, placed_table, seen
from tests.regressions.helpers import rewrite as rewrite_day
from tests.support.sessions import settings
from tests.support.tables import HOUR_MS, HandClock, build, on_clock, on_session, stage

MOST_HISTORIES = 600

Switch = tuple[Any, str, Callable[..., Any]]
"""Where a guard is, its name there, and what stands in its place."""


def nothing(*_: Any, **__: Any) -> None:
    """In place of a check that raises, or of a search."""


def oldest_version(_: Lineage, segments: Any) -> int:
    """In place of the newest version among the inputs of a rewrite."""
    return min(segment.version for segment in segments)


def version_of_the_lock(box: LockBox) -> int:
    """In place of a version of its own: the newest lock's, which all pushes of one group share."""
    return box.read().version_ms


def without_cuts(look: Any, guard: Guard, lineage: Lineage, names: Any) -> Any:
    """In place of the parts of a rewrite's inputs that are visible: all of them."""
    return REWRITING(look, guard, lineage, names)[0], {}


def as_it_was_staged(guard: Guard, other: Guard) -> Guard:
    """In place of having to stage again under other locks."""
    taken = {name: getattr(other, name) for name in ("locks", "exclusive", "overwrites", "rewrite")}
    return msgspec.structs.replace(guard, **taken)


REWRITING = start._Look.rewriting

# Guard -> what stands in its place, and the first seed that fails then
RANDOM: dict[str, tuple[list[Switch], int]] = {
    "readers: names that the lineage hides": ([(snapshot, "hidden_names", lambda *_: set())], 3),
    "readers: time that overwrites hold": ([(snapshot, "TimeFilter", lambda _: TimeFilter(()))], 1),
    "readers: falling back": ([(snapshot, "fallen_back", lambda *_: frozenset())], 13),
    "readers: only settled pushes": ([(snapshot, "is_settled", lambda *_: True)], 0),
    "readers: partial pushes": ([(Lineage, "with_partial", lambda lineage, *_: lineage)], 3),
    "start: inputs are visible": ([(rules, "_check_visible", nothing)], 88),
    "start: replaced by one entry": ([(rules, "_check_entry", nothing)], 27),
    "rewrite: only what is seen": ([(start._Look, "rewriting", without_cuts)], 0),
    "revert: not built upon": ([(rules, "_check_not_built_upon", nothing)], 21),
}


@pytest.mark.parametrize("guard", RANDOM)
def test_without_a_guard_a_random_history_breaks_the_rule(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    switches, seed = RANDOM[guard]
    for where, name, instead in switches:
        monkeypatch.setattr(where, name, instead)
    with pytest.raises(AssertionError, match=r"seen twice|a reader of one day|never comes to its end") as broken:
        for number in range(seed, seed + MOST_HISTORIES):
            play(store, number)
    print(str(broken.value)[-1000:])


# --- histories of a few steps


def appended_beneath_an_overwrite(table: Table, _: HandClock) -> None:
    """An append has staged; a task of the same DAG run overwrites the time; the append is completed last of all."""
    entry_id = table.start(locks=[lock(table, DAY, LockType.APPEND, task="other")]).entry_id
    stage(table, entry_id, ["appended"], chunks=[DAY])
    bring(table, "overwritten", DAY, locks=[lock(table, DAY)])
    table.end(entry_id)


def appended_while_overwriting(table: Table, _: HandClock) -> None:
    """A task of the same DAG run appends to the time, and is done before the overwrite is."""
    entry_id = table.start(locks=[lock(table, DAY)]).entry_id
    bring(table, "appended", DAY, locks=[lock(table, DAY, LockType.APPEND, task="other")])
    stage(table, entry_id, ["overwritten"], chunks=[DAY])
    table.end(entry_id)


def two_under_one_lock(table: Table, _: HandClock) -> None:
    """A DAG run overwrites the same day twice."""
    held = lock(table, DAY)
    bring(table, "first", DAY, locks=[held])
    bring(table, "second", DAY, locks=[held])


def staged_under_another_lock(table: Table, _: HandClock) -> None:
    """An overwrite has staged and loses its lock; somebody appends; it gets a new lock, and ends."""
    held = lock(table, DAY)
    entry_id = table.start(locks=[held], identity="push").entry_id
    stage(table, entry_id, ["a"], chunks=[DAY])
    table.locks.release(held.group, held.task)
    bring(table, "b", DAY)
    table.start(locks=[lock(table, DAY)], identity="push")
    table.end(entry_id)


def overwritten_while_rewriting(table: Table, _: HandClock) -> None:
    """A rewrite takes the version of an input that is newer than an overwrite which ends meanwhile."""
    bring(table, "a", DAY)
    held = lock(table, HOUR_9)
    hour = table.start(locks=[held], overwrites=[parse_chunk(HOUR_9)]).entry_id
    bring(table, "b", "2013-01-01T10")
    entry_id = table.start(["a", "b"], rewrite=DAY).entry_id
    table.end(hour, allow_empty=True)
    table.locks.release(held.group, held.task)
    stage(table, entry_id, ["rewritten"], chunks=[DAY])
    table.end(entry_id)


def rolled_back_after_a_rewrite(table: Table, _: HandClock) -> None:
    """The rest of a cut day is rewritten, and then the hour that cut it is rolled back."""
    bring(table, "a", DAY)
    hour = overwrite(table, "hour", HOUR_9)
    started = table.start(["a"], rewrite=DAY)
    assert len(started.cuts["a"]) == 2
    stage(table, started.entry_id, ["rewritten"], chunks=[DAY])
    table.end(started.entry_id)
    table.revert(hour)


def lost_while_correcting(table: Table, _: HandClock) -> None:
    """One of two segments of a rewrite is being corrected when the other one is lost."""
    bring(table, "a", DAY)
    entry_id = rewrite_day(table, ["a"], "half", "rest")
    correction = table.start(["half"]).entry_id
    stage(table, correction, ["corrected"], chunks=[DAY])
    lose(table, entry_id, "rest")
    table.end(correction)


def cleaned_beneath_what_is_rolled_back(table: Table, hand: HandClock) -> None:
    """A day whose entry has left the lineage is overwritten, a clean-up comes by, and the overwrite is rolled back."""
    bring(table, "a", DAY)
    hand.advance(3 * HOUR_MS)
    table.cleanup()
    day = overwrite(table, "day", DAY)
    table.cleanup()
    table.revert(day, allow_empty=True)


def cleaned_and_rolled_back(table: Table, hand: HandClock) -> None:
    """A clean-up removes what a push replaced, and then that push is rolled back."""
    bring(table, "a", DAY)
    entry_id = bring(table, "b", DAY, ["a"])
    hand.advance(3 * HOUR_MS)
    table.cleanup()
    table.revert(entry_id, allow_empty=True)


def rewritten_over_an_overwrite(table: Table, hand: HandClock) -> None:
    """A day, an overwrite of an hour of it, and what was appended after that become one segment."""
    bring(table, "a", DAY)
    overwrite(table, "hour", HOUR_9)
    bring(table, "b", DAY)
    hand.advance(3 * HOUR_MS)
    table.cleanup()
    rewrite_day(table, ["a", "b"], "rewritten")


def cleaned_above_what_is_cut(table: Table, hand: HandClock) -> None:
    """A day is cut by the overwrite of an hour, and clean-ups come by."""
    bring(table, "a", DAY)
    overwrite(table, "hour", HOUR_9)
    for _ in range(3):
        hand.advance(3 * HOUR_MS)
        table.cleanup()


def lost_beneath_what_is_rolled_back(table: Table, hand: HandClock) -> None:
    """All that a rewrite brought is lost, its input is overwritten, and the overwrite is rolled back after a
    clean-up."""
    bring(table, "a", DAY)
    lose(table, rewrite_day(table, ["a"], "rewritten"), "rewritten")
    hand.advance(1 * HOUR_MS)
    day = overwrite(table, "day", DAY)
    hand.advance(HOUR_MS + HOUR_MS // 2)
    table.cleanup()
    table.revert(day, allow_empty=True)


def rewritten_on_a_host_whose_clock_is_ahead(table: Table, hand: HandClock) -> None:
    """A day is rewritten on a host three hours ahead, and corrected on another; a clean-up comes when only what the
    correction replaced is old enough to go."""
    bring(table, "a", DAY)
    hand.advance(3 * HOUR_MS)
    rewrite_day(table, ["a"], "rewritten")
    hand.advance(-3 * HOUR_MS)
    bring(table, "corrected", DAY, ["rewritten"])
    for _ in range(2):
        hand.advance(2 * HOUR_MS + 1)
        table.cleanup()


def registered_while_ending(table: Table, _: HandClock) -> None:
    """A second build registers its segment after ``end`` has looked at what is staged, and before it switches."""
    entry_id = table.start().entry_id
    stage(table, entry_id, ["a"], stager="first", chunks=[DAY])
    ticket = table.open_stage(entry_id, "second")
    guard = table._context.guard(entry_id).guard
    staging._begin(table._context, ticket, guard)
    payloads = staging.shard_payloads(table._context, ticket, build(table, ticket, ["b"], chunks=[DAY]))
    table._context.registry.make_chunks(payloads)
    with HookedSession.connect(settings(table.store.session.settings.hosts)) as session:
        session.hook(WRITES_BEFORE_SWITCH, "before", lambda: staging._register(table._context, ticket, guard, payloads))
        on_session(table.store, session).table(table.name).end(entry_id, ["a"])


WRITES_BEFORE_SWITCH = 1

# Guard -> what stands in its place, the history, and what readers see then
DIRECTED: dict[str, tuple[list[Switch], Callable[[Table, HandClock], None], dict[str, int]]] = {
    "end: not beneath an overwrite": (
        [(end, "find_overtaken", nothing)],
        appended_beneath_an_overwrite,
        {"overwritten": 0},
    ),
    "end: nothing newer in an overwrite's time": (
        [(end, "find_newer", nothing)],
        appended_while_overwriting,
        {"appended": 0, "overwritten": 0},
    ),
    "start: a version for each overwrite": (
        [(LockBox, "draw_version", version_of_the_lock)],
        two_under_one_lock,
        {"first": 0, "second": 0},
    ),
    "start: what was staged under other locks is staged again": (
        [(Guard, "restarted", as_it_was_staged)],
        staged_under_another_lock,
        {"a": 0, "b": 0},
    ),
    "end: overwrites as they were read": (
        [(end, "overwrites_above", lambda *_: frozenset())],
        overwritten_while_rewriting,
        {"rewritten": 0},
    ),
    "rewrite: waits for unsettled overwrites": (
        [(start, "find_unsettled", nothing)],
        rolled_back_after_a_rewrite,
        {"rewritten": 0},
    ),
    "end: inputs are seen": ([(end, "_check_seen", nothing)], lost_while_correcting, {"corrected": 0}),
    "clean-up: hidden for good only by marked overwrites": (
        [(module, "settled_overwrites", lambda lineage: lineage.overwrites_in_force) for module in (cleanup, beneath)],
        cleaned_beneath_what_is_rolled_back,
        {},
    ),
    "clean-up: mark first": (
        [(Lineage, "with_cleaning", lambda lineage, *_: lineage), (revert, "_check_registered", nothing)],
        cleaned_and_rolled_back,
        {},
    ),
    "rewrite: newest version": (
        [(start, "rewritten_version", oldest_version)],
        rewritten_over_an_overwrite,
        {"hour": 0, "rewritten": 2},
    ),
    "clean-up: what something lies beneath stays": (
        [(cleanup, "lies_beneath", lambda *_: False)],
        cleaned_above_what_is_cut,
        {"a": 0, "hour": 0},
    ),
    "clean-up: what readers fell back to": (
        [(cleanup, "_fallen_back_to", lambda *_: [])],
        lost_beneath_what_is_rolled_back,
        {},
    ),
    "clean-up: what a rewrite replaced goes before what it brought": (
        [(retention_rules, "_rewriter_of", nothing)],
        rewritten_on_a_host_whose_clock_is_ahead,
        {"a": 0, "corrected": 0},
    ),
    "end: the seal": (
        [(end, "_seal", lambda context, entry_id: context.guard(entry_id))],
        registered_while_ending,
        {"a": 0, "b": 0},
    ),
}
RIGHT = {
    rewritten_over_an_overwrite: {"hour": 0, "rewritten": 0},
    cleaned_above_what_is_cut: {"a": 2, "hour": 0},
    lost_beneath_what_is_rolled_back: {"a": 0},
    rewritten_on_a_host_whose_clock_is_ahead: {"corrected": 0},
    two_under_one_lock: {"second": 0},
    cleaned_beneath_what_is_rolled_back: {"a": 0},
    registered_while_ending: {"a": 0},
}
"""What readers see with all guards after those histories that no guard refuses."""


@pytest.fixture
def hand() -> HandClock:
    """A clock moved by hand."""
    return HandClock()


@pytest.fixture
def table(store: SegmentStore, hand: HandClock) -> Table:
    """A table with locks, whose replaced segments are kept for two hours."""
    return placed_table(on_clock(store, hand.clock()), replacedSegmentsRetentionPeriod="2h")


@pytest.mark.parametrize("guard", DIRECTED)
def test_without_a_guard_a_short_history_breaks_the_rule(
    table: Table, hand: HandClock, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    switches, history, wrong = DIRECTED[guard]
    for where, name, instead in switches:
        monkeypatch.setattr(where, name, instead)
    history(table, hand)
    assert seen(table) == wrong


@pytest.mark.parametrize("guard", DIRECTED)
def test_with_all_guards_the_same_history_is_refused_or_shows_what_is_right(
    table: Table, hand: HandClock, guard: str
) -> None:
    _, history, wrong = DIRECTED[guard]
    if history in RIGHT:
        history(table, hand)
        assert seen(table) == RIGHT[history] != wrong
    else:
        with pytest.raises(RefusedError):
            history(table, hand)
