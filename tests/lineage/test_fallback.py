"""Falling back after a loss, against the definition: the smallest set of rewrites that do not stand."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.fallback import fallen_back
from airflow_provider_segments.core.lineage.hiding import hidden_names
from airflow_provider_segments.core.model.interval import ALL_TIME


class History:
    """Pushes one after the other, and the rows of every segment."""

    def __init__(self) -> None:
        self.lineage = Lineage("t")
        self.rows: dict[str, frozenset[int]] = {}
        self.visible: list[str] = []
        self.numbers = itertools.count(1)

    def push(self, kind: str, chosen: Collection[int], outputs: int) -> None:
        """Append, correct or rewrite; ``chosen`` are positions among the visible segments."""
        names = [self.visible[at % len(self.visible)] for at in chosen] if self.visible and kind != "append" else []
        names = list(dict.fromkeys(names))
        if kind == "rewrite" and not names:
            return
        entry_id = f"{kind}{next(self.numbers)}"
        rows = frozenset().union(*(self.rows[name] for name in names)) if kind == "rewrite" else self.new(outputs)
        parts = [part for at in range(outputs) if (part := frozenset(sorted(rows)[at::outputs]))]
        brought = [f"{entry_id}.{at}" for at in range(len(parts))]
        self.rows.update(zip(brought, parts, strict=True))
        self.lineage = self.lineage.put(LineageEntry.of(entry_id, names, brought, EntryState.COMPLETED, 1))
        if kind == "rewrite":
            self.lineage = self.lineage.with_rewrite(entry_id, ALL_TIME)
        self.visible = [name for name in self.visible if name not in names] + brought

    def new(self, count: int) -> frozenset[int]:
        """Rows that nobody has."""
        return frozenset(next(self.numbers) for _ in range(count))

    def registered(self, lost: Collection[str]) -> dict[str, set[str]]:
        """What is registered under each rewrite."""
        return {
            entry_id: set(self.lineage.entries[entry_id].segments_to).difference(lost)
            for entry_id in self.lineage.rewrites
        }

    def shown(self, lost: Collection[str], back: Collection[str]) -> list[int]:
        """The rows that readers see, as often as they do."""
        hidden = hidden_names(self.lineage, back)
        return sorted(
            row for name, rows in self.rows.items() if name not in hidden and name not in lost for row in rows
        )


def smallest(lineage: Lineage, lost: Collection[str]) -> frozenset[str]:
    """The definition, by trying every set: closed under what was built upon, of rewrites alone, and outside of it
    everything stands that can fall back."""
    rewrites = list(lineage.rewrites)
    for count in range(len(rewrites) + 1):
        for back in map(frozenset, itertools.combinations(rewrites, count)):
            closed = all(upon(lineage, entry_id) <= back for entry_id in back)
            if closed and not any(
                falls(lineage, entry_id, lost, back) for entry_id in rewrites if entry_id not in back
            ):
                return back
    raise AssertionError("all rewrites together are such a set")


def falls(lineage: Lineage, entry_id: str, lost: Collection[str], back: Collection[str]) -> bool:
    if not upon(lineage, entry_id) <= set(lineage.rewrites):
        return False
    replaced = {name for entry in lineage if entry.entry_id not in back for name in entry.segments_from}
    return any(name in lost and name not in replaced for name in lineage.entries[entry_id].segments_to)


def upon(lineage: Lineage, entry_id: str) -> set[str]:
    """The entry and all that replaced something of it, of that, and so on."""
    found = {entry_id}
    while True:
        brought = {name for one in found for name in lineage.entries[one].segments_to}
        more = {entry.entry_id for entry in lineage if brought.intersection(entry.segments_from)}
        if more <= found:
            return found
        found |= more


PUSHES = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "rewrite", "rewrite", "rewrite", "correction"]),
        st.lists(st.integers(0, 9), min_size=1, max_size=3),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=8,
)


def made(pushes: Iterable[tuple[str, list[int], int]]) -> History:
    history = History()
    history.push("append", (), 2)
    for kind, chosen, outputs in pushes:
        history.push(kind, chosen, outputs)
    return history


@given(PUSHES, st.data())
def test_what_does_not_stand_is_the_smallest_set_of_the_definition(
    pushes: list[tuple[str, list[int], int]], data: st.DataObject
) -> None:
    history = made(pushes)
    lost = data.draw(st.sets(st.sampled_from(sorted(history.rows)), max_size=3))
    assert fallen_back(history.lineage, history.registered(lost)) == smallest(history.lineage, lost)


@given(PUSHES, st.data())
def test_a_loss_shows_no_row_twice_and_none_that_was_replaced_on_purpose(
    pushes: list[tuple[str, list[int], int]], data: st.DataObject
) -> None:
    history = made(pushes)
    lost = data.draw(st.sets(st.sampled_from(sorted(history.rows)), max_size=3))
    before = history.shown((), ())
    after = history.shown(lost, fallen_back(history.lineage, history.registered(lost)))
    assert len(set(after)) == len(after)
    assert set(after) <= set(before)


@given(PUSHES, st.data())
def test_without_falling_back_a_loss_can_lose_rows_that_are_there(
    pushes: list[tuple[str, list[int], int]], data: st.DataObject
) -> None:
    """It never shows fewer rows than doing nothing about a loss would."""
    history = made(pushes)
    lost = data.draw(st.sets(st.sampled_from(sorted(history.rows)), max_size=3))
    assert set(history.shown(lost, ())) <= set(
        history.shown(lost, fallen_back(history.lineage, history.registered(lost)))
    ) | {row for name in lost for row in history.rows[name]}


def test_a_lost_output_brings_back_its_inputs_once_until_the_clean_up_gives_that_up() -> None:
    history = made([("rewrite", [0, 1], 2)])
    (rewrite,) = history.lineage.rewrites
    lost = {f"{rewrite}.1"}
    back = fallen_back(history.lineage, history.registered(lost))
    assert back == {rewrite} and history.shown(lost, back) == history.shown((), ())
    history.lineage = history.lineage.with_cleaning(rewrite, 1)
    assert fallen_back(history.lineage, history.registered(lost)) == frozenset()
    assert len(history.shown(lost, ())) < len(history.shown((), ()))


def test_all_that_was_built_upon_a_loss_falls_back_with_it() -> None:
    """The second rewrite is whole, and its rows are among what the first one falls back to."""
    history = made([("rewrite", [0, 1], 2), ("rewrite", [0], 1)])
    first, second = history.lineage.rewrites
    lost = {f"{first}.1"}
    back = fallen_back(history.lineage, history.registered(lost))
    assert back == {first, second} and history.shown(lost, back) == history.shown((), ())


def test_nothing_falls_back_to_what_was_replaced_on_purpose() -> None:
    history = made([("rewrite", [0, 1], 2), ("correction", [0], 1)])
    (rewrite,) = history.lineage.rewrites
    assert fallen_back(history.lineage, history.registered({f"{rewrite}.1"})) == frozenset()
