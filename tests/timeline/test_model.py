"""The timeline against the obvious model, over random histories; and the same with each guard taken away."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.timeline import VersionedSegment, axis, chunk, timeline
from tests.timeline.model import World

STEPS = 50


def explore(examples: int, *, strict: bool) -> int:
    """Random histories of :data:`STEPS` steps; how many steps were checked."""
    done = 0

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False))
    def histories(rng: random.Random) -> None:
        nonlocal done
        done += World(rng, strict=strict).run(STEPS)

    histories()
    return done


def test_random_histories_show_no_row_twice_and_hide_none_that_a_complete_set_holds() -> None:
    """5,000 steps: the model's answer, bulk equal to incremental, groups whole, rows once, after every step."""
    assert explore(110, strict=True) >= 5_000


def test_with_the_option_random_histories_show_no_row_twice_and_something_rather_than_nothing() -> None:
    """Druid's preference: bulk equal to incremental, rows once, and no moment empty that has a segment in service."""
    assert explore(30, strict=False) >= 1_500


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_hundred_thousand_steps() -> None:
    """The same for long: 100,000 steps strict, 20,000 with the option."""
    assert explore(2_100, strict=True) >= 100_000
    assert explore(420, strict=False) >= 20_000


def seeded(histories: int, *, strict: bool = True) -> None:
    """The same histories every time, for the revert tests."""
    for seed in range(histories):
        World(random.Random(seed), strict=strict).run(40)


def test_the_seeded_histories_pass() -> None:
    """What the revert tests below break."""
    seeded(40)


def mutated(module: types.ModuleType, before: str, after: str) -> types.ModuleType:
    """The module with one piece of its source replaced."""
    source = Path(str(module.__file__)).read_text()
    assert source.count(before) == 1, f"{before!r} is not there once"
    new = types.ModuleType(module.__name__)
    new.__file__ = module.__file__
    exec(compile(source.replace(before, after), str(module.__file__), "exec"), new.__dict__)
    return new


CHUNK_GUARDS = {
    "the proposal's bulk rule: incomplete groups hide too": (
        "                    incomplete.append(group)\n",
        "                    incomplete.append(group)\n                    hidden |= group.over\n",
    ),
    "one hop only": ("            hidden = _follow(hidden, incomplete)\n", ""),
    "edges are followed through segments in service only": (
        "            hidden = _follow(hidden, incomplete)\n",
        "            hidden = _follow(hidden, [one for one in incomplete if one.members & online])\n",
    ),
    "what replaced a forgotten segment inherits nothing": (
        "                other.over |= group.over\n",
        "                pass\n",
    ),
    "groups are not waited for": ("if group.members & ~online:", "if not group.members & online:"),
    "the core set is not waited for": (" and not self._core_mask & ~(hidden | visible)", ""),
}


@pytest.mark.parametrize("guard", sorted(CHUNK_GUARDS))
def test_without_this_guard_of_a_chunk_a_history_goes_wrong(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Revert tests: the checks notice the guard's absence."""
    monkeypatch.setattr(timeline, "ChunkVersion", mutated(chunk, *CHUNK_GUARDS[guard]).ChunkVersion)
    with pytest.raises(AssertionError):
        seeded(400)


def raised_over_everything(self: axis.Axis[axis.R, object], holder: axis.R) -> list[tuple[int, int, axis.R]]:
    return [(holder.start, holder.end, holder)]


TIMELINE_GUARDS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a version that becomes complete takes all of its time": lambda patch: patch.setattr(
        axis.Axis, "raised", raised_over_everything
    ),
    "a changed chunk keeps its old answer": lambda patch: patch.setattr(axis.Axis, "changed", lambda *_: None),
    "a version that is lost leaves a hole": lambda patch: patch.setattr(timeline, "envelope", lambda *_: []),
    # Not a wrong answer, but a different one than in bulk.
    "neighbours of one holder stay apart": lambda patch: patch.setattr(axis, "joined", list),
}


@pytest.mark.parametrize("guard", sorted(TIMELINE_GUARDS))
def test_without_this_guard_of_the_axis_a_history_goes_wrong(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Revert tests for the time axis."""
    TIMELINE_GUARDS[guard](monkeypatch)
    with pytest.raises(AssertionError):
        seeded(400)


FALL_FIRST = "        for chunk in lowered:\n            self._lower(chunk)\n"
THEN_RISE = (
    "        for chunk in raised:\n            self._axis.replace(chunk.start, chunk.end, self._axis.raised(chunk))\n"
)


def fall_and_rise(made: Callable[[], timeline.Timeline[str]]) -> list[str]:
    """The versions that are shown when, in one batch, the highest falls and the lowest rises."""
    span = Interval(0, 4)
    one = made()
    one.add_all([VersionedSegment(span, "c", 0, ""), VersionedSegment(span, "b", 0, "")])
    one.add_all([VersionedSegment(span, "c", 5, "", core=3), VersionedSegment(span, "a", 0, "")])
    return [piece.version for piece in one.pieces()]


def test_what_one_version_loses_goes_to_the_best_of_all_whoever_rises_in_the_same_batch() -> None:
    """And the revert test: with rising before falling, the lowest takes what the highest leaves."""
    assert fall_and_rise(timeline.Timeline) == ["b"]
    wrong = mutated(timeline, FALL_FIRST + THEN_RISE, THEN_RISE + FALL_FIRST)
    assert fall_and_rise(wrong.Timeline) == ["a"]
