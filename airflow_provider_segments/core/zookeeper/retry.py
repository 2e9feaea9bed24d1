"""The one retry loop around compare-and-sets: bounded, jittered, and deciding again from what it just read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_segments.clock import Clock
from airflow_provider_segments.core.zookeeper import CommitConflictError, ZooKeeperSession
from airflow_provider_segments.exceptions import ContentionError, MetadataUnavailableError, OutcomeUnknownError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Retry:
    """``attempts`` tries with full jitter between them: up to ``base`` seconds, doubling up to ``cap``."""

    attempts: int = 100
    base: float = 0.01
    cap: float = 0.25

    def run(self, what: str, session: ZooKeeperSession, clock: Clock, attempt: Callable[[], _T]) -> _T:
        """Call ``attempt`` until it returns.

        ``attempt`` must read, decide and commit from scratch each time, and recognise a write of its own that landed
        although its reply was lost. Raises :class:`ContentionError` when the last try was refused (nothing was changed)
        and :class:`OutcomeUnknownError` when nobody knows.
        """
        unknown = False
        last: CommitConflictError | OutcomeUnknownError
        for number in range(self.attempts):
            try:
                if unknown:
                    session.sync("/")  # the server we reach next may lag behind the one that took our write
                return attempt()
            except CommitConflictError as conflict:
                unknown, last = False, conflict  # it was decided on a read that saw what became of the write before
            except OutcomeUnknownError as lost:
                unknown, last = True, lost
            except MetadataUnavailableError as error:
                if not unknown:
                    raise
                raise OutcomeUnknownError(f"{what}: a write may have landed, and nobody can tell: {error}") from error
            clock.sleep(clock.uniform(0, min(self.cap, self.base * 2**number)))
        if isinstance(last, OutcomeUnknownError):
            raise OutcomeUnknownError(f"{what}: the last of {self.attempts} attempts may have landed: {last}") from last
        raise ContentionError(
            f"{what}: other writers won all {self.attempts} attempts; nothing was changed ({last})"
        ) from last
