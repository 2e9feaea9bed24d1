"""Up to where a version may take events, and which versions are checkpoints. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_segments.core.replication.barrier import Placed, next_cut
from airflow_provider_segments.core.replication.heartbeat import Heartbeat, TakenHeartbeat, lags
from airflow_provider_segments.core.replication.stream import Digest, VersionStream, checkpoint
from airflow_provider_segments.exceptions import UpsertRefusedError


def beat(offset: int, time_ms: int, *, term: int = 1, previous_ms: int = 0, partitions: int = 2) -> Placed:
    return Placed(offset, Heartbeat(term, time_ms, previous_ms, partitions))


def never(*_: object) -> bool:
    return False


def taken(time_ms: int, version: int, *, previous_ms: int, missing: tuple[int, ...] = ()) -> TakenHeartbeat:
    return TakenHeartbeat("eu", 1, time_ms, previous_ms, version, missing)


def stream_of(*heartbeats: TakenHeartbeat) -> VersionStream:
    stream = VersionStream()
    for one in heartbeats:
        stream = stream.published(one.version, {}, [one])
    return stream


def test_a_source_partition_at_a_heartbeat_waits_for_the_others_of_its_region() -> None:
    cut = next_cut({"eu": {0: [beat(5, 10)], 1: []}, "us": {0: [beat(3, 10, partitions=1)]}}, {}, never)
    assert cut.limits == {("eu", 0): 5, ("us", 0): 4}
    assert [one.region for one in cut.taken] == ["us"], "a region does not wait for another one"


def test_a_heartbeat_in_all_source_partitions_is_taken_with_all_before_it() -> None:
    cut = next_cut({"eu": {0: [beat(5, 10), beat(9, 20)], 1: [beat(2, 10)]}}, {}, never)
    assert cut.limits == {("eu", 0): 6, ("eu", 1): 3}
    assert [(one.time_ms, one.missing) for one in cut.taken] == [(10, ())]


def test_what_a_dead_emitter_left_in_some_source_partitions_is_not_waited_for() -> None:
    queues = {"eu": {0: [beat(5, 10), beat(7, 20, term=2)], 1: [beat(2, 20, term=2)]}}
    cut = next_cut(queues, {}, never)
    assert cut.limits == {("eu", 0): 8, ("eu", 1): 3}
    assert [one.mark for one in cut.taken] == [(2, 20)]


def test_a_late_heartbeat_of_an_earlier_term_is_left_out() -> None:
    last = {"eu": TakenHeartbeat("eu", 2, 20, 0, 1)}
    assert next_cut({"eu": {0: [beat(9, 10)], 1: []}}, last, never).limits == {}


def test_a_silent_source_partition_is_given_up_for_that_heartbeat_only() -> None:
    cut = next_cut({"eu": {0: [beat(5, 10), beat(9, 20)], 1: []}}, {}, lambda *_: True)
    assert cut.limits == {("eu", 0): 6}
    assert [(one.time_ms, one.missing) for one in cut.taken] == [(10, (1,))]


def test_a_checkpoint_is_the_version_of_the_last_heartbeat_before_a_time() -> None:
    stream = stream_of(taken(10, 3, previous_ms=0), taken(20, 7, previous_ms=10))
    assert [checkpoint(stream, "eu", at, floor=0, table="t") for at in (10, 15, 19)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("stream", "time_ms", "rule"),
    [
        (stream_of(taken(10, 3, previous_ms=0)), 15, "checkpoint-too-early"),
        (stream_of(taken(10, 3, previous_ms=0), taken(30, 7, previous_ms=20)), 25, "checkpoint-unaligned"),
        (stream_of(taken(10, 3, previous_ms=0, missing=(1,)), taken(20, 7, previous_ms=10)), 15, "no-checkpoint"),
        (stream_of(taken(10, 3, previous_ms=0), taken(20, 7, previous_ms=10)), 9, "no-checkpoint"),
        (stream_of(taken(10, 3, previous_ms=0), taken(20, 7, previous_ms=10)).raised(5), 15, "below-floor"),
        (VersionStream(), 15, "no-checkpoint"),
    ],
)
def test_a_checkpoint_that_might_not_be_the_same_elsewhere_is_refused(
    stream: VersionStream, time_ms: int, rule: str
) -> None:
    with pytest.raises(UpsertRefusedError) as refused:
        checkpoint(stream, "eu", time_ms, floor=5 if rule == "below-floor" else 0, table="t")
    assert refused.value.rule == rule


def test_a_rollback_takes_heartbeats_and_digests_back() -> None:
    stream = VersionStream().published(1, {"eu/0": Digest.of(0, 2, 5)}, [taken(10, 0, previous_ms=0)])
    later = stream.published(2, {"eu/0": Digest.of(2, 1, 9)}, [taken(20, 0, previous_ms=10)])
    assert later.digests_at(2) == {"eu/0": Digest.of(0, 3, 14)}
    assert later.rolled_back(1) == stream
    raised = later.raised(1)
    assert (raised.last(), raised.digests_at(2)) == (later.last(), later.digests_at(2))
    assert raised.rolled_back(1).last() == stream.last()


@given(st.lists(st.integers(0, 2**128 - 1)), st.integers(0, 20))
def test_a_digest_does_not_depend_on_batches(hashes: list[int], at: int) -> None:
    one = Digest.of(0, len(hashes), sum(hashes))
    first, rest = hashes[:at], hashes[at:]
    assert Digest.of(0, len(first), sum(first)).followed_by(Digest.of(at, len(rest), sum(rest))) == one


def test_a_lag_grows_with_the_clock_and_is_never_negative() -> None:
    last = {"eu": taken(100_000, 1, previous_ms=0)}
    found = [lags(["eu", "us"], last, 60_000, now, {})["eu"] for now in (100_000, 280_000, 280_001, 90_000, 10_000)]
    assert [one.lag_ms for one in found] == [0, 180_000, 180_001, 0, 0]
    assert [one.is_silent for one in found] == [False, False, True, False, False]
    assert [one.is_ahead for one in found] == [False, False, False, False, True]
    never_heard = lags(["eu", "us"], last, 60_000, 100_000, {})["us"]
    assert (never_heard.lag_ms, never_heard.is_silent) == (None, True)


def test_a_region_whose_clock_is_ahead_becomes_silent_like_any_other() -> None:
    """Its heartbeat counts from when its version was published, and not from when our clock is there, too."""
    last = {"eu": taken(700_000, 1, previous_ms=0)}
    found = [lags(["eu"], last, 60_000, now, {1: 100_000})["eu"] for now in (100_000, 280_000, 280_001)]
    assert [one.lag_ms for one in found] == [0, 180_000, 180_001]
    assert [one.state for one in found] == ["clock ahead", "clock ahead", "silent"]
