"""The executor's half: cutting, sorting, names, encodings, statistics."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from airflow_provider_segments.arrow import writing
from airflow_provider_segments.arrow.statistics import ColumnStatistics
from airflow_provider_segments.arrow.writing import WriteJob, utc, write_partition
from airflow_provider_segments.core.model.interval import Granularity
from airflow_provider_segments.core.model.segment import StagedSegment
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.exceptions import InvalidNameError, ObjectExistsError, SourceDataError

ENTRY = "0b2f6c1e-8f5d-4c7a-9d35-1f0a2b3c4d5e"
DAY = 86_400_000


def make_job(folder: Path, **changes: Any) -> WriteJob:
    """A job that writes below ``folder``."""
    given: dict[str, Any] = {
        "table": "t",
        "entry_id": ENTRY,
        "stager": "build",
        "attempt": 3,
        "prefix": f"t/{ENTRY}/",
        "generation": f"{ENTRY}:7:build:3",
        "granularity": Granularity.DAY,
        "sort_columns": ("x",),
        "columns": ("x",),
        "has_time": True,
        "target_rows": 10,
        "compression": "zstd",
        "statistics_columns": ("x",),
        "spark_schema": "{}",
        "slices": {},
        "storage": LocalStore(folder),
    }
    return WriteJob(**{**given, **changes})


def batch(values: list[Any], times: list[int]) -> pyarrow.RecordBatch:
    """Rows of ``x`` with their times."""
    return pyarrow.record_batch(
        [pyarrow.array(values, pyarrow.float64()), pyarrow.array(times, pyarrow.int64())], ["x", "ms"]
    )


def rows_of(folder: Path, segment: StagedSegment) -> list[Any]:
    """The segment's ``x``."""
    path = folder / "t" / ENTRY / segment.record.file
    return pyarrow.parquet.read_table(path)["x"].to_pylist()  # type: ignore[no-any-return]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-50, 50), st.integers(-3 * DAY, 3 * DAY)), min_size=1, max_size=120),
    size=st.integers(1, 40),
    target=st.integers(1, 40),
)
def test_every_row_lands_once_in_its_chunk_sorted_and_never_above_the_target(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]], size: int, target: int
) -> None:
    """Whatever the batches and however wrong the plan was."""
    folder = tmp_path_factory.mktemp("write")
    batches = [
        batch([x for x, _ in rows[at : at + size]], [ms for _, ms in rows[at : at + size]])
        for at in range(0, len(rows), size)
    ]
    found = list(write_partition(make_job(folder, target_rows=target), batches, 0, 11))
    expected: dict[str, list[int]] = {}
    for x, ms in rows:
        expected.setdefault(Granularity.DAY.chunk_name(ms), []).append(x)
    got: dict[str, list[float]] = {}
    for segment in found:
        values = rows_of(folder, segment)
        assert values == sorted(values)
        assert 0 < len(values) == segment.record.rows <= target
        assert segment.record.min_time_ms is not None
        assert segment.record.max_time_ms is not None
        assert Granularity.DAY.chunk_name(segment.record.min_time_ms) == segment.chunk
        assert Granularity.DAY.chunk_name(segment.record.max_time_ms) == segment.chunk
        got.setdefault(segment.chunk, []).extend(values)
    assert {chunk: sorted(values) for chunk, values in got.items()} == {key: sorted(xs) for key, xs in expected.items()}
    names = [segment.record.name for segment in found]
    assert len(set(names)) == len(names)


def test_the_record_describes_the_object(tmp_path: Path) -> None:
    """Bytes, CRC-32, owner on the object and in the footer, and a key with both attempts."""
    [segment] = write_partition(make_job(tmp_path), [batch([2.0, 1.0], [5, 6])], 4, 99)
    record = segment.record
    assert record.name == f"t_1970-01-01_{ENTRY.replace('-', '')[:16]}_00000"
    assert record.file == f"{record.name}.3.99.parquet"
    data = (tmp_path / "t" / ENTRY / record.file).read_bytes()
    assert (record.bytes, record.crc32) == (len(data), zlib.crc32(data))
    assert record.columns == {"x": [1.0, 2.0, 0]}
    owner = LocalStore(tmp_path).head(f"t/{ENTRY}/{record.file}")
    assert owner is not None
    assert owner.owner["segment"] == record.name
    assert owner.owner["component"] == "Managed-Ledger"
    footer = pyarrow.parquet.read_metadata(tmp_path / "t" / ENTRY / record.file).metadata
    assert {key: footer[f"segments.{key}".encode()].decode() for key in owner.owner} == dict(owner.owner)


def test_nan_and_null_come_last(tmp_path: Path) -> None:
    """NaN above every number, as Spark orders it, and null behind."""
    [segment] = write_partition(make_job(tmp_path), [batch([math.nan, None, math.inf, -1.0], [0, 0, 0, 0])], 0, 1)
    values = rows_of(tmp_path, segment)
    assert values[:2] == [-1.0, math.inf]
    assert math.isnan(values[2])
    assert values[3] is None


def test_two_executions_of_a_task_share_no_key(tmp_path: Path) -> None:
    """A speculative copy writes beside the first, and neither can overwrite."""
    job = make_job(tmp_path)
    [first] = write_partition(job, [batch([1.0], [0])], 0, 1)
    [second] = write_partition(job, [batch([1.0], [0])], 0, 2)
    assert first.record.name == second.record.name
    assert first.record.file != second.record.file
    with pytest.raises(ObjectExistsError):
        list(write_partition(job, [batch([1.0], [0])], 0, 2))


def test_slices_and_stagers_have_names_of_their_own(tmp_path: Path) -> None:
    """Slices of one chunk are numbered; another stager of the same entry is named."""
    job = make_job(tmp_path, slices={4: 0, 5: 1}, stager="late")
    names = {next(iter(write_partition(job, [batch([1.0], [0])], partition, 1))).record.name for partition in (4, 5)}
    assert {name.split("_", 3)[3] for name in names} == {"late_00000", "late_00001"}


def test_too_long_a_name_is_refused(tmp_path: Path) -> None:
    """Before any row is written."""
    with pytest.raises(InvalidNameError, match="characters"):
        make_job(tmp_path, table="t" * 190).segment_name("2013-01-01", 0)


def test_a_row_that_lost_its_time_stops_the_task(tmp_path: Path) -> None:
    """It was counted as good, so it must not vanish."""
    rows = pyarrow.record_batch([pyarrow.array([1.0]), pyarrow.array([None], pyarrow.int64())], ["x", "ms"])
    with pytest.raises(SourceDataError, match="the input changes while it is read"):
        list(write_partition(make_job(tmp_path), [rows], 0, 1))


def test_without_a_time_everything_is_one_chunk(tmp_path: Path) -> None:
    """Order of arrival is kept without sort columns."""
    job = make_job(tmp_path, granularity=Granularity.ALL, has_time=False, sort_columns=(), statistics_columns=())
    rows = pyarrow.record_batch([pyarrow.array([3.0, 1.0, 2.0])], ["x"])
    [segment] = write_partition(job, [rows], 0, 1)
    assert (segment.chunk, segment.record.min_time_ms, segment.record.columns) == ("ALL", None, None)
    assert rows_of(tmp_path, segment) == [3.0, 1.0, 2.0]


def test_time_zone_labels_become_utc() -> None:
    """Nested ones too: segments of two sessions have one schema."""
    local = pyarrow.timestamp("us", "America/New_York")
    nested = pyarrow.struct(
        [pyarrow.field("a", pyarrow.list_(local)), pyarrow.field("m", pyarrow.map_(pyarrow.string(), local))]
    )
    assert "New_York" not in str(utc(nested))
    assert utc(pyarrow.timestamp("us")) == pyarrow.timestamp("us")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1, 2], [None, -5]], [-5, 2, 1]),
        ([[None]], [None, None, 1]),
        ([[1.0, math.nan]], [None, None, 0]),
        ([[math.inf, 1.0]], [None, None, 0]),
        ([["b", "a"]], ["a", "b", 0]),
        ([["a" * 500]], [None, None, 0]),
        ([[b"x"]], [None, None, 0]),
        ([[True, False]], [False, True, 0]),
    ],
)
def test_statistics_are_given_only_where_they_are_sure(values: list[list[Any]], expected: list[Any]) -> None:
    """Unknown bounds are null, never wrong."""
    statistics = ColumnStatistics()
    for part in values:
        statistics.add(pyarrow.array(part))
    assert statistics.as_list() == expected


def test_packed_keys_give_the_order_that_arrow_gives() -> None:
    """One sort of packed whole numbers is stable and equal to Arrow's; what does not fit, or has nulls, is Arrow's."""
    rng = numpy.random.default_rng(7)
    for low, high in [(-5, 5), (0, 1), (-(2**40), 2**40), (-(2**63), 2**63 - 1)]:
        for kind in (pyarrow.int64(), pyarrow.timestamp("us", "UTC")):
            keys = [pyarrow.array(rng.integers(low, high, 500)).cast(kind), pyarrow.array(rng.integers(-9, 9, 500))]
            data = pyarrow.table({"a": keys[0], "b": keys[1].cast(pyarrow.int8())})
            expected = pyarrow.compute.sort_indices(data, sort_keys=[("a", "ascending"), ("b", "ascending")])
            assert writing.row_order(data, None, ("a", "b")).tolist() == expected.to_pylist()
            assert (writing._packed_order(data.columns) is None) == (high > 2**50)
    assert writing._packed_order([pyarrow.chunked_array([[1, None]])]) is None
    assert writing._packed_order([pyarrow.chunked_array([[1.0]])]) is None


def test_spark_reads_whole_numbers_and_times_that_are_written_as_differences(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Values that hardly repeat get no dictionary: whole numbers and times are written as differences."""
    rows = 3000
    numbers = numpy.random.default_rng(1).integers(-(2**62), 2**62, rows)
    kinds = {"long": pyarrow.int64(), "at": pyarrow.timestamp("us", "UTC"), "local": pyarrow.timestamp("us")}
    columns = {name: pyarrow.array(numbers // 2**12).cast(kind) for name, kind in kinds.items()}
    columns |= {
        "int": pyarrow.array((numbers // 2**32).astype("int32")),
        "day": pyarrow.array((numbers // 2**46).astype("int32")).cast(pyarrow.date32()),
        "double": pyarrow.array(numbers / 3), "few": pyarrow.array(numpy.arange(rows) % 7),
        "tags": pyarrow.array([[str(number)] for number in range(rows)]),
    }  # fmt: skip
    data = pyarrow.table(columns)
    dictionaries, encodings = writing.encodings_of(data.schema, [c.combine_chunks() for c in data], numpy.arange(rows))
    assert dictionaries == ["few", "tags.list.element"]
    assert sorted(encodings) == ["at", "day", "int", "local", "long"]
    path = tmp_path / "f.parquet"
    pyarrow.parquet.write_table(data, path, use_dictionary=dictionaries, column_encoding=encodings)
    read = spark.read.parquet(str(path)).toArrow()
    for name in ("long", "int", "double", "few", "day", "at", "local"):
        assert read.column(name).cast(data.schema.field(name).type).equals(data.column(name)), name
