"""Segment lineage: which segments replaced which, as Apache Pinot keeps it.

An entry keeps its two name lists in Pinot's comma-joined form and splits them when somebody asks: a lineage of
100,000 names is read, checked and written back in milliseconds because most lists are never looked at.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, Self

from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.names import is_number
from airflow_provider_segments.exceptions import CorruptRecordError, EntryNotFoundError
from airflow_provider_segments.text import count


class EntryState(enum.Enum):
    """State of a lineage entry (Pinot's three)."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    REVERTED = "REVERTED"


DROP_VERSION = 1 << 56
"""The version of an overwrite that drops the table: above every time in milliseconds."""


class Overwrite(NamedTuple):
    """Time that an overwrite holds: it hides segments of a version below ``version`` in ``[start_ms, end_ms)``, in UTC
    milliseconds, while its entry is COMPLETED."""

    entry_id: str
    start_ms: int
    end_ms: int
    version: int

    def overlaps(self, interval: Interval) -> bool:
        """Return True if the two share at least one millisecond."""
        return self.start_ms < interval.end_ms and interval.start_ms < self.end_ms


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
        """True if the entry is IN_PROGRESS or COMPLETED: the rules of ``start`` look at live entries."""
        return self.state is not EntryState.REVERTED

    def moved_to(self, state: EntryState, now_ms: int, segments_to: Iterable[str] | None = None) -> LineageEntry:
        """The entry in ``state`` since ``now_ms``, with other ``segments_to`` if they are given."""
        joined = self.joined_to if segments_to is None else ",".join(segments_to)
        return replace(self, state=state, timestamp_ms=now_ms, joined_to=joined)


_CLEANING = "segments.cleaning."
_REWRITE = "segments.rewrite."
_OVERWRITE = "segments.overwrite."
_PARTIAL = "segments.partial."
_MARKS = (_CLEANING, _REWRITE, _OVERWRITE, _PARTIAL)
_UPSERT = "segments.upsert"
_NUMBER = r"-?[0-9]{1,18}"
_OVERWRITES = re.compile(rf"{_NUMBER}/{_NUMBER}/{_NUMBER}(?: {_NUMBER}/{_NUMBER}/{_NUMBER})*")


@dataclass(frozen=True)
class Lineage:
    """All entries of one table by id, and Pinot's table-wide custom map. Changed by making another one.

    Four-element entries stay readable for every Pinot, and Pinot keeps the custom map. So the map holds what else is to
    be known of an entry, as a mark of it:

    * ``cleaning``: of a COMPLETED entry, what it replaced is being deleted, so that it can no longer be rolled back; of
      a REVERTED one, what it brought is, so that it can no longer be brought back;
    * ``rewrite``: it rewrote, into one time chunk, the rows of what it replaced, so that readers may fall back to that
      when a part of it is lost;
    * ``overwrite``: the time that it holds, and in which version;
    * ``partial``: more was staged into it than became its ``to``, and is not removed yet; which attempts brought that.

    Of an upsert table the map also holds the upsert record: see :mod:`..upsert.record`.
    """

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

    def find(self, entry_id: str) -> LineageEntry:
        """The entry of that id. Raises :class:`EntryNotFoundError`."""
        entry = self.entries.get(entry_id)
        if entry is None:
            raise EntryNotFoundError(
                f"table {self.table!r} has no lineage entry {entry_id}: it was never made, or was cleaned up; "
                f"the lineage has {count(len(self), 'entry', 'entries')}"
            )
        return entry

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
        return self._without_marks({mark + entry_id for mark in _MARKS}, MappingProxyType(kept))

    def is_cleaning(self, entry_id: str) -> bool:
        """Return True if what that entry hides is being deleted."""
        return self._has_mark(_CLEANING, entry_id)

    def with_cleaning(self, entry_id: str, now_ms: int) -> Lineage:
        """This lineage with the mark that what the entry hides is being deleted since ``now_ms``."""
        return self._with_mark(_CLEANING, entry_id, str(now_ms))

    @cached_property
    def partial(self) -> Mapping[str, frozenset[str]]:
        """The attempts that brought the ``to`` of each entry under which more than that may still be registered, each
        as ``<stager>.<attempt>``, by entry id."""
        return {
            key.removeprefix(_PARTIAL): frozenset((text or "").split())
            for key, text in (self.custom_map or {}).items()
            if key.startswith(_PARTIAL)
        }

    def with_partial(self, entry_id: str, attempts: Iterable[str]) -> Lineage:
        """This lineage with the mark that more is registered under the entry than its ``to``, which ``attempts``
        brought."""
        return self._with_mark(_PARTIAL, entry_id, " ".join(sorted(attempts)))

    def without_partial(self, entry_id: str) -> Lineage:
        """This lineage without that mark."""
        return self._without_marks({_PARTIAL + entry_id}, self.entries)

    @property
    def upsert(self) -> str | None:
        """The upsert record as it is stored; ``None`` for a table that is no upsert table."""
        return (self.custom_map or {}).get(_UPSERT)

    def with_upsert(self, text: str) -> Lineage:
        """This lineage with another upsert record."""
        return replace(self, custom_map={**(self.custom_map or {}), _UPSERT: text})

    def with_overwrite(self, overwrites: Iterable[Overwrite]) -> Lineage:
        """This lineage with the mark of the time that one entry holds."""
        held = list(overwrites)
        text = " ".join(f"{one.start_ms}/{one.end_ms}/{one.version}" for one in held)
        return self._with_mark(_OVERWRITE, held[0].entry_id, text) if held else self

    @cached_property
    def overwrites(self) -> tuple[Overwrite, ...]:
        """The time that entries hold which were completed once, whatever their state is now. Raises
        :class:`CorruptRecordError`."""
        return tuple(
            overwrite
            for key, text in (self.custom_map or {}).items()
            if key.startswith(_OVERWRITE) and key.removeprefix(_OVERWRITE) in self.entries
            for overwrite in self._decode_overwrite(key, text or "")
        )

    @cached_property
    def dropped_by(self) -> str | None:
        """The COMPLETED entry that dropped the table; ``None`` when it is not dropped."""
        drops = (one.entry_id for one in self.overwrites_in_force if one.version == DROP_VERSION)
        return next(drops, None)

    def without_overwrite(self, entry_id: str) -> Lineage:
        """This lineage without the mark of the time that the entry holds."""
        return self._without_marks({_OVERWRITE + entry_id}, self.entries)

    @cached_property
    def overwrites_in_force(self) -> tuple[Overwrite, ...]:
        """The overwrites that hide something now: those of COMPLETED entries."""
        return tuple(one for one in self.overwrites if self.entries[one.entry_id].state is EntryState.COMPLETED)

    @cached_property
    def unsettled_overwrites(self) -> tuple[Overwrite, ...]:
        """The overwrites that can still be rolled back or brought back: clean-up has not marked their entries."""
        return tuple(one for one in self.overwrites if not self.is_cleaning(one.entry_id))

    def can_fall_back(self, entry_id: str) -> bool:
        """Return True if that COMPLETED entry rewrote the rows of what it replaced, all of which is still there."""
        entry = self.entries.get(entry_id)
        completed = entry is not None and entry.state is EntryState.COMPLETED
        return completed and self._has_mark(_REWRITE, entry_id) and not self.is_cleaning(entry_id)

    def with_rewrite(self, entry_id: str, interval: Interval) -> Lineage:
        """This lineage with the mark that the entry rewrote the rows of what it replaced into that time chunk."""
        return self._with_mark(_REWRITE, entry_id, f"{interval.start_ms}/{interval.end_ms}")

    @cached_property
    def rewrites(self) -> Mapping[str, Interval]:
        """The time chunk of every entry that can fall back, by entry id. Raises :class:`CorruptRecordError`."""
        return {
            entry_id: self._decode_interval(key, text or "")
            for key, text in (self.custom_map or {}).items()
            if key.startswith(_REWRITE) and self.can_fall_back(entry_id := key.removeprefix(_REWRITE))
        }

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
            upper = todo.pop()
            if upper.entry_id not in found:
                found.add(upper.entry_id)
                todo += [self.replaced_by[name] for name in upper.segments_to if name in self.replaced_by]
        return found

    def _has_mark(self, mark: str, entry_id: str) -> bool:
        return self.custom_map is not None and mark + entry_id in self.custom_map

    def _with_mark(self, mark: str, entry_id: str, text: str) -> Lineage:
        return replace(self, custom_map={**(self.custom_map or {}), mark + entry_id: text})

    def _without_marks(self, marks: set[str], entries: Mapping[str, LineageEntry]) -> Lineage:
        custom = self.custom_map
        if custom and not marks.isdisjoint(custom):
            custom = {key: value for key, value in custom.items() if key not in marks} or None
        return replace(self, entries=entries, custom_map=custom)

    def _decode_overwrite(self, key: str, text: str) -> Iterator[Overwrite]:
        if _OVERWRITES.fullmatch(text) is None:
            raise self._corrupt(key, text)
        entry_id = key.removeprefix(_OVERWRITE)
        for part in text.split(" "):
            start, end, version = part.split("/")
            yield Overwrite(entry_id, int(start), int(end), int(version))

    def _decode_interval(self, key: str, text: str) -> Interval:
        numbers = text.split("/")
        if len(numbers) != 2 or not all(_is_number(number) for number in numbers) or int(numbers[0]) >= int(numbers[1]):
            raise self._corrupt(key, text)
        return Interval(int(numbers[0]), int(numbers[1]))

    def _corrupt(self, key: str, text: str) -> CorruptRecordError:
        return CorruptRecordError(f"lineage of table {self.table!r}: the mark {key} cannot be read: {text[:80]!r}")


def _is_number(text: str) -> bool:
    return is_number(text.removeprefix("-"))
