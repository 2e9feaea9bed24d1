"""Object stores behind one small protocol: a local file system and S3."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.exceptions import InvalidConfigError

_S3_OPTIONS = {"endpoint_url", "access_key", "secret_key", "session_token", "region"}


def open_store(uri: str, **options: str | None) -> ObjectStore:
    """The store at ``uri``: ``file:///folder``, an absolute path, or ``s3://bucket/prefix``.

    Options are for S3: ``endpoint_url``, ``access_key``, ``secret_key``, ``session_token``, ``region``; what is absent
    comes from boto3's standard chain. Nothing is contacted yet. Raises :class:`InvalidConfigError`.
    """
    if unknown := sorted(set(options) - _S3_OPTIONS):
        raise InvalidConfigError(
            f"storage option {', '.join(unknown)} is unknown; use {', '.join(sorted(_S3_OPTIONS))}"
        )
    from airflow_provider_segments.core.storage.local import LocalStore

    if not uri.isprintable():
        raise InvalidConfigError(f"storage {uri[:80]!r} holds a character that is not printable")
    if uri.startswith("/"):
        return LocalStore(Path(uri))  # a path, letter by letter
    parsed = urlsplit(uri)
    whole = not (parsed.query or parsed.fragment)  # else a part of the address would be dropped without a word
    if whole and parsed.scheme == "file" and parsed.netloc in ("", "localhost") and parsed.path.startswith("/"):
        return LocalStore(unquote(parsed.path))
    if whole and parsed.scheme in ("s3", "s3a") and parsed.netloc and "@" not in parsed.netloc:
        from airflow_provider_segments.core.storage.s3 import S3Store

        return S3Store(parsed.netloc, unquote(parsed.path), **options)  # type: ignore[arg-type]  # the names are checked above
    raise InvalidConfigError(
        f"storage {uri.rpartition('@')[2]!r} is not supported; use file:///folder or s3://bucket/prefix, "
        "and give credentials apart from it"
    )
