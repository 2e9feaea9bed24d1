"""Heartbeats: control records that pass through a region's source as data does, and say that it is alive. Pure.

The emitter of a region writes one heartbeat to each of its source partitions. Ingestion reads them with the events, and
records each in the version that took it. A heartbeat needs no vector of its own: the positions of its version are it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.records import Record, RecordDecoder

SILENT_AFTER = 3
"""A region is silent when no heartbeat has come for so many intervals."""

FAR_AHEAD_MS = 60_000
"""A heartbeat this far in the future says that one of two clocks is wrong."""


HEARD, SILENT, CLOCK_AHEAD = "heard", "silent", "clock ahead"
"""States of a region."""


class Heartbeat(Record, frozen=True, order=True, tag_field=records.FORMAT, tag=1):
    """What is written to each of the ``partitions`` source partitions of a region, which are numbered from 0.

    ``term`` counts the emitters that the region has had, ``time_ms`` (epoch milliseconds) rises strictly over all of
    them. ``previous_ms`` is the time of the last heartbeat that is known to be in all source partitions, 0 for none.
    """

    term: int
    time_ms: int
    previous_ms: int
    partitions: int

    @property
    def mark(self) -> tuple[int, int]:
        """What orders heartbeats of a region."""
        return self.term, self.time_ms


class TakenHeartbeat(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, forbid_unknown_fields=True):
    """A heartbeat of ``region`` that version ``version`` has taken, in every source partition but ``missing``.

    Without ``missing`` it is *aligned*: the version holds exactly what the region had written up to it."""

    region: str
    term: int
    time_ms: int
    previous_ms: int
    version: int = 0
    missing: tuple[int, ...] = ()

    @property
    def mark(self) -> tuple[int, int]:
        """What orders heartbeats of a region."""
        return self.term, self.time_ms


class Lag(msgspec.Struct, frozen=True):
    """How long ago the region was heard, in milliseconds; ``None``: never. ``is_ahead``: by a clock that is ahead."""

    region: str
    lag_ms: int | None
    interval_ms: int
    is_ahead: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether too many heartbeats are missing, or none was ever heard."""
        return self.lag_ms is None or self.lag_ms > SILENT_AFTER * self.interval_ms

    @property
    def state(self) -> str:
        """``HEARD``, ``SILENT`` or ``CLOCK_AHEAD``."""
        if self.is_silent:
            return SILENT
        return CLOCK_AHEAD if self.is_ahead else HEARD


def lags(
    regions: Iterable[str],
    last: Mapping[str, TakenHeartbeat],
    interval_ms: int,
    now_ms: int,
    published_ms: Mapping[int, int],
) -> dict[str, Lag]:
    """The lag of each region, which grows with the clock as long as no heartbeat is taken; never negative.

    ``published_ms`` are the times at which versions were published. A heartbeat counts from then on if its own time is
    later: a region whose clock is ahead, and that stops, must not pass for alive until our clock is there, too.
    """
    return {region: _lag(region, last.get(region), interval_ms, now_ms, published_ms) for region in regions}


def _lag(
    region: str, last: TakenHeartbeat | None, interval_ms: int, now_ms: int, published_ms: Mapping[int, int]
) -> Lag:
    if last is None:
        return Lag(region, None, interval_ms)
    heard_ms = min(last.time_ms, published_ms.get(last.version, last.time_ms))
    return Lag(region, max(now_ms - heard_ms, 0), interval_ms, is_ahead=last.time_ms - now_ms > FAR_AHEAD_MS)


_DECODER = RecordDecoder(Heartbeat, "heartbeat")


def decode(payload: bytes, where: str) -> Heartbeat:
    """The heartbeat in ``payload``. Raises :class:`CorruptRecordError`."""
    return _DECODER.decode(payload, where)
