"""A model of one upsert table: ingestors, ordinary pushes, compaction, rollback and clean-up, and everybody's order.

What decides is the project's own: the resolver, the validity of rows, the view at a mark, the upsert record with its
switches, the rules of revert, what a rollback makes of a record and which ends a compaction carries. The model brings
only the world around them: which objects there are, and in which order an actor reads and writes. Each of an actor's
steps is one atomic operation, as on ZooKeeper; a kill is an actor that takes no further step.

After every step each mark that can be read is compared with the events that its version must have taken into account,
and those with the source positions that the record has for it.

Left to other models and tests: a clean-up waits for readers' leases, zombies cannot stage (``lineage_model``); the
fence of the owner's lock, which refuses what the state of the entry refuses here too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.hiding import hidden_names, is_settled
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.shard import Shard, ShardName
from airflow_provider_segments.core.replacement.rules import Force, StartRequest, check_revert, decide_start
from airflow_provider_segments.core.upsert.record import (
    NO_CUTOFF,
    Head,
    Movement,
    Publication,
    Switch,
    UpsertRecord,
    Waiting,
    require_record,
    store_record,
    waiting_bulks,
    without_waiting,
)
from airflow_provider_segments.core.upsert.view import at_mark
from airflow_provider_segments.exceptions import (
    EndRefusedError,
    EntryNotFoundError,
    RevertRefusedError,
    StartRefusedError,
    UpsertRefusedError,
)
from airflow_provider_segments.upsert import moving, resolve, rollback
from airflow_provider_segments.upsert.events import BULK_PARTITION, DELETE, LOSER, IngestionUpsertEvents
from airflow_provider_segments.upsert.ingest import _RESOLVE_AGAIN
from airflow_provider_segments.upsert.validity import NO_ENDS, RowEnds, ends_by_segment, log_of
from tests.model.explorer import Actor, Become

TABLE = "t"
KEY_PARTITIONS = 2
SOURCES = (0, 1)

ENTRY = "the end looks whether its entry is in progress"
ANNOUNCED = "the record is read after the entry is announced"
RECOGNISE = "nothing is cleaned up when the outcome is unknown"
ONE_SWITCH = "a batch is one transaction"
CACHE_ENTRY = "a cache belongs to the entry of a head"
CACHE_GENERATION = "a cache belongs to the generation of a head"
TOMBSTONES = "a rebuild takes delete records"
ALL_HEADS = "an expiry checks all heads"
KEEP_TOMBSTONES = "a compaction keeps delete records"
FLOOR_FIRST = "the floor is raised before anything is dropped"
VOIDS = "ends that were rolled back are none"
IN_PROGRESS = "a rollback reverts what is in progress"
ONE_READ = "a reader takes lineage and record in one read"
EPOCH = "a stream that was read before a rollback is refused"

Step = Callable[["World"], tuple["World", Any]]
Base = tuple[tuple[str, int | None], ...]
"""The positions that a batch was read at."""
T = TypeVar("T")


class Event(NamedTuple):
    """An event, by the order in which the newest row of a key is told."""

    time: int
    partition: int
    offset: int
    key: int
    value: str
    deleted: bool = False


class Segment(NamedTuple):
    name: str
    entry_id: str
    partition: int
    rows: tuple[Event, ...]


class Log(NamedTuple):
    """An update log; each end is (segment, row, kind, version)."""

    name: str
    entry_id: str
    ends: tuple[tuple[str, int, int, int | None], ...]


class Held(NamedTuple):
    """The newest row of a key, and where it is."""

    event: Event
    segment: str
    row: int


class Cache(NamedTuple):
    """The key store of one key partition that an ingestor has on its disk for one head."""

    owner: str
    partition: int
    head: tuple[str, int]
    holders: tuple[Held, ...]


class World(NamedTuple):
    """``contents`` are the events that each version must show, kept beside the system under test."""

    entries: tuple[LineageEntry, ...] = ()
    upsert: str = ""
    segments: frozenset[Segment] = frozenset()
    logs: frozenset[Log] = frozenset()
    caches: frozenset[Cache] = frozenset()
    contents: tuple[tuple[int, frozenset[Event]], ...] = ((0, frozenset()),)
    bad: str | None = None

    @property
    def lineage(self) -> Lineage:
        return store_text(Lineage(TABLE, {entry.entry_id: entry for entry in self.entries}), self.upsert)

    @property
    def record(self) -> UpsertRecord:
        return require_record(self.lineage)

    def written(self, lineage: Lineage) -> World:
        """The world with another lineage."""
        entries = tuple(sorted(lineage, key=lambda entry: entry.entry_id))
        return self._replace(entries=entries, upsert=lineage.upsert or "")

    def swept(self, entry_ids: Collection[str]) -> World:
        """Without the objects of those entries."""
        return self._replace(
            segments=frozenset(one for one in self.segments if one.entry_id not in entry_ids),
            logs=frozenset(one for one in self.logs if one.entry_id not in entry_ids),
        )

    def noted(self, events: Iterable[Event]) -> World:
        """With the contents of the version that is the newest now."""
        version = self.record.clock
        known = dict(self.contents)
        bad = f"version {version} is given twice" if version in known else self.bad
        return self._replace(contents=(*self.contents, (version, frozenset(events))), bad=bad)


class Staged(NamedTuple):
    """What an ingestor has staged, and what it has relied on."""

    names: tuple[str, ...]
    heads: tuple[tuple[int, Head], ...]
    base: tuple[tuple[str, int | None], ...]
    positions: tuple[tuple[str, int], ...]
    cutoff: int
    bulks: tuple[str, ...]
    events: tuple[Event, ...]


def store_text(lineage: Lineage, text: str) -> Lineage:
    return lineage.with_upsert(text) if text else lineage


def start() -> World:
    """An empty table."""
    return World().written(store_record(Lineage(TABLE), UpsertRecord.new(KEY_PARTITIONS)))


def newest(events: Iterable[Event], cutoff: int) -> dict[int, str]:
    """What readers see: of each key the greatest event, unless it is a delete record or too old."""
    best: dict[int, Event] = {}
    for one in events:
        if one.key not in best or one > best[one.key]:
            best[one.key] = one
    return {key: one.value for key, one in best.items() if not one.deleted and one.time >= cutoff}


def step(label: str, operation: Step) -> Step:
    def labelled(world: World) -> tuple[World, Any]:
        return operation(world)

    labelled.label = label  # type: ignore[attr-defined]
    return labelled


def source(record: UpsertRecord, sources: Sequence[Sequence[Sequence[Event]]], part: int) -> Sequence[Event]:
    """The events of a source partition; after a rollback it may send others."""
    return sources[min(len(record.voids), len(sources) - 1)][part]


class Model:
    """Actors on a table that is fed from ``sources``: of each epoch, of each source partition, its events."""

    def __init__(
        self, sources: Sequence[Sequence[Sequence[Event]]], off: Collection[str] = (), keep_versions: int = 100
    ) -> None:
        self.sources = sources
        self.keep_versions = keep_versions
        self.off = frozenset(off)
        self.checks = 0
        self._memory: dict[Any, Any] = {}

    def _once(self, key: Any, work: Callable[[], T]) -> T:
        if key not in self._memory:
            self._memory[key] = work()
        found: T = self._memory[key]
        return found

    # --- readers

    def violation(self, world: World) -> str | None:
        """What somebody who reads at some mark could see that is wrong."""
        if world.bad:
            return world.bad
        record = world.record
        contents = dict(world.contents)
        for mark in range(record.clock + 1):
            try:
                record.check_mark(mark, TABLE)
            except UpsertRefusedError:
                continue
            self.checks += 1
            cutoff = record.cutoff_at(mark) if mark >= record.floor else NO_CUTOFF
            if problem := self._wrong(world, world.lineage, record, contents[mark], mark, cutoff):
                return problem
            if mark >= record.floor and (problem := self._misplaced(record, contents[mark], mark)):
                return problem
        return None

    def _wrong(
        self,
        world: World,
        lineage: Lineage,
        record: UpsertRecord,
        contents: frozenset[Event],
        mark: int,
        cutoff: int = NO_CUTOFF,
    ) -> str | None:
        rows = self.shown(world, lineage, record, mark)
        keys = [event.key for event, _, _ in rows]
        seen = {event.key: event.value for event, _, _ in rows if not event.deleted}
        if len(set(keys)) != len(keys):
            return f"two rows of a key at mark {mark}: {sorted(event.value for event, _, _ in rows)}"
        wanted = newest(contents, cutoff)
        return None if seen == wanted else f"at mark {mark}: {seen} instead of {wanted}"

    def _misplaced(self, record: UpsertRecord, contents: frozenset[Event], mark: int) -> str | None:
        """A version shows exactly what the source had sent up to its positions."""
        positions = record.positions_at(mark)
        for part in SOURCES:
            offsets = sorted({one.offset for one in contents if one.partition == part})
            if offsets != list(range(positions.get(f"/{part}", 0))):
                return f"mark {mark} shows offsets {offsets} of /{part}, and its positions are {positions}"
        return None

    def shown(self, world: World, lineage: Lineage, record: UpsertRecord, mark: int) -> list[Held]:
        """The rows that are valid at ``mark``, delete records included."""
        taken = at_mark(lineage, record, self._blocks(world, lineage), mark)
        segments = {one.name: one for one in world.segments}
        ends = self._ends(world, record, taken.update_logs)
        found: list[Held] = []
        for _, records in taken.segments:
            for one in records:
                dead = set(ends.get(one.name, NO_ENDS).dead_rows(mark).tolist())
                rows = enumerate(segments[one.name].rows)
                found += [Held(event, one.name, row) for row, event in rows if row not in dead]
        return found

    def _blocks(self, world: World, lineage: Lineage) -> Any:
        """What is registered and not hidden, as a snapshot has it."""
        hidden = hidden_names(lineage)
        visible = [
            one
            for one in sorted((*world.segments, *world.logs))
            if is_settled(lineage, one.entry_id) and one.name not in hidden
        ]
        return tuple((_shard(one.entry_id), (_stored(one.name, isinstance(one, Log)),)) for one in visible)

    def _ends(self, world: World, record: UpsertRecord, blocks: Any) -> Mapping[str, RowEnds]:
        versions = record.versions()
        logs = {one.name: one for one in world.logs}
        read = tuple((versions.get(shard.name.entry_id, 0), logs[one.name]) for shard, ones in blocks for one in ones)
        voids = () if VOIDS in self.off else record.voids
        return self._once(("ends", read, voids), lambda: self._read_logs(read, record))

    def _read_logs(self, read: Iterable[tuple[int, Log]], record: UpsertRecord) -> Mapping[str, RowEnds]:
        logs = ((version, _arrow(log.ends)) for version, log in read)
        return ends_by_segment(logs) if VOIDS in self.off else ends_by_segment(logs, record.voids)

    def reader(self) -> Actor:
        """Reads the table once. Without its guard, the record first and the lineage later."""

        def run() -> Any:
            if ONE_READ in self.off:
                text = yield step("read the record", lambda world: (world, world.upsert))
                yield step("read the lineage", lambda world: self._read_late(world, text))

        return run

    def _read_late(self, world: World, text: str) -> tuple[World, None]:
        lineage = store_text(world.lineage, text)
        record = require_record(lineage)
        problem = self._wrong(world, lineage, record, dict(world.contents)[record.clock], record.clock)
        return world._replace(bad=problem), None

    # --- ingestion

    def ingestor(
        self, name: str, batches: int, *, parts: Sequence[int] = SOURCES, loses_reply: bool = False, size: int = 1
    ) -> Actor:
        """Ingests batches that it reads at the table's positions; first it reverts what its name has in progress."""

        def run(number: int = 0) -> Any:
            if number == batches:
                return
            if number == 0:
                yield self._take_over(name[0])
            entry_id = f"{name}{number}"
            staged, outcome = None, ""
            batch, base = yield step(
                f"read {size} of {list(parts)}", lambda world: (world, self._read(world, parts, size))
            )
            if ANNOUNCED in self.off:
                staged = yield self._resolve_and_stage(name, entry_id, batch, base, 0)
            yield _announce(entry_id)
            for attempt in range(1, 3):
                staged = staged or (yield self._resolve_and_stage(name, entry_id, batch, base, attempt))
                if staged is None:
                    break
                outcome = yield self._publish(entry_id, staged, loses_reply=loses_reply)
                if outcome == "unknown" and RECOGNISE in self.off:
                    yield step(f"sweep {entry_id}", lambda world: (world.swept([entry_id]), None))
                if outcome not in _RESOLVE_AGAIN:
                    break
                staged = None
            if outcome not in ("published", "unknown"):
                yield _abort(entry_id)
            yield Become(number + 1)

        return run

    def stream(self, name: str, batches: int, *, size: int = 1) -> Actor:
        """Ingests what Spark sends: batches that go on after its own checkpoint, whatever the table's positions are."""

        def run(number: int = 0, rollbacks: int | None = None, read: int = 0) -> Any:
            if number == batches:
                return
            if rollbacks is None:
                rollbacks = yield step("begin a stream", lambda world: (world, len(world.record.voids)))
            entry_id = f"{name}{number}"
            batch = yield step(f"read {size} at {read}", lambda world: (world, self._sent(world, read, size)))
            if not batch:
                return
            yield _announce(entry_id)
            staged = yield self._resolve_and_stage(name, entry_id, batch, None, 1)
            outcome = "reverted"
            if staged is not None:
                outcome = yield self._publish(entry_id, staged, rollbacks=None if EPOCH in self.off else rollbacks)
            if outcome != "published":
                yield _abort(entry_id)
                yield Become(number + 1, rollbacks, read)  # Spark sends the batch again
            else:
                yield Become(number + 1, rollbacks, read + len(batch))

        return run

    def _sent(self, world: World, read: int, size: int) -> tuple[Event, ...]:
        return tuple(source(world.record, self.sources, 0)[read : read + size])

    def _read(self, world: World, parts: Sequence[int], size: int) -> tuple[tuple[Event, ...], Base]:
        positions = world.record.positions
        found: list[Event] = []
        for part in parts:
            at = positions.get(f"/{part}", 0)
            found += source(world.record, self.sources, part)[at : at + size]
        return tuple(found), tuple((f"/{part}", positions.get(f"/{part}")) for part in parts)

    def _take_over(self, letters: str) -> Step:
        def operation(world: World) -> tuple[World, None]:
            left = [one.entry_id for one in world.lineage.in_state(EntryState.IN_PROGRESS)]
            return _reverted(world, [entry_id for entry_id in left if entry_id[0] in letters]), None

        return step("revert what is in progress", operation)

    def _resolve_and_stage(
        self, name: str, entry_id: str, batch: tuple[Event, ...], base: Base | None, attempt: int
    ) -> Step:
        def operation(world: World) -> tuple[World, Staged | None]:
            entry = world.lineage.get(entry_id)
            if attempt and (entry is None or entry.state is not EntryState.IN_PROGRESS) and ENTRY not in self.off:
                return world, None
            return self._staged(world.swept([entry_id]), name, entry_id, batch, base, attempt)

        return step(f"resolve {entry_id} and stage", operation)

    def _staged(
        self,
        world: World,
        name: str,
        entry_id: str,
        batch: tuple[Event, ...],
        base: Base | None,
        attempt: int,
    ) -> tuple[World, Staged]:
        lineage, record = world.lineage, world.record
        bulks = tuple(waiting_bulks(lineage, record))
        own = [Held(event, "", row) for row, event in enumerate(batch) if event.time >= record.cutoff]
        waiting = [one for one in world.segments if one.entry_id in bulks]
        everything = [Held(event, one.name, row) for one in sorted(waiting) for row, event in enumerate(one.rows)]
        pushed = [one for one in everything if one.event.time >= record.cutoff]
        segments: list[Segment] = []
        ends: list[tuple[str, int, int, int | None]] = [
            (one.segment, one.row, LOSER, None) for one in everything if one not in pushed
        ]
        caches = set(world.caches)
        partitions = sorted({one.event.key % KEY_PARTITIONS for one in (*own, *pushed)})
        for partition in partitions:
            rows = [one for one in (*own, *pushed) if one.event.key % KEY_PARTITIONS == partition]
            holders = self._holders(world, name, record, partition)
            winners, lost, ended = self._resolved(tuple(rows), holders)
            segment = Segment(
                f"{entry_id}.{attempt}.{partition}",
                entry_id,
                partition,
                tuple(one.event for one in winners if not one.segment),
            )
            ends += [(one.segment, one.row, DELETE, None) for one in ended]
            ends += [(one.segment, one.row, LOSER, None) for one in lost if one.segment]
            if segment.rows:
                segments.append(segment)
            placed = [Held(event, segment.name, row) for row, event in enumerate(segment.rows)]
            placed += [one for one in winners if one.segment]
            caches = self._remembered(caches, name, partition, record, entry_id, holders, placed)
        logs = [Log(f"{entry_id}.{attempt}.log", entry_id, tuple(ends))] if ends else []
        ends_at = {f"/{part}": max(e.offset + 1 for e in batch if e.partition == part) for part in _partitions(batch)}
        begun = dict(base) if base is not None else {at: record.positions.get(at) for at in ends_at}
        staged = Staged(
            tuple(one.name for one in (*segments, *logs)),
            tuple((partition, record.heads[partition]) for partition in partitions),
            tuple((at, begun.get(at)) for at in sorted(ends_at)),
            tuple((at, max(end, begun.get(at) or 0)) for at, end in sorted(ends_at.items())),
            record.cutoff,
            bulks,
            (*batch, *(one.event for one in everything)),
        )
        changed = world._replace(
            segments=world.segments | set(segments), logs=world.logs | set(logs), caches=frozenset(caches)
        )
        return changed, staged

    def _resolved(self, rows: tuple[Held, ...], holders: tuple[Held, ...]) -> tuple[list[Held], list[Held], list[Held]]:
        """The winners, the losers and replays, and the holders that have ended."""
        found = self._once(("resolve", rows, holders), lambda: resolve.resolve(_events(rows, 1), _events(holders, 0)))
        lost = [*found.losers.tolist(), *found.replays.tolist()]
        return (
            [rows[number] for number in found.winners.tolist()],
            [rows[number] for number in lost],
            [holders[number] for number in found.ended.tolist()],
        )

    def _holders(self, world: World, name: str, record: UpsertRecord, partition: int) -> tuple[Held, ...]:
        """What a key partition holds: from the ingestor's cache if it is that of the head, else from the table."""
        head = record.heads[partition]
        for one in sorted(world.caches, reverse=True):
            if (one.owner, one.partition) != (name[0], partition):
                continue
            is_entry = CACHE_ENTRY in self.off or one.head[0] == head.entry_id
            if is_entry and (CACHE_GENERATION in self.off or one.head[1] == head.generation):
                return tuple(held for held in one.holders if held.event.time >= record.cutoff)
        rows = self.shown(world, world.lineage, record, record.clock)
        held = [one for one in rows if one.event.key % KEY_PARTITIONS == partition and one.event.time >= record.cutoff]
        return tuple(one for one in held if not (TOMBSTONES in self.off and one.event.deleted))

    def _remembered(
        self,
        caches: set[Cache],
        name: str,
        partition: int,
        record: UpsertRecord,
        entry_id: str,
        holders: tuple[Held, ...],
        placed: Sequence[Held],
    ) -> set[Cache]:
        """The caches with the one for the head that a publish would make; of the others that of the head stays."""
        head = record.heads[partition]
        kept = {
            one
            for one in caches
            if (one.owner, one.partition) != (name[0], partition) or one.head == (head.entry_id, head.generation)
        }
        won = {one.event.key: one for one in placed}
        after = {one.event.key: one for one in holders} | won
        return kept | {
            Cache(name[0], partition, (entry_id, head.generation), tuple(after[key] for key in sorted(after)))
        }

    def _publish(
        self, entry_id: str, staged: Staged, *, loses_reply: bool = False, rollbacks: int | None = None
    ) -> Step:
        def publication(names: Iterable[int], *, moves: bool) -> Publication:
            return Publication(
                entry_id=entry_id,
                heads={number: head for number, head in staged.heads if number in names},
                base=dict(staged.base),
                positions=dict(staged.positions) if moves else {},
                cutoff=staged.cutoff,
                bulks=staged.bulks,
                rollbacks=rollbacks,
                keep_versions=self.keep_versions,
            )

        def operation(world: World) -> tuple[World, str]:
            everything = [number for number, _ in staged.heads]
            parts = [everything]
            if ONE_SWITCH in self.off and len(everything) > 1:
                parts = [everything[:1]]  # the other one follows, or is never made
            is_whole = parts[0] is everything
            events = [one for one in staged.events if is_whole or one.key % KEY_PARTITIONS in parts[0]]
            after, outcome = self._end(world, entry_id, staged.names, publication(parts[0], moves=is_whole))
            if outcome == "published":
                after = after.noted({*dict(world.contents)[world.record.clock], *events})
            return after, "unknown" if loses_reply else outcome

        return step(f"publish {entry_id}", operation)

    def _end(self, world: World, entry_id: str, names: Sequence[str], switch: Switch) -> tuple[World, str]:
        """The last transaction of ``end``."""
        lineage = world.lineage
        entry = lineage.get(entry_id)
        if entry is None:
            return world, "cleaned away"
        if entry.state is not EntryState.IN_PROGRESS and (ENTRY not in self.off or entry.state is EntryState.COMPLETED):
            return world, "reverted"
        try:
            completed = lineage.put(entry.moved_to(EntryState.COMPLETED, 0, names))
            return world.written(switch.switch(lineage, completed)), "published"
        except EndRefusedError as refused:
            return world, refused.rule

    # --- ordinary pushes

    def bulk(self, name: str, rows: Sequence[tuple[int, int, str]]) -> Actor:
        """An ordinary push of (key, time, value)."""
        events = [Event(time, BULK_PARTITION, ord(name[0]), key, value) for key, time, value in rows]

        def stage(world: World) -> tuple[World, tuple[str, ...]]:
            made = [
                Segment(f"{name}.{part}", name, part, tuple(one for one in events if one.key % KEY_PARTITIONS == part))
                for part in range(KEY_PARTITIONS)
            ]
            found = [one for one in made if one.rows]
            return world._replace(segments=world.segments | set(found)), tuple(one.name for one in found)

        def run() -> Any:
            yield _announce(name)
            names = yield step(f"stage {name}", stage)
            yield step(f"end {name}", lambda world: self._end(world, name, names, Waiting(name)))

        return run

    def reverter(self, name: str) -> Actor:
        """The ordinary revert of a push."""

        def revert(world: World) -> tuple[World, None]:
            entry = world.lineage.get(name)
            if entry is None or entry.state is not EntryState.COMPLETED:
                return world, None
            try:
                check_revert(world.lineage, name, force=Force.NEVER)
            except RevertRefusedError:
                return world, None
            return world.written(world.lineage.put(entry.moved_to(EntryState.REVERTED, 0))).swept([name]), None

        def run() -> Any:
            yield step(f"revert {name}", revert)

        return run

    # --- rollback

    def rollback(self, name: str, back: int) -> Actor:
        """Goes back by so many versions, or to the floor."""

        def operation(world: World) -> tuple[World, None]:
            record = world.record
            version = max(record.clock - back, record.floor)
            try:
                record.check_mark(version, TABLE)
            except UpsertRefusedError:
                return world, None
            undone = [one.entry_id for one in record.published if one.version > version and not one.is_rollback]
            if version == record.clock or any(entry_id not in world.lineage.entries for entry_id in undone):
                return world, None
            running = [one.entry_id for one in world.lineage.in_state(EntryState.IN_PROGRESS)]
            ingested = [] if IN_PROGRESS in self.off else [one for one in running if one[0] in INGESTORS]
            after = _moved(world, [*undone, *ingested], EntryState.REVERTED).swept([*undone, *ingested])
            changed = store_record(after.lineage, rollback.rolled_back(record, version, name, 0))
            return after.written(changed).noted(dict(world.contents)[version]), None

        def run() -> Any:
            yield step(f"roll back by {back}", operation)

        return run

    # --- retention

    def expirer(self, name: str, cutoff: int) -> Actor:
        """Ends the rows that are older than ``cutoff``."""

        def write(world: World) -> tuple[World, Any]:
            lineage, record = world.lineage, world.record
            if cutoff <= record.cutoff:
                return world, None
            world = world.swept([name])
            rows = self.shown(world, lineage, record, record.clock)
            old = [one for one in rows if one.event.time < cutoff]
            log = Log(f"{name}.log", name, tuple((one.segment, one.row, DELETE, None) for one in old))
            heads = {one.event.key % KEY_PARTITIONS for one in old}
            made = world._replace(logs=world.logs | {log}) if old else world
            checked = heads if ALL_HEADS in self.off else range(KEY_PARTITIONS)
            read = tuple((at, record.heads[at]) for at in checked)
            return made, ((log.name,) if old else (), read, tuple(heads), record.cutoff)

        def end(world: World, names: Sequence[str], read: Any, heads: Sequence[int], before: int) -> tuple[World, str]:
            switch = Publication(entry_id=name, heads=dict(read), changed=heads, cutoff=before, raised_cutoff=cutoff)
            after, outcome = self._end(world, name, names, switch)
            old = dict(world.contents)[world.record.clock]
            return after.noted(old) if outcome == "published" else after, outcome

        def run() -> Any:
            yield _announce(name)
            outcome = ""
            for _ in range(2):
                written = yield step(f"write ends of {name}", write)
                if written is None:
                    break
                outcome = yield step(f"end {name}", lambda world, written=written: end(world, *written))
                if outcome not in _RESOLVE_AGAIN:
                    break
            if outcome != "published":
                yield _abort(name)

        return run

    # --- compaction

    def compactor(self, name: str, partition: int, behind: int = 0) -> Actor:
        """Compacts a key partition up to a floor that is so many versions behind."""

        def raise_floor(world: World) -> tuple[World, int | None]:
            record = world.record
            floor = max(record.clock - behind, record.floor)
            if record.is_void(floor):
                return world, None
            changed = record if FLOOR_FIRST in self.off else record.raised(record.check_mark(floor, TABLE))
            return world.written(store_record(world.lineage, changed)), floor

        def run() -> Any:
            yield self._take_over(COMPACTORS)
            floor = yield step("raise the floor", raise_floor)
            if floor is None:
                return
            begun = yield step(f"rewrite as {name}", lambda world: self._rewritten(world, name, partition, floor))
            if begun is None:
                return
            staged, moved, merged = begun
            for attempt in range(3):
                carried = yield step(
                    f"carry ends for {name}",
                    lambda world, attempt=attempt: self._carried(world, name, attempt, moved, merged),
                )
                if carried is None:
                    return
                log, head = carried
                switch = Movement(entry_id=name, heads={partition: head})
                names = [*staged, *log]
                outcome = yield step(
                    f"end {name}", lambda world, names=names, switch=switch: self._end(world, name, names, switch)
                )
                if outcome != "upsert-head":
                    break
            if outcome != "published":
                yield _abort(name)

        return run

    def _rewritten(self, world: World, name: str, partition: int, floor: int) -> tuple[World, Any]:
        """Start the entry, and stage the rows of segments at or below the floor that some mark shows."""
        lineage, record = world.lineage, world.record
        versions = record.versions()
        taken = at_mark(lineage, record, self._blocks(world, lineage), record.clock)
        ends = self._ends(world, record, taken.update_logs)
        visible = {one.name for _, ones in taken.segments for one in ones}
        chosen = [
            one
            for one in sorted(world.segments)
            if one.name in visible and one.partition == partition and versions.get(one.entry_id, 0) <= floor
        ]
        logs = [
            one.name
            for shard, ones in taken.update_logs
            for one in ones
            if versions.get(shard.name.entry_id, 0) <= floor
        ]
        if not chosen:
            return world, None
        rows: list[Event] = []
        moved: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
        for one in chosen:
            kept = numpy.flatnonzero(ends.get(one.name, NO_ENDS).valid_mask(floor, len(one.rows))).tolist()
            if KEEP_TOMBSTONES in self.off:
                kept = [number for number in kept if not one.rows[number].deleted]
            moved.append((one.name, tuple(kept), tuple(range(len(rows), len(rows) + len(kept)))))
            rows += [one.rows[number] for number in kept]
        whole = [Segment(f"{name}.rows", name, partition, tuple(rows))] if rows else []
        replaced = (*(one.name for one in chosen), *logs)
        request = StartRequest(TABLE, name, replaced, (), {*visible, *logs}, False, False, 0)
        try:
            after = world.written(decide_start(lineage, request).lineage)._replace(segments=world.segments | set(whole))
        except StartRefusedError:
            return world, None
        return after, (tuple(one.name for one in whole), tuple(moved), tuple(logs))

    def _carried(self, world: World, name: str, attempt: int, moved: Any, merged: Sequence[str]) -> tuple[World, Any]:
        entry = world.lineage.get(name)
        if entry is None or entry.state is not EntryState.IN_PROGRESS:
            return world, None
        lineage, record = world.lineage, world.record
        taken = at_mark(lineage, record, self._blocks(world, lineage), record.clock)
        those = tuple((shard, [one for one in ones if one.name in merged]) for shard, ones in taken.update_logs)
        log = moving.ends_to_keep(
            {
                segment: moving.MovedRows(numpy.array(kept, int), numpy.zeros(len(kept), int), numpy.array(places, int))
                for segment, kept, places in moved
            },
            [f"{name}.rows"],
            self._ends(world, record, taken.update_logs),
            self._ends(world, record, those),
            {one.name for _, ones in taken.segments for one in ones},
        )
        partition = next(one.partition for one in world.segments if one.name == moved[0][0])
        ends = tuple((one["segment"], one["row"], one["kind"], one["version"]) for one in log.to_pylist())
        made = [Log(f"{name}.ends{attempt}", name, ends)] if ends else []
        older = frozenset(one for one in world.logs if one.entry_id != name)
        return world._replace(logs=older | set(made)), (tuple(one.name for one in made), record.heads[partition])

    # --- clean-up

    def cleaner(self, name: str) -> Actor:
        """Removes what a completed or reverted entry hides; then the entry leaves the lineage."""

        def remove(world: World) -> tuple[World, bool]:
            entry = world.lineage.get(name)
            if entry is None or entry.state is EntryState.IN_PROGRESS:
                return world, False
            gone = entry.segments_from if entry.state is EntryState.COMPLETED else entry.segments_to
            kept = world._replace(
                segments=frozenset(one for one in world.segments if one.name not in gone),
                logs=frozenset(one for one in world.logs if one.name not in gone),
            )
            return kept, True

        def drop(world: World) -> tuple[World, None]:
            lineage = world.lineage
            entry = lineage.find(name)
            left = lineage.without(name)
            return world.written(without_waiting(left, name) if entry.state is EntryState.REVERTED else left), None

        def run() -> Any:
            if (yield step(f"remove what {name} hides", remove)):
                yield step(f"drop {name}", drop)

        return run


INGESTORS, COMPACTORS = "ije", "cd"
"""First letters of the names of entries of ingestion and expiry, and of compaction."""


def _partitions(batch: Iterable[Event]) -> set[int]:
    return {one.partition for one in batch}


def _announce(entry_id: str) -> Step:
    entry = LineageEntry.of(entry_id, [], [], EntryState.IN_PROGRESS, 0)
    return step(f"announce {entry_id}", lambda world: (world.written(world.lineage.put(entry)), None))


def _abort(entry_id: str) -> Step:
    return step(f"abort {entry_id}", lambda world: (_reverted(world, [entry_id]), None))


def _reverted(world: World, entry_ids: Iterable[str]) -> World:
    """The world once entries in progress were aborted and swept."""
    for entry_id in entry_ids:
        try:
            check_revert(world.lineage, entry_id, force=Force.ONLY)
        except (RevertRefusedError, EntryNotFoundError):
            continue
        world = _moved(world, [entry_id], EntryState.REVERTED).swept([entry_id])
    return world


def _moved(world: World, entry_ids: Iterable[str], state: EntryState) -> World:
    lineage = world.lineage
    for entry_id in entry_ids:
        lineage = lineage.put(lineage.find(entry_id).moved_to(state, 0))
    return world.written(lineage)


def _events(rows: Sequence[Held], segment: int) -> IngestionUpsertEvents:
    return IngestionUpsertEvents.of(
        (one.event.key, one.event.key, one.event.time, 0, one.event.partition, one.event.offset, segment, number)
        for number, one in enumerate(rows)
    )


def _arrow(ends: Sequence[tuple[str, int, int, int | None]]) -> Any:
    columns = list(zip(*ends, strict=True))
    return log_of(dict(zip(("segment", "row", "kind", "version"), map(list, columns), strict=True)))


def _shard(entry_id: str) -> Shard:
    return Shard(ShardName("ALL", "", entry_id, "build", 1), 0, 0, msgspec.Raw(b"[]"))


def _stored(name: str, is_log: bool) -> SegmentRecord:
    return SegmentRecord(name, name, 0, 0, 0, is_update_log=is_log)
