"""The version stream of a table: which heartbeats its versions took, and digests of all that they have read. Pure.

It is a part of the upsert record, and so is published, rolled back and read together with versions and positions. A
digest counts every event that was read from a source partition up to the table's position, and adds up their hashes. A
sum does not depend on order or batches, so two regions that stand at one position of a source have the same digest, or
one of them has lost, doubled or altered an event on its way in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from airflow_provider_segments.core.replication.heartbeat import TakenHeartbeat
from airflow_provider_segments.exceptions import UpsertRefusedError

_HASHES = 2**128


class Digest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Of the events of one source partition from offset ``first`` on: how many, and the sum of their 128-bit hashes,
    modulo 2^128, in hexadecimal digits (JSON has no such numbers)."""

    first: int
    count: int
    sum: str

    @classmethod
    def of(cls, first: int, count: int, total: int) -> Digest:
        """The digest of ``count`` events whose hashes add up to ``total``."""
        return cls(first, count, f"{total % _HASHES:032x}")

    def followed_by(self, later: Digest) -> Digest:
        """The digest of these events and the ``later`` ones."""
        return Digest.of(self.first, self.count + later.count, int(self.sum, 16) + int(later.sum, 16))

    def less(self, other: Digest) -> str:
        """The difference between both, which stays the same while the same events are read on both sides: how many
        events more, and the hash sum of what only one side has read."""
        total = (int(self.sum, 16) - int(other.sum, 16)) % _HASHES
        return f"{self.count - other.count:+d} {total:032x}"


class DigestDifference(NamedTuple):
    """Two digests of one source partition differ at ``heartbeat``, by ``difference``: see :meth:`Digest.less`."""

    heartbeat: TakenHeartbeat
    difference: str


class Step(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a version above the floor has added: the digests of the source partitions that it read, as they are with it,
    and the heartbeats that it took."""

    version: int
    digests: dict[str, Digest]
    heartbeats: tuple[TakenHeartbeat, ...]


class VersionStream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``digests`` and ``heartbeats`` (the last one taken of each region) are those at the floor; ``steps`` are the
    versions above it. So a rollback is the removal of steps, and nothing that it took back is counted."""

    digests: dict[str, Digest] = {}
    heartbeats: dict[str, TakenHeartbeat] = {}
    steps: tuple[Step, ...] = ()

    def published(
        self, version: int, read: Mapping[str, Digest], heartbeats: Sequence[TakenHeartbeat]
    ) -> VersionStream:
        """The stream with another version, which has read and taken this. A version is given at its publish only."""
        before = self.digests_at(version)
        digests = {
            source: before[source].followed_by(digest) if source in before else digest
            for source, digest in read.items()
        }
        taken = tuple(msgspec.structs.replace(one, version=version) for one in heartbeats)
        return msgspec.structs.replace(self, steps=(*self.steps, Step(version, digests, taken)))

    def raised(self, floor: int) -> VersionStream:
        """The stream with that floor: what only lower marks needed is dropped."""
        last = {one.region: one for step in self.steps if step.version <= floor for one in step.heartbeats}
        return VersionStream(
            digests=self.digests_at(floor),
            heartbeats={**self.heartbeats, **last},
            steps=tuple(step for step in self.steps if step.version > floor),
        )

    def rolled_back(self, version: int) -> VersionStream:
        """The stream as it was at ``version``."""
        return msgspec.structs.replace(self, steps=tuple(step for step in self.steps if step.version <= version))

    def digests_at(self, version: int) -> dict[str, Digest]:
        """The digest of each source partition at ``version``, which is not below the floor."""
        found = dict(self.digests)
        for step in self.steps:
            if step.version <= version:
                found |= step.digests
        return found

    def taken(self, region: str) -> list[TakenHeartbeat]:
        """The heartbeats of ``region`` that are known, in the order in which they were taken."""
        before = [self.heartbeats[region]] if region in self.heartbeats else []
        return before + [one for step in self.steps for one in step.heartbeats if one.region == region]

    def last(self) -> dict[str, TakenHeartbeat]:
        """The last heartbeat taken of each region."""
        return {**self.heartbeats, **{one.region: one for step in self.steps for one in step.heartbeats}}


def checkpoint(stream: VersionStream, region: str, time_ms: int, *, floor: int, table: str) -> int:
    """The version that holds exactly what ``region`` had written up to its last heartbeat at or before ``time_ms``.

    Every table that reads the region's sources gives a version of the same events, or none. Raises
    :class:`UpsertRefusedError`: ``checkpoint-too-early`` (no later heartbeat was taken, so that an earlier one may
    still be missing), ``no-checkpoint`` (no heartbeat at or before the time), ``below-floor``, and
    ``checkpoint-unaligned`` (a heartbeat between was not taken in all source partitions).
    """
    heartbeats = [one for one in stream.taken(region) if not one.missing]
    earlier = [one for one in heartbeats if one.time_ms <= time_ms]
    later = [one for one in heartbeats if one.time_ms > time_ms]
    if not earlier:
        raise _refused("no-checkpoint", f"no heartbeat of region {region!r} is known at or before {time_ms}", table)
    if not later:
        detail = f"no heartbeat of region {region!r} after {time_ms} has been taken yet"
        raise _refused("checkpoint-too-early", detail, table, "Ask again after the next heartbeat.")
    at = earlier[-1]
    if later[0].previous_ms != at.time_ms:
        detail = f"a heartbeat of region {region!r} near {time_ms} was not taken in all its source partitions"
        raise _refused("checkpoint-unaligned", detail, table, "Ask for a time before or after them.")
    if at.version < floor:
        detail = f"it is version {at.version}, and the oldest that can be read is {floor}"
        raise _refused("below-floor", detail, table)
    return at.version


def differing_digests(a: VersionStream, b: VersionStream) -> dict[str, DigestDifference]:
    """The source partitions whose events did not reach both tables alike.

    Compared are the own source partitions of each region, at the newest heartbeat that both tables have taken in all of
    them. Digests that do not begin at the same offset say nothing.
    """
    found: dict[str, DigestDifference] = {}
    for region in sorted({*a.last()} & {*b.last()}):
        known = {one.mark: one for one in b.taken(region) if not one.missing}
        both = [(one, known[one.mark]) for one in a.taken(region) if not one.missing and one.mark in known]
        if both:
            at, other = both[-1]
            mine, theirs = a.digests_at(at.version), b.digests_at(other.version)
            for source in sorted({*mine} & {*theirs}):
                own = source.rpartition("/")[0] == region
                if own and mine[source].first == theirs[source].first and mine[source] != theirs[source]:
                    found[source] = DigestDifference(at, mine[source].less(theirs[source]))
    return found


def _refused(rule: str, detail: str, table: str, hint: str = "") -> UpsertRefusedError:
    return UpsertRefusedError(rule, f"there is no checkpoint to read: {detail}", table=table, hint=hint)
