"""What people are told when a region stops, when ingestion is killed, and when nothing is wrong: the table in
docs/replication.md, made to happen.

Five regions feed one table: the emitters and the ingestion are processes of their own, which are killed. The page of
each moment is what the real sensor, the real gauges and the real command say of each region; and each change is told
once, whoever asks how often.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pytest
from airflow.sdk import AssetAlias

from airflow_provider_segments.assets.segments import EVENTS_ALIAS
from airflow_provider_segments.clock import system_now_ms
from airflow_provider_segments.core.replication.emission import HeartbeatEmitter
from airflow_provider_segments.core.replication.heartbeat import SILENT_AFTER, Heartbeat
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.operators.heartbeat import EmitHeartbeatOperator
from airflow_provider_segments.sensors.replication import HeartbeatLagSensor
from airflow_provider_segments.upsert.barriers import ingest_to_barriers
from airflow_provider_segments.upsert.event_source import write_heartbeat
from airflow_provider_segments.upsert.file_source import FileSource
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.reading import read_rows
from tests.airflow.helpers import MetricsBackend, context
from tests.cli.conftest import CommandLine
from tests.replication.support import TYPES, arrow
from tests.support.children import exit_codes, spawn
from tests.support.tables import at_time
from tests.upsert.world import upsert_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

INTERVAL_S = 8
EVERY_S = 2.0
PATIENCE_S = 400
AHEAD_MS = 600_000
REGIONS = ("home", "stopped", "idle", "rewound", "ahead")


class Page(NamedTuple):
    """What is said of a region: whether the sensor lets a DAG pass, the gauges of silence and of a clock that is ahead,
    and the command's word."""

    passes: bool
    silent: int
    ahead: int
    state: str


HEARD = Page(True, 0, 0, "heard")
SILENT = Page(False, 1, 0, "silent")
AHEAD = Page(True, 0, 1, "clock ahead")
SILENT_AHEAD = Page(False, 1, 1, "silent")


class World:
    """The table, its sources, and the processes that write and read them."""

    def __init__(self, store: SegmentStore, name: str, folder: Path, metrics: MetricsBackend) -> None:
        self.store, self.table, self.folder, self.metrics = store, store.table(name), folder, metrics
        self.children: dict[str, int] = {}
        self.alarms: dict[str, list[str]] = {region: [] for region in REGIONS}

    def connect(self) -> SegmentStore:
        """A connection for another process."""
        return SegmentStore.connect(self.store.session.settings.hosts, self.store.paths.cluster, self.store.storage.uri)

    def source(self, region: str) -> FileSource:
        return FileSource(self.folder / region)

    def start(self, name: str, work: Callable[[], None]) -> None:
        self.children[name] = spawn(work)

    def kill(self, name: str) -> None:
        child = self.children.pop(name)
        os.kill(child, signal.SIGKILL)
        exit_codes([child])

    def emit(self, region: str, *, emitter: str = "first", ahead_ms: int = 0, with_events: bool = False) -> None:
        """Emit the region's heartbeats until killed."""
        with self.connect() as opened:
            store = at_time(opened, lambda: system_now_ms() + ahead_ms)
            beats = HeartbeatEmitter(store.cluster, self.table.name, region, emitter)
            while True:
                if with_events:
                    self.write_event(region)
                beats.emit(1, lambda heartbeat: write_heartbeat(self.source(region), region, heartbeat))
                time.sleep(EVERY_S)

    def rewind(self, region: str) -> None:
        """Write heartbeats of the first term until killed: a leader that has lost its place, or its memory."""
        while True:
            write_heartbeat(self.source(region), region, Heartbeat(1, system_now_ms(), 0, 1))
            time.sleep(EVERY_S)

    def write_event(self, region: str) -> None:
        row = {"$region": region, "$partition": 0, "k": region, "ts": system_now_ms(), "v": "x", "deleted": False}
        self.source(region).add_events("event", arrow([row]))

    def ingest(self) -> None:
        """Ingest what is in the sources until killed."""
        with self.connect() as store:
            table = store.table(self.table.name)
            ingestor = UpsertIngestor(table, cache=self.folder / f"cache{os.getpid()}")
            while True:
                if (events := self.unread(table)).num_rows:
                    ingest_to_barriers(ingestor, events)
                time.sleep(EVERY_S / 4)

    def unread(self, table: Table) -> pyarrow.Table:
        """The events after the table's positions, in the order of their offsets."""
        positions = require_record(table.lineage()).positions
        found = []
        for region in REGIONS:
            (self.folder / region).mkdir(exist_ok=True)
            source = pyarrow.dataset.dataset(self.folder / region, schema=pyarrow.schema(TYPES), format="parquet")
            is_new = pyarrow.compute.field("$offset") >= positions.get(f"{region}/0", 0)
            found.append(source.to_table(filter=is_new).sort_by("$offset"))
        return pyarrow.concat_tables(found)

    def look(self, segments: CommandLine) -> dict[str, Page]:
        """Emit the heartbeat of home, as the DAG does, keep the alarms that it tells, and read what is said."""
        self.write_event("home")
        task = EmitHeartbeatOperator(
            task_id="beat", table=self.table.name, region="home", folder=str(self.folder / "home")
        )
        running = context()
        task.execute(running)
        for event in running["outlet_events"][AssetAlias(name=EVENTS_ALIAS, group="segments")].asset_alias_events:
            for region, state in event.extra["regions"].items():
                self.alarms[region].append(state)
        told = {one["region"]: one for one in segments.json("heartbeats", self.table.name)["regions"]}
        shown = {line.split()[0]: line for line in segments.ok("heartbeats", self.table.name).out.splitlines()[1:]}
        return {region: self.page(region, told[region], shown[region]) for region in REGIONS}

    def page(self, region: str, told: dict[str, Any], line: str) -> Page:
        sensor = HeartbeatLagSensor(
            task_id="wait", table=self.table.name, regions=[region], max_lag=f"{SILENT_AFTER * INTERVAL_S}s"
        )
        gauges = {kind: self.metrics.seen[f"segments.heartbeats.{kind}.{self.table.name}.{region}"] for kind in KINDS}
        state = next(word for word in ("silent", "clock ahead", "heard") if line.rstrip().endswith(word))
        assert told["is_silent"] == (state == "silent")
        assert told["lag_ms"] is None or (told["lag_ms"] >= 0 and gauges["lag_ms"] >= 0), "a lag is never negative"
        return Page(bool(sensor.poke({})), gauges["silent"], gauges["ahead"], state)


KINDS = ("silent", "ahead", "lag_ms")


@pytest.fixture
def segments(
    connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> CommandLine:
    """The command line of the same store."""
    monkeypatch.setenv("SEGMENTS_ZOOKEEPER", connection["host"])
    monkeypatch.setenv("SEGMENTS_CLUSTER", connection["extra"]["cluster"])
    monkeypatch.setenv("SEGMENTS_STORAGE", connection["extra"]["storage_uri"])
    return CommandLine(capsys, tmp_path)


@pytest.fixture
def world(store: SegmentStore, table_name: str, tmp_path: Path, metrics: MetricsBackend) -> Iterator[World]:
    store.apply_config(upsert_config(table_name, regions=list(REGIONS), heartbeatInterval=f"{INTERVAL_S}s"))
    made = World(store, table_name, tmp_path, metrics)
    try:
        yield made
    finally:
        for name in list(made.children):
            made.kill(name)


def test_what_people_are_told(world: World, segments: CommandLine) -> None:
    def wait_for(**changed: Page) -> None:
        """Look, as often as heartbeats come, until this is said; then twice more, and it stays."""
        wanted, until = dict(expected | changed), time.monotonic() + PATIENCE_S
        while (found := world.look(segments)) != wanted:
            assert time.monotonic() < until, (found, world.alarms)
            time.sleep(EVERY_S)
        told = {region: list(states) for region, states in world.alarms.items()}
        expected.update(changed)
        assert [world.look(segments), world.look(segments)] == [wanted, wanted]
        assert world.alarms == told, "nothing is told again"

    expected = dict.fromkeys(REGIONS, SILENT)
    assert world.look(segments) == expected, "nobody was ever heard"

    world.start("ingest", world.ingest)
    world.start("stopped", lambda: world.emit("stopped", with_events=True))
    world.start("idle", lambda: world.emit("idle"))
    HeartbeatEmitter(world.store.cluster, world.table.name, "rewound", "first").emit(1, lambda _: None)
    world.start("rewound", lambda: world.emit("rewound", emitter="second", with_events=True))
    world.start("ahead", lambda: world.emit("ahead", ahead_ms=AHEAD_MS, with_events=True))
    wait_for(home=HEARD, stopped=HEARD, idle=HEARD, rewound=HEARD, ahead=AHEAD)
    assert "idle" not in read_rows(world.table, columns=["k"]).column("k").to_pylist(), "it has written nothing else"

    world.kill("stopped")
    wait_for(stopped=SILENT)
    world.start("stopped", lambda: world.emit("stopped", with_events=True))
    wait_for(stopped=HEARD)

    world.kill("rewound")
    world.start("rewound", lambda: world.rewind("rewound"))
    wait_for(rewound=SILENT)
    world.kill("rewound")
    world.start("rewound", lambda: world.emit("rewound", emitter="first", with_events=True))
    wait_for(rewound=HEARD)

    world.kill("ingest")
    wait_for(home=SILENT, stopped=SILENT, idle=SILENT, rewound=SILENT, ahead=SILENT_AHEAD)
    world.start("ingest", world.ingest)
    wait_for(home=HEARD, stopped=HEARD, idle=HEARD, rewound=HEARD, ahead=AHEAD)

    silent_and_back = ["silent", "heard"]
    assert world.alarms == {
        "home": 2 * silent_and_back,
        "stopped": 3 * silent_and_back,
        "idle": 2 * silent_and_back,
        "rewound": 3 * silent_and_back,
        "ahead": 2 * ["silent", "clock ahead"],
    }
