"""What the arguments of commands are: each function reads the text of one, and raises argparse's error in our words.

Imports nothing but the standard library until it is asked: see :mod:`.commands`.
"""

from __future__ import annotations

import argparse

KAFKA = "kafka:"
"""What a source that is a topic begins with."""

_MOST_SECONDS = 1e9


def time_ms(text: str) -> int:
    """An ISO 8601 date or time, UTC when it names no zone, in epoch milliseconds."""
    from airflow_provider_segments.core.model.interval import parse_time

    try:
        return parse_time(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no ISO 8601 date or time, as in 2013-01-31 or 2013-01-31T07:00Z"
        ) from None


def names(text: str) -> list[str]:
    """Segment names joined by commas, which no segment name can contain."""
    found = [name for name in text.split(",") if name]
    if not found:
        raise argparse.ArgumentTypeError("names no segment")
    return found


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < _MOST_SECONDS:  # also refuses NaN
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def whole(text: str) -> int:
    """A whole number above 0."""
    if not (text.isascii() and text.isdigit() and int(text[:20])):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text[:20])


def version(text: str) -> int:
    """A version of an upsert table."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no version: they are whole numbers from 0 on")
    return int(text[:20])


def comparison_value(text: str) -> int:
    """A value of a comparison column, as a number of 64 bits."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and abs(int(text)) < 2**63):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 64 bits")
    return int(text)


def source(text: str) -> tuple[str, str]:
    """A region, and the folder of its events or ``kafka:`` and their topic."""
    region, equals, where = text.partition("=")
    if not (region and equals and where.removeprefix(KAFKA)):
        raise argparse.ArgumentTypeError(f"{text!r} is not REGION=FOLDER or REGION={KAFKA}TOPIC")
    return region, where


def port(text: str) -> int:
    """A TCP port."""
    if not 0 < (found := whole(text)) < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: they end at 65535")
    return found


def period(text: str) -> int:
    """A period as in ``1d``, ``4h30m``, ``0s``, in milliseconds."""
    from airflow_provider_segments.core.model.period import parse_period
    from airflow_provider_segments.exceptions import InvalidConfigError

    try:
        return parse_period(text)
    except InvalidConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
