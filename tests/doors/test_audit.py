"""The audit trail: who did what, written in the transaction that did it."""

from __future__ import annotations

import json
import logging

import pytest

from airflow_provider_segments.cli.main import main
from airflow_provider_segments.core import audit
from airflow_provider_segments.core.locking import LockRequest
from airflow_provider_segments.core.model.interval import ALL_TIME
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import ZooKeeperSession, ZooKeeperSettings
from airflow_provider_segments.exceptions import OutcomeUnknownError, RefusedError
from tests.support.tables import make_table, on_session, push, stage


def _trail(store: SegmentStore) -> list[tuple[str, str, str]]:
    """Oldest first."""
    found = [(one.record.action, one.record.entry_id, one.record.identity) for one in store.table("t").events()]
    return found[::-1]


def test_every_switch_leaves_an_event_that_names_who_did_it(
    store: SegmentStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Started, ended, reverted, brought back, revoked, dropped; as znodes and as lines of JSON."""
    store = store.replace(actor="ada on worker-1")
    table = make_table(store)
    with caplog.at_level(logging.INFO, logger="airflow_provider_segments.audit"):
        first = push(table, identity="dag/run/task")
        second = push(table)
        table.revert(second, identity="dag/run/rollback")
        table.unrevert(second)
        lock = table.locks.acquire(LockRequest(group="g", task="t", interval=ALL_TIME))
        table.locks.revoke([lock.lock.lock_id], "grace")  # type: ignore[union-attr]
        dropped = table.drop().entry_id
    trail = _trail(store)
    assert [event[0] for event in trail] == [
        "started", "ended", "started", "ended", "reverted", "unreverted", "revoked", "dropped",
    ]  # fmt: skip
    assert trail[0] == ("started", first, "dag/run/task")
    assert trail[1] == ("ended", first, "dag/run/task")
    assert trail[4] == ("reverted", second, "dag/run/rollback")
    assert trail[6][2] == "grace"
    assert trail[7][1] == dropped
    assert {one.record.actor for one in table.events()} == {"ada on worker-1"}
    said = [json.loads(one.getMessage().removeprefix("segments event ")) for one in caplog.records]
    assert [one["action"] for one in said] == [event[0] for event in trail]
    assert {one["actor"] for one in said} == {"ada on worker-1"}


def test_what_is_refused_leaves_no_event(store: SegmentStore) -> None:
    table = make_table(store)
    entry = push(table)
    before = _trail(store)
    for refused in (lambda: table.end(table.start(["absent"]).entry_id), lambda: table.abort(entry)):
        with pytest.raises(RefusedError):
            refused()
    assert _trail(store) == before


def test_a_retry_of_what_is_done_leaves_no_second_event(store: SegmentStore) -> None:
    table = make_table(store)
    entry = table.start(identity="work").entry_id
    stage(table, entry, ["a"])
    for _ in range(3):
        assert table.end(entry).entry_id == entry
    table.start(identity="other")
    table.start(identity="other")
    assert [event[0] for event in _trail(store)] == ["started", "ended", "started"]


def test_a_switch_whose_reply_is_lost_leaves_one_event(store: SegmentStore, zk_hosts: str) -> None:
    """The event is part of the transaction: the retry finds the switch done, and the event beside it."""
    table = make_table(store)
    entry = table.start().entry_id
    stage(table, entry, ["a"])
    with ZooKeeperSession.connect(ZooKeeperSettings(hosts=zk_hosts)) as session:
        other = on_session(store, session)
        real, lost = session.commit, []

        def lose(ops: object) -> object:
            done = real(ops)  # type: ignore[arg-type]
            if len(list(ops)) > 2 and not lost:  # type: ignore[call-overload]
                lost.append(True)
                raise OutcomeUnknownError("the reply was lost")
            return done

        session.commit = lose  # type: ignore[assignment, method-assign]
        other.table("t").end(entry)
    assert lost
    assert [event[0] for event in _trail(store)] == ["started", "ended"]


def test_the_trail_is_bounded_and_keeps_the_newest(store: SegmentStore) -> None:
    table = make_table(store)
    entries = [push(table, 1) for _ in range(4)]
    assert audit.trim(store.cluster, "t", kept=3) == 5
    assert _trail(store)[-1][1] == entries[-1]
    assert len(_trail(store)) == 3
    table.retain()
    assert len(_trail(store)) == 3


def test_the_command_line_shows_the_trail(
    store: SegmentStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, zk_hosts: str
) -> None:
    table = make_table(store.replace(actor="ada\x1b[2J on worker-1"))
    entry = push(table, identity="dag/run/task")
    for name, value in {"ZOOKEEPER": zk_hosts, "CLUSTER": store.paths.cluster, "STORAGE": store.storage.uri}.items():
        monkeypatch.setenv(f"SEGMENTS_{name}", value)
    assert main(["log", "t"]) == 0
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("ended", entry[:8], "ada\\x1b[2J on worker-1", "dag/run/task"))
    assert main(["log", "t", "--json", "--limit", "1"]) == 0
    assert [one["action"] for one in json.loads(capsys.readouterr().out)] == ["ended"]
