"""No part of the one rule is superfluous: without it, a history is found in which readers see what the rule forbids.

Each guard is switched off in the real code, and random histories of the same laboratory (:mod:`tests.histories.lab`)
are played until one fails. The table says with which seed to begin, so that the first one does; a change of the
laboratory moves the seeds, and then a few more are played.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_segments.core import snapshot
from airflow_provider_segments.core.lineage.entries import Lineage
from airflow_provider_segments.core.lineage.guard import Guard
from airflow_provider_segments.core.locking import LockBox
from airflow_provider_segments.core.replacement import end, revert, rules, start
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.retention import beneath, cleanup
from airflow_provider_segments.core.retention import rules as retention_rules
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.versions.overwrites import TimeFilter
from airflow_provider_segments.core.zookeeper import Check
from tests.histories.lab import play

MOST_HISTORIES = 600

Switch = tuple[Any, str, Callable[..., Any]]
"""Where a guard is, its name there, and what stands in its place."""


def nothing(*_: Any, **__: Any) -> None:
    """In place of a check that raises."""


def oldest_version(_: Lineage, segments: Any) -> int:
    """In place of the newest version among the inputs of a rewrite."""
    return min(segment.version for segment in segments)


def unchecked(context: TableContext, *_: Any) -> Any:
    """In place of a look at the registry: the operation that every caller wants."""
    return Check(context.registry.path, context.registry.root().version)


def lock_version(box: LockBox) -> int:
    """In place of a version of its own: the newest lock's, which all pushes of one group share."""
    return box.read().version_ms


def without_cuts(look: Any, guard: Guard, lineage: Lineage, names: Any) -> Any:
    """In place of the parts of a rewrite's inputs that are visible: all of them."""
    return REWRITING(look, guard, lineage, names)[0], {}


REWRITING = start._Look.rewriting

# Guard -> what stands in its place, and the first seed that fails then
GUARDS: dict[str, tuple[list[Switch], int]] = {
    "readers: names that the lineage hides": ([(snapshot, "hidden_names", lambda *_: set())], 0),
    "readers: time that overwrites hold": ([(snapshot, "TimeFilter", lambda _: TimeFilter(()))], 0),
    "readers: falling back": ([(snapshot, "fallen_back", lambda *_: frozenset())], 0),
    "readers: only settled pushes": ([(snapshot, "is_settled", lambda *_: True)], 0),
    "readers: partial pushes": ([(Lineage, "with_partial", lambda lineage, *_: lineage)], 0),
    "end: not beneath an overwrite": ([(end, "find_overtaken", nothing)], 0),
    "end: nothing newer in an overwrite's time": ([(end, "find_newer", nothing)], 0),
    "end: overwrites as they were read": ([(end, "overwrites_above", lambda *_: frozenset())], 0),
    "end: inputs are there": (
        [(end, "_check_from", lambda context, *_: [unchecked(context)]), (rules, "_check_entry", nothing)],
        0,
    ),
    "end: inputs are seen": ([(end, "_check_seen", nothing)], 0),
    "end and stage: the locks are held": ([(TableContext, "fence", lambda *_: [])], 0),
    "start: inputs are visible": ([(rules, "_check_visible", nothing)], 0),
    "start: replaced by one entry": ([(rules, "_check_entry", nothing)], 0),
    "start: a version for each overwrite": ([(LockBox, "draw_version", lock_version)], 0),
    "start: staged under other locks": ([(Guard, "restarted", lambda _, other: other)], 0),
    "rewrite: waits for unsettled overwrites": ([(start, "find_unsettled", nothing)], 0),
    "rewrite: newest version": ([(start, "rewritten_version", oldest_version)], 0),
    "rewrite: only what is seen": ([(start._Look, "rewriting", without_cuts)], 0),
    "revert: not built upon": ([(rules, "_check_not_built_upon", nothing)], 0),
    "revert: not marked": ([(Lineage, "is_cleaning", lambda *_: False)], 0),
    "revert: from and to are registered": ([(revert, "_check_registered", unchecked)], 0),
    "clean-up: what something lies beneath stays": ([(cleanup, "lies_beneath", lambda *_: False)], 0),
    "clean-up: hidden for good only by marked overwrites": (
        [(cleanup, "settled_overwrites", lambda lineage: lineage.overwrites_in_force),
         (beneath, "settled_overwrites", lambda lineage: lineage.overwrites_in_force)],
        0,
    ),
    "clean-up: hidden for good only of final entries": ([(beneath, "_is_final", lambda *_: True)], 0),
    "clean-up: what readers fell back to": ([(cleanup, "_fallen_back_to", lambda *_: [])], 0),
    "clean-up: rewrites of what goes are marked first": ([(retention_rules, "_rewriter_of", nothing)], 0),
}  # fmt: skip


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_guard_a_history_breaks_the_rule(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    """The revert tests of the rule, in the code that runs."""
    switches, seed = GUARDS[guard]
    for where, name, instead in switches:
        monkeypatch.setattr(where, name, instead)
    with pytest.raises(AssertionError, match=r"seen twice|never comes to its end") as broken:
        for number in range(seed, seed + MOST_HISTORIES):
            play(store, number)
    print(str(broken.value)[-2000:])
