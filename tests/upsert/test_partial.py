"""Partial updates against a fold in plain Python: any batches, replays, late events, deletes, ordinary pushes."""

from __future__ import annotations

import datetime
import decimal
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.upsert import writing
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.partial import AT, WINNER, merged
from airflow_provider_segments.upsert.reading import read_rows
from tests.upsert.world import stage_bulk, upsert_config

STRATEGIES = {
    "over": "OVERWRITE",
    "force": "FORCE_OVERWRITE",
    "first": "IGNORE",
    "total": "INCREMENT",
    "low": "MIN",
    "high": "MAX",
    "all": "APPEND",
    "some": "UNION",
}
NUMBERS = ("over", "force", "first", "total", "low", "high")
_NAMES = itertools.count(1)
SCHEMA = pyarrow.schema(
    [
        ("k", pyarrow.string()),
        ("ts", pyarrow.int64()),
        *((name, pyarrow.int32()) for name in NUMBERS),
        ("all", pyarrow.list_(pyarrow.string())),
        ("some", pyarrow.list_(pyarrow.string())),
        ("deleted", pyarrow.bool_()),
        ("$partition", pyarrow.int32()),
        ("$offset", pyarrow.int64()),
    ]
)


class Update(NamedTuple):
    key: str
    time: int
    number: int | None
    texts: list[str] | None
    deleted: bool


def as_row(update: Update, offset: int) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(NUMBERS, update.number)
    values |= {"all": update.texts, "some": update.texts, "deleted": update.deleted}
    return {"k": update.key, "ts": update.time, **values, "$partition": 0, "$offset": offset}


def fold(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """One update, by Pinot's words: what is null leaves the other one, but for FORCE_OVERWRITE."""
    if old is None or old["deleted"] or new["deleted"]:
        return new
    merged = dict(new)
    for name, strategy in STRATEGIES.items():
        before, now = old[name], new[name]
        if strategy == "FORCE_OVERWRITE":
            continue
        if before is None or now is None:
            merged[name] = now if before is None else before
            continue
        merged[name] = {
            "OVERWRITE": lambda a, b: b,
            "IGNORE": lambda a, b: a,
            "INCREMENT": lambda a, b: a + b,
            "MIN": min,
            "MAX": max,
            "APPEND": lambda a, b: [*a, *b],
            "UNION": lambda a, b: sorted({*a, *b}),
        }[strategy](before, now)
    return merged


def place(row: dict[str, Any]) -> tuple[int, int]:
    return row["ts"], row["$offset"]


def expected(batches: list[list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """A batch is one version: of each key, what is newer than its row is folded into it, from old to new."""
    found: dict[str, dict[str, Any]] = {}
    for batch in batches:
        for row in sorted(batch, key=place):
            old = found.get(row["k"])
            if old is None or place(row) > place(old):
                found[row["k"]] = fold(old, row)
    return {key: row for key, row in found.items() if not row["deleted"]}


def seen(table: Table) -> dict[str, dict[str, Any]]:
    rows = read_rows(table).to_pylist()
    assert len({row["k"] for row in rows}) == len(rows)
    return {row["k"]: row for row in rows}


def check(table: Table, batches: list[list[dict[str, Any]]]) -> None:
    wanted = expected(batches)
    assert {key: shown(row) for key, row in seen(table).items()} == {key: shown(row) for key, row in wanted.items()}


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """What is compared: a union has no order, and no value twice."""
    return {name: row[name] for name in ("ts", *STRATEGIES)} | {"some": row["some"] and sorted(set(row["some"]))}


@pytest.fixture
def partial_table(store: SegmentStore) -> Table:
    store.apply_config(upsert_config(mode="PARTIAL", partialUpsertStrategies=STRATEGIES))
    return store.table("t")


updates = st.builds(
    Update,
    key=st.sampled_from("abc"),
    time=st.integers(0, 5),
    number=st.none() | st.integers(-9, 9),
    texts=st.none() | st.lists(st.sampled_from("xyz"), max_size=2),
    deleted=st.integers(0, 5).map(lambda drawn: drawn == 0),
)


@settings(
    max_examples=30, phases=[Phase.generate], deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(sent=st.lists(updates, min_size=1, max_size=16), cuts=st.sets(st.integers(1, 15)), again=st.integers(0, 3))
def test_a_row_is_the_fold_of_its_updates(
    store: SegmentStore, tmp_path_factory: pytest.TempPathFactory, sent: list[Update], cuts: set[int], again: int
) -> None:
    """However the stream is cut into batches; a batch that is sent again, and a compaction, change nothing."""
    name = f"fold{next(_NAMES)}"
    store.apply_config(upsert_config(name, mode="PARTIAL", partialUpsertStrategies=STRATEGIES))
    table = store.table(name)
    ingestor = UpsertIngestor(table, cache=tmp_path_factory.mktemp("cache"))
    rows = [as_row(update, offset) for offset, update in enumerate(sent)]
    edges = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    batches = [rows[start:end] for start, end in itertools.pairwise(edges)]
    for number, batch in enumerate(batches):
        ingestor.ingest(pyarrow.Table.from_pylist(batch, schema=SCHEMA))
        check(table, batches[: number + 1])
        if number < again:
            ingestor.ingest(pyarrow.Table.from_pylist(batch, schema=SCHEMA))
            check(table, batches[: number + 1])
    UpsertCompactor(table).run()
    check(table, batches)
    ingestor = UpsertIngestor(table, cache=tmp_path_factory.mktemp("cache"))  # the key store is built from the table
    ingestor.ingest(pyarrow.Table.from_pylist(rows, schema=SCHEMA))
    check(table, batches)


def test_rows_of_ordinary_pushes_are_whole_and_later_updates_are_merged_with_them(
    partial_table: Table, tmp_path: Path
) -> None:
    """In the batch that resolves them, and in the next ones."""
    table = partial_table
    ingestor = UpsertIngestor(table, cache=tmp_path / "cache")
    first = as_row(Update("a", 1, 1, ["x"], False), 0)
    ingestor.ingest(pyarrow.Table.from_pylist([first], schema=SCHEMA))
    bulk = {**as_row(Update("a", 2, 10, None, False), 0), "low": None}
    push_whole(table, [bulk])
    ingestor.ingest(pyarrow.Table.from_pylist([as_row(Update("a", 3, 5, ["y"], False), 1)], schema=SCHEMA))
    [row] = seen(table).values()
    assert (row["total"], row["low"], row["high"], row["first"], row["all"]) == (15, 5, 10, 10, ["y"])
    ingestor.ingest(pyarrow.Table.from_pylist([as_row(Update("a", 4, 1, None, False), 2)], schema=SCHEMA))
    [row] = seen(table).values()
    assert (row["total"], row["low"], row["over"], row["all"]) == (16, 1, 1, ["y"])


def push_whole(table: Table, rows: list[dict[str, Any]]) -> None:
    """An ordinary push of rows that have no place in a source."""
    entry_id = table.start().entry_id
    stage_bulk(table, entry_id, pyarrow.Table.from_pylist(rows, schema=SCHEMA).drop_columns(["$partition", "$offset"]))
    table.end(entry_id)


def test_old_rows_are_found_in_whatever_row_group_they_are(
    partial_table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 3)
    ingestor = UpsertIngestor(partial_table, cache=tmp_path)
    names = [f"k{at}" for at in range(40)]
    for time in (1, 2):
        keys = names if time == 1 else names[::-3]
        rows = [as_row(Update(key, time, int(key[1:]), None, False), time * 100 + at) for at, key in enumerate(keys)]
        ingestor.ingest(pyarrow.Table.from_pylist(rows, SCHEMA))
    with partial_table.snapshot(mark=1) as taken:
        assert max(segment.rows for segment in taken.segments) > 6
    read = {row["k"]: row["total"] for row in read_rows(partial_table).to_pylist()}
    assert read == {key: int(key[1:]) * (2 if key in names[::-3] else 1) for key in names}


@pytest.mark.parametrize(
    ("column", "strategy", "why"),
    [("over", "APPEND", "needs a list"), ("some", "INCREMENT", "sum"), ("k2", "INCREMENT", "sum")],
)
def test_a_column_that_cannot_be_merged_in_its_way_is_refused(
    store: SegmentStore, tmp_path: Path, column: str, strategy: str, why: str
) -> None:
    store.apply_config(upsert_config(mode="PARTIAL", partialUpsertStrategies={column: strategy}))
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path)
    rows = pyarrow.Table.from_pylist([as_row(Update("a", 1, 1, ["x"], False), 0)], schema=SCHEMA)
    with pytest.raises(SourceDataError, match=why):
        ingestor.ingest(rows.append_column("k2", pyarrow.array(["text"])))
    assert not store.table("t").snapshot().segments


def test_a_sum_that_its_type_cannot_hold_is_refused_and_publishes_nothing(partial_table: Table, tmp_path: Path) -> None:
    ingestor = UpsertIngestor(partial_table, cache=tmp_path)
    row = as_row(Update("a", 1, 2**31 - 1, None, False), 0)
    ingestor.ingest(pyarrow.Table.from_pylist([row], schema=SCHEMA))
    with pytest.raises(SourceDataError, match="partial update"):
        ingestor.ingest(pyarrow.Table.from_pylist([{**row, "ts": 2, "$offset": 1}], schema=SCHEMA))
    [kept] = seen(partial_table).values()
    assert kept["total"] == 2**31 - 1


def test_values_of_every_type_come_through_a_merge_as_they_were() -> None:
    """Where the new value is null, the old one stays, with its type and all of its digits."""
    at = datetime.datetime(2013, 1, 1, 5, 0, 0, 123456, datetime.UTC)
    values: dict[str, tuple[pyarrow.DataType, Any]] = {
        "zoned": (pyarrow.timestamp("us", "UTC"), at),
        "plain": (pyarrow.timestamp("us"), at.replace(tzinfo=None)),
        "date": (pyarrow.date32(), at.date()),
        "decimal": (pyarrow.decimal128(38, 9), decimal.Decimal("12345678901234567890123456789.123456789")),
        "bytes": (pyarrow.binary(), b"\x00\xff"),
        "text": (pyarrow.large_string(), 'with "quotes" and \u2028'),
        "real": (pyarrow.float64(), 0.1),
        "small": (pyarrow.int8(), -128),
        "struct": (pyarrow.struct([("a", pyarrow.int32()), ("b", pyarrow.string())]), {"a": 1, "b": None}),
        "map": (pyarrow.map_(pyarrow.string(), pyarrow.int64()), [("k", 1)]),
        "nothing": (pyarrow.null(), None),
        'odd "name"': (pyarrow.string(), "v"),
    }
    arrays = {name: pyarrow.array([value, None], kind) for name, (kind, value) in values.items()}
    keys = {"k": ["a", "a"], "ts": [1, 2], WINNER: [0, 0], AT: [0, 1]}
    rows = pyarrow.table({**arrays, **keys})
    config = upsert_config(mode="PARTIAL", deleteRecordColumn=None).upsert
    assert config is not None
    [row] = merged(rows, config).to_pylist()
    assert row == {**{name: value for name, (_, value) in values.items()}, "k": "a", "ts": 2}
