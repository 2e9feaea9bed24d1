"""Objects as files below one folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from airflow_provider_segments.exceptions import (
    ObjectExistsError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
)
from airflow_provider_segments.storage.base import DeleteOutcome, ListedObject, ObjectInfo, check_key, check_prefix

_OWNER = "user.segments.owner"
_TEMP = ".tmp-"


class LocalStore:
    """Objects as files below ``root``; owner metadata in an extended attribute."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    def url(self, key: str) -> str:
        return self._path(key).as_uri()

    def put_file(self, path: Path, key: str, *, owner: Mapping[str, str], overwrite: bool = False) -> ObjectInfo:
        final = self._path(key)
        temp = final.parent / f"{_TEMP}{uuid.uuid4().hex}"
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as source, temp.open("xb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                os.setxattr(target.fileno(), _OWNER, json.dumps(dict(owner)).encode())
                target.flush()
                os.fsync(target.fileno())
            if overwrite:
                temp.replace(final)
            else:
                os.link(temp, final)
        except FileExistsError:
            raise ObjectExistsError(f"{final} exists and is written once") from None
        except OSError as error:
            raise _failure(error, final) from error
        finally:
            temp.unlink(missing_ok=True)
        _sync(final.parent)
        return ObjectInfo(key, final.stat().st_size, dict(owner))

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        try:
            return ObjectInfo(key, path.stat().st_size, json.loads(os.getxattr(path, _OWNER)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failure(error, path) from error

    def open(self, key: str) -> BinaryIO:
        path = self._path(key)
        try:
            return path.open("rb")
        except FileNotFoundError:
            raise ObjectNotFoundError(f"{path} does not exist") from None
        except OSError as error:
            raise _failure(error, path) from error

    def delete_many(self, keys: Iterable[str]) -> DeleteOutcome:
        deleted, missing, failed = [], [], {}
        folders = set()
        for key in keys:
            path = self._path(key)
            try:
                path.unlink()
                deleted.append(key)
                folders.add(path.parent)
            except FileNotFoundError:
                missing.append(key)
            except OSError as error:
                failed[key] = str(error)
        for folder in folders:
            _sync(folder)
        return DeleteOutcome(tuple(deleted), tuple(missing), failed)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        check_prefix(prefix)
        folders = [prefix]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(self.root / folder) as entries:
                    for entry in entries:
                        if entry.name.startswith(_TEMP):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(f"{folder}{entry.name}/")
                        else:
                            yield ListedObject(folder + entry.name, entry.stat(follow_symlinks=False).st_size)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _failure(error, self.root / folder) from error

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)


def _failure(error: OSError, path: Path) -> StorageError:
    kind = StorageAccessError if error.errno in (errno.EACCES, errno.EPERM) else StorageError
    return kind(f"{path}: {error.strerror}")


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
