"""Objects as files below one folder.

A put writes a temporary file beside the final name, with its owner metadata, syncs it, and publishes it by a hard
link, which fails when the name is taken; then it syncs the folder. So an object is there whole or not at all, also
after a loss of power. Owner metadata is an extended attribute of the file, or, where the file system has none, a file
in the folder ``.owner`` beside it that is written and synced before the object is published."""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
)
from airflow_provider_segments.storage.base import DeleteOutcome, ListedObject, ObjectInfo, check_key, check_prefix

_ATTRIBUTE = "user.segments.owner"
_OWNERS = ".owner"  # keys cannot begin with a dot, so neither name can be an object's
_TEMP = ".tmp-"
_NO_ATTRIBUTES = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODATA}


class LocalStore:
    """Objects below ``root``, which is made when it is first written to.

    ``attributes=False`` keeps owner metadata in files even where the file system has extended attributes.
    """

    def __init__(self, root: str | Path, *, attributes: bool = True) -> None:
        self.root = Path(root).absolute()
        self._attributes = attributes

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    @property
    def uri(self) -> str:
        """``file:///folder``."""
        return self.root.as_uri()

    def url(self, key: str) -> str:
        """``file:///folder/key``."""
        return self._path(key).as_uri()

    def put_file(self, path: Path, key: str, *, owner: Mapping[str, str], overwrite: bool = False) -> ObjectInfo:
        """Copy the file, sync it, publish it, sync its folder."""
        final = self._path(key)
        temp = final.parent / f"{_TEMP}{uuid.uuid4().hex}"
        with _errors(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._write(path, temp, final, owner)
                _publish(temp, final, overwrite=overwrite)
            finally:
                temp.unlink(missing_ok=True)
            _sync(final.parent)
        return ObjectInfo(key, path.stat().st_size, dict(owner))

    def head(self, key: str) -> ObjectInfo | None:
        """Size and owner metadata. Raises :class:`CorruptRecordError` when the metadata is not readable."""
        path = self._path(key)
        with _errors(path):
            try:
                size = path.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None
            return ObjectInfo(key, size, _decoded(path, self._owner(path)))

    def open(self, key: str) -> BinaryIO:
        """The file."""
        path = self._path(key)
        with _errors(path):
            try:
                return path.open("rb")
            except (FileNotFoundError, NotADirectoryError):
                raise ObjectNotFoundError(f"{path} does not exist") from None

    def delete_many(self, keys: Iterable[str]) -> DeleteOutcome:
        """Unlink one by one, then sync each folder once. Metadata files go after their objects."""
        deleted: list[str] = []
        missing: list[str] = []
        failed: dict[str, str] = {}
        folders: set[Path] = set()
        for key in keys:
            path = self._path(key)
            try:
                described = _sidecar(path, path.lstat().st_ino)
                path.unlink()
                deleted.append(key)
            except (FileNotFoundError, NotADirectoryError):
                missing.append(key)
                continue
            except OSError as error:
                failed[key] = f"{path}: {error.strerror}"
                continue
            described.unlink(missing_ok=True)
            folders.add(path.parent)
        for folder in folders:
            _sync(folder)
        return DeleteOutcome(tuple(deleted), tuple(missing), failed)

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Walk the folder. Unfinished puts, metadata files and symbolic links are no objects."""
        folders = [check_prefix(prefix)]
        while folders:
            folder = folders.pop()
            with _errors(self.root / folder), _scanned(self.root / folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_file(follow_symlinks=False):
                        yield ListedObject(folder + entry.name, entry.stat(follow_symlinks=False).st_size)
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(f"{folder}{entry.name}/")

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _write(self, source: Path, temp: Path, final: Path, owner: Mapping[str, str]) -> None:
        described = json.dumps(dict(owner)).encode()
        with source.open("rb") as body, temp.open("xb") as target:
            shutil.copyfileobj(body, target, 1 << 20)
            target.flush()
            attached = self._attributes and _attach(target.fileno(), described)
            os.fsync(target.fileno())
            inode = os.fstat(target.fileno()).st_ino
        if not attached:
            _write_sidecar(_sidecar(final, inode), described)

    def _owner(self, path: Path) -> bytes:
        try:
            return os.getxattr(path, _ATTRIBUTE)
        except OSError as error:
            if error.errno not in _NO_ATTRIBUTES:
                raise
        try:
            return _sidecar(path, path.stat().st_ino).read_bytes()
        except FileNotFoundError:
            return b"{}"


def _attach(handle: int, described: bytes) -> bool:
    try:
        os.setxattr(handle, _ATTRIBUTE, described)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTES:
            return False
        raise
    return True


def _publish(temp: Path, final: Path, *, overwrite: bool) -> None:
    if overwrite:
        before = final.stat().st_ino if final.exists() else None
        temp.replace(final)
        if before is not None:
            _sidecar(final, before).unlink(missing_ok=True)
        return
    try:
        os.link(temp, final)
    except FileExistsError:
        _sidecar(final, temp.stat().st_ino).unlink(missing_ok=True)
        raise ObjectExistsError(f"{final} exists, and objects are written once") from None


def _sidecar(path: Path, inode: int) -> Path:
    """Where a file's owner metadata is. The inode is in the name, so that a put that loses the race for a key does not
    replace the winner's: both wrote theirs before either was published."""
    return path.parent / _OWNERS / f"{path.name}.{inode}.json"


def _write_sidecar(path: Path, described: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    temp = path.with_name(f"{_TEMP}{uuid.uuid4().hex}")
    with temp.open("xb") as target:
        target.write(described)
        target.flush()
        os.fsync(target.fileno())
    temp.replace(path)
    _sync(path.parent)


def _decoded(path: Path, described: bytes) -> dict[str, str]:
    try:
        owner = json.loads(described)
    except ValueError as error:
        raise CorruptRecordError(f"{path}: the owner metadata is not readable ({error})") from error
    return {str(key): str(value) for key, value in owner.items()}


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _scanned(folder: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        yield iter(())
        return
    with entries:
        yield entries


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        kind = StorageAccessError if error.errno in (errno.EACCES, errno.EPERM) else StorageError
        raise kind(f"{error.filename or path}: {error.strerror or error}") from error
