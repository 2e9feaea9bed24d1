"""Random histories of an upsert table on a real ZooKeeper, with a check after each step.

Batches with late, tied, repeated and deleted events; two ingestors; ordinary pushes and their reverts; compactions,
rollbacks, retention and clean-up; a kill before or after any write, caches that are lost or damaged; and other work
that comes in between two writes of one step.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from airflow_provider_segments.core.table import SegmentStore
from tests.upsert.world import Killed, World

STEPS = {
    "ingest": 8,
    "replay": 3,
    "bulk": 2,
    "revert_bulk": 1,
    "compact": 2,
    "roll_back": 1,
    "expire": 1,
    "clean_up": 2,
    "restart": 1,
}


def run_history(world: World, steps: int) -> None:
    """So many random steps, a third of them killed or overtaken on the way; every mark is checked after each."""
    names, weights = list(STEPS), list(STEPS.values())
    for _ in range(steps):
        name = world.random.choices(names, weights)[0]
        _arm(world)
        world.log.append(name)
        try:
            if name == "ingest":
                world.ingest(world.random.choice(["both", "0", "1"]))
            else:
                getattr(world, name)()
            world.made[name] += 1
        except Killed:
            world.made["killed"] += 1
            world.log[-1] += " killed"
            world.made[f"killed {name}"] += 1
            world.session.at = 0
            world.restart()
        finally:
            world.session.at = 0
        world.check()


def _arm(world: World) -> None:
    """Perhaps a kill, or another step in between, at one of the next writes."""
    fate, at, landed = world.random.random(), world.random.randint(1, 12), world.random.random() < 0.5
    if fate < 0.2:
        world.session.arm(at, landed=landed, interrupt=_kill)
    elif fate < 0.4:
        world.session.arm(at, landed=landed, interrupt=lambda: _overtake(world))
    else:
        world.session.arm(0, landed=False, interrupt=lambda: None)


def _kill() -> None:
    raise Killed


def _overtake(world: World) -> None:
    """Another ingestor publishes a batch, or old rows end, while the step is between two writes."""
    world.made["overtaken"] += 1
    world.note_outer()
    if world.log[-1] == "expire" or world.random.random() < 0.8:  # a second expiry takes over from the first
        world.ingest(world.random.choice(["0", "1"]))
    else:
        world.expire()


def run_histories(
    store: SegmentStore, folder: Path, seeds: range, steps: int, kind: type[World] = World, **world_options: Any
) -> tuple[int, Counter[str]]:
    """A history a seed; returns how many checks were made, and steps by kind."""
    checks, made = 0, Counter[str]()
    for seed in seeds:
        world = kind(store, folder / str(seed), random.Random(seed), **world_options)
        try:
            run_history(world, steps)
        except BaseException as error:
            error.add_note(f"seed {seed}, after {', '.join(world.log)}")
            raise
        finally:
            world.close()
        checks += world.checks
        made += world.made
    print(f"{checks} checks; {dict(made)}")
    return checks, made
