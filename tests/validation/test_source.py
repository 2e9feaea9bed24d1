"""The look at an input before Spark is started: what a build is bound to refuse, and nothing else."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_segments.arrow.inputs import Source, absent_paths
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.dev.s3 import S3Server
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.validation.source import check_source

DAY = 86_400


def config(time_format: str = "TIMESTAMP", **build: Any) -> TableConfig:
    return TableConfig.from_json(
        {
            "tableName": "t",
            "segmentsConfig": {"timeColumnName": "at"},
            "tableIndexConfig": {"sortedColumn": ["n"]},
            "segmentBuildConfig": {"timeFormat": time_format, **build},
        }
    )


def parquet(folder: Path, kind: Any = None, **columns: Any) -> Source:
    path = folder / "in.parquet"
    table = pa.table({"at": pa.array([DAY], pa.int64()).cast(kind or pa.timestamp("us")), "n": [1], **columns})
    pq.write_table(table, path)
    return Source(str(path), "parquet", {})


def text(folder: Path, lines: str, name: str = "in.csv", **options: str) -> Source:
    path = folder / name
    path.write_bytes(gzip.compress(lines.encode()) if name.endswith(".gz") else lines.encode())
    return Source(str(path), "csv", {"header": "true", **options})


def refused(config: TableConfig, source: Source, *says: str) -> None:
    began = time.monotonic()
    with pytest.raises(SourceDataError) as caught:
        check_source(config, source)
    assert time.monotonic() - began < 5
    for part in ("table 't'", *says):
        assert part in str(caught.value)


def test_parquet_with_nanosecond_times_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """It used to fail minutes after Spark had started."""
    source = parquet(tmp_path, pa.timestamp("ns"))
    refused(config(), source, "'at' has times in nanoseconds", "coerce_timestamps='us'", "nanosAsLong")
    told = Source(source.path, "parquet", {}, nanoseconds_as_numbers=True)
    assert check_source(config(), told) == source.path
    nested = pa.array([{"seen": 1}], pa.struct([("seen", pa.timestamp("ns"))]))
    refused(config(), parquet(tmp_path, more=nested), "'more.seen' has times in nanoseconds")


def test_type_that_is_stored_decides_and_not_the_one_that_arrow_remembers(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    table = pa.table({"at": pa.array([0], pa.timestamp("ns")), "n": [1]})
    pq.write_table(table, path, coerce_timestamps="us", store_schema=True)
    assert check_source(config(), Source(str(path), "parquet", {})) == str(path)


@pytest.mark.parametrize("absent", ["at", "n"])
def test_column_that_is_missing_is_named_with_those_that_are_there(tmp_path: Path, absent: str) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({name: [1] for name in ("at", "n", "other") if name != absent}), path)
    refused(config("EPOCH_MILLIS"), Source(str(path), "parquet", {}), f"column {absent!r}", "other")
    assert check_source(config(), Source(str(path), "parquet", {"mergeSchema": "true"}))


@pytest.mark.parametrize(
    ("kind", "time_format", "fits"),
    [
        (pa.timestamp("us"), "TIMESTAMP", True),
        (pa.date32(), "TIMESTAMP", True),
        (pa.string(), "TIMESTAMP", True),
        (pa.dictionary(pa.int32(), pa.string()), "TIMESTAMP", True),
        (pa.int64(), "TIMESTAMP", False),
        (pa.int64(), "EPOCH_MILLIS", True),
        (pa.float64(), "EPOCH_SECONDS", True),
        (pa.decimal128(20, 3), "EPOCH_SECONDS", True),
        (pa.timestamp("us"), "EPOCH_MILLIS", False),
        (pa.string(), "yyyyMMdd", True),
        (pa.int32(), "yyyyMMdd", True),
        (pa.date32(), "yyyyMMdd", False),
        (pa.bool_(), "TIMESTAMP", False),
    ],
)
def test_time_column_of_a_type_that_the_format_cannot_be_read_from_is_refused(
    tmp_path: Path, kind: Any, time_format: str, fits: bool
) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"at": pa.nulls(1, kind), "n": [1]}), path)
    source = Source(str(path), "parquet", {})
    if fits:
        assert check_source(config(time_format), source)
    else:
        refused(config(time_format), source, "time column 'at' is", f"timeFormat {time_format}")


def test_csv_without_a_column_or_without_its_header_is_refused(tmp_path: Path) -> None:
    refused(config(), text(tmp_path, "when,n\n2013-01-01,1\n"), "no time column 'at'", "when, n")
    refused(config(), text(tmp_path, "at,n\n2013-01-01,1\n", header="false"), "_c0, _c1", '"header": "true"')
    refused(config(), text(tmp_path, "at;n\n2013-01-01;1\n"), "no time column 'at'")
    assert check_source(config(), text(tmp_path, "at;n\n2013-01-01;1\n", sep=";"))
    assert check_source(config(), text(tmp_path, '"at","n"\n2013-01-01,1\n', "in.csv.gz"))


@pytest.mark.parametrize(
    ("values", "time_format", "fits"),
    [
        (["2013-01-01T00:00:00Z"], "TIMESTAMP", True),
        (["2013"], "TIMESTAMP", True),
        (["1356998400"], "TIMESTAMP", False),
        (["01.02.2013", "02.02.2013"], "TIMESTAMP", False),
        (["n/a", "2013-01-01"], "TIMESTAMP", True),
        (["1356998400", "1.5e9"], "EPOCH_SECONDS", True),
        (["2013-01-01"], "EPOCH_SECONDS", False),
        (["01.02.2013"], "dd.MM.yyyy", True),
        ([""], "TIMESTAMP", True),
    ],
)
def test_csv_whose_times_cannot_be_read_is_refused(
    tmp_path: Path, values: list[str], time_format: str, fits: bool
) -> None:
    lines = "\n".join(["at,n", *(f"{value},1" for value in values)])
    source = text(tmp_path, lines)
    if fits:
        assert check_source(config(time_format), source)
    else:
        refused(config(time_format), source, repr(values[0]), f"timeFormat {time_format}")
        assert check_source(config(time_format, onBadTime="reject"), source), "they go to the reject folder"


def test_first_file_of_a_folder_tells_and_folders_are_columns(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    day = tmp_path / "n=1"
    day.mkdir()
    pq.write_table(pa.table({"at": pa.array([0], pa.timestamp("us"))}), day / "b.parquet")
    assert check_source(config(), Source(str(tmp_path), "parquet", {})) == str(day / "b.parquet")
    assert check_source(config(), Source(f"{tmp_path.as_uri()}/n=*, /elsewhere", "parquet", {})).endswith("b.parquet")
    pq.write_table(pa.table({"at": pa.array([0], pa.timestamp("ns"))}), day / "a.parquet")
    refused(config(), Source(str(tmp_path), "parquet", {}), "a.parquet", "nanoseconds")


def test_nothing_is_said_of_what_cannot_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no Parquet")
    (tmp_path / "empty.csv").touch()
    for path, kind in (
        ("/no/such/file", "parquet"),
        ("hdfs://somewhere/file", "parquet"),
        ("s3a://bucket/key", "parquet"),
        ("select 1", "sql"),
        (str(tmp_path / "text.parquet"), "json"),
    ):
        assert check_source(config(), Source(path, kind, {})) is None
    assert check_source(config(), Source(str(tmp_path / "text.parquet"), "parquet", {}))
    assert check_source(config(), Source(str(tmp_path / "empty.csv"), "csv", {}))
    odd = text(tmp_path, "at||n\n", sep="||")
    assert check_source(config(), odd)


def test_input_in_s3_is_looked_at_with_the_credentials_of_the_connection(tmp_path: Path) -> None:
    from airflow_provider_segments.core.storage import open_store

    local = parquet(tmp_path, pa.timestamp("ns"))
    with S3Server(tmp_path / "s3") as server:
        server.create_bucket("landing")
        options = server.options
        store = open_store("s3://landing", **options)
        store.put_file(Path(local.path), "in/file.parquet", owner={})
        for path in ("s3a://landing/in/file.parquet", "s3://landing/in", "s3://landing/in/"):
            refused(config(), Source(path, "parquet", {}, options), "s3://landing/in/file.parquet", "nanoseconds")
        assert check_source(config(), Source("s3://landing/absent", "parquet", {}, options)) is None
        there = "s3://landing/in,s3a://landing/in/file.parquet,s3://landing/no*,s3://elsewhere/x,hdfs:///x"
        assert absent_paths(Source(there, "parquet", {}, options)) == []
        assert absent_paths(Source(f"{there},s3://landing/i", "parquet", {}, options)) == ["s3://landing/i"]
        assert absent_paths(Source("s3://landing/i", "parquet", {})) == [], "without credentials nobody can tell"
