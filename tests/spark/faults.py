"""Object stores that fail on purpose inside Spark's Python workers. Pickled by value: workers cannot import tests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_segments.exceptions import StorageUnavailableError
from airflow_provider_segments.spark.settings import StorageAccess
from airflow_provider_segments.storage.base import ObjectInfo, ObjectStore


class FailingAccess(StorageAccess):
    """Opens a store whose uploads arrive and are then reported as failed, as long as ``fuse`` has marks to burn."""

    fuse = ""

    def open(self) -> ObjectStore:
        return _FailingStore(super().open(), Path(self.fuse))  # type: ignore[return-value]


class _FailingStore:
    def __init__(self, store: ObjectStore, fuse: Path) -> None:
        self.store = store
        self.fuse = fuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def put_file(self, path: Path, key: str, *, owner: Mapping[str, str], overwrite: bool = False) -> ObjectInfo:
        done = self.store.put_file(path, key, owner=owner, overwrite=overwrite)
        for mark in sorted(self.fuse.iterdir()):
            try:
                os.unlink(mark)
            except FileNotFoundError:
                continue
            raise StorageUnavailableError("failed on purpose, after the object was stored")
        return done
