"""Object stores behind one small protocol: a local file system and S3."""

from __future__ import annotations

from urllib.parse import unquote, urlparse

from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.storage.base import ObjectStore

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
    parsed = urlparse(uri)
    if parsed.scheme in ("", "file") and parsed.netloc in ("", "localhost") and parsed.path.startswith("/"):
        from airflow_provider_segments.storage.local import LocalStore

        return LocalStore(unquote(parsed.path))
    if parsed.scheme in ("s3", "s3a") and parsed.netloc and "@" not in parsed.netloc:
        from airflow_provider_segments.storage.s3 import S3Store

        return S3Store(parsed.netloc, unquote(parsed.path), **options)
    raise InvalidConfigError(
        f"storage {uri.rpartition('@')[2]!r} is not supported; use file:///folder or s3://bucket/prefix, "
        "and give credentials apart from it"
    )
