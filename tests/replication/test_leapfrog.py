"""The comparison of two tables, as pure functions: the proposal's figure, and the scenarios of Venice's own checker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_segments.core.replication.heartbeat import TakenHeartbeat
from airflow_provider_segments.core.replication.leapfrog import (
    Kind,
    LastRow,
    Side,
    expected_winner,
    judge,
    lag_behind,
)
from airflow_provider_segments.core.replication.stream import Digest, VersionStream, differing_digests
from airflow_provider_segments.core.replication.vectors import Vector, covers

A_WIDE_POSITION = st.binary(min_size=20, max_size=20)


def vector(*positions: int | None) -> dict[str, int]:
    """A vector over regions 0, 1, ...; ``None``: absent."""
    return {f"{region}/0": at for region, at in enumerate(positions) if at is not None}


def row(value: str, made_from: Vector, time: int = 1, *, is_delete: bool = False) -> LastRow:
    return LastRow(value.encode(), (time, 0, 0, 0), is_delete, made_from)


def side(*positions: int | None, cutoff: int = 0) -> Side:
    return Side(vector(*positions), cutoff)


@pytest.mark.parametrize(
    ("a", "b", "is_comparable"),
    [
        (vector(3, 200, 4500), vector(4, 200, 4900), True),
        (vector(3, 201, 4500), vector(4, 200, 4950), True),
        (vector(5, 201, 4500), vector(4, 300, 4950), False),
        (vector(5, 201, 5001), vector(20, 300, 4950), False),
    ],
)
def test_the_proposals_figure(a: Vector, b: Vector, is_comparable: bool) -> None:
    """Records 1 and 2 can be compared (they differ: divergent; they are equal: nothing), 3 and 4 cannot."""
    sides = side(5, 201, 5001), side(20, 300, 4950)
    assert judge(row("x", a), row("y", b), *sides) is (Kind.MISMATCH if is_comparable else Kind.UNDECIDED)
    assert judge(row("x", a), row("x", b), *sides) is None


def test_a_mismatch_is_found_once_each_has_read_what_the_other_is_made_from() -> None:
    a, b = row("100", vector(5, 10), 1), row("200", vector(10, 15), 2)
    assert judge(a, b, side(50, 60), side(20, 30)) is Kind.MISMATCH
    assert expected_winner(a, b) == "b"
    assert judge(row("h", vector(5, 10)), row("h", vector(9, 9)), side(50, 60), side(20, 30)) is None


def test_what_one_has_not_read_yet_is_lag() -> None:
    assert judge(row("x", vector(5, 10)), row("y", vector(5, 3)), side(9, 12), side(20, 8)) is Kind.UNDECIDED


def test_a_key_that_one_lacks_is_missing_if_it_has_read_past_it() -> None:
    a = row("x", vector(5, 10))
    assert judge(a, None, side(9, 12), side(100, 100)) is Kind.MISSING_IN_B
    assert judge(None, a, side(100, 100), side(9, 12)) is Kind.MISSING_IN_A
    assert judge(a, None, side(9, 12), side(100, 9)) is Kind.UNDECIDED
    assert (expected_winner(a, None), expected_winner(None, a)) == ("a", "b")


def test_of_an_idle_region_a_missing_key_cannot_be_decided_without_its_heartbeats() -> None:
    merged = row("x", vector(5, 0))
    assert judge(merged, None, side(9, 1), side(9, None)) is Kind.UNDECIDED
    assert judge(merged, None, side(9, 1), side(9, 1)) is Kind.MISSING_IN_B


def test_a_lost_update_is_found() -> None:
    assert judge(row("new", vector(20)), row("old", vector(10)), side(30), side(40)) is Kind.MISMATCH


def test_a_delete_record_that_the_other_has_dropped_is_nothing() -> None:
    gone = row("", vector(5), is_delete=True)
    assert judge(gone, None, side(9), side(9)) is None
    assert judge(gone, row("", vector(6), 2, is_delete=True), side(9), side(9)) is None
    assert judge(gone, row("x", vector(6)), side(9), side(9)) is Kind.MISMATCH


def test_rows_below_the_greater_cutoff_are_not_judged() -> None:
    old = row("x", vector(5), time=3)
    assert judge(old, None, side(9), side(9, cutoff=4)) is None
    assert judge(old, None, side(9), side(9, cutoff=3)) is Kind.MISSING_IN_B


def test_lag_names_the_source_partition_and_by_how_much() -> None:
    assert lag_behind(vector(5, 7), vector(9, 7, 3)) == {"0/0": 4, "2/0": 3}


def test_digests_are_compared_at_the_newest_heartbeat_that_both_have_taken() -> None:
    def stream(*counts: int, first: int = 0) -> VersionStream:
        found = VersionStream()
        for at, count in enumerate(counts):
            beat = TakenHeartbeat("eu", 1, 10 * (at + 1), 10 * at)
            found = found.published(
                at + 1, {"eu/0": Digest.of(first, count, count), "us/0": Digest.of(0, 9, 9)}, [beat]
            )
        return found

    assert differing_digests(stream(3, 4), stream(3, 4)) == {}
    assert differing_digests(stream(3, 4, 1), stream(3, 4)) == {}, "what one has not taken yet is not compared"
    lost = differing_digests(stream(3, 4), stream(3, 3))
    assert {source: one.heartbeat.time_ms for source, one in lost.items()} == {"eu/0": 20}
    again = differing_digests(stream(3, 4, 5), stream(3, 3, 5))
    assert again["eu/0"].difference == lost["eu/0"].difference == f"+1 {1:032x}", "nothing new was lost"
    assert differing_digests(stream(3, 5), stream(3, 4, first=7)) == {}, "digests of another beginning say nothing"


def test_absent_is_not_zero() -> None:
    assert covers({"eu": 0}, {"eu": 0})
    assert covers({"eu": 7}, {}), "what nothing was made from is covered"
    assert not covers({}, {"eu": 0}), "nothing is known of a source partition that is absent"
    assert not covers({"us": 9}, {"eu": 0, "us": 1}), "a vector longer than the watermark is not covered"


@given(st.lists(A_WIDE_POSITION, min_size=2, max_size=2))
def test_wide_positions_have_the_order_of_their_bytes(positions: list[bytes]) -> None:
    low, high = sorted(positions)
    assert covers({"eu": high}, {"eu": low})
    assert covers({"eu": low}, {"eu": high}) == (low == high)


def test_positions_of_different_kinds_are_not_compared() -> None:
    with pytest.raises(TypeError):
        covers({"eu": 5}, {"eu": b"5"})
    with pytest.raises(ValueError, match="bytes"):
        covers({"eu": b"55"}, {"eu": b"5"})
