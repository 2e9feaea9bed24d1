"""The second phase, message by message: every ending, counted once, and the object as it should be afterwards."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from airflow_provider_segments.core.deletion import dead_letters
from airflow_provider_segments.core.deletion.messages import UnreadableLetters
from airflow_provider_segments.core.deletion.report import DeletionReport
from airflow_provider_segments.core.model import ledger as ledgers
from airflow_provider_segments.core.model.ledger import (
    APPLICATION,
    DeletionBatch,
    LedgerComponent,
    LedgerType,
    PendingDeleteLedgerInfo,
    owner_metadata,
)
from airflow_provider_segments.core.storage.base import entry_prefix
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.core.zookeeper import Create, Delete, SetData
from airflow_provider_segments.exceptions import NewerRecordError
from tests.deletion.support import LATER, FaultyStore, World, batch_of, check_equation
from tests.support.owned import remove

UUID = "00000000-0000-4000-8000-000000000001"
CURSOR_ENTRY = "00000000-0000-4000-8000-00000000000c"


def test_marked_segments_are_deleted_and_their_bytes_counted(world: World) -> None:
    table = world.table()
    entry_id = world.push(table, ["a", "b", "c"])
    assert world.mark(table, {"a", "b"}) == 2
    assert world.store.queue.backlog().pending == 2 and len(world.stored()) == 3
    report = world.drain()
    assert report.as_dict()["deleted"] == 2 and report.bytes == 20 and report.acknowledged == 2
    assert world.stored() == {f"t/{entry_id}/c.build.1.parquet"}
    assert report.in_flight == 0 and report.next_due_ms is None and not report.stopped
    assert not world.drain().deliveries
    world.check(table)


def test_a_replaced_snapshot_goes_through_both_phases(world: World) -> None:
    table = world.table(kind="REFRESH", replacedSegmentsRetentionPeriod="1h")
    world.push(table, ["a", "b"])
    second = world.push(table, ["c", "d"], ["a", "b"])
    world.hand.advance(2 * 3_600_000)
    table.cleanup()
    assert len(world.stored()) == 4
    report = world.drain_all()
    assert report.total("deleted") == 2
    assert world.stored() == {f"t/{second}/{name}.build.1.parquet" for name in "cd"}
    assert set(table.snapshot().names) == {"c", "d"}


def test_what_is_gone_already_is_a_success_and_not_a_deletion(world: World) -> None:
    table = world.table()
    world.push(table, ["a", "b"])
    world.mark(table, {"a", "b"})
    remove(world.store.storage, *(key for key in world.stored() if "/a." in key))
    report = world.drain()
    assert (report.total("deleted"), report.total("already_gone"), report.bytes) == (1, 1, 10)
    assert not world.stored()


def test_the_same_message_twice_deletes_once(world: World) -> None:
    table = world.table()
    entry_id = world.push(table, ["a"])
    again = batch_of("t", entry_id, world.generation(table, entry_id), "a")
    world.mark(table, {"a"})
    world.enqueue(again)
    report = world.drain()
    assert (report.total("deleted"), report.total("already_gone"), report.acknowledged) == (1, 1, 2)


def test_two_messages_of_one_batch_about_one_object_have_two_endings(local: World) -> None:
    table = local.table()
    entry_id = local.push(table, ["a"])
    local.mark(table, {"a"})
    (path,) = local.pending_paths()
    local.alter(path, lambda batch: batch["ledgers"].append(["zzz", batch["ledgers"][0][1]]))
    local.alter(path, lambda batch: batch["ledgers"].append(batch["ledgers"][0]))
    report = local.drain()
    assert report.deliveries == 3
    assert (report.total("deleted"), report.total("mismatch") + report.total("already_gone")) == (1, 2)
    assert not local.stored() and entry_id


OTHER_OWNER = {
    "application": "another-application",
    "component": "Managed-Cursor",
    "table": "u",
    "segment": "b",
    "generation": "00000000-0000-4000-8000-000000000000:1:build:1",
}


@pytest.mark.parametrize("field", [*OTHER_OWNER, "component-id", "missing field", "no metadata"])
def test_an_object_that_says_something_else_of_itself_stays(
    world: World, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each field of the owner metadata in turn: acknowledged once, the object kept, and the security log says so."""
    table = world.table()
    entry_id = world.push(table, ["a"])
    world.mark(table, {"a"})
    (key,) = world.stored()
    right = owner_metadata("t", "a", world.generation(table, entry_id))
    wrong = {
        "component-id": {**right, "component-id": "x"},
        "missing field": {name: value for name, value in right.items() if name != "generation"},
        "no metadata": {},
    }.get(field) or ({} if field == "no metadata" else {**right, field: OTHER_OWNER[field]})
    assert right["application"] == APPLICATION and wrong != right
    remove(world.store.storage, key)
    world.put(world.store.storage, key, wrong)
    before = world.objects()
    with caplog.at_level(logging.WARNING, "airflow_provider_segments.security"):
        report = world.drain()
    assert (report.total("mismatch"), report.acknowledged, report.total("deleted")) == (1, 1, 0)
    assert world.objects() == before
    said = [record.name for record in caplog.records if record.name != "airflow_provider_segments.audit"]
    assert said == ["airflow_provider_segments.security"]
    assert key in caplog.text and entry_id in caplog.text
    assert not world.store.queue.backlog().in_flight


def test_a_message_about_a_registered_segment_is_stale(world: World, caplog: pytest.LogCaptureFixture) -> None:
    table = world.table()
    entry_id = world.push(table, ["a"])
    world.enqueue(batch_of("t", entry_id, world.generation(table, entry_id), "a"))
    before = world.objects()
    report = world.drain()
    assert (report.total("stale"), report.acknowledged) == (1, 1)
    assert world.objects() == before


def test_a_hidden_segment_that_is_kept_for_a_revert_is_in_use(world: World) -> None:
    table = world.table()
    first = world.push(table, ["a"])
    second = world.push(table, ["b"], ["a"])
    world.enqueue(batch_of("t", first, world.generation(table, first), "a"))
    assert world.drain().total("stale") == 1
    table.revert(second)
    assert set(table.snapshot().names) == {"a"} and len(world.stored()) == 2


def test_a_malformed_batch_becomes_a_dead_letter_as_it_is_and_is_shown(
    local: World, caplog: pytest.LogCaptureFixture
) -> None:
    local.enqueue(b'{"table": "t", "what": "is this"}')
    report = local.drain()
    assert (report.total("malformed"), report.acknowledged, report.deliveries) == (1, 1, 1)
    assert "what" in caplog.text and not local.store.queue.backlog().in_flight
    ((name, letters),) = local.store.queue.dead_letters()
    assert isinstance(letters, UnreadableLetters) and letters.payload == b'{"table": "t", "what": "is this"}'
    assert local.store.queue.purge(name) == 1


def test_one_malformed_message_does_not_keep_the_others_of_its_batch(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    table = world.table()
    world.push(table, ["a", "b"])
    world.mark(table, {"a", "b"})
    (path,) = world.pending_paths()
    bad = [["../a", "f"], ["a", "../../etc/passwd"], [1, 2], "x", None, ["a"], ["a", "f", -1], ["a", "f", 1, -9]]
    local_bad = len(bad)
    world.alter(path, lambda batch: batch["ledgers"].extend(bad))
    report = world.drain()
    assert report.total("malformed") == local_bad and report.total("deleted") == 2
    assert report.deliveries == report.acknowledged == local_bad + 2
    assert "passwd" in caplog.text and not world.stored()
    ((_, letters),) = world.store.queue.dead_letters()
    assert isinstance(letters, UnreadableLetters)
    kept = msgspec.json.decode(letters.payload)
    assert kept["table"] == "t" and len(kept["ledgers"]) == local_bad


NEWER = b'{"format":3,"needs":"9.0","shape":"of the future"}'


def test_a_message_of_a_newer_format_stays_in_the_queue_and_stops_nobody(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Acknowledged by a version that cannot read it, its objects would be orphans for ever."""
    table = world.table()
    world.push(table, ["a", "b"])
    paths = [world.enqueue(NEWER) for _ in range(3)]
    sweep = f"{world.store.paths.sweeps}/0.{world.store.clock.new_id()}"
    world.store.session.commit([Create(sweep, NEWER)])
    world.mark(table, {"a"})
    for again in range(2):
        report = world.drain()
        assert (report.left_alone, report.total("deleted")) == (4, 1 - again)
        assert "to 9.0 or later" in str(report.errors)
    assert [node and node.data for node in world.store.session.get_many([*paths, sweep])] == [NEWER] * 4
    assert not world.store.session.children(world.store.paths.dead_letters)
    claims = world.store.session.children(world.store.paths.deletion_claims)
    assert all(name.startswith("consumer-") for name in claims), "each was given back"
    assert "left alone" in caplog.text and world.store.queue.backlog().in_flight == 3
    alter_to_ours(world, paths[0], table)
    assert world.drain().total("stale") == 1, "a version that can read it finds it and works on it"


def alter_to_ours(world: World, path: str, table: Table) -> None:
    """What the newer version meant by its message: here, one about a segment in use."""
    entry_id = next(iter(table.lineage().entries))
    node = world.store.session.get(path)
    assert node is not None
    batch = batch_of("t", entry_id, world.generation(table, entry_id), "b")
    world.store.session.commit([SetData(path, ledgers.encode(batch), node.version)])


def test_dead_letters_of_a_newer_format_are_neither_redriven_nor_purged(local: World) -> None:
    local.store.queue.prepare()
    path = f"{local.store.paths.dead_letters}/newer.7"
    local.store.session.commit([Create(path, NEWER)])
    for purge in (False, True):
        done = dead_letters.redrive(local.store.queue, purge=purge)
        assert (done.messages, done.undecodable) == (0, ["newer.7"])
        with pytest.raises(NewerRecordError, match=r"to 9\.0 or later"):
            dead_letters.redrive(local.store.queue, ["newer.7"], purge=purge)
    (letter,) = dead_letters.list_dead_letters(local.store.queue)
    assert "format 3" in letter.problem
    node = local.store.session.get(path)
    assert node is not None and node.data == NEWER


POISON = [
    b"", b"null", b"[]", b"\xff\xfe\x00", b"[" * 100_000, b'{"ledgers": ' + b"[" * 100_000,
    b'{"table": NaN}', b"9" * 9000,
]  # fmt: skip


def test_no_payload_stops_a_consumer(local: World) -> None:
    """Whatever stands in the queue, the next message is worked on: nothing may poison it."""
    table = local.table()
    entry_id = local.push(table, ["a", "b"])
    whole = batch_of("t", entry_id, local.generation(table, entry_id), "a")
    head = local.store.queue.send_ops([whole])[0].data  # type: ignore[union-attr]
    many = replace_ledgers(whole, 1001)
    more = [
        head[:-1] + b',"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        head[:-1] + b',"reason":"\xff"}',
        head[:-1] + b',"reason":"' + b"x" * 950_000 + b'"}',
        local.store.queue.send_ops([many])[0].data,  # type: ignore[union-attr]
    ]
    for payload in [*POISON, *more]:
        if payload:
            local.enqueue(payload)
    local.enqueue(whole, "9" * 5000 + ".1")
    local.mark(table, {"b"})
    report = local.drain()
    assert report.total("deleted") == 1 and report.total("malformed") == len(POISON) - 1 + len(more)
    assert not local.store.queue.backlog().in_flight
    assert len(local.stored()) == 1


def replace_ledgers(batch: DeletionBatch, count: int) -> DeletionBatch:
    return batch.with_ledgers(tuple(PendingDeleteLedgerInfo(f"s{n}", f"f{n}") for n in range(count)))


def test_a_message_of_a_push_in_progress_waits_for_its_end(world: World) -> None:
    """Leftovers of an attempt are marked while their entry is IN_PROGRESS: nothing is deleted that a build may still
    be about to register."""
    table = world.table()
    entry_id = world.push(table, ["a"], end=False)
    ticket = table.open_stage(entry_id)
    table.stage(ticket, world.write(table, ticket, ["a"]))
    world.enqueue(batch_of("t", entry_id, world.generation(table, entry_id), "never"))
    report = world.drain()
    assert (report.total("waiting"), report.acknowledged, report.retried) == (1, 0, 1)
    assert report.in_flight == 1 and report.next_due_ms == world.hand.now_ms + 600_000
    assert not world.drain().deliveries, "not due yet"
    table.end(entry_id)
    done = world.drain_all()
    assert done.total("deleted") == 1 and done.total("already_gone") == 1
    assert set(table.snapshot().names) == {"a"} and len(world.stored()) == 1


def test_a_failed_delete_is_tried_again_and_then_succeeds(world: World) -> None:
    table = world.table()
    world.push(table, ["a", "b"])
    world.mark(table, {"a", "b"})
    faulty = FaultyStore(world.store.storage, lambda operation, key: "503 SlowDown" if "/a." in key else "")
    broken = world.with_storage(faulty)
    report = broken.drain()
    assert (report.total("deleted"), report.total("failed"), report.retried) == (1, 1, 1)
    assert report.errors and report.in_flight == 1
    (batch,) = world.batches()
    assert [(one.segment, one.attempts, one.first_ms) for one in batch.ledgers] == [("a", 1, world.hand.now_ms)]
    assert "SlowDown" in batch.ledgers[0].error
    world.hand.advance(LATER)
    assert world.drain().total("deleted") == 1
    assert not world.stored()


def test_a_message_that_always_fails_is_dead_in_the_end(world: World) -> None:
    table = world.table()
    world.push(table, ["a"])
    world.mark(table, {"a"})
    faulty = FaultyStore(world.store.storage, lambda operation, key: "403 AccessDenied")
    total = world.with_storage(faulty, max_retry_delete_count=2).drain_all()
    assert (total.total("failed"), total.total("dead"), total.acknowledged) == (2, 1, 1)
    (letters,) = world.dead()
    assert letters.batch.ledgers[0].attempts == 3 and "403" in letters.batch.ledgers[0].error
    assert len(world.stored()) == 1
    world.check(table)


def test_the_error_of_a_long_place_still_says_what_happened(local: World) -> None:
    table = local.table()
    local.push(table, ["a"])
    local.mark(table, {"a"})
    faulty = FaultyStore(local.store.storage, lambda operation, key: "p" * 900 + '\x00"\\\u2603 Access Denied')
    local.with_storage(faulty).drain()
    error = local.batches()[0].ledgers[0].error
    assert len(error) <= 200 and error.endswith("Access Denied") and error.isascii() and error.isprintable()


# --- drain


def test_a_drain_stops_at_its_time_limit(local: World) -> None:
    table = local.table()
    local.push(table, ["a", "b", "c"])
    for name in "abc":
        local.mark(table, {name})
    seconds = iter(range(0, 1000, 10))
    world = local.with_settings(batches_at_once=1)
    world.store = world.store.replace(clock=replace(world.store.clock, monotonic=lambda: float(next(seconds))))
    report = world.drain(max_seconds=25)
    assert report.stopped == "time limit" and report.deliveries == 2 and report.in_flight == 1
    assert local.drain().total("deleted") == 1


def test_a_drain_stops_at_its_count_limit_after_a_whole_batch(local: World) -> None:
    table = local.table()
    local.push(table, ["a", "b", "c", "d"])
    local.mark(table, {"a", "b"})
    local.mark(table, {"c", "d"})
    report = local.with_settings(batches_at_once=1).drain(max_ledgers=1)
    assert report.stopped == "count limit" and report.deliveries == 2 and report.in_flight == 2


def test_progress_tells_the_totals_after_each_round(local: World) -> None:
    table = local.table()
    local.push(table, ["a", "b"])
    local.mark(table, {"a"})
    local.mark(table, {"b"})
    seen: list[int] = []
    local.with_settings(batches_at_once=1).drain(progress=lambda report: seen.append(report.total("deleted")))
    assert seen == [1, 2]


def test_a_drain_ends_when_all_that_is_due_is_waiting_even_without_a_pause(local: World) -> None:
    """With ``reconsume_later_ms=0`` what waits for a reader is due again at once: the drain must not spin on it."""
    table = local.table()
    local.push(table, ["a", "b", "c"])
    with table.snapshot():
        for name in "abc":
            local.mark(table, {name})
        report = local.with_settings(reconsume_later_ms=0, batches_at_once=1).drain(max_seconds=20)
    assert not report.stopped and report.total("waiting") == report.deliveries >= 3
    assert local.drain_all().total("deleted") == 3


def test_what_an_error_leaves_claimed_can_be_drained_at_once(local: World) -> None:
    """The task that is killed by its time-out gives its claims back; the next drain of the same session finds them."""
    table = local.table()
    local.push(table, ["a"])
    local.mark(table, {"a"})

    def interrupt(operation: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.with_storage(FaultyStore(local.store.storage, before=interrupt)).drain()
    assert local.drain().total("deleted") == 1


def test_a_table_that_was_never_made_uses_nothing(world: World) -> None:
    """T4: ZooKeeper's own answer. Its leftovers go when they say that they belong to it."""
    entry_id = UUID
    generation = f"{entry_id}:7:build:1"
    world.put(world.store.storage, f"t/{entry_id}/a.build.1.parquet", owner_metadata("t", "a", generation))
    world.enqueue(batch_of("t", entry_id, generation, "a"))
    assert world.drain().total("deleted") == 1 and not world.stored()


def test_an_unreadable_registry_is_a_failed_attempt_and_no_deletion(local: World) -> None:
    table = local.table()
    local.push(table, ["a", "b"])
    local.mark(table, {"a"})
    (shard,) = local.shards(table)
    local.store.session.commit([SetData(shard.name.path, b"{\xff", shard.version)])
    report = local.drain()
    assert report.total("failed") == 1 and len(local.stored()) == 2


# --- ledger types


def test_a_segment_in_both_storages_has_two_messages_that_end_independently(
    make_world: Callable[..., World], kind: str
) -> None:
    world = make_world(kind, tiered=True)
    table = world.table()
    world.push(table, ["a", "b"])
    world.offload(table, {"a"}, UUID)
    world.check(table)
    assert world.mark(table, {"a", "b"}) == 2
    assert {batch.ledger_type for batch in world.batches()} == {LedgerType.LEDGER, LedgerType.OFFLOAD_LEDGER}
    tiered = world.store.tiered
    assert tiered is not None
    faulty = FaultyStore(world.store.storage, lambda operation, key: "403 Forbidden")
    report = world.with_storage(faulty).drain()
    assert report.counts["deleted", LedgerType.OFFLOAD_LEDGER] == 1
    assert report.counts["failed", LedgerType.LEDGER] == 2
    assert not list(tiered.list("t/")) and len(world.stored()) == 2
    by_type = report.as_dict()["by_type"]
    assert by_type == {  # type: ignore[comparison-overlap]
        "Ledger": {"failed": 2, "received": 2},
        "Offload-Ledger": {"deleted": 1, "received": 1},
    }
    world.hand.advance(LATER)
    assert world.drain().counts["deleted", LedgerType.LEDGER] == 2
    assert not world.objects()


def test_the_offloaded_copy_that_is_still_registered_is_in_use(make_world: Callable[..., World], kind: str) -> None:
    """Also when the message spells the store's address another way: the uuid makes the key."""
    world = make_world(kind, tiered=True)
    table = world.table()
    entry_id = world.push(table, ["a"])
    context = world.offload(table, {"a"}, UUID)
    generation = world.generation(table, entry_id)
    for bucket in (context.bucket, context.bucket + "/"):
        forged = msgspec.structs.replace(context, bucket=bucket)
        world.enqueue(batch_of("t", entry_id, generation, "a", ledger_type=LedgerType.OFFLOAD_LEDGER, offload=forged))
    before = world.objects()
    assert world.drain().total("stale") == 2
    assert world.objects() == before


def test_without_its_tiered_storage_a_consumer_fails_and_tries_again(
    make_world: Callable[..., World], kind: str
) -> None:
    world = make_world(kind, tiered=True)
    table = world.table()
    world.push(table, ["a"])
    world.offload(table, {"a"}, UUID)
    world.mark(table, {"a"})
    blind = world.with_settings()
    blind.store = blind.store.replace(tiered=None)
    report = blind.drain()
    assert report.counts["failed", LedgerType.OFFLOAD_LEDGER] == 1 and report.counts["deleted", LedgerType.LEDGER] == 1
    assert "no tiered storage is configured here: set tiered_uri" in next(iter(report.errors))
    world.hand.advance(LATER)
    assert world.drain().counts["deleted", LedgerType.OFFLOAD_LEDGER] == 1
    assert not world.objects()


def test_cursors_are_deleted_once_nothing_uses_them(world: World) -> None:
    component, folder = LedgerComponent.MANAGED_CURSOR, "_cursors"
    table = world.table()
    generation = f"{CURSOR_ENTRY}:7:build:1"
    owner = owner_metadata("t", "a", generation, component=component, component_id="c1")
    for number in ("c1", "c2"):
        key = f"t/{folder}/{number}/a.build.1.parquet"
        world.put(world.store.storage, key, {**owner, "component-id": number})
    used = f"{world.store.paths.other_ledgers('t', component.value)}/c1"
    world.store.session.ensure([used])

    def message(number: str) -> DeletionBatch:
        return batch_of("t", CURSOR_ENTRY, generation, "a", component=component, component_id=number)

    world.enqueue(message("c1"))
    world.enqueue(message("c2"))
    report = world.drain()
    assert (report.total("stale"), report.total("deleted")) == (1, 1)
    assert world.stored() == {f"t/{folder}/c1/a.build.1.parquet"}
    world.store.session.commit([Delete(used, 0)])
    world.enqueue(message("c1"))
    assert world.drain().total("deleted") == 1 and not world.stored()
    assert table.snapshot().names == []


def test_a_cursor_of_another_name_is_a_mismatch(world: World) -> None:
    generation = f"{CURSOR_ENTRY}:7:build:1"
    cursor = LedgerComponent.MANAGED_CURSOR
    owner = owner_metadata("t", "a", generation, component=cursor, component_id="c9")
    world.put(world.store.storage, "t/_cursors/c1/a.build.1.parquet", owner)
    before = world.objects()
    world.enqueue(batch_of("t", CURSOR_ENTRY, generation, "a", component=cursor, component_id="c1"))
    assert world.drain().total("mismatch") == 1
    assert world.objects() == before


# --- sweeps


def test_a_sweep_finds_what_nobody_registered_and_leaves_foreign_objects(world: World) -> None:
    table = world.table()
    entry_id = world.push(table, ["a"])
    prefix = entry_prefix("t", entry_id)
    generation = world.generation(table, entry_id)
    world.put(world.store.storage, prefix + "left.build.1.parquet", owner_metadata("t", "left", generation))
    world.put(world.store.storage, prefix + "foreign", {})
    world.put(world.store.storage, prefix + "other", owner_metadata("u", "left", generation))
    world.store.session.commit([table._context.marker.sweep_op(entry_id, reason="test")])
    report = world.drain()
    assert (report.swept, report.found, report.foreign, report.total("deleted")) == (1, 1, 2, 1)
    assert world.stored() == {prefix + name for name in ("a.build.1.parquet", "foreign", "other")}
    assert not world.store.queue.backlog().sweeps


def test_an_object_whose_metadata_cannot_be_read_does_not_stop_a_sweep(local: World) -> None:
    table = local.table()
    entry_id = local.push(table, ["a"])
    prefix = entry_prefix("t", entry_id)
    local.put(
        local.store.storage,
        prefix + "left.build.1.parquet",
        owner_metadata("t", "left", local.generation(table, entry_id)),
    )
    local.put(local.store.storage, prefix + "broken", {})
    path = local.store.storage.root / prefix / "broken"  # type: ignore[attr-defined]
    (name,) = os.listxattr(path)
    os.setxattr(path, name, b"{not json")
    local.store.session.commit([table._context.marker.sweep_op(entry_id, reason="test")])
    report = local.drain()
    assert (report.swept, report.foreign, report.total("deleted")) == (1, 1, 1)


def test_a_sweep_waits_for_a_push_in_progress_and_for_a_storage_that_fails(world: World) -> None:
    table = world.table()
    entry_id = world.push(table, ["a"], end=False)
    world.store.session.commit([table._context.marker.sweep_op(entry_id, reason="test")])
    assert world.drain().swept == 0 and len(world.stored()) == 1
    table.revert(entry_id, force=True)
    table.cleanup()
    world.hand.advance(LATER)
    broken = world.with_storage(FaultyStore(world.store.storage, lambda operation, key: "timed out"))
    assert broken.drain().swept == 0
    assert world.store.queue.backlog().sweeps >= 1
    world.drain_all()
    assert not world.stored()


# --- the report


def test_reports_add_up_and_turn_into_plain_data() -> None:
    one, two = DeletionReport(), DeletionReport()
    one.add("deleted", LedgerType.LEDGER, 3)
    one.received[LedgerType.LEDGER] = 4
    one.add("waiting", LedgerType.LEDGER)
    two.received[LedgerType.OFFLOAD_LEDGER] = 2
    two.open = 2
    for whole in (one, two):
        check_equation(whole)
    one.merge(two)
    check_equation(one)
    assert one.as_dict()["by_type"] == {
        "Ledger": {"deleted": 3, "waiting": 1, "received": 4},
        "Offload-Ledger": {"received": 2},
    }
