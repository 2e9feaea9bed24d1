"""The timeline said again with sets, one moment at a time: slow, short, and obviously what the rule says.

Segments come with rows: each root group holds rows of its own, a replacement holds the rows of what it was made from.
So a history can be checked not only against the rule but against what readers care about: no row twice, and none
hidden that a complete set holds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.timeline import SegmentKey, SegmentState, Timeline, VersionedSegment

Segment = VersionedSegment[str]
HORIZON = 12
"""Moments are 0 .. HORIZON - 1."""


@dataclass
class Universe:
    """All segments that a history may use, and what is true of them."""

    segments: list[Segment] = field(default_factory=list)
    rows: dict[SegmentKey, frozenset[int]] = field(default_factory=dict)
    above: dict[SegmentKey, set[SegmentKey]] = field(default_factory=dict)
    """By segment, those that name it as overshadowed."""
    named: dict[SegmentKey, Segment] = field(default_factory=dict)
    one_hop: bool = True
    """Whether segments name only what they were made from, or also all that was replaced before."""

    def add_chunk(self, rng: random.Random, interval: Interval, version: str) -> None:
        """A chunk with a random past: groups of 1 to 4, any live ones of them replaced together."""
        size = rng.randint(1, 6)
        ids = list(range(4 * size))
        if rng.random() < 0.3:
            rng.shuffle(ids)
        core = rng.choice((0, 0, 0, 1, 2))
        live: list[tuple[tuple[int, ...], frozenset[int], tuple[int, ...]]] = []
        for at in range(size):
            group = tuple(ids.pop(0) for _ in range(rng.choice((1, 1, 2, 3, 4))))
            inputs = [one for one in live if rng.random() < 0.6] if rng.random() < 0.6 else []
            rows = frozenset().union(*(one[1] for one in inputs)) if inputs else frozenset([at])
            over = tuple(id_ for one in inputs for id_ in (one[0] if self.one_hop else (*one[0], *one[2])))
            live = [one for one in live if one not in inputs]
            live.append((group, rows, over))
            for id_ in group:
                alone = () if len(group) == 1 and rng.random() < 0.5 else group
                segment = VersionedSegment(interval, version, id_, f"{version}/{id_}", over, alone, core if id_ else 0)
                self.segments.append(segment)
                self.named[segment.key] = segment
                self.rows[segment.key] = rows
                for one in over:
                    self.above.setdefault(SegmentKey(interval, version, one), set()).add(segment.key)


def universe(rng: random.Random) -> Universe:
    """A few chunks of a few versions whose intervals overlap as they like, except within one version."""
    found = Universe(one_hop=rng.random() < 0.5)
    taken: list[tuple[Interval, str]] = []
    for _ in range(rng.randint(1, 5)):
        start = rng.randrange(HORIZON)
        interval = Interval(start, min(HORIZON, start + rng.choice((1, 2, 3, 6, 12))))
        version = rng.choice("abc")
        if not any(version == other and interval.overlaps(span) for span, other in taken):
            taken.append((interval, version))
            found.add_chunk(rng, interval, version)
    return found


class Model:
    """What is known and in service, and the rule by sets."""

    def __init__(self, everything: Universe) -> None:
        self.everything = everything
        self.known: dict[SegmentKey, Segment] = {}
        self.online: set[SegmentKey] = set()
        self.told: dict[SegmentKey, tuple[int, ...]] = {}
        """Edges outlive their segments: whoever replaced them inherits them."""
        self.forgotten: set[SegmentKey] = set()

    def chunks(self) -> set[tuple[Interval, str]]:
        return {(key.interval, key.version) for key in self.known}

    def group(self, segment: Segment) -> set[SegmentKey]:
        return {SegmentKey(segment.interval, segment.version, one) for one in segment.group or (segment.partition,)}

    def hidden(self, interval: Interval, version: str) -> set[SegmentKey]:
        """Everything reached from complete groups, through all that was ever told."""
        here = [one for one in self.known.values() if (one.interval, one.version) == (interval, version)]
        reached: set[SegmentKey] = set()
        todo = [one for segment in here if self.group(segment) <= self.online for one in segment.overshadowed]
        while todo:
            key = SegmentKey(interval, version, todo.pop())
            if key not in reached:
                reached.add(key)
                todo.extend(self.told.get(key, ()))
                for segment in here:
                    if key in self.group(segment):
                        todo.extend(segment.overshadowed)
        return reached

    def visible(self, interval: Interval, version: str) -> set[SegmentKey]:
        """Members of complete groups that are not hidden; nothing while the core set has a hole."""
        here = [one for one in self.known.values() if (one.interval, one.version) == (interval, version)]
        hidden = self.hidden(interval, version)
        found = {one.key for one in here if self.group(one) <= self.online} - hidden
        core = {SegmentKey(interval, version, id_) for one in here for id_ in range(one.core)}
        return found if core <= found | hidden else set()

    def moments(self) -> list[tuple[str, set[SegmentKey]]]:
        """The version and its visible segments at each moment: the highest complete one."""
        shown = {chunk: self.visible(*chunk) for chunk in self.chunks()}
        found = []
        for at in range(HORIZON):
            here = [
                (version, segments)
                for (interval, version), segments in shown.items()
                if segments and interval.start_ms <= at < interval.end_ms
            ]
            found.append(max(here, key=lambda one: one[0], default=("", set())))
        return found

    def states(self) -> dict[SegmentKey, SegmentState | None]:
        moments = self.moments()
        hidden = {key for chunk in self.chunks() for key in self.hidden(*chunk)}
        return {key: self._state(key, moments, hidden) for key in self.known}

    def _state(
        self, key: SegmentKey, moments: list[tuple[str, set[SegmentKey]]], hidden: set[SegmentKey]
    ) -> SegmentState | None:
        if key not in self.online:
            return None
        here = moments[key.interval.start_ms : key.interval.end_ms]
        if key in hidden or all(version > key.version for version, _ in here):
            return SegmentState.OVERSHADOWED
        return SegmentState.VISIBLE if any(key in segments for _, segments in here) else SegmentState.STANDBY

    def may_forget(self, key: SegmentKey) -> bool:
        """Whoever replaced it has been seen, so that somebody inherits its edges."""
        above = self.everything.above.get(key, set())
        return all(one in self.known or one in self.forgotten for one in above)


class World:
    """A timeline and its model, changed together and compared after each step."""

    def __init__(self, rng: random.Random, *, strict: bool = True) -> None:
        self.rng = rng
        self.everything = universe(rng)
        self.model = Model(self.everything)
        self.timeline: Timeline[str] = Timeline("t", strict=strict)
        self.strict = strict
        if rng.random() < 0.5:  # as a registry does: all records are known, whatever is in service
            self._add(self.everything.segments, online=False, batch=True)

    def run(self, steps: int) -> int:
        """Random steps, each checked; how many."""
        for _ in range(steps):
            self.step()
            self.check()
        return steps

    def step(self) -> None:
        """One random change, alone or in a batch."""
        kind = self.rng.choice(("add", "add", "add", "add", "know", "remove", "remove", "forget"))
        count = self.rng.choice((1, 1, 1, 2, 5))
        some = [one for one in self._pick(count) if one.key not in self.model.forgotten]
        if kind in ("add", "know"):
            self._add(some, online=kind == "add", batch=count > 1)
        else:
            self._remove(some, forget=kind == "forget", batch=count > 1)

    def _pick(self, count: int) -> list[Segment]:
        first = self.rng.randrange(len(self.everything.segments))
        if self.rng.random() < 0.5:
            return self.everything.segments[first : first + count]
        return [self.rng.choice(self.everything.segments) for _ in range(count)]

    def _add(self, some: list[Segment], *, online: bool, batch: bool) -> None:
        changed = 0
        for one in some:
            new = one.key not in self.model.known or (online and one.key not in self.model.online)
            changed += new
            self.model.known[one.key] = one
            self.model.told[one.key] = one.overshadowed
            if online:
                self.model.online.add(one.key)
        if batch:
            assert self.timeline.add_all(some, online=online) == changed
        else:
            assert sum(self.timeline.add(one, online=online) for one in some) == changed

    def _remove(self, some: list[Segment], *, forget: bool, batch: bool) -> None:
        if forget:
            some = [one for one in some if self.model.may_forget(one.key)]
        there = self.model.known.keys() if forget else self.model.online
        gone = {one.key for one in some} & there
        self.model.online -= gone
        if forget:
            self.model.forgotten |= gone
            for key in gone:
                del self.model.known[key]
        if batch:
            assert self.timeline.remove_all(some, forget=forget) == len(gone)
        else:
            assert sum(self.timeline.remove(one, forget=forget) for one in some) == len(gone)

    # -- checks --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that must hold after a step."""
        self.check_bulk()
        self.check_rows()
        if self.strict:
            self.check_rule()

    def check_rule(self) -> None:
        """The visible segments of each moment, and every state, are what the model says."""
        moments = self.model.moments()
        for at, (_, expected) in enumerate(moments):
            assert shown_at(self.timeline, at) == expected, f"at {at}"
        states = self.model.states()
        assert {one.key: state for one, state in self.timeline.states()} == states
        over = {key for key, state in states.items() if state is SegmentState.OVERSHADOWED}
        assert {one.key for one in self.timeline.find_fully_overshadowed()} == over
        for piece in self.timeline.lookup(Interval(0, HORIZON)):
            assert piece.interval.start_ms >= piece.chunk.start_ms
            assert piece.interval.end_ms <= piece.chunk.end_ms

    def check_bulk(self) -> None:
        """A new timeline, loaded at once in any order with what is known now, is the same."""
        segments = list(self.timeline.segments())
        self.rng.shuffle(segments)
        bulk: Timeline[str] = Timeline("t", strict=self.strict)
        bulk.add_all([one for one in segments if one.key not in self.model.online], online=False)
        bulk.add_all([one for one in segments if one.key in self.model.online])
        assert described(bulk) == described(self.timeline)
        assert sorted(one.key for one in segments) == sorted(self.model.known)

    def check_rows(self) -> None:
        """No moment shows a row twice; none hides a row that a complete set of the shown version holds."""
        for piece in self.timeline.pieces():
            shown = {one.key for one in piece.segments}
            if any(self._untold(key) for key in shown):
                continue
            groups = {frozenset(self.model.group(self.model.known[key])) for key in shown}
            rows = [row for group in groups for row in self.everything.rows[next(iter(group))]]
            assert len(rows) == len(set(rows)), f"rows twice in {piece.interval}: {sorted(shown)}"
            if self.strict:
                assert set().union(*groups) == shown, f"half a group in {piece.interval}"
                assert self._rows_of_complete(piece.chunk, piece.version) <= set(rows), f"hidden in {piece.interval}"
        if not self.strict:
            for at in range(HORIZON):
                here = [key for key in self.model.online if key.interval.start_ms <= at < key.interval.end_ms]
                assert bool(here) == bool(shown_at(self.timeline, at)), f"nothing shown at {at}"

    def _untold(self, key: SegmentKey) -> bool:
        """Whether the edges of something between this segment and its first inputs were never told. One hop at a time
        leads nowhere then: that is the assumption the rule stands on."""
        seen: list[int] = [*self.model.known[key].overshadowed] if self.everything.one_hop else []
        while seen:
            one = SegmentKey(key.interval, key.version, seen.pop())
            below = self.everything.named[one]
            if below.overshadowed and not self.model.told.keys() & self.model.group(below):
                return True
            seen.extend(below.overshadowed)
        return False

    def _rows_of_complete(self, interval: Interval, version: str) -> set[int]:
        here = [one for one in self.model.known.values() if (one.interval, one.version) == (interval, version)]
        complete = [one.key for one in here if self.model.group(one) <= self.model.online]
        return set().union(*(self.everything.rows[key] for key in complete))


def shown_at(timeline: Timeline[str], at: int) -> set[SegmentKey]:
    """The keys that a reader of one moment sees."""
    return {one.key for piece in timeline.lookup_between(at, at + 1) for one in piece.segments}


def described(timeline: Timeline[str]) -> tuple[object, ...]:
    """Everything that a timeline answers."""
    pieces = [
        (piece.interval, piece.chunk, piece.version, [one.partition for one in piece.segments])
        for piece in timeline.pieces()
    ]
    return pieces, {one.key: state for one, state in timeline.states()}, len(timeline)
