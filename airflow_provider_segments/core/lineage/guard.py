"""The guard of a lineage entry: one small znode an entry, ``ENTRIES/<table>/<entry id>``.

It is made in the transaction that makes the entry, so its creation zxid is the zxid at which the entry was born. Every
``stage`` checks its version in the same transaction that registers segments, so that a build whose entry was sealed,
completed, reverted or dropped cannot stage, and the lineage itself is not touched by staging. ``end`` and ``revert``
change it together with the lineage, so the two never disagree.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.ranges import Ranges
from airflow_provider_segments.core.zookeeper import Node
from airflow_provider_segments.exceptions import CorruptRecordError

_FORMAT = 1


class GuardState(enum.Enum):
    """OPEN takes segments; SEALED is between the last stage and the switch; the others follow the entry's state."""

    OPEN = "OPEN"
    SEALED = "SEALED"
    COMPLETED = "COMPLETED"
    REVERTED = "REVERTED"


class Stage(msgspec.Struct, frozen=True):
    """What one stager has done. ``attempt`` fences: only the newest attempt's segments count.

    ``begun`` says that segments may have been registered, ``done`` that all of them were; ``segments``, ``rows`` and
    ``bytes`` are totals of a finished stage.
    """

    attempt: int
    begun: bool = False
    done: bool = False
    segments: int = 0
    rows: int = 0
    bytes: int = 0


class Rewrite(msgspec.Struct, frozen=True):
    """Says that the rows of a push are those of segments it replaces, which have a place in the timeline, and that it
    puts them into one time chunk. ``version`` and ``partitions`` are of those that the new ones overshadow by their
    ids: segments of the chunk itself, under the lock that the push relies on; empty where the new ones get a version
    of their own."""

    start_ms: int
    end_ms: int
    version: str = ""
    partitions: Ranges = ()

    @property
    def interval(self) -> Interval:
        """The time chunk."""
        return Interval(self.start_ms, self.end_ms)


class Guard(msgspec.Struct, frozen=True):
    """The guard's record.

    ``identity`` says whose work the entry is, ``settled_by`` which request last completed or reverted it, and
    ``completed_at`` is, on a reverted entry, the zxid at which it had been completed (0: it never was). ``has_quota``
    says that the table had a storage quota when the entry was started, so that a ``stage`` without one costs nothing.
    ``placed`` says that its segments get a place in the timeline, ``locks`` are those the push was started under, and
    ``own_locks`` those that its stages took; ``rewrite`` says that it rewrites what it replaces.
    """

    state: GuardState = GuardState.OPEN
    identity: str | None = None
    stages: dict[str, Stage] = {}
    settled_by: str | None = None
    completed_at: int = 0
    has_quota: bool = False
    placed: bool = False
    locks: tuple[HeldLock, ...] = ()
    own_locks: tuple[HeldLock, ...] = ()
    rewrite: Rewrite | None = None
    format: int = _FORMAT

    @property
    def all_locks(self) -> tuple[HeldLock, ...]:
        """Every lock the push relies on."""
        return (*self.locks, *self.own_locks)

    def with_locks(self, taken: Iterable[HeldLock]) -> Guard:
        """This guard, relying on ``taken``, too."""
        return msgspec.structs.replace(self, own_locks=tuple(dict.fromkeys([*self.own_locks, *taken])))

    def without_locks_of(self, task: str) -> Guard:
        """This guard, not relying any more on what the stage ``task`` took."""
        return msgspec.structs.replace(self, own_locks=tuple(lock for lock in self.own_locks if lock.task != task))

    def under(self, locks: Sequence[HeldLock], rewrite: Rewrite | None) -> Guard:
        """This guard under other locks. What was staged under the old ones has ids that those protected, so it has to
        be staged again."""
        if (self.locks, self.rewrite) == (tuple(locks), rewrite):
            return self
        stages = {name: msgspec.structs.replace(stage, done=False) for name, stage in self.stages.items()}
        return msgspec.structs.replace(self, state=GuardState.OPEN, locks=tuple(locks), rewrite=rewrite, stages=stages)

    def with_stage(self, stager: str, stage: Stage) -> Guard:
        """This guard, open, with ``stager`` at ``stage``."""
        return msgspec.structs.replace(self, state=GuardState.OPEN, stages={**self.stages, stager: stage})

    def moved_to(self, state: GuardState, settled_by: str | None = None) -> Guard:
        """This guard in ``state``."""
        return msgspec.structs.replace(self, state=state, settled_by=settled_by)


@dataclass(frozen=True, slots=True)
class StoredGuard:
    """A guard as it was read: its znode version, and the zxids at which its entry was born and last changed."""

    entry_id: str
    guard: Guard
    version: int
    born: int
    changed: int

    def reverted(self, settled_by: str | None) -> Guard:
        """The guard of the entry once it is reverted."""
        completed_at = self.changed if self.guard.state is GuardState.COMPLETED else self.guard.completed_at
        return msgspec.structs.replace(
            self.guard, state=GuardState.REVERTED, settled_by=settled_by, completed_at=completed_at
        )


_DECODER = msgspec.json.Decoder(Guard)


def encode(guard: Guard) -> bytes:
    """The guard as it is stored."""
    return msgspec.json.encode(guard)


def decode(node: Node, entry_id: str, where: str) -> StoredGuard:
    """The guard in ``node``. Raises :class:`CorruptRecordError` naming ``where`` it was read."""
    try:
        guard = _DECODER.decode(node.data)
    except msgspec.DecodeError as error:
        raise CorruptRecordError(f"{where}: not a readable guard ({error})") from error
    if guard.format != _FORMAT:
        raise CorruptRecordError(f"{where}: format {guard.format} is unknown to this version")
    return StoredGuard(entry_id, guard, node.version, node.czxid, node.mzxid)
