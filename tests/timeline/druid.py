"""Druid's scenarios in our terms: ranges of root ids become sets of partition ids."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_provider_segments.core.model.interval import Interval, parse_time
from airflow_provider_segments.core.timeline import SegmentKey, SegmentState, Timeline, VersionedSegment

Json = dict[str, Any]
Span = tuple[int, int]

SCENARIOS: dict[str, Json] = {
    one["id"]: one
    for one in json.loads((Path(__file__).parents[1] / "data" / "druid_timeline_scenarios.json").read_text())
}
DAY = Interval(0, 86_400_000)
_NEVER = 1_000_000
"""Ids from here stand for group members that a scenario never adds."""


def segments_of(
    specs: list[Json], interval: Interval, version: str, *, one_hop: bool, pieces: int = 0
) -> dict[int, VersionedSegment[str]]:
    """The chunks of one interval and version as segments by id.

    A chunk of root range [a, b) and minor version m overshadows the ids a to b - 1 and every chunk of a smaller minor
    version whose range lies within; its group is the chunks of equal range, minor version and size, filled up with
    ids that never come. ``one_hop`` leaves out the ids that are reached through another one. Chunks of a value range
    (start, end) have no sets of ids; the ``pieces`` that cover all values together are the version's core set.
    """
    known = {spec["id"]: spec for spec in specs}
    over = {id_: _all_over(spec, known) for id_, spec in known.items()}
    if one_hop:
        over = {id_: ids - set().union(*(over.get(one, set()) for one in ids)) for id_, ids in over.items()}
    return {
        id_: VersionedSegment(
            interval,
            version,
            id_,
            f"{version}/{id_}",
            tuple(sorted(over[id_])),
            _group(spec, known),
            pieces if "start" in spec else spec.get("core", 0),
        )
        for id_, spec in known.items()
    }


def _all_over(spec: Json, known: dict[int, Json]) -> set[int]:
    if "range" not in spec:
        return set()
    first, end = spec["range"]
    below = {
        id_
        for id_, one in known.items()
        if "range" in one and first <= one["range"][0] and one["range"][1] <= end and one["minor"] < spec["minor"]
    }
    return set(range(first, end)) | below


def _group(spec: Json, known: dict[int, Json]) -> tuple[int, ...]:
    if "range" not in spec:
        return ()
    like = ("range", "minor", "size")
    ids = sorted(id_ for id_, one in known.items() if all(one.get(name) == spec[name] for name in like))
    missing = max(0, spec["size"] - len(ids))
    return (*ids[: spec["size"]], *range(_NEVER + ids[0] * 100, _NEVER + ids[0] * 100 + missing))


def interval_of(text: str) -> Span:
    """``start/end`` in milliseconds; it may be empty."""
    start, end = text.split("/")
    return _ms(start), _ms(end)


def _ms(text: str) -> int:
    return parse_time(text if "T" not in text or ":" in text else datetime.strptime(text, "%Y-%m-%dT%H").isoformat())


class ManagerRun:
    """One of the M scenarios, step by step, on one chunk."""

    def __init__(self, scenario: Json, *, strict: bool, one_hop: bool, forget: bool) -> None:
        self.timeline: Timeline[str] = Timeline("druid", strict=strict)
        self.forget = forget
        specs = {op["id"]: op for op in scenario["ops"] if op["op"] == "add"}
        self.segments = segments_of(list(specs.values()), DAY, "v", one_hop=one_hop)

    def step(self, op: Json) -> Json:
        """Do one operation; the chunk afterwards in the words of the scenario."""
        if op["op"] == "add":
            returned = self.timeline.add(self.segments[op["id"]])
        else:
            returned = self.timeline.remove(SegmentKey(DAY, "v", op["id"]), forget=self.forget)
        found: Json = {"returned": returned}
        for state in SegmentState:
            found[state.value] = [one.partition for one, at in self.timeline.states() if at is state]
        return found


class TimelineRun:
    """One of the T scenarios, step by step."""

    def __init__(self, scenario: Json, *, strict: bool, extra: Json | None = None) -> None:
        self.timeline: Timeline[str] = Timeline("druid", strict=strict)
        self.scenario, self.strict = scenario, strict
        by_chunk: dict[tuple[Span, str], dict[int, Json]] = {}
        for op in [*scenario["ops"], *([extra] if extra else [])]:
            if op["op"] == "add" or op is extra:
                chunk = op.get("chunk", {"id": 0})
                by_chunk.setdefault((interval_of(op["interval"]), op["version"]), {})[chunk["id"]] = chunk
        ends = [chunk["id"] for specs in by_chunk.values() for chunk in specs.values() if "start" in chunk]
        pieces = 1 + max(ends, default=-1)
        self.segments = {
            (span, version): segments_of(list(specs.values()), Interval(*span), version, one_hop=False, pieces=pieces)
            for (span, version), specs in by_chunk.items()
        }

    def step(self, op: Json) -> Json:
        """Do one operation; the answer in the words of the scenario."""
        return getattr(self, f"_{op['op']}")(op)

    def _add(self, op: Json) -> Json:
        chunk = op.get("chunk", {"id": 0})
        self.timeline.add(self.segments[interval_of(op["interval"]), op["version"]][chunk["id"]])
        return {"ok": True}

    def _remove(self, op: Json) -> Json:
        return {"removed": self.timeline.remove(self._key(op, op.get("chunk", {"id": 0})["id"]))}

    def _lookup(self, op: Json) -> Json:
        found = []
        for piece in self.timeline.lookup_between(*interval_of(op["interval"])):
            parts = [segment.partition for segment in piece.segments]
            span = (piece.interval.start_ms, piece.interval.end_ms)
            found.append({"interval": span, "version": piece.version, "parts": parts})
        return {"result": found}

    def _fully_overshadowed(self, op: Json) -> Json:
        return {"result": sorted(self.timeline.find_fully_overshadowed(), key=lambda one: one.key)}

    def _is_overshadowed(self, op: Json) -> Json:
        chunk = op.get("chunk", {"id": 0})
        if "range" not in chunk:
            return {"result": self.timeline.is_overshadowed(self._key(op, chunk["id"]))}
        # In sets it is the newer segment that names the older: tell it of the one that is asked about.
        told = TimelineRun(self.scenario, strict=self.strict, extra=op)
        for one in self.scenario["ops"]:
            if one["op"] == "add":
                told.step(one)
        return {"result": told.timeline.is_overshadowed(self._key(op, chunk["id"]))}

    def _find_chunk(self, op: Json) -> Json:
        found = self.timeline.find(self._key(op, op["part"]))
        return {"result": None if found is None else found.partition}

    def _key(self, op: Json, partition: int) -> SegmentKey:
        return SegmentKey(Interval(*interval_of(op["interval"])), op["version"], partition)


def plain(answer: Json) -> Json:
    """A scenario's expected answer in the form that :class:`TimelineRun` gives."""
    found = answer.get("result")
    if isinstance(found, list) and found and isinstance(found[0], dict):
        return {"result": [{**one, "interval": interval_of(one["interval"])} for one in found]}
    return answer


def named(segments: list[VersionedSegment[str]]) -> set[tuple[Span, str, int]]:
    """Segments as (span, version, id)."""
    return {((one.interval.start_ms, one.interval.end_ms), one.version, one.partition) for one in segments}


def named_texts(texts: list[str]) -> set[tuple[Span, str, int]]:
    """The same from ``start/end vV pN``."""
    found = set()
    for text in texts:
        span, version, part = text.split(" ")
        found.add((interval_of(span), version[1:], int(part[1:])))
    return found
