"""What is known of a table, for as long as it has not changed.

What readers see follows from three znodes: config, lineage and the root of the registry. A push that stages changes
none of them, and shows nothing; whatever becomes visible, hidden or removed changes one. So a page that refreshes
itself reads three znodes a table, and after a change what is new of the guards and the registry.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage
from airflow_provider_segments.core.lineage.guard import StoredGuard
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.forecast import Totals
from airflow_provider_segments.core.replacement.history import TableRead
from airflow_provider_segments.core.snapshot import Visibility
from airflow_provider_segments.core.table import SegmentStore, Table, newest_of
from airflow_provider_segments.core.table_config import decode_config
from airflow_provider_segments.exceptions import CorruptRecordError, TableDroppedError
from airflow_provider_segments.plugins.models import Timeline
from airflow_provider_segments.plugins.waiting import Waiting, read_waiting

_MOST_KEPT = 500_000
"""Entries and segments of all tables that are remembered: some hundred megabytes."""

_QUEUE_AGE_S = 30.0
_TURNS = 64
NOTHING = Totals(0, 0, 0)


class Stamp(NamedTuple):
    """The last changes of the znodes that decide what readers see; 0 for one that is missing."""

    config: int
    lineage: int
    root: int


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table as it was at ``stamp``.

    ``visible`` is what readers see, ``None`` of a dropped table. ``shown`` and ``hidden`` are the totals of the
    registered segments of settled entries that the lineage shows and hides, ``rolled_back`` those of REVERTED entries.
    ``brought`` has what is registered of each entry, and ``replaced`` what each has replaced, ``None`` where some of
    that was removed since. ``read`` is what all of this was made of. ``after`` and ``timelines`` are filled as they are
    asked for: they follow from the same znodes, and are forgotten with them.
    """

    stamp: Stamp
    config: TableConfig
    lineage: Lineage
    guards: Mapping[str, StoredGuard]
    latest: str | None
    visible: Totals | None
    shown: Totals
    hidden: Totals
    rolled_back: Totals
    brought: Mapping[str, Totals]
    replaced: Mapping[str, Totals | None]
    read: TableRead = field(compare=False, repr=False)
    after: dict[str, Totals | None] = field(default_factory=dict, compare=False)
    timelines: dict[object, Timeline] = field(default_factory=dict, compare=False)

    @property
    def size(self) -> int:
        """Entries and segments."""
        return 1 + len(self.lineage) + self.shown.segments + self.hidden.segments


class FactsCache:
    """The facts of the tables of one store. May be shared by threads."""

    def __init__(self, store: SegmentStore) -> None:
        self.store = store
        self._known: OrderedDict[str, TableFacts] = OrderedDict()
        self._configs: dict[str, tuple[int, TableConfig]] = {}
        self._waiting: tuple[float, Waiting] | None = None
        self._lock = threading.Lock()
        self._turns = tuple(threading.Lock() for _ in range(_TURNS))

    def waiting(self) -> Waiting:
        """What waits for deletion, at most half a minute old: a long queue is megabytes to read."""
        now, known = self.store.clock.monotonic(), self._waiting
        if known is None or now - known[0] > _QUEUE_AGE_S:
            known = self._waiting = (now, read_waiting(self.store))
        return known[1]

    def configs(self) -> dict[str, TableConfig]:
        """The configs of all tables by name, but for those that cannot be read: reading such a table says why."""
        names = self.store.tables()
        paths = [self.store.paths.config(name) for name in names]
        found: dict[str, tuple[int, TableConfig]] = {}
        for name, path, node in zip(names, paths, self.store.session.get_many(paths), strict=True):
            if node is None:
                continue
            known = self._configs.get(name)
            if known is None or known[0] != node.mzxid:
                try:
                    known = (node.mzxid, decode_config(node.data, name, path))
                except CorruptRecordError:
                    continue
            found[name] = known
        self._configs = found
        return {name: config for name, (_, config) in found.items()}

    def stamps(self, names: Sequence[str]) -> list[Stamp]:
        """The stamps of those tables now, for one read."""
        paths = self.store.paths
        wanted = [path for name in names for path in (paths.config(name), paths.lineage(name), paths.registry(name))]
        at = [0 if node is None else node.mzxid for node in self.store.session.get_many(wanted)]
        return [Stamp(*at[start : start + 3]) for start in range(0, len(at), 3)]

    def get(self, name: str, stamp: Stamp | None = None) -> TableFacts:
        """The facts of a table, whose ``stamp`` may have been read already. Who asks for a table that is being read
        waits for it. Raises what reading the table raises."""
        now = stamp or self.stamps([name])[0]
        with self._turn(name):
            known = self._remembered(name)
            if known is not None and known.stamp == now:
                return known
            facts = read_facts(self.store.table(name), now, None if known is None else known.read)
            facts.after.update({} if known is None else _still_true(known, facts))
            with self._lock:
                self._known[name] = facts
                self._known.move_to_end(name)
                self._shrink()
            return facts

    def _turn(self, name: str) -> threading.Lock:
        """One table is read by one thread at a time."""
        return self._turns[hash(name) % _TURNS]

    def _remembered(self, name: str) -> TableFacts | None:
        with self._lock:
            if name in self._known:
                self._known.move_to_end(name)
            return self._known.get(name)

    def _shrink(self) -> None:
        size = sum(facts.size for facts in self._known.values())
        while size > _MOST_KEPT and len(self._known) > 1:
            _, dropped = self._known.popitem(last=False)
            size -= dropped.size


def read_facts(table: Table, stamp: Stamp, before: TableRead | None = None) -> TableFacts:
    """Read a table, of which an earlier read may be known. Its znodes may be newer than ``stamp`` by then: the next
    look reads it again. Raises what reading the table raises."""
    config, read = table.config(), table.read_whole(before)
    lineage, guards, shards = read.stored.lineage, read.guards, read.registry.shards
    settled = [shard for shard in shards if read.view.may_show(shard.name)]
    shown = Totals.of(record for _, records in Visibility(read.view, settled).blocks for record in records)
    brought = _brought(shards)
    return TableFacts(
        stamp=stamp,
        config=config,
        lineage=lineage,
        guards=guards,
        latest=newest_of(lineage.in_state(EntryState.COMPLETED), guards),
        visible=_visible(table, lineage, shown),
        shown=shown,
        hidden=less(together(brought[name] for name in {shard.name.entry_id for shard in settled}), shown),
        rolled_back=together(brought.get(entry.entry_id, NOTHING) for entry in lineage.in_state(EntryState.REVERTED)),
        brought=brought,
        replaced=_replaced(lineage, shards),
        read=read,
    )


def _still_true(known: TableFacts, facts: TableFacts) -> dict[str, Totals | None]:
    """What readers saw after those entries that are as they were: the past changes only by a clean-up."""
    if known.read.registry.root != facts.read.registry.root:
        return {}
    same = facts.lineage.entries
    return {key: after for key, after in known.after.items() if same.get(key) == known.lineage.entries[key]}


def together(parts: Iterable[Totals]) -> Totals:
    """The sum of several totals."""
    segments = rows = size = 0
    for part in parts:
        segments, rows, size = segments + part.segments, rows + part.rows, size + part.bytes
    return Totals(segments, rows, size)


def less(whole: Totals, part: Totals) -> Totals:
    """What is left of ``whole`` without ``part``."""
    return Totals(whole.segments - part.segments, whole.rows - part.rows, whole.bytes - part.bytes)


def _visible(table: Table, lineage: Lineage, shown: Totals) -> Totals | None:
    if lineage.dropped_by is not None:
        return None
    if lineage.upsert is None:
        return shown
    try:
        seen = table.snapshot()
    except TableDroppedError:
        return None
    return Totals(len(seen), seen.rows, seen.bytes)


def _brought(shards: Sequence[Shard]) -> dict[str, Totals]:
    """What is registered of each entry. A table has many small shards, so this is one plain loop."""
    found: dict[str, Totals] = {}
    for shard in shards:
        rows = size = 0
        for record in shard.records:
            rows += record.rows
            size += record.bytes
        before = found.get(shard.name.entry_id, NOTHING)
        found[shard.name.entry_id] = Totals(
            before.segments + len(shard.records), before.rows + rows, before.bytes + size
        )
    return found


def _replaced(lineage: Lineage, shards: Sequence[Shard]) -> dict[str, Totals | None]:
    """What each entry has replaced; ``None`` where some of that is gone."""
    wanted = {name for entry in lineage for name in entry.segments_from}
    if not wanted:
        return dict.fromkeys(lineage.entries, NOTHING)
    records = {record.name: record for shard in shards for record in shard.records if record.name in wanted}
    return {
        entry.entry_id: Totals.of(records[name] for name in entry.segments_from)
        if all(name in records for name in entry.segments_from)
        else None
        for entry in lineage
    }
