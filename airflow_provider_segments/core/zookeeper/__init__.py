"""ZooKeeper: the session, compare-and-set and transactions, and the Helix record codec."""

from airflow_provider_segments.core.zookeeper.operations import (
    ANY_VERSION,
    Check,
    CommitConflictError,
    Create,
    Delete,
    Node,
    Op,
    SetData,
)
from airflow_provider_segments.core.zookeeper.session import ZooKeeperSession
from airflow_provider_segments.core.zookeeper.settings import ZooKeeperSettings

__all__ = [
    "ANY_VERSION",
    "Check",
    "CommitConflictError",
    "Create",
    "Delete",
    "Node",
    "Op",
    "SetData",
    "ZooKeeperSession",
    "ZooKeeperSettings",
]
