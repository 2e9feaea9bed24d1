"""The guard of a lineage entry: one small znode an entry, ``ENTRIES/<table>/<entry id>``.

It is made in the transaction that makes the entry, so its creation zxid is the zxid at which the entry was born. Every
``stage`` checks its version in the same transaction that registers segments, so that a build whose entry was
completed, reverted or dropped cannot stage, and the lineage itself is not touched by staging. ``end`` seals it: it
writes an id of its own, and goes on only while the guard stays at that version. ``end`` and ``revert`` change it
together with the lineage, so the two never disagree.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.records import Record, RecordDecoder
from airflow_provider_segments.core.zookeeper import Node

OWN_IDENTITY = "airflow_provider_segments:"
"""Prefix of the identities of this package's own work. Callers must not use it."""

CLEANUP = OWN_IDENTITY + "cleanup"
"""Who has reverted an entry that clean-up aborted."""


class GuardState(enum.Enum):
    """OPEN takes segments; the others follow the entry's state."""

    OPEN = "OPEN"
    COMPLETED = "COMPLETED"
    REVERTED = "REVERTED"


class Stage(Record, frozen=True):
    """The progress of one stager. ``attempt`` fences: only segments of the newest attempt become visible.

    ``begun`` says that segments may have been registered, ``done`` that all of them were; ``segments``, ``rows`` and
    ``bytes`` are totals of a finished stage.
    """

    attempt: int
    begun: bool = False
    done: bool = False
    segments: int = 0
    rows: int = 0
    bytes: int = 0


class HeldTime(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Time that a push holds as an overwrite, in UTC milliseconds, and the version it holds it in."""

    start_ms: int
    end_ms: int
    version: int

    @property
    def interval(self) -> Interval:
        """The time."""
        return Interval(self.start_ms, self.end_ms)


class Rewrite(Record, frozen=True):
    """Says that the rows of a push are those of segments it replaces, and that it puts them into one time chunk.

    ``version`` is that of what it brings, ``oldest`` the oldest version among its inputs. ``overwrites`` are those of
    later versions than ``oldest`` in the time chunk, as they were when the inputs were read: see
    :func:`~airflow_provider_segments.core.versions.order.overwrites_above`.
    """

    start_ms: int
    end_ms: int
    version: int
    oldest: int
    overwrites: tuple[str, ...] = ()

    @property
    def interval(self) -> Interval:
        """The time chunk."""
        return Interval(self.start_ms, self.end_ms)


class Guard(Record, frozen=True, tag_field=records.FORMAT, tag=2):
    """The guard's record.

    ``identity`` says whose work the entry is, ``settled_by`` which request last completed or reverted it, and
    ``completed_at`` is, on a reverted entry, the zxid at which it had been completed (0: it never was). ``turns``
    are, of an entry that was brought back, the zxids before that at which it was completed and reverted in turn.
    ``seal`` names the ``end`` that has looked last at what is staged (empty: something was staged since).

    As it was when the entry was started: ``announced`` says that the start named the ``to``, ``refreshes`` that each
    push of the table replaces all of it, ``has_quota`` that the table has a storage quota, so that a ``stage`` without
    one costs nothing, and ``placed`` that new segments get a version under a lock.

    ``locks`` are those the push was started under, and ``own_locks`` those that its stages took. ``exclusive`` is the
    time of the EXCLUSIVE locks among ``locks``, in the version that the push drew under them, ``overwrites`` the time
    that it holds whatever it brings; ``rewrite`` says that it rewrites what it replaces.
    """

    state: GuardState
    identity: str | None
    stages: dict[str, Stage]
    settled_by: str | None
    completed_at: int
    turns: tuple[int, ...]
    seal: str
    announced: bool
    refreshes: bool
    has_quota: bool
    placed: bool
    locks: tuple[HeldLock, ...]
    own_locks: tuple[HeldLock, ...]
    exclusive: tuple[HeldTime, ...]
    overwrites: tuple[HeldTime, ...]
    rewrite: Rewrite | None

    @classmethod
    def new(cls, identity: str | None, state: GuardState = GuardState.OPEN, **fields: Any) -> Guard:
        """The guard of an entry that is being started, or of another tool's that is reverted here."""
        return cls(state=state, identity=identity, **{**_NEW, **fields})

    @property
    def all_locks(self) -> tuple[HeldLock, ...]:
        """Every lock the push relies on."""
        return (*self.locks, *self.own_locks)

    def version_over(self, interval: Interval) -> int | None:
        """The version of the push as an overwrite of ``interval``; ``None`` outside of its EXCLUSIVE locks."""
        return max((held.version for held in self.exclusive if held.interval.contains(interval)), default=None)

    def overwriting(self, held: tuple[HeldTime, ...]) -> Guard:
        """This guard, holding that time whatever the push brings."""
        return msgspec.structs.replace(self, overwrites=held)

    def rewriting(self, rewrite: Rewrite) -> Guard:
        """This guard of a push that rewrites what it replaces."""
        return msgspec.structs.replace(self, rewrite=rewrite)

    def with_locks(self, taken: Iterable[HeldLock]) -> Guard:
        """This guard, relying on ``taken``, too."""
        return msgspec.structs.replace(self, own_locks=tuple(dict.fromkeys([*self.own_locks, *taken])))

    def without_locks_of(self, task: str) -> Guard:
        """This guard, not relying any more on what the stage ``task`` took."""
        return msgspec.structs.replace(self, own_locks=tuple(lock for lock in self.own_locks if lock.task != task))

    def restarted(self, other: Guard) -> Guard:
        """This guard under the locks and the rewrite of ``other``, which a retried start would make now. What was
        staged under other ones has to be staged again: it may have another version, or other rows."""
        same = (self.locks, self.exclusive, self.overwrites, self.rewrite)
        if same == (other.locks, other.exclusive, other.overwrites, other.rewrite):
            return self
        stages = {name: msgspec.structs.replace(stage, done=False) for name, stage in self.stages.items()}
        return msgspec.structs.replace(
            self,
            stages=stages,
            locks=other.locks,
            exclusive=other.exclusive,
            overwrites=other.overwrites,
            rewrite=other.rewrite,
        )

    def with_stage(self, stager: str, stage: Stage) -> Guard:
        """This guard with ``stager`` at ``stage``, and no seal: who has sealed it must look again."""
        return msgspec.structs.replace(self, seal="", stages={**self.stages, stager: stage})

    def sealed(self, seal: str) -> Guard:
        """This guard with another seal."""
        return msgspec.structs.replace(self, seal=seal)

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

    def unreverted(self, settled_by: str) -> Guard:
        """The guard of the reverted entry once it is brought back."""
        turns = (*self.guard.turns, self.guard.completed_at, self.changed)
        return msgspec.structs.replace(
            self.guard, state=GuardState.COMPLETED, settled_by=settled_by, completed_at=0, turns=turns
        )

    def state_at(self, zxid: int) -> GuardState:
        """The state at an earlier time, of a guard that has changed since."""
        turns = (*self.guard.turns, *([self.guard.completed_at] if self.guard.completed_at else ()))
        before = sum(turn <= zxid for turn in turns)
        if before % 2:
            return GuardState.COMPLETED
        never_completed = self.guard.state is GuardState.REVERTED and not turns
        return GuardState.REVERTED if before or never_completed else GuardState.OPEN


_NEW: dict[str, Any] = {
    "stages": {},
    "settled_by": None,
    "completed_at": 0,
    "turns": (),
    "seal": "",
    "announced": False,
    "refreshes": False,
    "has_quota": False,
    "placed": False,
    "locks": (),
    "own_locks": (),
    "exclusive": (),
    "overwrites": (),
    "rewrite": None,
}
_DECODER = RecordDecoder(Guard, "guard")


def encode(guard: Guard) -> bytes:
    """The guard as it is stored."""
    return records.encode(guard)


def decode(node: Node, entry_id: str, where: str) -> StoredGuard:
    """The guard in ``node``. Raises :class:`CorruptRecordError` naming ``where`` it was read."""
    return StoredGuard(entry_id, _DECODER.decode(node.data, where), node.version, node.czxid, node.mzxid)
