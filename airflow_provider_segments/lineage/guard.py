"""The guard of a lineage entry: one small znode an entry, ``ENTRIES/<table>/<entry id>``.

It is made in the transaction that makes the entry, so its creation zxid is the zxid at which the entry was born. Every
``stage`` checks its version in the same transaction that registers segments, so that a build whose entry was sealed,
completed, reverted or dropped cannot stage, and the lineage itself is not touched by staging. ``end`` and ``revert``
change it together with the lineage, so the two never disagree.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from airflow_provider_segments.exceptions import CorruptRecordError
from airflow_provider_segments.zookeeper import Node

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


class Guard(msgspec.Struct, frozen=True):
    """The guard's record.

    ``identity`` says whose work the entry is, ``settled_by`` which request last completed or reverted it, and
    ``completed_at`` is, on a reverted entry, the zxid at which it had been completed (0: it never was). ``has_quota``
    says that the table had a storage quota when the entry was started, so that a ``stage`` without one costs nothing.
    """

    state: GuardState = GuardState.OPEN
    identity: str | None = None
    stages: dict[str, Stage] = {}
    settled_by: str | None = None
    completed_at: int = 0
    has_quota: bool = False
    format: int = _FORMAT

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
