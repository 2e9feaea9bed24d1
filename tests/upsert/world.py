"""A table on a real ZooKeeper, a source, and an oracle that knows what every version must show."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.upsert.record import NO_CUTOFF, UpsertRecord, require_record, waiting_bulks
from airflow_provider_segments.core.upsert.view import is_valid
from airflow_provider_segments.exceptions import RefusedError, SourceDataError
from airflow_provider_segments.upsert.columns import VALID_FROM, VALID_UNTIL
from airflow_provider_segments.upsert.compaction import UpsertCompactor
from airflow_provider_segments.upsert.events import BULK_PARTITION
from airflow_provider_segments.upsert.expiry import expire
from airflow_provider_segments.upsert.ingest import IngestedBatch, UpsertIngestor
from airflow_provider_segments.upsert.reading import count_rows, read_rows
from airflow_provider_segments.upsert.rollback import roll_back
from tests.support.sessions import CountingSession
from tests.support.tables import HandClock, object_path, on_clock, on_session

KEYS = "abcde"
PARTITIONS = 2
_NAMES = itertools.count(1)


class Event(NamedTuple):
    """An event of the source, by the order in which the newest row of a key is told."""

    time: int
    partition: int
    offset: int
    key: str
    value: str
    deleted: bool


Contents = Callable[[UpsertRecord], frozenset[Event]]


class Killed(BaseException):
    """The process ends here: nothing is caught, nothing is cleaned up."""


class InterruptedSession(CountingSession):
    """Calls ``interrupt`` at the ``at``-th write from now: before it is sent, or, with ``landed``, after it was
    answered."""

    at = 0
    landed = False
    interrupt: Callable[[], None] = staticmethod(lambda: None)

    def arm(self, at: int, *, landed: bool, interrupt: Callable[[], None]) -> None:
        self.writes, self.at, self.landed = 0, at, landed
        self.interrupt = interrupt  # type: ignore[method-assign]

    def before(self) -> None:
        self._strike(landed=False)

    def after(self) -> None:
        self._strike(landed=True)

    def _strike(self, *, landed: bool) -> None:
        if self.at and self.writes == self.at and self.landed is landed:
            self.at = 0
            self.interrupt()


def upsert_config(name: str = "t", **upsert: Any) -> TableConfig:
    """The config of a small upsert table."""
    section = {"mode": "FULL", "comparisonColumns": ["ts"], "deleteRecordColumn": "deleted", "keyPartitions": 2}
    return TableConfig.from_json(
        {
            "tableName": name,
            "schema": {"primaryKeyColumns": ["k"]},
            "upsertConfig": {**section, **upsert},
            "segmentsConfig": {"replacedSegmentsRetentionPeriod": "1h", "lineageEntryCleanupRetentionPeriod": "1h"},
        }
    )


def to_arrow(events: Iterable[Event]) -> pyarrow.Table:
    """Events as ingestion takes them."""
    rows = list(events)
    return pyarrow.table(
        {
            "k": pyarrow.array([one.key for one in rows], pyarrow.string()),
            "ts": pyarrow.array([one.time for one in rows], pyarrow.int64()),
            "v": pyarrow.array([one.value for one in rows], pyarrow.string()),
            "deleted": pyarrow.array([one.deleted for one in rows], pyarrow.bool_()),
            "$partition": pyarrow.array([one.partition for one in rows], pyarrow.int32()),
            "$offset": pyarrow.array([one.offset for one in rows], pyarrow.int64()),
        }
    )


def stage_bulk(table: Table, entry_id: str, rows: pyarrow.Table) -> None:
    """Stage ``rows`` as an ordinary push does, that knows nothing of upsert."""
    ticket = table.open_stage(entry_id)
    file = f"{entry_id}.{ticket.attempt}.parquet"
    path = object_path(table, ticket.prefix + file)
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(rows, path)
    record = SegmentRecord(f"bulk_{entry_id}", file, rows.num_rows, path.stat().st_size, 7)
    table.stage(ticket, [StagedSegment("ALL", record)])


def newest(events: Iterable[Event], cutoff: int = NO_CUTOFF) -> dict[str, str]:
    """What readers see of ``events``: of each key the value of the greatest, unless that is a delete record, or older
    than the retention."""
    best: dict[str, Event] = {}
    for one in events:
        if one.key not in best or one[:3] > best[one.key][:3]:
            best[one.key] = one
    return {key: one.value for key, one in best.items() if not one.deleted and one.time >= cutoff}


@dataclass
class World:
    """``contents`` has the events that each version must have taken into account. ``made`` counts steps by kind,
    ``checks`` comparisons of a table at a mark."""

    store: SegmentStore
    folder: Path
    random: random.Random
    config: dict[str, Any] = field(default_factory=dict)
    contents: dict[int, frozenset[Event]] = field(default_factory=lambda: {0: frozenset()})
    made: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    pending: list[Contents] = field(default_factory=list)
    positions: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    cutoffs: dict[int, int] = field(default_factory=lambda: {0: NO_CUTOFF})
    checks: int = 0
    delete_share: float = 0.15

    def __post_init__(self) -> None:
        self.hand = HandClock()
        self.clean = on_clock(self.store, self.hand.clock())
        name = f"t{next(_NAMES)}"
        self.clean.apply_config(upsert_config(name, **self.config))
        self.table: Table = self.clean.table(name)
        self.session = InterruptedSession.connect(self.store.session.settings)
        self.work: Table = on_session(self.clean, self.session).table(name)
        self.source: list[list[Event]] = [[] for _ in range(PARTITIONS)]
        self.bulks: dict[str, list[Event]] = {}
        self.values = itertools.count(1)
        self.caches = itertools.count(1)
        self.ingestors: dict[str, UpsertIngestor] = {}
        self.restart()

    def close(self) -> None:
        self.session.close()

    # --- the table

    def record(self) -> UpsertRecord:
        return require_record(self.table.lineage())

    def ingestor(self, name: str = "both") -> UpsertIngestor:
        """One ingestor a set of source partitions, with a cache of its own."""
        if name not in self.ingestors:
            self.ingestors[name] = UpsertIngestor(self.work, name=name, cache=self.cache)
        return self.ingestors[name]

    def restart(self) -> None:
        """A new process: nothing in memory, the cache on the disk perhaps lost or damaged."""
        fate = self.random.choice(["kept", "kept", "lost", "damaged"])
        if fate == "lost" or not hasattr(self, "cache"):
            self.cache = self.folder / f"cache{next(self.caches)}"
        if fate == "damaged":
            self._damage()
        self.ingestors = {}
        for name in ("both", "0", "1"):
            self.ingestor(name).take_over()

    def _damage(self) -> None:
        for path in sorted(self.cache.rglob("*.run")):
            if self.random.random() < 0.5:
                payload = bytearray(path.read_bytes())
                at = self.random.randrange(len(payload))
                payload[at] ^= 0xFF
                damaged = path.with_suffix(".new")
                damaged.write_bytes(payload)  # another file: the old one may be mapped
                damaged.replace(path)

    # --- steps

    def produce(self, count: int) -> None:
        """Events in the source, some late, some tied, some delete records."""
        for _ in range(count):
            part = self.random.randrange(PARTITIONS)
            number = len(self.source[part])
            time = self.random.randint(1, 12) + number // 4
            key, deleted = self.random.choice(KEYS), self.random.random() < self.delete_share
            self.source[part].append(Event(time, part, number, key, f"v{next(self.values)}", deleted))

    def unread(self, parts: Sequence[int]) -> list[Event]:
        """The next events of some source partitions, as the table's positions say."""
        positions = self.record().positions
        found: list[Event] = []
        for part in parts:
            at = positions.get(f"/{part}", 0)
            found += self.source[part][at : at + self.random.randint(1, 4)]
        self.random.shuffle(found)
        return found

    def ingest(self, name: str = "both", events: Sequence[Event] | None = None) -> None:
        parts = range(PARTITIONS) if name == "both" else [int(name)]
        self.produce(self.random.randint(0, 4))
        batch = self.unread(parts) if events is None else list(events)
        self._publish(batch, lambda: self.ingestor(name).ingest(to_arrow(batch) if batch else None))

    def replay(self) -> None:
        read = [
            one for part, rows in enumerate(self.source) for one in rows[: self.record().positions.get(f"/{part}", 0)]
        ]
        if read:
            self.ingest(events=self.random.choices(read, k=self.random.randint(1, 6)))

    def bulk(self) -> None:
        """An ordinary push, which waits."""
        keys = self.random.sample(KEYS, self.random.randint(1, 3))
        started = self.work.start(identity=self.clean.clock.new_id())
        rows = [
            Event(self.random.randint(1, 15), BULK_PARTITION, started.born, key, f"b{next(self.values)}", False)
            for key in keys
        ]
        self.bulks[started.entry_id] = rows
        stage_bulk(self.work, started.entry_id, to_arrow(rows).drop_columns(["$partition", "$offset"]))
        self.work.end(started.entry_id)

    def revert_bulk(self) -> None:
        """The ordinary revert: of a push that waits it works, of one that was resolved, perhaps meanwhile, it is
        refused."""
        lineage = self.table.lineage()
        waiting = waiting_bulks(lineage, self.record())
        known = [entry.entry_id for entry in lineage.in_state(EntryState.COMPLETED) if entry.entry_id in self.bulks]
        for entry_id in known[:1]:
            try:
                self.work.revert(entry_id)
            except RefusedError as refused:
                assert refused.rule == "upsert-published"
                assert entry_id not in waiting_bulks(self.table.lineage(), self.record())
            else:
                assert entry_id in waiting

    def compact(self) -> None:
        record = self.record()
        floors = [one for one in range(record.floor, record.clock + 1) if not record.is_void(one)]
        UpsertCompactor(self.work).run(floor=self.random.choice(floors[: len(floors) // 4 + 1]))

    def roll_back(self) -> None:
        before = self.record()
        marks = [one for one in range(before.floor, before.clock) if not before.is_void(one)]
        if not marks:
            return
        to = self.random.choice(marks)
        try:
            self._noted(lambda: roll_back(self.work.context, to), lambda _: self.contents[to])
        except RefusedError as refused:
            assert refused.rule == "too-old"
            return
        new = [one.version for one in self.record().published if one.is_rollback and one.version > before.clock]
        for version in new:  # later ones have come in between
            assert self.positions[version] == self.positions[to], "what was taken back never comes again"
            assert self.cutoffs[version] == self.cutoffs[to], "rows that are there again are older than the cutoff"
        assert len(new) == 1
        for part in range(PARTITIONS):  # after a rollback the source may send something else
            del self.source[part][self.record().positions.get(f"/{part}", 0) :]

    def expire(self) -> None:
        cutoff = self.record().cutoff
        value = self.random.randint(1, 4) if cutoff == NO_CUTOFF else cutoff + 1
        self._noted(lambda: expire(self.work, value), lambda record: self.contents[record.clock - 1])

    def clean_up(self) -> None:
        """Entries leave the lineage, and what they replaced leaves the registry."""
        self.hand.advance(self.random.choice([1_000, 4_000_000]))
        self.work.cleanup()

    def _publish(self, batch: Sequence[Event], act: Callable[[], IngestedBatch]) -> None:
        def after(record: UpsertRecord) -> frozenset[Event]:
            resolved = [one for entry_id in record.published[-1].bulks for one in self.bulks[entry_id]]
            taken = {one for one in (*batch, *resolved) if one.time >= record.cutoff}
            return self.contents[record.clock - 1] | taken

        self._noted(act, after)

    def _noted(self, act: Callable[[], object], contents: Contents) -> None:
        self.pending.append(contents)
        try:
            act()
        finally:
            self.pending.pop()
            self._note(contents)

    def note_outer(self) -> None:
        """Before another step comes in between: the one that it interrupts may have landed already."""
        if self.pending:
            self._note(self.pending[-1])

    def _note(self, contents: Contents) -> None:
        """Whatever became of the call: if there is a new version, it is that of the call."""
        record = self.record()
        if record.clock not in self.contents:
            assert record.clock == max(self.contents) + 1, "a version that nobody made"
            self.contents[record.clock] = contents(record)
            self.positions[record.clock] = dict(record.positions)
            self.cutoffs[record.clock] = record.cutoff

    # --- checks

    def check(self) -> None:
        """Every mark that can be read shows what it must: all of them from one look at validity, one by its own."""
        record = self.record()
        marks = [one for one in range(record.floor, record.clock + 1) if not record.is_void(one)]
        rows = self._validity()
        for mark in marks:
            shown = [(row["k"], row["v"]) for row in rows if is_valid(row[VALID_FROM], row[VALID_UNTIL], mark)]
            self._compare(shown, mark, "by validity")
        mark = self.random.choice(marks)
        try:
            read = read_rows(self.table, mark=mark).to_pylist()
        except SourceDataError:
            read = []  # nothing was written yet
        self._compare([(row["k"], row["v"]) for row in read], mark, "by a snapshot")
        assert count_rows(self.table, mark=mark) == len(read)

    def _validity(self) -> list[dict[str, Any]]:
        try:
            rows = read_rows(self.table, with_validity=True).to_pylist()
        except SourceDataError:
            return []
        return [row for row in rows if not row.get("deleted")]

    def _compare(self, shown: Sequence[tuple[str, str]], mark: int, how: str) -> None:
        assert len({key for key, _ in shown}) == len(shown), f"two rows of a key at mark {mark}, {how}: {shown}"
        wanted = newest(self.contents[mark], self.cutoffs[mark])
        assert dict(shown) == wanted, f"at mark {mark} of {self.record().clock}, {how}: {wanted}; {self.record()}"
        self.checks += 1
