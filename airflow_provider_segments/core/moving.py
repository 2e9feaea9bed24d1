"""Moving a cluster to another object store: the objects were copied by somebody; here the cluster is told."""

from __future__ import annotations

import random
from dataclasses import dataclass

from airflow_provider_segments.core.binding import BoundStore, StoreRole, bind_store, store_of
from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.model.ledger import ledger_prefix
from airflow_provider_segments.core.registry.registry import Registry
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table_config import TableConfigs
from airflow_provider_segments.exceptions import WrongStoreError

_LOOKS = 50  # objects of a table that are looked for


@dataclass(frozen=True, slots=True)
class Rebound:
    """A cluster's binding before and after; ``looked_at`` registered objects were found in the new store."""

    role: StoreRole
    before: BoundStore | None
    after: BoundStore
    looked_at: int


def rebind(cluster: Cluster, role: StoreRole, *, force: bool = False) -> Rebound:
    """Bind the cluster to the store that was opened, once some registered objects of every table were found there.

    ``force`` leaves that look out, for a store whose objects are lost. Raises :class:`WrongStoreError` when an object
    is not there; nothing is changed then.
    """
    store = store_of(cluster, role)
    looked_at = 0
    if store is not None and not force:
        for table in TableConfigs(cluster).tables():
            looked_at += _look_at(cluster, store, role, table)
    return Rebound(role, *bind_store(cluster, role), looked_at)


def _look_at(cluster: Cluster, store: ObjectStore, role: StoreRole, table: str) -> int:
    keys: list[str] = []
    for shard in Registry(cluster, table).stream(lambda _: True):
        for record in shard.records:
            offload = None if role is StoreRole.PRIMARY else record.offload
            if record.primary if role is StoreRole.PRIMARY else offload is not None:
                keys.append(ledger_prefix(table, shard.name.entry_id, offload) + record.file)
    chosen = keys if len(keys) <= _LOOKS else random.Random(len(keys)).sample(keys, _LOOKS)  # noqa: S311 - a sample
    gone = [key for key in chosen if store.head(key) is None]
    if gone:
        raise WrongStoreError(
            f"{len(gone)} of {len(chosen)} registered objects of table {table!r} that were looked for are not in "
            f"{store.uri}, {gone[0]} for one. Nothing was changed. Copy all objects first; --force binds all the same"
        )
    return len(chosen)
