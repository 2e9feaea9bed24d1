"""A real ZooKeeper and a store in a folder, for the command line."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_segments.cli.main import main
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@dataclass(frozen=True)
class Result:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class CommandLine:
    """Runs ``segments`` in this process, on a cluster of its own."""

    capture: pytest.CaptureFixture[str]
    folder: Path

    def __call__(self, *args: object) -> Result:
        self.capture.readouterr()
        code = main([str(arg) for arg in args])
        printed = self.capture.readouterr()
        return Result(code, printed.out, printed.err)

    def ok(self, *args: object) -> Result:
        result = self(*args)
        assert (result.code, result.err) == (0, "")
        return result

    def json(self, *args: object) -> Any:
        return self.ok(*args, "--json").json

    def make_table(self, name: str = "t", kind: str = "REFRESH", **sections: Any) -> None:
        config = {"tableName": name, "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": kind}}}
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(config | sections))
        self.ok("config", "apply", file)

    def push(self, *days: int, table: str = "t") -> str:
        """One push of a file a day of January 2013; returns its entry."""
        entry: str = self.json("start", table)["entry_id"]
        self.ok("stage", table, entry, *[parquet(self.folder, day) for day in days])
        self.ok("end", table, entry)
        return entry


@pytest.fixture
def segments(
    zookeeper: EmbeddedZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    monkeypatch.setenv("SEGMENTS_ZOOKEEPER", zookeeper.hosts)
    monkeypatch.setenv("SEGMENTS_CLUSTER", f"cluster{next(_NUMBERS)}")
    monkeypatch.setenv("SEGMENTS_STORAGE", (tmp_path / "store").as_uri())
    return CommandLine(capsys, tmp_path)


@pytest.fixture
def store(segments: CommandLine) -> Iterator[SegmentStore]:
    """The store behind the command line."""
    hosts, cluster, storage = (os.environ[f"SEGMENTS_{name}"] for name in ("ZOOKEEPER", "CLUSTER", "STORAGE"))
    with SegmentStore.connect(hosts, cluster, storage) as opened:
        yield opened


DAILY = {"segmentsConfig": {"timeColumnName": "at"}, "segmentBuildConfig": {"segmentGranularity": "DAY"}}


def said_to(terminal: int) -> bytes:
    """All that was written to a terminal whose other end is closed; one read may find only the first lines."""
    said = b""
    with contextlib.suppress(OSError), open(terminal, "rb", buffering=0) as leader:
        while block := leader.read(10_000):
            said += block
    return said


def parquet(folder: Path, *days: int, rows: int = 10) -> Path:
    """A file with ``rows`` rows on each of ``days`` of January 2013."""
    path = folder / f"in-{'-'.join(map(str, days))}-{rows}.parquet"
    times = [datetime(2013, 1, day, tzinfo=UTC) for day in days for _ in range(rows)]
    pq.write_table(pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "n": range(len(times))}), path)
    return path
