"""A model of the one rule for what readers see, whose every decision is made by the package's own pure functions.

A row is seen if and only if the push that brought it is COMPLETED, no COMPLETED entry replaces its segment, and no
later COMPLETED overwrite holds its time. :meth:`Model.oracle` is that sentence over rows; the package shows segments.
Appends, overwrites (with and without rows), corrections and rewrites run beside each other, are aborted, rolled back,
brought back and cleaned up; every step is one transaction, and after each step both must agree. A push is staged and
ended, or published in one transaction under the same checks. No lock is modelled:
the order is kept by what ``end`` checks. Any guard can be switched off by its name.

Time has three months, 1, 2 and 4 as bits; a segment is of one of them or of the year.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import msgspec

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry, Overwrite
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.shard import Shard, ShardName
from airflow_provider_segments.core.replacement.rules import (
    Force,
    StartRequest,
    check_revert,
    check_unrevert,
    decide_start,
)
from airflow_provider_segments.core.retention.beneath import hidden_for_good, lies_beneath
from airflow_provider_segments.core.snapshot import View, Visibility
from airflow_provider_segments.core.versions.order import (
    SegmentTime,
    find_newer,
    find_overtaken,
    find_unsettled,
    overwrites_above,
    rewritten_version,
)
from airflow_provider_segments.exceptions import RefusedError, RevertRefusedError, UnrevertRefusedError

YEAR = 7
MONTHS = (1, 2, 4)
_SETTLED = ("COMPLETED", "GONE", "FORGOTTEN")
"""States of pushes whose segments readers look at: an entry that has left the lineage is settled, whatever it was."""
CHUNKS = {1: "2013-01", 2: "2013-02", 4: "2013-03", YEAR: "2013"}
SPANS = {
    **{mask: parse_chunk(chunk) for mask, chunk in CHUNKS.items()},
    3: Interval(parse_chunk("2013-01").start_ms, parse_chunk("2013-02").end_ms),
    6: Interval(parse_chunk("2013-02").start_ms, parse_chunk("2013-03").end_ms),
}


class Plan(NamedTuple):
    """A push that may happen. ``mask`` is the time of its rows, and ``held`` what an overwrite holds. ``done`` says
    that it is COMPLETED already, or has even left the lineage."""

    name: str
    kind: str
    mask: int = 0
    held: int = 0
    empty: bool = False
    done: str = ""
    inputs: int = 2


class Push(NamedTuple):
    """What became of a plan. ``state`` is that of its entry: empty before it was started, GONE once it has left.

    ``cleaning`` is its state when clean-up marked it: what that allowed to be removed may be removed at any time from
    then on, by whoever looked then. ``times`` is the time of the rows that a correction or a rewrite stands for,
    ``outputs`` what a rewrite will stage; ``above`` are the overwrites that a rewrite has seen above its oldest input.
    """

    step: str = ""
    state: str = ""
    cleaning: str = ""
    version: int = 0
    completed_once: bool = False
    replaced: tuple[str, ...] = ()
    brought: tuple[str, ...] = ()
    times: int = 0
    oldest: int = 0
    above: frozenset[str] = frozenset()
    outputs: tuple[Segment, ...] = ()


class Segment(NamedTuple):
    """A registered segment: ``rows`` are bits, three for each push, and ``times`` the time that a correction of it
    would stand for."""

    name: str
    push: int
    mask: int
    version: int
    rows: int
    times: int


class State(NamedTuple):
    """``order`` are the pushes in the order of their first completion."""

    versions: int
    pushes: tuple[Push, ...]
    registered: frozenset[Segment]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """What was explored, and the first violation with the history that leads to it."""

    states: int
    whole: bool
    history: tuple[str, ...] = ()

    @property
    def violation(self) -> str:
        """The last line of the history."""
        return self.history[-1] if self.history else ""


def bits(push: int, mask: int) -> int:
    """The rows of a push at some times."""
    return mask << (3 * push)


def rows_at(rows: int, mask: int) -> int:
    """Those of ``rows``, of every push, that are at the times of ``mask``."""
    found = at = 0
    while rows >> at:
        found |= rows & (mask << at)
        at += 3
    return found


def append(name: str, mask: int = YEAR, **how: object) -> Plan:
    """New rows."""
    return Plan(name, "append", mask, **how)  # type: ignore[arg-type]


def overwrite(name: str, mask: int = 2, *, held: int = 0, **how: object) -> Plan:
    """New rows, or none, in the place of all that is older in the time that it holds."""
    return Plan(name, "overwrite", mask, held or mask, **how)  # type: ignore[arg-type]


def correction(name: str, mask: int = YEAR, **how: object) -> Plan:
    """Other rows in the place of one segment."""
    return Plan(name, "correction", mask, **how)  # type: ignore[arg-type]


def rewrite(name: str, inputs: int = 2) -> Plan:
    """The same rows in other segments."""
    return Plan(name, "rewrite", inputs=inputs)


class Model:
    """The steps that can be taken, and the sentence they must keep."""

    def __init__(self, plans: Sequence[Plan], off: Collection[str] = ()) -> None:
        self.plans = tuple(plans)
        self.off = frozenset(off)

    def on(self, guard: str) -> bool:
        """Return True unless the guard is switched off."""
        return guard not in self.off

    def initial(self) -> State:
        """The table with what is ``done`` already."""
        pushes: list[Push] = []
        registered: set[Segment] = set()
        order: list[int] = []
        for number, plan in enumerate(self.plans):
            if not plan.done:
                pushes.append(Push())
                continue
            version = len(order) + 1
            made = () if plan.empty else (_segment(number, 0, plan.mask, version),)
            registered.update(made)
            order.append(number)
            pushes.append(Push("ended", plan.done, "", version, True, (), tuple(one.name for one in made)))
        return State(len(order), tuple(pushes), frozenset(registered), tuple(order))

    # --- the sentence, and what the package shows

    def oracle(self, state: State) -> int:
        """The rows that must be seen, from the order of completions alone."""
        seen = 0
        for number, plan in enumerate(self.plans):
            push = state.pushes[number]
            if plan.kind == "rewrite" or plan.empty or push.state not in ("COMPLETED", "GONE"):
                continue
            mask, place = plan.mask, state.order.index(number)
            for later in state.order[place + 1 :]:
                if state.pushes[later].state in ("COMPLETED", "GONE"):
                    mask &= ~self.plans[later].held
            seen |= bits(number, mask)
        for number, plan in enumerate(self.plans):
            if plan.kind == "correction" and state.pushes[number].state in ("COMPLETED", "GONE"):
                seen &= ~state.pushes[number].times
        return seen

    def shown(self, state: State) -> dict[Segment, int]:
        """The segments that readers see, by the package's own rule, and which of their times."""
        return _shown(self.plans, state)

    def violation(self, state: State) -> str:
        """What readers see and must not, or do not and must; empty when all is well."""
        seen = 0
        for segment, mask in self.shown(state).items():
            rows = rows_at(segment.rows, mask)
            if seen & rows:
                return f"seen twice: {self.names(seen & rows)}"
            seen |= rows
        wanted = self.oracle(state)
        if seen & ~wanted:
            return f"seen, and must not be: {self.names(seen & ~wanted)}"
        return f"lost: {self.names(wanted & ~seen)}" if wanted & ~seen else ""

    def names(self, rows: int) -> str:
        """Rows as ``<push>@<time>``."""
        found = [
            f"{plan.name}@{at}"
            for number, plan in enumerate(self.plans)
            for at in range(3)
            if rows >> (3 * number + at) & 1
        ]
        return " ".join(found)

    def lineage(self, state: State) -> Lineage:
        """The lineage as the package keeps it."""
        return _lineage(self.plans, state.pushes)

    # --- steps

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Every step that can be taken, with what it leads to."""
        for number, push in enumerate(state.pushes):
            go_on = self._rewrite if self.plans[number].kind == "rewrite" else self._push
            yield from go_on(state, number, push)
            yield from self._operate(state, number, push)
        yield from self._remove_hidden(state)

    def _push(self, state: State, number: int, push: Push) -> Iterator[tuple[str, State]]:
        plan = self.plans[number]
        if not push.step:
            for replaced in self._corrected(state, number):
                names = tuple(one.name for one in replaced)
                times = replaced[0].times if replaced else 0
                started = push._replace(step="started", state="IN_PROGRESS", replaced=names, times=times)
                yield f"start {plan.name} {' '.join(names)}".rstrip(), _put(state, number, started)
        elif push.state != "IN_PROGRESS":
            return
        elif push.step == "started":
            version = state.versions + 1
            drawn = _put(state, number, push._replace(step="drawn", version=version))
            yield f"{plan.name} draws version {version}", drawn._replace(versions=version)
        elif push.step == "drawn":
            made = () if plan.empty else (_segment(number, 0, plan.mask, push.version),)
            staged = _put(state, number, push._replace(step="staged", brought=tuple(one.name for one in made)))
            staged = staged._replace(registered=state.registered | set(made))
            yield f"stage {plan.name}", staged
            if self._may_end(state, number, push):
                yield f"publish {plan.name}", self._completed(staged, number)
        elif push.step == "staged" and self._may_end(state, number, push):
            yield f"end {plan.name}", self._completed(state, number)
        if push.step in ("drawn", "staged") and push.state == "IN_PROGRESS" and state.versions < 9:
            own = frozenset(one for one in state.registered if one.push != number)
            again = _put(state, number, push._replace(step="started", brought=()))
            yield f"new attempt of {plan.name}", again._replace(registered=own)

    def _corrected(self, state: State, number: int) -> Iterator[tuple[Segment, ...]]:
        if self.plans[number].kind != "correction":
            yield ()
            return
        for segment in self.shown(state):
            if self._may_start(state, number, (segment.name,)):
                yield (segment,)

    def _may_start(self, state: State, number: int, names: tuple[str, ...]) -> bool:
        if not self.on("start: replaced by one entry"):
            return True
        visible = {one.name for one in self.shown(state)}
        request = StartRequest("t", str(number), names, (), visible, is_refresh=False, force_cleanup=False, now_ms=0)
        return _allowed(lambda: decide_start(self.lineage(state), request))

    def _may_end(self, state: State, number: int, push: Push) -> bool:
        lineage, plan = self.lineage(state), self.plans[number]
        held = [Overwrite(str(number), *_span(plan.held), push.version)] if plan.held else []
        own = [SegmentTime(plan.name, SPANS[plan.mask], push.version)]
        own += [SegmentTime(plan.name, Interval(one.start_ms, one.end_ms), one.version) for one in held]
        known = lineage
        if not self.on("end: overwrites that were rolled back count"):
            known = _only_completed(lineage)
        if self.on("end: not beneath an overwrite") and find_overtaken(known, own):
            return False
        others = [
            SegmentTime(one.name, SPANS[one.mask], one.version)
            for one in sorted(state.registered)
            if state.pushes[one.push].state != "IN_PROGRESS"
            and (state.pushes[one.push].state != "REVERTED" or self.on("end: rolled back segments count"))
        ]
        if self.on("end: nothing newer in an overwrite's time") and find_newer(held, others):
            return False
        return self._inputs_are_there(state, number, push)

    def _inputs_are_there(self, state: State, number: int, push: Push) -> bool:
        """Every ``from`` is registered, and nobody else has replaced it."""
        if not self.on("end: inputs are there"):
            return True
        there = {one.name for one in state.registered}
        others = {name for at, other in enumerate(state.pushes) if at != number for name in _replaced_by(other)}
        return there.issuperset(push.replaced) and others.isdisjoint(push.replaced)

    def _completed(self, state: State, number: int) -> State:
        push = state.pushes[number]._replace(step="ended", state="COMPLETED", completed_once=True)
        order = state.order if number in state.order else (*state.order, number)
        return _put(state, number, push)._replace(order=order)

    def _rewrite(self, state: State, number: int, push: Push) -> Iterator[tuple[str, State]]:
        plan = self.plans[number]
        if not push.step:
            yield from self._start_rewrite(state, number)
        elif push.state != "IN_PROGRESS":
            return
        elif push.step == "started":
            staged = _put(state, number, push._replace(step="staged", brought=tuple(one.name for one in push.outputs)))
            staged = staged._replace(registered=state.registered | set(push.outputs))
            yield f"stage {plan.name}", staged
            if self._may_end_rewrite(state, number, push):
                yield f"publish {plan.name}", self._completed(staged, number)
        elif push.step == "staged" and self._may_end_rewrite(state, number, push):
            yield f"end {plan.name}", self._completed(state, number)

    def _start_rewrite(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        plan, shown, lineage = self.plans[number], self.shown(state), self.lineage(state)
        for count in range(1, plan.inputs + 1):
            for inputs in combinations(sorted(shown), count):
                names = tuple(one.name for one in inputs)
                if not self._may_start(state, number, names):
                    continue
                times = [SegmentTime(one.name, SPANS[one.mask], one.version) for one in inputs]
                if self.on("rewrite: waits for unsettled overwrites") and find_unsettled(lineage, times):
                    continue
                mask = _union(one.mask for one in inputs)
                chunk = mask if mask in MONTHS else YEAR
                oldest = min(one.version for one in inputs)
                version = rewritten_version(lineage, times) if self.on("rewrite: newest version") else oldest
                rows = _union(
                    rows_at(one.rows, shown[one]) if self.on("rewrite: only what is seen") else one.rows
                    for one in inputs
                )
                for shape, pieces in (("merge", (chunk,)), ("split", tuple(one for one in MONTHS if one & mask))):
                    if shape == "split" and pieces == (chunk,):
                        continue
                    outputs = tuple(
                        Segment(f"{number}.{at}", number, piece, version, rows_at(rows, piece), rows_at(stands, piece))
                        for at, piece in enumerate(pieces)
                        for stands in (_union(one.times for one in inputs),)
                    )
                    started = Push(
                        "started", "IN_PROGRESS", replaced=names, oldest=oldest, version=version, times=chunk,
                        above=overwrites_above(lineage, SPANS[chunk], oldest), outputs=outputs,
                    )  # fmt: skip
                    yield f"start {plan.name}: {shape} {' '.join(names)}", _put(state, number, started)

    def _may_end_rewrite(self, state: State, number: int, push: Push) -> bool:
        above = overwrites_above(self.lineage(state), SPANS[push.times], push.oldest)
        if self.on("rewrite: overwrites as they were read") and above - push.above:
            return False
        return self._inputs_are_there(state, number, push)

    # --- what people and the clean-up do

    def _operate(self, state: State, number: int, push: Push) -> Iterator[tuple[str, State]]:
        name = self.plans[number].name
        if push.state == "IN_PROGRESS":
            yield f"abort {name}", _put(state, number, push._replace(state="REVERTED", cleaning=self._marks_aborted()))
        if push.state == "COMPLETED" and self._may_revert(state, number, push):
            yield f"revert {name}", _put(state, number, push._replace(state="REVERTED"))
        if push.state == "REVERTED" and self._may_bring_back(state, number, push):
            yield f"bring back {name}", self._completed(state, number)
        if push.state in ("COMPLETED", "REVERTED") and not push.cleaning:
            yield f"mark {push.state.lower()} {name}", _put(state, number, push._replace(cleaning=push.state))
        yield from self._clean_completed(state, number, push)
        yield from self._clean_reverted(state, number, push)

    def _marks_aborted(self) -> str:
        """What was never completed has nothing to bring back: its abort marks it."""
        return "REVERTED" if self.on("abort: marked") else ""

    def _clean_completed(self, state: State, number: int, push: Push) -> Iterator[tuple[str, State]]:
        """What it replaced goes; then the entry."""
        name = self.plans[number].name
        unmarked = push.state == "COMPLETED" and not self.on("clean-up: mark first")
        if push.cleaning == "COMPLETED" or unmarked:
            yield from self._remove(state, push.replaced, f"replaced by {name}")
        if push.cleaning == push.state == "COMPLETED" and self._may_drop(state, number, push):
            yield f"drop {name}", _put(state, number, _left(push))

    def _clean_reverted(self, state: State, number: int, push: Push) -> Iterator[tuple[str, State]]:
        """What it brought goes, once its own period is over; then the entry."""
        name = self.plans[number].name
        own = [one.name for one in state.registered if one.push == number]
        unmarked = push.state == "REVERTED" and not self.on("clean-up: mark what was rolled back first")
        if push.cleaning == "REVERTED" or unmarked:
            yield from self._remove(state, own, f"of {name}")
        is_gone = not own or not self.on("drop: what was rolled back is gone")
        if push.state == "REVERTED" and push.cleaning and is_gone:
            yield f"drop reverted {name}", _put(state, number, _left(push)._replace(state="FORGOTTEN"))

    def _may_revert(self, state: State, number: int, push: Push) -> bool:
        try:
            check_revert(self.lineage(state), str(number), force=Force.NEVER)
        except RevertRefusedError as refused:
            guard = {"built-upon": "revert: not built upon", "replaced-are-deleted": "revert: not marked"}[refused.rule]
            if self.on(guard):
                return False
        there = {one.name for one in state.registered}
        if self.on("revert: what it brought is there") and not there.issuperset(push.brought):
            return False
        return not self.on("revert: what it replaced is there") or there.issuperset(push.replaced)

    def _may_bring_back(self, state: State, number: int, push: Push) -> bool:
        if not push.completed_once and self.on("bring back: it was completed once"):
            return False
        if not self._may_come_back(state, number, push):
            return False
        there = {one.name for one in state.registered}
        if self.on("bring back: what it brought is there") and not there.issuperset(push.brought):
            return False
        visible = {one.name for one in self.shown(state)}
        return not self.on("bring back: what it replaces is visible") or visible.issuperset(push.replaced)

    def _may_come_back(self, state: State, number: int, push: Push) -> bool:
        """What the lineage alone says: it is not marked, and nothing was built upon what it replaced."""
        try:
            check_unrevert(self.lineage(state), str(number))
        except UnrevertRefusedError as refused:
            if refused.rule == "nothing-to-bring-back":
                return False
            guard = {
                "brought-are-deleted": "bring back: not marked",
                "built-since": "bring back: nothing was built since",
            }[refused.rule]
            return not self.on(guard)
        return True

    def _may_drop(self, state: State, number: int, push: Push) -> bool:
        there = {one.name for one in state.registered}
        if self.on("drop: what it replaced is gone") and there.intersection(push.replaced):
            return False
        held = [one for one in self.lineage(state).overwrites if one.entry_id == str(number)]
        registered = state.registered
        if not self.on("drop: what lies beneath counts though hidden"):
            registered = frozenset(self.shown(state))
        return not (self.on("drop: nothing beneath") and lies_beneath(held, _shards(registered)))

    def _remove_hidden(self, state: State) -> Iterator[tuple[str, State]]:
        lineage = self.lineage(state)
        if not self.on("hidden for good: only by marked overwrites"):
            lineage = _all_marked(lineage)
        settled = [one for one in state.registered if state.pushes[one.push].state in _SETTLED]
        gone = hidden_for_good(lineage, _shards(frozenset(settled)))
        yield from self._remove(state, [one.record.name for one in gone], "hidden for good")

    def _remove(self, state: State, names: Collection[str], why: str) -> Iterator[tuple[str, State]]:
        for segment in sorted(state.registered):
            if segment.name in names:
                yield f"remove {segment.name}, {why}", state._replace(registered=state.registered - {segment})

    # --- looking at many states

    def explore(self, most: int) -> Found:
        """Every state, breadth first, or the first ``most``; stops at the first violation."""
        first = self.initial()
        came_from: dict[State, tuple[State, str] | None] = {first: None}
        todo = deque([first])
        while todo:
            state = todo.popleft()
            for label, after in self.steps(state):
                if after in came_from:
                    continue
                came_from[after] = (state, label)
                if bad := self.violation(after):
                    return Found(len(came_from), False, (*_history(came_from, after), f"=> {bad}"))
                todo.append(after)
            if len(came_from) > most:
                return Found(len(came_from), False)
        return Found(len(came_from), True)

    def walk(self, chance: random.Random, length: int, taken: Counter[str]) -> Found:
        """A random walk, after which everything dies and clean-up runs to its end: nothing that is seen changes, and
        nothing hidden is left behind."""
        state, history = self.initial(), list[str]()
        for number in range(length + 1_000):
            steps = list(self.steps(state))
            if number >= length:
                steps = [one for one in steps if one[0].startswith(("abort", "mark", "remove", "drop"))]
            if not steps:
                break
            rare = ("remove", "drop", "mark", "abort", "new attempt")
            weights = [0.25 if label.startswith(rare) else 1.0 for label, _ in steps]
            label, state = chance.choices(steps, weights)[0]
            history.append(label)
            taken[label.split()[0]] += 1
            if bad := self.violation(state):
                return Found(number, False, (*history, f"=> {bad}"))
        left = [one.name for one in state.registered if one not in self.shown(state)]
        return Found(length, True, (*history, f"=> left behind: {left}") if left else ())


def _segment(push: int, at: int, mask: int, version: int) -> Segment:
    return Segment(f"{push}.{at}.{version}", push, mask, version, bits(push, mask), bits(push, mask))


def _put(state: State, number: int, push: Push) -> State:
    return state._replace(pushes=(*state.pushes[:number], push, *state.pushes[number + 1 :]))


def _left(push: Push) -> Push:
    """The push once its entry has left the lineage."""
    return Push("ended", "GONE", version=push.version, completed_once=True, brought=push.brought, times=push.times)


def _replaced_by(push: Push) -> tuple[str, ...]:
    return push.replaced if push.state == "COMPLETED" else ()


def _union(masks: Iterator[int] | Sequence[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _span(mask: int) -> tuple[int, int]:
    return SPANS[mask].start_ms, SPANS[mask].end_ms


def _allowed(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except RefusedError:
        return False
    return True


@lru_cache(maxsize=20_000)
def _lineage(plans: tuple[Plan, ...], pushes: tuple[Push, ...]) -> Lineage:
    lineage = Lineage("t")
    for number, (plan, push) in enumerate(zip(plans, pushes, strict=True)):
        if push.state not in EntryState.__members__:
            continue
        entry = LineageEntry.of(str(number), push.replaced, push.brought, EntryState[push.state], 0)
        lineage = lineage.put(entry)
        if push.cleaning:
            lineage = lineage.with_cleaning(entry.entry_id, 0)
        if plan.held and push.completed_once:
            lineage = lineage.with_overwrite([Overwrite(entry.entry_id, *_span(plan.held), push.version)])
    return lineage


@lru_cache(maxsize=20_000)
def _shards(segments: frozenset[Segment]) -> tuple[Shard, ...]:
    found = []
    for segment in sorted(segments):
        chunk = CHUNKS[segment.mask]
        name = ShardName(chunk, f"/{chunk}/{segment.name}", str(segment.push), "build", 1)
        shard = Shard(name, 0, 0, msgspec.Raw(b"[]"))
        shard.__dict__["records"] = [SegmentRecord(segment.name, "f", 1, 1, 1, version=segment.version)]
        found.append(shard)
    return tuple(found)


@lru_cache(maxsize=20_000)
def _shown(plans: tuple[Plan, ...], state: State) -> dict[Segment, int]:
    lineage = _lineage(plans, state.pushes)
    view = View(lineage, 1)
    settled = frozenset(one for one in state.registered if state.pushes[one.push].state in _SETTLED)
    visible = Visibility(view, _shards(settled))
    names = {record.name for _, records in visible.blocks for record in records}
    return {
        one: _mask_of(visible.cuts[one.name]) & one.mask if one.name in visible.cuts else one.mask
        for one in settled
        if one.name in names
    }


def _mask_of(parts: Sequence[Interval]) -> int:
    return _union(mask for mask in MONTHS if any(part.contains(SPANS[mask]) for part in parts))


def _only_completed(lineage: Lineage) -> Lineage:
    for entry in list(lineage.in_state(EntryState.REVERTED)):
        lineage = lineage.without(entry.entry_id)
    return lineage


def _all_marked(lineage: Lineage) -> Lineage:
    for entry in list(lineage):
        lineage = lineage.with_cleaning(entry.entry_id, 0)
    return lineage


def _history(came_from: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    labels: list[str] = []
    while (step := came_from[state]) is not None:
        state, label = step
        labels.append(label)
    return tuple(reversed(labels))


def some_table(chance: random.Random) -> list[Plan]:
    """Four to eleven pushes of all kinds."""
    masks = [1, 2, 4, YEAR, YEAR]
    plans = [
        append("ABDE"[at], chance.choice([YEAR, *masks]), done=chance.choice(["", "COMPLETED", "GONE"]))
        for at in range(chance.randint(2, 4))
    ]
    for at in range(chance.randint(1, 3)):
        empty = chance.random() < 0.3
        mask = chance.choice(masks)
        held = chance.choice([3, 6, YEAR]) if empty else mask
        done = chance.choice(["", "", "COMPLETED"])
        plans.append(overwrite("OQR"[at], mask, held=held, empty=empty, done=done))
    plans += [rewrite("KLM"[at], 3) for at in range(chance.randint(1, 3))]
    if chance.random() < 0.5:
        plans.append(correction("X", chance.choice(masks), empty=chance.random() < 0.5))
    chance.shuffle(plans)
    return sorted(plans, key=lambda plan: not plan.done)
