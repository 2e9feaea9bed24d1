"""Offloading: copied, recorded, read from there; the primary copy goes later, by a deletion of its own."""

from __future__ import annotations

import pytest

from airflow_provider_segments.core.model.ledger import LedgerType
from airflow_provider_segments.core.storage.identity import KEY
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.tiering.records import OffloadReport
from airflow_provider_segments.exceptions import InvalidConfigError, StorageError
from tests.support.owned import contents_of, drain, expected_keys, keys_in, push_owned, remove
from tests.support.sessions import store_on
from tests.support.tables import DAY_MS, HandClock, make_table, queued_batches, registered

LAG = 3 * DAY_MS


def offload(table: Table, **how: int | None) -> dict[str, object]:
    """All that is old, the primary copies after three days."""
    options = {"older_than_ms": DAY_MS, "primary_lag_ms": LAG, **how}
    return table.offload(**options).as_dict()  # type: ignore[arg-type]


def in_step(table: Table) -> None:
    """Storage holds exactly what is registered, in both places."""
    primary, tiered = expected_keys(table)
    assert keys_in(table.storage, table) == primary
    assert table.store.tiered is not None
    assert keys_in(table.store.tiered, table) == tiered


def test_a_segment_is_copied_then_read_from_there_then_leaves_primary_storage(
    tiered_store: SegmentStore, hand: HandClock
) -> None:
    """Rows stay the same at every step; each storage's deletion is a message of its own."""
    store = tiered_store
    table = make_table(store)
    push_owned(table, ["a", "b", "c"])
    before = contents_of(table)
    first = offload(table)
    assert (first["offloaded"], first["primary_marked"], first["damaged_count"]) == (3, 0, 0)
    assert not store.session.children(store.paths.offloads("t"))
    assert contents_of(table) == before
    assert all(segment.tiered is None for segment in table.snapshot().segments), "both copies: the near one is read"
    in_step(table)
    hand.advance(LAG - 1)
    assert offload(table)["primary_marked"] == 0
    hand.advance(1)
    second = offload(table)
    assert (second["offloaded"], second["primary_marked"]) == (0, 3)
    assert contents_of(table) == before
    assert store.tiered is not None
    assert all(url.startswith(store.tiered.uri) for url in table.snapshot().urls)
    assert {batch.ledger_type for batch in queued_batches(store)} == {LedgerType.LEDGER}
    assert drain(store).total("deleted") == 3
    assert not keys_in(store.storage, table)
    in_step(table)
    assert contents_of(table) == before
    assert table.sent == {"Ledger": 3}


def test_a_replaced_segment_leaves_both_storages_by_two_messages(tiered_store: SegmentStore, hand: HandClock) -> None:
    """One that still has its primary copy is two ledgers, one that has not is one."""
    store = tiered_store
    table = make_table(store, replacedSegmentsRetentionPeriod="0s")
    push_owned(table, ["a", "b"])
    offload(table)
    hand.advance(LAG)
    offload(table)
    push_owned(table, ["c"])
    offload(table)
    push_owned(table, ["new"], ["a", "b", "c"])
    hand.advance(DAY_MS)
    table.cleanup()
    kinds = [batch.ledger_type for batch in queued_batches(store) for _ in batch.ledgers if batch.reason == "replaced"]
    assert sorted(kind.value for kind in kinds) == ["Ledger"] + ["Offload-Ledger"] * 3
    drain(store)
    assert set(contents_of(table)) == {"new"}
    in_step(table)


def test_only_old_visible_segments_are_offloaded_and_no_more_than_asked(
    tiered_store: SegmentStore, hand: HandClock
) -> None:
    """Age is that of the segment's own end; staged and replaced ones are left alone."""
    store = tiered_store
    table = make_table(store)
    push_owned(table, ["a", "b", "c", "d"])
    push_owned(table, ["staged"], end=False)
    push_owned(table, ["new"], ["d"])
    end_of_day_one = 1_356_998_400_001
    old = store.clock.now_ms() - end_of_day_one
    assert offload(table, older_than_ms=old)["offloaded"] == 0
    assert offload(table, older_than_ms=old - 1)["offloaded"] == 3, "those of the first day: a, c and new"
    assert offload(table, max_segments=0)["offloaded"] == 0
    assert offload(table, max_segments=1)["offloaded"] == 1
    assert offload(table)["offloaded"] == 0


def test_a_damaged_object_is_reported_and_not_offloaded(
    tiered_store: SegmentStore, hand: HandClock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Missing, other bytes of the same size, another owner: each is named, the rest goes on. The same holds for a
    tiered copy, which is looked at again before the primary one is given up."""
    store = tiered_store
    table = make_table(store)
    push_owned(table, ["gone", "bytes", "owner", "good"])
    keys = {segment.name: segment.key for segment in table.snapshot().segments}
    infos = {name: store.storage.head(key) for name, key in keys.items()}
    path = tmp_path_factory.mktemp("bodies") / "body"
    for name, owner in (("bytes", dict(infos["bytes"].owner)), ("owner", {"application": "other"})):  # type: ignore[union-attr]
        remove(store.storage, keys[name])
        path.write_bytes(b"x" * infos[name].bytes)  # type: ignore[union-attr]
        store.storage.put_file(path, keys[name], owner=owner)
    remove(store.storage, keys["gone"])
    report = offload(table)
    assert (report["offloaded"], report["damaged_count"]) == (1, 3)
    damaged = report["damaged"]
    assert isinstance(damaged, dict)
    assert "is missing" in damaged["gone"] and "CRC-32" in damaged["bytes"] and "belongs to" in damaged["owner"]
    drain(store)
    assert {record.name for record in _records(table) if record.offload} == {"good"}
    assert store.tiered is not None
    remove(store.tiered, *sorted(keys_in(store.tiered, table)))
    hand.advance(LAG)
    late = offload(table)
    assert late["primary_marked"] == 0 and "is missing" in late["damaged"]["good"]  # type: ignore[index]
    assert next(one for one in _records(table) if one.name == "good").primary


def test_what_was_replaced_while_it_was_copied_leaves_both_storages(
    tiered_store: SegmentStore, hand: HandClock
) -> None:
    """The copy is not recorded any more, so the transaction that ends the offload queues it."""
    store = tiered_store
    table = make_table(store, replacedSegmentsRetentionPeriod="0s")
    push_owned(table, ["a", "b"])
    offloader = table._offloader()
    put = offloader.tiered.put_file

    def put_and_replace(*args: object, **how: object) -> object:
        done = put(*args, **how)  # type: ignore[arg-type]
        if args[1] != KEY and "a" in registered(table):
            push_owned(table, ["c"], ["a"])
            hand.advance(1)
            table.cleanup()
        return done

    object.__setattr__(offloader, "parallel", 1)
    try:
        offloader.tiered.put_file = put_and_replace  # type: ignore[method-assign]
        report = offloader.run(older_than_ms=DAY_MS, primary_lag_ms=LAG)
    finally:
        del offloader.tiered.put_file
    assert report.offloaded == 1
    assert registered(table) == {"b", "c"}
    drain(store, hand)
    in_step(table)


def test_a_run_that_is_alive_is_left_alone(tiered_store: SegmentStore) -> None:
    """Its claim stands: another one reports it as busy and takes none of its segments."""
    table = make_table(tiered_store)
    push_owned(table, ["a", "b"])
    offloader = table._offloader()
    plan = next(offloader._plans(DAY_MS, set(), None, OffloadReport("t", "")))
    claimed = offloader._announce(plan)
    busy = offload(table)
    assert (busy["busy"], busy["offloaded"], busy["resumed"]) == (1, 0, 0)
    report = OffloadReport("t", "")
    offloader._work(claimed, report)
    assert report.offloaded == 2
    in_step(table)


def test_an_offload_needs_a_tiered_storage_of_its_own(tiered_store: SegmentStore) -> None:
    """None, or the primary one: refused before anything happens. Reading elsewhere says which storage is needed."""
    store = tiered_store
    table = make_table(store)
    push_owned(table, ["a"])
    for tiered in (None, store.storage):
        other = store_on(store.session, store.paths.cluster, store.storage, tiered=tiered, clock=store.clock)
        with pytest.raises(InvalidConfigError, match="cannot be offloaded"):
            offload(other.table("t"))
    offload(table)
    offload(table, primary_lag_ms=0)
    plain = store_on(store.session, store.paths.cluster, store.storage, clock=store.clock).table("t")
    with pytest.raises(StorageError, match="lives in tiered storage"):
        _ = plain.snapshot().urls


def _records(table: Table) -> list:  # type: ignore[type-arg]
    return [record for shard in table._context.registry.read(lambda _: True).shards for record in shard.records]
