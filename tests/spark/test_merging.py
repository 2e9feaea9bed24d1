"""Merging in a worker: what goes in comes out, sorted and cut, whatever its types; and a wrong file is noticed."""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from airflow_provider_segments.arrow.times import arrow_times
from airflow_provider_segments.arrow.writing import WriteJob
from airflow_provider_segments.core.model.interval import Granularity
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.exceptions import ObjectNotFoundError, SourceDataError
from airflow_provider_segments.spark import merging
from airflow_provider_segments.spark.merging import Merged, MergeInput, MergeJob, MergeMismatchError, merge

ENTRY = "00000000-0000-4000-8000-000000000000"
DAY = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)


def at(minute: float) -> datetime.datetime:
    return DAY + datetime.timedelta(minutes=minute)


def make_job(folder: Path, *tables: pyarrow.Table, **changes: Any) -> MergeJob:
    """A job over one object for each table."""
    store = LocalStore(folder / "store")
    inputs = []
    for number, table in enumerate(tables):
        path = folder / f"{number}.parquet"
        pyarrow.parquet.write_table(table, path)
        store.put_file(path, f"t/in/{number}.parquet", owner={})
        inputs.append(MergeInput(f"t/in/{number}.parquet"))
    write = WriteJob(
        table="t", entry_id=ENTRY, stager="compact", attempt=1, prefix="t/out/", generation="g",
        granularity=changes.pop("granularity", Granularity.DAY), sort_columns=changes.pop("sort_columns", ()),
        columns=(), has_time=changes.get("time_column", "at") is not None, target_rows=changes.pop("target_rows", 1000),
        compression="zstd", statistics_columns=changes.pop("statistics_columns", ()), spark_schema="", slices={},
        storage=store, fingerprint="fp",
    )  # fmt: skip
    defaults: dict[str, Any] = {
        "time_column": "at", "time_format": "TIMESTAMP", "deduplicate": (), "rollup": (), "memory_bytes": 1 << 30,
    }  # fmt: skip
    return MergeJob(write, tuple(inputs), **{**defaults, **changes})


def rows_of(job: MergeJob, merged: Merged) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in merged.segments:
        with job.write.storage.open(f"t/out/{one.record.file}") as file:
            table = pyarrow.parquet.read_table(file)
        assert table.num_rows == one.record.rows
        found += table.to_pylist()
    return found


def test_rows_come_out_sorted_by_time_cut_to_the_target_and_described(tmp_path: Path) -> None:
    first = pyarrow.table({"at": [at(5), at(1), at(3)], "v": [5, 1, 3]})
    second = pyarrow.table({"at": [at(2), at(4)], "v": [2, 4]})
    job = make_job(tmp_path, first, second, target_rows=3, statistics_columns=("v",))
    merged = merge(job, 7)
    assert [row["v"] for row in rows_of(job, merged)] == [1, 2, 3, 4, 5]
    assert [(one.record.rows, one.record.columns) for one in merged.segments] == [
        (2, {"v": [1, 2, 0]}),
        (3, {"v": [3, 5, 0]}),
    ]
    assert (merged.rows_in, merged.too_large) == (5, "")
    assert {one.record.fingerprint for one in merged.segments} == {"fp"}
    assert {one.chunk for one in merged.segments} == {"2013-01-01"}


def test_every_type_survives_nested_and_null_too(tmp_path: Path) -> None:
    rows = [
        {
            "at": at(number), "text": None if number == 1 else "ä" * number, "flag": number % 2 == 0,
            "price": Decimal("1.10") * number, "day": datetime.date(2013, 1, 1 + number), "raw": bytes([number]),
            "tags": ["x", None] if number else None, "point": {"a": number, "b": [number]}, "ratio": number / 3,
        }
        for number in range(4)
    ]  # fmt: skip
    table = pyarrow.Table.from_pylist(rows)
    job = make_job(tmp_path, table.slice(2), table.slice(0, 2))
    assert rows_of(job, merge(job, 1)) == rows


def test_a_column_that_older_segments_lack_is_null_in_their_rows(tmp_path: Path) -> None:
    old = pyarrow.table({"at": [at(1)], "v": pyarrow.array([1], pyarrow.int32())})
    new = pyarrow.table({"at": [at(2)], "w": ["w"], "v": pyarrow.array([2], pyarrow.int64())})
    job = make_job(tmp_path, old, new)
    assert rows_of(job, merge(job, 1)) == [{"at": at(1), "w": None, "v": 1}, {"at": at(2), "w": "w", "v": 2}]


def test_schemas_that_cannot_be_joined_are_refused(tmp_path: Path) -> None:
    job = make_job(tmp_path, pyarrow.table({"at": [at(1)], "v": [1]}), pyarrow.table({"at": [at(1)], "v": ["text"]}))
    with pytest.raises(SourceDataError, match="cannot be joined"):
        merge(job, 1)


def test_days_become_a_month_and_a_month_of_rows_falls_into_its_days(tmp_path: Path) -> None:
    table = pyarrow.table({"at": [at(0), at(60 * 24), at(60 * 25)], "v": [1, 2, 3]})
    job = make_job(tmp_path, table, granularity=Granularity.MONTH)
    assert [one.chunk for one in merge(job, 1).segments] == ["2013-01"]
    finer = replace(job, write=replace(job.write, granularity=Granularity.DAY, attempt=2))
    assert [(one.chunk, one.record.rows) for one in merge(finer, 1).segments] == [("2013-01-01", 1), ("2013-01-02", 2)]


def test_of_the_rows_of_one_key_the_last_written_is_kept(tmp_path: Path) -> None:
    old = pyarrow.table({"at": [at(1), at(1), at(2)], "k": [1, None, 2], "v": ["old", "none", "old"]})
    new = pyarrow.table({"at": [at(1), at(3)], "k": [1, 3], "v": ["new", "new"]})
    job = make_job(tmp_path, old, new, deduplicate=("k",))
    merged = merge(job, 1)
    assert {row["k"]: row["v"] for row in rows_of(job, merged)} == {1: "new", None: "none", 2: "old", 3: "new"}
    assert merged.rows_in == 5


def test_a_rollup_joins_the_rows_of_equal_keys(tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "at": [at(1), at(1), at(2)], "k": ["a", "a", "a"], "n": pyarrow.array([1, 2, 4], pyarrow.int32()),
            "low": [5, 3, 1], "high": [5, 3, 1], "count": [10, 10, 1],
        }
    )  # fmt: skip
    rollup = (("n", "sum"), ("low", "min"), ("high", "max"), ("count", "count"))
    job = make_job(tmp_path, table, rollup=rollup)
    assert rows_of(job, merge(job, 1)) == [
        {"at": at(1), "k": "a", "n": 3, "low": 3, "high": 5, "count": 20},
        {"at": at(2), "k": "a", "n": 4, "low": 1, "high": 1, "count": 1},
    ]


def test_a_sum_that_does_not_fit_is_an_error_and_not_another_number(tmp_path: Path) -> None:
    table = pyarrow.table({"at": [at(1), at(1)], "n": pyarrow.array([2**31 - 1, 1], pyarrow.int32())})
    with pytest.raises(SourceDataError, match="does not fit"):
        merge(make_job(tmp_path, table, rollup=(("n", "sum"),)), 1)


def test_what_is_too_large_for_a_worker_is_left_to_spark_before_it_is_read(tmp_path: Path) -> None:
    merged = merge(make_job(tmp_path, pyarrow.table({"at": [at(1)], "v": ["x" * 10_000]}), memory_bytes=100), 1)
    assert "a worker may hold 100" in merged.too_large and not merged.segments


@pytest.mark.parametrize(
    ("column", "time_format", "expected"),
    [
        (pyarrow.array([-1], pyarrow.timestamp("us")), "TIMESTAMP", [-1]),
        (pyarrow.array([-1_000_001], pyarrow.timestamp("ns", "UTC")), "TIMESTAMP", [-2]),
        (pyarrow.array([2], pyarrow.timestamp("s")), "TIMESTAMP", [2000]),
        (pyarrow.array([1], pyarrow.date32()), "TIMESTAMP", [86_400_000]),
        (pyarrow.array([3]), "EPOCH_SECONDS", [3000]),
        (pyarrow.array([3]), "EPOCH_MILLIS", [3]),
        (pyarrow.array([-3001]), "EPOCH_MICROS", [-4]),
        (pyarrow.array(["2013-01-01"]), "TIMESTAMP", None),
        (pyarrow.array([None], pyarrow.timestamp("us")), "TIMESTAMP", None),
        (pyarrow.array([2**60]), "EPOCH_MILLIS", None),
    ],
)
def test_times_are_read_as_spark_reads_them_or_left_to_it(
    column: pyarrow.Array, time_format: str, expected: list[int] | None
) -> None:
    found = arrow_times(pyarrow.chunked_array([column]), time_format)
    assert (None if found is None else found.to_pylist()) == expected


def test_a_row_that_changed_on_the_way_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path, pyarrow.table({"at": [at(1), at(2)], "v": [1, 2]}))
    look = merging._look

    def tampered(path: Path) -> tuple[int, int]:
        table = pyarrow.parquet.read_table(path)
        swapped = table.set_column(1, "v", pyarrow.array(table.column("v").to_pylist()[::-1]))
        pyarrow.parquet.write_table(swapped, path)
        return look(path)

    monkeypatch.setattr(merging, "_look", tampered)
    with pytest.raises(MergeMismatchError, match="with other values"):
        merge(job, 1)


def test_a_missing_input_is_an_error(tmp_path: Path) -> None:
    job = make_job(tmp_path, pyarrow.table({"at": [at(1)], "v": [1]}))
    with pytest.raises(ObjectNotFoundError):
        merge(replace(job, inputs=(*job.inputs, MergeInput("t/in/gone.parquet"))), 1)


def test_files_too_large_to_be_fetched_whole_are_read_by_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_WHOLE_BYTES", 0)
    job = make_job(tmp_path, pyarrow.table({"at": [at(2)], "v": [2]}), pyarrow.table({"at": [at(1)], "v": [1]}))
    assert [row["v"] for row in rows_of(job, merge(job, 1))] == [1, 2]


@pytest.mark.parametrize("name", ["plain.parquet", "day=1/it's.parquet", "a[b]*.parquet"])
def test_a_file_has_the_fingerprint_of_its_rows_whatever_their_types(tmp_path: Path, name: str) -> None:
    numbers = [pyarrow.int8(), pyarrow.int16(), pyarrow.int32(), pyarrow.int64(), pyarrow.uint8(), pyarrow.uint64()]
    columns = {f"n{at}": pyarrow.array([1, None, 100], kind) for at, kind in enumerate(numbers)}
    columns |= {
        "F": pyarrow.array([-0.0, float("nan"), None]), "f": pyarrow.array([1.5, None, 0.0], pyarrow.float32()),
        "text": pyarrow.array(["a", None, "ä"]), "raw": pyarrow.array([b"\0", b"", None]),
        "flag": pyarrow.array([True, None, False]), "day": pyarrow.array([0, -1, None], pyarrow.date32()),
        "at": pyarrow.array([-1, 0, None], pyarrow.timestamp("us", "UTC")),
        "local": pyarrow.array([-1, 0, None], pyarrow.timestamp("us")),
    }  # fmt: skip
    other = {
        "price": pyarrow.array([Decimal("1.10"), None, Decimal(0)]), "tags": pyarrow.array([["x"], None, []]),
        "ms": pyarrow.array([1, 2, None], pyarrow.timestamp("ms")), "point": pyarrow.array([{"a": 1}, None, {"a": 2}]),
    }  # fmt: skip
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    for data in (pyarrow.table(columns), pyarrow.table(columns | other)):
        pyarrow.parquet.write_table(data, path)
        assert merging.file_fingerprint(path) == merging.fingerprint_of(data)
        changed = data.set_column(0, "n0", pyarrow.array([2, None, 100], pyarrow.int8()))
        assert merging.file_fingerprint(path) != merging.fingerprint_of(changed)


def test_text_of_few_values_stays_a_dictionary_and_the_file_says_what_it_would_otherwise(tmp_path: Path) -> None:
    """Whatever order each file has its values in, with nulls, and also where a file lacks the column."""
    first = pyarrow.table({"at": [at(2), at(1)], "kind": ["b", None], "n": pyarrow.array([1, 2], pyarrow.int8())})
    second = pyarrow.table({"at": [at(4), at(3)], "kind": ["a", "b"], "n": pyarrow.array([3, 4], pyarrow.int8())})
    job = make_job(tmp_path, first, second)
    parts = merging._Inputs(job).read()
    assert pyarrow.types.is_dictionary(merging._one_table(parts).schema.field("kind").type)
    merged = merge(job, 1)
    assert [row["kind"] for row in rows_of(job, merged)] == [None, "b", "b", "a"]
    with job.write.storage.open(f"t/out/{merged.segments[0].record.file}") as file:
        assert pyarrow.parquet.read_schema(file).remove_metadata().equals(first.schema)
    (tmp_path / "other").mkdir()
    job = make_job(tmp_path / "other", first, second.drop_columns(["kind"]))
    assert [row["kind"] for row in rows_of(job, merge(job, 1))] == [None, "b", None, None]


def test_text_of_many_values_or_that_is_looked_at_is_no_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pyarrow.table({"at": [at(1), at(2)], "kind": ["b", "a"]})

    def kind(name: str, **changes: Any) -> pyarrow.DataType:
        (tmp_path / name).mkdir()
        job = make_job(tmp_path / name, data, **changes)
        found = merging._one_table(merging._Inputs(job).read()).schema.field("kind").type
        assert [row["kind"] for row in rows_of(job, merge(job, 1))] == (
            ["a", "b"] if changes.get("sort_columns") else ["b", "a"]
        )
        return found

    assert kind("sorted", sort_columns=("kind",)) == pyarrow.string()
    assert kind("described", statistics_columns=("kind",)) == pyarrow.string()
    assert kind("deduplicated", deduplicate=("kind",)) == pyarrow.string()
    monkeypatch.setattr(merging, "_MOST_VALUES", 1)
    assert kind("many") == pyarrow.string()


def test_what_turns_out_too_large_on_the_way_is_left_to_spark(tmp_path: Path) -> None:
    tables = [pyarrow.table({"at": [at(1)], "v": ["x" * 10_000]}) for _ in range(20)]
    merged = merge(make_job(tmp_path, *tables, memory_bytes=60_000), 1)
    assert "a worker may hold 60,000" in merged.too_large and not merged.segments
