"""Names, checked before they become a znode path, an object key or a file name.

Pinot forbids only ``\\ / : * ? " < > |`` in segment names and so lets a comma through, which its own lineage
encoding then splits (docs/lineage.md, "Where Pinot loses data"). We allow a short alphabet instead.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterable

from airflow_provider_segments.exceptions import InvalidNameError

MAX_NAME = 200
"""Longest segment name: room for attempts and a suffix within the 255 bytes a file name may have."""

MAX_TABLE_NAME = 128
"""Longest table or cluster name."""

MAX_STAGER_NAME = 24
"""Longest stager name. Segments are called ``<table>_<chunk>_<tag>_<stager>_<number>-<part>``: with 13 characters of an
hourly time chunk, 16 of the tag, a number of 8, a part of 5 and the separators, the longest table name and the longest
stager name make a segment name of ``MAX_NAME``. So every table that can be made can be staged into."""

DEFAULT_STAGER = "build"
"""The stager of an entry that has one only."""

MAX_TEXT = 1_000
"""Longest text by which a caller names itself: group, task, identity, owner. Airflow's longest DAG, run and task ids
with a map index have 770."""

_PLAIN = r"[A-Za-z0-9_][A-Za-z0-9_.=+@~-]*"
_NAME = re.compile(_PLAIN)
_NAMES = re.compile(rf"(?:{_PLAIN}(?:,|\Z))*+")
_ENTRY_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ALLOWED = "letters, digits and _ . = + @ ~ -, not starting with a punctuation mark other than _"
_ENTRY_NAMESPACE = uuid.UUID("b6f8a3f0-6d59-5f0e-9d0b-1a5a3c1f7e42")


def check_table_name(name: str) -> str:
    """Return ``name``. Raises :class:`InvalidNameError` when it cannot be a table's name."""
    return _check("table", name, MAX_TABLE_NAME)


def check_cluster_name(name: str) -> str:
    """Return ``name``. Raises :class:`InvalidNameError` when it cannot be a cluster's name."""
    return _check("cluster", name, MAX_TABLE_NAME)


def check_segment_name(name: str) -> str:
    """Return ``name``. Raises :class:`InvalidNameError` when it cannot be a segment's name."""
    return _check("segment", name)


def check_stager_name(name: str) -> str:
    """Return ``name``. Raises :class:`InvalidNameError` when it cannot name a stager of an entry."""
    _check("stager", name, MAX_STAGER_NAME)
    if "." in name:
        raise InvalidNameError(f"stager name {name!r} must not contain a dot: it is a field of a registry node's name")
    return name


def check_text(kind: str, text: str, limit: int = MAX_TEXT) -> str:
    """Return ``text``, by which a caller names itself as a ``kind`` (a lock group, an identity).

    Raises :class:`InvalidNameError` unless it has 1 to ``limit`` printable characters: others will read it on a
    terminal.
    """
    if not isinstance(text, str):
        raise InvalidNameError(f"{kind} must be a string, not {type(text).__name__}")
    if not text:
        raise InvalidNameError(f"{kind} must not be empty")
    if len(text) > limit:
        raise InvalidNameError(f"{kind} {text[:40]!r}... has {len(text)} characters; at most {limit:,} are allowed")
    if not text.isprintable():
        bad = next(letter for letter in text if not letter.isprintable())
        raise InvalidNameError(f"{kind} {text[:80]!r} holds {bad!r}, which is not printable")
    return text


def check_segment_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return ``names`` as a tuple. Raises :class:`InvalidNameError` for the first bad or repeated one."""
    checked = tuple(names)
    if not _all_plain(checked):
        for name in checked:
            check_segment_name(name)
    if len(set(checked)) != len(checked):
        seen: set[str] = set()
        twice = next(name for name in checked if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidNameError(f"segment name {twice!r} is given twice in one list")
    return checked


def check_entry_id(entry_id: str) -> str:
    """Return ``entry_id``. Raises :class:`InvalidNameError` unless it is a lower-case hyphenated UUID (Pinot's
    form)."""
    if not isinstance(entry_id, str) or _ENTRY_ID.fullmatch(entry_id) is None:
        raise InvalidNameError(f"{entry_id!r} is not a lineage entry id: expected a lower-case UUID with hyphens")
    return entry_id


def is_table_name(name: str) -> bool:
    """Return True if ``name`` can be a table's name."""
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def is_entry_id(text: str) -> bool:
    """Whether ``text`` is a whole entry id."""
    return _ENTRY_ID.fullmatch(text) is not None


def is_number(text: str) -> bool:
    """Whether ``text`` is 1 to 18 ASCII digits. ``str.isdecimal`` also takes the digits of all other scripts, and
    ``int`` fails on thousands of them."""
    return len(text) <= 18 and text.isascii() and text.isdecimal()


def entry_id_for(table: str, identity: str, version: int) -> str:
    """The entry id of a push: a UUID made from the table, who pushes, and the znode version of the lineage it is added
    to.

    That moves on with each entry, so an id is never given twice, also not to the same work when it is run again after
    its earlier entry has left the lineage: the segments of that one may still be there.
    """
    return str(uuid.uuid5(_ENTRY_NAMESPACE, f"{table}\n{identity}\n{version}"))


def entry_tag(entry_id: str) -> str:
    """16 hexadecimal digits of the entry id, put into segment names so that no two pushes share one."""
    return entry_id.replace("-", "")[:16]


def describe_names(names: Collection[str]) -> str:
    """Up to three of ``names`` and how many more, for a message."""
    shown = ", ".join(repr(name) for name in list(names)[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _all_plain(names: tuple[str, ...]) -> bool:
    """Whether all are valid, by one match over all of them: 100,000 names in some milliseconds."""
    if not all(isinstance(name, str) and 0 < len(name) <= MAX_NAME for name in names):
        return False
    joined = ",".join(names)
    return joined.count(",") == max(len(names) - 1, 0) and _NAMES.fullmatch(joined) is not None


def _check(kind: str, name: str, limit: int = MAX_NAME) -> str:
    if not isinstance(name, str):
        raise InvalidNameError(f"{kind} name must be a string, not {type(name).__name__}")
    if not name:
        raise InvalidNameError(f"{kind} name must not be empty")
    if len(name) > limit:
        raise InvalidNameError(f"{kind} name {name[:40]!r}... has {len(name)} characters; at most {limit} are allowed")
    if _NAME.fullmatch(name) is None:
        raise InvalidNameError(f"{kind} name {name!r} is not allowed: use {_ALLOWED}")
    return name
