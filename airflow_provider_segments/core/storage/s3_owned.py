"""Deleting what says of itself that it may be deleted, in S3: looks and deletes side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from airflow_provider_segments.core.storage.base import ObjectInfo, OwnedOutcome, foreign_owner
from airflow_provider_segments.exceptions import CorruptRecordError, StorageError

DELETE_BATCH = 1000
"""Keys one delete request may name."""

_DELETIONS = 4  # requests out at once, while the looks go on

Delete = Callable[[Sequence[str]], dict[str, str | None]]
"""Deletes some keys. Returns what is not deleted: the reason, or ``None`` where the store says it is missing."""


@dataclass(frozen=True, slots=True)
class OwnedDeletion:
    """The steps of one ``delete_owned``: ``confirmed`` names, quickly, keys of objects with the expected owner;
    ``look`` is asked about every other one, by ``lookers`` threads; ``delete`` gets what passed, 1,000 keys at most.
    """

    confirmed: Callable[[Mapping[str, str]], Iterable[str]]
    look: Callable[[str], ObjectInfo | None]
    delete: Delete
    lookers: int
    missing: list[str] = field(default_factory=list)
    foreign: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def run(self, owners: Mapping[str, str]) -> OwnedOutcome:
        """Delete what passes, and say what became of each key."""
        with ThreadPoolExecutor(_DELETIONS) as pool:
            requests = [(batch, pool.submit(self.delete, batch)) for batch in _batches(self._owned(owners))]
        deleted: list[str] = []
        for batch, request in requests:
            deleted += self._deleted(batch, request)
        return OwnedOutcome(tuple(deleted), tuple(self.missing), self.foreign, self.failed)

    def _owned(self, owners: Mapping[str, str]) -> Iterator[str]:
        """Keys whose objects are what ``owners`` says. What becomes of the others is noted."""
        rest = dict(owners)
        for key in self.confirmed(owners):
            del rest[key]
            yield key
        if rest:
            with ThreadPoolExecutor(min(self.lookers, len(rest))) as pool:
                verdicts = pool.map(self._is_owned, rest, rest.values())
                yield from (key for key, owned in zip(rest, verdicts, strict=True) if owned)

    def _is_owned(self, key: str, owner: str) -> bool:
        try:
            info = self.look(key)
        except CorruptRecordError as error:
            self.foreign[key] = str(error)
        except StorageError as error:
            self.failed[key] = str(error)
        else:
            if info is None:
                self.missing.append(key)
            elif foreign := foreign_owner(info.owner, owner):
                self.foreign[key] = foreign
            else:
                return True
        return False

    def _deleted(self, batch: Sequence[str], request: Future[dict[str, str | None]]) -> list[str]:
        errors = request.result()
        self.missing.extend(key for key, error in errors.items() if error is None)
        self.failed.update((key, error) for key, error in errors.items() if error is not None)
        return [key for key in batch if key not in errors]


def _batches(keys: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for key in keys:
        batch.append(key)
        if len(batch) == DELETE_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
