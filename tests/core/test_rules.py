"""Routing and the rules of start and revert, as pure functions. Numbers are those of Pinot's scenarios."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.hiding import hidden_names
from airflow_provider_segments.core.replacement.rules import (
    Force,
    StartDecision,
    StartRequest,
    check_revert,
    check_to_names,
    decide_start,
)
from airflow_provider_segments.exceptions import EntryNotFoundError, RevertRefusedError, StartRefusedError

COMPLETED, IN_PROGRESS, REVERTED = EntryState.COMPLETED, EntryState.IN_PROGRESS, EntryState.REVERTED


def lineage(*entries: tuple[str, str, str, EntryState]) -> Lineage:
    """A lineage of (id, from, to, state), names separated by spaces."""
    made = Lineage("t")
    for entry_id, segments_from, segments_to, state in entries:
        made = made.put(LineageEntry.of(entry_id, segments_from.split(), segments_to.split(), state, 1))
    return made


def route(stored: Lineage, names: Iterable[str]) -> set[str]:
    """Of ``names``, those that the lineage leaves visible."""
    return set(names) - hidden_names(stored)


def start(
    stored: Lineage,
    segments_from: str = "",
    segments_to: str = "",
    *,
    registered: Iterable[str] = (),
    refresh: bool = False,
    force: bool = False,
) -> StartDecision:
    request = StartRequest(
        "t",
        "new",
        tuple(segments_from.split()),
        tuple(segments_to.split()),
        route(stored, registered),
        refresh,
        force,
        9,
    )
    return decide_start(stored, request)


def refused(rule: str, stored: Lineage, *names: str, **how: object) -> StartRefusedError:
    with pytest.raises(StartRefusedError) as caught:
        start(stored, *names, **how)  # type: ignore[arg-type]
    assert caught.value.rule == rule
    assert "table 't'" in str(caught.value) and f"[{rule}]" in str(caught.value)
    return caught.value


ONLINE = {f"segment_{number}" for number in range(5)}
FROM = "segment_0 segment_1 segment_2"
MERGED = {"merged_0", "merged_1"}


def test_8_without_a_lineage_everything_is_visible() -> None:
    assert route(Lineage("t"), ONLINE) == ONLINE


@pytest.mark.parametrize("online", [ONLINE, ONLINE | {"merged_0"}, ONLINE | MERGED])
def test_9_to_11_what_an_entry_in_progress_brings_is_hidden(online: set[str]) -> None:
    assert route(lineage(("e", FROM, "merged_0 merged_1", IN_PROGRESS)), online) == ONLINE


def test_12_a_completed_entry_hides_what_it_replaced() -> None:
    assert route(lineage(("e", FROM, "merged_0 merged_1", COMPLETED)), ONLINE | MERGED) == {
        "segment_3",
        "segment_4",
        *MERGED,
    }


def test_13_only_the_middle_of_a_chain_is_visible_while_its_end_is_in_progress() -> None:
    assert route(lineage(("a", "1", "3", COMPLETED), ("b", "3", "4", IN_PROGRESS)), "134") == {"3"}


@pytest.mark.parametrize(("state", "seen"), [(IN_PROGRESS, "B"), (COMPLETED, "C"), (REVERTED, "B")])
def test_chains_route_to_the_newest_that_stands(state: EntryState, seen: str) -> None:
    assert route(lineage(("1", "A", "B", COMPLETED), ("2", "B", "C", state)), "ABC") == {seen}


def test_names_that_are_not_there_are_ignored_and_nothing_is_ever_added() -> None:
    assert route(lineage(("e", "gone", "never", COMPLETED)), {"x"}) == {"x"}


ENTRIES = st.lists(
    st.tuples(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")), st.sampled_from(EntryState)),
    max_size=5,
)


@given(ENTRIES, st.sets(st.sampled_from("abcdef")), st.randoms())
def test_the_order_of_entries_never_matters(
    entries: list[tuple[set[str], set[str], EntryState]], names: set[str], chance
) -> None:  # type: ignore[no-untyped-def]
    made = [(str(number), " ".join(a), " ".join(b), state) for number, (a, b, state) in enumerate(entries)]
    shuffled = list(made)
    chance.shuffle(shuffled)
    assert route(lineage(*made), names) == route(lineage(*shuffled), names) <= names


E2 = ("e2", "s1 s2", "m_0 m_1", IN_PROGRESS)
REGISTERED = ["s0", "s1", "s2", "s3", "s4"]


def test_15_to_that_is_visible_is_refused() -> None:
    error = refused("to-visible", Lineage("t"), "s1 s2", "s3 s4", registered=REGISTERED)
    assert "'s3', 's4' of 'to' is already visible" in str(error)


def test_16_a_name_in_from_and_to_is_refused() -> None:
    refused("from-and-to-overlap", Lineage("t"), "s1 s2", "s2", registered=REGISTERED)


def test_17_from_that_is_not_there_is_refused() -> None:
    error = refused("from-not-visible", Lineage("t"), "s1 s6", "s7", registered=REGISTERED)
    assert "'s6' of 'from' is not visible" in str(error)


def test_from_that_is_hidden_is_not_visible_although_it_is_registered() -> None:
    stored = lineage(("e", "s1", "m", COMPLETED))
    refused("from-not-visible", stored, "s1", "x", registered=[*REGISTERED, "m"])


@pytest.mark.parametrize("state", [IN_PROGRESS, COMPLETED])
def test_replacing_what_a_live_entry_replaces_is_refused(state: EntryState) -> None:
    """Pinot S5. A completed entry hides its ``from``, so there the first check speaks already."""
    rule = "from-replaced" if state is IN_PROGRESS else "from-not-visible"
    refused(rule, lineage(("e", "s1 s2", "m", state)), "s2 s3", "n", registered=[*REGISTERED, "m"])


@pytest.mark.parametrize("state", [IN_PROGRESS, COMPLETED])
def test_bringing_what_a_live_entry_brings_is_refused(state: EntryState) -> None:
    """Pinot S6: also when nothing of that name is registered."""
    error = refused("to-conflict", lineage(("e", "", "m n", state)), "", "n", registered=REGISTERED)
    assert f"'n' is already in 'to' of the {state.value} entry e" in str(error)


@pytest.mark.parametrize("force", [False, True])
def test_a_name_that_was_replaced_must_not_come_back(force: bool) -> None:
    """Ping-pong: after A to B and B to A, Pinot hides both, and its retention deletes the live one."""
    stored = lineage(("e", "A", "B", COMPLETED))
    refused("to-was-replaced", stored, "B", "A", registered="AB", force=force)


def test_a_name_of_a_reverted_entry_is_refused_unless_forced() -> None:
    """Stricter than Pinot, where the segment would stay invisible and be deleted. Forced, the
    name moves over."""
    stored = lineage(("e", "s1", "m n", REVERTED))
    refused("to-reverted", stored, "s1", "m", registered=REGISTERED)
    entry = start(stored, "s1", "m", registered=REGISTERED, force=True).lineage.entries["e"]
    assert (entry.segments_to, entry.state, entry.timestamp_ms) == (("n",), REVERTED, 1)


def test_21_a_reverted_entry_does_not_keep_its_from() -> None:
    stored = lineage(("e1", "s3", "s5", COMPLETED), ("e2", "s1 s2", "m1", REVERTED))
    decision = start(stored, "s1 s2", "m2_0 m2_1", registered=[*REGISTERED, "s5"])
    assert sorted(decision.lineage.entries) == ["e1", "e2", "new"]
    assert decision.lineage.entries["new"] == LineageEntry.of("new", ["s1", "s2"], ["m2_0", "m2_1"], IN_PROGRESS, 9)


def test_a_forced_start_reverts_what_overlaps_and_leaves_the_rest_alone() -> None:
    """Pinot S7 and scenario 39: names taken over leave the old entry, so that its clean-up never touches them."""
    stored = lineage(E2, ("e3", "s3", "k", IN_PROGRESS))
    decision = start(stored, "s2", "m_1 x", registered=REGISTERED, force=True)
    assert [entry.entry_id for entry in decision.reverted] == ["e2"]
    assert decision.lineage.entries["e2"] == LineageEntry.of("e2", ["s1", "s2"], ["m_0"], REVERTED, 9)
    assert decision.lineage.entries["e3"].state is IN_PROGRESS


def test_a_forced_start_does_not_override_a_completed_entry() -> None:
    """Stricter than Pinot, whose forced start skips the name checks altogether."""
    stored = lineage(("e", "s1", "m", COMPLETED))
    refused("to-visible", stored, "s2", "m", registered=[*REGISTERED, "m"], force=True)
    refused("to-conflict", stored, "s2", "m", registered=REGISTERED, force=True)


def test_33_a_forced_third_snapshot_of_a_refresh_table_lets_the_first_go() -> None:
    """Pinot S8, on the same names in any order. The mark that forbids a revert is part of the same write."""
    stored = lineage(("e1", "s0 s1", "s3 s4", COMPLETED))
    decision = start(stored, "s4 s3", "s9", registered=REGISTERED, refresh=True, force=True)
    assert [entry.entry_id for entry in decision.cleaning] == ["e1"]
    assert decision.lineage.is_cleaning("e1")
    assert decision.lineage.entries["e1"].state is COMPLETED


@pytest.mark.parametrize(
    ("names", "refresh", "force"), [("s3 s4", False, True), ("s3 s4", True, False), ("s3", True, True)]
)
def test_nothing_is_let_go_on_an_append_table_unforced_or_on_a_part(names: str, refresh: bool, force: bool) -> None:
    stored = lineage(("e1", "s0 s1", "s3 s4", COMPLETED))
    decision = start(stored, names, "s9", registered=REGISTERED, refresh=refresh, force=force)
    assert not decision.cleaning and not decision.lineage.is_cleaning("e1")


def test_two_first_pushes_of_a_refresh_table_conflict() -> None:
    """Stricter than Pinot, which lets both complete and then shows two snapshots at once."""
    stored = lineage(("e", "", "", IN_PROGRESS))
    refused("initial-conflict", stored, refresh=True)
    assert [entry.entry_id for entry in start(stored, refresh=True, force=True).reverted] == ["e"]
    assert not start(stored, refresh=False).reverted


def test_a_push_to_a_refresh_table_must_replace_what_is_visible() -> None:
    refused("refresh-must-replace", Lineage("t"), registered=REGISTERED, refresh=True)


def test_revert_of_an_entry_that_is_not_there_says_so() -> None:
    with pytest.raises(
        EntryNotFoundError, match="no lineage entry e9: it was never made, or was cleaned up; the lineage has 1"
    ):
        check_revert(lineage(E2), "e9", force=Force.ALSO)


def revert_refused(rule: str, stored: Lineage, entry_id: str = "e", *, force: Force = Force.NEVER) -> None:
    with pytest.raises(RevertRefusedError) as caught:
        check_revert(stored, entry_id, force=force)
    assert caught.value.rule == rule and caught.value.entry_id == entry_id


def test_revert_is_refused_twice() -> None:
    revert_refused("already-reverted", lineage(("e", "", "m", REVERTED)), force=Force.ALSO)


def test_revert_of_a_push_in_progress_takes_force() -> None:
    stored = lineage(("e", "", "m", IN_PROGRESS))
    revert_refused("in-progress", stored)
    assert check_revert(stored, "e", force=Force.ALSO).entry_id == "e"


@pytest.mark.parametrize("state", [IN_PROGRESS, COMPLETED])
@pytest.mark.parametrize("force", [False, True])
def test_revert_under_a_live_later_entry_is_refused(state: EntryState, force: bool) -> None:
    """Pinot V4: the newest goes first."""
    revert_refused("built-upon", lineage(("e", "s", "m n", COMPLETED), ("f", "n", "k", state)), force=force)


def test_revert_under_a_reverted_later_entry_is_allowed() -> None:
    assert check_revert(lineage(("e", "s", "m", COMPLETED), ("f", "m", "k", REVERTED)), "e", force=False)


def test_revert_is_refused_once_what_was_replaced_is_being_deleted() -> None:
    revert_refused("replaced-are-deleted", lineage(("e", "s", "m", COMPLETED)).with_cleaning("e", 5))


def test_the_rules_for_new_names_are_the_same_for_start_stage_and_end() -> None:
    stored = lineage(("e", "a", "b", COMPLETED), ("f", "", "c", REVERTED), ("g", "r", "", REVERTED))
    assert check_to_names(stored, "e", ["a", "b"]) is None
    assert [found and found[0] for found in (check_to_names(stored, "x", [name]) for name in "abcrz")] == [
        "to-was-replaced",
        "to-conflict",
        "to-reverted",
        None,
        None,
    ]


@given(ENTRIES, st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")), st.booleans(), st.booleans())
def test_start_never_changes_what_is_visible(
    entries: list[tuple[set[str], set[str], EntryState]],
    segments_from: set[str],
    segments_to: set[str],
    refresh: bool,
    force: bool,
) -> None:
    """Whatever the lineage: accepted, it hides nothing that was visible and shows nothing that was hidden."""
    stored = lineage(*((str(n), " ".join(a), " ".join(b), state) for n, (a, b, state) in enumerate(entries)))
    try:
        decision = start(
            stored, " ".join(segments_from), " ".join(segments_to), registered="abcdef", refresh=refresh, force=force
        )
    except StartRefusedError:
        return
    before, after = route(stored, "abcdef"), route(decision.lineage, "abcdef")
    assert before == after
    assert segments_from <= after
    assert not segments_to & after
