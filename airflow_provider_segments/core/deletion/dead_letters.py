"""Dead letters, for a person: which there are, enqueue them anew, or forget them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from airflow_provider_segments.core import audit
from airflow_provider_segments.core.access import require_operator
from airflow_provider_segments.core.deletion.messages import DeadLetters, UnreadableLetters
from airflow_provider_segments.core.deletion.queue import DeletionQueue
from airflow_provider_segments.exceptions import CorruptRecordError, EntryNotFoundError, NewerRecordError


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Dead letters that died together. ``problem`` says why they cannot be decoded; the rest is empty then.

    ``attempts`` is the highest number of attempts among them, ``first_ms`` the earliest failure, ``error`` one of the
    last errors.
    """

    id: str
    table: str = ""
    entry_id: str = ""
    ledger_type: str = ""
    ledgers: int = 0
    bytes: int = 0
    attempts: int = 0
    first_ms: int = 0
    dead_ms: int = 0
    error: str = ""
    segments: tuple[str, ...] = ()
    problem: str = ""

    def as_dict(self) -> dict[str, object]:
        """Plain data, for XCom and JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"segments": list(self.segments)}


@dataclass(slots=True)
class Redriven:
    """What became of dead letters: how many were enqueued anew or purged, the ids that were gone meanwhile, and those
    that can only be purged."""

    messages: int = 0
    purged: bool = False
    ids: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    undecodable: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """Plain data, for XCom and JSON."""
        return {
            "messages": self.messages,
            "purged": self.purged,
            "ids": list(self.ids),
            "gone": list(self.gone),
            "undecodable": list(self.undecodable),
        }


def list_dead_letters(queue: DeletionQueue) -> Iterator[DeadLetter]:
    """All dead letters, read one by one."""
    for name, letters in queue.dead_letters():
        yield _described(name, letters)


def redrive(queue: DeletionQueue, ids: Sequence[str] | None = None, *, purge: bool = False) -> Redriven:
    """Enqueue dead letters anew, or forget them with ``purge``: those of ``ids`` (whole ids or the unique beginnings of
    some), or all.

    Raises :class:`EntryNotFoundError` for an id that is not there before anything is changed, and, for a named one that
    cannot be decoded, :class:`CorruptRecordError`.
    """
    require_operator(queue.cluster, "purge" if purge else "redrive")
    letters = dict(queue.dead_letters())
    tables = {name: one.batch.table for name, one in letters.items() if isinstance(one, DeadLetters)}
    there = list(letters)
    wanted = there if ids is None else [_resolve_id(there, one) for one in ids]
    done = Redriven(purged=purge)
    for name in wanted:
        try:
            moved = queue.purge(name) if purge else queue.redrive(name)
        except CorruptRecordError:
            if ids is not None:
                raise
            done.undecodable.append(name)
            continue
        (done.ids if moved else done.gone).append(name)
        if moved and (table := tables.get(name)):
            audit.write(queue.cluster, audit.event(queue.cluster, table, "purged" if purge else "redrove", detail=name))
        done.messages += moved
    return done


def _described(name: str, letters: DeadLetters | UnreadableLetters) -> DeadLetter:
    if isinstance(letters, UnreadableLetters):
        if isinstance(letters.error, NewerRecordError):
            return DeadLetter(name, problem=str(letters.error))
        return DeadLetter(name, problem=f"cannot be decoded, only purged: {letters.payload[:80]!r}")
    batch = letters.batch
    last = max(batch.ledgers, key=lambda one: one.attempts, default=None)
    return DeadLetter(
        name,
        batch.table,
        batch.entry_id,
        batch.ledger_type.value,
        len(batch.ledgers),
        sum(one.bytes for one in batch.ledgers),
        last.attempts if last else 0,
        min((one.first_ms for one in batch.ledgers), default=0),
        letters.dead_ms,
        last.error if last else "",
        tuple(one.segment for one in batch.ledgers),
    )


def _resolve_id(there: Sequence[str], wanted: str) -> str:
    if wanted in there:
        return wanted
    found = [name for name in there if len(wanted) >= 4 and name.startswith(wanted)]
    if len(found) != 1:
        problem = f"{len(found)} dead letters begin with" if found else "there are no dead letters called"
        raise EntryNotFoundError(f"{problem} {wanted!r}; list them with: segments dead-letters list")
    return found[0]
