"""The resolver and the validity of rows, against a dictionary: one row a key at every mark, and the right one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider_segments.core.upsert.view import is_valid
from airflow_provider_segments.upsert.events import DELETE, LOSER, IngestionUpsertEvent, IngestionUpsertEvents
from airflow_provider_segments.upsert.resolve import Resolution, resolve
from airflow_provider_segments.upsert.validity import NO_ENDS, RowEnds, ends_by_segment, log_of
from tests.support.machines import run_machine

Predicate = Callable[[int | None, int | None, int], bool]


@dataclass
class SmallTable:
    """Segments and update logs in memory, changed by the project's own resolver and read by its own validity."""

    resolver: Callable[[IngestionUpsertEvents, IngestionUpsertEvents], Resolution] = resolve
    predicate: Predicate = is_valid
    ends_of: Callable[[Any], dict[str, RowEnds]] = ends_by_segment
    segments: list[list[IngestionUpsertEvent]] = field(default_factory=list)
    logs: list[tuple[int, Any]] = field(default_factory=list)
    holders: dict[int, IngestionUpsertEvent] = field(default_factory=dict)

    @property
    def clock(self) -> int:
        return len(self.segments)

    def ingest(self, rows: Iterable[tuple[int, int, int, int, int]]) -> None:
        """One batch, as one version. Every row is written, those that lose too."""
        segment = len(self.segments)
        written = [
            IngestionUpsertEvent(key, 0, time, region, part, offset, segment, number)
            for number, (key, time, region, part, offset) in enumerate(rows)
        ]
        batch = IngestionUpsertEvents.of(written)
        old = [self.holders[key] for key in sorted({one.high for one in written}) if key in self.holders]
        found = self.resolver(batch, IngestionUpsertEvents.of(old))
        ended = [(old[number].segment, old[number].row, DELETE) for number in found.ended]
        lost = [(segment, int(number), LOSER) for part in (found.losers, found.replays) for number in part]
        for number in found.winners:
            self.holders[written[number].high] = written[number]
        self.segments.append(written)
        self.logs.append((segment + 1, _log([*ended, *lost])))

    def live(self, marks: Iterable[int]) -> list[dict[int, list[IngestionUpsertEvent]]]:
        """The rows of each key that are seen, at each of ``marks``."""
        ends = self.ends_of(self.logs)
        rows: list[tuple[IngestionUpsertEvent, int | None, int | None]] = []
        for number, segment in enumerate(self.segments):
            start, until = ends.get(str(number), NO_ENDS).intervals(number + 1, len(segment))
            rows += zip(segment, start.to_pylist(), until.to_pylist(), strict=True)
        return [self._seen(rows, mark) for mark in marks]

    def _seen(self, rows: Iterable[tuple[Any, int | None, int | None]], mark: int) -> dict[int, list[Any]]:
        found: dict[int, list[IngestionUpsertEvent]] = {}
        for row, start, until in rows:
            if self.predicate(start, until, mark):
                found.setdefault(row.high, []).append(row)
        return found


def _log(ends: list[tuple[int, int, int]]) -> Any:
    return log_of(
        {
            "segment": [str(segment) for segment, _, _ in ends],
            "row": [row for _, row, _ in ends],
            "kind": [kind for _, _, kind in ends],
            "version": [None] * len(ends),
        }
    )


def last_end_counts(logs: list[tuple[int, Any]]) -> dict[str, RowEnds]:
    """Last write wins: what the latest log says of a row."""
    last = {(one["segment"], one["row"]): (version, one["kind"]) for version, log in logs for one in log.to_pylist()}
    return ends_by_segment(
        (version, _log([(int(segment), row, kind)])) for (segment, row), (version, kind) in last.items()
    )


class Oracle:
    """What must be seen: of the events so far, the greatest of each key."""

    def __init__(self) -> None:
        self.versions: list[dict[int, tuple[int, ...]]] = [{}]

    def ingest(self, rows: Iterable[tuple[int, int, int, int, int]]) -> None:
        newest = dict(self.versions[-1])
        for key, *order in rows:
            if key not in newest or tuple(order) > newest[key]:
                newest[key] = tuple(order)
        self.versions.append(newest)


def assert_agree(table: SmallTable, oracle: Oracle) -> int:
    """At every mark one row a key, and the oracle's. Returns how many marks were compared."""
    for mark, live in enumerate(table.live(range(table.clock + 1))):
        seen = {key: [(one.time, one.region, one.partition, one.offset) for one in rows] for key, rows in live.items()}
        wanted = {key: [order] for key, order in oracle.versions[mark].items()}
        assert seen == wanted, f"at mark {mark}"
    return table.clock + 1


class UpsertMachine(RuleBasedStateMachine):
    """Batches of new, late, tied and replayed events."""

    make_table: Callable[[], SmallTable] = SmallTable

    def __init__(self) -> None:
        super().__init__()
        self.table, self.oracle = type(self).make_table(), Oracle()
        self.sent: list[tuple[int, int, int, int, int]] = []
        self.offsets = {(region, part): 0 for region in (0, 1) for part in (0, 1)}

    def send(self, rows: list[tuple[int, int, int, int, int]]) -> None:
        self.table.ingest(rows)
        self.oracle.ingest(rows)

    @rule(
        rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 1), st.integers(0, 1)), max_size=6)
    )
    def new_events(self, rows: list[tuple[int, int, int, int]]) -> None:
        batch = []
        for key, time, region, part in rows:
            self.offsets[region, part] += 1
            batch.append((key, time, region, part, self.offsets[region, part]))
        self.sent += batch
        self.send(batch)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        self.send(data.draw(st.lists(st.sampled_from(self.sent), max_size=6)))

    @precondition(lambda self: self.sent)
    @rule()
    def replay_everything(self) -> None:
        self.send(self.sent)

    @invariant()
    def agrees(self) -> None:
        assert_agree(self.table, self.oracle)


def _machine(**how: Any) -> type[UpsertMachine]:
    return type("Changed", (UpsertMachine,), {"make_table": staticmethod(lambda: SmallTable(**how))})


def test_one_row_a_key_at_every_mark_whatever_arrives_in_whatever_order() -> None:
    run_machine(UpsertMachine, 60, 10)


def by_arrival(batch: IngestionUpsertEvents, holders: IngestionUpsertEvents) -> Resolution:
    """The proposal's rule: a row that arrives later and is not older wins."""
    held = {(one.high, one.low): (number, one, False) for number, one in enumerate(holders)}
    winners: dict[Any, int] = {}
    losers, ended = [], []
    for number, one in enumerate(batch):
        key = (one.high, one.low)
        if key in held and held[key][1].time > one.time:
            losers.append(number)
            continue
        if key in held:
            (losers if held[key][2] else ended).append(held[key][0])
        held[key] = (number, one, True)
        winners[key] = number
    return Resolution(*(numpy.array(rows, int) for rows in ([*winners.values()], losers, [], ended, [])))


def proposal(start: int | None, until: int | None, mark: int) -> bool:
    """The proposal's predicate, word for word: ``validFrom < L and validUntil = nil or validUntil > L``."""
    return (start is not None and start < mark and until is None) or (until is not None and until > mark)


def strictly_less(start: int | None, until: int | None, mark: int) -> bool:
    """The same with its parentheses put right."""
    return start is not None and start < mark and (until is None or until > mark)


@pytest.mark.parametrize(
    "how",
    [{"predicate": proposal}, {"predicate": strictly_less}, {"resolver": by_arrival}],
    ids=["the proposal's predicate", "valid from below the mark", "arrival order"],
)
def test_what_the_proposal_says_is_wrong(how: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="at mark"):
        run_machine(_machine(**how), 60, 10, phases=[Phase.generate], report_multiple_bugs=False)


@pytest.mark.parametrize(("ends_of", "is_right"), [(ends_by_segment, True), (last_end_counts, False)])
def test_the_first_end_of_a_row_counts(ends_of: Any, is_right: bool) -> None:
    """An end that is logged once more, by whoever resolved against an older holder, must not change older marks."""
    table = SmallTable(ends_of=ends_of)
    for time in (1, 2, 3):
        table.ingest([(7, time, 0, 0, time)])
    table.logs.append((3, _log([(0, 0, DELETE)])))  # row 0 of segment 0 once more
    times = [[one.time for one in live[7]] for live in table.live((1, 2, 3))]
    assert (times == [[1], [2], [3]]) is is_right


def test_late_are_the_rows_that_are_older_than_what_their_key_had() -> None:
    random = numpy.random.default_rng(6)
    for _ in range(200):
        rows = [
            (key, 0, time, 0, 0, at, 0, at) for at, (key, time) in enumerate(random.integers(0, 5, (12, 2)).tolist())
        ]
        held = {key: (key, 0, int(random.integers(0, 5)), 0, 0, 99, 1, 0) for key in range(0, 5, 2)}
        found = resolve(IngestionUpsertEvents.of(rows), IngestionUpsertEvents.of(held.values()))
        late = [at for at, row in enumerate(rows) if row[0] in held and row[2:6] < held[row[0]][2:6]]
        assert found.late.tolist() == late
        assert set(late) <= set(found.losers.tolist())


def test_a_row_that_is_sent_twice_in_one_batch_counts_once() -> None:
    one = IngestionUpsertEvent(1, 2, 10, 0, 0, 5, 0, 0)
    found = resolve(IngestionUpsertEvents.of([one, one._replace(row=1)]), IngestionUpsertEvents.of())
    assert (list(found.winners), list(found.replays), list(found.losers)) == ([0], [1], [])


def test_keys_that_share_one_half_of_their_hash_are_different_keys() -> None:
    rows = [IngestionUpsertEvent(1, low, 10, 0, 0, low, 0, low) for low in range(3)]
    assert list(resolve(IngestionUpsertEvents.of(rows), IngestionUpsertEvents.of()).winners) == [0, 1, 2]


def test_every_row_of_a_batch_is_in_exactly_one_class() -> None:
    random = numpy.random.default_rng(5)
    for _ in range(200):
        rows = random.integers(0, 4, (30, 6))
        batch = IngestionUpsertEvents.of(
            [(key, 0, time, 0, part, at, 0, n) for n, (key, time, part, at, *_) in enumerate(rows.tolist())]
        )
        found = resolve(batch, IngestionUpsertEvents.of())
        everything = [*found.winners, *found.losers, *found.replays]
        assert sorted(everything) == list(range(30))
        assert not len(found.ended)
