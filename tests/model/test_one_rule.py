"""The one rule for what readers see, over every history of small tables and many random ones of larger tables.

Nothing bad with all guards; without each of them a named violation, with the shortest history that leads to it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.model.one_rule import YEAR, Model, Plan, append, correction, overwrite, rewrite, some_table

KINDS = {"start", "stage", "end", "publish", "abort", "revert", "bring", "mark", "remove", "drop", "new"}

SCENES: dict[str, Sequence[Plan]] = {
    "append, overwrite": [append("A"), overwrite("O")],
    "append, overwrite without rows": [append("A"), overwrite("O", held=3, empty=True)],
    "append, overwrite, append": [append("A", done="COMPLETED"), append("B", 2), overwrite("O")],
    "two overwrites without rows": [
        append("A", done="COMPLETED"),
        overwrite("O", held=6, empty=True),
        overwrite("Q", held=3, empty=True),
    ],
    "cut, rewrite": [append("A", done="COMPLETED"), overwrite("O"), rewrite("C")],
    "cut already, rewrite": [append("A", done="GONE"), overwrite("O", empty=True, done="COMPLETED"), rewrite("C", 1)],
    "overwrite between, rewrite": [
        append("A", done="COMPLETED"),
        overwrite("O", 1, done="COMPLETED"),
        append("B", done="COMPLETED"),
        rewrite("C"),
    ],
    "overwrite between, late": [append("A", done="GONE"), overwrite("O", empty=True), append("B", 4), rewrite("C")],
    "two rewrites of one": [append("A", 2, done="COMPLETED"), rewrite("C", 1), rewrite("D", 1)],
    "one rewrite": [append("A", 2, done="COMPLETED"), rewrite("C", 1)],
    "correction, cut": [append("A", done="GONE"), overwrite("O", done="COMPLETED"), correction("X")],
    "correction, rewrite": [append("A", done="COMPLETED"), correction("X"), rewrite("C", 1)],
    "overwrites of all": [
        append("A", done="GONE"),
        overwrite("O", YEAR, done="COMPLETED"),
        overwrite("Q", YEAR, done="COMPLETED"),
    ],
}

# Guards that are switched off together -> the scene that shows why they are there, and what is seen then
GUARDS: dict[str, tuple[str, str]] = {
    "end: not beneath an overwrite": ("append, overwrite without rows", "lost: A"),
    "end: overwrites that were rolled back count": ("append, overwrite without rows", "lost: A"),
    "end: nothing newer in an overwrite's time": ("append, overwrite without rows", "seen, and must not be: A"),
    "end: rolled back segments count": ("append, overwrite without rows", "seen, and must not be: A"),
    "start: replaced by one entry + end: inputs are there": ("two rewrites of one", "seen twice: A"),
    "rewrite: waits for unsettled overwrites": ("cut already, rewrite", "lost: A"),
    "rewrite: newest version": ("overwrite between, rewrite", "lost: O"),
    "rewrite: only what is seen": ("cut already, rewrite", "seen, and must not be: A"),
    "rewrite: overwrites as they were read": ("overwrite between, late", "seen, and must not be: A"),
    "revert: not built upon": ("one rewrite", "seen, and must not be: A"),
    "revert: not marked": ("overwrites of all", "lost: A"),
    "clean-up: mark first + revert: what it replaced is there": ("one rewrite", "lost: A"),
    "revert: what it brought is there": ("one rewrite", "seen, and must not be: A"),
    "bring back: not marked": ("one rewrite", "lost: A"),
    "clean-up: mark what was rolled back first + bring back: what it brought is there": ("one rewrite", "lost: A"),
    "bring back: it was completed once + abort: marked": ("append, overwrite", "lost: A"),
    "bring back: nothing was built since + end: inputs are there": ("two rewrites of one", "seen twice: A"),
    "bring back: what it replaces is visible": ("one rewrite", "seen, and must not be: A"),
    "drop: what was rolled back is gone": ("one rewrite", "seen, and must not be: A"),
    "drop: what it replaced is gone": ("cut already, rewrite", "seen twice: A"),
    "drop: nothing beneath": ("cut already, rewrite", "seen, and must not be: A"),
    "drop: what lies beneath counts though hidden": ("overwrites of all", "seen, and must not be: O"),
    "hidden for good: only by marked overwrites": ("overwrites of all", "lost: O"),
}


@pytest.mark.parametrize("scene", SCENES)
def test_no_history_of_a_small_table_breaks_the_rule(scene: str) -> None:
    """Every history, or the 3,000 states that are reached first."""
    found = Model(SCENES[scene]).explore(3_000)
    assert not found.history, found.history


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_no_long_history_of_a_small_table_breaks_the_rule(scene: str) -> None:
    """Every history, or the 300,000 states that are reached first."""
    found = Model(SCENES[scene]).explore(300_000)
    assert not found.history, found.history


@pytest.mark.parametrize("guards", GUARDS)
def test_without_a_guard_a_short_history_breaks_the_rule(guards: str) -> None:
    """The revert tests: the same model without the guard finds what the table says."""
    scene, expected = GUARDS[guards]
    found = Model(SCENES[scene], guards.split(" + ")).explore(30_000)
    assert found.violation.startswith(f"=> {expected}"), found.history


def walk(times: int) -> Counter[str]:
    """So many walks through random tables; returns how many steps of each kind were taken."""
    taken: Counter[str] = Counter()
    for seed in range(times):
        chance = random.Random(seed)
        found = Model(some_table(chance)).walk(chance, chance.randint(20, 80), taken)
        assert not found.history, (seed, found.history)
    return taken


def test_random_walks_keep_the_rule_and_leave_nothing_behind() -> None:
    """Four to eleven pushes a table; then everything dies, and clean-up runs to its end."""
    assert walk(300).keys() >= KINDS


@pytest.mark.slow
def test_very_many_random_walks_keep_the_rule_and_leave_nothing_behind() -> None:
    """About a million steps."""
    assert sum(walk(22_000).values()) > 800_000
