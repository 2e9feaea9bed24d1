"""Text that somebody else wrote, made fit to be shown: one home for escaping, cutting and masking.

Names of lock groups, owners of leases, identities of pushes, answers of servers and addresses come from other
processes. Printed raw, a control character in them clears the screen, and a line break forges a row. Every message of
:class:`~airflow_provider_segments.exceptions.SegmentsError` passes :func:`for_message`, and every line that a command
prints passes :func:`escape`.
"""

from __future__ import annotations

import re

MAX_MESSAGE = 1_800
"""Most characters of an error message: less than a screen of 24 lines of 80."""

MASK = "***"
"""What is shown in place of a secret."""

_KEPT_AT_END = 400  # what to do next stands at the end of a message
_USERINFO = re.compile(  # user@, user:password@ (a secret key may hold a slash, a port is followed by one)
    r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s/@:'\"]*:(?!\d+/)[^\s@'\"]*|[^\s/@:'\"]+)@"
)
_LOGIN = re.compile(r"(^|[\s,;'\"(/])[^\s,;'\"(/@:]+:(?!//|\d+/)[^\s,;'\"(@:]+@(?=[A-Za-z0-9_\[])")
_TELLING = "passwd|password|passphrase|pwd|secret|token|credential|signature|apikey|accesskey|privatekey"
_SECRET_KEY = re.compile(rf"{_TELLING}|^sig$", re.ASCII | re.IGNORECASE)
_SECRET_VALUE = re.compile(  # name=value, and 'name': value as in JSON
    rf"((?:{_TELLING}|access[_.-]?key|private[_.-]?key|api[_.-]?key)[A-Za-z0-9_.-]*"
    r"(?:['\"]?\s*=\s*|['\"]\s*:\s*))('[^']*'|\"[^\"]*\"|[^\s&;,'\")}\]]+)",
    re.ASCII | re.IGNORECASE,
)


def escape(text: str) -> str:
    """Return ``text`` with everything that is not printable written as Python would (``\\x1b``, ``\\n``, ``\\ud800``).

    Repeating it changes nothing more.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def cut(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return ``text``, or its beginning and its end where it has more than ``limit`` characters."""
    if len(text) <= limit:
        return text
    end = min(_KEPT_AT_END, limit // 4)
    left_out = f" ... ({len(text) - limit:,} more characters) ... "
    return text[: limit - end - len(left_out)] + left_out + text[-end:]


def count(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 segment``, ``2,000 segments``, ``2 entries``; ``plural`` is for nouns that do more than gain an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def is_secret_name(name: str) -> bool:
    """Return True if an option of that name most likely holds a secret, as ``password`` or ``fs.s3a.secret.key``."""
    return _SECRET_KEY.search(re.sub(r"[^A-Za-z]", "", name)) is not None


def has_userinfo(text: str) -> bool:
    """Return True if an address in ``text`` holds a user or a password, as ``scheme://user:password@host`` does."""
    return _USERINFO.search(text) is not None


def mask(text: str) -> str:
    """Return ``text`` without the secrets that its form gives away: in addresses, and after names like ``password``."""
    if "@" in text:
        text = _LOGIN.sub(rf"\1{MASK}@", _USERINFO.sub(rf"\1{MASK}@", text))
    if "=" in text or ":" in text:
        text = _SECRET_VALUE.sub(rf"\1{MASK}", text)
    return text


def for_message(text: str) -> str:
    """Return ``text`` as an error message shows it: masked, escaped and no longer than a screen."""
    return cut(escape(mask(cut(text, 8 * MAX_MESSAGE))))
