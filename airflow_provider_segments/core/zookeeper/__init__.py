"""ZooKeeper: the session, compare-and-set and transactions, the Helix record codec, and an embedded server."""

from airflow_provider_segments.core.zookeeper.session import (
    ANY_VERSION,
    Check,
    CommitConflictError,
    Create,
    Delete,
    Node,
    Op,
    SetData,
    ZooKeeperSession,
    ZooKeeperSettings,
)

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
