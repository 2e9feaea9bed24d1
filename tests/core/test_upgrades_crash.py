"""Concurrent append and replace, killed or overtaken at every write, and what happens without each guard."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_segments.core.replacement import upgrade
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.timeline import Placed
from airflow_provider_segments.exceptions import (
    EntryNotFoundError,
    RefusedError,
)
from tests.core.upgrades_lab import Lab
from tests.support.sessions import CountingSession, settings
from tests.support.tables import (
    HOUR_MS,
    on_session,
    states,
)

overlays = importlib.import_module(
    "airflow_provider_segments.core.timeline.overlay"
)  # the package has a function so named


@pytest.fixture
def lab(store: SegmentStore) -> Lab:
    return Lab.make(store)


# --- every interleaving of two ends, a rollback, a clean-up and readers, one preemption at any write ------------------


class Killed(BaseException):
    """The process ends here."""


class StoppingSession(CountingSession):
    """Calls ``stop`` around each write, with the number of the moment: twice a write, before and after."""

    stop: Callable[[int], object] = staticmethod(lambda _: None)
    moments = 0

    def before(self) -> None:
        self._moment()

    def after(self) -> None:
        self._moment()

    def _moment(self) -> None:
        self.moments += 1
        self.stop(self.moments)


@pytest.fixture
def stopping(zk_hosts: str) -> Iterator[StoppingSession]:
    session = StoppingSession.connect(settings(zk_hosts))
    yield session
    session.close()


class Scene:
    """A base of two rows that a replacement rewrites, beside an append that ended meanwhile and two that are staged."""

    def __init__(self, store: SegmentStore, name: str, prepare: str = "") -> None:
        self.lab = lab = Lab.make(store, name)
        first = lab.append(2)
        held = lab.lock()
        self.late = lab.append()
        self.a, self.b = lab.prepare(), lab.prepare()
        self.r = lab.rewrite(first.names, held, count=2)
        self.base = [*first.names, *self.late.names]
        for step in prepare.split():
            self.act(step, lab.table)

    def act(self, step: str, table: Table) -> None:
        """One call; refusals are answers, too."""
        with suppress(RefusedError, EntryNotFoundError):
            self._act(step, table)

    def _act(self, step: str, table: Table) -> None:
        match step:
            case "end_a":
                table.end(self.a.entry_id)
            case "end_b":
                table.end(self.b.entry_id)
            case "end_r":
                table.end(self.r.entry_id)
            case "revert":
                table.revert(self.r.entry_id, force=True, identity="revert")
            case "clean":
                self.lab.hand.advance(3 * HOUR_MS)
                table.cleanup()

    def ended(self) -> set[str]:
        found = states(self.lab.table)
        running = ("IN_PROGRESS", "REVERTED")
        return {name for push in (self.a, self.b) if found.get(push.entry_id) not in running for name in push.names}

    def check(self) -> None:
        """Every row that was ended exactly once; a reader may be a moment older than the look at the lineage."""
        before = self.ended()
        seen = self.lab.seen()
        after = self.ended()
        assert len(set(seen)) == len(seen), f"twice: {seen}"
        assert {*self.base, *before} <= set(seen) <= {*self.base, *after}, "rows are missing, or came too early"


STEPS = ("end_r", "end_a", "revert", "clean")
HISTORIES = ("", "end_r", "end_r end_b", "end_r revert", "end_r end_b revert clean", "end_b", "end_a end_r revert")


RACES = [
    ("", "end_r", ("end_a",)),
    ("end_b", "end_a", ("end_r",)),
    ("end_r", "end_a", ("revert",)),
    ("end_r", "revert", ("end_a",)),
    ("", "end_r", ("revert",)),
    ("end_r end_b revert clean", "clean", ("end_a",)),
    ("end_r end_b revert clean", "end_a", ("clean", "clean")),
]


@pytest.mark.parametrize(("history", "outer", "inner"), RACES)
def test_whatever_happens_at_any_write_of_a_step_each_row_is_seen_once(
    store: SegmentStore, stopping: StoppingSession, history: str, outer: str, inner: Sequence[str]
) -> None:
    """The races that matter most, and a reader at every write."""
    for moment in itertools.count(1):
        if not _preempted(store, stopping, history, outer, inner, moment):
            break


@pytest.mark.slow
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("outer", STEPS)
def test_all_histories_with_one_step_at_any_write_of_another(
    store: SegmentStore, stopping: StoppingSession, outer: str, history: str
) -> None:
    others = [step for step in STEPS if step != outer]
    for inner in [*itertools.permutations(others, 1), *itertools.permutations(others, 2), ("end_b", "end_a")]:
        for moment in itertools.count(1):
            if not _preempted(store, stopping, history, outer, inner, moment):
                break


def _preempted(
    store: SegmentStore, stopping: StoppingSession, history: str, outer: str, inner: Sequence[str], moment: int
) -> bool:
    """Run ``outer``, and all of ``inner`` at its n-th moment; whether it came to that."""
    scene = Scene(store, f"t{next(COUNT)}", history)
    came = []

    def stop(now: int) -> None:
        scene.check()
        if now == moment:
            came.append(now)
            for step in inner:
                scene.act(step, scene.lab.table)
                scene.check()

    stopping.moments, stopping.stop = 0, stop  # type: ignore[method-assign]
    try:
        scene.act(outer, on_session(scene.lab.store, stopping).table(scene.lab.table.name))
        scene.check()
        for step in (*STEPS, "clean", "clean"):
            stopping.stop = lambda _: None  # type: ignore[method-assign]
            scene.act(step, scene.lab.table)
            scene.check()
    except AssertionError as error:
        raise AssertionError(f"{history!r}, then {outer} with {inner} at moment {moment}: {error}") from error
    return bool(came)


COUNT = itertools.count()


@pytest.mark.parametrize(
    ("history", "step"),
    [
        ("", "end_r"),
        ("end_r", "end_a"),
        ("end_r end_b revert clean", "clean"),
        pytest.param("end_b", "end_r", marks=pytest.mark.slow),
        pytest.param("end_r end_b", "revert", marks=pytest.mark.slow),
        pytest.param("end_r end_b revert", "clean", marks=pytest.mark.slow),
    ],
)
def test_a_step_that_was_killed_at_any_write_is_run_again_or_rolled_back(
    store: SegmentStore, stopping: StoppingSession, history: str, step: str
) -> None:
    for then in ([step], ["revert", "clean", "clean", "end_a"]):
        for moment in itertools.count(1):
            scene = Scene(store, f"t{next(COUNT)}", history)
            if not _killed(scene, stopping, step, moment):
                break
            scene.check()
            for again in then:
                scene.act(again, scene.lab.table)
                scene.check()
            for again in ("end_r", "end_a", "end_b"):
                scene.act(again, scene.lab.table)
            scene.check()
            scene.lab.settle()
            scene.check()


def _killed(scene: Scene, stopping: StoppingSession, step: str, moment: int) -> bool:
    def stop(now: int) -> None:
        if now == moment:
            raise Killed

    stopping.moments, stopping.stop = 0, stop  # type: ignore[method-assign]
    try:
        scene.act(step, on_session(scene.lab.store, stopping).table(scene.lab.table.name))
    except Killed:
        return True
    return False


# --- what happens without each guard ---------------------------------------------------------------------------------


def test_without_upgrades_at_the_end_of_a_replacement_appended_rows_are_lost(
    store: SegmentStore, stopping: StoppingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade._Carrying, "run", lambda *_: None)
    with pytest.raises(AssertionError, match="missing"):
        _preempted(store, stopping, "", "end_r", (), 1)


def test_without_places_for_a_late_append_its_rows_are_lost(
    store: SegmentStore, stopping: StoppingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade._Following, "run", lambda *_: None)
    with pytest.raises(AssertionError, match="missing"):
        _preempted(store, stopping, "end_r", "end_a", (), 1)


def test_were_places_to_count_without_their_version_what_a_rollback_brings_back_is_hidden(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, good = lab.append(), lab.append()
    rewrite = lab.compact(first.names)
    lab.table.revert(rewrite.entry_id)
    assert lab.seen() == sorted([*first.names, *good.names])
    monkeypatch.setattr(overlays._Carried, "of", _all_of_them)
    assert lab.seen() == good.names


def _all_of_them(further: Iterable[Placed], *_: Any) -> overlays._Carried:
    places = list(further)
    return overlays._Carried(places, {one.record.name: one.within for one in places if one.within})


def test_without_a_place_in_every_lineage_that_is_compared_the_race_loses_rows(
    store: SegmentStore, stopping: StoppingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Druid #16393: decided once, before the first try, is not enough."""
    once: set[str] = set()
    settle = upgrade.settle_places

    def first_only(context: Any, stored: Any, push: Any, *rest: Any) -> bool:
        if push.entry.entry_id in once:
            return True
        once.add(push.entry.entry_id)
        return settle(context, stored, push, *rest)

    from airflow_provider_segments.core.replacement import end

    monkeypatch.setattr(end, "settle_places", first_only)
    with pytest.raises(AssertionError, match="missing"):
        for moment in range(1, 30):
            _preempted(store, stopping, "", "end_a", ("end_r",), moment)
