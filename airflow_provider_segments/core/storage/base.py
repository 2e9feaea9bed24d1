"""The protocol every object store implements, and the rules its keys obey.

Keys are relative paths such as ``flights/<entry id>/<file>``; a store adds its own root (folder or bucket prefix).
Objects are written once. ``None`` from :meth:`ObjectStore.head` and ``missing`` from :meth:`ObjectStore.delete_owned`
are positive answers of the store: a refused or lost request raises, or is reported as failed, and never reads as
"not there" (PIP-186 trap T10).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    InvalidConfigError,
    InvalidNameError,
)

_PART = r"[A-Za-z0-9_=+@~-][A-Za-z0-9_.=+@~-]*"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*+")
_KEYS = re.compile(rf"(?:{_PART}(?:/{_PART})*+(?:\n|\Z))*+")
MAX_KEY = 900
"""Longest key: S3 allows 1,024 bytes, and the store's own prefix needs some of them."""

MAX_OWNER = 1800
"""Longest encoded owner metadata: S3 takes 2 KB of metadata, and what fits one store must fit all."""


class ListedObject(NamedTuple):
    """One object of a listing: its key, size in bytes, and when it was last written by the store's wall clock, in
    epoch milliseconds. A tuple, because listings are long."""

    key: str
    bytes: int
    modified_ms: int = 0


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object looked at by itself: key, size in bytes, and the owner metadata it was written with."""

    key: str
    bytes: int
    owner: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OwnedOutcome:
    """What became of each key given to ``delete_owned``: every key is in exactly one of the four, in the order in which
    it became known. ``foreign`` has the owner metadata that was found instead, as text."""

    deleted: tuple[str, ...]
    missing: tuple[str, ...]
    foreign: Mapping[str, str]
    failed: Mapping[str, str]

    @classmethod
    def merged(cls, parts: Sequence[OwnedOutcome]) -> OwnedOutcome:
        """The sum of ``parts``, which have no key in common."""
        deleted = tuple(key for part in parts for key in part.deleted)
        missing = tuple(key for part in parts for key in part.missing)
        foreign = {key: found for part in parts for key, found in part.foreign.items()}
        failed = {key: why for part in parts for key, why in part.failed.items()}
        return cls(deleted, missing, foreign, failed)


class ObjectStore(Protocol):
    """A place for objects. Instances may be shared by threads.

    Every method raises :class:`~.exceptions.StorageAccessError` when the store refuses the credentials or there are
    none, and :class:`~.exceptions.StorageUnavailableError` when it does not answer after all retries; only
    ``delete_owned`` reports both instead, key by key.
    """

    @property
    def uri(self) -> str:
        """The root, as given to :func:`~.storage.open_store`: it opens the same store in another process."""

    def put_file(self, path: Path, key: str, *, owner: Mapping[str, str], consume: bool = False) -> ObjectInfo:
        """Store the file at ``path`` under ``key`` with ``owner`` metadata; whole or not at all.

        With ``consume`` the caller only removes the file afterwards, so a store on the same disk need not copy it.
        Raises :class:`~.exceptions.ObjectExistsError` when ``key`` is taken. After any other error the object
        may stand there, whole: it can be the reply that was lost.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """The object's size and owner metadata, or ``None`` when there is no such object."""

    def open(self, key: str) -> BinaryIO:
        """A readable, seekable file. Raises :class:`~.exceptions.ObjectNotFoundError`."""

    def delete_owned(self, owners: Mapping[str, str]) -> OwnedOutcome:
        """Delete the objects that say of themselves what ``owners`` says: encoded owner metadata by key.

        An object with other metadata, or none, is left alone. One key's failure does not stop the others. Missing is
        the store's own answer to a look at the object, so it is known here also where a delete cannot tell. Raises
        :class:`InvalidNameError` before anything is touched when a key is not a key.
        """

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Every object whose key starts with ``prefix``, a folder-like prefix that ends with ``/``.

        In no particular order, and with memory for a page of it.
        """

    def discard_unfinished(self, prefix: str) -> int:
        """Remove what killed puts left under ``prefix`` and no listing shows; returns how many pieces there were.

        These are temporary files, or the parts of uploads. Only for a prefix that nobody may write to any more (its
        entry is reverted): a put that still runs there fails, or starts over.
        """

    def url(self, key: str) -> str:
        """The object's address for Spark and Arrow (``file:///...``, ``s3://bucket/...``)."""


def check_key(key: str) -> str:
    """Return ``key``. Raises :class:`InvalidNameError` unless it is a relative path of plain names: it cannot climb."""
    if len(key) > MAX_KEY or _KEY.fullmatch(key) is None:
        raise InvalidNameError(f"object key {key[:120]!r} is not allowed: expected plain names joined by /")
    return key


def check_keys(keys: Sequence[str]) -> None:
    """Check all of ``keys`` as :func:`check_key` does, at a fraction of the cost for many."""
    joined = "\n".join(keys)
    one_each = joined.count("\n") == len(keys) - 1
    if keys and one_each and all(keys) and max(map(len, keys)) <= MAX_KEY and _KEYS.fullmatch(joined):
        return
    for key in keys:
        check_key(key)


def check_prefix(prefix: str) -> str:
    """Return ``prefix``. Raises :class:`InvalidNameError` unless it is a valid key followed by ``/``."""
    if not prefix.endswith("/"):
        raise InvalidNameError(f"prefix {prefix[:120]!r} must end with /")
    check_key(prefix[:-1])
    return prefix


def encode_owner(owner: Mapping[str, str]) -> str:
    """Owner metadata as stored: JSON in printable ASCII, fit for an HTTP header, the same in every kind of store."""
    text = _owner_text(owner)
    if len(text) > MAX_OWNER:
        raise InvalidConfigError(f"owner metadata of {len(text)} bytes is too long: at most {MAX_OWNER}")
    return text


def decode_owner(text: str | bytes, where: str) -> dict[str, str]:
    """The owner metadata in ``text``. Raises :class:`CorruptRecordError`, which says that it came from ``where``."""
    try:
        owner = json.loads(text)
    except (ValueError, RecursionError):
        owner = None
    if not isinstance(owner, dict) or not all(isinstance(value, str) for value in owner.values()):
        raise CorruptRecordError(f"the owner metadata of {where} cannot be decoded: {str(text)[:120]!r}")
    return {str(key): value for key, value in owner.items()}


def foreign_owner(found: Mapping[str, str], expected: str) -> str:
    """The owner metadata ``found``, as text, when it is not what ``expected`` encodes; else empty. However it was
    spelled, and however long somebody else's is."""
    if found == decode_owner(expected, "the request"):
        return ""
    return _owner_text(found)[:MAX_OWNER]


def _owner_text(owner: Mapping[str, str]) -> str:
    return json.dumps(dict(owner), sort_keys=True, separators=(",", ":")).replace("\x7f", "\\u007f")


def random_id() -> str:
    """The default source of ids: 32 random hexadecimal digits."""
    return uuid.uuid4().hex


def entry_prefix(table: str, entry_id: str) -> str:
    """The prefix under which all objects of a push live (announce before writing: docs/architecture.md)."""
    return check_prefix(f"{table}/{entry_id}/")
