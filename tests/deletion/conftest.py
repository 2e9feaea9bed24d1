"""Every test of this folder runs on both storages: local files and a real S3 server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.s3 import S3Server
from tests.deletion.support import World
from tests.support.sessions import settings as zk_settings
from tests.support.tables import HandClock

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with the bucket ``deletion``."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        server.create_bucket("deletion")
        yield server


@pytest.fixture(params=["files", "s3"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which storage."""
    return str(request.param)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], ObjectStore]:
    """Makes empty stores of a kind."""

    def make(kind: str) -> ObjectStore:
        number = next(_NUMBERS)
        if kind == "files":
            return LocalStore(tmp_path / f"objects{number}")
        server: S3Server = request.getfixturevalue("s3_server")
        return open_store(f"s3://deletion/p{number}", **server.options)

    return make


@pytest.fixture
def make_world(
    zk_hosts: str, cluster: str, place: Callable[[str], ObjectStore], tmp_path: Path
) -> Iterator[Callable[..., World]]:
    """Makes a cluster on a storage of a kind, with a clock that is moved by hand."""
    opened: list[SegmentStore] = []

    def make(kind: str, *, storage: ObjectStore | None = None, tiered: bool = False, **deletion: Any) -> World:
        hand = HandClock()
        store = SegmentStore.connect(
            cluster=f"{cluster}_{next(_NUMBERS)}",
            zookeeper=zk_settings(zk_hosts),
            storage=storage if storage is not None else place(kind),
            tiered=place(kind) if tiered else None,
            deletion=DeletionSettings(**deletion),
            clock=hand.clock(),
        )
        opened.append(store)
        return World(store, hand, tmp_path / "body")

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def world(make_world: Callable[..., World], kind: str) -> World:
    """An empty cluster, on either storage."""
    return make_world(kind)


@pytest.fixture
def local(make_world: Callable[..., World]) -> World:
    """An empty cluster on local files, where the storage does not matter."""
    return make_world("files")
