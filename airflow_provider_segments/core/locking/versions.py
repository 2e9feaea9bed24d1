"""Lock versions: times as ISO 8601 text in UTC with milliseconds; the order of such strings is the order of times."""

from __future__ import annotations

import re

from airflow_provider_segments.core.model.interval import MAX_MS, from_ms, parse_time
from airflow_provider_segments.exceptions import InvalidLockRequestError

APPEND_VERSION = "1970-01-01T00:00:00.000Z"
"""The version of APPEND locks: below that of every other lock, so appended segments never hide others (Druid 28)."""

_VERSION = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def version_of(at_ms: int) -> str:
    """The version of a lock that was made at ``at_ms``. Raises :class:`ValueError` outside the years 1 to 9999."""
    if at_ms >= MAX_MS:
        raise ValueError(f"{at_ms} ms is outside the years 1 to 9999")
    return from_ms(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_version(text: str) -> bool:
    """Whether ``text`` has the form of a version, and so can carry ids."""
    return _VERSION.fullmatch(text) is not None


def version_ms(version: str) -> int:
    """The time in ``version``. Raises :class:`InvalidLockRequestError` for any other form: Druid compares versions as
    strings, where ``"9" > "10"``; here only text whose order is the order of times can carry ids."""
    if not is_version(version):
        raise InvalidLockRequestError(
            f"{version!r} is not a segment version: expected UTC with milliseconds such as {APPEND_VERSION}"
        )
    try:
        return parse_time(version)
    except ValueError as error:
        raise InvalidLockRequestError(f"{version!r} is not a segment version: {error}") from None
