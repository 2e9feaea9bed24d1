"""Every interleaving of the protocol, explored: nothing bad with all guards, a short bad history without each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model import lineage_model as model
from tests.model.explorer import Actor, Become, Exploration, TooManyStatesError, explore
from tests.model.lineage_model import Actors, World

Scenario = Callable[[Actors], tuple[World, dict[str, Actor]]]


def push_while_reading(one: Actors) -> tuple[World, dict[str, Actor]]:
    """A whole push, its roll-back and its clean-up, and a reader."""
    return model.base(), {
        "start": one.starter("p"),
        "build": one.stager("p", 1),
        "end": one.ender("p"),
        "revert": one.reverter("p"),
        "clean": one.cleaner("p"),
        "read": one.reader(),
    }


def zombie(one: Actors) -> tuple[World, dict[str, Actor]]:
    """A build that was replaced by a second attempt and does not know, while somebody aborts and cleans up the push."""
    return model.started(model.base(), "p"), {
        "zombie": one.stager("p", 1),
        "build": one.stager("p", 2, chunks=(0, 1)),
        "end": one.ender("p"),
        "revert": one.reverter("p"),
        "clean": one.cleaner("p"),
    }


def part(one: Actors) -> tuple[World, dict[str, Actor]]:
    """``end`` names a part of what is staged while the build goes on."""
    return model.started(model.base(), "p"), {
        "build": one.stager("p", 1),
        "end": one.ender("p", only=(0,)),
        "revert": one.reverter("p"),
        "clean": one.cleaner("p"),
    }


def roll_back(one: Actors) -> tuple[World, dict[str, Actor]]:
    """A completed push is reverted and cleaned up, under a reader."""
    return model.ended(model.base(), "p"), {
        "revert": one.reverter("p"),
        "clean": one.cleaner("p"),
        "read": one.reader(),
    }


def two_readers(one: Actors) -> tuple[World, dict[str, Actor]]:
    """The same under two readers."""
    world, actors = roll_back(one)
    return world, {**actors, "read too": one.reader()}


def overtaken(one: Actors) -> tuple[World, dict[str, Actor]]:
    """Two completed pushes, one on the other: the second is cleaned up and dropped while the first is rolled back."""
    return model.ended(model.ended(model.base(), "p"), "q"), {
        "revert p": one.reverter("p"),
        "clean q": one.cleaner("q"),
        "read": one.reader(),
    }


def chain(one: Actors) -> tuple[World, dict[str, Actor]]:
    """Two completed pushes, one on the other; both are reverted and cleaned up in any order."""
    return model.ended(model.ended(model.base(), "p"), "q"), {
        "revert p": one.reverter("p"),
        "revert q": one.reverter("q"),
        "clean p": one.cleaner("p"),
        "clean q": one.cleaner("q"),
    }


def chain_while_reading(one: Actors) -> tuple[World, dict[str, Actor]]:
    """Both are cleaned up under a reader."""
    world, actors = chain(one)
    del actors["revert p"], actors["revert q"]
    return world, {**actors, "read": one.reader()}


def zombie_while_reading(one: Actors) -> tuple[World, dict[str, Actor]]:
    """The zombie again, with a reader."""
    world, actors = zombie(one)
    return world, {**actors, "read": one.reader()}


def forced(one: Actors) -> tuple[World, dict[str, Actor]]:
    """A forced start takes the place of a push that a build and an end are still working on."""
    return model.started(model.base(), "p"), {
        "build p": one.stager("p", 1),
        "end p": one.ender("p"),
        "force q": one.starter("q", force=True),
        "build q": one.stager("q", 1),
        "end q": one.ender("q"),
        "clean p": one.cleaner("p"),
    }


def forced_while_reading(one: Actors) -> tuple[World, dict[str, Actor]]:
    """The same with a reader instead of the second build."""
    return model.started(model.base(), "p"), {
        "build p": one.stager("p", 1),
        "end p": one.ender("p"),
        "force q": one.starter("q", force=True),
        "revert q": one.reverter("q"),
        "clean p": one.cleaner("p"),
        "read": one.reader(),
    }


def published_while_reading(one: Actors) -> tuple[World, dict[str, Actor]]:
    """A push that is published in one transaction, its roll-back and its clean-up, and a reader."""
    return model.base(), {
        "start": one.starter("p", opens=True),
        "publish": one.publisher("p", 1),
        "revert": one.reverter("p"),
        "clean": one.cleaner("p"),
        "read": one.reader(),
    }


def published_beside_a_retry(one: Actors) -> tuple[World, dict[str, Actor]]:
    """The process that was about to publish is taken for dead: its work is run again, aborted and cleaned up."""
    return model.started(model.base(), "p", attempt=1), {
        "publish": one.publisher("p", 1),
        "build": one.stager("p", 2),
        "end": one.ender("p"),
        "revert": one.reverter("p"),
        "clean": one.cleaner("p"),
    }


def published_by_a_retry(one: Actors) -> tuple[World, dict[str, Actor]]:
    """The second attempt would publish in one transaction; the first one has staged, and goes on."""
    return model.started(model.base(), "p"), {
        "zombie": one.stager("p", 1),
        "publish": one.publisher("p", 2),
        "end": one.ender("p"),
        "revert": one.reverter("p"),
        "clean": one.cleaner("p"),
    }


def published_under_force(one: Actors) -> tuple[World, dict[str, Actor]]:
    """A forced start takes the place of a push that is about to be published, and is published itself."""
    return model.started(model.base(), "p", attempt=1), {
        "publish p": one.publisher("p", 1),
        "force q": one.starter("q", force=True, opens=True),
        "publish q": one.publisher("q", 1),
        "revert q": one.reverter("q"),
        "clean p": one.cleaner("p"),
    }


def published_with_others(one: Actors) -> tuple[World, dict[str, Actor]]:
    """Another stager has a part of the push, and is run again; the publisher tries twice, and the push is aborted."""
    return model.started(model.base(), "p", attempt=1), {
        "rest": one.rester("p", 1),
        "rest again": one.rester("p", 2),
        "publish": one.publisher("p", 1, rest=True),
        "publish again": one.publisher("p", 2, rest=True),
        "revert": one.reverter("p"),
        "clean": one.cleaner("p"),
    }


def leases(one: Actors) -> tuple[World, dict[str, Actor]]:
    """A reader holds a lease while what it reads is reverted, cleaned up and deleted."""
    return model.ended(model.base(), "p"), {
        "revert": one.reverter("p"),
        "clean": one.cleaner("p"),
        "read": one.reader(leased=True),
        "delete": one.deleter(),
    }


def late_leases(one: Actors) -> tuple[World, dict[str, Actor]]:
    """The same with a reader whose lease comes after its snapshot."""
    world, actors = leases(one)
    return world, {**actors, "read": one.late_reader()}


DEFAULT: list[Scenario] = [
    push_while_reading, zombie, part, roll_back, two_readers, overtaken, chain, forced, leases, late_leases,
    published_while_reading, published_beside_a_retry, published_by_a_retry, published_under_force,
    published_with_others,
]  # fmt: skip
LARGE: list[Scenario] = [zombie_while_reading, chain_while_reading, forced_while_reading]


def run(scenario: Scenario, *, without: str | None = None, limit: int = 3_000_000) -> Exploration:
    guards = model.ALL_GUARDS - {without} if without else model.ALL_GUARDS
    world, actors = scenario(Actors(guards))
    found = explore(world, actors, model.violation, limit=limit)
    print(f"{scenario.__name__}" + (f", without: {without}" if without else ""), found, sep=": ")
    return found


@pytest.mark.parametrize("scenario", DEFAULT, ids=lambda scenario: scenario.__name__)
def test_no_interleaving_is_bad(scenario: Scenario) -> None:
    """A snapshot is the table at its zxid; no reverted push is visible; to is complete after end; no revert shows
    deleted data; no object goes under a lease."""
    found = run(scenario)
    assert found.violation is None, found
    assert found.states > 1000


@pytest.mark.slow
@pytest.mark.parametrize("scenario", LARGE, ids=lambda scenario: scenario.__name__)
def test_no_interleaving_of_the_large_models_is_bad(scenario: Scenario) -> None:
    found = run(scenario, limit=20_000_000)
    assert found.violation is None, found


@pytest.mark.parametrize(
    ("guard", "scenario", "expected"),
    [
        (model.STAGE, zombie, model.REVERTED_VISIBLE),
        (model.SEAL, part, model.OUTSIDE_TO),
        (model.BORN, push_while_reading, model.MIX),
        (model.MARK, roll_back, model.DELETED_VISIBLE),
        (model.REMOVAL, roll_back, model.GAP),
        (model.ORDER, push_while_reading, model.GAP),
        (model.TO_GONE, overtaken, model.STALE_VISIBLE),
        (model.LEASE, leases, model.OBJECT_GONE),
        (model.LEASE_FIRST, leases, model.OBJECT_GONE),
        (model.LEASE, late_leases, model.OBJECT_GONE),
        (model.ROOT_AGAIN, late_leases, model.OBJECT_GONE),
        (model.PUBLISH, published_beside_a_retry, model.OUTSIDE_TO),
        (model.ALONE, published_by_a_retry, model.OUTSIDE_TO),
        (model.PUBLISH, published_with_others, model.OUTSIDE_TO),
        (model.ALONE, published_with_others, model.OUTSIDE_TO),
        (model.OTHERS, published_with_others, model.INCOMPLETE),
        (model.BORN, published_while_reading, model.MIX),
        (model.ORDER, published_while_reading, model.GAP),
    ],
    ids=[
        "stage",
        "seal",
        "born",
        "mark",
        "removal",
        "order",
        "to-gone",
        "lease",
        "lease-first",
        "late-lease",
        "root-again",
        "publish",
        "alone",
        "publish-with-others",
        "alone-with-others",
        "others",
        "published-born",
        "published-order",
    ],
)
def test_each_guard_is_needed(guard: str, scenario: Scenario, expected: str) -> None:
    """The revert test of each guard: switched off, the explorer finds a bad history and names what it violates."""
    found = run(scenario, without=guard)
    assert found.violation == expected, found
    assert found.history


def test_the_explorer_finds_a_lost_update_and_reports_a_shortest_history() -> None:
    def increment(seen: int | None = None):  # type: ignore[no-untyped-def]
        read = yield model.step("read", lambda world: (world, world[0]))
        yield model.step("write", lambda world: ((read + 1, world[1] + 1), None))

    found = explore(
        (0, 0), {"a": increment, "b": increment}, lambda world: "lost" if world[1] == 2 and world[0] < 2 else None
    )
    assert found.violation == "lost"
    assert len(found.history) == 4 and found.history[:2] in {("a: read", "b: read"), ("b: read", "a: read")}


def test_the_explorer_never_claims_more_than_it_has_seen() -> None:
    def forever():  # type: ignore[no-untyped-def]
        yield lambda world: (world + 1, None)
        yield Become()

    with pytest.raises(TooManyStatesError):
        explore(0, {"a": forever}, lambda world: None, limit=100)
