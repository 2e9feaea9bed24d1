"""Segment lineage: which segments replaced which, as Apache Pinot keeps it.

An entry keeps its two name lists in Pinot's comma-joined form and splits them when somebody asks: a lineage of
100,000 names is read, checked and written back in milliseconds because most lists are never looked at.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Self

from airflow_provider_segments.core.model.interval import Interval


class EntryState(enum.Enum):
    """State of a lineage entry (Pinot's three)."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    REVERTED = "REVERTED"


@dataclass(frozen=True)
class LineageEntry:
    """One replacement: ``segments_from`` give way to ``segments_to``.

    ``timestamp_ms`` is the wall-clock time, in epoch milliseconds, at which the entry entered its present ``state``; it
    is for people and for retention periods, never for order. ``extra`` holds what a newer Pinot wrote behind the four
    elements we know; it is kept as it is.
    """

    entry_id: str
    joined_from: str
    joined_to: str
    state: EntryState
    timestamp_ms: int
    extra: tuple[str | None, ...] = ()

    @classmethod
    def of(
        cls,
        entry_id: str,
        segments_from: Iterable[str],
        segments_to: Iterable[str],
        state: EntryState,
        timestamp_ms: int,
    ) -> Self:
        """An entry of these names, which must be valid segment names."""
        return cls(entry_id, ",".join(segments_from), ",".join(segments_to), state, timestamp_ms)

    @cached_property
    def segments_from(self) -> tuple[str, ...]:
        """Names of the segments that are replaced. Empty tokens are dropped, as Pinot does."""
        return tuple(filter(None, self.joined_from.split(",")))

    @cached_property
    def segments_to(self) -> tuple[str, ...]:
        """Names of the segments that replace them."""
        return tuple(filter(None, self.joined_to.split(",")))

    @property
    def is_live(self) -> bool:
        """Whether the entry is in progress or completed: whether it takes part in the rules of ``start``."""
        return self.state is not EntryState.REVERTED

    def moved_to(self, state: EntryState, now_ms: int, segments_to: Iterable[str] | None = None) -> LineageEntry:
        """The entry in ``state`` since ``now_ms``, with other ``segments_to`` if they are given."""
        joined = self.joined_to if segments_to is None else ",".join(segments_to)
        return replace(self, state=state, timestamp_ms=now_ms, joined_to=joined)


_CLEANING = "segments.cleaning."
_REWRITE = "segments.rewrite."


@dataclass(frozen=True)
class Lineage:
    """All entries of one table by id, and Pinot's table-wide custom map. Changed by making another one.

    The custom map also holds our marks of entries: that its replaced segments are being deleted, so that it can no
    longer be reverted; and that it rewrote the rows of what it replaced, so that readers may go back to that when a
    part of it is lost. Four-element entries stay readable for every Pinot, and Pinot keeps the map."""

    table: str
    entries: Mapping[str, LineageEntry] = field(default_factory=lambda: MappingProxyType({}))
    custom_map: Mapping[str, str | None] | None = None

    def __iter__(self) -> Iterator[LineageEntry]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, entry_id: str) -> LineageEntry | None:
        """The entry of that id, or ``None``."""
        return self.entries.get(entry_id)

    def newest_first(self) -> list[LineageEntry]:
        """Entries by time of their present state, newest first; ties by id. For people, not for decisions."""
        return sorted(self, key=lambda entry: (entry.timestamp_ms, entry.entry_id), reverse=True)

    def live(self) -> Iterator[LineageEntry]:
        """Entries in progress or completed."""
        return (entry for entry in self if entry.is_live)

    def in_state(self, *states: EntryState) -> Iterator[LineageEntry]:
        """Entries in one of ``states``."""
        return (entry for entry in self if entry.state in states)

    def put(self, entry: LineageEntry) -> Lineage:
        """This lineage with ``entry`` added, or in place of the one with its id."""
        return replace(self, entries=MappingProxyType({**self.entries, entry.entry_id: entry}))

    def without(self, entry_id: str) -> Lineage:
        """This lineage less that entry and its marks."""
        kept = {key: entry for key, entry in self.entries.items() if key != entry_id}
        custom = self.custom_map
        marks = {_CLEANING + entry_id, _REWRITE + entry_id}
        if custom and not marks.isdisjoint(custom):
            custom = {key: value for key, value in custom.items() if key not in marks} or None
        return replace(self, entries=MappingProxyType(kept), custom_map=custom)

    def is_cleaning(self, entry_id: str) -> bool:
        """Whether that entry's replaced segments are being deleted."""
        return self.custom_map is not None and _CLEANING + entry_id in self.custom_map

    def with_cleaning(self, entry_id: str, now_ms: int) -> Lineage:
        """This lineage with the mark that the entry's replaced segments are being deleted since ``now_ms``."""
        return replace(self, custom_map={**(self.custom_map or {}), _CLEANING + entry_id: str(now_ms)})

    def can_fall_back(self, entry_id: str) -> bool:
        """Whether that COMPLETED entry rewrote the rows of what it replaced, all of which is still there."""
        if self.custom_map is None or _REWRITE + entry_id not in self.custom_map:
            return False
        entry = self.entries.get(entry_id)
        return entry is not None and entry.state is EntryState.COMPLETED and not self.is_cleaning(entry_id)

    def with_rewrite(self, entry_id: str, now_ms: int, founded: tuple[Interval, str] | None = None) -> Lineage:
        """This lineage with the mark that the entry rewrote, at ``now_ms``, the rows of what it replaced, and which
        version of its time chunk it ``founded`` by that."""
        value = str(now_ms)
        if founded is not None:
            value += f" {founded[0].start_ms} {founded[0].end_ms} {founded[1]}"
        return replace(self, custom_map={**(self.custom_map or {}), _REWRITE + entry_id: value})

    def founded_by(self, entry_id: str) -> tuple[Interval, str] | None:
        """The version of a time chunk that a rewrite founded; ``None`` when it took the place of its inputs in theirs.
        The mark says so, since nothing that it brought may be left."""
        parts = ((self.custom_map or {}).get(_REWRITE + entry_id) or "").split(" ", 3)
        return (Interval(int(parts[1]), int(parts[2])), parts[3]) if len(parts) == 4 else None

    def rewrites(self) -> list[LineageEntry]:
        """The entries that readers may go back from."""
        return [entry for entry in self if self.can_fall_back(entry.entry_id)] if self.custom_map else []

    @cached_property
    def replaced_by(self) -> Mapping[str, LineageEntry]:
        """The COMPLETED entry that replaced a segment, by the segment's name."""
        return {name: entry for entry in self.in_state(EntryState.COMPLETED) for name in entry.segments_from}

    def built_upon(self, entry: LineageEntry) -> set[str]:
        """Ids of the entry, of what replaced something that it brought, of what replaced something of that, and so
        on."""
        found: set[str] = set()
        todo = [entry]
        while todo:
            one = todo.pop()
            if one.entry_id not in found:
                found.add(one.entry_id)
                todo += [self.replaced_by[name] for name in one.segments_to if name in self.replaced_by]
        return found

    @cached_property
    def rewriters(self) -> Mapping[str, str]:
        """Which of :meth:`rewrites` brought a segment, by the segment's name."""
        return {name: entry.entry_id for entry in self.rewrites() for name in entry.segments_to}
