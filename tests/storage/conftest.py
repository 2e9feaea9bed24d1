"""One behaviour suite, every store: files with attributes, files with metadata files, a real S3 server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.dev.s3 import S3Server

_PREFIXES = itertools.count(1)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with the bucket ``tests``."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        server.create_bucket("tests")
        yield server


@pytest.fixture(params=["files", "files-with-sidecars", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        return open_store(f"s3://tests/p{next(_PREFIXES)}", **server.options)
    return LocalStore(tmp_path / "objects", attributes=request.param == "files")


@pytest.fixture
def body(tmp_path: Path) -> Path:
    """A file to store: 5,000 bytes."""
    path = tmp_path / "body"
    path.write_bytes(bytes(range(250)) * 20)
    return path
