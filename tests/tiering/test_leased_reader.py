"""A reader in mid-scan keeps every file it was promised, and then they go. No table format's vacuum offers this."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.registry.shard import Shard, ShardName
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from airflow_provider_segments.exceptions import LeaseLostError, ObjectNotFoundError
from tests.support.owned import contents_of, drain, expected_keys, keys_in, push_owned
from tests.support.sessions import expire, settings, store_on
from tests.support.tables import DAY_MS, HandClock, make_table


def read(held: Snapshot) -> dict[str, bytes]:
    """All of a snapshot's objects."""
    found = {}
    for segment in held.segments:
        with held.store_of(segment.tiered).open(segment.key) as file:
            found[segment.name] = file.read()
    return found


def replaced_twice(table: Table, hand: HandClock) -> None:
    """Two replacements of everything, each cleaned up: the first snapshot's objects are queued, then the second's."""
    for number in (1, 2):
        push_owned(table, [f"new{number}"], sorted(table.snapshot().names))
        hand.advance(1)
        table.cleanup()


def test_a_reader_keeps_its_files_through_two_replacements_and_then_they_go(
    tiered_store: SegmentStore, hand: HandClock
) -> None:
    """Half is read before the table is replaced, cleaned and drained, the other half after it."""
    table = make_table(tiered_store, replacedSegmentsRetentionPeriod="0s")
    push_owned(table, ["a", "b", "c"])
    before = contents_of(table)
    with table.snapshot(owner="the reader") as held:
        segments = iter(held.segments)
        first = next(segments)
        with held.storage.open(first.key) as file:
            assert file.read() == before[first.name]
        replaced_twice(table, hand)
        waiting = drain(tiered_store, hand)
        assert waiting.acknowledged == 0 and waiting.total("failed") == 0, "all that was marked after the lease waits"
        assert any("the reader" in why for why in waiting.errors)
        held.check_lease()
        assert read(held) == before
    hand.advance(tiered_store.deletion.reconsume_later_ms)
    assert drain(tiered_store).total("deleted") == 4
    assert keys_in(tiered_store.storage, table) == expected_keys(table)[0]
    assert set(contents_of(table)) == {"new2"}


def test_without_a_lease_the_same_reader_loses_its_files(tiered_store: SegmentStore, hand: HandClock) -> None:
    """The revert of the guard."""
    table = make_table(tiered_store, replacedSegmentsRetentionPeriod="0s")
    push_owned(table, ["a", "b", "c"])
    plain = table.snapshot()
    replaced_twice(table, hand)
    assert drain(tiered_store).total("deleted") == 4
    with pytest.raises(ObjectNotFoundError):
        read(plain)


def test_a_reader_whose_session_expired_hears_of_it(tiered_store: SegmentStore, zk_hosts: str, hand: HandClock) -> None:
    """Its lease went with the session, so its files may go: an error at the next look and at the end, never silence."""
    with ZooKeeperSession.connect(settings(zk_hosts)) as session:
        reader = store_on(session, tiered_store.paths.cluster, tiered_store.storage, clock=hand.clock())
        table = make_table(tiered_store, replacedSegmentsRetentionPeriod="0s")
        push_owned(table, ["a", "b"])
        gone = "table 't': the lease of this snapshot is gone"
        with pytest.raises(LeaseLostError, match=gone), reader.table("t").snapshot() as held:
            held.check_lease()
            expire(session)
            with pytest.raises(LeaseLostError):
                held.check_lease()
            replaced_twice(table, hand)
            assert drain(tiered_store).total("deleted") == 3
        with pytest.raises(ObjectNotFoundError), reader.table("t").snapshot():
            expire(session)
            read(held)  # an error that is on its way is not hidden by the lost lease


def offload_between(table: Table, monkeypatch: pytest.MonkeyPatch, hand: HandClock) -> dict[str, bytes]:
    """Copies of all segments are in tiered storage. The next snapshot finds them in both storages, and before it asks
    for the registry's root, the primary copies are queued for deletion. Returns the contents."""
    table.offload(older_than_ms=DAY_MS, primary_lag_ms=DAY_MS)
    hand.advance(DAY_MS)
    read_shards = Registry._read

    def read_and_offload(registry: Registry, names: Sequence[ShardName]) -> list[Shard]:
        found = read_shards(registry, names)
        monkeypatch.setattr(Registry, "_read", read_shards)
        assert table.offload(older_than_ms=DAY_MS, primary_lag_ms=DAY_MS).primary_marked == 2
        return found

    before = contents_of(table)
    monkeypatch.setattr(Registry, "_read", read_and_offload)
    return before


def test_an_offload_in_the_middle_of_a_snapshot_takes_no_file_from_its_reader(
    tiered_store: SegmentStore, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is older than the lease and waits for nobody, so the reader has to look again."""
    table = make_table(tiered_store)
    push_owned(table, ["a", "b"])
    before = offload_between(table, monkeypatch, hand)
    with table.snapshot(owner="the reader") as held:
        assert drain(tiered_store, hand).total("deleted") == 2
        assert read(held) == before


def test_a_known_snapshot_is_not_given_again_after_an_offload(
    tiered_store: SegmentStore, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after one that came later, nor after one that it missed itself."""
    table = make_table(tiered_store)
    push_owned(table, ["a", "b"])
    early = table.snapshot()
    before = offload_between(table, monkeypatch, hand)
    missed = table.snapshot()
    assert missed.urls == early.urls
    assert drain(tiered_store, hand).total("deleted") == 2
    for known in (early, missed):
        assert read(table.snapshot(known=known)) == before
