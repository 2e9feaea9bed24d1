"""Mark, drain, dead letters and the backlog, each operator on the real ZooKeeper and real objects."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, AssetAlias
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_segments.assets.segments import EVENTS_ALIAS
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.ledger import (
    DeletionBatch,
    LedgerType,
    OffloadContext,
    PendingDeleteLedgerInfo,
)
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Create, Delete, SetData
from airflow_provider_segments.dev.s3 import S3Server
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.operators.deletion import (
    DeletePendingLedgersOperator,
    MarkLedgersForDeletionOperator,
    RedriveDeadLettersOperator,
    together,
)
from airflow_provider_segments.operators.retention import (
    OffloadSegmentsOperator,
    ReconcileOperator,
    RetentionCleanupOperator,
)
from airflow_provider_segments.sensors.deletion import DeletionBacklogSensor
from airflow_provider_segments.triggers.deletion import DeletionBacklogTrigger
from tests.airflow.helpers import MetricsBackend, RunDag, TaskState, context, make_table, push_rows, stage_rows, states
from tests.airflow.test_dags import dags, xcom
from tests.support.owned import remove

NOWHERE = OffloadContext("s3", "nowhere", "00000000-0000-4000-8000-00000000000f")


@pytest.fixture
def settings() -> dict[str, str]:
    """What this test's connection says of deletion."""
    return {"reconsume_later": "0s", "max_retry_delete_count": "1"}


@pytest.fixture
def connection(
    zk_hosts: str, storage_root: Path, table_name: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A cluster of its own: a backlog is a cluster's, not a table's."""
    extra = {"storage_uri": storage_root.as_uri(), "cluster": f"d{table_name}", **settings}
    described = {"conn_type": "segments", "host": zk_hosts, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(described))
    return described


@pytest.fixture
def table(store: SegmentStore, table_name: str) -> Table:
    return make_table(store, table_name, "APPEND")


def reverted_push(table: Table, folder: Path, rows: int = 1) -> str:
    entry_id = push_rows(table, folder, {"a": list(range(rows))})
    table.revert(entry_id, allow_empty=True)
    return entry_id


def drain(**how: Any) -> dict[str, Any]:
    return DeletePendingLedgersOperator(task_id="drain", **how).execute(context("drain"))


def objects(table: Table) -> list[str]:
    return [one.key for one in table.storage.list(f"{table.name}/")]


def hopeless(table: Table, name: str = "x") -> DeletionBatch:
    """A message that no consumer here can work on: its tiered storage is not this connection's."""
    entry_id = "00000000-0000-4000-8000-000000000001"
    ledger = PendingDeleteLedgerInfo(name, f"{name}.parquet", 10)
    return DeletionBatch(
        table.name, entry_id, f"{entry_id}:1:build:1", (ledger,), LedgerType.OFFLOAD_LEDGER, offload=NOWHERE
    )


def kill(store: SegmentStore, table: Table, name: str = "x") -> None:
    """Make a dead letter."""
    store.queue.send([hopeless(table, name)])
    assert drain(fail_on_dead_letters=False, max_wait=0)["failed"] >= 0
    while store.queue.backlog().in_flight:
        drain(fail_on_dead_letters=False)


def test_marked_entry_is_deleted_by_the_next_drain(table: Table, tmp_path: Path) -> None:
    kept = push_rows(table, tmp_path, {"a": [1]})
    lost = reverted_push(table, tmp_path)
    report = MarkLedgersForDeletionOperator(task_id="m", table=table.name, entry_id=lost[:8]).execute(context("m"))
    assert (report["segments"], report["sent"], report["swept"]) == (1, {"Ledger": 1}, lost)
    done = drain()
    assert (done["received"], done["deleted"], done["acknowledged"], done["found"]) == (1, 1, 1, 0)
    assert done["bytes"] > 0
    assert json.loads(json.dumps(done)) == done
    assert [key.split("/")[1] for key in objects(table)] == [kept]


def test_mark_that_is_refused_fails_without_retries_and_names_the_rule(table: Table, tmp_path: Path) -> None:
    push_rows(table, tmp_path, {"a": [1]})
    shown = table.snapshot().names
    kept = TaskState()
    mark = MarkLedgersForDeletionOperator(task_id="m", table=table.name, segments=shown)
    with pytest.raises(AirflowFailException, match=r"\[visible\]"):
        mark.execute(context("m", state=kept))
    assert not kept
    with pytest.raises(AirflowFailException, match="either"):
        MarkLedgersForDeletionOperator(task_id="m", table=table.name).execute(context("m"))


def test_retried_mark_succeeds_after_its_first_attempt_had(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt marks and dies before it reports; without the note the retry would be refused as unknown."""
    reverted_push(table, tmp_path)
    [record] = [one for shard in table._context.registry.read(lambda _: True).shards for one in shard.records]
    mark = MarkLedgersForDeletionOperator(task_id="m", table=table.name, segments=[record.name])
    kept = TaskState()
    with monkeypatch.context() as dying:
        dying.setattr("airflow_provider_segments.operators.deletion._forget", _die)
        with pytest.raises(KeyboardInterrupt):
            mark.execute(context("m", state=kept))
    report = mark.execute(context("m", state=kept))
    assert (report["segments"], report["gone"]) == (0, [record.name])
    assert not kept
    with pytest.raises(AirflowFailException, match="unknown-segment"):
        mark.execute(context("m", state=kept))


def _die(_: Any) -> None:
    raise KeyboardInterrupt


def test_drain_stops_at_its_count_limit_and_says_so(table: Table, tmp_path: Path, store: SegmentStore) -> None:
    for _ in range(6):
        MarkLedgersForDeletionOperator(task_id="m", table=table.name, entry_id=reverted_push(table, tmp_path)).execute(
            context("m")
        )
    first = drain(max_ledgers="1")
    assert (first["stopped"], first["in_flight"] > 0) == ("count limit", True)
    drain()
    assert store.queue.backlog().in_flight == 0


def test_dead_letter_fails_the_task_and_its_report_is_kept(table: Table, store: SegmentStore) -> None:
    store.queue.send([hopeless(table)])
    operator = DeletePendingLedgersOperator(task_id="drain", max_wait=60)
    ran = context("drain")
    with pytest.raises(AirflowFailException, match=r"1 messages became dead letters.*dead-letters list"):
        operator.execute(ran)
    report = ran["xcoms"]["report"]
    assert (report["received"], report["failed"], report["dead"], report["acknowledged"]) == (2, 1, 1, 1)
    assert report["acknowledged"] == report["received"] - report["retried"] - report["open"]
    assert "tiered storage" in next(iter(report["errors"]))


def test_dead_letters_are_redriven_by_the_beginning_of_their_id_and_purged(table: Table, store: SegmentStore) -> None:
    kill(store, table, "x")
    kill(store, table, "y")
    ids = [name for name, _ in store.queue.dead_letters()]
    assert len(ids) == 2
    done = RedriveDeadLettersOperator(task_id="r", ids=[ids[0][:8]]).execute(context("r"))
    assert (done["messages"], done["ids"]) == (1, [ids[0]])
    assert (store.queue.backlog().in_flight, store.queue.backlog().dead) == (1, 1)
    with pytest.raises(AirflowFailException, match="no dead letters called 'nothing'"):
        RedriveDeadLettersOperator(task_id="r", ids=["nothing"]).execute(context("r"))
    purged = RedriveDeadLettersOperator(task_id="r", purge="true").execute(context("r"))
    assert (purged["messages"], purged["purged"], store.queue.backlog().dead) == (1, True, 0)


def test_undecodable_dead_letter_is_left_by_a_redrive_of_all_and_can_be_purged(
    table: Table, store: SegmentStore
) -> None:
    kill(store, table)
    store.session.commit([Create(f"{store.paths.dead_letters}/broken.1", b"{")])
    done = RedriveDeadLettersOperator(task_id="r").execute(context("r"))
    assert (done["messages"], done["undecodable"]) == (1, ["broken.1"])
    with pytest.raises(AirflowFailException, match="can only be purged"):
        RedriveDeadLettersOperator(task_id="r", ids=["broken.1"]).execute(context("r"))
    assert RedriveDeadLettersOperator(task_id="r", ids=["broken.1"], purge=True).execute(context("r"))["messages"] == 1


def test_dag_redrives_and_purges_the_dead_letters_that_it_is_given(
    table: Table, store: SegmentStore, run_dag: RunDag
) -> None:
    """And no others: neither an empty list nor one of ids that are gone stands for all."""
    for name in "xyz":
        kill(store, table, name)
    first, second, third = (name for name, _ in store.queue.dead_letters())
    for ids, action, dead in (([first], "redrive", 2), ([second], "purge", 1)):
        done = run_dag(dags()["segments_dead_letters"], {"ids": ids, "action": action})
        assert (done.state, store.queue.backlog().dead) == ("success", dead), states(done)
        assert xcom(done, "dead_letters")["ids"] == ids
    again = run_dag(dags()["segments_dead_letters"], {"ids": [second], "action": "purge"})
    assert (again.state, [name for name, _ in store.queue.dead_letters()]) == ("failed", [third])
    with pytest.raises(AirflowFailException, match="ids is empty"):
        RedriveDeadLettersOperator(task_id="r", ids="[]").execute(context("r"))


@pytest.mark.parametrize("settings", [{"reconsume_later": "2s", "max_retry_delete_count": "1"}])
@pytest.mark.parametrize("deferrable", [True, False])
def test_drain_waits_for_a_message_that_a_reader_holds_up(
    deferrable: bool, table: Table, store: SegmentStore, tmp_path: Path
) -> None:
    lost = reverted_push(table, tmp_path)
    push_rows(table, tmp_path, {"a": [1]})
    drain()  # with the sweep that the revert has asked for
    operator = DeletePendingLedgersOperator(task_id="drain", max_wait=30, deferrable=deferrable)
    with table.snapshot(owner="somebody"):
        table.mark_ledgers(entry_id=lost)
        if deferrable:
            with pytest.raises(TaskDeferred) as deferred:
                operator.execute(context("drain"))
        else:
            short = DeletePendingLedgersOperator(task_id="drain", max_wait=0).execute(context("drain"))
            assert (short["waiting"], short["in_flight"]) == (1, 1)
            assert "leased by somebody" in next(iter(short["errors"]))
    if not deferrable:
        assert operator.execute(context("drain"))["deleted"] == 1
        return
    assert type(deferred.value.trigger).__name__ == "DateTimeTrigger"
    arguments = json.loads(json.dumps(deferred.value.kwargs))
    assert arguments["so_far"]["waiting"] == 1
    _wait_until(store.queue.backlog().next_due_ms)
    whole = operator.resume(context("drain"), {}, **arguments)
    assert (whole["received"], whole["waiting"], whole["deleted"], whole["in_flight"]) == (2, 1, 1, 0)
    assert whole["acknowledged"] == whole["received"] - whole["retried"] - whole["open"]


def _wait_until(due_ms: int | None) -> None:
    assert due_ms is not None
    while time.time_ns() // 1_000_000 <= due_ms:
        time.sleep(0.05)


def test_wait_never_goes_beyond_its_limit(table: Table, store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Revert test of the bound: with the limit away, the same task would wait."""
    operator = DeletePendingLedgersOperator(task_id="drain", max_wait=5, deferrable=True)
    report = {"stopped": "", "in_flight": 1, "next_due_ms": 100_000}
    monkeypatch.setattr("airflow_provider_segments.operators.deletion._now_ms", lambda: 90_000)
    assert operator._due(report, 94_000) is None
    assert operator._due(report, 95_000) == 100_000
    assert operator._due(report | {"stopped": "time limit"}, 95_000) is None
    assert operator._due(report | {"in_flight": 0}, 95_000) is None


def test_reports_of_several_drains_add_up() -> None:
    one = {"received": 2, "in_flight": 9, "stopped": "x", "next_due_ms": 5, "by_type": {"Ledger": {"received": 2}}}
    two = {"received": 3, "in_flight": 0, "stopped": "", "next_due_ms": None, "by_type": {"Ledger": {"deleted": 1}}}
    assert together(together({}, one), two) == {
        "received": 5,
        "in_flight": 0,
        "stopped": "",
        "next_due_ms": None,
        "by_type": {"Ledger": {"received": 2, "deleted": 1}},
    }


# --- the sensor


def backlog_sensor(**how: Any) -> DeletionBacklogSensor:
    return DeletionBacklogSensor(task_id="wait", **how)


def test_empty_backlog_is_no_reason_to_wait(table: Table) -> None:
    found = backlog_sensor(deferrable=True, max_dead=0).execute(context("wait"))
    assert found == {"in_flight": 0, "pending": 0, "retry": 0, "dead": 0, "sweeps": 0}
    with pytest.raises(ValueError, match="nothing to wait for"):
        backlog_sensor(max_in_flight=None).execute(context("wait"))


def test_sensor_defers_to_a_trigger_that_carries_no_secret_and_fires_when_drained(
    store: SegmentStore, table: Table, tmp_path: Path
) -> None:
    table.mark_ledgers(entry_id=reverted_push(table, tmp_path))
    with pytest.raises(TaskDeferred) as deferred:
        backlog_sensor(deferrable=True, max_in_flight="0", poll_interval=0.1).execute(context("wait"))
    path, arguments = deferred.value.trigger.serialize()
    assert path == "airflow_provider_segments.triggers.deletion.DeletionBacklogTrigger"
    assert arguments == {
        "max_in_flight": 0,
        "max_dead": None,
        "segments_conn_id": "segments_default",
        "poll_interval": 0.1,
    }
    ticks: list[float] = []

    async def first() -> dict[str, int]:
        async for event in DeletionBacklogTrigger(**arguments).run():
            return dict(event.payload)
        raise AssertionError("the trigger ended without an event")

    async def main() -> dict[str, int]:
        waiting = asyncio.ensure_future(first())
        for _ in range(20):
            await asyncio.sleep(0.02)
            ticks.append(time.monotonic())
        assert not waiting.done()
        await asyncio.to_thread(drain)
        return await asyncio.wait_for(waiting, 20)

    event = asyncio.run(main())
    assert event["in_flight"] == 0
    assert max(later - before for before, later in itertools.pairwise(ticks)) < 0.5, "the loop was blocked"
    assert backlog_sensor().execute_complete(context("wait"), event) == event


def test_sensor_can_wait_for_dead_letters_to_be_dealt_with(store: SegmentStore, table: Table) -> None:
    kill(store, table)
    assert backlog_sensor(max_in_flight=None, max_dead=1).execute(context("wait"))["dead"] == 1
    assert backlog_sensor(max_in_flight=None, max_dead=0).poke(context("wait")) is False


# --- metrics


@pytest.mark.parametrize("settings", [{"reconsume_later": "1h", "max_retry_delete_count": "0"}])
def test_metrics_equal_a_hand_count(
    table: Table, store: SegmentStore, tmp_path: Path, metrics: MetricsBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """3 deleted, 1 already gone, 1 of a foreign owner, 1 in use, 1 malformed, 1 hopeless, 1 that a reader holds up."""
    caplog.set_level(logging.CRITICAL, "airflow_provider_segments")
    shown = push_rows(table, tmp_path, {"a": [1]})
    lost = [reverted_push(table, tmp_path) for _ in range(5)]
    for entry_id in lost:
        MarkLedgersForDeletionOperator(task_id="m", table=table.name, entry_id=entry_id).execute(context("m"))
    assert metrics.read() == {"sent.Ledger": 5}
    [gone] = [key for key in objects(table) if lost[3] in key]
    [foreign] = [key for key in objects(table) if lost[4] in key]
    remove(table.storage, gone, foreign)
    table.storage.put_file(_file(tmp_path), foreign, owner={"application": "another"})
    [segment] = [one for one in table.snapshot().segments if one.entry_id == shown]
    ledger = PendingDeleteLedgerInfo(segment.name, segment.key.rpartition("/")[2], 1)
    store.queue.send(
        [
            DeletionBatch(table.name, shown, f"{shown}:1:build:1", (ledger,)),
            hopeless(table),
        ]
    )
    store.session.commit([Create(f"{store.paths.pending_deletions}/0/broken.1", b"{")])
    freed = sum(one.bytes for one in table.storage.list(f"{table.name}/") if one.key.split("/")[1] in lost[:3])
    drain(fail_on_dead_letters=False)
    waits = reverted_push(table, tmp_path)
    drain()  # the sweep that the revert has asked for finds nothing that is not registered
    with table.snapshot(owner="reader"):
        table.mark_ledgers(entry_id=waits)
        drain()
    found = metrics.read()
    assert found == {
        "sent.Ledger": 5,  # the last mark was made without an operator
        "received": 9,
        "acknowledged": 8,
        "retried": 1,
        "deleted.Ledger": 3,
        "already_gone": 1,
        "mismatch": 1,
        "stale": 1,
        "malformed": 1,
        "failed": 1,
        "dead_lettered": 1,
        "freed_bytes": freed,
        "in_flight": 1,
        "dead_letters": 2,  # the malformed one is kept for a person
    }
    assert found["acknowledged"] == found["received"] - found["retried"] - found.get("open", 0)
    RedriveDeadLettersOperator(task_id="r").execute(context("r"))
    after = metrics.read()
    assert (after["redriven"], after["in_flight"], after.get("dead_letters", 0)) == (1, 2, 1)


def _file(folder: Path) -> Path:
    path = folder / "foreign"
    path.write_bytes(b"foreign")
    return path


# --- the DAGs


def test_retention_and_deletion_dags_free_what_is_past_its_time(
    run_dag: RunDag, store: SegmentStore, table_name: str, tmp_path: Path
) -> None:
    """Two pushes and a rollback; retention marks the rolled-back one, the other DAG deletes its object."""
    table = make_table(store, table_name)
    document = table.config().to_json()
    document["segmentsConfig"] = {"revertedSegmentsRetentionPeriod": "0s"}
    store.apply_config(TableConfig.from_json(document))
    push_rows(table, tmp_path, {"a": [1]})
    push_rows(table, tmp_path, {"a": [1, 2]})
    lost = table.resolve_entry("latest")
    table.revert(lost, allow_empty=True)
    before = table.snapshot()

    looked = run_dag(dags()["segments_retention"], {"table": table_name, "dry_run": True})
    assert looked.state == "success", states(looked)
    assert xcom(looked, "retention")[table_name]["dry_run"] is True
    assert len(objects(table)) == 2

    kept = run_dag(dags()["segments_retention"])
    assert kept.state == "success", states(kept)
    assert xcom(kept, "retention")[table_name]["totals"]["marked_segments"] == 1

    deleted = run_dag(dags()["segments_ledger_deletion"])
    assert deleted.state == "success", states(deleted)
    assert xcom(deleted, "drain")["deleted"] == 1
    assert objects(table) == before.files


def test_retention_tells_of_what_expired_and_of_nothing_else(
    store: SegmentStore, table_name: str, tmp_path: Path
) -> None:
    """Marking what readers do not see changes nothing for them, and neither does a dry run."""
    table = make_table(store, table_name, "APPEND")
    document = table.config().to_json()
    document["segmentsConfig"] = {
        "timeColumnName": "ts",
        "retentionTimeUnit": "DAYS",
        "retentionTimeValue": "1",
        "revertedSegmentsRetentionPeriod": "0s",
        "replacedSegmentsRetentionPeriod": "0s",
        "lineageEntryCleanupRetentionPeriod": "0s",
    }
    store.apply_config(TableConfig.from_json(document))
    reverted_push(table, tmp_path)
    entry_id = str(table.start().entry_id)
    stage_rows(table, entry_id, tmp_path, {"a": [1]}, times=(1_356_998_400_000, 1_356_998_400_001))
    table.end(entry_id)
    told, seen = [], []
    for dry_run in (True, False, False, False, True, False):
        RetentionCleanupOperator(task_id="r", dry_run=dry_run).execute(ran := context("r"))
        alias = ran["outlet_events"][AssetAlias(name=EVENTS_ALIAS, group="segments")]
        told += [(event.extra["change"], event.extra["expired_segments"]) for event in alias.asset_alias_events]
        seen.append((table.snapshot().rows, len(told)))
    assert told == [("retention", 1)]
    assert {(0, 1)} < set(seen) <= {(1, 0), (0, 1)}, "the event comes with the pass that hides the row"


def test_deferred_drain_in_a_dag_ends_when_the_reader_has(
    run_dag: RunDag, store: SegmentStore, table: Table, tmp_path: Path
) -> None:
    """Deferral through Airflow's own trigger machinery. The retry is due at once, and the lease has gone by then."""
    table.mark_ledgers(entry_id=reverted_push(table, tmp_path))
    with DAG(f"drain_{table.name}", schedule=None) as dag:
        DeletePendingLedgersOperator(task_id="drain", max_wait=60, deferrable=True)
        DeletionBacklogSensor(task_id="empty", deferrable=True).set_upstream(dag.task_dict["drain"])
    run = run_dag(dag)
    assert states(run) == {"drain": "success", "empty": "success"}


@pytest.mark.parametrize("lineage", ["unreadable", "gone"])
def test_table_that_fails_does_not_keep_the_others_from_their_turn(
    store: SegmentStore, table: Table, table_name: str, tmp_path: Path, lineage: str
) -> None:
    from airflow_provider_segments.exceptions import SegmentsError

    broken = make_table(store, f"{table_name}_a")
    push_rows(table, tmp_path, {"a": [1]})
    path = store.paths.lineage(broken.name)
    node = store.session.get(path)
    assert node is not None
    damage = Delete(path, node.version) if lineage == "gone" else SetData(path, b"not a lineage", node.version)
    store.session.commit([damage])
    ran = context("retention")
    with pytest.raises(SegmentsError, match=f"1 of 2 tables failed: {broken.name}"):
        RetentionCleanupOperator(task_id="retention").execute(ran)
    assert list(ran["xcoms"]["reports"]) == [table.name]


def test_what_no_retry_makes_better_fails_at_once(store: SegmentStore, table: Table) -> None:
    with pytest.raises(AirflowFailException, match="tiered"):
        OffloadSegmentsOperator(task_id="o", table=table.name, older_than="1d").execute(context("o"))
    with pytest.raises(AirflowFailException, match="period 'soon' is not valid"):
        ReconcileOperator(task_id="r", table=table.name, grace="soon").execute(context("r"))
    with pytest.raises(AirflowFailException, match="nobody"):
        RetentionCleanupOperator(task_id="t", table="nobody").execute(context("t"))


def test_connection_gives_the_deletion_settings_and_the_tiered_store(
    connection: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection["extra"] |= {
        "deletion_parallelism": 7,
        "max_lease_age": "1h",
        "tiered_storage_uri": (tmp_path / "tiered").as_uri(),
    }
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(connection))
    with SegmentsHook().get_conn() as store:
        assert (store.deletion.parallelism, store.deletion.max_lease_age_ms) == (7, 3_600_000)
        assert (store.deletion.reconsume_later_ms, store.deletion.max_retry_delete_count) == (0, 1)
        assert store.tiered is not None
        assert store.tiered.uri == (tmp_path / "tiered").as_uri()


@pytest.fixture
def tiered(connection: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The connection with tiered storage in this folder."""
    connection["extra"]["tiered_storage_uri"] = (tmp_path / "cold").as_uri()
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(connection))
    return tmp_path / "cold"


def test_offloaded_primary_copy_is_deleted_and_counted_by_its_type(
    tiered: Path, store: SegmentStore, table: Table, tmp_path: Path, metrics: MetricsBackend
) -> None:
    entry_id = table.start().entry_id
    stage_rows(table, entry_id, tmp_path, {"a": [1, 2]}, times=(1_356_998_400_000, 1_357_257_600_000))
    table.end(entry_id)

    def offload() -> dict[str, Any]:
        operator = OffloadSegmentsOperator(task_id="o", table=table.name, older_than="0s", primary_lag="0s")
        return dict(operator.execute(context("o"))[table.name])

    first = offload()
    assert (first["offloaded"], first["damaged_count"]) == (1, 0)
    _wait_until(time.time_ns() // 1_000_000 + 5)
    offload()
    assert metrics.read().get("sent.Ledger") == 1
    drain()
    assert objects(table) == []
    assert len(list(tiered.rglob("*.parquet"))) == 1
    assert metrics.read()["deleted.Ledger"] == 1


def test_reconcile_fails_when_readers_would_and_queues_orphans_when_told_to(
    store: SegmentStore, table: Table, tmp_path: Path, metrics: MetricsBackend
) -> None:
    push_rows(table, tmp_path, {"a": [1]})
    [key] = objects(table)

    def reconcile(**how: Any) -> dict[str, Any]:
        return dict(ReconcileOperator(task_id="r", grace="0s", **how).execute(context("r"))[table.name])

    assert (reconcile()["referenced"]["count"], reconcile()["orphans"]["count"]) == (1, 0)
    info = table.storage.head(key)
    assert info is not None
    orphan = key.rpartition("/")[0] + "/orphan.parquet"
    table.storage.put_file(_file(tmp_path), orphan, owner=info.owner)
    _wait_until(time.time_ns() // 1_000_000 + 1000)
    found = reconcile(enqueue="true")
    assert (found["orphans"]["count"], found["enqueued"]) == (1, 1)
    assert metrics.read()["orphans_enqueued"] == 1
    assert drain()["deleted"] == 1
    remove(table.storage, key)
    with pytest.raises(AirflowFailException, match="no object in storage"):
        reconcile()
    assert reconcile(fail_on_missing=False)["missing"]["count"] == 1


def test_real_s3_is_retained_drained_and_offloaded_with_the_connections_credentials(
    s3: S3Server, connection: dict[str, Any], table_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both storages on one S3 server, by the operators; the keys are in no report."""
    connection["extra"] |= {
        "storage_uri": f"s3://segments/{table_name}/warm",
        "tiered_storage_uri": f"s3://segments/{table_name}/cold",
        "endpoint_url": s3.endpoint_url,
        "region": "us-east-1",
        "s3_access_key": s3.access_key,
        "s3_secret_key": s3.secret_key,
    }
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(connection))
    with SegmentsHook().get_conn() as store:
        table = make_table(store, table_name, "APPEND")
        document = dict(table.config().to_json())
        document["segmentsConfig"] = {"revertedSegmentsRetentionPeriod": "0s"}
        store.apply_config(TableConfig.from_json(document))
        entry_id = table.start().entry_id
        stage_rows(table, entry_id, tmp_path, {"a": [1]}, times=(1_356_998_400_000, 1_357_257_600_000))
        table.end(entry_id)
        reverted_push(table, tmp_path)
        said = [RetentionCleanupOperator(task_id="r").execute(context("r")), drain()]
        assert (said[0][table_name]["totals"]["marked_segments"], said[1]["deleted"]) == (1, 1)
        assert objects(table) == table.snapshot().files
        offload = OffloadSegmentsOperator(task_id="o", older_than="0s", primary_lag="0s")
        said.append(offload.execute(context("o")))
        _wait_until(time.time_ns() // 1_000_000 + 5)
        said += [offload.execute(context("o")), drain()]
        assert (said[-1]["deleted"], objects(table)) == (1, [])
        assert store.tiered is not None
        assert len(list(store.tiered.list(f"{table_name}/"))) == 1
    assert s3.secret_key not in json.dumps(said)
