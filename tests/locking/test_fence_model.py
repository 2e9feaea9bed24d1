"""Every interleaving of a push with those who end its locks: it publishes only while it holds all of them.

A push relies on two locks. It looks at them, then publishes in a transaction with the checks it was told. Meanwhile a
thief takes a lock and publishes under it, its own task is removed, the lock is released and acquired again, and others
of its group join and leave. A history is bad when something is published without its lock. Each rule of the fence is
switched off in turn, and a short bad history must be found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import pytest

from tests.model.explorer import Actor, Become, Exploration, explore


class Fence(NamedTuple):
    """One lock: which grant it is, who holds it, and its fence's version. ``owner`` is empty once it is released."""

    grant: int
    owner: str
    tasks: frozenset[str]
    version: int = 0


class World(NamedTuple):
    """Two locks; ``bad`` says what was published without its lock."""

    locks: tuple[Fence, Fence]
    grants: int = 2
    bad: str = ""


class Guards(NamedTuple):
    """The rules of the fence; each is needed."""

    checked: bool = True
    """Publishing checks the fences in its own transaction, not before it."""
    every_lock: bool = True
    """All locks are checked (Druid checks none when there are several)."""
    new_names: bool = True
    """A fence's name is never used again."""
    moved: bool = True
    """A task that leaves moves the fence on."""


def start() -> World:
    """The push, task ``one`` of ``g``, holds both locks; task ``two`` has joined the first."""
    return World((Fence(0, "g", frozenset({"one", "two"})), Fence(1, "g", frozenset({"one"}))))


def step(label: str, change: Callable[[World], tuple[World, Any]]) -> Callable[[World], tuple[World, Any]]:
    change.label = label  # type: ignore[attr-defined]
    return change


def put(world: World, at: int, lock: Fence, grants: int | None = None) -> World:
    locks = (lock, world.locks[1]) if at == 0 else (world.locks[0], lock)
    return world._replace(locks=locks, grants=world.grants if grants is None else grants)


def holds(lock: Fence, owner: str, task: str) -> bool:
    return lock.owner == owner and task in lock.tasks


class Model:
    """The actors under some guards."""

    def __init__(self, guards: Guards) -> None:
        self.guards = guards

    def name(self, lock: Fence) -> int:
        return lock.grant if self.guards.new_names else -1

    def look(self, owner: str, task: str, which: tuple[int, ...]) -> Any:
        def read(world: World) -> tuple[World, Any]:
            if not all(holds(world.locks[at], owner, task) for at in which):
                return world, None
            return world, tuple((at, self.name(world.locks[at]), world.locks[at].version) for at in which)

        return step(f"{task} looks", read)

    def publish(self, owner: str, task: str, which: tuple[int, ...], checks: Any) -> Any:
        def commit(world: World) -> tuple[World, Any]:
            if not self.passes(world, checks):
                return world, False
            if all(holds(world.locks[at], owner, task) for at in which):
                return world, True
            return world._replace(bad=f"{task} published without its lock"), True

        return step(f"{task} publishes", commit)

    def passes(self, world: World, checks: Any) -> bool:
        if not self.guards.checked:
            return True
        wanted = checks if self.guards.every_lock else checks[:1]
        return all(
            world.locks[at].owner and (self.name(world.locks[at]), world.locks[at].version) == (name, version)
            for at, name, version in wanted
        )

    def pusher(self, owner: str, task: str, which: tuple[int, ...]) -> Actor:
        def push(tries: int = 2) -> Generator[Any, Any, None]:
            checks = yield self.look(owner, task, which)
            if checks is None:
                return
            done = yield self.publish(owner, task, which, checks)
            if not done and tries:
                yield Become(tries - 1)

        return push

    def thief(self, at: int) -> Actor:
        """Takes a lock (its priority is higher, or the lease is over), publishes under it, and releases it."""

        def take(world: World) -> tuple[World, Any]:
            return put(world, at, Fence(world.grants, "thief", frozenset({"thief"})), world.grants + 1), None

        def steal() -> Generator[Any, Any, None]:
            yield step(f"thief takes lock {at}", take)
            checks = yield self.look("thief", "thief", (at,))
            if checks is not None:
                yield self.publish("thief", "thief", (at,), checks)
            yield self.leave("thief", "thief", at)

        return steal

    def leave(self, owner: str, task: str, at: int) -> Any:
        def release(world: World) -> tuple[World, Any]:
            lock = world.locks[at]
            if not holds(lock, owner, task):
                return world, None
            tasks = lock.tasks - {task}
            if not tasks:
                return put(world, at, lock._replace(owner="", tasks=tasks)), None
            return put(world, at, lock._replace(tasks=tasks, version=lock.version + self.guards.moved)), None

        return step(f"{task} leaves lock {at}", release)

    def remover(self) -> Actor:
        """``on_kill``: the push's task leaves its locks while a zombie of it runs on."""

        def remove() -> Generator[Any, Any, None]:
            for at in (0, 1):
                yield self.leave("g", "one", at)

        return remove

    def mate(self) -> Actor:
        """Task ``two`` leaves the first lock."""

        def come_and_go() -> Generator[Any, Any, None]:
            yield self.leave("g", "two", 0)

        return come_and_go

    def explore(self) -> Exploration:
        actors = {
            "push": self.pusher("g", "one", (0, 1)),
            "mate's push": self.pusher("g", "two", (0,)),
            "thief": self.thief(1),
            "other thief": self.thief(0),
            "remove": self.remover(),
            "mate": self.mate(),
        }
        return explore(start(), actors, lambda world: world.bad or None)


def test_no_interleaving_publishes_without_its_locks() -> None:
    found = Model(Guards()).explore()
    print(found)
    assert found.violation is None and found.states > 1_000


@pytest.mark.parametrize("guard", Guards._fields)
def test_without_each_rule_of_the_fence_a_push_publishes_without_its_lock(guard: str) -> None:
    found = Model(Guards()._replace(**{guard: False})).explore()
    print(found)
    assert found.violation is not None and len(found.history) <= 6
