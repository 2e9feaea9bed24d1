"""Connection settings of a Spark job. Secrets come from the environment only, and never appear in ``repr`` or a log.

============================== =====================================================================
variable                       what it is
============================== =====================================================================
SEGMENTS_S3_ACCESS_KEY         S3 access key; without it boto3's standard chain decides
SEGMENTS_S3_SECRET_KEY         S3 secret key
SEGMENTS_S3_SESSION_TOKEN      S3 session token
SEGMENTS_S3_ENDPOINT_URL       URL of an S3 server other than AWS
SEGMENTS_S3_REGION             S3 region
SEGMENTS_ZK_USERNAME           ZooKeeper digest user
SEGMENTS_ZK_PASSWORD           ZooKeeper digest password
SEGMENTS_ZK_USE_SSL            ``true`` for TLS; then also ``SEGMENTS_ZK_VERIFY_CERTS`` and the PEM files
                               ``SEGMENTS_ZK_CA``, ``_CERTFILE``, ``_KEYFILE``, ``_KEYFILE_PASSWORD``
============================== =====================================================================

The driver reads them. Executors get what they need inside the pickled task, which Spark shows neither in its UI nor in
its event log nor in a process list: ``spark.executorEnv`` settings would be in all three. So nothing has to be
configured on the cluster, and an object store that was opened with other credentials works as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.storage import open_store
from airflow_provider_segments.store import DEFAULT_CLUSTER, SegmentStore
from airflow_provider_segments.zookeeper import ZooKeeperSettings

STORAGE_VARIABLES = {
    "access_key": "SEGMENTS_S3_ACCESS_KEY",
    "secret_key": "SEGMENTS_S3_SECRET_KEY",
    "session_token": "SEGMENTS_S3_SESSION_TOKEN",
    "endpoint_url": "SEGMENTS_S3_ENDPOINT_URL",
    "region": "SEGMENTS_S3_REGION",
}
_ZOOKEEPER_TEXTS = {
    "username": "SEGMENTS_ZK_USERNAME",
    "password": "SEGMENTS_ZK_PASSWORD",
    "ca": "SEGMENTS_ZK_CA",
    "certfile": "SEGMENTS_ZK_CERTFILE",
    "keyfile": "SEGMENTS_ZK_KEYFILE",
    "keyfile_password": "SEGMENTS_ZK_KEYFILE_PASSWORD",
}
_ZOOKEEPER_FLAGS = {"use_ssl": "SEGMENTS_ZK_USE_SSL", "verify_certs": "SEGMENTS_ZK_VERIFY_CERTS"}


def storage_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Options for ``storage.open_store`` from the environment; empty values count as absent."""
    return {option: environ[name] for option, name in STORAGE_VARIABLES.items() if environ.get(name)}


def zookeeper_settings(hosts: str, environ: Mapping[str, str] = os.environ) -> ZooKeeperSettings:
    """How to reach ZooKeeper at ``hosts``, with the credentials of the environment."""
    texts: dict[str, Any] = {field: environ[name] for field, name in _ZOOKEEPER_TEXTS.items() if environ.get(name)}
    flags: dict[str, Any] = {
        field: _flag(name, environ[name]) for field, name in _ZOOKEEPER_FLAGS.items() if environ.get(name)
    }
    return ZooKeeperSettings(hosts=hosts, **texts, **flags)


def worker_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of the table above that are set: what Spark's planning workers need to resolve a table."""
    names = {*STORAGE_VARIABLES.values(), *_ZOOKEEPER_TEXTS.values(), *_ZOOKEEPER_FLAGS.values()}
    return {name: environ[name] for name in sorted(names) if environ.get(name)}


def connect(zk_hosts: str, storage_uri: str, cluster: str = DEFAULT_CLUSTER) -> SegmentStore:
    """The cluster, with the credentials of the environment."""
    storage = open_store(storage_uri, **storage_options())
    return SegmentStore.connect(cluster=cluster, zookeeper=zookeeper_settings(zk_hosts), storage=storage)


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidConfigError(f"environment variable {name} must be true or false")
    return value.lower() == "true"
