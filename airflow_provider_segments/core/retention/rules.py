"""What the clean-up does with a lineage entry, and why. Pure: the pass and its dry run decide here, and nowhere else.

Source: Apache Pinot's RetentionManager and DefaultLineageManager (the table in docs/lineage.md), made stricter: an
initial push is kept for the retention period too, and a reverted entry stays as a tombstone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.hiding import is_settled
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.period import format_period
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.shard import Shard, ShardName

WRITE_GRACE_MS = 3_600_000
"""How long a reverted entry is kept as a tombstone: longer than the longest write to the store can take, so that an
object that lands late (a blocked PUT, a speculative task) still lies under the prefix of an entry that will be swept
again."""


class Action(enum.Enum):
    """ABORT reverts a push that nobody ended; MARK takes its hidden segments out of the registry and queues their
    deletion; SETTLE only says that an overwrite can no longer be rolled back; DROP removes an entry that hides nothing
    any more."""

    KEEP = "keep"
    ABORT = "abort"
    MARK = "mark"
    SETTLE = "settle"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Freed:
    """Segments, and the bytes of all their copies."""

    segments: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, records: Iterable[SegmentRecord]) -> Freed:
        """The totals of ``records``."""
        sizes = [record.stored_bytes for record in records]
        return cls(len(sizes), sum(sizes))

    def __add__(self, other: Freed) -> Freed:
        return Freed(self.segments + other.segments, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Rule:
    """What an entry's state and age allow, and the words for it."""

    may_mark: bool
    may_drop: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done with one entry. ``freed`` is what it hides: what ABORT and MARK mark."""

    entry: LineageEntry
    action: Action
    reason: str
    freed: Freed = Freed()

    @property
    def entry_id(self) -> str:
        """The entry's id."""
        return self.entry.entry_id


def rule_for(lineage: Lineage, entry: LineageEntry, config: TableConfig, now_ms: int) -> Rule:
    """What may be done with ``entry`` now. Ages are compared strictly, as in Pinot: ``0s`` is over a millisecond after.

    A forced start lets the segments that a COMPLETED entry replaced go before their time; when it died on the way, the
    mark it left says so, and they go with the next pass, whatever the entry's age. What was rolled back can be brought
    back for a period of its own; what was aborted carries the mark from the start.
    """
    age = now_ms - entry.timestamp_ms
    since = f"{entry.state.value} for {format_period(max(age, 0))}"
    match entry.state:
        case EntryState.COMPLETED:
            due = age > config.replaced_retention_ms
            reason = _compared(since, "replacedSegmentsRetentionPeriod", config.replaced_retention_ms, over=due)
            if not due and lineage.is_cleaning(entry.entry_id):
                return Rule(True, False, "a forced start let what it replaced go; " + reason)
            if due and (rewriter := _rewriter_of(lineage, entry)):
                return Rule(False, False, f"entry {rewriter} rewrote what it replaced; what that replaced goes first")
            return Rule(due, due, reason)
        case EntryState.IN_PROGRESS:
            due = age > config.entry_retention_ms
            reason = _compared(since, "lineageEntryCleanupRetentionPeriod", config.entry_retention_ms, over=due)
            return Rule(due, False, reason)
        case EntryState.REVERTED if lineage.is_cleaning(entry.entry_id):
            due = age > WRITE_GRACE_MS
            return Rule(True, due, _compared(since, "the longest late write", WRITE_GRACE_MS, over=due))
        case EntryState.REVERTED:
            due = age > config.reverted_retention_ms
            reason = _compared(since, "revertedSegmentsRetentionPeriod", config.reverted_retention_ms, over=due)
            return Rule(due, due and age > WRITE_GRACE_MS, reason)


def _rewriter_of(lineage: Lineage, entry: LineageEntry) -> str | None:
    """An entry that brought some of what ``entry`` replaced and that readers may still fall back from. Its segments
    must not leave the registry before it can no longer: they would count as lost. By one clock that entry is the older
    one and goes first or at the same time; hosts have several."""
    replaced = frozenset(entry.segments_from) if lineage.rewrites else frozenset()
    for entry_id in lineage.rewrites if replaced else ():
        if entry_id != entry.entry_id and not replaced.isdisjoint(lineage.entries[entry_id].segments_to):
            return entry_id
    return None


def needs_look(lineage: Lineage, config: TableConfig, now_ms: int) -> list[LineageEntry]:
    """The entries that may be marked, so that somebody must look what they still hide."""
    return [entry for entry in lineage if rule_for(lineage, entry, config, now_ms).may_mark]


def wanted_shards(lineage: Lineage, entries: Collection[LineageEntry]) -> Callable[[ShardName], bool]:
    """Which shards can hold what ``entries`` hide."""
    unwanted = {entry.entry_id for entry in entries if entry.state is not EntryState.COMPLETED}
    replaced = any(entry.state is EntryState.COMPLETED and entry.joined_from for entry in entries)
    return lambda name: name.entry_id in unwanted or (replaced and is_settled(lineage, name.entry_id))


def hidden_by(lineage: Lineage, entries: Collection[LineageEntry], shards: Iterable[Shard]) -> dict[str, Freed]:
    """What each of ``entries`` hides of ``shards``: everything staged into one that is unwanted, and everything a
    COMPLETED one replaced. A push still in progress may have staged a replaced name: that one was never visible, and
    is for that push's own end to decide."""
    unwanted = {entry.entry_id for entry in entries if entry.state is not EntryState.COMPLETED}
    replaced: dict[str, list[str]] = {}
    for entry in entries:
        for name in entry.segments_from if entry.state is EntryState.COMPLETED else ():
            replaced.setdefault(name, []).append(entry.entry_id)
    found: dict[str, Freed] = {}
    for shard in shards:
        owner = shard.name.entry_id
        if owner in unwanted:
            found[owner] = found.get(owner, Freed()) + Freed.of(shard.records)
        elif replaced and is_settled(lineage, owner):
            by_entry: dict[str, list[SegmentRecord]] = {}
            for record in shard.records:
                for entry_id in replaced.get(record.name, ()):
                    by_entry.setdefault(entry_id, []).append(record)
            for entry_id, records in by_entry.items():
                if entry_id != owner:
                    found[entry_id] = found.get(entry_id, Freed()) + Freed.of(records)
    return found


def decide(lineage: Lineage, hidden: Mapping[str, Freed], config: TableConfig, now_ms: int) -> list[Decision]:
    """A decision for every entry. ``hidden`` says what each entry of :func:`needs_look` still hides."""
    return [_decision(lineage, entry, hidden.get(entry.entry_id, Freed()), config, now_ms) for entry in lineage]


def apply_decision(lineage: Lineage, decision: Decision, now_ms: int) -> Lineage:
    """The lineage once ``decision`` is carried out."""
    match decision.action:
        case Action.ABORT:
            reverted = lineage.put(decision.entry.moved_to(EntryState.REVERTED, now_ms))
            return reverted.with_cleaning(decision.entry_id, now_ms)
        case Action.DROP:
            return lineage.without(decision.entry_id)
        case Action.MARK | Action.SETTLE:
            return lineage.with_cleaning(decision.entry_id, now_ms)
    return lineage


def _decision(lineage: Lineage, entry: LineageEntry, freed: Freed, config: TableConfig, now_ms: int) -> Decision:
    rule = rule_for(lineage, entry, config, now_ms)
    if not rule.may_mark:
        return Decision(entry, Action.KEEP, rule.reason)
    if entry.state is EntryState.IN_PROGRESS:
        return Decision(entry, Action.ABORT, rule.reason, freed)
    if freed.segments:
        return Decision(entry, Action.MARK, rule.reason, freed)
    if entry.state is EntryState.COMPLETED and not lineage.is_cleaning(entry.entry_id) and _overwrites(lineage, entry):
        return Decision(entry, Action.SETTLE, rule.reason)
    return Decision(entry, Action.DROP if rule.may_drop else Action.KEEP, rule.reason)


def _overwrites(lineage: Lineage, entry: LineageEntry) -> bool:
    return any(one.entry_id == entry.entry_id for one in lineage.overwrites)


def _compared(since: str, name: str, limit_ms: int, *, over: bool) -> str:
    return f"{since}, {'longer' if over else 'not longer'} than {name} ({format_period(limit_ms)})"
