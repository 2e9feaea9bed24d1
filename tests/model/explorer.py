"""An exhaustive explorer for small models of concurrent protocols.

Actors are generators. Each ``yield`` hands out one atomic operation on the shared world, a function from the world to
the world after it and a result; the result comes back as the value of the ``yield``. Between two yields an actor only
computes. :func:`explore` visits every state that any interleaving of the actors can reach, breadth first, so that the
history it reports is a shortest one.

An actor must be a function of its arguments and of the results it got: that is what a state remembers of it.
``yield Become(...)`` starts the actor anew with other arguments and forgets everything else: a retry, or a summary.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

W = TypeVar("W", bound=Hashable)

Operation = Callable[[W], tuple[W, Any]]


class Become:
    """Go on as the same actor with these arguments."""

    def __init__(self, *arguments: Hashable) -> None:
        self.arguments = arguments


Actor = Callable[..., Generator[Any, Any, None]]
_ENDED = ("ended",)


@dataclass(frozen=True)
class Exploration:
    """What was found: how many states, the first violation if any, and a shortest history of steps that leads to it."""

    states: int
    violation: str | None
    history: tuple[str, ...]

    def __str__(self) -> str:
        if self.violation is None:
            return f"{self.states:,} states, none bad"
        return f"{self.states:,} states until: {self.violation}\n  " + "\n  ".join(self.history)


class TooManyStatesError(Exception):
    """The model is larger than it was said to be; nothing was proved."""


def explore(
    world: W,
    actors: Mapping[str, Actor],
    violation: Callable[[W], str | None],
    *,
    limit: int = 2_000_000,
    whole: bool = True,
) -> Exploration:
    """Visit every reachable state until ``violation`` says what is wrong with one of their worlds. Where there are more
    than ``limit`` states, :class:`TooManyStatesError` says so; unless ``whole`` is false: then the nearest are enough.
    """
    try:
        return _Explorer(actors, violation, limit).run(world)
    except TooManyStatesError:
        if whole:
            raise
        return Exploration(limit, None, ())


class _Explorer(Generic[W]):
    """Worlds and actors' memories are numbered, so that a state is a few small integers, and a step of one actor in one
    world is computed once, whatever the other actors have done."""

    def __init__(self, actors: Mapping[str, Actor], violation: Callable[[W], str | None], limit: int) -> None:
        self.names = tuple(actors)
        self.actors = tuple(actors.values())
        self.violation = violation
        self.limit = limit
        self.worlds: dict[W, int] = {}
        self.world_list: list[W] = []
        self.verdicts: list[str | None] = []
        self.memories: dict[Any, int] = {}
        self.memory_list: list[Any] = []
        self.operations: list[Any] = []
        self.steps: dict[tuple[int, int], tuple[int, int]] = {}

    def run(self, world: W) -> Exploration:
        first = (self.number(world), *(self.settle(actor, (), ()) for actor in range(len(self.actors))))
        parents: dict[tuple[int, ...], tuple[tuple[int, ...], int] | None] = {first: None}
        queue = deque([first])
        while queue:
            state = queue.popleft()
            if problem := self.verdicts[state[0]]:
                return Exploration(len(parents), problem, self.history(parents, state))
            for actor in range(1, len(state)):
                if self.operations[state[actor]] is None:
                    continue
                world_after, memory_after = self.step(state[actor], state[0])
                after = (world_after, *state[1:actor], memory_after, *state[actor + 1 :])
                if after not in parents:
                    parents[after] = (state, actor)
                    queue.append(after)
            if len(parents) > self.limit:
                raise TooManyStatesError(f"more than {self.limit:,} states")
        return Exploration(len(parents), None, ())

    def step(self, memory: int, world: int) -> tuple[int, int]:
        if (memory, world) not in self.steps:
            actor, arguments, results = self.memory_list[memory]
            after, result = self.operations[memory](self.world_list[world])
            self.steps[memory, world] = self.number(after), self.settle(actor, arguments, (*results, result))
        return self.steps[memory, world]

    def number(self, world: W) -> int:
        if world not in self.worlds:
            self.worlds[world] = len(self.world_list)
            self.world_list.append(world)
            self.verdicts.append(self.violation(world))
        return self.worlds[world]

    def settle(self, actor: int, arguments: tuple[Any, ...], results: tuple[Any, ...]) -> int:
        """Run an actor up to its next operation; the operation is ``None`` when it has ended."""
        memory: Any = (actor, arguments, results)
        wanted: Any = None
        while memory not in self.memories:
            wanted = self.wanted(*memory)
            if wanted is None:
                memory = (actor, _ENDED, ())
                break
            if not isinstance(wanted, Become):
                break
            memory = (actor, wanted.arguments, ())
        if memory not in self.memories:
            self.memories[memory] = len(self.memory_list)
            self.memory_list.append(memory)
            self.operations.append(wanted)
        return self.memories[memory]

    def wanted(self, actor: int, arguments: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
        running = self.actors[actor](*arguments)
        try:
            wanted = next(running)
            for result in results:
                wanted = running.send(result)
        except StopIteration:
            return None
        return wanted

    def history(self, parents: Mapping[Any, Any], state: Any) -> tuple[str, ...]:
        steps = []
        while parents[state] is not None:
            state, actor = parents[state]
            steps.append(f"{self.names[actor - 1]}: {getattr(self.operations[state[actor]], 'label', '?')}")
        return tuple(reversed(steps))


def walk(
    world: W,
    actors: Mapping[str, Actor],
    violation: Callable[[W], str | None],
    chance: random.Random,
    taken: Counter[str],
) -> Exploration:
    """One random interleaving of the actors until all have ended. Counts in ``taken`` the steps of each actor."""
    explorer = _Explorer(actors, violation, 0)
    state = [explorer.number(world), *(explorer.settle(actor, (), ()) for actor in range(len(actors)))]
    history: list[str] = []
    while (problem := explorer.verdicts[state[0]]) is None:
        able = [actor for actor in range(1, len(state)) if explorer.operations[state[actor]] is not None]
        if not able:
            break
        actor = chance.choice(able)
        history.append(f"{explorer.names[actor - 1]}: {getattr(explorer.operations[state[actor]], 'label', '?')}")
        taken[explorer.names[actor - 1]] += 1
        state[0], state[actor] = explorer.step(state[actor], state[0])
    return Exploration(len(explorer.worlds), problem, tuple(history) if problem else ())
