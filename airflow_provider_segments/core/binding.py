"""Which object stores a cluster keeps its objects in: ``/<cluster>/STORES``.

A store gets an identity when it is first written to, and the cluster remembers it. Whoever then deletes, writes or
looks for orphans asks the store first whether it is that one, once a connection. With another store, where nothing is
found, a drain would acknowledge the whole queue as already gone, and the objects would be orphans for ever.
"""

from __future__ import annotations

import enum

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.model.records import FORMAT, Record, RecordDecoder, encode
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.storage.identity import KEY, give_identity, read_identity
from airflow_provider_segments.core.zookeeper import Create, SetData
from airflow_provider_segments.exceptions import WrongStoreError


class StoreRole(enum.Enum):
    """What a cluster uses a store for."""

    PRIMARY = "primary"
    TIERED = "tiered"


class BoundStore(Record, frozen=True):
    """A store that the cluster uses: its id, the address it had when it was bound, and when that was, in epoch
    milliseconds. Only the id is compared: one store may have several addresses."""

    id: str
    uri: str
    bound_ms: int


class StoresRecord(Record, frozen=True, tag_field=FORMAT, tag=1):
    """The stores of a cluster by role; one that was never written to is absent."""

    stores: dict[str, BoundStore]


_DECODER = RecordDecoder(StoresRecord, "record of the cluster's stores")


def decode(payload: bytes, where: str) -> StoresRecord:
    """The record in ``payload``. Raises :class:`CorruptRecordError`."""
    return _DECODER.decode(payload, where)


def bound_stores(cluster: Cluster) -> dict[str, BoundStore]:
    """Return the stores that the cluster is bound to, by role. Raises :class:`CorruptRecordError`."""
    return _read(cluster)[0].stores


def check_store(cluster: Cluster, role: StoreRole, *, bind: bool = False) -> None:
    """Make sure that the store which was opened is the one the cluster uses; with ``bind``, make it that if the cluster
    uses none yet. Asks the store once a connection.

    Raises :class:`WrongStoreError`, :class:`CorruptRecordError` and :class:`StorageError`. Nothing is changed then.
    """
    store = store_of(cluster, role)
    if store is None or any(one is store for one in cluster.checked):
        return
    if cluster.retried("check of the storage", lambda: _is_bound(cluster, role, store, bind=bind)):
        cluster.checked.append(store)


def bind_store(cluster: Cluster, role: StoreRole) -> tuple[BoundStore | None, BoundStore]:
    """Bind the cluster to the store that was opened, whatever it was bound to; return the store before and after.

    Raises :class:`WrongStoreError` when none was opened in that role.
    """
    store = store_of(cluster, role)
    if store is None:
        raise WrongStoreError(f"cluster {cluster.paths.cluster!r} was opened without {role.value} storage")

    def attempt() -> tuple[BoundStore | None, BoundStore]:
        before = bound_stores(cluster).get(role.value)
        identity = give_identity(store, cluster.clock.new_id())
        if before is not None and (before.id, before.uri) == (identity, store.uri):
            return before, before
        return before, _write(cluster, role, store, identity)

    return cluster.retried("binding of the storage", attempt)


def store_of(cluster: Cluster, role: StoreRole) -> ObjectStore | None:
    """Return the store that was opened in a role, if any."""
    return cluster.storage if role is StoreRole.PRIMARY else cluster.tiered


def _is_bound(cluster: Cluster, role: StoreRole, store: ObjectStore, *, bind: bool) -> bool:
    bound = _read(cluster)[0].stores.get(role.value)
    if bound is not None:
        _compare(cluster, role, store, bound)
    elif bind:
        _write(cluster, role, store, give_identity(store, cluster.clock.new_id()))
    return bound is not None or bind


def _compare(cluster: Cluster, role: StoreRole, store: ObjectStore, bound: BoundStore) -> None:
    found = read_identity(store)
    if found == bound.id:
        return
    what = "is another store" if found else f"has no object {KEY}: it is another place, is not mounted, or was emptied"
    raise WrongStoreError(
        f"cluster {cluster.paths.cluster!r} keeps its objects in {role.value} storage {bound.uri} (store {bound.id}), "
        f"and {store.uri} {what}. Nothing was changed. Correct the address; after a deliberate move, "
        "see: segments storage rebind"
    )


def _read(cluster: Cluster) -> tuple[StoresRecord, int | None]:
    node = cluster.session.get(cluster.paths.stores)
    if node is None:
        return StoresRecord({}), None
    return decode(node.data, cluster.paths.stores), node.version


def _write(cluster: Cluster, role: StoreRole, store: ObjectStore, identity: str) -> BoundStore:
    record, version = _read(cluster)
    after = BoundStore(identity, store.uri, cluster.clock.now_ms())
    payload = encode(StoresRecord({**record.stores, role.value: after}, unknown=record.unknown))
    path = cluster.paths.stores
    cluster.session.commit([Create(path, payload) if version is None else SetData(path, payload, version)])
    return after
