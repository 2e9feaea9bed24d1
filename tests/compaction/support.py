"""Appends, compactions and readers of one table as processes of their own, and what readers must find.

Every append brings ``ROWS`` rows with ids of its own. A reader keeps how often it sees each row, from the files of its
snapshots: a segment's rows are read from its Parquet file when the segment is seen for the first time (objects never
change). Compactions are those of the Spark driver, but for where the merge runs: in this process instead of a worker.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import multiprocessing
import os
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet

from airflow_provider_segments.core.compaction.locks import in_the_way
from airflow_provider_segments.core.compaction.plan import make_plan
from airflow_provider_segments.core.compaction.settings import CompactionSettings
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import Granularity
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.names import entry_tag
from airflow_provider_segments.core.model.segment import Segment, SegmentRecord, StagedSegment
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.replacement.start import StartedEntry
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import ZooKeeperSettings
from airflow_provider_segments.spark import compact
from airflow_provider_segments.spark.compact import CompactedGroup
from airflow_provider_segments.spark.merging import Merged, merge
from tests.support.sessions import CountingSession
from tests.support.sessions import settings as session_settings
from tests.support.tables import JANUARY_1

FORK = multiprocessing.get_context("fork")
ROWS = 20
"""Rows of one append."""
SPAN = 1 << 17
"""Row ids of one appending process."""
HOUR_MS = 3_600_000
MOST_SETTLING = 60


def table_config(
    name: str = "t",
    granularity: str = "DAY",
    target_rows: int = 1000,
    **segments: str,
) -> TableConfig:
    """A table whose segments have places, given out under locks."""
    return TableConfig.from_json(
        {
            "tableName": name,
            "segmentsConfig": {"timeColumnName": "at", **segments},
            "segmentBuildConfig": {
                "segmentLocking": True,
                "timeFormat": "EPOCH_MILLIS",
                "segmentGranularity": granularity,
                "targetRowsPerSegment": target_rows,
            },
        }
    )


def versioned_table(store: SegmentStore, name: str = "t", **how: Any) -> Table:
    """Make it."""
    store.apply_config(table_config(name, **how))
    return store.table(name)


def write_rows(table: Table, ticket: StageTicket, ids: Sequence[int], at_ms: int) -> list[StagedSegment]:
    """One real Parquet file with those rows, in the time chunk of ``at_ms``, as the attempt that holds ``ticket``."""
    name = f"{table.name}_{entry_tag(ticket.entry_id)}"
    file = f"{name}.{ticket.stager}.{ticket.attempt}.parquet"
    times = [at_ms + number % 1000 for number in ids]
    path = Path(tempfile.gettempdir()) / f"segments-{os.getpid()}-{threading.get_ident()}.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"at": times, "v": list(ids)}), path)
    owner = owner_metadata(table.name, name, ticket.generation)
    size = table.storage.put_file(path, ticket.prefix + file, owner=owner).bytes
    path.unlink()
    chunk = table.config().granularity.chunk_name(at_ms)
    return [StagedSegment(chunk, SegmentRecord(name, file, len(ids), size, 0, min(times), max(times)))]


def append(table: Table, ids: Sequence[int], at_ms: int = JANUARY_1, *, end: bool = True) -> str:
    """One append; returns its entry id."""
    entry_id = table.start().entry_id
    ticket = table.open_stage(entry_id)
    table.stage(ticket, write_rows(table, ticket, ids, at_ms))
    if end:
        table.end(entry_id)
    return entry_id


class InProcess(compact._Run):
    """The Spark driver's compaction of a group, with its merge in this process."""

    __slots__ = ()

    def _merge(self, group: Any, started: StartedEntry, ticket: StageTicket) -> Merged:
        return merge(self._job(group, started, ticket), 0)


def settings_of(table: Table, **changes: Any) -> CompactionSettings:
    """The table's own settings, with changes."""
    if isinstance(changes.get("granularity"), str):
        changes["granularity"] = Granularity[changes["granularity"]]
    return CompactionSettings.of(table.config(), **changes)


def compact_once(
    table: Table,
    identity: str,
    settings: CompactionSettings | None = None,
    run: type[InProcess] = InProcess,
) -> list[CompactedGroup]:
    """What :func:`.spark.compact.compact_table` does, without Spark. Every group that was taken on."""
    config = table.config()
    settings = settings or CompactionSettings.of(config)
    with table.snapshot(owner=identity) as taken:
        locks = table.locks.locks()
        others = in_the_way(locks, identity, table.store.clock.now_ms())
        assert taken.lineage is not None
        plan = make_plan(taken.segments, settings, locked=others, overwrites=taken.lineage.unsettled_overwrites)
        wanted, held = compact.replace_config(config, settings), compact.held_by(locks, identity)
        at_work = run(None, table, wanted, settings, identity, 1 << 30, None, held)  # type: ignore[arg-type]
        outcomes = [compact._planned(group) for group in plan.groups]
        for group, outcome in zip(plan.groups, outcomes, strict=True):
            at_work.compact(group, outcome, None)
    return outcomes


def rows_of(snapshot: Snapshot, segment: Segment) -> numpy.ndarray[Any, Any]:
    """Ids of the rows that readers see of a segment, from its file."""
    with snapshot.storage.open(segment.key) as file:
        found = pyarrow.parquet.read_table(pyarrow.PythonFile(file), columns=["at", "v"], use_threads=False)
    ids, times = found.column("v").to_numpy(), found.column("at").to_numpy()
    assert len(ids) == segment.rows, f"{segment.name} has {len(ids)} rows, not {segment.rows}"
    if segment.visible_in:
        shown = [(times >= part.start_ms) & (times < part.end_ms) for part in segment.visible_in]
        ids = ids[numpy.logical_or.reduce(shown)]
    return ids


def rows_in(table: Table) -> list[int]:
    """All rows that a reader finds, in order; every file is read."""
    with table.snapshot(owner="rows") as snapshot:
        found = [rows_of(snapshot, segment) for segment in snapshot.segments]
    return sorted(int(one) for ids in found for one in ids)


class HookedSession(CountingSession):
    """Calls a function once, right before or right after its n-th write."""

    _at = 0
    _when = "before"
    _call: Callable[[], None] = staticmethod(lambda: None)

    def hook(self, at: int, when: str, call: Callable[[], None]) -> None:
        """Count from here on, and call ``call`` at that write."""
        self.writes, self._at, self._when, self._call = 0, at, when, call

    def before(self) -> None:
        self._at_write("before")

    def after(self) -> None:
        self._at_write("after")

    def _at_write(self, when: str) -> None:
        if self.writes == self._at and self._when == when:
            self._at = -1
            self._call()


class Board:
    """What the processes tell each other: rows whose append has begun, those whose end has returned, and when to
    stop."""

    def __init__(self, writers: int) -> None:
        self.writers = writers
        self.begun = FORK.Array(ctypes.c_int64, writers)
        self.ended = FORK.Array(ctypes.c_int64, writers)
        self.compacting = FORK.Value(ctypes.c_int64, 0)
        self.published = FORK.Value(ctypes.c_int64, 0)
        self.late = FORK.Value(ctypes.c_int64, 0)
        self.snapshots = FORK.Value(ctypes.c_int64, 0)
        self.stop = FORK.Event()
        self.readers_stop = FORK.Event()
        self.start_compacting = FORK.Event()

    @property
    def appended(self) -> int:
        """Rows whose append is done."""
        return sum(self.ended[:])

    def add(self, counter: Any, number: int) -> None:
        """Count."""
        with counter.get_lock():
            counter.value += number

    @contextmanager
    def at_compaction(self) -> Iterator[None]:
        """While a compaction is under way."""
        self.add(self.compacting, 1)
        try:
            yield
        finally:
            self.add(self.compacting, -1)


class Tally:
    """How often a reader sees each row, kept up to date from one snapshot to the next."""

    def __init__(self, writers: int) -> None:
        self.counts = numpy.zeros(writers * SPAN, dtype=numpy.int16)
        self.rows: dict[tuple[str, Any], numpy.ndarray[Any, Any]] = {}
        self.shown: set[tuple[str, Any]] = set()
        self.files = 0

    def take(self, snapshot: Snapshot) -> None:
        """Count what this snapshot shows."""
        now = {(one.name, one.visible_in): one for one in snapshot.segments}
        assert len(now) == len(snapshot.segments), "a segment is in the snapshot twice"
        for key in self.shown - now.keys():
            numpy.subtract.at(self.counts, self.rows[key], 1)
        for key in now.keys() - self.shown:
            if key not in self.rows:
                self.rows[key] = rows_of(snapshot, now[key])
                self.files += 1
            numpy.add.at(self.counts, self.rows[key], 1)
        self.shown = set(now)

    def check(self, ended: Sequence[int], begun: Sequence[int]) -> None:
        """Every row that had been appended before is there once; of the others each append is there whole, once, or
        not at all."""
        for writer, counts in enumerate(self.counts.reshape(-1, SPAN)):
            done, tried = ended[writer], begun[writer]
            wrong = numpy.flatnonzero(counts[:done] != 1)
            assert not len(wrong), f"writer {writer}: row {wrong[0]} of {done} is seen {counts[wrong[0]]} times"
            rest = counts[done:tried].reshape(-1, ROWS)
            assert not len(rest) or int(rest.max()) <= 1, f"writer {writer}: a row that is under way is seen twice"
            assert (rest == rest[:, :1]).all(), f"writer {writer}: a part of an append is seen"
            assert not counts[tried:].any(), f"writer {writer}: rows that nobody appended are seen"


@dataclass
class Appended:
    """One process's appends: seconds of each, and whether a compaction was under way at its begin or its end."""

    times: list[tuple[float, bool]]


@dataclass
class Compacted:
    """One process's compactions: what came of each group, how many rows were appended during it, and why groups were
    left alone."""

    outcomes: list[CompactedGroup]
    late_rows: list[int]
    left_alone: list[str] = field(default_factory=list)


@dataclass
class Read:
    """One reader's snapshots, the seconds of each (without its check), and the files it has read."""

    times: list[float]
    files: int
    most_segments: int


def keep_appending(
    store: SegmentStore, board: Board, writer: int, name: str, chunks: Sequence[int], pause_s: float = 0.0
) -> Appended:
    """Append to the chunks that begin at ``chunks``, one after the other, until the board says stop: so old ones get
    late data all the time."""
    table = store.table(name)
    times: list[tuple[float, bool]] = []
    for number in itertools.count():
        if board.stop.is_set() or (number + 1) * ROWS > SPAN:
            return Appended(times)
        first = writer * SPAN + number * ROWS
        busy = board.compacting.value > 0
        board.begun[writer] = (number + 1) * ROWS
        began = time.perf_counter()
        append(table, range(first, first + ROWS), chunks[(number * 7 + writer * 5) % len(chunks)])
        times.append((time.perf_counter() - began, busy or board.compacting.value > 0))
        board.ended[writer] = (number + 1) * ROWS
        board.stop.wait(pause_s)
    raise AssertionError


def keep_reasons(reasons: list[str]) -> None:
    """Write down what compactions of this process log of groups that they leave alone. Failures are looked at in the
    outcomes."""

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "left alone" in record.getMessage():
                reasons.append(record.getMessage())

    logger = logging.getLogger(compact.__name__)
    logger.handlers, logger.propagate = [Keeper()], False
    logger.setLevel(logging.INFO)


def keep_compacting(store: SegmentStore, board: Board, worker: int, name: str, changes: dict[str, Any]) -> Compacted:
    """Compact whatever needs it, again and again, until the board says stop."""
    table = store.table(name)
    settings = settings_of(table, **changes)
    found = Compacted([], [])
    keep_reasons(found.left_alone)
    board.start_compacting.wait(600)

    class Watched(InProcess):
        __slots__ = ()

        def _merge(self, group: Any, started: StartedEntry, ticket: StageTicket) -> Merged:
            before = board.appended
            with board.at_compaction():
                merged = super()._merge(group, started, ticket)
            found.late_rows.append(board.appended - before)
            board.add(board.late, found.late_rows[-1] > 0)
            return merged

    for number in itertools.count():
        if board.stop.is_set():
            return found
        outcomes = compact_once(table, f"compactor {worker}/{number}", settings, Watched)
        found.outcomes += outcomes
        published = sum(1 for one in outcomes if not one.error and not one.left_alone)
        board.add(board.published, published)
        if not published:
            board.stop.wait(0.02)
    raise AssertionError


def keep_reading(store: SegmentStore, board: Board, name: str) -> Read:
    """Take snapshots under a lease, and check after each that every appended row is seen exactly once."""
    table, tally = store.table(name), Tally(board.writers)
    times: list[float] = []
    most = 0
    last = False
    while not last:
        last = board.readers_stop.is_set()  # so one more after everybody has stopped
        ended = board.ended[:]
        began = time.perf_counter()
        with table.snapshot(owner=f"reader {os.getpid()}") as snapshot:
            times.append(time.perf_counter() - began)
            most = max(most, len(snapshot))
            tally.take(snapshot)
        tally.check(ended, board.begun[:])
        board.add(board.snapshots, 1)
    return Read(times, tally.files, most)


def keep_cleaning(store: SegmentStore, board: Board, name: str) -> int:
    """Retention and deletion, until the board says stop; how many objects went."""
    table = store.table(name)
    deleted = 0
    while not board.stop.is_set():
        table.retain()
        deleted += store.deleter().drain(max_seconds=5).total("deleted")
        board.stop.wait(0.2)
    return deleted


class Crew:
    """Processes, each with a store of its own; their exceptions fail the test."""

    def __init__(self, hosts: str, store: SegmentStore) -> None:
        self.settings = session_settings(hosts)
        self.store = store
        self.processes: list[tuple[Any, Any]] = []

    def start(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Start one; returns its process."""
        mine, theirs = FORK.Pipe(duplex=False)
        where = (self.settings, self.store.paths.cluster, self.store.storage.uri)
        process = FORK.Process(target=_member, args=(*where, theirs, work, arguments), daemon=True)
        process.start()
        theirs.close()
        self.processes.append((process, mine))
        return process

    def failed(self) -> bool:
        """Whether one of them has ended already."""
        return any(not process.is_alive() for process, _ in self.processes)

    def join(self) -> list[Any]:
        """What each returned, in the order of their starts."""
        answers = []
        for process, answer in self.processes:
            answers.append(answer.recv() if answer.poll(120) else "no answer")
            process.join(10)
        self.processes = []
        if problems := [one for one in answers if isinstance(one, str)]:
            raise AssertionError("\n".join(problems))
        return answers

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _answer in self.processes:
            process.kill()
            process.join()


def _member(
    how: ZooKeeperSettings, cluster: str, uri: str, answer: Any, work: Callable[..., Any], arguments: Any
) -> None:
    try:
        with SegmentStore.connect(zookeeper=how, cluster=cluster, storage_uri=uri) as store:
            answer.send(work(store, *arguments))
    except BaseException as error:
        answer.send(f"{error!r}\n{traceback.format_exc()}")


def warm_up(store: SegmentStore) -> None:
    """Import and start what the processes need, once, before they are forked."""
    table = versioned_table(store, "warm")
    append(table, range(ROWS))
    append(table, range(ROWS, 2 * ROWS))
    assert [one.error for one in compact_once(table, "warm")] == [""]
    assert len(rows_in(table)) == 2 * ROWS


def ahead(store: SegmentStore, milliseconds: int) -> SegmentStore:
    """The same store on a clock that is that far ahead."""
    now = store.clock.now_ms
    return store.replace(clock=replace(store.clock, now_ms=lambda: now() + milliseconds))


def settle(store: SegmentStore, name: str, **how: Any) -> int:
    """Retention with periods of 0s and deletion, two days and more later, until nothing is left to do. Returns how many
    objects were deleted; then storage holds exactly what readers see."""
    periods = {"replacedSegmentsRetentionPeriod": "0s", "lineageEntryCleanupRetentionPeriod": "0s"}
    store.apply_config(table_config(name, **how, **periods))
    deleted = 0
    for number in range(MOST_SETTLING):
        later = ahead(store, (48 + number) * HOUR_MS)
        later.table(name).retain()
        deleted += later.deleter().drain().total("deleted")
        backlog = later.queue.backlog()
        if not store.table(name).lineage().entries and not backlog.in_flight and not backlog.sweeps:
            break
    else:
        raise AssertionError(f"not settled after {MOST_SETTLING} passes: {store.table(name).lineage().entries}")
    stored = {one.key for one in store.storage.list(f"{name}/")}
    assert stored == set(store.table(name).snapshot().files)
    return deleted
