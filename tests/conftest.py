"""Fixtures for every folder of tests: one real ZooKeeper server a session, one cluster and one store a test."""

from __future__ import annotations

import itertools
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper

_CLUSTERS = itertools.count(1)


def pytest_configure() -> None:
    """Spark's gateway says goodbye when the process ends, to a stream that is closed by then. A shell that runs the
    tests in the background has them ignore SIGINT, and so their children, to which tests send it."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked slow run only when somebody selects by marker (``-m slow``) or by node id."""
    if config.option.markexpr or any("::" in argument for argument in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that a test runs in this process may log to a standard error that is closed after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def zk_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real ZooKeeper server. No test crashes the machine, so it need not wait for the disk."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), sync=False) as server:
        yield server.hosts


@pytest.fixture
def cluster() -> str:
    """A cluster name that no other test uses."""
    return f"c{os.getpid()}_{next(_CLUSTERS)}"


@pytest.fixture
def storage_uri(tmp_path: Path) -> str:
    """A folder for objects."""
    return (tmp_path / "objects").as_uri()


@pytest.fixture
def store(zk_hosts: str, cluster: str, storage_uri: str) -> Iterator[SegmentStore]:
    """An empty cluster on the real ZooKeeper, with objects in a local folder."""
    with SegmentStore.connect(zk_hosts, cluster, storage_uri) as opened:
        yield opened
