"""An object store that fails on purpose inside Spark's workers. Pickled by value: they cannot import tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from airflow_provider_segments.core.storage.base import ObjectInfo
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.exceptions import StorageUnavailableError


class FailingStore(LocalStore):
    """Uploads arrive and are then reported as failed, as long as the folder ``fuse`` has files to burn."""

    def __init__(self, root: Path, fuse: Path) -> None:
        super().__init__(root)
        self.fuse = fuse

    def put_file(self, path: Path, key: str, *, owner: Mapping[str, str], **how: bool) -> ObjectInfo:
        done = super().put_file(path, key, owner=owner, **how)
        for mark in sorted(self.fuse.iterdir()):
            try:
                mark.unlink()
            except FileNotFoundError:
                continue
            raise StorageUnavailableError("failed on purpose, after the object was stored")
        return done
