"""Three systems that replace many files at once, each with real small files on this disk: ours, delta-rs and pyiceberg.

Every system gets the same number of files, spread over the same days of a year. Making the files and describing them
(our records, delta-rs's add actions, pyiceberg's data files) is outside of every timing.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.names import entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper

FIRST_DAY = datetime.date(2013, 1, 1)
ROWS = 100
Timings = dict[str, float]


class System(Protocol):
    """One table of one system, holding a first push of some files."""

    name: str

    def replace(self) -> Timings:
        """Replace all files by as many others; milliseconds of each step."""

    def roll_back(self) -> float:
        """Undo the replacement; milliseconds."""

    def settle(self) -> None:
        """What has to be done between two rounds, outside of the timing."""

    def resolve(self) -> Timings:
        """Open the table and find its files; milliseconds until snapshot, addresses and metadata are there."""

    def resolve_day(self, day: datetime.date) -> float:
        """Open the table and find the files of one day; milliseconds."""


def day_of(number: int, files: int, days: int) -> datetime.date:
    """Files are spread evenly, in order."""
    return FIRST_DAY + datetime.timedelta(days=number * days // files)


def milliseconds(work: Callable[[], object]) -> float:
    """How long ``work`` takes."""
    before = time.perf_counter()
    work()
    return (time.perf_counter() - before) * 1000


def small_file() -> bytes:
    """A Parquet file of ``ROWS`` rows."""
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": pa.array(range(ROWS), pa.int64())}), buffer)
    return bytes(buffer.getvalue())


CONTENT = small_file()


def staged_segment(table: str, tag: str, number: int, day: datetime.date) -> StagedSegment:
    """Our description of one file."""
    name = f"{table}_{day}_{tag}_{number:06d}"
    at = int(datetime.datetime.combine(day, datetime.time(12), datetime.UTC).timestamp()) * 1000
    record = SegmentRecord(name, f"{name}.1.0.parquet", ROWS, len(CONTENT), 1234567890, at, at + number)
    return StagedSegment(day.isoformat(), record)


def add_action(path: str, day: str) -> Any:
    """delta-rs's description of one file."""
    from deltalake.transaction import AddAction

    statistics = {"numRecords": ROWS, "minValues": {"n": 0}, "maxValues": {"n": ROWS}, "nullCount": {"n": 0}}
    return AddAction(path, len(CONTENT), {"day": day}, 1_700_000_000_000, True, json.dumps(statistics))


def data_file(uri: str, day: datetime.date) -> Any:
    """pyiceberg's description of one file."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=Record(day.isoformat()),
        record_count=ROWS,
        file_size_in_bytes=len(CONTENT),
        column_sizes={2: 500},
        value_counts={2: ROWS},
        null_value_counts={2: 0},
        nan_value_counts={},
        lower_bounds={2: (0).to_bytes(8, "little")},
        upper_bounds={2: ROWS.to_bytes(8, "little")},
        split_offsets=[4],
    )
    file.spec_id = 0
    return file


def iceberg_table(folder: Path, warehouse: str, properties: dict[str, str]) -> tuple[Any, Any]:
    """A catalog in ``folder`` whose tables are at ``warehouse``, and an empty table partitioned by day."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import LongType, NestedField, StringType

    catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=warehouse, **properties)
    catalog.create_namespace("bench")
    schema = Schema(NestedField(1, "day", StringType()), NestedField(2, "n", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    return catalog, catalog.create_table("bench.t", schema, partition_spec=spec)


class Segments:
    """Ours: every step is durable in ZooKeeper (fsync on), and ``end`` checks every object's presence and size."""

    name = "segments"

    def __init__(self, store: SegmentStore, root: Path, files: int, days: int, table: str) -> None:
        self.files, self.days, self.root = files, days, root
        document = {
            "tableName": table,
            "segmentsConfig": {"timeColumnName": "at"},
            "segmentBuildConfig": {"segmentGranularity": "DAY"},
            "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "REFRESH"}},
        }
        store.apply_config(TableConfig.from_json(document))
        self.store, self.table = store, store.table(table)
        self.entry_id = ""
        self.replace()

    def replace(self) -> Timings:
        times: Timings = {}
        before = time.perf_counter()
        started = self.table.start()
        times["start"] = (time.perf_counter() - before) * 1000
        before = time.perf_counter()
        ticket = self.table.open_stage(started.entry_id)
        times["stage"] = (time.perf_counter() - before) * 1000
        segments = self._write(ticket.prefix, entry_tag(started.entry_id))
        times["stage"] += milliseconds(lambda: self.table.stage(ticket, segments))
        before = time.perf_counter()
        ended = self.table.end(started.entry_id)
        times["end"] = (time.perf_counter() - before) * 1000
        assert len(ended.segments_to) == self.files
        self.entry_id = started.entry_id
        return times

    def roll_back(self) -> float:
        taken = milliseconds(lambda: self.table.revert(self.entry_id))
        assert len(self.table.snapshot()) == self.files
        return taken

    def settle(self) -> None:
        later = self.store.clock.now_ms() + 3 * 86_400_000
        table = self.store.replace(clock=dataclasses.replace(self.store.clock, now_ms=lambda: later)).table(
            self.table.name
        )
        while (done := table.cleanup()).marked or done.dropped or done.aborted:
            pass

    def resolve(self) -> Timings:
        before = time.perf_counter()
        snapshot = self.table.snapshot()
        assert len(snapshot) == self.files
        alone = (time.perf_counter() - before) * 1000
        files = alone + milliseconds(lambda: snapshot.files)
        return {"snapshot": alone, "files": files, "metadata": files + milliseconds(lambda: snapshot.segments)}

    def resolve_day(self, day: datetime.date) -> float:
        start = int(datetime.datetime.combine(day, datetime.time(), datetime.UTC).timestamp()) * 1000
        return milliseconds(lambda: self.table.snapshot(start, start + 86_400_000).files)

    def _write(self, prefix: str, tag: str) -> list[StagedSegment]:
        folder = self.root / prefix
        folder.mkdir(parents=True)
        segments = [
            staged_segment(self.table.name, tag, number, day_of(number, self.files, self.days))
            for number in range(self.files)
        ]
        for segment in segments:
            (folder / segment.record.file).write_bytes(CONTENT)
        return segments


class Delta:
    """delta-rs: one commit file on the local disk. Nothing looks at the files that are added; restore does."""

    name = "delta-rs"

    def __init__(self, root: Path, files: int, days: int) -> None:
        from deltalake import DeltaTable

        self.files, self.days, self.root = files, days, root
        self.schema = pa.schema([("day", pa.string()), ("n", pa.int64())])
        self.handle = DeltaTable.create(str(root), self.schema, partition_by=["day"])
        self.pushes = [self._write("a"), self._write("b")]
        self._commit(self.pushes[0])

    def replace(self) -> Timings:
        times = {"open": milliseconds(self._open), "commit": milliseconds(lambda: self._commit(self.pushes[1]))}
        self._check("part-b-")
        return times

    def roll_back(self) -> float:
        def restore() -> None:
            self._open()
            self.handle.restore(self.handle.version() - 1)

        taken = milliseconds(restore)
        self._check("part-a-")
        return taken

    def settle(self) -> None:
        """Nothing to do."""

    def _open(self) -> None:
        from deltalake import DeltaTable

        self.handle = DeltaTable(str(self.root))

    def _check(self, push: str) -> None:
        self._open()
        uris = self.handle.file_uris()
        assert len(uris) == self.files
        assert push in uris[0]

    def resolve(self) -> Timings:
        from deltalake import DeltaTable

        before = time.perf_counter()
        table = DeltaTable(str(self.root))
        alone = (time.perf_counter() - before) * 1000
        files = alone + milliseconds(lambda: _exactly(table.file_uris(), self.files))
        return {"snapshot": alone, "files": files, "metadata": files + milliseconds(table.get_add_actions)}

    def resolve_day(self, day: datetime.date) -> float:
        from deltalake import DeltaTable

        def look() -> None:
            DeltaTable(str(self.root)).file_uris(file_pruning_predicate=[("day", "=", day.isoformat())])

        return milliseconds(look)

    def _commit(self, actions: list[Any]) -> None:
        self.handle.create_write_transaction(actions, "overwrite", self.schema, partition_by=["day"])

    def _write(self, push: str) -> list[Any]:
        actions = []
        for number in range(self.files):
            day = day_of(number, self.files, self.days).isoformat()
            path = f"day={day}/part-{push}-{number:06d}.parquet"
            (self.root / f"day={day}").mkdir(exist_ok=True)
            (self.root / path).write_bytes(CONTENT)
            actions.append(add_action(path, day))
        return actions


class Iceberg:
    """pyiceberg with an SQLite catalog: manifests on the local disk, one row of the catalog switches."""

    name = "pyiceberg"

    def __init__(self, root: Path, files: int, days: int) -> None:
        self.files, self.days, self.root = files, days, root
        root.mkdir(parents=True)
        self.catalog, self.table = iceberg_table(root, root.as_uri(), {})
        self.pushes = [self._write("a"), self._write("b")]
        self._overwrite([], self.pushes[0])
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        self.first = snapshot.snapshot_id

    def replace(self) -> Timings:
        commit = lambda: self._overwrite(self.pushes[0], self.pushes[1])  # noqa: E731
        times = {"open": milliseconds(self._open), "commit": milliseconds(commit)}
        self._check("data/b/")
        return times

    def roll_back(self) -> float:
        def move() -> None:
            self._open()
            self.table.manage_snapshots().set_current_snapshot(self.first).commit()

        taken = milliseconds(move)
        self._check("data/a/")
        return taken

    def settle(self) -> None:
        """Nothing to do."""

    def _open(self) -> None:
        self.table = self.catalog.load_table("bench.t")

    def _check(self, push: str) -> None:
        self._open()
        files = list(self.table.scan().plan_files())
        assert len(files) == self.files
        assert push in files[0].file.file_path

    def resolve(self) -> Timings:
        before = time.perf_counter()
        table = self.catalog.load_table("bench.t")
        alone = (time.perf_counter() - before) * 1000
        planned = alone + milliseconds(lambda: _exactly(list(table.scan().plan_files()), self.files))
        return {"snapshot": alone, "files": planned, "metadata": planned}

    def resolve_day(self, day: datetime.date) -> float:
        def look() -> None:
            list(self.catalog.load_table("bench.t").scan(row_filter=f"day == '{day}'").plan_files())

        return milliseconds(look)

    def _overwrite(self, old: list[Any], new: list[Any]) -> None:
        with self.table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
            for file in old:
                overwrite.delete_data_file(file)
            for file in new:
                overwrite.append_data_file(file)

    def _write(self, push: str) -> list[Any]:
        folder = self.root / "data" / push
        folder.mkdir(parents=True)
        found = []
        for number in range(self.files):
            path = folder / f"{number:06d}.parquet"
            path.write_bytes(CONTENT)
            found.append(data_file(path.as_uri(), day_of(number, self.files, self.days)))
        return found


@contextmanager
def segment_store(folder: Path) -> Iterator[tuple[SegmentStore, Path]]:
    """A store on a real ZooKeeper server with its data below ``folder``."""
    with EmbeddedZooKeeper(folder / "zookeeper") as server:
        root = folder / "objects"
        root.mkdir()
        with SegmentStore.connect(server.hosts, "bench", root.as_uri()) as store:
            yield store, root


def warm_up(store: SegmentStore, root: Path, days: int) -> None:
    """Let the server's compiler see the work before it is measured."""
    system = Segments(store, root, 1000, days, "warm_up")
    for _ in range(5):
        system.replace()
        system.roll_back()
        system.settle()
        system.resolve()


def _exactly(found: list[Any], files: int) -> None:
    assert len(found) == files, f"{len(found)} files instead of {files}"
