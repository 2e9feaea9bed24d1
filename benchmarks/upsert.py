"""What micro-batches and reads of an upsert table cost, beside delta-rs and DuckDB on the same events.

    python -m benchmarks.upsert [KEYS [BATCH [BATCHES]]]    events of random keys against a table of KEYS keys
    python -m benchmarks.upsert steps [KEYS [BATCH]]        where the time of a batch, by default of 1,000 events, goes
    python -m benchmarks.upsert keys KEYS                   the key store of one key partition alone

All in one process and a local folder, metadata of ours in an embedded ZooKeeper. Batches of the three take turns. CPU
is that of this process and its children, ZooKeeper among them; so times of others on the machine do not count.

==========  ============================================================================================================
segments    ``UpsertIngestor.ingest``: versions, every earlier mark can be read; then the same after a compaction
delta-rs    ``DeltaTable.merge``: the newest of each key of the batch (one key must match once), update or insert
duckdb      ``INSERT ... ON CONFLICT DO UPDATE`` into a table with a primary key, in a file; it has no earlier versions
==========  ============================================================================================================
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

import duckdb
import numpy
import psutil
import pyarrow
import pyarrow.compute
from deltalake import DeltaTable, write_deltalake

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import Head
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.upsert import ingest
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.events import IngestionUpsertEvents
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.key_store import SortedRuns
from airflow_provider_segments.upsert.reading import read_rows
from airflow_provider_segments.upsert.writing import SegmentWriter
from benchmarks.report import machine, median, table

CONFIG = {
    "tableName": "t",
    "schema": {"primaryKeyColumns": ["k"]},
    "upsertConfig": {"mode": "FULL", "comparisonColumns": ["ts"]},
}
SMALL = 1_000
COLUMNS = ["k", "ts", "amount", "status"]
NEWEST = "SELECT * FROM batch QUALIFY row_number() OVER (PARTITION BY k ORDER BY ts DESC) = 1"


class System(Protocol):
    """One table of one system."""

    name: str

    def ingest(self, rows: pyarrow.Table) -> None:
        """Take a batch of events."""

    def read(self, columns: list[str]) -> pyarrow.Table:
        """Those columns of the newest row of each key."""


class Segments:
    """Ours."""

    name = "segments"

    def __init__(self, store: SegmentStore, folder: Path) -> None:
        store.apply_config(TableConfig.from_json(CONFIG))
        self.table = store.table("t")
        self.cache = folder / "cache"
        self.ingestor = UpsertIngestor(self.table, cache=self.cache)
        self.switches: list[float] = []

    def ingest(self, rows: pyarrow.Table) -> None:
        self.switches.append(self.ingestor.ingest(rows).switch_ms)

    def read(self, columns: list[str]) -> pyarrow.Table:
        return read_rows(self.table, columns=columns)


class Delta:
    """A Delta table."""

    name = "delta-rs"

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "delta")

    def ingest(self, rows: pyarrow.Table) -> None:
        with duckdb.connect() as connection:
            connection.register("batch", rows.select(COLUMNS))
            newest = connection.sql(NEWEST).to_arrow_table()
        if not DeltaTable.is_deltatable(self.path):
            write_deltalake(self.path, newest)
            return
        merge = DeltaTable(self.path).merge(newest, "t.k = s.k", source_alias="s", target_alias="t")
        merge.when_matched_update_all("s.ts > t.ts").when_not_matched_insert_all().execute()

    def read(self, columns: list[str]) -> pyarrow.Table:
        return DeltaTable(self.path).to_pyarrow_table(columns=columns)


class Duck:
    """A DuckDB table in a file."""

    name = "duckdb"

    def __init__(self, folder: Path) -> None:
        self.connection = duckdb.connect(str(folder / "duck.db"))
        self.connection.execute("CREATE TABLE t (k VARCHAR PRIMARY KEY, ts BIGINT, amount DOUBLE, status VARCHAR)")

    def ingest(self, rows: pyarrow.Table) -> None:
        self.connection.register("batch", rows.select(COLUMNS))
        sets = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
        self.connection.execute(f"INSERT INTO t {NEWEST} ON CONFLICT (k) DO UPDATE SET {sets} WHERE excluded.ts > t.ts")

    def read(self, columns: list[str]) -> pyarrow.Table:
        return self.connection.sql(f"SELECT {', '.join(columns)} FROM t").to_arrow_table()


def events(first: int, count: int, keys: int, random: numpy.random.Generator) -> pyarrow.Table:
    """``count`` events from offset ``first`` on, of ``keys`` keys."""
    at = numpy.arange(first, first + count)
    return pyarrow.table(
        {
            "k": [f"customer-{key:09d}" for key in random.integers(0, keys, count).tolist()],
            "ts": at,
            "amount": random.random(count),
            "status": random.choice(["new", "paid", "sent", "back"], count),
            "$partition": numpy.zeros(count, numpy.int32),
            "$offset": at,
        }
    )


def cpu_s() -> float:
    """CPU seconds of this process and its children so far."""
    children = psutil.Process().children(recursive=True)
    times = [child.cpu_times() for child in children if child.is_running()]
    return time.process_time() + sum(one.user + one.system for one in times)


def measured(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """The result of ``work``, its CPU and its wall seconds."""
    cpu, wall = cpu_s(), time.monotonic()
    result = work()
    return result, cpu_s() - cpu, time.monotonic() - wall


class Figures:
    """CPU and wall of each kind of step of each system."""

    def __init__(self) -> None:
        self.taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
        self.rows: dict[str, int] = {}

    def take(self, step: str, system: str, rows: int, work: Callable[[], Any]) -> Any:
        """Run ``work``, which handles so many rows."""
        result, cpu, wall = measured(work)
        self.rows[step] = rows
        self.taken.setdefault((step, system), []).append((cpu, wall))
        return result

    def show(self, systems: list[str]) -> str:
        """A line a step: for each system the median CPU a row and events a second of wall time."""
        lines = []
        for step, rows in self.rows.items():
            cells = [step]
            for system in systems:
                taken = self.taken.get((step, system))
                if taken is None:
                    cells += ["-", "-"]
                    continue
                cpu, wall = (median([one[at] for one in taken]) for at in (0, 1))
                cells += [f"{cpu / rows * 1e6:.2f}", f"{rows / wall:,.0f}"]
            lines.append(cells)
        head = ["", *(text for system in systems for text in (f"{system}: us CPU/row", "rows/s"))]
        return table(head, lines)


def assert_same(systems: list[System]) -> int:
    """All systems hold the same rows; returns how many."""
    first, *others = [system.read(COLUMNS).sort_by("k").combine_chunks() for system in systems]
    for system, rows in zip(systems[1:], others, strict=True):
        assert rows.cast(first.schema).equals(first), f"{system.name} has other rows"
    return int(first.num_rows)


def run(systems: list[System], ours: Segments, keys: int, batch: int, batches: int) -> None:
    """Fill, ingest batches in turn, read, compact ours, read again."""
    random, figures, at = numpy.random.default_rng(1), Figures(), keys
    first = events(0, keys, keys, random)
    for system in systems:
        figures.take(f"first batch of {keys:,}", system.name, keys, lambda system=system: system.ingest(first))
    for size in (SMALL, batch):
        for _ in range(batches):
            rows = events(at, size, keys * 5 // 4, random)
            at += size
            for system in systems:
                work = lambda system=system, rows=rows: system.ingest(rows)  # noqa: E731 - bound at once
                figures.take(f"batch of {size:,}", system.name, size, work)
    live = assert_same(systems)
    stored = ours.table.snapshot().rows
    read_all(systems, figures, live, "")
    dead = (stored - live) / stored
    compactor = UpsertCompactor(ours.table, dead_share=0.0)
    floor = ours.table.snapshot().mark
    figures.take("compaction", ours.name, stored, lambda: compactor.run(floor=floor))
    read_all([ours], figures, live, ", compacted")
    again = UpsertIngestor(ours.table, name="again", cache=ours.cache)
    more = events(at, SMALL, keys, random)
    figures.take("key stores rebuilt", ours.name, live, lambda: again.ingest(more))
    print(figures.show([system.name for system in systems]))
    print(f"{live:,} keys; {dead:.0%} of our {stored:,} stored rows were dead before the compaction")
    print(f"our publishing transaction: {median(ours.switches):.1f} ms (median of {len(ours.switches)})")
    print(
        f"our key stores: {sum(one.bytes for _, one in again.partitions.stores()) / live:.1f} bytes a key on the disk"
    )


def read_all(systems: list[System], figures: Figures, live: int, suffix: str) -> None:
    """Everything, one column, and one key, three times each in turn."""

    def one_key(system: System) -> pyarrow.Table:
        rows = system.read(["k", "amount"])
        return rows.filter(pyarrow.compute.equal(rows.column("k"), "customer-000000007"))

    for _ in range(3):
        for system in systems:
            figures.take(f"read all{suffix}", system.name, live, lambda system=system: system.read(COLUMNS))
            figures.take(f"sum of a column{suffix}", system.name, live, lambda system=system: total(system))
            figures.take(f"one key by a scan{suffix}", system.name, live, lambda system=system: one_key(system))


def total(system: System) -> float:
    """The sum of a column."""
    return float(pyarrow.compute.sum(system.read(["amount"]).column(0)).as_py())


@contextmanager
def opened(*, sync: bool = False) -> Iterator[tuple[list[System], Segments]]:
    """The three systems on an empty folder."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="upsert-benchmark-")))
        server = stack.enter_context(EmbeddedZooKeeper(folder / "zookeeper", sync=sync))
        store = stack.enter_context(SegmentStore.connect(server.hosts, "c", (folder / "objects").as_uri()))
        ours = Segments(store, folder)
        yield [ours, Delta(folder), Duck(folder)], ours


def key_store(keys: int, batch: int = 50_000) -> None:
    """What the store of one key partition costs: rebuilt, opened and verified, asked, and brought up to date."""
    random = numpy.random.default_rng(2)
    with tempfile.TemporaryDirectory(prefix="upsert-keys-") as folder:
        asked = _rebuilt(Path(folder), keys, batch, random)
        before = psutil.Process().memory_info().rss
        store = SortedRuns(Path(folder))
        size = store.bytes
        _, cpu, wall = measured(lambda: store.open(Head("a", 0)))
        print(f"opened and verified: {cpu:.2f} s CPU, {wall:.1f} s")
        unique = numpy.unique(numpy.stack([asked.high, asked.low], axis=1), axis=0)
        found, cpu, _ = measured(lambda: store.holders(unique[:, 0], unique[:, 1]))
        print(f"asked for {len(unique):,} keys, {len(found):,} known: {cpu / len(unique) * 1e6:.2f} us CPU a key")
        _, cpu, _ = measured(lambda: store.prepare(Head("b", 0), asked, ["s"]))
        print(f"brought up to date: {cpu / batch * 1e6:.2f} us CPU a row")
        grown = psutil.Process().memory_info().rss - before
        print(f"{size / keys:.1f} bytes a key on the disk; memory grew by {grown / 1e6:,.0f} MB, mapped pages included")


def _rebuilt(folder: Path, keys: int, batch: int, random: numpy.random.Generator) -> IngestionUpsertEvents:
    """Make the store in ``folder``; returns a batch to ask it for, four fifths known."""
    rows = _random_rows(random, keys)
    _, cpu, wall = measured(lambda: SortedRuns(folder).rebuild(Head("a", 0), rows, ["s"]))
    print(f"rebuilt from {keys:,} rows in memory: {cpu / keys * 1e6:.2f} us CPU a key, {wall:.1f} s")
    known = rows.take(random.integers(0, keys, batch * 4 // 5))
    return IngestionUpsertEvents.concat([known, _random_rows(random, batch - len(known))])


def _random_rows(random: numpy.random.Generator, count: int) -> IngestionUpsertEvents:
    types = IngestionUpsertEvents.column_types()
    columns: dict[str, Any] = {name: numpy.zeros(count, kind) for name, kind in types.items()}
    for half in ("high", "low"):
        columns[half] = random.integers(0, 2**63, count, dtype=numpy.uint64)
    return IngestionUpsertEvents(**columns)


STEPS = {
    "announce": (Table, "start"),
    "find rejects": (ingest, "sort_out"),
    "read record and heads": (Table, "lineage"),
    "compare": (ingest._Batch, "_resolve"),
    "write files": (SegmentWriter, "segments"),
    "write the update log": (SegmentWriter, "update_log"),
    "bring the key store up to date": (SortedRuns, "prepare"),
    "publish": (Table, "publish"),
}


class Stopwatch:
    """Seconds by the clock and of this process's CPU in the calls of :data:`STEPS`, each less those within it."""

    def __init__(self) -> None:
        self.taken = {step: numpy.zeros(2) for step in STEPS}
        self._inner = [numpy.zeros(2)]

    def around(self, step: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """``work`` that is timed as ``step``; what it yields is made before it returns."""

        @wraps(work)
        def timed(*arguments: Any, **options: Any) -> Any:
            began = _now()
            self._inner.append(numpy.zeros(2))
            try:
                result = work(*arguments, **options)
                return iter([*result]) if isinstance(result, Iterator) else result
            finally:
                took = _now() - began
                self.taken[step] += took - self._inner.pop()
                self._inner[-1] += took

        return timed

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the steps are timed."""
        kept = {step: getattr(place, name) for step, (place, name) in STEPS.items()}
        for step, (place, name) in STEPS.items():
            setattr(place, name, self.around(step, kept[step]))
        try:
            yield
        finally:
            for step, (place, name) in STEPS.items():
                setattr(place, name, kept[step])


def _now() -> numpy.ndarray:
    """The clock and this process's CPU, seconds."""
    return numpy.array([time.perf_counter(), time.process_time()])


def steps(keys: int = 1_000_000, batch: int = SMALL, batches: int = 50) -> None:
    """Where the time of a batch goes, with a ZooKeeper that syncs its writes."""
    print(machine())
    random, watch = numpy.random.default_rng(3), Stopwatch()
    with opened(sync=True) as (_, ours):
        ours.ingest(events(0, keys, keys, random))
        ours.ingest(events(keys, batch, keys, random))
        ours.switches.clear()
        sent = [events(keys + batch * number, batch, keys, random) for number in range(1, batches + 1)]
        began = _now()
        with watch.watching():
            for rows in sent:
                ours.ingest(rows)
        whole = _now() - began
    watch.taken["the rest"] = whole - sum(watch.taken.values())
    lines = [
        [step, f"{wall / batches * 1e3:.1f}", f"{cpu / batches / batch * 1e6:.2f}"]
        for step, (wall, cpu) in [*watch.taken.items(), ("all of it", whole)]
    ]
    print(table([f"a batch of {batch:,}", "ms", "CPU an event, us"], lines))
    print(f"the transaction that publishes: {median(ours.switches):.1f} ms (median)")


def main(keys: int = 1_000_000, batch: int = 50_000, batches: int = 5) -> None:
    """Fill a table, ingest small batches, read, compact, read again, rebuild the key stores."""
    print(machine())
    with opened() as (systems, ours):
        run(systems, ours, keys, batch, batches)


if __name__ == "__main__":
    if sys.argv[1:2] == ["keys"]:
        key_store(int(sys.argv[2]))
    elif sys.argv[1:2] == ["steps"]:
        steps(*map(int, sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:]))
