"""What is known of a table, for as long as it has not changed.

What readers see follows from three znodes: config, lineage and the root of the registry. A push that stages changes
none of them, and shows nothing; whatever becomes visible, hidden or removed changes one. So a page that refreshes
itself reads three znodes a table, and the guards and the registry again only after a change.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage
from airflow_provider_segments.core.lineage.guard import StoredGuard
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.segment import SegmentRecord, SegmentState
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.forecast import Totals
from airflow_provider_segments.core.snapshot import View, Visibility
from airflow_provider_segments.core.table import SegmentStore, Table, newest_of
from airflow_provider_segments.exceptions import ContentionError, TableDroppedError
from airflow_provider_segments.plugins.waiting import Waiting, read_waiting

_ATTEMPTS = 20
_MOST_ENTRIES = 200_000
_QUEUE_AGE_S = 30.0
NOTHING = Totals(0, 0, 0)


class Stamp(NamedTuple):
    """The last changes of the znodes that decide what readers see; 0 for one that is missing."""

    config: int
    lineage: int
    root: int


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table as it was at ``stamp``.

    ``visible`` is what readers see, ``None`` of a dropped table. ``states`` has the totals of the registered segments
    of settled entries by their state, ``rolled_back`` those of REVERTED entries. ``brought`` has what is registered of
    each entry, and ``replaced`` what each has replaced, ``None`` where some of that was removed since.
    """

    stamp: Stamp
    config: TableConfig
    lineage: Lineage
    guards: Mapping[str, StoredGuard]
    latest: str | None
    visible: Totals | None
    states: Mapping[SegmentState, Totals]
    rolled_back: Totals
    brought: Mapping[str, Totals]
    replaced: Mapping[str, Totals | None]


class FactsCache:
    """The facts of the tables of one store. May be shared by threads."""

    def __init__(self, store: SegmentStore) -> None:
        self.store = store
        self._known: OrderedDict[str, TableFacts] = OrderedDict()
        self._waiting: tuple[float, Waiting] | None = None
        self._lock = threading.Lock()

    def waiting(self) -> Waiting:
        """What waits for deletion, at most half a minute old: a long queue is megabytes to read."""
        now, known = self.store.clock.monotonic(), self._waiting
        if known is None or now - known[0] > _QUEUE_AGE_S:
            known = self._waiting = (now, read_waiting(self.store))
        return known[1]

    def stamps(self, names: Sequence[str]) -> list[Stamp]:
        """The stamps of those tables now, for one read."""
        paths = self.store.paths
        wanted = [path for name in names for path in (paths.config(name), paths.lineage(name), paths.registry(name))]
        at = [0 if node is None else node.mzxid for node in self.store.session.get_many(wanted)]
        return [Stamp(*at[start : start + 3]) for start in range(0, len(at), 3)]

    def get(self, name: str, stamp: Stamp | None = None) -> TableFacts:
        """The facts of a table, whose ``stamp`` may have been read already. Raises what reading the table raises."""
        now = stamp or self.stamps([name])[0]
        with self._lock:
            known = self._known.get(name)
            if known is not None and known.stamp == now:
                self._known.move_to_end(name)
                return known
        facts = read_facts(self.store.table(name), now)
        with self._lock:
            self._known[name] = facts
            self._known.move_to_end(name)
            self._shrink()
        return facts

    def _shrink(self) -> None:
        size = sum(1 + len(facts.lineage) for facts in self._known.values())
        while size > _MOST_ENTRIES and len(self._known) > 1:
            _, dropped = self._known.popitem(last=False)
            size -= 1 + len(dropped.lineage)


def read_facts(table: Table, stamp: Stamp) -> TableFacts:
    """Read a table. Its znodes may be newer than ``stamp`` by then: the next look reads it again. Raises
    :class:`ContentionError` when clean-ups overtake every attempt, and what reading the table raises."""
    config = table.config()
    for _ in range(_ATTEMPTS):
        stored = table.context.records.read()
        read = table.context.registry.read(lambda _: True)
        if read.root.root.removed_at <= stored.zxid:
            break
    else:
        raise ContentionError(f"table {table.name!r}: clean-ups overtook all {_ATTEMPTS} attempts to read it")
    lineage = stored.lineage
    guards = table.context.records.guards(lineage.entries)
    records = {record.name: record for shard in read.shards for record in shard.records}
    states = _states(View(lineage, stored.zxid), read.shards)
    completed = lineage.in_state(EntryState.COMPLETED)
    return TableFacts(
        stamp=stamp,
        config=config,
        lineage=lineage,
        guards=guards,
        latest=newest_of(completed, guards),
        visible=_visible(table, lineage, states),
        states=states,
        rolled_back=_rolled_back(lineage, read.shards),
        brought=_brought(read.shards),
        replaced={entry.entry_id: _replaced(entry.segments_from, records) for entry in lineage},
    )


def _visible(table: Table, lineage: Lineage, states: Mapping[SegmentState, Totals]) -> Totals | None:
    if lineage.dropped_by is not None:
        return None
    if lineage.upsert is None:
        return states.get(SegmentState.VISIBLE, NOTHING)
    try:
        seen = table.snapshot()
    except TableDroppedError:
        return None
    return Totals(len(seen), seen.rows, seen.bytes)


def _states(view: View, shards: Sequence[Shard]) -> dict[SegmentState, Totals]:
    settled = [shard for shard in shards if view.may_show(shard.name)]
    visible = Visibility(view, settled)
    by_state: dict[SegmentState, list[SegmentRecord]] = {}
    for shard in settled:
        for record, state in zip(shard.records, visible.states(shard), strict=True):
            by_state.setdefault(state, []).append(record)
    return {state: Totals.of(records) for state, records in by_state.items()}


def _rolled_back(lineage: Lineage, shards: Sequence[Shard]) -> Totals:
    reverted = {entry.entry_id for entry in lineage.in_state(EntryState.REVERTED)}
    return Totals.of(record for shard in shards if shard.name.entry_id in reverted for record in shard.records)


def _brought(shards: Sequence[Shard]) -> dict[str, Totals]:
    by_entry: dict[str, list[SegmentRecord]] = {}
    for shard in shards:
        by_entry.setdefault(shard.name.entry_id, []).extend(shard.records)
    return {entry_id: Totals.of(records) for entry_id, records in by_entry.items()}


def _replaced(names: Iterable[str], records: Mapping[str, SegmentRecord]) -> Totals | None:
    found = [records.get(name) for name in names]
    known = [record for record in found if record is not None]
    return Totals.of(known) if len(known) == len(found) else None
