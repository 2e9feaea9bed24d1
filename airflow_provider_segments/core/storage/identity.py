"""The identity of an object store: one object that says which store this is.

Its key cannot be that of a table's object, since no table's name begins with ``@``. The id is in the object's owner
metadata, so one look at the object tells it; a copy of all objects to another place takes it along.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from airflow_provider_segments.core.model.ledger import APPLICATION
from airflow_provider_segments.core.model.names import is_entry_id
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.exceptions import CorruptRecordError, ObjectExistsError

KEY = "@identity"
_COMPONENT = "Store-Identity"
_TEXT = b"This object says which store this is, in its metadata. See: segments storage show.\n"


def read_identity(store: ObjectStore) -> str | None:
    """Return the id that ``store`` says it has, ``None`` when it says none. Raises :class:`CorruptRecordError` when
    something else is in the place of the identity, and :class:`StorageError`."""
    info = store.head(KEY)
    if info is None:
        return None
    found = info.owner.get("store", "")
    if info.owner.get("application") != APPLICATION or info.owner.get("component") != _COMPONENT:
        raise CorruptRecordError(f"{store.url(KEY)}: not the identity of a store of this package")
    if not is_entry_id(found):
        raise CorruptRecordError(f"{store.url(KEY)}: not a readable identity of a store")
    return found


def give_identity(store: ObjectStore, new_id: str) -> str:
    """Return the id of ``store``, which is ``new_id`` unless it has one already. Raises what :func:`read_identity`
    raises."""
    if found := read_identity(store):
        return found
    owner = {"application": APPLICATION, "component": _COMPONENT, "store": new_id}
    with tempfile.TemporaryDirectory(prefix="segments-identity-") as folder:
        body = Path(folder) / "identity"
        body.write_bytes(_TEXT)
        try:
            store.put_file(body, KEY, owner=owner)
        except ObjectExistsError:  # somebody else was faster: objects are written once
            return read_identity(store) or new_id
    return new_id
