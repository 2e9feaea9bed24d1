"""Reconciliation: every object is in exactly one class, and what nobody knows is found again, on both storages."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_segments.core.deletion import reconcile
from airflow_provider_segments.core.deletion.reconcile import CLASSES
from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.tiering.records import OffloadReport
from airflow_provider_segments.core.zookeeper import Delete
from tests.support.owned import build_owned, contents_of, drain, expected_keys, keys_in, push_owned, remove
from tests.support.sessions import store_on
from tests.support.tables import DAY_MS, QUICK, HandClock, everything, make_table, unchanged

GRACE = 3_600_000


def counts(table: Table, **how: bool) -> dict[str, int]:
    """How many objects are in each class that is not empty."""
    found = table.reconcile(grace_ms=GRACE, **how)
    return {name: getattr(found, name).count for name in CLASSES if getattr(found, name).count}


def lose_the_queue(store: SegmentStore) -> None:
    """All that stands below ``DELETION``."""
    paths = sorted(everything(store.session, f"/{store.paths.cluster}/DELETION"), reverse=True)
    for path in paths:
        store.session.commit([Delete(path, -1)])
    store.queue._prepared = False


def as_it_should_be(table: Table) -> None:
    """Each storage holds exactly what is registered there."""
    for storage, keys in zip((table.storage, table.store.tiered), expected_keys(table), strict=True):
        assert storage is not None
        assert keys_in(storage, table) == keys


def test_every_object_is_in_one_class(tiered_store: SegmentStore, hand: HandClock, tmp_path: Path) -> None:
    """One or more of each kind, in both storages; looking changes nothing."""
    store = tiered_store
    table = make_table(store, replacedSegmentsRetentionPeriod="1d")
    push_owned(table, ["a", "b", "c"])
    table.offload(older_than_ms=DAY_MS, primary_lag_ms=0)  # three in both
    push_owned(table, ["gone"])
    hand.advance(2 * DAY_MS)
    push_owned(table, ["d"], ["gone"])
    hand.advance(DAY_MS + 1)
    table.cleanup()  # 'gone' is queued
    push_owned(table, ["e"], ["c"])  # c is kept, hidden, in both
    push_owned(table, ["staged"], end=False)
    writing = table.start().entry_id
    build_owned(table, table.open_stage(writing), ["unstaged"])
    reverted = push_owned(table, ["wrong"])
    table.revert(reverted)
    path = tmp_path / "body"
    path.write_bytes(b"12345")
    store.storage.put_file(path, "t/who/knows", owner={})
    build_owned(table, table.open_stage(writing), ["again"])
    table.revert(writing, force=True)
    hand.advance(3 * DAY_MS)
    unchanged(store, lambda: counts(table))
    assert counts(table) == {
        "referenced": 2 + 2 + 2,  # a and b twice, d, e
        "hidden": 2 + 1,  # c twice, wrong
        "in_progress": 1,
        "in_flight": 1 + 2,  # gone, and what lies under the reverted push's prefix
        "foreign": 1,
    }
    found = table.reconcile(grace_ms=GRACE)
    assert found.foreign.bytes == 5
    assert found.foreign.examples == [store.storage.url("t/who/knows")]
    assert found.listed == 14 and found.as_dict()["listed"] == 14
    young = table.reconcile(grace_ms=100 * DAY_MS)
    assert (young.young.count, young.foreign.count) == (1, 0)


def test_a_lost_queue_is_found_again_from_the_objects(tiered_store: SegmentStore, hand: HandClock) -> None:
    """C15: the messages are gone, in both storages. The first look reports, the second queues, and then it is done:
    storage holds exactly what is visible. Young objects are left alone until the grace period is over."""
    store = tiered_store
    table = make_table(store, replacedSegmentsRetentionPeriod="0s")
    push_owned(table, ["a", "b", "c"])
    table.offload(older_than_ms=DAY_MS, primary_lag_ms=0)
    push_owned(table, ["d"], ["a", "b"])
    hand.advance(1)
    table.cleanup()
    table.offload(older_than_ms=10**13, primary_lag_ms=0)  # c leaves primary storage
    seen = contents_of(table)
    lose_the_queue(store)
    assert counts(table, enqueue=True) == {"referenced": 2, "young": 5}
    hand.advance(2 * GRACE)
    assert drain(store).deliveries == 0
    assert counts(table) == {"referenced": 2, "orphans": 5}
    report = table.reconcile(grace_ms=GRACE, enqueue=True)
    assert (report.orphans.count, report.enqueued) == (5, 5)
    assert table.sent == {"Ledger": 2 + 1 + 3, "Offload-Ledger": 2 + 2}, "marked, given up, and found again"
    assert counts(table, enqueue=True) == {"referenced": 2, "in_flight": 5}
    assert drain(store).total("deleted") == 5
    assert counts(table) == {"referenced": 2}
    as_it_should_be(table)
    assert contents_of(table) == seen


def test_dead_letters_are_known_and_purged_ones_are_orphans(tiered_store: SegmentStore, hand: HandClock) -> None:
    """A purge forgets messages; their objects are found by the next look."""
    store = store_on(
        tiered_store.session,
        tiered_store.paths.cluster,
        tiered_store.storage,
        deletion=DeletionSettings(max_retry_delete_count=0),
        clock=hand.clock(),
        retry=QUICK,
    )
    table = tiered_store.table("t")
    make_table(tiered_store, replacedSegmentsRetentionPeriod="0s")
    push_owned(table, ["a", "b"])
    table.offload(older_than_ms=DAY_MS, primary_lag_ms=DAY_MS)
    push_owned(table, ["c"], ["a", "b"])
    hand.advance(1)
    table.cleanup()
    assert drain(store).total("dead") == 2, "this consumer has no tiered storage"
    hand.advance(2 * GRACE)
    assert counts(table) == {"referenced": 1, "dead": 2}
    for name, _ in list(store.queue.dead_letters()):
        store.queue.purge(name)
    assert counts(table, enqueue=True) == {"referenced": 1, "orphans": 2}
    drain(tiered_store)
    as_it_should_be(table)


def test_missing_objects_are_named(tiered_store: SegmentStore, hand: HandClock) -> None:
    """One object, a whole push, a tiered copy: registered and not there. A table without any objects too."""
    store = tiered_store
    table = make_table(store)
    push_owned(table, ["a", "b"])
    push_owned(table, ["c"])
    assert store.tiered is not None
    table.offload(older_than_ms=DAY_MS, primary_lag_ms=0)
    keys = {segment.name: segment.key for segment in table.snapshot().segments}
    remove(store.storage, keys["a"], keys["c"])
    (cold,) = (key for key in keys_in(store.tiered, table) if key.endswith("/b.1.parquet"))
    remove(store.tiered, cold)
    found = table.reconcile(grace_ms=0)
    assert (found.referenced.count, found.missing.count, found.orphans.count) == (3, 3, 0)
    assert sorted(found.missing.examples) == sorted(
        [store.storage.url(keys["a"]), store.storage.url(keys["c"]), store.tiered.url(cold)]
    )
    remove(store.storage, *keys_in(store.storage, table))
    assert table.reconcile(grace_ms=0).missing.count == 4
    plain = store_on(store.session, store.paths.cluster, store.storage, clock=store.clock).table("t")
    blind = plain.reconcile(grace_ms=0)
    assert (blind.missing.count, blind.elsewhere, blind.tiered) == (3, 3, None)


def test_objects_of_a_running_offload_and_push_are_not_orphans(tiered_store: SegmentStore, hand: HandClock) -> None:
    """Announced before they were written, so known, whatever their age."""
    table = make_table(tiered_store)
    push_owned(table, ["a", "b"])
    offloader = table._offloader()
    claimed = offloader._announce(next(offloader._plans(DAY_MS, set(), None, OffloadReport("t", ""))))
    offloader._copy(claimed.record)
    entry = table.start().entry_id
    build_owned(table, table.open_stage(entry), ["c"])
    hand.advance(100 * DAY_MS)
    assert counts(table, enqueue=True) == {"referenced": 2, "in_progress": 3}


def test_pages_give_the_same_answer(
    tiered_store: SegmentStore, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few unregistered objects are judged together; progress is told of."""
    table = make_table(tiered_store, replacedSegmentsRetentionPeriod="0s")
    push_owned(table, [f"s{number}" for number in range(7)])
    push_owned(table, ["x", "y", "z"], [f"s{number}" for number in range(7)])
    hand.advance(1)
    table.cleanup()
    lose_the_queue(tiered_store)
    hand.advance(2 * GRACE)
    whole = table.reconcile(grace_ms=GRACE).as_dict()
    monkeypatch.setattr(reconcile, "PAGE", 2)
    seen: list[int] = []
    paged = table.reconcile(grace_ms=GRACE, progress=lambda report: seen.append(report.listed))
    assert sorted(paged.orphans.examples) == sorted(whole["orphans"].pop("examples"))  # type: ignore[attr-defined]
    assert paged.orphans.count == 7 and paged.referenced.count == 3
    assert len(seen) >= 4 and seen[-1] == 10


def test_what_was_pushed_during_the_look_is_not_an_orphan(
    tiered_store: SegmentStore, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry was read before the push, the objects were listed after it. A second look finds the push; without
    that one (its revert), the objects of a visible segment would be called orphans."""
    table = make_table(tiered_store)
    push_owned(table, ["a"])
    listing, pushed = tiered_store.storage.list, []

    def push_then_list(prefix: str) -> object:
        if not pushed:
            pushed.append(True)
            push_owned(table, [f"b{len(table.snapshot())}", f"c{len(table.snapshot())}"])
        return listing(prefix)

    hand.advance(2 * GRACE)
    monkeypatch.setattr(tiered_store.storage, "list", push_then_list)
    assert counts(table) == {"referenced": 1, "in_progress": 2}
    pushed.clear()
    monkeypatch.setattr(reconcile._Look, "_used_now", lambda *_, **__: [])
    assert counts(table) == {"referenced": 3, "orphans": 2}
