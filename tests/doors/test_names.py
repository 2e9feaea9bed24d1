"""What may be a name, a number or a text: one rule in every place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from airflow_provider_segments.cli.parquet import stage_files
from airflow_provider_segments.core.deletion import queue
from airflow_provider_segments.core.lineage import codec
from airflow_provider_segments.core.locking import AllocationRequest, LockRequest
from airflow_provider_segments.core.model.config import TableConfig, parse_size
from airflow_provider_segments.core.model.interval import ALL_TIME, parse_chunk, parse_time
from airflow_provider_segments.core.model.names import (
    MAX_STAGER_NAME,
    MAX_TABLE_NAME,
    MAX_TEXT,
    check_entry_id,
    check_segment_name,
    check_segment_names,
    check_stager_name,
    check_table_name,
)
from airflow_provider_segments.core.model.period import parse_period
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.registry import shard
from airflow_provider_segments.core.storage.base import check_key
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.core.zookeeper.settings import ZooKeeperSettings
from airflow_provider_segments.exceptions import SegmentsError
from tests.doors.names import BAD_NAMES
from tests.support.tables import contents, make_table

DIGITS = ["\u0660\u0661\u0662\u0663", "\uff10\uff11\uff12\uff13", "\u0966\u0967\u0968\u0969", "\U0001d7ce\U0001d7cf"]
"""Digits of other scripts, all of which ``\\d``, ``isdecimal`` and ``int`` take."""

ENTRY = "12345678-1234-1234-1234-123456789012"


def _lineage(millis: str) -> object:
    text = f'{{"id":"t","listFields":{{"{ENTRY}":["","a","COMPLETED","{millis}"]}}}}'
    return codec.decode(text.encode(), "t")


def _config(**segments: Any) -> TableConfig:
    return TableConfig.from_json({"tableName": "t", "segmentsConfig": segments})


@pytest.mark.parametrize("digits", DIGITS)
@pytest.mark.parametrize(
    "read",
    [
        lambda digits: parse_chunk(digits),
        lambda digits: parse_chunk(f"{digits[:4]}-01-01"),
        lambda digits: parse_chunk(f"2013-{digits[:2]}-01T07"),
        lambda digits: parse_chunk(f"2013-W{digits[:2]}"),
        lambda digits: parse_period(f"{digits}d"),
        lambda digits: parse_size(f"{digits}G"),
        lambda digits: parse_time(f"{digits}-01-01"),
        lambda digits: check_table_name(f"t{digits}"),
        lambda digits: check_segment_name(f"t{digits}"),
        lambda digits: check_segment_names([f"t{digits}", "t"]),
        lambda digits: check_stager_name(f"t{digits}"),
        lambda digits: check_entry_id(ENTRY[:-4] + digits),
        lambda digits: check_key(f"t/{digits}"),
        lambda digits: shard.parse_name("ALL", "/c/SEGMENTS/t/ALL", f"{ENTRY}.build.{digits}.0"),
        lambda digits: _lineage(digits),
        lambda digits: _config(retentionTimeUnit="DAYS", retentionTimeValue=digits),
        lambda digits: ZooKeeperSettings(hosts=f"localhost:{digits}"),
    ],
)
def test_digits_of_other_scripts_are_no_digits(read: Callable[[str], object], digits: str) -> None:
    """A time chunk of such digits made objects that no clean-up ever found."""
    with pytest.raises((SegmentsError, ValueError)):
        read(digits)


def test_names_of_queue_nodes_count_ascii_digits_only() -> None:
    assert [queue._number(text) for text in [*DIGITS, "", "-1", "1_0", " 1", "12"]] == [None] * 8 + [12]


@pytest.mark.parametrize("read", [parse_period, parse_size])
def test_a_number_of_ten_thousand_digits_is_an_error_of_ours(read: Callable[[str], int]) -> None:
    """Python refuses to convert it, with a traceback."""
    with pytest.raises(SegmentsError) as refused:
        read("9" * 10_000 + ("d" if read is parse_period else "G"))
    assert len(str(refused.value)) < 2_000


@pytest.mark.parametrize("text", ["REFRE\u017fH", "\uff32EFRESH"])
def test_words_of_a_config_are_ascii(text: str) -> None:
    """The long s is an S in capitals."""
    with pytest.raises(SegmentsError):
        TableConfig.from_json(
            {"tableName": "t", "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": text}}}
        )


@pytest.mark.parametrize("bad", BAD_NAMES.values(), ids=BAD_NAMES.keys())
def test_a_bad_name_names_nothing(bad: str) -> None:
    """Tables, clusters, segments, stagers, entries and time chunks, by one rule."""
    for check in (check_table_name, ClusterPaths, check_stager_name, check_entry_id, parse_chunk):
        with pytest.raises(SegmentsError) as refused:
            check(bad)
        assert str(refused.value).isprintable()
        assert len(str(refused.value)) < 2_000
    if len(bad) not in range(MAX_TABLE_NAME + 1, 201):
        with pytest.raises(SegmentsError):
            check_segment_name(bad)


@pytest.mark.parametrize(
    "bad", ["", "/t", "t/", "t//u", "t/../u", "../t", "..", ".", "t/.u", "t\\u", "t\x00", "\u0662"]
)
def test_a_key_cannot_climb(bad: str) -> None:
    with pytest.raises(SegmentsError):
        check_key(bad)


HALF = "a\ud800"
SURROGATES: dict[str, Callable[[SegmentStore], object]] = {
    "column of a config": lambda store: store.apply_config(_config(timeColumnName=HALF)),
    "another field of a config": lambda store: store.apply_config(_config(schemaName=HALF)),
    "key of a config": lambda store: store.apply_config(_config(**{HALF: "x"})),
    "identity of a start": lambda store: store.table("t").start(identity=HALF),
    "identity of a revert": lambda store: store.table("t").revert(ENTRY, identity=HALF),
    "identity of an abort": lambda store: store.table("t").abort(ENTRY, identity=HALF),
    "entry of a revert": lambda store: store.table("t").revert(HALF),
    "segment to replace": lambda store: store.table("t").start([HALF]),
    "segment to bring": lambda store: store.table("t").start([], [HALF]),
    "stager": lambda store: store.table("t").open_stage(store.table("t").start().entry_id, HALF),
    "entry to look at": lambda store: store.table("t").resolve_entry(HALF),
    "entry of a snapshot": lambda store: store.table("t").snapshot(as_of=HALF),
    "segment to mark": lambda store: store.table("t").mark_ledgers([HALF]),
    "lock group": lambda store: LockRequest(group=HALF, task="x", interval=ALL_TIME),
    "lock task": lambda store: LockRequest(group="x", task=HALF, interval=ALL_TIME),
    "sequence key": lambda store: AllocationRequest(
        lock=LockRequest(group="x", task="x", interval=ALL_TIME), key=HALF, chunk=ALL_TIME
    ),
    "owner of a lease": lambda store: store.table("t").snapshot(owner=HALF).__enter__(),
    "key of an object": lambda store: store.storage.head(f"t/{HALF}"),
    "prefix of objects": lambda store: list(store.storage.list(f"t/{HALF}/")),
    "storage": lambda store: SegmentStore.connect("localhost:1", "c", f"/x/{HALF}"),
    "cluster": lambda store: SegmentStore.connect("localhost:1", HALF, "/x"),
    "hosts": lambda store: SegmentStore.connect(HALF, "c", "/x"),
    "password": lambda store: ZooKeeperSettings(hosts="localhost:1", username="u", password=HALF),
    "column statistics": lambda store: _stage_with_column(store, HALF),
}


def _stage_with_column(store: SegmentStore, column: str) -> object:
    table = store.table("t")
    ticket = table.open_stage(table.start().entry_id)
    record = SegmentRecord("s", "s.parquet", 1, 1, 1, columns={column: [1, 2, 0]})
    return table.stage(ticket, [StagedSegment("2013-01-01", record)])


@pytest.mark.parametrize("door", SURROGATES.values(), ids=SURROGATES.keys())
def test_half_of_a_surrogate_pair_is_refused_with_a_clear_error(
    store: SegmentStore, door: Callable[[SegmentStore], object]
) -> None:
    """It cannot be stored as UTF-8, and Python's own error would be a traceback."""
    make_table(store)
    with pytest.raises(SegmentsError) as refused:
        door(store)
    assert "\\ud800" in str(refused.value) or "Unicode" in str(refused.value)
    assert not any(b"\\ud800" in node.data for node in contents(store).values())


def test_a_table_of_the_longest_name_can_be_used_everywhere(store: SegmentStore, tmp_path: Path) -> None:
    """Stage by hand under the longest stager's name in an hourly chunk, end, read, lock, abort, delete."""
    name, stager = "t" * MAX_TABLE_NAME, "s" * MAX_STAGER_NAME
    store.apply_config(
        TableConfig.from_json(
            {
                "tableName": name,
                "segmentsConfig": {"timeColumnName": "ts", "lineageEntryCleanupRetentionPeriod": "0s"},
                "segmentBuildConfig": {"segmentGranularity": "HOUR", "timeFormat": "EPOCH_MILLIS"},
            }
        )
    )
    table = store.table(name)
    file = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"ts": [1_356_998_400_000]}), file)
    entry = table.start().entry_id
    stage_files(table, entry, [file], stager=stager)
    table.end(entry)
    with table.snapshot() as taken:
        assert taken.rows == 1
        [segment] = taken.segments
        with store.storage.open(segment.key) as stored:
            assert stored.read() == file.read_bytes()
    assert len(segment.name) <= 200
    table.locks.acquire(LockRequest(group="g", task="t", interval=ALL_TIME))
    reverted = table.start().entry_id
    stage_files(table, reverted, [file], stager=stager)
    table.abort(reverted)
    table.retain()
    store.deleter().drain()
    assert table.snapshot().rows == 1


def test_the_longest_generated_names_fit(tmp_path: Path) -> None:
    """Also in the largest time chunks and numbers, and beside a sidecar file on a file system without attributes."""
    from airflow_provider_segments.core.storage.local import LocalStore

    name = f"{'t' * MAX_TABLE_NAME}_2013-01-31T07_{'f' * 16}_{'s' * MAX_STAGER_NAME}_{99_999_999:05d}-99999"
    assert len(check_segment_name(name)) == 199
    (tmp_path / "in").write_bytes(b"x")
    store = LocalStore(tmp_path / "store", attributes=False)
    key = f"{'t' * MAX_TABLE_NAME}/{ENTRY}/{name}.9999.9999999.parquet"
    store.put_file(tmp_path / "in", key, owner={"a": "b"})
    found = store.head(key)
    assert found is not None
    assert found.owner == {"a": "b"}


@pytest.mark.parametrize("door", ["group", "task"])
def test_texts_by_which_callers_name_themselves_are_bounded_and_printable(store: SegmentStore, door: str) -> None:
    make_table(store)
    allowed = {"group": "g", "task": "t", door: "\u00e9" * MAX_TEXT}
    store.table("t").locks.acquire(LockRequest(interval=ALL_TIME, **allowed))
    for bad, why in [
        ("x" * (MAX_TEXT + 1), "at most 1,000"),
        ("\x1b[2J", "not printable"),
        ("", "empty"),
        ("a\nb", "n"),
    ]:
        with pytest.raises(SegmentsError, match=why):
            LockRequest(interval=ALL_TIME, **{**allowed, door: bad})


@pytest.mark.parametrize("bad", ["x" * (MAX_TEXT + 1), "\x1b[2J", "", "a\nb", "\u202e"])
def test_an_identity_is_bounded_and_printable(store: SegmentStore, bad: str) -> None:
    table = make_table(store)
    for door in (table.start, lambda identity: table.revert(ENTRY, identity=identity)):
        with pytest.raises(SegmentsError, match=r"at most 1,000|not printable|empty"):
            door(identity=bad)


def test_an_argument_that_is_not_utf8_is_an_error_and_no_traceback(
    store: SegmentStore, zk_hosts: str, tmp_path: Path
) -> None:
    """The bytes reach Python as lone surrogates."""
    make_table(store)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "airflow_provider_segments.cli.main", "lineage", b"t\xff"),
            *("--zookeeper", zk_hosts, "--cluster", store.paths.cluster, "--storage", str(tmp_path)),
        ],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert b"error: table name 't\\udcff' is not allowed" in done.stderr
    assert b"Traceback" not in done.stderr
