"""Change capture: the changes between two versions, applied to the rows at the first one, give those at the second."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import UpsertRecord, require_record
from airflow_provider_segments.exceptions import SnapshotRefusedError, SourceDataError, UpsertRefusedError
from airflow_provider_segments.upsert import changes as module
from airflow_provider_segments.upsert.changes import CHANGE, Change, ChangedRows, Changes, read_changes
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.expiry import expire
from airflow_provider_segments.upsert.floor import raise_floor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from airflow_provider_segments.upsert.rollback import roll_back
from tests.support.tables import make_table
from tests.upsert.histories import STEPS, run_histories
from tests.upsert.world import Event, World, newest, stage_bulk, to_arrow, upsert_config

State = dict[str, str]


def record_of(table: Table) -> UpsertRecord:
    return require_record(table.lineage())


def shown(table: Table, mark: int | None = None) -> State:
    return {row["k"]: row["v"] for row in read_rows(table, mark=mark).to_pylist()}


def told(found: Changes[pyarrow.Table]) -> list[tuple[str, str, str]]:
    return sorted((row[CHANGE], row["k"], row["v"]) for row in found.rows.to_pylist())


def differences(before: State, after: State) -> list[tuple[str, str, str]]:
    """What a change capture must tell of two states, by looking at them."""
    found: list[tuple[str, str, str]] = []
    for key in {*before, *after}:
        match before.get(key), after.get(key):
            case str(value), None:
                found.append((Change.DELETE, key, value))
            case None, str(value):
                found.append((Change.INSERT, key, value))
            case str(value), str(other) if value != other:
                found += [(Change.BEFORE_UPDATE, key, value), (Change.AFTER_UPDATE, key, other)]
    return sorted(found)


class ChangesWorld(World):
    """Compares changes between random versions that can be read, after each step of a history."""

    def check(self) -> None:
        record = self.record()
        marks = [one for one in range(record.floor, record.clock + 1) if not record.is_void(one)]
        for _ in range(6):
            since, to = sorted(self.random.choices(marks, k=2))
            try:
                found = read_changes(self.table, since=since, to=to)
            except SourceDataError:
                continue  # nothing was written yet
            before, after = (newest(self.contents[mark], self.cutoffs[mark]) for mark in (since, to))
            assert told(found) == differences(before, after), f"from {since} to {to} of {record.clock}; {record}"
            self.checks += 1
            self.made.update(row[CHANGE] for row in found.rows.to_pylist())


def test_changes_lead_from_any_version_to_any_later_one(store: SegmentStore, tmp_path: Path) -> None:
    """Late, tied, repeated and deleted events, pushes, compaction, rollback, retention, clean-up, kills, overtaking."""
    checks, made = run_histories(store, tmp_path, range(200, 206), 30, ChangesWorld, delete_share=0.4)
    assert checks > 700
    wanted = (*STEPS, "killed", "overtaken", Change.INSERT, Change.AFTER_UPDATE, Change.DELETE)
    assert not [name for name in wanted if not made[name]]


@pytest.mark.slow
def test_changes_lead_from_any_version_to_any_later_one_in_long_histories(store: SegmentStore, tmp_path: Path) -> None:
    checks, _ = run_histories(store, tmp_path, range(300, 340), 100, ChangesWorld, delete_share=0.4)
    assert checks > 15_000


def test_without_the_rows_that_ended_the_histories_fail(
    store: SegmentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = module.changed_rows

    def only_new_rows(taken: Snapshot, since: int) -> Iterator[ChangedRows]:
        return (one for one in genuine(taken, since) if one.has_begun)

    monkeypatch.setattr(module, "changed_rows", only_new_rows)
    with pytest.raises(AssertionError, match="from"):
        run_histories(store, tmp_path, range(200, 206), 30, ChangesWorld, delete_share=0.4)


@pytest.fixture
def table(store: SegmentStore, tmp_path: Path) -> Table:
    """Five versions of the keys a to d."""
    store.apply_config(upsert_config())
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path / "cache")
    batches = [
        [Event(1, 0, 0, "a", "a1", False), Event(1, 0, 1, "b", "b1", False)],
        [Event(2, 0, 2, "a", "a2", False), Event(2, 0, 3, "c", "c2", False)],
        [Event(3, 0, 4, "a", "a3", False), Event(3, 0, 5, "b", "", True), Event(1, 0, 6, "c", "late", False)],
        [Event(4, 0, 7, "d", "d4", False), Event(4, 0, 8, "c", "", True)],
        [Event(5, 0, 9, "d", "", True), Event(5, 0, 10, "c", "c5", False)],
    ]
    for batch in batches:
        ingestor.ingest(to_arrow(batch))
    return store.table("t")


def test_a_key_that_changed_several_times_counts_once(table: Table) -> None:
    assert told(read_changes(table, since=1, to=3)) == [
        ("delete", "b", "b1"),
        ("insert", "c", "c2"),
        ("update_postimage", "a", "a3"),
        ("update_preimage", "a", "a1"),
    ]
    assert told(read_changes(table, since=0, to=1)) == [("insert", "a", "a1"), ("insert", "b", "b1")]


def test_a_key_that_came_and_went_or_went_and_came_is_told_as_what_is_left_of_it(table: Table) -> None:
    found = told(read_changes(table, since=3))
    assert found == [("update_postimage", "c", "c5"), ("update_preimage", "c", "c2")], "d came and went"
    assert told(read_changes(table, since=4)) == [("delete", "d", "d4"), ("insert", "c", "c5")]


def test_no_change_has_the_columns_too_and_says_where_it_leads(table: Table) -> None:
    found = read_changes(table, since=5)
    assert (found.rows.num_rows, found.to, found.vector) == (0, 5, {"/0": 11})
    assert found.rows.column_names == ["k", "ts", "v", "deleted", CHANGE]
    assert read_changes(table, since=1, to=2).vector == {"/0": 4}


@pytest.mark.parametrize(
    ("since", "to", "rule"),
    [
        (1, None, "below-floor"),
        (3, 2, "changes-backwards"),
        (9, None, "above-clock"),
        (2, 9, "above-clock"),
        ({"/0": 12}, None, "changes-behind"),
        ({"/0": 5, "/1": 1}, None, "changes-behind"),
    ],
)
def test_a_range_that_cannot_be_told_is_refused_by_name(table: Table, since: Any, to: int | None, rule: str) -> None:
    raise_floor(table.context, 2)
    with pytest.raises(UpsertRefusedError) as refused:
        read_changes(table, since=since, to=to)
    assert refused.value.rule == rule


def test_a_version_that_was_taken_back_is_refused_by_name(table: Table) -> None:
    roll_back(table.context, 3)
    with pytest.raises(UpsertRefusedError, match="rolled-back"):
        read_changes(table, since=4)
    assert told(read_changes(table, since=3)) == [], "nobody sees versions 4 and 5 any more"


def test_another_table_has_no_changes_to_tell(store: SegmentStore) -> None:
    with pytest.raises(SnapshotRefusedError, match="no-mark"):
        read_changes(make_table(store), since=0)


def bulk(table: Table) -> None:
    started = table.start(identity="bulk")
    rows = to_arrow([Event(1, 0, 0, "z", "bulk", False)]).drop_columns(["$partition", "$offset"])
    stage_bulk(table, started.entry_id, rows)
    table.end(started.entry_id)


def bulk_settled(table: Table, folder: Path) -> None:
    """A push whose rows a compaction has put among those of events."""
    bulk(table)
    UpsertIngestor(table, cache=folder / "bulk").ingest(None)
    UpsertCompactor(table).run(floor=record_of(table).clock)


@pytest.mark.parametrize(
    "act",
    [
        lambda table, _: bulk(table),
        lambda table, folder: (bulk(table), UpsertIngestor(table, cache=folder / "b").ingest(None)),
        bulk_settled,
        lambda table, _: expire(table, 2),
    ],
    ids=["waiting push", "push", "compacted push", "retention"],
)
def test_a_vector_is_refused_where_it_does_not_tell_the_rows(
    table: Table, tmp_path: Path, act: Callable[[Table, Path], object]
) -> None:
    act(table, tmp_path)
    with pytest.raises(UpsertRefusedError, match="changes-vector"):
        read_changes(table, since={"/0": 4})


def test_a_vector_of_merged_rows_is_refused(store: SegmentStore, tmp_path: Path) -> None:
    store.apply_config(upsert_config(mode="PARTIAL"))
    table = store.table("t")
    UpsertIngestor(table, cache=tmp_path / "c").ingest(to_arrow([Event(1, 0, 0, "a", "x", False)]))
    assert read_changes(table, since=0).vector is None
    with pytest.raises(UpsertRefusedError, match="changes-vector"):
        read_changes(table, since={})


@dataclass
class Consumer:
    """A copy of a table that is kept by its changes. Each value belongs to one event, so ``delivered`` shows what came
    twice. Version and vector are kept with the copy, as in one transaction."""

    copy: State = field(default_factory=dict)
    to: int = 0
    vector: Mapping[str, int] | None = field(default_factory=dict)
    delivered: Counter[tuple[str, str]] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)

    def poll(self, table: Table) -> bool:
        """Take the changes since the last poll. Returns False when the table has not read as far as the copy."""
        try:
            found = read_changes(table, since=self.to)
        except UpsertRefusedError as refused:
            assert refused.rule in ("rolled-back", "below-floor", "above-clock"), refused
            self.made[refused.rule] += 1
            return self.catch_up(table)
        except SourceDataError:
            return False  # rolled back to the empty table
        self._take(found)
        return True

    def catch_up(self, table: Table) -> bool:
        """Take the changes since the vector, because the version is gone."""
        assert self.vector is not None
        try:
            found = read_changes(table, since=self.vector)
        except UpsertRefusedError as refused:
            assert refused.rule == "changes-behind", refused
            self.made["behind"] += 1
            return False
        self.made["by vector"] += 1
        self._take(found)
        return True

    def _take(self, found: Changes[pyarrow.Table]) -> None:
        before = dict(self.copy)
        for row in found.rows.to_pylist():
            change, key, value = row[CHANGE], row["k"], row["v"]
            if change == Change.BEFORE_UPDATE:
                assert before[key] == value
            elif change == Change.DELETE:
                self.copy.pop(key, None)
            else:
                self.copy[key] = value
                self.delivered[key, value] += 1
        self.to, self.vector = found.to, found.vector


@pytest.mark.parametrize("seed", range(6))
def test_a_consumer_gets_each_event_once_over_rollbacks_and_a_rebuild(
    store: SegmentStore, tmp_path: Path, seed: int
) -> None:
    """Two source partitions that never change; ingestion goes back, history is given up, the table is made anew."""
    rnd = random.Random(seed)
    source = [
        [
            Event(rnd.randint(1, 9) + at // 3, part, at, rnd.choice("abcde"), f"{part}.{at}", rnd.random() < 0.3)
            for at in range(60)
        ]
        for part in range(2)
    ]
    consumer = Consumer()
    for name in ("t", "anew"):
        store.apply_config(upsert_config(name))
        table = store.table(name)
        knows_version = name == "t"
        if not knows_version:
            assert not consumer.catch_up(table), "an empty table has read less than the consumer"
        while (record := record_of(table)).positions != {"/0": 60, "/1": 60}:
            batch: list[Event] = []
            for part, events in enumerate(source):
                at = record.positions.get(f"/{part}", 0)
                batch += events[at : at + rnd.randint(0, 7)]
            UpsertIngestor(table, cache=tmp_path / name).ingest(to_arrow(batch))
            if rnd.random() < 0.5 and (consumer.poll(table) if knows_version else consumer.catch_up(table)):
                assert consumer.copy == shown(table, consumer.to)
                knows_version = True
            if rnd.random() < 0.2:
                record = record_of(table)
                marks = [one for one in range(record.floor, record.clock) if not record.is_void(one)]
                roll_back(table.context, rnd.choice(marks[-3:]))
            if rnd.random() < 0.2:
                UpsertCompactor(table).run(floor=record_of(table).clock)
        assert consumer.catch_up(table)
        assert consumer.copy == shown(table)
    assert max(consumer.delivered.values()) == 1
    assert consumer.made["by vector"] and consumer.made["behind"]
    print(dict(consumer.made))
