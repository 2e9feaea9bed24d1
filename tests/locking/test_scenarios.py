"""The lock box scenarios of Apache Druid, each step's answer compared, on the pure box and on the one in ZooKeeper.

All 23 are played, step by step. Where our answer is another one by design, :data:`OUR_ANSWERS` has it, and why. What
differs and no scenario touches is listed in :data:`DIFFERENT_BY_DESIGN`, each with the test that asserts our answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

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
    LockResult,
    LockType,
    Revoked,
    locks_of,
)
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import LockLostError, LockRefusedError
from tests.locking import test_box
from tests.locking.helpers import PureBox, interval

SCENARIOS = json.loads((Path(__file__).parents[1] / "data" / "druid_lockbox_scenarios.json").read_text())

NO_KILL = "there are no KILL locks: two-phase deletion decides in its own transactions"
BESIDE = (
    "APPEND coexists with every REPLACE lock, contained or not: nothing is copied when a replacement ends, so an "
    "append need not lie inside it"
)
OUR_ANSWERS: dict[tuple[str, int], tuple[Any, str]] = {
    ("L33", 13): (
        [
            "APPEND 2017-02-01/2017-03-01",
            "APPEND 2017-02-01/2017-05-01",
            "APPEND 2017/2018",
            "REPLACE 2017-07-01/2018-07-01",
        ],
        BESIDE,
    ),
    ("L33", 14): (["EXCLUSIVE 2017-01-01/2017-02-01", "SHARED 2016/2019"], BESIDE),
    ("L35", 15): (
        ["APPEND 2017-02-01/2017-03-01", "APPEND 2017-09-01/2018-03-01", "REPLACE 2017/2018"],
        BESIDE,
    ),
    ("L35", 16): (
        [
            "APPEND 2016/2019",
            "EXCLUSIVE 2017-05-01/2017-06-01",
            "REPLACE 2016-09-01/2017-03-01",
            "SHARED 2017-04-01/2017-05-01",
        ],
        BESIDE,
    ),
    ("L37", 1): ("no such lock", NO_KILL),
    ("L37", 3): ("no such lock", NO_KILL),
    ("L37", 12): (["APPEND 2017-05-01/2017-06-01", "REPLACE 2017-03-01/2017-09-01"], NO_KILL),
    ("L39", 1): ("no such lock", NO_KILL),
}
"""Scenario and step, our answer, and why it is not Druid's."""

DIFFERENT_BY_DESIGN = {
    "several own locks cover a request: Druid fails, we answer with the same one each time": (
        test_box.test_a_group_with_several_locks_that_cover_a_request_gets_the_same_one_each_time
    ),
    "several locks of one task cover what it publishes: Druid fails (time chunks) or treats it as valid (segments), we "
    "check every one": test_box.test_every_lock_that_a_push_relies_on_must_hold,
    "the version of a lock is the time, of an APPEND lock 1970: Druid trusts the clock, ours is above all that the box "
    "has given": test_box.test_every_lock_of_whatever_type_gets_a_version_above_all_earlier_ones,
    "a group's locks of other intervals stand in its own way in Druid, never in ours": (
        test_box.test_every_lock_of_a_group_keeps_others_out_by_itself
    ),
    "segment locks conflict with all time-chunk locks in Druid: ours coexist with APPEND": (
        test_box.test_new_ids_come_after_those_that_segment_locks_are_on
    ),
    "no lease in Druid (its overlord knows which tasks live): ours can be taken when its lease is over": (
        test_box.test_a_lock_whose_lease_is_over_is_taken_whatever_its_priority
    ),
    "a removed task stays removed in Druid: ours may ask again as a later attempt": (
        test_box.test_a_removed_task_may_ask_again_as_a_later_attempt
    ),
}


class Target(Protocol):
    """What a scenario is played on."""

    def acquire(self, request: LockRequest) -> LockResult: ...

    def locks(self) -> tuple[Lock, ...]: ...

    def release(self, group: str, task: str, where: Interval) -> None: ...

    def remove_task(self, group: str, task: str, attempt: int) -> None: ...

    def revoke(self, lock_ids: list[str]) -> None: ...

    def publish(self, lock_ids: list[str], group: str, task: str) -> None:
        """Publish what relies on these locks. Raises :class:`LockLostError`."""


class OnPure:
    """A scenario's calls on the pure box."""

    def __init__(self) -> None:
        self.pure = PureBox()

    def acquire(self, request: LockRequest) -> LockResult:
        return self.pure.acquire(request)

    def locks(self) -> tuple[Lock, ...]:
        return self.pure.box.locks

    def release(self, group: str, task: str, where: Interval) -> None:
        self.pure.box = boxes.release(self.pure.box, lambda lock: lock.interval == where and lock.group == group, task)

    def remove_task(self, group: str, task: str, attempt: int) -> None:
        self.pure.box = boxes.remove_task(self.pure.box, group, task, attempt, self.pure.turn())

    def revoke(self, lock_ids: list[str]) -> None:
        self.pure.box = boxes.revoke(self.pure.box, lock_ids, "the scenario", self.pure.turn())

    def publish(self, lock_ids: list[str], group: str, task: str) -> None:
        holding.require_held(self.pure.box, lock_ids, group, task, self.pure.turn())


class OnZooKeeper:
    """A scenario's calls on the lock box in ZooKeeper; publishing is a real transaction."""

    def __init__(self, store: SegmentStore, name: str) -> None:
        self.session = store.session
        self.box = LockBox(store.cluster, name)

    def acquire(self, request: LockRequest) -> LockResult:
        return self.box.acquire(request)

    def locks(self) -> tuple[Lock, ...]:
        return self.box.locks()

    def release(self, group: str, task: str, where: Interval) -> None:
        found = [lock.lock_id for lock in locks_of(self.locks(), group, task) if lock.interval == where]
        assert self.box.release(group, task, lock_ids=found) == 1

    def remove_task(self, group: str, task: str, attempt: int) -> None:
        self.box.remove_task(group, task, attempt)

    def revoke(self, lock_ids: list[str]) -> None:
        self.box.revoke(lock_ids, "the scenario")

    def publish(self, lock_ids: list[str], group: str, task: str) -> None:
        self.session.commit(self.box.fence(lock_ids, group=group, task=task))


class Player:
    """Plays a scenario. A task that is announced again is its next attempt."""

    def __init__(self, scenario: dict[str, Any], target: Target) -> None:
        self.target = target
        texts = {op["interval"] for op in scenario["ops"] if "interval" in op}
        self.texts = {interval(text): text for text in texts}
        self.tasks: dict[str, dict[str, Any]] = {}
        self.attempts: dict[str, int] = {}

    def step(self, op: dict[str, Any]) -> Any:
        return getattr(self, op["op"])(op)

    def task(self, op: dict[str, Any]) -> None:
        self.tasks[op["task"]] = op
        self.attempts[op["task"]] = self.attempts.get(op["task"], 0) + 1

    def lock(self, op: dict[str, Any]) -> str:
        """The version that a segment lock names in Druid plays no part in what it conflicts with; ours name none."""
        if op["type"] not in LockType.__members__:
            return "no such lock"
        task = self.tasks[op["task"]]
        is_segment = op.get("gran") == "seg"
        request = LockRequest(
            group=task["group"],
            task=op["task"],
            interval=interval(op["interval"]),
            lock_type=LockType[op["type"]],
            granularity=LockGranularity.SEGMENT if is_segment else LockGranularity.TIME_CHUNK,
            partitions=frozenset({op["part"]}) if is_segment else frozenset(),
            priority=task["prio"],
            attempt=self.attempts[op["task"]],
        )
        try:
            result = self.target.acquire(request)
        except LockRefusedError:
            return "error"
        return {Granted: "granted", Denied: "denied", Revoked: "revoked"}[type(result)]

    def active(self, _: dict[str, Any]) -> list[str]:
        return sorted(self.shown(lock) for lock in self.target.locks() if lock.active)

    def revoked(self, _: dict[str, Any]) -> list[str]:
        return sorted(self.shown(lock) for lock in self.target.locks() if not lock.active)

    def shown(self, lock: Lock) -> str:
        """As the scenario writes it."""
        return f"{lock.lock_type.value} {self.texts[lock.interval]}"

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
        """Publishing in an interval relies on every lock of the task that contains it."""
        group = self.tasks[op["task"]]["group"]
        own = locks_of(self.target.locks(), group, op["task"])
        relied_on = [lock.lock_id for lock in own if lock.contains(interval(op["interval"]))]
        if not relied_on:
            return "error"
        try:
            self.target.publish(relied_on, group, op["task"])
        except LockLostError:
            return "invalid"
        return "valid"


def play(scenario: dict[str, Any], target: Target) -> None:
    player = Player(scenario, target)
    for number, op in enumerate(scenario["ops"]):
        expected, why = OUR_ANSWERS.get((scenario["id"], number), (op.get("expect"), "as Druid"))
        assert player.step(op) == expected, f"{scenario['id']} step {number}: {op} ({why})"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["id"])
def test_the_box_answers_as_druid_does_or_as_it_is_meant_to(scenario: dict[str, Any]) -> None:
    play(scenario, OnPure())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["id"])
def test_the_box_in_zookeeper_answers_as_druid_does_or_as_it_is_meant_to(
    store: SegmentStore, scenario: dict[str, Any]
) -> None:
    target = OnZooKeeper(store, "t")
    play(scenario, target)
    active = {lock.lock_id for lock in target.locks() if lock.active}
    assert set(store.session.children(target.box.path)) == active, "the fences are those of the active locks"


def test_every_scenario_is_played() -> None:
    assert len(SCENARIOS) == 23 and all(scenario["id"].startswith("L") for scenario in SCENARIOS)


def test_every_answer_of_ours_is_to_a_step_that_druid_answers_differently() -> None:
    druid = {
        (scenario["id"], at): op["expect"]
        for scenario in SCENARIOS
        for at, op in enumerate(scenario["ops"])
        if "expect" in op
    }
    assert all(druid[step] != answer for step, (answer, _) in OUR_ANSWERS.items())


@pytest.mark.parametrize("reason", DIFFERENT_BY_DESIGN)
def test_what_differs_by_design_has_a_test(reason: str) -> None:
    DIFFERENT_BY_DESIGN[reason]()
