"""The lock box scenarios of Apache Druid, each step's answer compared, on the pure box and on the one in ZooKeeper.

None of the 23 is answered differently by design. What differs and no scenario touches is listed in
:data:`DIFFERENT_BY_DESIGN`, each with the test that asserts our answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.core.locking import holding
from airflow_provider_segments.core.locking import state as boxes
from airflow_provider_segments.core.locking.box import LockBox
from airflow_provider_segments.core.locking.types import (
    Denied,
    Granted,
    Lock,
    LockGranularity,
    LockRequest,
    LockType,
    Revoked,
)
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import LockLostError, LockRefusedError
from tests.locking import test_box
from tests.locking.helpers import PureBox, interval

SCENARIOS = json.loads((Path(__file__).parents[1] / "data" / "druid_lockbox_scenarios.json").read_text())

DIFFERENT_BY_DESIGN = {
    "several own locks cover a request: Druid fails, we answer with the same one each time": (
        test_box.test_a_group_with_several_locks_that_cover_a_request_gets_the_same_one_each_time
    ),
    "several locks of one task cover a published interval: Druid fails (time chunks) or treats it as valid "
    "(segments), we check every one": test_box.test_every_lock_that_covers_a_segment_must_hold,
    "the version of a lock is the time: Druid trusts the clock, ours is above every version of the chunk": (
        test_box.test_a_lock_version_is_above_every_known_version_whatever_the_clock_says
    ),
    "no lease in Druid (its overlord knows which tasks live): ours can be taken when its lease is over": (
        test_box.test_a_lock_whose_lease_is_over_is_taken_whatever_its_priority
    ),
    "a removed task stays removed in Druid: ours may ask again as a later attempt": (
        test_box.test_a_removed_task_may_ask_again_as_a_later_attempt
    ),
}


class OnPure:
    """A scenario's calls on the pure box."""

    def __init__(self) -> None:
        self.pure = PureBox()

    def acquire(self, request: LockRequest) -> Any:
        return self.pure.acquire(request)

    def locks(self) -> tuple[Lock, ...]:
        return self.pure.box.locks

    def release(self, group: str, task: str, where: Interval) -> None:
        self.pure.box = boxes.release(self.pure.box, lambda lock: lock.interval == where and lock.group == group, task)

    def remove_task(self, group: str, task: str, attempt: int) -> None:
        self.pure.box = boxes.remove_task(self.pure.box, group, task, attempt, self.pure.turn())

    def revoke(self, lock_ids: list[str]) -> None:
        self.pure.box = boxes.revoke(self.pure.box, lock_ids, "the scenario", self.pure.turn())

    def critical(self, group: str, task: str, where: Interval) -> None:
        holding.covering_intervals(self.pure.box, [where], group, task, self.pure.turn())


class OnZooKeeper:
    """A scenario's calls on the lock box in ZooKeeper; publishing is a real transaction."""

    def __init__(self, store: SegmentStore, name: str) -> None:
        self.session = store.session
        self.box = LockBox(store.session, store.paths, name)

    def acquire(self, request: LockRequest) -> Any:
        return self.box.acquire(request)

    def locks(self) -> tuple[Lock, ...]:
        return self.box.locks()

    def release(self, group: str, task: str, where: Interval) -> None:
        assert self.box.release(group, task, interval=where) == 1

    def remove_task(self, group: str, task: str, attempt: int) -> None:
        self.box.remove_task(group, task, attempt)

    def revoke(self, lock_ids: list[str]) -> None:
        self.box.revoke(lock_ids, "the scenario")

    def critical(self, group: str, task: str, where: Interval) -> None:
        self.session.commit(self.box.fence_intervals([where], group=group, task=task))


class Player:
    """Plays a scenario. A task that is announced again is its next attempt."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.tasks: dict[str, dict[str, Any]] = {}
        self.attempts: dict[str, int] = {}

    def step(self, op: dict[str, Any]) -> Any:
        return getattr(self, op["op"])(op)

    def task(self, op: dict[str, Any]) -> None:
        self.tasks[op["task"]] = op
        self.attempts[op["task"]] = self.attempts.get(op["task"], 0) + 1

    def lock(self, op: dict[str, Any]) -> str:
        task = self.tasks[op["task"]]
        is_segment = op.get("gran") == "seg"
        request = LockRequest(
            group=task["group"],
            task=op["task"],
            interval=interval(op["interval"]),
            lock_type=LockType[op["type"]],
            granularity=LockGranularity.SEGMENT if is_segment else LockGranularity.TIME_CHUNK,
            partitions=frozenset({op["part"]}) if is_segment else frozenset(),
            version=op.get("version"),
            priority=task["prio"],
            attempt=self.attempts[op["task"]],
            internal=task.get("embedded", False),
        )
        try:
            result = self.target.acquire(request)
        except LockRefusedError:
            return "error"
        return {Granted: "granted", Denied: "denied", Revoked: "revoked"}[type(result)]

    def active(self, op: dict[str, Any]) -> list[str]:
        return sorted(self.shown(lock, op) for lock in self.target.locks() if lock.active)

    def revoked(self, op: dict[str, Any]) -> list[str]:
        return sorted(self.shown(lock, op) for lock in self.target.locks() if not lock.active)

    def shown(self, lock: Lock, op: dict[str, Any]) -> str:
        """As the scenario writes it."""
        known = {interval(text.split()[1]): text.split()[1] for text in op["expect"]}
        return f"{lock.lock_type.value} {known.get(lock.interval, lock.interval)}"

    def release(self, op: dict[str, Any]) -> None:
        self.target.release(self.tasks[op["task"]]["group"], op["task"], interval(op["interval"]))

    def remove_task(self, op: dict[str, Any]) -> None:
        self.target.remove_task(self.tasks[op["task"]]["group"], op["task"], self.attempts[op["task"]])

    def revoke(self, op: dict[str, Any]) -> None:
        found = [
            lock.lock_id
            for lock in self.target.locks()
            if op["task"] in lock.tasks
            and lock.interval == interval(op["interval"])
            and lock.lock_type.value == op["type"]
        ]
        self.target.revoke(found)

    def critical(self, op: dict[str, Any]) -> str:
        try:
            self.target.critical(self.tasks[op["task"]]["group"], op["task"], interval(op["interval"]))
        except LockLostError as lost:
            return "error" if lost.rule == "not-covered" else "invalid"
        return "valid"


def play(scenario: dict[str, Any], target: Any) -> None:
    player = Player(target)
    for number, op in enumerate(scenario["ops"]):
        answer = player.step(op)
        assert answer == op.get("expect"), f"{scenario['id']} step {number}: {op}"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["id"])
def test_the_box_answers_as_druid_does(scenario: dict[str, Any]) -> None:
    play(scenario, OnPure())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["id"])
def test_the_box_in_zookeeper_answers_as_druid_does(store: SegmentStore, scenario: dict[str, Any]) -> None:
    target = OnZooKeeper(store, "t")
    play(scenario, target)
    active = {lock.lock_id for lock in target.locks() if lock.active}
    assert set(store.session.children(target.box.path)) == active, "the fences are those of the active locks"


def test_every_scenario_is_played() -> None:
    assert len(SCENARIOS) == 23 and all(scenario["id"].startswith("L") for scenario in SCENARIOS)


@pytest.mark.parametrize("reason", DIFFERENT_BY_DESIGN)
def test_what_differs_by_design_has_a_test(reason: str) -> None:
    DIFFERENT_BY_DESIGN[reason]()
