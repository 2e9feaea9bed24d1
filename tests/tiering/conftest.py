"""Stores with a primary and a tiered storage, of both kinds: local files and a real S3 server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_segments.clock import system_now_ms
from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from airflow_provider_segments.dev.s3 import S3Server
from tests.support.sessions import settings, store_on
from tests.support.tables import QUICK, HandClock

_PREFIXES = itertools.count(1)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with the buckets ``hot`` and ``cold``."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        server.create_bucket("hot")
        server.create_bucket("cold")
        yield server


@pytest.fixture
def hand() -> HandClock:
    """A wall clock that begins now: objects are dated by the stores' own."""
    return HandClock(system_now_ms())


@pytest.fixture(params=["files", "s3"])
def tiered_store(
    request: pytest.FixtureRequest, zk_hosts: str, cluster: str, tmp_path: Path, hand: HandClock
) -> Iterator[SegmentStore]:
    """An empty cluster with two storages."""
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        number = next(_PREFIXES)
        stores = [open_store(f"s3://{bucket}/p{number}", **server.options) for bucket in ("hot", "cold")]
    else:
        stores = [open_store((tmp_path / name).as_uri()) for name in ("hot", "cold")]
    with ZooKeeperSession.connect(settings(zk_hosts)) as session:
        yield store_on(
            session,
            cluster,
            stores[0],
            tiered=stores[1],
            deletion=DeletionSettings(max_lease_age_ms=0),
            clock=hand.clock(),
            retry=QUICK,
        )
