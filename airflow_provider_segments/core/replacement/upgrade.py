"""Carrying segments into newer versions without touching their data: concurrent append and replace (Druid 28).

On a table with concurrent locks an append gets its ids at the version beneath all others, in its own time chunk, and an
APPEND lock that stands in no REPLACE lock's way. In whatever newer versions there are it has a further place: an
:class:`~airflow_provider_segments.core.model.segment.Upgrade` of its record. With ids in a newer version only, it would
have to go when that version is rolled back, or hide what the rollback brings back.

Who writes upgrades, and why nothing is lost between the two (Druid #16393):

* The end of a push under a REPLACE lock gives every settled segment of its time chunks that it does not replace a place
  in the version that it founds. No reader looks at those before its switch: what makes a version be there is a segment
  of a settled entry that has its own place in it.
* The end of an append gives its own segments, which are hidden, a place in every newer version that is there.

Both decide under the lineage that their switch compares and sets. If one is switched on while the other decides, the
other's switch is refused, it decides again, and sees it. What is written are compare-and-sets of registry shards that
also check the guard at the version of the push's own seal, so a push that was reverted or ended writes nothing more.
Places are only ever added: those of a version that never came to be, or is no longer there, say nothing.

What is beneath a version is not carried above it. A segment that an overwrite (a push under an EXCLUSIVE lock) hides
stays hidden; one that is there no longer because somebody replaced it is carried, so that it comes back where it is
seen when that entry is reverted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage, LineageEntry
from airflow_provider_segments.core.lineage.guard import StoredGuard
from airflow_provider_segments.core.lineage.hiding import hidden_names
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.locking import (
    APPEND_VERSION,
    Allocated,
    AllocationRequest,
    Lock,
    LockGranularity,
    LockRequest,
    LockType,
    granted_lock,
)
from airflow_provider_segments.core.locking.counters import alone
from airflow_provider_segments.core.locking.state import Box
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval, parse_chunk
from airflow_provider_segments.core.model.segment import SegmentRecord, Upgrade, encode_record
from airflow_provider_segments.core.registry import shard as shards
from airflow_provider_segments.core.registry.registry import pack
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.replacement.places import Known, Looked, Versions, registered
from airflow_provider_segments.core.replacement.rules import describe
from airflow_provider_segments.core.replacement.versions import check_granularity
from airflow_provider_segments.core.zookeeper import Check, Op, SetData
from airflow_provider_segments.core.zookeeper.session import request_size
from airflow_provider_segments.exceptions import EndRefusedError

_Held = tuple[HeldLock, Lock]
_Target = tuple[str, str]
"""The name of a time chunk, and a version of it."""


@dataclass(frozen=True, slots=True)
class Push:
    """A sealed push that is about to be switched on, and its staged ``shards``."""

    entry: LineageEntry
    guard: StoredGuard
    shards: Sequence[Shard]


def settle_places(context: Context, stored: StoredLineage, push: Push, box: Box, looked: Looked) -> bool:
    """Give every segment the places that it needs once ``push`` is switched on over ``stored``; ``looked`` is of all
    tries of the switch. Says whether the push carries what it does not replace: then it hides nothing else.

    Raises :class:`EndRefusedError` (``coarser-segment``, ``finer-granularity``, ``granularity-differs``),
    :class:`LockRevokedError`, :class:`LockLostError`, :class:`CommitConflictError` and :class:`RecordTooLargeError`.
    """
    replacing = _held(box, push, LockType.REPLACE)
    if replacing:
        _Carrying(context, stored, push, looked).run(replacing)
    if appending := _held(box, push, LockType.APPEND):
        _Following(context, stored, push, looked).run(box, appending)
    return bool(replacing)


def is_append(push: Push, box: Box) -> bool:
    """Whether the push appends under APPEND locks, so that :func:`settle_places` sees to what it appended."""
    return bool(_held(box, push, LockType.APPEND))


def replaced_for_good(lineage: Lineage, entry: LineageEntry) -> set[str]:
    """What no rollback can show again before ``entry`` is rolled back: what it replaces, and whatever was replaced by
    something that it replaces."""
    gone = set(entry.segments_from)
    found = True
    while found:
        found = False
        for other in lineage.in_state(EntryState.COMPLETED):
            if not gone.issuperset(other.segments_from) and not gone.isdisjoint(other.segments_to):
                gone.update(other.segments_from)
                found = True
    return gone


@dataclass(frozen=True)
class _Bringing:
    """What the end of an append and that of a replacement have in common."""

    context: Context
    stored: StoredLineage
    push: Push
    looked: Looked

    @property
    def entry_id(self) -> str:
        return self.push.entry.entry_id

    def new_ids(self, held: _Held, interval: Interval, version: str, count: int, at_least: int = 0) -> range:
        """Ids in a version, under a lock that the push relies on."""
        self.fence()  # a lock that is lost must not be asked for anew: it would be another one
        asked = AllocationRequest(
            lock=LockRequest.of_held(held[1], held[0].task),
            key=f"{self.entry_id}/upgrade/{self.context.clock.new_id()}",
            count=count,
            interval=interval,
            version=version,
            at_least=at_least,
        )
        result = self.context.locks.allocate(asked)
        granted_lock(self.context.table, result)
        assert isinstance(result, Allocated)
        return result.partitions

    def write(self, changes: Mapping[str, _Change]) -> None:
        """Set the upgrades of some records, each shard by compare-and-set."""
        if not changes:
            return
        fence = self.fence()
        ops: list[Op] = [
            SetData(
                change.shard.name.path,
                shards.encode(change.shard.name.entry_id, change.shard.born, map(encode_record, change.records())),
                change.shard.version,
            )
            for change in changes.values()
        ]
        self.looked.forget(changes)
        for outcome in self.context.session.commit_many([[*fence, *some] for some in pack(ops, request_size(fence))]):
            if isinstance(outcome, Exception):
                self.looked.forget()
                raise outcome

    def fence(self) -> list[Check]:
        """The push goes on only while it has its seal and its locks."""
        guard = self.push.guard
        seal = Check(self.context.records.guard_path(self.entry_id), guard.version)
        return [seal, *self.context.fence(guard.guard)]

    def refused(self, rule: str, detail: str, hint: str) -> EndRefusedError:
        """The error of this end."""
        return EndRefusedError(
            rule, f"end refused: {detail}", table=self.context.table, entry_id=self.entry_id, hint=hint
        )


@dataclass(frozen=True)
class _Carrying(_Bringing):
    """The end of a replacement: what is settled, and is not replaced, is carried into the versions that it founds."""

    def run(self, replacing: Sequence[_Held]) -> None:
        """Carry it all."""
        locks = {held[1].version: held for held in replacing}
        founded = {
            (shard.chunk_of(record), record.place.version)
            for shard in self.push.shards
            for record in shard.records
            if record.place is not None and record.place.version in locks
        }
        for chunk, version in sorted(founded):
            self._into((chunk, version), locks[version])

    def _into(self, target: _Target, held: _Held) -> None:
        interval = parse_chunk(target[0])
        known = registered(self.context, self.stored, interval, self.looked)
        carried = self._carried(target, [one for one in known if one.settled])
        lacking = [one for one in carried if all((up.chunk, up.version) != target for up in one.record.upgrades)]
        if not lacking:
            return
        ids = self.new_ids(held, interval, target[1], len(lacking))
        changes: dict[str, _Change] = {}
        for one, partition in zip(lacking, ids, strict=True):
            change = changes.setdefault(one.shard.name.path, _Change(one.shard))
            change.upgrades[one.name] = (*self._kept(one.record, known), Upgrade(*target, partition))
        self.write(changes)

    def _carried(self, target: _Target, known: Sequence[Known]) -> list[Known]:
        """What to carry, in the order of its places. Raises :class:`EndRefusedError` (``coarser-segment``)."""
        interval, versions = parse_chunk(target[0]), Versions(known)
        found: list[Known] = []
        wider: list[str] = []
        for one in known:
            if one.place.version >= target[1] or one.name in self._gone:
                continue
            held = versions.cover(one, self._overs.get(one.name, set()))
            if held == [(one.interval.start_ms, one.interval.end_ms)]:
                continue
            if not held and interval.contains(one.interval):
                found.append(one)
            elif one.name not in self._hidden:
                wider.append(one.name)
        if wider:
            raise self.refused(
                "coarser-segment",
                f"{describe(wider)} is visible in time chunk {target[0]} and beyond, or only in a part of its time, "
                f"and cannot be carried into version {target[1]}",
                "Replace all of the wider chunk under a REPLACE lock on it, or overwrite a part of it under an "
                "EXCLUSIVE lock.",
            )
        return sorted(found, key=lambda one: (one.place.version, one.place.partition, one.name))

    def _kept(self, record: SegmentRecord, known: Sequence[Known]) -> Iterable[Upgrade]:
        """The upgrades of a record less those of versions that are gone, with all their segments. A reader who has
        read one of those just before it went would see that version hide this segment. So only beneath a version of
        which a segment is visible: that stays, under any lineage that such a reader can have."""
        there = {(one.chunk, one.place.version) for one in known}
        stays = {(one.chunk, one.place.version) for one in known if one.settled and one.name not in self._hidden}
        floor = max((up.version for up in record.upgrades if (up.chunk, up.version) in stays), default="")
        return (up for up in record.upgrades if up.version >= floor or (up.chunk, up.version) in there)

    @cached_property
    def _gone(self) -> set[str]:
        return replaced_for_good(self.stored.lineage, self.push.entry)

    @cached_property
    def _hidden(self) -> set[str]:
        return hidden_names(self.stored.lineage)

    @cached_property
    def _overs(self) -> Mapping[str, set[str]]:
        """For each replaced segment, the entries that have to be reverted before it comes back."""
        lineage = self.stored.lineage
        over = {entry.entry_id: lineage.built_upon(entry) for entry in set(lineage.replaced_by.values())}
        return {name: over[entry.entry_id] for name, entry in lineage.replaced_by.items()}


@dataclass(frozen=True)
class _Following(_Bringing):
    """The end of an append: its segments follow what was published above them."""

    def run(self, box: Box, appending: Sequence[_Held]) -> None:
        """Give each of them a place in every newer version that is there."""
        own = self._own()
        chunks = {
            chunk for _, chunk, _ in own if not alone(box.counters, parse_chunk(chunk), APPEND_VERSION)
        }  # elsewhere no other ids were ever given out
        newer = {chunk: self._newer(chunk) for chunk in chunks}
        wanted = [
            (shard, record, there)
            for shard, chunk, record in own
            for there in newer.get(chunk, ())
            if all((up.chunk, up.version) != there.target for up in record.upgrades)
        ]
        counts: dict[_Target, int] = {}
        for _, _, there in wanted:
            counts[there.target] = counts.get(there.target, 0) + 1
        by_target = {there.target: there for _, _, there in wanted}
        ids = {target: iter(self._ids(by_target[target], count, appending)) for target, count in counts.items()}
        changes: dict[str, _Change] = {}
        for shard, record, there in wanted:
            change = changes.setdefault(shard.name.path, _Change(shard))
            had = change.upgrades.get(record.name, record.upgrades)
            change.upgrades[record.name] = (*had, Upgrade(*there.target, next(ids[there.target])))
        self.write(changes)

    def _own(self) -> list[tuple[Shard, str, SegmentRecord]]:
        """What was appended, as it is registered now."""
        return [
            (shard, shard.chunk_of(record), record)
            for shard in self.context.registry.shards_named([one.name for one in self.push.shards])
            for record in shard.records
            if record.place is not None and record.place.version == APPEND_VERSION
        ]

    def _newer(self, chunk: str) -> list[_There]:
        """The versions that segments of the chunk need a place in. Raises :class:`EndRefusedError`
        (``finer-granularity``, ``granularity-differs``)."""
        interval = parse_chunk(chunk)
        found: dict[_Target, _There] = {}
        known = registered(self.context, self.stored, interval, self.looked)
        settled = [one for one in known if one.settled]
        check_granularity(self.context, self.entry_id, (interval, APPEND_VERSION), settled)
        for one in settled:
            if one.place.version == APPEND_VERSION:
                continue
            if not one.interval.contains(interval):
                raise self.refused(
                    "finer-granularity",
                    f"its segments are of time chunk {chunk}, and the table has some of {one.chunk}, version "
                    f"{one.place.version}, by now",
                    "Run the build again; append at the granularity that the table has there.",
                )
            there = found.setdefault((one.chunk, one.place.version), _There(one.chunk, one.place.version))
            there.following = max(there.following, one.place.partition + 1)
        for up in (up for one in known for up in one.record.upgrades if (up.chunk, up.version) in found):
            there = found[up.chunk, up.version]
            there.following = max(there.following, up.partition + 1)
        return list(found.values())

    def _ids(self, there: _There, count: int, appending: Sequence[_Held]) -> range:
        interval = parse_chunk(there.chunk)
        held = next(one for one in appending if one[1].overlaps(interval))
        return self.new_ids(held, interval, there.version, count, there.following)


@dataclass(slots=True)
class _There:
    """A newer version in a time chunk, and the first id that is free there for all that is known."""

    chunk: str
    version: str
    following: int = 0

    @property
    def target(self) -> _Target:
        return self.chunk, self.version


@dataclass(slots=True)
class _Change:
    """A shard, and the upgrades that some of its records are to have."""

    shard: Shard
    upgrades: dict[str, tuple[Upgrade, ...]] = field(default_factory=dict)

    def records(self) -> Iterable[SegmentRecord]:
        for record in self.shard.records:
            ordered = sorted(self.upgrades.get(record.name, record.upgrades), key=lambda one: one.version)
            yield msgspec.structs.replace(record, upgrades=tuple(ordered))


def _held(box: Box, push: Push, lock_type: LockType) -> list[_Held]:
    """The push's time-chunk locks of that type. Asked of the box, which is what protects; a config may change."""
    return [
        (held, lock)
        for held in push.guard.guard.all_locks
        for lock in box.locks
        if lock.lock_type is lock_type
        and lock.granularity is LockGranularity.TIME_CHUNK
        and (held.lock_id == lock.lock_id or held.lock_id in lock.absorbed)
    ]
