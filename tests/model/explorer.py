"""An exhaustive explorer for small models of concurrent protocols.

Actors are generators. Each ``yield`` hands out one atomic operation on the shared world, a function from the world to
the world after it and a result; the result comes back as the value of the ``yield``. Between two yields an actor only
computes. :func:`explore` visits every state that any interleaving of the actors can reach, breadth first, so that the
history it reports is a shortest one.

An actor must be a function of its arguments and of the results it got: that is what a state remembers of it.
``yield Become(...)`` starts the actor anew with other arguments and forgets everything else: a retry, or a summary.
"""

from __future__ import annotations

from collections import deque
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
_Local = tuple[tuple[Any, ...], tuple[Any, ...]] | None


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
    world: W, actors: Mapping[str, Actor], violation: Callable[[W], str | None], *, limit: int = 2_000_000
) -> Exploration:
    """Visit every reachable state until ``violation`` says what is wrong with one of their worlds."""
    return _Explorer(actors, violation, limit).run(world)


class _Explorer(Generic[W]):
    def __init__(self, actors: Mapping[str, Actor], violation: Callable[[W], str | None], limit: int) -> None:
        self.names = tuple(actors)
        self.actors = tuple(actors.values())
        self.violation = violation
        self.limit = limit
        self.waiting: dict[tuple[int, _Local], Operation[W] | None] = {}
        self.verdicts: dict[W, str | None] = {}

    def run(self, world: W) -> Exploration:
        first = (world, tuple(self.settle(number, ((), ())) for number in range(len(self.actors))))
        parents: dict[Any, tuple[Any, int] | None] = {first: None}
        queue = deque([first])
        while queue:
            state = queue.popleft()
            if problem := self.judge(state[0]):
                return Exploration(len(parents), problem, self.history(parents, state))
            for number, after in self.successors(state):
                if after not in parents:
                    parents[after] = (state, number)
                    queue.append(after)
            if len(parents) > self.limit:
                raise TooManyStatesError(f"more than {self.limit:,} states")
        return Exploration(len(parents), None, ())

    def successors(self, state: Any) -> list[tuple[int, Any]]:
        world, locals_ = state
        found = []
        for number, local in enumerate(locals_):
            operation = self.waiting[number, local] if local is not None else None
            if operation is None:
                continue
            after, result = operation(world)
            moved = self.settle(number, (local[0], (*local[1], result)))
            found.append((number, (after, (*locals_[:number], moved, *locals_[number + 1 :]))))
        return found

    def settle(self, number: int, local: _Local) -> _Local:
        """Run an actor up to its next operation; ``None`` when it has ended."""
        while local is not None and (number, local) not in self.waiting:
            arguments, results = local
            running = self.actors[number](*arguments)
            try:
                wanted = next(running)
                for result in results:
                    wanted = running.send(result)
            except StopIteration:
                return None
            if isinstance(wanted, Become):
                local = (wanted.arguments, ())
            else:
                self.waiting[number, local] = wanted
        return local

    def judge(self, world: W) -> str | None:
        if world not in self.verdicts:
            self.verdicts[world] = self.violation(world)
        return self.verdicts[world]

    def history(self, parents: dict[Any, Any], state: Any) -> tuple[str, ...]:
        steps = []
        while parents[state] is not None:
            state, number = parents[state]
            operation = self.waiting[number, state[1][number]]
            steps.append(f"{self.names[number]}: {getattr(operation, 'label', '?')}")
        return tuple(reversed(steps))
