"""Every timeline scenario that was measured on Druid itself, through the code that every reader runs.

Druid shows something rather than nothing: with nothing complete beneath, the newest incomplete group is visible. Here
a push is seen whole or not at all. The tables below name each scenario in which that, or the design, makes another
answer, and say why. Nothing is skipped.
"""

from __future__ import annotations

import pytest

from tests.versions.druid import SCENARIOS, Json, ManagerRun, RefusedError, TimelineRun, plain

HALF = "an incomplete group is shown on the way"
LOST = "after a loss an incomplete group is shown although nothing complete is beneath it"

# Scenario -> (the visible ids at the end, why they differ from Druid's, or only the way there does)
BY_POLICY = {
    "M03": ([32768, 32769, 32770], HALF),
    "M05": ([32768, 32769], HALF),
    "M11": ([1], LOST),
    "M13": ([32768, 32769], HALF),
    "M15": ([1], HALF),
    "M17": ([32772, 32773, 32774, 32775, 32776, 32777, 32783, 32784, 32785], HALF),
    "M19": ([], LOST),
    "M23": ([], LOST),
    "M25": ([32769, 32771], HALF),
    "M33": ([], HALF),
}
BY_DESIGN = {
    "M37": "Druid has two id spaces of 32,768; here an id may be any number, so root id 40000 is an ordinary one",
    "T01": "a version belongs to one lock, so two pushes never share one; what one push brings hides nothing of it",
    "T29": "version 2 is a push in progress: it is standby, and calling it overshadowed would let clean-up take it",
    "T37": "Druid forgets to name 0, 1 and 2, which the group had overshadowed; all five are",
    "T43": "a segment is asked for by its name: no reader looks for one by its place",
}
MANAGER = sorted(id_ for id_ in SCENARIOS if id_.startswith("M"))
TIMELINE = sorted(id_ for id_ in SCENARIOS if id_.startswith("T"))
STATES = ("visible", "standby", "overshadowed")


def test_the_tables_name_each_difference_once() -> None:
    assert (len(MANAGER), len(TIMELINE)) == (19, 24)
    assert not BY_POLICY.keys() & BY_DESIGN.keys()
    assert BY_POLICY.keys() | BY_DESIGN.keys() <= SCENARIOS.keys()


@pytest.mark.parametrize("id_", [id_ for id_ in MANAGER if id_ not in BY_DESIGN and id_ not in BY_POLICY])
def test_readers_and_pictures_show_what_druid_shows_after_every_step(id_: str) -> None:
    run = ManagerRun(SCENARIOS[id_])
    for op, expected in zip(SCENARIOS[id_]["ops"], SCENARIOS[id_]["expected"], strict=True):
        assert run.step(op) == {name: expected[name] for name in ("returned", *STATES)}, op


@pytest.mark.parametrize("id_", sorted(BY_POLICY))
def test_half_a_group_is_never_shown(id_: str) -> None:
    """Where the policies differ: whole groups at every step, and the end that the table gives."""
    run = ManagerRun(SCENARIOS[id_])
    found: Json = {}
    for op, expected in zip(SCENARIOS[id_]["ops"], SCENARIOS[id_]["expected"], strict=True):
        if "error" in expected:
            with pytest.raises(RefusedError, match="completed"):
                run.step(op)
            continue
        found = run.step(op)
        assert found["returned"] == expected["returned"]
        for one in found["visible"]:
            entry = run.table.lineage.entries[run.table.registered[run.chunks[one].name][1]]
            members = {run.table.known[name].id for name in entry.segments_to}
            assert members <= set(found["visible"])
    assert found["visible"] == BY_POLICY[id_][0], BY_POLICY[id_][1]


@pytest.mark.parametrize("id_", ["M03", "M05", "M13", "M17", "M25"])
def test_the_end_is_druids_once_all_groups_are_whole(id_: str) -> None:
    """Only the way there differs."""
    assert BY_POLICY[id_][0] == SCENARIOS[id_]["expected"][-1]["visible"]


@pytest.mark.parametrize("id_", [id_ for id_ in TIMELINE if id_ not in BY_DESIGN])
def test_every_lookup_is_druids_after_every_step(id_: str) -> None:
    """Lookups, roll backs, and what is overshadowed."""
    run = TimelineRun(SCENARIOS[id_])
    for op, expected in zip(SCENARIOS[id_]["ops"], SCENARIOS[id_]["expected"], strict=True):
        assert run.step(op) == plain(expected), op


def test_m37_an_id_may_be_any_number() -> None:
    assert ManagerRun(SCENARIOS["M37"]).step(SCENARIOS["M37"]["ops"][0])["visible"] == [40000]


@pytest.mark.parametrize("id_", ["T29", "T37"])
def test_what_is_overshadowed_by_design(id_: str) -> None:
    """All steps but the last are Druid's."""
    run = TimelineRun(SCENARIOS[id_])
    *steps, (last, druid) = zip(SCENARIOS[id_]["ops"], SCENARIOS[id_]["expected"], strict=True)
    for op, expected in steps:
        assert run.step(op) == plain(expected), op
    found, named = set(run.step(last)["result"]), set(plain(druid)["result"])
    if id_ == "T29":
        assert (found, len(named)) == (set(), 1)
    else:
        assert found > named
        assert {name.rpartition("p")[2] for name in found} == {"0", "1", "2", "32768", "32769"}
