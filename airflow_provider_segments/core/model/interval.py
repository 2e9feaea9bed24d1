"""Half-open UTC time intervals and the time chunks a table is cut into.

Times are whole milliseconds since 1970-01-01T00:00:00Z. A chunk is one granule of time; its name is what a person
would write (``2013-01-31``, ``2013-W05``, ``2013-01-31T07``, ``2013-01``, ``2013``, ``ALL``) and tells its interval.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from airflow_provider_segments.exceptions import InvalidConfigError, InvalidNameError

MIN_MS = -62_135_596_800_000
"""0001-01-01T00:00:00Z, the earliest time a chunk can hold."""
MAX_MS = 253_402_300_800_000
"""9999-12-31T24:00:00Z, the end of the last chunk."""

Time = int | str | datetime
"""UTC epoch milliseconds, ISO 8601 text (UTC when it names no zone), or a datetime with a zone."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Granularity(enum.Enum):
    """How wide a time chunk is, in UTC. Weeks are ISO weeks and start on Monday; ALL is one chunk for everything."""

    HOUR = "HOUR"
    DAY = "DAY"
    WEEK = "WEEK"
    MONTH = "MONTH"
    YEAR = "YEAR"
    ALL = "ALL"

    @classmethod
    def parse(cls, text: str) -> Granularity:
        """The granularity called ``text`` in any case. Raises :class:`InvalidConfigError` for anything else."""
        try:
            return cls[text.upper()]
        except (KeyError, AttributeError):
            names = ", ".join(granularity.name for granularity in cls)
            raise InvalidConfigError(f"segment granularity {text!r} is unknown; use one of {names}") from None

    def floor(self, at_ms: int) -> int:
        """Start of the chunk that holds ``at_ms``. Raises :class:`ValueError` outside the years 1 to 9999."""
        if not MIN_MS <= at_ms < MAX_MS:
            raise ValueError(f"{at_ms} ms is outside the years 1 to 9999")
        match self:
            case Granularity.HOUR:
                return at_ms - at_ms % 3_600_000
            case Granularity.DAY:
                return at_ms - at_ms % 86_400_000
            case Granularity.WEEK:  # the epoch was a Thursday
                return max(MIN_MS, at_ms - (at_ms + 3 * 86_400_000) % (7 * 86_400_000))
            case Granularity.ALL:
                return MIN_MS
        at = from_ms(at_ms)
        month = at.month if self is Granularity.MONTH else 1
        return to_ms(datetime(at.year, month, 1, tzinfo=UTC))

    def chunk(self, at_ms: int) -> Interval:
        """The chunk that holds ``at_ms``. Raises :class:`ValueError` outside the years 1 to 9999."""
        start = self.floor(at_ms)
        match self:
            case Granularity.HOUR:
                return Interval(start, start + 3_600_000)
            case Granularity.DAY:
                return Interval(start, start + 86_400_000)
            case Granularity.WEEK:
                return Interval(start, start + 7 * 86_400_000)
            case Granularity.ALL:
                return ALL_TIME
        first = from_ms(start)
        if self is Granularity.YEAR:
            return Interval(start, MAX_MS if first.year == 9999 else to_ms(first.replace(year=first.year + 1)))
        return Interval(start, MAX_MS if (first.year, first.month) == (9999, 12) else to_ms(_next_month(first)))

    def chunk_name(self, at_ms: int) -> str:
        """Name of the chunk that holds ``at_ms``, as :func:`parse_chunk` reads it."""
        if self is Granularity.ALL:
            return "ALL"
        at = from_ms(self.floor(at_ms))
        if self is Granularity.WEEK:
            year, week, _ = at.isocalendar()
            return f"{year:04d}-W{week:02d}"
        return f"{at:{_FORMATS[self]}}" if at.year >= 1000 else _old_name(at, self)


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """``[start_ms, end_ms)`` in UTC milliseconds. Raises :class:`ValueError` when it is empty or reversed."""

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            raise ValueError(f"interval start {self.start_ms} must come before its end {self.end_ms}")

    def overlaps(self, other: Interval) -> bool:
        """Whether the two share at least one millisecond."""
        return self.start_ms < other.end_ms and other.start_ms < self.end_ms

    def contains(self, other: Interval) -> bool:
        """Whether all of ``other`` lies inside."""
        return self.start_ms <= other.start_ms and other.end_ms <= self.end_ms

    def __str__(self) -> str:
        return f"{format_ms(self.start_ms)}/{format_ms(self.end_ms)}"


ALL_TIME = Interval(MIN_MS, MAX_MS)

_FORMATS = {
    Granularity.HOUR: "%Y-%m-%dT%H",
    Granularity.DAY: "%Y-%m-%d",
    Granularity.MONTH: "%Y-%m",
    Granularity.YEAR: "%Y",
}
_CHUNK = re.compile(r"(\d{4})(?:-W(\d\d)|-(\d\d)(?:-(\d\d)(?:T(\d\d))?)?)?", re.ASCII)


@lru_cache(maxsize=262_144)  # the hours of thirty years, in 80 MB; one more than fits would make each a miss
def parse_chunk(name: str) -> Interval:
    """The interval of the chunk called ``name``. Raises :class:`InvalidNameError` when no chunk has that name."""
    if name == "ALL":
        return ALL_TIME
    found = _CHUNK.fullmatch(name)
    if found is None:
        raise InvalidNameError(f"{name!r} is not the name of a time chunk")
    year, week, month, day, hour = (None if part is None else int(part) for part in found.groups())
    try:
        if week is not None:
            at = datetime.fromisocalendar(year or 0, week, 1).replace(tzinfo=UTC)
            return Granularity.WEEK.chunk(to_ms(at))
        at = datetime(year or 0, month or 1, day or 1, hour or 0, tzinfo=UTC)
    except ValueError as error:
        raise InvalidNameError(f"{name!r} is not the name of a time chunk: {error}") from None
    parts = sum(part is not None for part in (month, day, hour))
    granularity = (Granularity.YEAR, Granularity.MONTH, Granularity.DAY, Granularity.HOUR)[parts]
    return granularity.chunk(to_ms(at))


def coarser_chunk(name: str) -> str | None:
    """The chunk of the next wider granularity that holds ``name``; ``None`` for years, ISO weeks and ``ALL``."""
    if "W" in name or "-" not in name:
        return None
    return name.rpartition("T" if "T" in name else "-")[0]


def to_ms(at: datetime) -> int:
    """Whole milliseconds since the epoch, rounded down. Raises :class:`ValueError` for a time without a zone."""
    if at.tzinfo is None:
        raise ValueError(f"{at} has no time zone; say which one it is in")
    return (at - _EPOCH) // timedelta(milliseconds=1)


def epoch_ms(at: Time) -> int:
    """``at`` in milliseconds since the epoch. Raises :class:`ValueError` for text that is no time, and for a datetime
    without a zone."""
    match at:
        case str():
            return parse_time(at)
        case datetime():
            return to_ms(at)
    return at


def from_ms(at_ms: int) -> datetime:
    """The UTC time of ``at_ms``."""
    return _EPOCH + timedelta(milliseconds=at_ms)


def format_ms(at_ms: int) -> str:
    """``at_ms`` as ISO 8601 in UTC, with milliseconds only where there are any."""
    if at_ms >= MAX_MS:
        return "+10000-01-01T00:00:00Z"
    text = from_ms(at_ms).isoformat(timespec="milliseconds" if at_ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """Milliseconds of an ISO 8601 date or time; UTC when it names no zone. Raises :class:`ValueError`."""
    if not text.isascii():
        raise ValueError(f"{text!r} is not an ISO 8601 date or time")
    at = datetime.fromisoformat(text)
    return to_ms(at if at.tzinfo is not None else at.replace(tzinfo=UTC))


def _next_month(first: datetime) -> datetime:
    return (first + timedelta(days=32)).replace(day=1)


def _old_name(at: datetime, granularity: Granularity) -> str:
    """strftime does not pad years before 1000."""
    return f"{at.year:04d}" + at.strftime(_FORMATS[granularity].removeprefix("%Y"))
