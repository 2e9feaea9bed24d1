"""Every timeline scenario that was measured on Druid itself, here under the strict rule and under Druid's preference.

The table below says of each scenario whether the strict rule agrees; where it does not, why. Nothing is skipped.
"""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.timeline import SegmentState, Timeline, TimelineRefusedError, VersionedSegment
from tests.timeline.druid import DAY, SCENARIOS, Json, ManagerRun, TimelineRun, interval_of, named, named_texts, plain

HALF = "an incomplete group is shown on the way"
LOST = "after a loss an incomplete group is shown although complete ones beneath hold a part"

# Scenario -> (the strict rule's visible ids at the end, why they differ from Druid's or only the way there does)
BY_POLICY = {
    "M03": ([32768, 32769, 32770], HALF),
    "M05": ([32768, 32769], HALF),
    "M11": ([1], LOST),
    "M13": ([32768, 32769], HALF),
    "M15": ([1], HALF),
    "M17": ([32772, 32773, 32774, 32775, 32776, 32777, 32783, 32784, 32785], HALF),
    "M19": ([], LOST),
    "M21": ([0, 2, 3, 4], LOST),
    "M23": ([], LOST),
    "M25": ([32769, 32771], HALF),
    "M33": ([], HALF),
}
BY_DESIGN = {
    "M37": "Druid has two id spaces of 32,768; here an id may be any number, so root id 40000 is an ordinary one",
    "T37": "Druid forgets to name 0, 1 and 2, which the group had overshadowed: its copy of a chunk has only what was "
    "visible in it. All five are overshadowed",
}
T_BY_POLICY = {
    "T29": "version 2 waits for its second piece and would then be visible, as version 3 has none either: it is "
    "standby, and calling it overshadowed would let clean-up take a push in progress",
}
MORE_WITH_INCOMPLETE = {
    ("T47", at): {"interval": interval_of("2011-10-06/2011-10-07"), "version": "6", "parts": parts}
    for at, parts in ((2, [0]), (9, [1, 2]))
}
"""(scenario, step): Druid's ``lookup`` asks for complete versions only; the option fills what they leave empty."""
MANAGER = sorted(id_ for id_ in SCENARIOS if id_.startswith("M"))
TIMELINE = sorted(id_ for id_ in SCENARIOS if id_.startswith("T"))
VARIANTS = list(itertools.product([False, True], [False, True]))
STATES = ("visible", "standby", "overshadowed")


def test_the_table_names_every_scenario_once() -> None:
    """43 scenarios; each that is named as different exists, and none is named twice."""
    assert len(MANAGER) == 19
    assert len(TIMELINE) == 24
    different = [*BY_POLICY, *BY_DESIGN, *T_BY_POLICY]
    assert len(different) == len(set(different))
    assert set(different) <= set(SCENARIOS)


@pytest.mark.parametrize(("one_hop", "forget"), VARIANTS)
@pytest.mark.parametrize("id_", [id_ for id_ in MANAGER if id_ not in BY_DESIGN])
def test_with_the_option_every_manager_scenario_is_druids_after_every_step(
    id_: str, one_hop: bool, forget: bool
) -> None:
    """Whether edges are one hop or all, and whether a removed segment stays known or is forgotten."""
    run = ManagerRun(SCENARIOS[id_], strict=False, one_hop=one_hop, forget=forget)
    for op, expected in zip(SCENARIOS[id_]["ops"], SCENARIOS[id_]["expected"], strict=True):
        if "error" in expected:
            with pytest.raises(TimelineRefusedError):
                run.step(op)
        else:
            assert run.step(op) == {name: expected[name] for name in ("returned", *STATES)}, op


@pytest.mark.parametrize(("one_hop", "forget"), VARIANTS)
@pytest.mark.parametrize("id_", [id_ for id_ in MANAGER if id_ not in BY_DESIGN and id_ not in BY_POLICY])
def test_the_strict_rule_is_druids_after_every_step_where_no_group_is_half_there(
    id_: str, one_hop: bool, forget: bool
) -> None:
    """The same visible, standby and overshadowed ids as Druid without its preference for something over nothing."""
    run = ManagerRun(SCENARIOS[id_], strict=True, one_hop=one_hop, forget=forget)
    for op, expected in zip(SCENARIOS[id_]["ops"], SCENARIOS[id_]["expected"], strict=True):
        assert run.step(op) == {name: expected[name] for name in ("returned", *STATES)}, op


@pytest.mark.parametrize(("one_hop", "forget"), VARIANTS)
@pytest.mark.parametrize("id_", sorted(BY_POLICY))
def test_the_strict_rule_never_shows_half_a_group(id_: str, one_hop: bool, forget: bool) -> None:
    """Where the policies differ: whole groups at every step, and the end that the table gives."""
    scenario = SCENARIOS[id_]
    run = ManagerRun(scenario, strict=True, one_hop=one_hop, forget=forget)
    found: Json = {}
    for op, expected in zip(scenario["ops"], scenario["expected"], strict=True):
        if "error" in expected:
            with pytest.raises(TimelineRefusedError):
                run.step(op)
            continue
        found = run.step(op)
        assert found["returned"] == expected["returned"]
        for one in found["visible"]:
            assert set(run.segments[one].group) <= set(found["visible"])
    assert found["visible"] == BY_POLICY[id_][0], BY_POLICY[id_][1]


@pytest.mark.parametrize("id_", ["M05", "M13", "M15", "M17", "M25"])
def test_the_strict_rule_ends_where_druid_ends_once_all_groups_are_whole(id_: str) -> None:
    """Only the way there differs."""
    assert BY_POLICY[id_][0] == SCENARIOS[id_]["expected"][-1]["visible"]


def test_m37_an_id_may_be_any_number() -> None:
    """By design: what Druid refuses is an ordinary segment here."""
    run = ManagerRun(SCENARIOS["M37"], strict=True, one_hop=False, forget=False)
    assert run.step(SCENARIOS["M37"]["ops"][0])["visible"] == [40000]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("id_", [id_ for id_ in TIMELINE if id_ not in BY_DESIGN])
def test_every_timeline_scenario_is_druids_after_every_step(id_: str, strict: bool) -> None:
    """Lookups, removals, coverage and refusals; T29 says of version 2 what its policy says."""
    run = TimelineRun(SCENARIOS[id_], strict=strict)
    steps = zip(SCENARIOS[id_]["ops"], SCENARIOS[id_]["expected"], strict=True)
    for at, (op, expected) in enumerate(steps):
        if "error" in expected:
            with pytest.raises(TimelineRefusedError) as refused:
                run.step(op)
            assert refused.value.rule == "same-version-overlaps"
        elif op["op"] == "fully_overshadowed":
            differs = id_ in T_BY_POLICY and strict
            assert named(run.step(op)["result"]) == (set() if differs else named_texts(expected["result"])), op
        elif not strict and (id_, at) in MORE_WITH_INCOMPLETE:
            assert run.step(op)["result"] == [*plain(expected)["result"], MORE_WITH_INCOMPLETE[id_, at]], op
        else:
            assert run.step(op) == plain(expected), op


def test_t37_all_that_a_higher_version_covers_is_overshadowed() -> None:
    """By design: the five segments of version 0, of which Druid names two."""
    run = TimelineRun(SCENARIOS["T37"], strict=True)
    *steps, last = zip(SCENARIOS["T37"]["ops"], SCENARIOS["T37"]["expected"], strict=True)
    for op, expected in steps:
        assert run.step(op) == plain(expected)
    found = named(run.step(last[0])["result"])
    assert found > named_texts(last[1]["result"])
    assert {part for _, version, part in found if version == "0"} == {0, 1, 2, 32768, 32769}
    assert {version for _, version, _ in found} == {"0"}


def ours(partition: int, over: tuple[int, ...] = (), group: tuple[int, ...] = ()) -> VersionedSegment[str]:
    return VersionedSegment(DAY, "v", partition, str(partition), over, group)


def visible(timeline: Timeline[str]) -> list[int]:
    return [one.partition for piece in timeline.pieces() for one in piece.segments]


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_m32_losing_the_newest_generation_brings_back_the_newest_complete_cover(strict: bool, forget: bool) -> None:
    """Druid at 39.0.0 shows nothing here: its search for a tiling gives up on nested ranges."""
    timeline: Timeline[str] = Timeline(strict=strict)
    old, last = ours(10, (0, 1)), ours(11, (10, 2))
    timeline.add_all([ours(0), ours(1), old, ours(2), last])
    assert visible(timeline) == [11]
    timeline.remove(last, forget=forget)
    assert visible(timeline) == [2, 10]
    assert timeline.state_of(ours(0)) is SegmentState.OVERSHADOWED


@pytest.mark.parametrize("strict", [False, True])
def test_the_arrival_order_that_makes_druid_throw_is_an_ordinary_one(strict: bool) -> None:
    """Two of three members of the second generation, one of two of the first, the root, the second of the first."""
    first, second = (10, 11), (20, 21, 22)
    one = [ours(id_, (1,), first) for id_ in first]
    two = [ours(id_, first, second) for id_ in second]
    for order in itertools.permutations([two[0], two[1], one[0], ours(1), one[1]]):
        timeline: Timeline[str] = Timeline(strict=strict)
        for segment in order:
            assert timeline.add(segment)
        assert visible(timeline) == [10, 11]
        assert timeline.add(two[2])
        assert visible(timeline) == [20, 21, 22]


def test_versions_are_compared_as_text() -> None:
    """As in Druid: "9" comes after "10"."""
    timeline: Timeline[str] = Timeline()
    for version in ("9", "10", "1"):
        timeline.add(VersionedSegment(Interval(0, 10), version, 0, version))
    assert [piece.version for piece in timeline.pieces()] == ["9"]
