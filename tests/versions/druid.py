"""Druid's scenarios as histories of a table, seen through what every reader runs (:class:`.snapshot.Visibility`).

What Druid says by ids of chunks, the lineage says by entries:

* a root chunk is the segment of an append, COMPLETED at once;
* an atomic update group (root range, minor version, size) is a rewrite of every chunk of its range with a smaller minor
  version; it is COMPLETED when the last chunk of the group is there;
* the core set of a major version is an overwrite of its interval, COMPLETED when the last chunk of it is there; chunks
  beyond it are appends;
* a chunk of a core set that is removed rolls the overwrite back; any other that is removed is lost to the registry.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry, Overwrite
from airflow_provider_segments.core.model.interval import ALL_TIME, Interval, parse_time
from airflow_provider_segments.core.model.segment import SegmentRecord, SegmentState, encode_record
from airflow_provider_segments.core.registry.shard import Shard, ShardName
from airflow_provider_segments.core.snapshot import View, Visibility

Json = dict[str, Any]
Span = tuple[int, int]

SCENARIOS: dict[str, Json] = {
    one["id"]: one
    for one in json.loads((Path(__file__).parents[1] / "data" / "druid_timeline_scenarios.json").read_text())
}
DAY = Interval(0, 86_400_000)


class AnyTime(ShardName):
    """A shard name whose interval is given: Druid's are of any length."""

    span: Interval

    @property
    def interval(self) -> Interval:
        return self.span


@dataclass(frozen=True)
class Chunk:
    """One of Druid's chunks: where it is, and what its scenario says of it."""

    interval: Interval
    version: str
    spec: Json = field(hash=False)

    @property
    def id(self) -> int:
        """Its partition id."""
        found: int = self.spec["id"]
        return found

    @property
    def name(self) -> str:
        """The name of its segment."""
        return f"{self.interval.start_ms}-{self.interval.end_ms} v{self.version} p{self.id}"

    @property
    def segment_version(self) -> int:
        """Druid compares versions as text; those of the scenarios are one digit."""
        return int(self.version)

    def lies_beneath(self, other: Chunk) -> bool:
        """Whether the group of ``other`` replaces this chunk."""
        if "range" not in other.spec or (self.interval, self.version) != (other.interval, other.version):
            return False
        first, end = other.spec["range"]
        start, stop = self.spec.get("range", (self.id, self.id + 1))
        return bool(first <= start and stop <= end and self.spec.get("minor", 0) < other.spec["minor"])


class RefusedError(Exception):
    """What this table cannot hold."""


class DruidTable:
    """A table in which chunks of a scenario appear and disappear. ``chunks`` are all that the scenario ever adds."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self.known = {chunk.name: chunk for chunk in chunks}
        self.lineage = Lineage("druid")
        self.registered: dict[str, tuple[Chunk, str]] = {}
        self.staged: dict[str, set[str]] = {}

    def add(self, chunk: Chunk) -> bool:
        """Stage the chunk, and end its push if nothing of that is missing; whether it is new."""
        if chunk.name in self.registered:
            return False
        entry_id, size = self._push_of(chunk)
        entry = self.lineage.get(entry_id)
        if entry is not None and entry.state is not EntryState.IN_PROGRESS:
            raise RefusedError("completed")
        self.registered[chunk.name] = (chunk, entry_id)
        members = self.staged.setdefault(entry_id, set())
        members.add(chunk.name)
        replaced = [name for name, other in self.known.items() if other.lies_beneath(chunk)]
        state = EntryState.COMPLETED if len(members) == size else EntryState.IN_PROGRESS
        self.lineage = self.lineage.put(LineageEntry.of(entry_id, replaced, sorted(members), state, 1))
        if state is EntryState.COMPLETED:
            self._mark(chunk, entry_id)
        return True

    def _push_of(self, chunk: Chunk) -> tuple[str, int]:
        """The id of the push that brings the chunk, and how many segments it brings."""
        spec = chunk.spec
        where = f"{chunk.interval.start_ms}-{chunk.interval.end_ms} v{chunk.version}"
        if "range" in spec:
            return f"{where} rewrite of {spec['range']} by {spec['minor']}", spec["size"]
        if "start" in spec:
            pieces = sum("start" in one.spec and one.version == chunk.version for one in self.known.values())
            return f"{where} overwrite", max(pieces, 2)
        if chunk.id < spec.get("core", 1) or (spec.get("core") == 0 and self._is_first(chunk)):
            return f"{where} overwrite", max(spec.get("core", 1), 1)
        return f"{chunk.name} append", 1

    def _is_first(self, chunk: Chunk) -> bool:
        """Whether it is the chunk that makes a version of which no core set is known."""
        same = [one for one in self.known.values() if (one.interval, one.version) == (chunk.interval, chunk.version)]
        return chunk.id == min(one.id for one in same)

    def _mark(self, chunk: Chunk, entry_id: str) -> None:
        if "range" in chunk.spec:
            self.lineage = self.lineage.with_rewrite(entry_id, chunk.interval)
            return
        if not entry_id.endswith(" overwrite"):
            return
        held = Overwrite(entry_id, chunk.interval.start_ms, chunk.interval.end_ms, chunk.segment_version)
        self.lineage = self.lineage.with_overwrite([held])

    def remove(self, chunk: Chunk, *, cleaned: bool = False) -> bool:
        """Lose the chunk, or roll its overwrite back; whether it was there. ``cleaned`` says that the clean-up removes
        it, which marks the push that replaced it first."""
        found = self.registered.pop(chunk.name, None)
        if found is None:
            return False
        entry = self.lineage.entries[found[1]]
        if entry.entry_id.endswith(" overwrite"):
            self.lineage = self.lineage.put(entry.moved_to(EntryState.REVERTED, 2))
        for other in self.lineage if cleaned else ():
            if chunk.name in other.segments_from:
                self.lineage = self.lineage.with_cleaning(other.entry_id, 3)
        return True

    def shards(self) -> list[tuple[Chunk, Shard]]:
        """The registry: a shard for each chunk."""
        return [(chunk, _shard(chunk, entry_id)) for chunk, entry_id in self.registered.values()]

    def states(self) -> dict[SegmentState, list[Chunk]]:
        """The chunks by their state."""
        found: dict[SegmentState, list[Chunk]] = {state: [] for state in SegmentState}
        shards = self.shards()
        visibility = self._visibility([shard for _, shard in shards])
        for chunk, shard in shards:
            running = self.lineage.entries[shard.name.entry_id].state is EntryState.IN_PROGRESS
            [state] = [SegmentState.STANDBY] if running else visibility.states(shard)
            found[state].append(chunk)
        return found

    def lookup(self, interval: Interval) -> list[Json]:
        """What readers of ``interval`` see, by stretches of time of one version."""
        visibility = self._visibility([shard for chunk, shard in self.shards() if chunk.interval.overlaps(interval)])
        found: dict[tuple[int, int, str], list[int]] = {}
        for shard, records in visibility.blocks:
            chunk = self.registered[records[0].name][0]
            for part in visibility.cuts.get(records[0].name) or (shard.name.interval,):
                span = (max(part.start_ms, interval.start_ms), min(part.end_ms, interval.end_ms))
                if span[0] < span[1]:
                    found.setdefault((*span, chunk.version), []).append(chunk.id)
        return [
            {"interval": (start, end), "version": version, "parts": sorted(ids)}
            for (start, end, version), ids in sorted(found.items())
        ]

    def is_overshadowed(self, chunk: Chunk) -> bool:
        """Whether the chunk would be, if it came."""
        told = DruidTable([*self.known.values(), chunk])
        told.registered = dict(self.registered)
        told.lineage = self.lineage
        for entry in self.lineage:
            others = [name for name in entry.segments_to if chunk.lies_beneath(self.known[name])]
            if others:
                replaced = [*entry.segments_from, chunk.name]
                told.lineage = told.lineage.put(
                    LineageEntry.of(entry.entry_id, replaced, entry.segments_to, entry.state, 1)
                )
        told.registered[chunk.name] = (chunk, "new")
        told.lineage = told.lineage.put(LineageEntry.of("new", (), (chunk.name,), EntryState.COMPLETED, 1))
        return chunk in told.states()[SegmentState.OVERSHADOWED]

    def _visibility(self, shards: list[Shard]) -> Visibility:
        view = View(self.lineage, 1)
        return Visibility(view, [shard for shard in shards if view.may_show(shard.name)], ALL_TIME)


def _shard(chunk: Chunk, entry_id: str) -> Shard:
    name = AnyTime(str(chunk.interval), f"/{chunk.name}", entry_id, "build", 0)
    object.__setattr__(name, "span", chunk.interval)
    record = SegmentRecord(chunk.name, "f", 1, 1, 0, version=chunk.segment_version, partition=chunk.id)
    return Shard(name, 0, 1, msgspec.Raw(b"[" + encode_record(record) + b"]"))


class ManagerRun:
    """One of the M scenarios, step by step: chunks of one day and version."""

    def __init__(self, scenario: Json) -> None:
        specs = {op["id"]: op for op in scenario["ops"] if op["op"] == "add"}
        self.chunks = {id_: Chunk(DAY, "1", {"core": 0, **spec}) for id_, spec in specs.items()}
        self.table = DruidTable(self.chunks.values())
        self.cleaned = "cleaned up" in scenario["name"]

    def step(self, op: Json) -> Json:
        """Do one operation; the table afterwards in the words of the scenario."""
        chunk = self.chunks.get(op["id"], Chunk(DAY, "1", op))
        if op["op"] == "add":
            returned = self.table.add(chunk)
        else:
            overshadowed = chunk in self.table.states()[SegmentState.OVERSHADOWED]
            returned = self.table.remove(chunk, cleaned=self.cleaned and overshadowed)
        found: Json = {"returned": returned}
        for state, chunks in self.table.states().items():
            found[state.value] = sorted(one.id for one in chunks)
        return found


class TimelineRun:
    """One of the T scenarios, step by step."""

    def __init__(self, scenario: Json) -> None:
        self.table = DruidTable(_chunk(op) for op in scenario["ops"] if op["op"] == "add")

    def step(self, op: Json) -> Any:
        """Do one operation; the answer in the words of the scenario."""
        match op["op"]:
            case "add":
                self.table.add(_chunk(op))
                return {"ok": True}
            case "remove":
                return {"removed": self.table.remove(_chunk(op))}
            case "lookup":
                return {"result": self._lookup(op)}
            case "fully_overshadowed":
                return {"result": sorted(one.name for one in self.table.states()[SegmentState.OVERSHADOWED])}
            case "is_overshadowed":
                return {"result": self.table.is_overshadowed(_chunk(op))}
        raise AssertionError(op)

    def _lookup(self, op: Json) -> list[Json]:
        start, end = span_of(op["interval"])
        return self.table.lookup(Interval(start, end)) if start < end else []


def _chunk(op: Json) -> Chunk:
    return Chunk(Interval(*span_of(op["interval"])), op["version"], op.get("chunk", {"id": 0}))


def span_of(text: str) -> Span:
    """``start/end`` in milliseconds; it may be empty."""
    start, end = text.split("/")
    return _ms(start), _ms(end)


def _ms(text: str) -> int:
    return parse_time(text if "T" not in text or ":" in text else datetime.strptime(text, "%Y-%m-%dT%H").isoformat())


def plain(answer: Json) -> Json:
    """A scenario's expected answer in the form that :class:`TimelineRun` gives."""
    found = answer.get("result")
    if isinstance(found, list) and found and isinstance(found[0], dict):
        return {"result": [{**one, "interval": span_of(one["interval"])} for one in found]}
    if isinstance(found, list):
        return {"result": sorted(_name(text) for text in found)}
    return answer


def _name(text: str) -> str:
    span, rest = text.split(" ", 1)
    start, end = span_of(span)
    return f"{start}-{end} {rest}"
