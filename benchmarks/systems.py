"""Three systems that replace many files at once, each with real small files: ours, delta-rs and pyiceberg.

Every system gets the same number of files, spread over the same days of a year, at the same place: a folder of this
disk, or a bucket of one S3 server. Making the files and describing them (our records, delta-rs's add actions,
pyiceberg's data files) is outside of every timing. What every benchmark can be given of the surroundings is here, too:
``--store s3`` for the place, ``--servers 3`` for an ensemble of ZooKeepers.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.names import entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper, free_port
from benchmarks.meter import Meter
from benchmarks.places import CONTENT, ROWS, Folder, Place, cluster_of, place

FIRST_DAY = datetime.date(2013, 1, 1)
Timings = dict[str, float]


class System(Protocol):
    """One table of one system, holding a first push of some files."""

    name: str
    meter: Meter

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

    def __init__(self, store: SegmentStore, where: Place, files: int, days: int, table: str) -> None:
        self.files, self.days, self.where = files, days, where
        document = {
            "tableName": table,
            "segmentsConfig": {"timeColumnName": "at"},
            "segmentBuildConfig": {"segmentGranularity": "DAY"},
            "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": "REFRESH"}},
        }
        store.apply_config(TableConfig.from_json(document))
        self.store, self.table = store, store.table(table)
        self.meter = Meter(where, store.session)
        self.entry_id = ""
        self.replace()
        self.meter.taken()

    def replace(self) -> Timings:
        """Start, stage and end: what a build in several processes does."""
        times: Timings = {}
        found: dict[str, Any] = {}
        timed = self.meter.timed
        times["start"] = timed(lambda: found.update(started=self.table.start()))
        self.entry_id = found["started"].entry_id
        times["stage"] = timed(lambda: found.update(ticket=self.table.open_stage(self.entry_id)))
        segments = self._write(found["ticket"].prefix, entry_tag(self.entry_id))
        times["stage"] += timed(lambda: self.table.stage(found["ticket"], segments))
        times["end"] = timed(lambda: found.update(ended=self.table.end(self.entry_id)))
        assert len(found["ended"].segments_to) == self.files
        return times

    def roll_back(self) -> float:
        taken = self.meter.timed(lambda: self.table.revert(self.entry_id))
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
        found: dict[str, Any] = {}
        alone = self.meter.timed(lambda: found.update(snapshot=self.table.snapshot()))
        snapshot = found["snapshot"]
        assert len(snapshot) == self.files
        files = alone + self.meter.timed(lambda: snapshot.files)
        return {"snapshot": alone, "files": files, "metadata": files + self.meter.timed(lambda: snapshot.segments)}

    def resolve_day(self, day: datetime.date) -> float:
        start = int(datetime.datetime.combine(day, datetime.time(), datetime.UTC).timestamp()) * 1000
        return milliseconds(lambda: self.table.snapshot(start, start + 86_400_000).files)

    def look_again(self) -> float:
        """Milliseconds until a reader knows that nothing has changed since its last snapshot."""
        known = self.table.snapshot()
        again: list[Snapshot] = []
        taken = milliseconds(lambda: again.append(self.table.snapshot(known=known)))
        assert again[0] is known
        return taken

    def _write(self, prefix: str, tag: str) -> list[StagedSegment]:
        segments = [
            staged_segment(self.table.name, tag, number, day_of(number, self.files, self.days))
            for number in range(self.files)
        ]
        self.where.fill((prefix + segment.record.file, "") for segment in segments)
        return segments


class Published(Segments):
    """Ours, where one process does it all: the announcement, and everything else in one transaction."""

    name = "publish"

    def replace(self) -> Timings:
        found: dict[str, Any] = {}
        times = {"start": self.meter.timed(lambda: found.update(started=self.table.start(stager="build")))}
        ticket = found["started"].ticket
        self.entry_id = ticket.entry_id
        segments = self._write(ticket.prefix, entry_tag(self.entry_id))
        times["publish"] = self.meter.timed(lambda: self.table.publish(ticket, segments))
        return times


class Delta:
    """delta-rs: one commit file beside the data. Nothing looks at the files that are added; restore does."""

    name = "delta-rs"

    def __init__(self, where: Place, files: int, days: int) -> None:
        from deltalake import DeltaTable

        self.files, self.days, self.where = files, days, where
        self.meter = Meter(where)
        self.schema = pa.schema([("day", pa.string()), ("n", pa.int64())])
        self.options = where.delta_options()
        self.handle = DeltaTable.create(where.uri, self.schema, partition_by=["day"], storage_options=self.options)
        self.pushes = [self._write("a"), self._write("b")]
        self._commit(self.pushes[0])

    def replace(self) -> Timings:
        times = {
            "open": self.meter.timed(self._open),
            "commit": self.meter.timed(lambda: self._commit(self.pushes[1])),
        }
        self._check("part-b-")
        return times

    def roll_back(self) -> float:
        def restore() -> None:
            self._open()
            self.handle.restore(self.handle.version() - 1)

        taken = self.meter.timed(restore)
        self._check("part-a-")
        return taken

    def settle(self) -> None:
        """Nothing to do."""

    def _open(self) -> None:
        from deltalake import DeltaTable

        self.handle = DeltaTable(self.where.uri, storage_options=self.options)

    def _check(self, push: str) -> None:
        self._open()
        uris = self.handle.file_uris()
        assert len(uris) == self.files
        assert push in uris[0]

    def resolve(self) -> Timings:
        alone = self.meter.timed(self._open)
        files = alone + self.meter.timed(lambda: _exactly(self.handle.file_uris(), self.files))
        return {"snapshot": alone, "files": files, "metadata": files + self.meter.timed(self.handle.get_add_actions)}

    def resolve_day(self, day: datetime.date) -> float:
        def look() -> None:
            self._open()
            self.handle.file_uris(file_pruning_predicate=[("day", "=", day.isoformat())])

        return milliseconds(look)

    def _commit(self, actions: list[Any]) -> None:
        self.handle.create_write_transaction(actions, "overwrite", self.schema, partition_by=["day"])

    def _write(self, push: str) -> list[Any]:
        days = [day_of(number, self.files, self.days).isoformat() for number in range(self.files)]
        paths = [f"day={day}/part-{push}-{number:06d}.parquet" for number, day in enumerate(days)]
        self.where.fill((path, "") for path in paths)
        return [add_action(path, day) for path, day in zip(paths, days, strict=True)]


class Iceberg:
    """pyiceberg with an SQLite catalog in ``folder``: manifests beside the data, one row of the catalog switches."""

    name = "pyiceberg"

    def __init__(self, where: Place, folder: Path, files: int, days: int) -> None:
        self.files, self.days, self.where = files, days, where
        self.meter = Meter(where)
        self.catalog, self.table = iceberg_table(folder, where.uri, where.iceberg_options())
        self.pushes = [self._write("a"), self._write("b")]
        self._overwrite([], self.pushes[0])
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        self.first = snapshot.snapshot_id

    def replace(self) -> Timings:
        commit = lambda: self._overwrite(self.pushes[0], self.pushes[1])  # noqa: E731
        times = {"open": self.meter.timed(self._open), "commit": self.meter.timed(commit)}
        self._check("data/b/")
        return times

    def roll_back(self) -> float:
        def move() -> None:
            self._open()
            self.table.manage_snapshots().set_current_snapshot(self.first).commit()

        taken = self.meter.timed(move)
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
        alone = self.meter.timed(self._open)
        planned = alone + self.meter.timed(lambda: _exactly(list(self.table.scan().plan_files()), self.files))
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
        keys = [f"data/{push}/{number:06d}.parquet" for number in range(self.files)]
        self.where.fill((key, "") for key in keys)
        return [
            data_file(f"{self.where.uri}/{key}", day_of(number, self.files, self.days))
            for number, key in enumerate(keys)
        ]


SYSTEMS = (Segments.name, Published.name, Delta.name, Iceberg.name)
"""``publish`` differs from ``segments`` in how it replaces, and in nothing else."""


@dataclass(frozen=True)
class Surroundings:
    """What the systems of one run work in: ZooKeeper at ``hosts``, objects at ``place``, all below ``folder``."""

    hosts: str
    place: Place
    folder: Path

    @contextmanager
    def store(self, name: str) -> Iterator[tuple[SegmentStore, Place]]:
        """A store of ours with its objects below ``name``."""
        where = self.place.at(name)
        with open_segments(self.hosts, where) as store:
            yield store, where

    @contextmanager
    def system(self, name: str, files: int, days: int) -> Iterator[System]:
        """A table of one system, with a push of ``files`` files."""
        below = f"{name}-{files}"
        if name in (Segments.name, Published.name):
            kind = Segments if name == Segments.name else Published
            with self.store(below) as (store, where):
                yield kind(store, where, files, days, "flights")
        elif name == Delta.name:
            yield Delta(self.place.at(below), files, days)
        else:
            catalog = self.folder / below
            catalog.mkdir()
            yield Iceberg(self.place.at(below), catalog, files, days)


def open_segments(hosts: str, where: Place) -> SegmentStore:
    """A store of ours, in a cluster of its own."""
    return SegmentStore.connect(hosts, cluster_of(where.uri), storage=open_store(where.uri, **where.options()))


def add_surroundings(parser: argparse.ArgumentParser) -> None:
    """The options that :func:`surroundings` needs."""
    parser.add_argument("--store", default="local", help="where objects are: local or s3, the same for every system")
    add_servers(parser)
    parser.add_argument("--folder", help="where files are made (default: a temporary folder)")


def add_servers(parser: argparse.ArgumentParser) -> None:
    """The option that :func:`zookeeper` needs."""
    parser.add_argument("--servers", type=int, default=1, help="ZooKeeper servers: 1, or an ensemble of 3")


@contextmanager
def surroundings(folder: Path, store: str, servers: int) -> Iterator[Surroundings]:
    """Servers started anew, with their data below ``folder``, those of ZooKeeper warmed up."""
    with zookeeper(folder, servers) as hosts, place(store, folder) as where:
        _warm_up(hosts, folder)
        yield Surroundings(hosts, where, folder)


@contextmanager
def zookeeper(folder: Path, servers: int) -> Iterator[str]:
    """The addresses of so many ZooKeeper servers of one ensemble. Each syncs what it acknowledges."""
    members = {f"server.{one}": f"127.0.0.1:{free_port()}:{free_port()}" for one in range(1, servers + 1)}
    settings = members | {"initLimit": "20", "syncLimit": "10"} if servers > 1 else {}
    crew = [EmbeddedZooKeeper(folder / f"zookeeper-{one}", settings=settings) for one in range(1, servers + 1)]
    for number, server in enumerate(crew, 1):
        (server.data_dir / "data").mkdir(parents=True)
        (server.data_dir / "data" / "myid").write_text(str(number))
    with ExitStack() as stack:
        for server in crew:
            stack.callback(server.stop)
        with ThreadPoolExecutor(servers) as pool:  # none answers before most are there
            list(pool.map(EmbeddedZooKeeper.start, crew))
        yield ",".join(server.hosts for server in crew)


def _warm_up(hosts: str, folder: Path) -> None:
    """Let the servers' compilers see the work before it is measured."""
    (folder / "warm-up").mkdir()
    where = Folder(folder / "warm-up")
    with open_segments(hosts, where) as store:
        system = Segments(store, where, 1000, 365, "warm_up")
        for _ in range(5):
            system.replace()
            system.roll_back()
            system.settle()
            system.resolve()


def _exactly(found: list[Any], files: int) -> None:
    assert len(found) == files, f"{len(found)} files instead of {files}"
