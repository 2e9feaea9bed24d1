"""The store that the environment describes, for jobs and commands. Secrets come in no other way, and are never shown.

``model/variables.py`` has the list.

The driver reads them. Executors get what they need inside the pickled task, which Spark shows neither in its UI nor in
its event log nor in a process list: ``spark.executorEnv`` settings would be in all three. So nothing has to be
configured on the cluster, and an object store that was opened with other credentials works as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from airflow_provider_segments.core.model.variables import (
    DEFAULT_CLUSTER,
    FILE_MODE_VARIABLE,
    STORAGE_VARIABLES,
    TIERED_URI_VARIABLE,
    TIERED_VARIABLES,
    ZOOKEEPER_FLAGS,
    ZOOKEEPER_VARIABLES,
)
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import ZooKeeperSettings
from airflow_provider_segments.exceptions import InvalidConfigError


def storage_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Options for ``storage.open_store`` from the environment; empty values count as absent."""
    return {option: environ[name] for option, name in STORAGE_VARIABLES.items() if environ.get(name)}


def tiered_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Options for the tiered store: its own if it has any, else those of the primary store. Never some of both: a key
    of one with a token or an endpoint of the other would be sent where it does not belong."""
    own = {option: environ[name] for option, name in TIERED_VARIABLES.items() if environ.get(name)}
    return own or storage_options(environ)


def tiered_store(environ: Mapping[str, str] = os.environ) -> ObjectStore | None:
    """The tiered store of the environment, ``None`` without one. Raises :class:`InvalidConfigError`."""
    uri = environ.get(TIERED_URI_VARIABLE)
    return open_store(uri, file_mode=environ.get(FILE_MODE_VARIABLE), **tiered_options(environ)) if uri else None


def zookeeper_settings(hosts: str, environ: Mapping[str, str] = os.environ) -> ZooKeeperSettings:
    """How to reach ZooKeeper at ``hosts``, with the credentials of the environment."""
    texts: dict[str, Any] = {field: environ[name] for field, name in ZOOKEEPER_VARIABLES.items() if environ.get(name)}
    flags: dict[str, Any] = {
        field: _flag(name, environ[name]) for field, name in ZOOKEEPER_FLAGS.items() if environ.get(name)
    }
    return ZooKeeperSettings(hosts=hosts, **texts, **flags)


def worker_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of the table above that are set: what Spark's planning workers need to resolve a table."""
    names = {
        *STORAGE_VARIABLES.values(),
        *TIERED_VARIABLES.values(),
        TIERED_URI_VARIABLE,
        FILE_MODE_VARIABLE,
        *ZOOKEEPER_VARIABLES.values(),
        *ZOOKEEPER_FLAGS.values(),
    }
    return {name: environ[name] for name in sorted(names) if environ.get(name)}


def connect(zk_hosts: str, storage_uri: str, cluster: str = DEFAULT_CLUSTER) -> SegmentStore:
    """The cluster, with the credentials and the tiered store of the environment."""
    storage = open_store(storage_uri, file_mode=os.environ.get(FILE_MODE_VARIABLE), **storage_options())
    return SegmentStore.connect(
        cluster=cluster, zookeeper=zookeeper_settings(zk_hosts), storage=storage, tiered=tiered_store()
    )


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidConfigError(f"environment variable {name} must be true or false")
    return value.lower() == "true"
