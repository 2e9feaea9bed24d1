"""Object stores behind one small protocol: a local file system and S3."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from airflow_provider_segments.core.storage import folders
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.text import has_userinfo, mask

_MODE = re.compile(r"0?[0-7]{3}")
_S3_OPTIONS = {"endpoint_url", "access_key", "secret_key", "session_token", "region"}


def open_store(uri: str, *, file_mode: str | None = None, **options: str | None) -> ObjectStore:
    """The store at ``uri``: ``file:///folder``, an absolute path, or ``s3://bucket/prefix``.

    ``file_mode`` is for files: their permissions in octal digits, 640 by default. Options are for S3:
    ``endpoint_url``, ``access_key``, ``secret_key``, ``session_token``, ``region``; what is absent comes from boto3's
    standard chain. Nothing is contacted yet. Raises :class:`InvalidConfigError`.
    """
    if unknown := sorted(set(options) - _S3_OPTIONS):
        raise InvalidConfigError(
            f"storage option {', '.join(unknown)} is unknown; use {', '.join(sorted(_S3_OPTIONS))}"
        )
    from airflow_provider_segments.core.storage.local import LocalStore

    for address in (uri, options.get("endpoint_url") or ""):
        if has_userinfo(address) or ("?" in address and mask(address) != address):
            raise InvalidConfigError(f"address {mask(address)!r} must not hold credentials; give them apart from it")
    if not uri.isprintable():
        raise InvalidConfigError(f"storage {uri[:80]!r} holds a character that is not printable")
    if uri.startswith("/"):
        return LocalStore(Path(uri), mode=parse_mode(file_mode))  # a path, letter by letter
    try:
        parsed = urlsplit(uri)
    except ValueError as error:
        raise InvalidConfigError(f"storage {mask(uri)[:80]!r} is not an address: {error}") from None
    whole = not (parsed.query or parsed.fragment)  # else a part of the address would be dropped without a word
    if whole and parsed.scheme == "file" and parsed.netloc in ("", "localhost") and parsed.path.startswith("/"):
        return LocalStore(unquote(parsed.path), mode=parse_mode(file_mode))
    if whole and parsed.scheme in ("s3", "s3a") and parsed.netloc and "@" not in parsed.netloc:
        from airflow_provider_segments.core.storage.s3 import S3Store

        return S3Store(parsed.netloc, unquote(parsed.path), **options)  # type: ignore[arg-type]  # the names are checked above
    raise InvalidConfigError(
        f"storage {uri.rpartition('@')[2]!r} is not supported; use file:///folder or s3://bucket/prefix, "
        "and give credentials apart from it"
    )


def parse_mode(text: str | None) -> int:
    """Permission bits written as octal digits, as in ``640``; 640 without any. Raises :class:`InvalidConfigError` for
    anything else, for a mode in which the owner cannot read and write, and for one that lets a file be executed."""
    if not text:
        return folders.FILE_MODE
    mode = int(text, 8) if _MODE.fullmatch(text) else 0
    if mode & 0o600 != 0o600 or mode & 0o111:
        raise InvalidConfigError(f"file mode {text[:20]!r} is not valid; use octal digits such as 640, 600 or 644")
    return mode
