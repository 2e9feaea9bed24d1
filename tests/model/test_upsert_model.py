"""Every interleaving of small upsert tables, and many random ones of a larger one: each mark shows what it must.

Without each of the protocol's guards, a short history shows what no reader may see.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow
import pyarrow.compute
import pytest

from airflow_provider_segments.core.lineage.entries import Lineage
from airflow_provider_segments.core.replacement import rules
from airflow_provider_segments.core.upsert import record as records
from airflow_provider_segments.core.upsert.record import Movement, Publication, UpsertRecord, Waiting
from airflow_provider_segments.upsert import moving, resolve, rollback
from airflow_provider_segments.upsert.validity import log_of
from tests.model import upsert_model as model
from tests.model.explorer import Actor, Exploration, explore, walk
from tests.model.upsert_model import Event, Model

Sources = Sequence[Sequence[Sequence[Event]]]
Scene = tuple[Sources, Callable[[Model], dict[str, Actor]]]
KEPT = {"floor that moves on": 1}
"""How many versions can be read, where it is not all of them."""


def sent(part: int, *rows: tuple[int, int, str]) -> list[Event]:
    """The events of one source partition from (key, time, value); a value that begins with x is a delete record."""
    return [Event(time, part, at, key, value, value[0] == "x") for at, (key, time, value) in enumerate(rows)]


TIED = [[sent(0, (0, 10, "a"), (0, 20, "b")), sent(1, (0, 10, "c"), (1, 10, "d"))]]
LINE = [sent(0, (0, 10, "a"), (0, 20, "b"), (0, 30, "c")), []]
OTHER = [sent(0, (0, 10, "a"), (0, 12, "B"), (0, 14, "C")), []]
DELETED = [[sent(0, (0, 10, "a"), (0, 20, "x"), (0, 15, "late")), []]]
PUSHED = [(0, 15, "p"), (1, 12, "q"), (0, 10, "r")]

SCENES: dict[str, Scene] = {
    "two ingestors": (TIED, lambda m: {"i": m.ingestor("i", 2, parts=[0]), "j": m.ingestor("j", 2, parts=[1])}),
    "takeover": (TIED, lambda m: {"i": m.ingestor("ia", 2), "next": m.ingestor("ib", 2)}),
    "lost reply": (TIED, lambda m: {"i": m.ingestor("ia", 2, loses_reply=True), "next": m.ingestor("ib", 2)}),
    "compaction": (
        [LINE],
        lambda m: {"i": m.ingestor("i", 3), "compact": m.compactor("c", 0, 1), "clean": m.cleaner("c")},
    ),
    "compaction of all": ([LINE], lambda m: {"i": m.ingestor("i", 3), "compact": m.compactor("c", 0)}),
    "floor that moves on": ([LINE], lambda m: {"i": m.ingestor("i", 3), "compact": m.compactor("c", 0)}),
    "two compactions": (
        [LINE],
        lambda m: {"i": m.ingestor("i", 3), "compact": m.compactor("c", 0, 2), "again": m.compactor("d", 0, 1)},
    ),
    "rollback": (
        [LINE, OTHER],
        lambda m: {"i": m.ingestor("i", 3), "back": m.rollback("r", 1), "j": m.ingestor("j", 2)},
    ),
    "two rollbacks": (
        [LINE, OTHER],
        lambda m: {"i": m.ingestor("i", 4), "back": m.rollback("r", 1), "again": m.rollback("s", 2)},
    ),
    "stream": ([LINE], lambda m: {"i": m.stream("i", 4), "back": m.rollback("r", 1)}),
    "compaction and rollback": (
        [LINE, OTHER],
        lambda m: {"i": m.ingestor("i", 4), "compact": m.compactor("c", 0, 1), "back": m.rollback("r", 1)},
    ),
    "pushes": (
        TIED,
        lambda m: {
            "i": m.ingestor("i", 2),
            "push": m.bulk("b", PUSHED),
            "revert": m.reverter("b"),
            "clean": m.cleaner("b"),
        },
    ),
    "pushes and rollback": (
        TIED,
        lambda m: {"i": m.ingestor("i", 3), "push": m.bulk("b", PUSHED), "back": m.rollback("r", 1)},
    ),
    "deletes": (DELETED, lambda m: {"i": m.ingestor("i", 2), "j": m.ingestor("j", 2), "compact": m.compactor("c", 0)}),
    "retention": (
        DELETED,
        lambda m: {"i": m.ingestor("i", 3), "expire": m.expirer("e", 16), "back": m.rollback("r", 1)},
    ),
    "retention and compaction": (
        DELETED,
        lambda m: {"i": m.ingestor("i", 3), "expire": m.expirer("e", 21), "compact": m.compactor("c", 0)},
    ),
    "reader": ([LINE], lambda m: {"i": m.ingestor("i", 2), "read": m.reader()}),
    "cleaned lineage": (
        [LINE],
        lambda m: {"i": m.ingestor("i", 3), "clean": m.cleaner("i0"), "compact": m.compactor("c", 0, 1)},
    ),
}


def explored(scene: str, off: Sequence[str] = (), limit: int = 2_000) -> Exploration:
    """What is found in the states that are reached first, or in all."""
    sources, actors = SCENES[scene]
    world = Model(sources, off, KEPT.get(scene, 100))
    return explore(model.start(), actors(world), world.violation, limit=limit, whole=False)


@pytest.mark.parametrize("scene", SCENES)
def test_no_history_of_a_small_table_shows_what_no_reader_may_see(scene: str) -> None:
    found = explored(scene)
    assert found.violation is None, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_no_long_history_of_a_small_table_shows_what_no_reader_may_see(scene: str) -> None:
    """Every history, or the 60,000 states that are reached first."""
    found = explored(scene, limit=60_000)
    print(found)
    assert found.violation is None, str(found)


def any_events(chance: random.Random, epoch: int, part: int) -> list[Event]:
    """Late, tied and deleted events of three keys."""
    rows = [(chance.randrange(3), chance.randint(1, 6) * 5) for _ in range(6)]
    return sent(
        part,
        *(
            (key, time, f"{'x' if chance.random() < 0.2 else 'v'}{epoch}{part}{at}")
            for at, (key, time) in enumerate(rows)
        ),
    )


def large_table(chance: random.Random) -> tuple[Model, dict[str, Actor]]:
    """Everybody at once, on a table that keeps few or many versions."""
    sources = [[any_events(chance, epoch, part) for part in (0, 1)] for epoch in range(3)]
    world = Model(sources, keep_versions=chance.choice([1, 2, 100]))
    pushed = [(chance.randrange(3), time, f"p{time}") for time in chance.sample(range(1, 30), 3)]
    return world, {
        "ingest": world.ingestor("ia", 4, size=chance.randint(1, 3)),
        "ingest too": world.ingestor("j", 4, parts=[1], size=chance.randint(1, 2)),
        "take over": world.ingestor("ib", 4, loses_reply=chance.random() < 0.5),
        "push": world.bulk("b", pushed),
        "revert": world.reverter("b"),
        "clean push": world.cleaner("b"),
        "expire": world.expirer("e", chance.randint(1, 20)),
        "expire again": world.expirer("ee", chance.randint(1, 30)),
        "compact": world.compactor("c", 0, chance.randrange(3)),
        "compact too": world.compactor("d", chance.randrange(2), chance.randrange(3)),
        "clean": world.cleaner(chance.choice(["c", "ia0", "ia1"])),
        "roll back": world.rollback("r", chance.randint(1, 3)),
        "roll back again": world.rollback("s", chance.randint(1, 3)),
    }


def walks(seeds: range) -> tuple[Counter[str], int]:
    """So many walks; returns how many steps each actor has made, and how often a mark was compared."""
    taken: Counter[str] = Counter()
    checks = 0
    for seed in seeds:
        chance = random.Random(seed)
        world, actors = large_table(chance)
        found = walk(model.start(), actors, world.violation, chance, taken)
        assert found.violation is None, f"seed {seed}: {found}"
        checks += world.checks
    print(f"{sum(taken.values()):,} steps, {checks:,} checks of a table at a mark; {dict(taken)}")
    return taken, checks


def test_random_histories_of_a_larger_table_show_at_every_mark_what_they_must() -> None:
    taken, _ = walks(range(60))
    assert taken.keys() == large_table(random.Random(0))[1].keys()


@pytest.mark.slow
def test_very_many_random_histories_of_a_larger_table_show_what_they_must() -> None:
    taken, checks = walks(range(1_000, 4_000))
    assert sum(taken.values()) > 150_000
    assert checks > 100_000


# --- the guards

Patch = pytest.MonkeyPatch


def nothing(_: Patch) -> None:
    """The model's own order is changed."""


def publish_whatever_the_heads(patch: Patch) -> None:
    patch.setattr(Publication, "_check_heads", lambda *_: None)


def move_whatever_the_heads(patch: Patch) -> None:
    real = Movement.switch

    def switch(self: Movement, before: Lineage, completed: Lineage) -> Lineage:
        now = records.require_record(before).heads
        heads = {number: now[number] for number in self.heads}
        return real(Movement(entry_id=self.entry_id, heads=heads), before, completed)

    patch.setattr(Movement, "switch", switch)


def move_without_a_generation(patch: Patch) -> None:
    def switch(self: Movement, before: Lineage, completed: Lineage) -> Lineage:
        return records.store_record(completed, records.require_record(before))

    patch.setattr(Movement, "switch", switch)


def publish_whatever_the_positions(patch: Patch) -> None:
    patch.setattr(Publication, "_check_positions", lambda *_: None)


class Everything:
    def __contains__(self, _: object) -> bool:
        return True


def resolve_pushes_that_are_gone(patch: Patch) -> None:
    patch.setattr(records, "waiting_bulks", lambda *_: Everything())


def revert_what_was_resolved(patch: Patch) -> None:
    patch.setattr(rules, "is_published", lambda *_: False)


def read_what_waits(patch: Patch) -> None:
    patch.setattr(Waiting, "switch", lambda _, __, completed: completed)


def rolled_back_but(**kept: Callable[[UpsertRecord, int], Any]) -> Callable[[Patch], None]:
    """A rollback that leaves these fields of the record as the functions say."""

    def apply(patch: Patch) -> None:
        real = rollback.rolled_back

        def changed(record: UpsertRecord, version: int, *others: Any) -> UpsertRecord:
            fields = {name: make(record, version) for name, make in kept.items()}
            return msgspec.structs.replace(real(record, version, *others), **fields)

        patch.setattr(rollback, "rolled_back", changed)

    return apply


def read_any_mark(patch: Patch) -> None:
    patch.setattr(UpsertRecord, "check_mark", lambda self, mark, _: self.clock if mark is None else mark)


def carry_no_ends(patch: Patch) -> None:
    patch.setattr(moving, "ends_to_keep", lambda *_: log_of())


def carry_ends_as_old_ones(patch: Patch) -> None:
    real = moving.ends_to_keep

    def without_versions(*arguments: Any) -> Any:
        log = real(*arguments)
        at = log.schema.get_field_index("version")
        return log.set_column(at, log.schema.field(at), pyarrow.nulls(log.num_rows, pyarrow.int64()))

    patch.setattr(moving, "ends_to_keep", without_versions)


def carry_ends_above_the_floor_only(patch: Patch) -> None:
    """An end that is at or below the floor by now may have come since the rows were read."""
    real = moving.ends_to_keep

    def above(*arguments: Any) -> Any:
        log = real(*arguments)
        return log.filter(pyarrow.compute.greater(log.column("version"), 0))

    patch.setattr(moving, "ends_to_keep", above)


def publish_whatever_the_cutoff(patch: Patch) -> None:
    real = Publication.switch

    def switch(self: Publication, before: Lineage, completed: Lineage) -> Lineage:
        now = records.require_record(before).cutoff
        return real(replace(self, cutoff=now), before, completed)

    patch.setattr(Publication, "switch", switch)


def order_by_time_alone(patch: Patch) -> None:
    patch.setattr(resolve, "ORDER", ("time",))


GUARDS: dict[str, tuple[str, str, Sequence[str], Callable[[Patch], None]]] = {
    "publish checks heads": ("two ingestors", "two rows of a key", (), publish_whatever_the_heads),
    "publish checks heads, against a compaction": ("compaction of all", "two rows", (), publish_whatever_the_heads),
    "a compaction checks heads": ("compaction of all", "two rows of a key", (), move_whatever_the_heads),
    "a compaction raises the generation": ("compaction of all", "two rows of a key", (), move_without_a_generation),
    "publish checks positions": ("rollback", "mark", (), publish_whatever_the_positions),
    "publish checks pushes": ("pushes", "at mark", (), resolve_pushes_that_are_gone),
    "a resolved push is not reverted": ("pushes", "at mark", (), revert_what_was_resolved),
    "a push waits": ("pushes", "two rows", (), read_what_waits),
    "a rollback lets pushes wait": (
        "pushes and rollback",
        "two rows",
        (),
        rolled_back_but(waiting=lambda record, _: record.waiting),
    ),
    "a rollback makes a void": ("rollback", "at mark", (), rolled_back_but(voids=lambda record, _: record.voids)),
    "no number is given twice": (
        "rollback",
        "version",
        (),
        rolled_back_but(
            clock=lambda _, version: version,
            published=lambda record, version: tuple(one for one in record.published if one.version <= version),
        ),
    ),
    "a rollback sets positions back": (
        "rollback",
        "mark",
        (),
        rolled_back_but(positions=lambda record, _: dict(record.positions)),
    ),
    "a rollback reverts what is in progress, and makes heads": (
        "rollback",
        "",
        (model.IN_PROGRESS,),
        rolled_back_but(heads=lambda record, _: record.heads),
    ),
    "marks below the floor are refused": ("compaction", "at mark", (), read_any_mark),
    "ends are carried": ("compaction", "two rows", (), carry_no_ends),
    "ends are carried under their versions": ("compaction and rollback", "at mark", (), carry_ends_as_old_ones),
    "all ends of moved rows are carried": ("floor that moves on", "two rows", (), carry_ends_above_the_floor_only),
    "the order is total": ("two ingestors", "at mark", (), order_by_time_alone),
    model.ENTRY: ("takeover", "at mark", (model.ENTRY,), nothing),
    model.ANNOUNCED: ("rollback", "", (model.ANNOUNCED,), nothing),
    model.RECOGNISE: ("lost reply", "at mark", (model.RECOGNISE,), nothing),
    model.ONE_SWITCH: ("takeover", "", (model.ONE_SWITCH,), nothing),
    model.CACHE_ENTRY: ("lost reply", "", (model.CACHE_ENTRY,), nothing),
    model.CACHE_GENERATION: ("compaction of all", "two rows", (model.CACHE_GENERATION,), nothing),
    model.TOMBSTONES: ("deletes", "two rows", (model.TOMBSTONES,), nothing),
    model.KEEP_TOMBSTONES: ("deletes", "at mark", (model.KEEP_TOMBSTONES,), nothing),
    model.ALL_HEADS: ("retention", "at mark", (model.ALL_HEADS,), nothing),
    "publish checks the cutoff": ("retention", "at mark", (), publish_whatever_the_cutoff),
    "a rollback sets the cutoff back": (
        "retention",
        "",
        (),
        rolled_back_but(cutoff=lambda record, _: record.cutoff),
    ),
    model.FLOOR_FIRST: ("compaction", "at mark", (model.FLOOR_FIRST,), nothing),
    model.VOIDS: ("compaction and rollback", "at mark", (model.VOIDS,), nothing),
    model.ONE_READ: ("reader", "at mark", (model.ONE_READ,), nothing),
    model.EPOCH: ("stream", "mark", (model.EPOCH,), nothing),
}


@pytest.mark.parametrize("guard", GUARDS)
def test_without_the_guard_a_short_history_shows_what_no_reader_may_see(guard: str, monkeypatch: Patch) -> None:
    scene, expected, off, patch = GUARDS[guard]
    patch(monkeypatch)
    found = explored(scene, off, 20_000)
    assert found.violation is not None, str(found)
    assert found.violation.startswith(expected), str(found)
