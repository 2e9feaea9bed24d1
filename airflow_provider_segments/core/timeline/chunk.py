"""One time chunk of one version: its segments, their atomic update groups, and which of them count.

Ids of a chunk become bits of Python integers, so that a question about a whole group is one ``and``. Bits are handed
out in order of appearance: an id may be as large as it likes. States are not moved along transitions, as in Druid's
OvershadowableManager; they are computed again from what is known after each change. So the order of arrival cannot
matter, and a load in bulk cannot differ from one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import compress
from operator import or_
from typing import Generic

from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.timeline.segment import P, TimelinePiece, VersionedSegment
from airflow_provider_segments.exceptions import TimelineRefusedError

Rank = tuple[()] | tuple[bool, str]
"""What decides between chunks of overlapping time: nothing to show, then incomplete, then complete, then by version."""


class _Group:
    """An atomic update group: the ids in it and the ids it replaces, as bits. Any known member tells both."""

    __slots__ = ("key", "members", "over")

    def __init__(self, key: tuple[int, ...], members: int, over: int = 0) -> None:
        self.key = key
        self.members = members
        self.over = over


_NO_GROUPS: dict[tuple[int, ...], _Group] = {}
_NO_BITS: dict[int, _Group] = {}
"""Shared by all chunks without groups, never written: most chunks have none, and a table may have a million chunks."""


def group_key(segment: VersionedSegment[P]) -> tuple[int, ...]:
    """The ids of its atomic update group in order; its own alone when it has none."""
    return tuple(sorted(set(segment.group))) if segment.group else (segment.partition,)


class ChunkVersion(Generic[P]):
    """All segments of one interval and one version. Not safe for threads."""

    __slots__ = (
        "_at",
        "_bits",
        "_core",
        "_core_mask",
        "_groups",
        "_members",
        "_ordered",
        "_piece",
        "complete",
        "end",
        "hidden",
        "interval",
        "known",
        "online",
        "rank",
        "shown",
        "start",
        "table",
        "version",
        "visible",
    )

    def __init__(self, table: str, interval: Interval, version: str) -> None:
        self.table = table
        self.interval = interval
        self.start, self.end = interval.start_ms, interval.end_ms
        self.version = version
        self._bits: dict[int, int] = {}  # in order of the bits: the keys are the ids by bit
        self._members: list[VersionedSegment[P] | None] = []
        self._groups = _NO_GROUPS
        self._at = _NO_BITS
        self._core = 0
        self._core_mask = 0
        self._ordered = True
        self.known = 0
        self.online = 0
        self.visible = 0
        self.hidden = 0
        self.complete = False
        self.rank: Rank = ()
        self.shown = 0
        self._piece: TimelinePiece[P] | None = None

    def copy(self) -> ChunkVersion[P]:
        """One that can change without this one. Refusals in the middle of a batch leave the original as it was."""
        new: ChunkVersion[P] = ChunkVersion(self.table, self.interval, self.version)
        new._bits, new._members = {**self._bits}, [*self._members]
        new._groups = {key: _Group(key, group.members, group.over) for key, group in self._groups.items()}
        new._at = {bit: new._groups[group.key] for bit, group in self._at.items()}
        new._core, new._core_mask, new._ordered = self._core, self._core_mask, self._ordered
        new.known, new.online = self.known, self.online
        return new

    def adopt(self, other: ChunkVersion[P]) -> None:
        """Take over what ``other`` knows. What is visible follows with :meth:`refresh`."""
        self._bits, self._members = other._bits, other._members
        self._groups, self._at, self._ordered = other._groups, other._at, other._ordered
        self._core, self._core_mask = other._core, other._core_mask
        self.known, self.online = other.known, other.online

    # -- changes -------------------------------------------------------------------------------------------------

    def extend(self, segments: Sequence[VersionedSegment[P]], online: bool) -> int:
        """Add many; how many of them changed anything. May have added some when it raises: call it on a copy."""
        if segments and not self._bits:
            bits = {segment.partition: bit for bit, segment in enumerate(segments)}
            if len(bits) == len(segments) and min(bits) >= 0:
                return self._load(segments, bits, online)
        return sum([self.add(segment, online) for segment in segments])

    def _load(self, segments: Sequence[VersionedSegment[P]], bits: dict[int, int], online: bool) -> int:
        self._bits, self._members = bits, list(segments)
        self.known = (1 << len(bits)) - 1
        self.online = self.known if online else 0
        seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        for segment in [one for one in segments if one.group or one.overshadowed]:
            fields = (segment.group, segment.overshadowed)
            if fields in seen and segment.partition in segment.group:
                continue  # another member of the same group has said it all
            self._check(segment)
            self._join(segment)
            seen.add(fields)
        cores = {segment.core for segment in segments}
        if min(cores) < 0:
            raise self._refused("bad-partition", segments[0], "a core count is 0 or more")
        self._widen_core(max(cores))
        return len(segments)

    def add(self, segment: VersionedSegment[P], online: bool) -> bool:
        """Add one; whether that changed anything. Raises :class:`TimelineRefusedError` before anything changes."""
        bit = self._bits.get(segment.partition)
        old = None if bit is None else self._members[bit]
        if bit is not None and old is not None:
            return self._add_again(segment, old, bit, online)
        self._check(segment)
        bit = self._bit(segment.partition)
        self._members[bit] = segment
        self.known |= 1 << bit
        if online:
            self.online |= 1 << bit
        if segment.group or segment.overshadowed:
            self._join(segment)
        self._widen_core(segment.core)
        return True

    def _add_again(self, segment: VersionedSegment[P], old: VersionedSegment[P], bit: int, online: bool) -> bool:
        wider = False
        if segment is not old:
            if group_key(segment) != group_key(old) or segment.core != old.core:
                raise self._refused("metadata-differs", segment, "it is known with another group or core set")
            # A record may gain edges (see ``forget``), never lose one: that would bring back what it replaced.
            if not set(segment.overshadowed) >= set(old.overshadowed):
                raise self._refused("metadata-differs", segment, "it is known to replace segments it no longer names")
            wider = len(set(segment.overshadowed)) > len(set(old.overshadowed))
        if wider:
            self._check(segment)
            self._join(segment)
        arrives = online and not self.online >> bit & 1
        if arrives:
            self.online |= 1 << bit
        if arrives or wider:
            self._members[bit] = segment
        return arrives or wider

    def remove(self, partition: int, forget: bool) -> VersionedSegment[P] | None:
        """Take one out of service, and out of memory with ``forget``; the segment, ``None`` when nothing changed."""
        bit = self._bits.get(partition)
        segment = None if bit is None else self._members[bit]
        if bit is None or segment is None:
            return None
        was_online = self.online >> bit & 1
        self.online &= ~(1 << bit)
        if not forget:
            return segment if was_online else None
        self._members[bit] = None
        self.known &= ~(1 << bit)
        group = self._at.get(bit)
        if group is not None and not group.members & self.known:
            self._dissolve(group)
        if self._core and segment.core == self._core:
            self._core = self._core_mask = 0
            self._widen_core(max([one.core for one in self._members if one is not None], default=0))
        if len(self._bits) > 2 * self.known.bit_count() + 1024:
            self._repack()
        return segment

    def _join(self, segment: VersionedSegment[P]) -> None:
        key = group_key(segment)
        group = self._groups.get(key)
        if group is None:
            if not self._groups:
                self._groups, self._at = {}, {}
            group = self._groups[key] = _Group(key, self._mask(key))
            self._at.update(dict.fromkeys([self._bits[one] for one in key], group))
        group.over |= self._mask(segment.overshadowed)
        if self._ordered and segment.overshadowed and max(segment.overshadowed) > key[0]:
            self._ordered = False

    def _dissolve(self, group: _Group) -> None:
        """The last known member is forgotten. What replaced the group inherits what the group had replaced: else a
        grandparent that is still in service would come back beside its grandchild, and its rows be read twice."""
        del self._groups[group.key]
        for one in group.key:
            del self._at[self._bits[one]]
        for other in self._groups.values():
            if other.over & group.members:
                other.over |= group.over

    def _repack(self) -> None:
        online = self.online
        stay = self.segments()
        fresh: ChunkVersion[P] = ChunkVersion(self.table, self.interval, self.version)
        fresh.extend(stay, False)
        for one in stay:
            if online >> self._bits[one.partition] & 1:
                fresh.online |= 1 << fresh._bits[one.partition]
        self.adopt(fresh)

    def _bit(self, partition: int) -> int:
        bit = self._bits.get(partition)
        if bit is None:
            bit = self._bits[partition] = len(self._members)
            self._members.append(None)
        return bit

    def _mask(self, partitions: Sequence[int]) -> int:
        bits = self._bits
        try:
            return reduce(or_, [1 << bits[one] for one in partitions], 0)
        except KeyError:
            return reduce(or_, [1 << self._bit(one) for one in partitions], 0)

    def _widen_core(self, core: int) -> None:
        for one in range(self._core, core):
            self._core_mask |= 1 << self._bit(one)
        self._core = max(core, self._core)

    # -- checks --------------------------------------------------------------------------------------------------

    def _check(self, segment: VersionedSegment[P]) -> None:
        partition, over = segment.partition, segment.overshadowed
        if partition < 0 or min(over, default=0) < 0 or segment.core < 0:
            raise self._refused("bad-partition", segment, "partition ids and the core count are 0 or more")
        key = group_key(segment)
        if partition not in key:
            raise self._refused("not-in-its-group", segment, f"its atomic group {list(key)} does not name it")
        if key in self._groups:
            self._check_cycle(segment, key)
            return
        for one in key:
            bit = self._bits.get(one)
            if bit is None:
                continue
            member, group = self._members[bit], self._at.get(bit)
            if group is not None:
                raise self._refused("group-differs", segment, f"{one} belongs to the group {list(group.key)}")
            if member is not None and member.group != segment.group and group_key(member) != key:
                raise self._refused("group-differs", segment, f"{one} belongs to the group {list(group_key(member))}")
        self._check_cycle(segment, key)

    def _check_cycle(self, segment: VersionedSegment[P], key: tuple[int, ...]) -> None:
        # Ids are handed out in order, so what is replaced has smaller ids; then there can be no cycle.
        if not segment.overshadowed or (self._ordered and max(segment.overshadowed) < key[0]):
            return
        if self._reach(self._mask(segment.overshadowed)) & self._mask(key):
            raise self._refused("overshadows-itself", segment, "by way of what it overshadows")

    def _refused(self, rule: str, segment: VersionedSegment[P], detail: str) -> TimelineRefusedError:
        about = f"segment {segment.partition} of {self.interval} version {self.version!r}"
        hint = "Nothing was changed; a segment's timeline fields are written once, with its record."
        return TimelineRefusedError(rule, f"{about}: {detail}", table=self.table, hint=hint)

    # -- what is visible -----------------------------------------------------------------------------------------

    def refresh(self, strict: bool) -> None:
        """Compute again what is visible, after changes.

        Hidden is everything reached from the overshadowed ids of complete groups, through every group of which some
        member's metadata is known. Only complete groups start: the proposal's bulk rule (#6319) also starts from
        incomplete ones and so hides old segments while the new ones are not visible yet. Segments out of service
        are followed too: else a lost parent would let its own inputs come back under its grandchild.
        """
        online, hidden = self.online, 0
        incomplete: list[_Group] = []
        if self._groups:
            grouped = members = 0
            for group in self._groups.values():
                grouped |= group.members
                if group.members & ~online:
                    incomplete.append(group)
                else:
                    members |= group.members
                    hidden |= group.over
            hidden = _follow(hidden, incomplete)
            visible = (online & ~grouped | members) & ~hidden
        else:
            visible = online
        self.complete = bool(visible) and not self._core_mask & ~(hidden | visible)
        if incomplete and not strict:
            visible, hidden = self._with_newest(visible, hidden, incomplete)
        self.visible, self.hidden = visible, hidden
        self._piece = None
        self.rank = (self.complete, self.version) if self.complete or (visible and not strict) else ()

    def _reach(self, over: int) -> int:
        return _follow(over, list(self._groups.values()))

    def _with_newest(self, visible: int, hidden: int, incomplete: list[_Group]) -> tuple[int, int]:
        """Also show the newest incomplete group wherever no complete set holds all that it replaced (Druid 0.16)."""
        reach = {group.key: self._reach(group.over) for group in incomplete}
        # A group reaches strictly more than any group below it: by size of reach is oldest first.
        oldest_first = sorted(incomplete, key=lambda group: reach[group.key].bit_count())
        covered: set[tuple[int, ...]] = set()
        for group in oldest_first:
            rest = self._groups_at(group.over & ~(visible | hidden))
            if group.over and rest is not None and rest <= covered:
                covered.add(group.key)
        shown = below = 0
        for group in reversed(oldest_first):
            here = group.members & self.online & ~(hidden | below)
            if here and group.key not in covered:
                shown |= here
                below |= reach[group.key]
        return (visible | shown) & ~below, hidden | below

    def _groups_at(self, ids: int) -> set[tuple[int, ...]] | None:
        """The groups of these bits; ``None`` when one belongs to none."""
        found = set()
        while ids:
            group = self._at.get((ids & -ids).bit_length() - 1)
            if group is None:
                return None
            found.add(group.key)
            ids &= ids - 1
        return found

    # -- answers -------------------------------------------------------------------------------------------------

    def get(self, partition: int) -> VersionedSegment[P] | None:
        """The known segment with this id."""
        bit = self._bits.get(partition)
        return None if bit is None else self._members[bit]

    def is_online(self, partition: int) -> bool:
        """Whether it is in service."""
        bit = self._bits.get(partition)
        return bit is not None and bool(self.online >> bit & 1)

    def hides(self, partition: int) -> bool:
        """Whether something visible took the place of this id, known or not."""
        bit = self._bits.get(partition)
        return bit is not None and bool(self.hidden >> bit & 1)

    def shows(self, partition: int) -> bool:
        """Whether it would be visible wherever this version is."""
        bit = self._bits.get(partition)
        return bit is not None and bool(self.visible >> bit & 1)

    def select(self, mask: int) -> list[VersionedSegment[P]]:
        """The segments of these bits, by partition id."""
        if mask == self.known and self.known.bit_count() == len(self._members):
            found = [one for one in self._members if one is not None]
        else:
            chosen = compress(self._members, map(int, reversed(f"{mask:b}")))
            found = [one for one in chosen if one is not None]
        found.sort(key=_by_partition)
        return found

    def segments(self) -> list[VersionedSegment[P]]:
        """Every known segment by partition id, with the edges it has inherited from forgotten ones."""
        return [self._with_edges(one) for one in self.select(self.known)]

    def _with_edges(self, segment: VersionedSegment[P]) -> VersionedSegment[P]:
        group = self._at.get(self._bits[segment.partition])
        if group is None:
            return segment
        ids = list(self._bits)
        over = {ids[bit] for bit in _bits_of(group.over)}
        if over == set(segment.overshadowed):
            return segment
        return VersionedSegment(
            segment.interval,
            segment.version,
            segment.partition,
            segment.payload,
            tuple(sorted(over)),
            segment.group,
            segment.core,
        )

    def piece(self, start: int, end: int) -> TimelinePiece[P]:
        """What is visible of it in ``[start, end)``, which lies within its interval."""
        whole = self._piece
        if whole is None:
            found = tuple(self.select(self.visible))
            whole = self._piece = TimelinePiece(self.interval, self.interval, self.version, found)
        if start == self.start and end == self.end:
            return whole
        return TimelinePiece(Interval(start, end), self.interval, self.version, whole.segments)


def _follow(hidden: int, groups: list[_Group]) -> int:
    """Everything reached from ``hidden`` through ``groups``. Newest first, so that one pass is mostly enough."""
    waiting = [group for group in reversed(groups) if group.over]
    while waiting:
        rest = []
        for group in waiting:
            if group.members & hidden:
                hidden |= group.over
            else:
                rest.append(group)
        if len(rest) == len(waiting):
            return hidden
        waiting = rest
    return hidden


def _bits_of(mask: int) -> Iterator[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def _by_partition(segment: VersionedSegment[P]) -> int:
    return segment.partition
