"""Pinot's period strings: ``1d``, ``12h``, ``4h30m``, ``0s``."""

from __future__ import annotations

import re

from airflow_provider_segments.exceptions import InvalidConfigError

_PERIOD = re.compile(r"(?:(\d{1,12})d)?(?:(\d{1,12})h)?(?:(\d{1,12})m)?(?:(\d{1,12})s)?", re.ASCII | re.IGNORECASE)
_SECONDS = (86_400, 3_600, 60, 1)


def parse_period(text: str) -> int:
    """Milliseconds of a period: days, hours, minutes, seconds in that order, each optional, not all absent.

    Raises :class:`InvalidConfigError` for anything else. (Pinot falls back to a default with a warning; a retention
    that silently becomes another one is how data gets lost, so we refuse.)
    """
    found = _PERIOD.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise InvalidConfigError(
            f"period {text!r} is not valid; write days, hours, minutes, seconds, as in 1d, 4h30m, 0s"
        )
    return 1000 * sum(int(count or 0) * unit for count, unit in zip(found.groups(), _SECONDS, strict=True))


def format_period(period_ms: int) -> str:
    """A period as :func:`parse_period` reads it, rounded down to whole seconds: ``4h30m``, ``0s``."""
    left, parts = period_ms // 1000, []
    for unit, letter in zip(_SECONDS, "dhms", strict=True):
        count, left = divmod(left, unit)
        if count:
            parts.append(f"{count}{letter}")
    return "".join(parts) or "0s"
