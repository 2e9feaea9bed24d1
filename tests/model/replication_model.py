"""Two tables that read the sources of two regions, as a model around the package's own pure functions.

What a version is, what a rollback takes back and what a digest counts is :class:`.UpsertRecord`; where a version ends
is :func:`.next_cut`; what is said of two tables is :func:`.judge` and :func:`.differing_digests`. The model adds
sources, rows, batches in every order, and faults. A guard that is switched off is left out here.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from airflow_provider_segments.core.replication import leapfrog, stream, vectors
from airflow_provider_segments.core.replication.barrier import Placed, next_cut
from airflow_provider_segments.core.replication.heartbeat import Heartbeat, TakenHeartbeat
from airflow_provider_segments.core.replication.leapfrog import Kind, LastRow, Side
from airflow_provider_segments.core.replication.stream import Digest, VersionStream
from airflow_provider_segments.core.upsert.record import NO_CUTOFF, Publication, UpsertRecord
from airflow_provider_segments.upsert.rollback import rolled_back

REGIONS = ("r0", "r1")
FAULTS = ("lost", "doubled", "altered")


class Event(NamedTuple):
    """An event; without a value it deletes its key. Merged rows have two columns."""

    key: str
    column: str
    value: int | None
    time: int


class Beat(NamedTuple):
    """A heartbeat."""

    time_ms: int
    previous_ms: int


World = tuple[tuple[Event | Beat, ...], ...]
"""What each region has written."""

Order = tuple[int, int, int]
Row = Mapping[str, tuple[Order, int | None]]
"""By column, the event that it is from, and its value."""


@dataclass(frozen=True)
class Table:
    """One of the two tables. ``rows`` are the newest ones with the versions that made them; ``kept`` are those of each
    version, for rollbacks; ``early`` are rows in the middle of their batch; ``highest`` is the greatest watermark ever;
    ``last_rows`` are positions after the last row, without heartbeats."""

    world: World
    off: frozenset[str] = frozenset()
    fault: tuple[int, int, str] | None = None
    record: UpsertRecord = field(default_factory=lambda: UpsertRecord.new(1))
    rows: Mapping[str, tuple[Row, int]] = field(default_factory=dict)
    kept: Mapping[int, Mapping[str, tuple[Row, int]]] = field(default_factory=lambda: {0: {}})
    early: Mapping[str, tuple[Row, int]] = field(default_factory=dict)
    highest: Mapping[str, int] = field(default_factory=dict)
    last_rows: Mapping[str, int] = field(default_factory=dict)
    spent: frozenset[str] = frozenset()

    def at(self, region: int) -> int:
        return self.record.positions.get(f"{REGIONS[region]}/0", 0)

    @property
    def has_read_all(self) -> bool:
        return all(self.at(region) == len(events) for region, events in enumerate(self.world))

    @property
    def is_merged(self) -> bool:
        return any(isinstance(event, Event) and event.column != "v" for events in self.world for event in events)

    # --- steps

    def steps(self) -> Iterator[Table]:
        """Every next state: batches of one or two events, an old event again, a rollback, a compaction."""
        for regions in ((0,), (1,), (0, 1), (1, 0), (0, 0), (1, 1)):
            if (after := self.read(regions)) is not None:
                yield after
        if self.record.clock and "again" not in self.spent:
            for region in (0, 1):
                if self.at(region):
                    yield replace(self.publish([(region, self.at(region) - 1)], ()), spent=self.spent | {"again"})
        if self.record.clock and "rollback" not in self.spent:
            yield self.roll_back(self.record.clock - 1)
        if "drop" not in self.spent and not self.is_merged:
            yield self.drop_deletes()

    def read(self, regions: Collection[int]) -> Table | None:
        """A batch of the next event of each of ``regions``; it becomes several versions where heartbeats are in it."""
        ahead = [0, 0]
        places: list[tuple[int, int]] = []
        for region in regions:
            places.append((region, self.at(region) + ahead[region]))
            ahead[region] += 1
        if any(at >= len(self.world[region]) for region, at in places):
            return None
        table, left = self, places
        while True:
            queues: dict[str, dict[int, list[Placed]]] = {}
            for region, at in left:
                beat = self.world[region][at]
                if isinstance(beat, Beat):
                    placed = Placed(at, Heartbeat(1, beat.time_ms, beat.previous_ms, 1))
                    queues.setdefault(REGIONS[region], {}).setdefault(0, []).append(placed)
            cut = next_cut(queues, (table.record.stream or VersionStream()).last(), lambda *_: False)
            now = [one for one in left if one[1] < cut.limits.get((REGIONS[one[0]], 0), 99)]
            left = [one for one in left if one not in now]
            table = table.publish(now, cut.taken) if now else table
            if not cut.taken:
                return table

    def publish(self, places: Collection[tuple[int, int]], taken: tuple[TakenHeartbeat, ...]) -> Table:
        version = self.record.clock + 1
        rows, early, last_rows = dict(self.rows), dict(self.early), dict(self.last_rows)
        ends: dict[str, int] = {}
        hashes: dict[str, list[int]] = {}
        touched: set[str] = set()
        for region, at in places:
            source = f"{REGIONS[region]}/0"
            ends[source] = max(ends.get(source, self.at(region)), at + 1)
            for event in self.received(region, at):
                won = isinstance(event, Event) and self.apply(rows, event, (event.time, region, at), version)
                if isinstance(event, Event):
                    last_rows[source] = at + 1
                    if won and event.key not in touched:
                        touched.add(event.key)
                        early[event.key] = rows[event.key]
                if at >= self.at(region) and (won or "digest: winners too few" not in self.off):
                    hashes.setdefault(source, []).append(hash128(at, event))
        base = {source: self.record.positions.get(source, 0) for source in ends}
        publication = Publication(
            entry_id=str(version),
            heads={},
            positions=ends,
            read={source: Digest.of(base[source], len(found := hashes.get(source, [])), sum(found)) for source in ends},
            heartbeats=taken,
        )
        record = publication.apply(self.record)
        return replace(
            self,
            record=record,
            rows=rows,
            early=early,
            kept={**self.kept, version: rows},
            highest=vectors.merge([self.highest, record.positions]),
            last_rows=last_rows,
        )

    def received(self, region: int, at: int) -> list[Event | Beat]:
        event = self.world[region][at]
        if self.fault is None or self.fault[:2] != (region, at) or isinstance(event, Beat):
            return [event]
        match self.fault[2]:
            case "lost":
                return []
            case "doubled":
                return [event, event]
        return [event._replace(value=7)]

    def apply(self, rows: dict[str, tuple[Row, int]], event: Event, order: Order, version: int) -> bool:
        row = rows[event.key][0] if event.key in rows else {}
        if event.time < self.record.cutoff or (event.column in row and row[event.column][0] >= order):
            return False
        rows[event.key] = ({**row, event.column: (order, event.value)}, version)
        return True

    def roll_back(self, version: int) -> Table:
        record = rolled_back(self.record, version, "rollback", 0)
        if "rollback: digests stay" in self.off:
            record = msgspec.structs.replace(record, stream=self.record.stream)
        rows = {key: found for key, found in self.kept[version].items() if not self.is_dropped(found[0])}
        kept = {**self.kept, record.clock: rows}
        return replace(self, record=record, rows=rows, early=rows, kept=kept, spent=self.spent | {"rollback"})

    def is_dropped(self, row: Row) -> bool:
        return is_delete(row) and newest(row)[0] < self.record.cutoff

    def drop_deletes(self) -> Table:
        """Raise the cutoff, and compact: delete records below it are forgotten."""
        after = replace(self, record=msgspec.structs.replace(self.record, cutoff=2), spent=self.spent | {"drop"})
        rows = {key: found for key, found in self.rows.items() if not after.is_dropped(found[0])}
        return replace(after, rows=rows, early=rows)

    # --- what is compared

    def side(self) -> Side:
        watermark: Mapping[str, int] = self.record.positions
        if "watermark: rollbacks count" in self.off:
            watermark = self.highest
        if "watermark: heartbeats" in self.off:
            watermark = self.last_rows
        return Side(watermark, NO_CUTOFF if "cutoff" in self.off else self.record.cutoff)

    def last(self, key: str) -> LastRow | None:
        found = (self.early if "versions end whole" in self.off else self.rows).get(key)
        if found is None:
            return None
        row, version = found
        order = newest(row)
        made_from: Mapping[str, int] = {f"{REGIONS[order[1]]}/0": order[2] + 1}
        if self.is_merged and "merged rows: positions of the version" not in self.off:
            made_from = self.record.positions_at(version)
        told = is_delete(row) and "delete records" not in self.off
        return LastRow(shown(row), order, told, made_from)

    def told(self) -> str:
        """All that a comparison can tell of how the table came to be."""
        keys = [(key, self.last(key)) for key in sorted({*self.rows, *self.early})]
        known = self.record.stream or VersionStream()
        digests = [(one.mark, known.digests_at(one.version)) for region in REGIONS for one in known.taken(region)]
        return repr((keys, self.side(), digests))

    def signature(self) -> tuple[str, ...]:
        """All that a comparison of this or any later state can tell."""
        known, clock = self.record.stream or VersionStream(), self.record.clock
        now = (sorted(self.rows), known.digests_at(clock), self.record.cutoff, sorted(self.spent))
        if "rollback" in self.spent or not clock:
            return self.told(), repr(now)
        kept = [(key, row) for key, (row, _) in sorted(self.kept[clock - 1].items())]
        before = (kept, self.record.positions_at(clock - 1), known.digests_at(clock - 1))
        return self.told(), repr(now), repr(before)


def newest(row: Row) -> Order:
    return max(order for order, _ in row.values())


def is_delete(row: Row) -> bool:
    return all(value is None for _, value in row.values())


def shown(row: Row) -> bytes:
    return repr(sorted((column, value) for column, (_, value) in row.items())).encode()


def hash128(at: int, event: Event | Beat) -> int:
    return int.from_bytes(hashlib.blake2b(repr((at, event)).encode(), digest_size=16).digest())


def findings(a: Table, b: Table) -> dict[str, Kind]:
    """What is said of each key, lag left out."""
    found: dict[str, Kind] = {}
    for key in sorted({*a.rows, *b.rows}):
        kind = leapfrog.judge(a.last(key), b.last(key), a.side(), b.side())
        if kind not in (None, Kind.UNDECIDED):
            found[key] = kind
    return found


def truth(a: Table, b: Table) -> set[str]:
    """The keys on which readers of the two tables see different rows."""

    def seen(table: Table, key: str) -> bytes | None:
        row = table.rows[key][0] if key in table.rows else None
        return None if row is None or is_delete(row) else shown(row)

    return {key for key in {*a.rows, *b.rows} if seen(a, key) != seen(b, key)}


def digests_differ(a: Table, b: Table) -> bool:
    return bool(stream.differing_digests(a.record.stream or VersionStream(), b.record.stream or VersionStream()))


def states(first: Table) -> list[Table]:
    """Every state that a table can reach, by every order and size of batches."""
    found = {first.signature(): first}
    stack = [first]
    while stack:
        for after in stack.pop().steps():
            if after.signature() not in found:
                found[after.signature()] = after
                stack.append(after)
    return list(found.values())


def plain_states(first: Table) -> list[Table]:
    """The same without rollbacks, repeated events and compactions."""
    return states(replace(first, spent=frozenset({"again", "rollback", "drop"})))


def worlds(count: int, seed: int, *, merged: bool = False, events: int = 3) -> Iterator[World]:
    """Random worlds of two regions, two keys, two values or a delete record, and ``events`` events; a heartbeat
    somewhere between them, and one of each region at the end."""
    chance = random.Random(seed)
    columns = ("c1", "c2") if merged else ("v",)
    values = (1, 2) if merged else (1, 2, None)
    for _ in range(count):
        sources: list[list[Event | Beat]] = [[], []]
        for _ in range(events):
            event = Event(chance.choice("kkl"), chance.choice(columns), chance.choice(values), chance.randrange(1, 4))
            chance.choice(sources).append(event)
        chosen = chance.choice(sources)
        chosen.insert(chance.randrange(len(chosen) + 1), Beat(10, 0))
        for source in sources:
            source.append(Beat(20, 10))
        yield tuple(tuple(source) for source in sources)


@dataclass
class Outcome:
    """How many states and comparisons there were; the first history of each thing that must not be."""

    states: int = 0
    comparisons: int = 0
    bad: dict[str, str] = field(default_factory=dict)

    def note(self, what: str, *told: object) -> None:
        self.bad.setdefault(what, " | ".join(map(repr, told)))


def healthy(some: Iterator[World], off: Collection[str] = ()) -> Outcome:
    """Compare every state with every other one: nothing may be found, and digests never differ."""
    outcome = Outcome()
    for world in some:
        reached = states(Table(world, frozenset(off)))
        outcome.states += len(reached)
        different = {one.told(): one for one in reached}.values()
        for a, b in itertools.combinations(different, 2):
            outcome.comparisons += 1
            if found := findings(a, b):
                outcome.note("false finding", world, a.record.positions, a.rows, b.record.positions, b.rows, found)
            if digests_differ(a, b):
                outcome.note("false digest", world, a.record, b.record)
    return outcome


def faulty(some: Iterator[World], off: Collection[str] = (), faults: Collection[str] = FAULTS) -> Outcome:
    """One event is lost, doubled or altered on its way into b. Once both have read everything, each key that differs is
    found, and no other; and the digest says so, whether a key differs or not."""
    outcome = Outcome()
    for world in some:
        whole = [one for one in plain_states(Table(world, frozenset(off))) if one.has_read_all]
        places = [(region, at) for region, events in enumerate(world) for at, one in enumerate(events) if len(one) > 2]
        for (region, at), fault in itertools.product(places, faults):
            broken = plain_states(Table(world, frozenset(off), (region, at, fault)))
            outcome.states += len(broken)
            for a, b in itertools.product(whole, [one for one in broken if one.has_read_all]):
                outcome.comparisons += 1
                found, wanted = set(findings(a, b)), truth(a, b)
                if found - wanted:
                    outcome.note("false finding", world, (region, at, fault), a.rows, b.rows, found)
                if wanted - found:
                    outcome.note("missed", world, (region, at, fault), a.rows, b.rows, wanted)
                if not digests_differ(a, b):
                    outcome.note("digest missed", world, (region, at, fault))
    return outcome
