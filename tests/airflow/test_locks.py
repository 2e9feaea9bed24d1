"""Locks in Airflow: acquired and released around a push, waited for, revoked, and never left behind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, chain
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_segments.core.locking import Denied, Granted, Lock, LockRequest, LockType, granted_lock
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval, parse_time
from airflow_provider_segments.core.model.segment import SegmentState
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import LockDeniedError, LockLostError, LockRevokedError
from airflow_provider_segments.operators.build import BuildSegmentsOperator
from airflow_provider_segments.operators.compact import CompactSegmentsOperator
from airflow_provider_segments.operators.locks import (
    AcquireSegmentLockOperator,
    ReleaseSegmentLockOperator,
    RevokeSegmentLockOperator,
    given_locks,
    renewed,
)
from airflow_provider_segments.operators.replace import EndReplaceSegmentsOperator, StartReplaceSegmentsOperator
from airflow_provider_segments.operators.unfinished import RevertUnfinishedOperator, revert_unfinished_pushes
from airflow_provider_segments.sensors.locks import SegmentLockSensor
from airflow_provider_segments.task_groups.replace import replace_segments
from airflow_provider_segments.triggers.locks import LockGrantTrigger, SegmentLockTrigger
from tests.airflow.helpers import RunDag, context, fired, make_table, stage_rows, states
from tests.airflow.test_dags import dags
from tests.airflow.test_task_group import mark_run_failed

START, END = "2013-01-01", "2013-02-01"
JANUARY = Interval(parse_time(START), parse_time(END))
SHORT_MS = 1_500


@pytest.fixture
def table(store: SegmentStore, table_name: str) -> Table:
    return make_table(store, table_name, "APPEND")


def attempt(task_id: str = "acquire", run_id: str = "run", number: int = 1) -> Any:
    """A task's context at one of its attempts."""
    made = context(task_id, run_id)
    made["ti"].try_number = number
    return made


def acquire(table: Table, **more: Any) -> AcquireSegmentLockOperator:
    return AcquireSegmentLockOperator(
        task_id="acquire", table=table.name, **{"start": START, "end": END, "timeout": "0s", **more}
    )


def other(table: Table, group: str = "other", **more: Any) -> Lock:
    """A lock of somebody else."""
    request: dict[str, Any] = {"group": group, "task": group, "interval": JANUARY, **more}
    return granted_lock(table.name, table.locks.acquire(LockRequest(**request)))


def active(table: Table) -> list[Lock]:
    return [lock for lock in table.locks.locks() if lock.active]


def until(true: Callable[[], Any], seconds: float = 30) -> None:
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it never came true"
        time.sleep(0.02)


class Running:
    """A task's ``execute`` in a thread, as its process would run it."""

    def __init__(self, operator: Any, given: Any) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(operator, given), daemon=True)
        self._thread.start()

    def _run(self, operator: Any, given: Any) -> None:
        try:
            self.result = operator.execute(given)
        except BaseException as error:
            self.error = error

    def end(self, seconds: float = 30) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive()


# --- revoke


def test_revoked_lock_names_the_task_that_did_it_and_a_retry_finds_it_revoked(table: Table) -> None:
    lock = other(table)
    revoke = RevokeSegmentLockOperator(task_id="revoke", table=table.name, lock_id=lock.lock_id[:8])
    first, again = (revoke.execute(context("revoke")) for _ in range(2))
    assert (first["already"], again["already"], first["group"]) == (False, True, "other")
    [revoked] = table.locks.locks()
    assert revoked.revoked is not None and revoked.revoked.by.endswith("/dag/run/revoke")


@pytest.mark.parametrize("named", ["abc", "", "nothing"])
def test_lock_that_is_not_there_is_refused_and_no_other_is_revoked(table: Table, named: str) -> None:
    lock = other(table)
    with pytest.raises(AirflowFailException):
        RevokeSegmentLockOperator(task_id="revoke", table=table.name, lock_id=named).execute(context("revoke"))
    assert active(table) == [lock]


def test_dag_revokes_a_lock_and_its_owner_can_not_publish(table: Table, run_dag: RunDag, tmp_path: Path) -> None:
    lock = other(table)
    started = table.start((), locks=[HeldLock(lock.lock_id, "other", "other")])
    stage_rows(table, started.entry_id, tmp_path, {"a": [1]})
    done = run_dag(dags()["segments_revoke_lock"], {"table": table.name, "lock_id": lock.lock_id})
    assert done.state == "success", states(done)
    with pytest.raises(LockRevokedError, match="segments_revoke_lock"):
        table.end(started.entry_id)
    absent = run_dag(dags()["segments_revoke_lock"], {"table": "absent", "lock_id": lock.lock_id})
    assert absent.state == "failed"


# --- acquire and release


def test_acquired_lock_belongs_to_the_run_and_the_task(table: Table) -> None:
    result = acquire(table).execute(attempt())
    [lock] = active(table)
    assert (lock.group, lock.tasks, lock.priority, lock.lock_type) == (
        "tests/dag/run",
        ("tests/dag/run/acquire",),
        50,
        LockType.EXCLUSIVE,
    )
    assert result == {
        "lock_id": lock.lock_id,
        "group": "tests/dag/run",
        "task": "tests/dag/run/acquire",
        "version": lock.version,
        "start": "2013-01-01T00:00:00Z",
        "end": "2013-02-01T00:00:00Z",
        "lock_type": "EXCLUSIVE",
        "lease_until": result["lease_until"],
        "lease_ms": 300_000,
    }
    assert parse_time(result["lease_until"]) == lock.lease_until_ms


def test_xcoms_and_triggers_hold_no_secret(
    table: Table, connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3t-of-the-connection"
    extra = {**connection["extra"], "s3_secret_key": secret, "s3_access_key": secret}
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps({**connection, "extra": extra}))
    ran = attempt()
    said = json.dumps([acquire(table).execute(ran), ran["xcoms"]])
    assert "lock_id" in said and "segments_default" in said
    with pytest.raises(TaskDeferred) as deferred:
        acquire(table, timeout="1m", deferrable=True).execute(attempt(run_id="second"))
    assert deferred.value.trigger is not None
    said += json.dumps([deferred.value.trigger.serialize()])
    assert secret not in said


def test_retried_task_finds_its_own_lock(table: Table) -> None:
    first = acquire(table).execute(attempt())
    again = acquire(table).execute(attempt(number=2))
    assert again["lock_id"] == first["lock_id"]
    assert len(active(table)) == 1


def test_retried_task_whose_lock_was_revoked_takes_a_new_one(table: Table) -> None:
    first = acquire(table).execute(attempt())
    thief = other(table, priority=75)
    table.locks.release("other", "other", lock_ids=[thief.lock_id])
    again = acquire(table).execute(attempt(number=2))
    assert again["lock_id"] != first["lock_id"]
    assert again["version"] > first["version"]
    assert [lock.lock_id for lock in table.locks.locks()] == [again["lock_id"]], "the revoked one is released"


def test_denied_lock_fails_naming_who_holds_it_and_leaves_nothing(table: Table) -> None:
    held = other(table, "nightly/monday")
    with pytest.raises(LockDeniedError, match=r"nightly/monday \(priority 50\)"):
        acquire(table).execute(attempt())
    assert [lock.lock_id for lock in table.locks.locks()] == [held.lock_id]


def test_waiting_task_says_who_is_in_the_way_and_gets_the_lock_after_its_release(
    table: Table, capfd: pytest.CaptureFixture[str]
) -> None:
    other(table, "nightly/monday", priority=60)
    operator = acquire(table, timeout="1m")
    waiting = Running(operator, attempt())
    until(lambda: operator._said_at > 0)
    assert not waiting.result
    table.locks.release_group("nightly/monday")
    waiting.end()
    assert waiting.result["lock_id"] == active(table)[0].lock_id
    assert "nightly/monday (priority 60), held by nightly/monday for " in "".join(capfd.readouterr())


def test_waiting_task_gets_an_abandoned_lock_when_its_lease_ends(table: Table) -> None:
    other(table, lease_ms=SHORT_MS)
    assert acquire(table, timeout="1m").execute(attempt())["lock_id"] == active(table)[0].lock_id


def test_task_killed_while_it_waits_is_granted_nothing_any_more(table: Table) -> None:
    other(table)
    operator = acquire(table, timeout="1m")
    waiting = Running(operator, attempt())
    until(lambda: operator._asking is not None)
    operator.on_kill()
    table.locks.release_group("other")
    waiting.end()
    assert waiting.error is not None
    assert not table.locks.locks()
    assert acquire(table).execute(attempt(number=2)), "a later attempt may ask again"


def test_without_its_removal_a_killed_task_is_granted_the_lock(table: Table) -> None:
    """Revert test: only ``remove_task`` makes the box refuse what a killed attempt still asks for."""
    request = acquire(table)._request(attempt())
    assert isinstance(table.locks.acquire(request), Granted)
    table.locks.release(request.group, request.task)
    assert isinstance(table.locks.acquire(request), Granted)


def test_task_killed_when_it_has_its_lock_releases_it(table: Table) -> None:
    operator = acquire(table)
    operator._killed = True
    with pytest.raises(AirflowFailException, match="released"):
        operator.execute(attempt())
    assert not table.locks.locks()


def test_task_that_fails_with_its_lock_releases_it(table: Table) -> None:
    ran = attempt()
    ran["ti"].xcom_push = lambda **_: (_ for _ in ()).throw(OSError("no supervisor"))
    with pytest.raises(OSError, match="no supervisor"):
        acquire(table).execute(ran)
    assert not table.locks.locks()


@pytest.mark.parametrize("bad", [{"lock_type": "exclusive"}, {"lock_type": ""}, {"start": END}, {"lease": "soon"}])
def test_request_that_makes_no_sense_is_refused(table: Table, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"lock_type|interval start|period"):
        acquire(table, **bad).execute(attempt())
    assert not table.locks.locks()


def test_release_takes_all_locks_of_the_run_and_nobody_elses(table: Table) -> None:
    acquire(table).execute(attempt())
    acquire(table, start="2014-01-01", end="2015-01-01").execute(attempt("second"))
    foreign = acquire(table, start="2016-01-01", end="2017-01-01").execute(attempt(run_id="another"))
    release = ReleaseSegmentLockOperator(task_id="release", table=table.name)
    assert release.execute(attempt("release")) == 2
    assert release.execute(attempt("release")) == 0, "releasing what is released is success"
    assert [lock.lock_id for lock in active(table)] == [foreign["lock_id"]]


def test_release_of_one_lock_leaves_the_others(table: Table) -> None:
    first = acquire(table).execute(attempt())
    second = acquire(table, start="2014-01-01", end="2015-01-01").execute(attempt("second"))
    release = ReleaseSegmentLockOperator(task_id="release", table=table.name, locks=json.dumps([first]))
    assert release.execute(attempt("release")) == 1
    assert [lock.lock_id for lock in active(table)] == [second["lock_id"]]


@pytest.mark.parametrize("given", [None, 7, ["x"], {"lock_id": "x"}, [None]])
def test_push_that_was_to_rely_on_a_lock_does_not_start_without_one(table: Table, given: Any) -> None:
    with pytest.raises(ValueError, match="AcquireSegmentLockOperator"):
        StartReplaceSegmentsOperator(task_id="start", table=table.name, locks=given).execute(context("start"))
    assert not list(table.lineage())


def test_no_locks_are_no_locks() -> None:
    assert given_locks(()) == given_locks("") == given_locks([]) == []


# --- waiting in the triggerer


def deferred(operator: Any, given: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        operator.execute(given)
    return caught.value


def again(trigger: Any) -> Any:
    """The trigger as the triggerer makes it, from what was serialized."""
    _, arguments = trigger.serialize()
    made = type(trigger)(**json.loads(json.dumps(arguments)))
    assert made.serialize() == trigger.serialize()
    return made


def test_deferred_task_wakes_on_the_release_and_takes_the_lock(table: Table) -> None:
    other(table)
    operator = acquire(table, timeout="1m", deferrable=True)
    left = deferred(operator, attempt())
    event = asyncio.run(fired(again(left.trigger), lambda: table.locks.release_group("other")))
    assert event["status"] == "free"
    assert not table.locks.locks(), "a trigger holds no lock"
    assert operator.execute_complete(attempt(), event)["lock_id"] == active(table)[0].lock_id


def test_deferred_task_that_was_not_fast_enough_waits_on(table: Table) -> None:
    operator = acquire(table, timeout="1m", deferrable=True)
    other(table)
    with pytest.raises(TaskDeferred) as caught:
        operator.execute_complete(attempt(), {"status": "free", "table": table.name, "until": time.time() + 60})
    assert isinstance(caught.value.trigger, LockGrantTrigger)


def test_trigger_wakes_when_the_lease_in_its_way_ends_and_not_before(table: Table) -> None:
    held = other(table, lease_ms=SHORT_MS)
    trigger = deferred(acquire(table, timeout="1m", deferrable=True), attempt()).trigger
    table.locks.renew("other", "other", 2 * SHORT_MS)
    assert asyncio.run(fired(again(trigger)))["status"] == "free"
    assert time.time() * 1000 >= held.granted_ms + 2 * SHORT_MS


def test_deferred_task_whose_time_is_over_fails_naming_who_is_in_the_way(table: Table) -> None:
    other(table, "nightly/monday")
    operator = acquire(table, timeout="1s", deferrable=True)
    left = deferred(operator, attempt())
    event = asyncio.run(fired(again(left.trigger)))
    assert event["status"] == "timeout"
    with pytest.raises(LockDeniedError, match="nightly/monday"):
        operator.execute_complete(attempt(), event)


def test_trigger_waits_for_the_next_lock_in_the_way(table: Table) -> None:
    other(table, "first", interval=Interval(JANUARY.start_ms, JANUARY.start_ms + 1))
    other(table, "second", interval=Interval(JANUARY.end_ms - 1, JANUARY.end_ms))
    trigger = again(deferred(acquire(table, timeout="1m", deferrable=True), attempt()).trigger)

    def one_by_one() -> None:
        table.locks.release_group("first")
        time.sleep(0.5)
        table.locks.release_group("second")

    assert asyncio.run(fired(trigger, one_by_one))["status"] == "free"


def test_shared_lock_does_not_wait_for_shared_ones(table: Table) -> None:
    other(table, lock_type=LockType.SHARED)
    assert acquire(table, lock_type="SHARED").execute(attempt())["lock_type"] == "SHARED"


def sensor(table: Table, **more: Any) -> SegmentLockSensor:
    return SegmentLockSensor(task_id="wait", table=table.name, **{"start": START, "end": END, **more})


@pytest.mark.parametrize("deferrable", [False, True])
def test_sensor_passes_when_nobody_else_is_on_the_interval(table: Table, deferrable: bool) -> None:
    other(table, interval=Interval(JANUARY.end_ms, JANUARY.end_ms + 1))
    acquire(table).execute(attempt())
    assert sensor(table, deferrable=deferrable).execute(attempt("wait")) is None
    other(table, "thief", priority=75)
    assert sensor(table, deferrable=deferrable, priority="76").execute(attempt("wait")) is None
    assert sensor(table, deferrable=deferrable, lock_id="gone", start=None).execute(attempt("wait")) is None


@pytest.mark.parametrize("which", ["interval", "lock id", "priority"])
def test_sensor_waits_by_poke_and_on_the_watch_until_the_lock_is_gone(table: Table, which: str) -> None:
    held = other(table)
    how: dict[str, Any] = {"interval": {}, "priority": {"priority": 50}}.get(which, {"lock_id": held.lock_id})
    assert sensor(table, **how).poke(attempt("wait")) is False
    left = deferred(sensor(table, deferrable=True, **how), attempt("wait"))
    assert isinstance(left.trigger, SegmentLockTrigger)
    before = time.monotonic()
    event = asyncio.run(fired(again(left.trigger), lambda: table.locks.revoke([held.lock_id], "somebody")))
    assert time.monotonic() - before < 15, "the poll interval is 60 s: only the watch can have told"
    sensor(table, **how).execute_complete(attempt("wait"), event)
    assert sensor(table, **how).poke(attempt("wait"))


def test_sensor_polls_on_in_its_own_process(table: Table) -> None:
    other(table)
    waiting = Running(sensor(table, poke_interval=0.1, timeout=60), attempt("wait"))
    table.locks.release_group("other")
    waiting.end()
    assert waiting.error is None


def test_sensor_without_anything_to_wait_for_is_refused(table: Table) -> None:
    with pytest.raises(ValueError, match="start and end, or lock_id"):
        sensor(table, start="").execute(attempt("wait"))


# --- work under a lock


def long_job(monkeypatch: pytest.MonkeyPatch, seconds: float = 60) -> list[subprocess.Popen[str]]:
    """Have ``spark-submit`` replaced by a process that only takes time; the processes that were started."""
    started: list[subprocess.Popen[str]] = []

    class Job(subprocess.Popen[str]):
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__([sys.executable, "-c", f"import time; time.sleep({seconds})"], **options)
            started.append(self)

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.subprocess.Popen", Job)
    return started


def test_build_keeps_the_lease_of_its_push_alive(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    held = acquire(table, lease="2s").execute(attempt())
    long_job(monkeypatch, 6)
    build = BuildSegmentsOperator(
        task_id="build", table=table.name, entry_id="x", input="i", engine="spark", locks=held
    )
    working = Running(build, context("build"))
    request = LockRequest(group="thief", task="thief", interval=JANUARY)
    assert isinstance(table.locks.acquire_blocking(request, 5), Denied)
    working.end()
    assert working.error is None


def test_without_renewal_the_lock_of_a_long_build_is_taken(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Revert test: the parameter ``locks`` is what keeps it."""
    acquire(table, lease="2s").execute(attempt())
    long_job(monkeypatch, 6)
    working = Running(
        BuildSegmentsOperator(task_id="b", table=table.name, entry_id="x", input="i", engine="spark"), context("b")
    )
    request = LockRequest(group="thief", task="thief", interval=JANUARY)
    assert isinstance(table.locks.acquire_blocking(request, 5), Granted)
    working.end()


def test_build_whose_lock_is_revoked_is_ended_and_says_who_did_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = acquire(table, lease="2s").execute(attempt())
    started = long_job(monkeypatch)
    build = BuildSegmentsOperator(
        task_id="build", table=table.name, entry_id="x", input="i", engine="spark", locks=[held]
    )
    working = Running(build, context("build"))
    until(lambda: started)
    other(table, "urgent", priority=75)
    working.end()
    assert isinstance(working.error, LockRevokedError)
    assert "urgent" in str(working.error)
    assert started[0].poll() is not None


def test_work_in_process_ends_with_the_error_of_its_lost_lock(table: Table) -> None:
    held = given_locks(acquire(table, lease="1s").execute(attempt()))
    told: list[Exception] = []
    with pytest.raises(LockLostError), renewed(table.locks, held, told.append):
        table.locks.release_group("tests/dag/run")
        until(lambda: told)
        raise KeyError("what the work made of it")


@pytest.mark.parametrize("how", ["killed", "failed"])
def test_compaction_that_ends_badly_leaves_no_lock_of_its_driver(
    table: Table, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    started = long_job(monkeypatch)
    operator = CompactSegmentsOperator(task_id="compact", table=table.name)
    working = Running(operator, context("compact"))
    until(lambda: started)
    other(table, "tests/dag/run/compact", priority=25)  # as the driver does
    foreign = other(table, "somebody", interval=Interval(JANUARY.end_ms, JANUARY.end_ms + 1))
    if how == "killed":
        operator.on_kill()
    else:
        started[0].kill()
    working.end()
    assert working.error is not None
    assert [lock.lock_id for lock in active(table)] == [foreign.lock_id]


def test_without_the_release_a_killed_compaction_keeps_its_locks_until_the_lease_ends(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Revert test: the operator is what releases them; whoever comes before the lease ends is denied."""
    started = long_job(monkeypatch)
    monkeypatch.setattr(CompactSegmentsOperator, "_release_locks", lambda _: None)
    operator = CompactSegmentsOperator(task_id="compact", table=table.name)
    working = Running(operator, context("compact"))
    until(lambda: started)
    other(table, "tests/dag/run/compact", priority=25, lease_ms=SHORT_MS)
    operator.on_kill()
    working.end()
    request = LockRequest(group="next", task="next", interval=JANUARY, priority=25)
    assert isinstance(table.locks.acquire(request), Denied)
    assert isinstance(table.locks.acquire_blocking(request, 20), Granted)


# --- whole DAG runs


def locked_push(table: Table, folder: Path, during: Callable[[], Any] = lambda: None, **lock: Any) -> DAG:
    """A push under a lock, without Spark; ``during`` runs between staging and ending."""

    def stage(entry_id: str) -> None:
        stage_rows(table, entry_id, folder, {"a": [1]})
        during()

    with DAG(f"locked_{table.name}", schedule=None) as dag:
        held = AcquireSegmentLockOperator(
            task_id="acquire", table=table.name, **{"start": START, "end": END, "timeout": "0s", **lock}
        )
        start = StartReplaceSegmentsOperator(task_id="start", table=table.name, locks=held.output)
        build = PythonOperator(task_id="build", python_callable=stage, op_args=[start.output])
        end = EndReplaceSegmentsOperator(
            task_id="end", table=table.name, entry_id="{{ ti.xcom_pull(task_ids='start') }}"
        )
        revert = RevertUnfinishedOperator(task_id="revert", table=table.name, start_task_id="start")
        release = ReleaseSegmentLockOperator(task_id="release", table=table.name)
        chain(held, start, build, end, revert.as_teardown(setups=start), release.as_teardown(setups=held))
    return dag


def test_second_run_is_denied_during_a_push_and_gets_the_lock_after_it(
    table: Table, run_dag: RunDag, tmp_path: Path
) -> None:
    seen: list[str] = []

    def meanwhile() -> None:
        try:
            acquire(table).execute(attempt(run_id="second"))
        except LockDeniedError as error:
            seen.append(str(error))

    run = run_dag(locked_push(table, tmp_path, meanwhile))
    assert run.state == "success", states(run)
    assert (table.snapshot().rows, table.locks.locks()) == (1, ())
    assert f"locked_{table.name}/{run.run_id} (priority 50)" in seen[0]
    assert acquire(table).execute(attempt(run_id="second", number=2))


@pytest.mark.parametrize("deferrable", [False, True])
def test_run_waits_for_a_lock_and_gets_it(table: Table, run_dag: RunDag, tmp_path: Path, deferrable: bool) -> None:
    other(table, lease_ms=4_000)  # abandoned: dag.test() runs one task at a time, and nobody can release it meanwhile
    run = run_dag(locked_push(table, tmp_path, timeout="1m", deferrable=deferrable))
    assert run.state == "success", states(run)
    assert table.snapshot().rows == 1
    assert [lock.group for lock in active(table)] == []


def test_push_revoked_by_a_higher_priority_fails_naming_it_and_changes_nothing(
    table: Table, run_dag: RunDag, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_dag(locked_push(table, tmp_path, lambda: other(table, "urgent/push", priority=75)))
    assert run.state == "failed"
    found = states(run)
    assert (found["build"], found["end"], found["revert"], found["release"]) == (
        "success",
        "failed",
        "success",
        "success",
    )
    said = "".join(capfd.readouterr())
    assert "LockRevokedError" in said
    assert "revoked by urgent/push of urgent/push" in said
    assert table.snapshot().rows == 0
    assert [entry.state.value for entry in table.lineage()] == ["REVERTED"]
    assert [lock.group for lock in table.locks.locks()] == ["urgent/push"], "the revoked lock is released as well"


def test_push_that_does_not_rely_on_its_lock_publishes_although_it_was_revoked(
    table: Table, run_dag: RunDag, tmp_path: Path
) -> None:
    """Revert test: ``locks`` of the start is what makes the end check them."""
    dag = locked_push(table, tmp_path, lambda: other(table, "urgent/push", priority=75))
    start: Any = dag.get_task("start")
    start.locks = ()
    assert run_dag(dag).state == "success"
    assert table.snapshot().rows == 1


def test_group_with_a_lock_releases_it_when_the_run_is_marked_failed(
    table: Table, run_dag: RunDag, tmp_path: Path
) -> None:
    held: list[str] = []

    def look_then_mark(given: Any) -> None:
        held.extend(lock.group for lock in active(table))
        mark_run_failed(given)

    with DAG(f"group_{table.name}", schedule=None) as dag:
        replace_segments(
            table=table.name, input="i", lock={"start": START, "end": END}, build={"pre_execute": look_then_mark}
        )
    run = run_dag(dag)
    found = {task.removeprefix("replace_segments."): state for task, state in states(run).items()}
    assert held == [f"tests/{dag.dag_id}/{run.run_id}"]
    assert (run.state, found["revert"], found["release"], found["outcome"]) == (
        "failed",
        "success",
        "success",
        "failed",
    )
    assert not table.locks.locks()


def test_group_without_a_lock_has_no_lock_tasks() -> None:
    with DAG("plain", schedule=None) as dag:
        replace_segments(table="t", input="i")
    assert not {"acquire", "release"} & {task.label for task in dag.tasks}


def test_group_with_a_lock_starts_over_with_its_lock_when_it_is_cleared() -> None:
    with DAG("shape", schedule=None) as dag:
        after = PythonOperator(task_id="after", python_callable=print)
        replace_segments(table="t", input="i", validate={"min_rows": 1}, lock={"start": START, "end": END}) >> after
    assert after.upstream_task_ids == {"replace_segments.end"}
    cleared = dag.get_task("replace_segments.build").get_upstreams_only_setups_and_teardowns()
    assert {"acquire", "start"} <= {task.label for task in cleared}
    for label in ("start", "build", "validate"):
        task: Any = dag.get_task(f"replace_segments.{label}")
        assert task.locks.operator.label == "acquire"


def test_run_that_timed_out_has_its_locks_released(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow skips teardowns when a run exceeds its time-out; the callback is what it still runs."""
    from airflow.providers.common.compat.sdk import XCom

    ran = attempt()
    with DAG("timed", schedule=None) as dag:
        operator = acquire(table)
    operator.execute(ran)
    kept = {("acquire", "lock"): [ran["xcoms"]["lock"]]}
    monkeypatch.setattr(XCom, "get_all", lambda *, key, task_id, **_: kept.get((task_id, key)))
    revert_unfinished_pushes({"dag": dag, "run_id": "run"})
    assert not table.locks.locks()


def test_append_dag_appends_and_its_segments_get_versions_and_ids(
    run_dag: RunDag, store: SegmentStore, table_name: str, tmp_path: Path
) -> None:
    """The DAG as it comes, with real Spark; the second run adds to the first, and no lock stays behind."""
    for number in (1, 2):
        path = tmp_path / f"2026-{number}.csv"
        path.write_text("time_hour,carrier\n" + "".join(f"2013-0{month}-01T05:00:00Z,UA\n" for month in (1, 1, 2)))
        run = run_dag(dags()["segments_append"], {"table": table_name, "input": str(path), "min_rows": 3})
        assert run.state == "success", states(run)
    table = store.table(table_name)
    assert (table.snapshot().rows, len(table.snapshot())) == (6, 4)
    found = table.segment_states()
    assert {one.state for one in found} == {SegmentState.VISIBLE}
    assert sorted((one.segment.chunk, one.segment.partition) for one in found) == [
        (chunk, number) for chunk in ("2013-01", "2013-02") for number in (0, 1)
    ]
    first, second = ({one.segment.version for one in found if one.segment.partition == number} for number in (0, 1))
    assert max(first) < min(second), "each run has locks of its own"
    assert not active(table)


@pytest.mark.parametrize(("lock_type", "visible"), [("APPEND", 2), ("EXCLUSIVE", 1)], ids=["append", "exclusive"])
def test_push_under_a_lock_brings_its_version_and_overwrites_if_the_lock_is_exclusive(
    run_dag: RunDag, store: SegmentStore, table_name: str, tmp_path: Path, lock_type: str, visible: int
) -> None:
    """Hide what was in the locked time only if nobody else could append there meanwhile."""
    path = tmp_path / "january.csv"
    path.write_text("time_hour,carrier\n2013-01-01T05:00:00Z,UA\n")
    versions: list[int] = []
    config = {
        "segmentsConfig": {"timeColumnName": "time_hour"},
        "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "APPEND"}},
        "segmentBuildConfig": {"segmentGranularity": "MONTH", "segmentLocking": True},
    }
    with DAG(f"locking_{table_name}", schedule=None) as dag:
        replace_segments(
            table=table_name,
            config=config,
            input=str(path),
            input_format="csv",
            input_options={"header": "true"},
            lock={"start": START, "end": END, "lease": "5s", "lock_type": lock_type},
            build={"pre_execute": lambda _: versions.extend(lock.version for lock in active(store.table(table_name)))},
        )
    for _ in range(2):
        run = run_dag(dag)
        assert run.state == "success", states(run)
    table = store.table(table_name)
    in_order = sorted(table.segment_states(), key=lambda one: one.segment.version)
    drawn = list(zip(versions, [one.segment.version for one in in_order], strict=True))
    assert sorted(drawn) == drawn and all(lock <= version for lock, version in drawn), "drawn under the lock"
    assert drawn[0][1] < drawn[1][0]
    assert [one.state is SegmentState.VISIBLE for one in in_order] == [visible == 2, True]
    assert (len(table.snapshot()), table.snapshot().rows) == (visible, visible)
    assert not table.locks.locks()
