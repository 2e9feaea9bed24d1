"""Objects as files below one folder.

A put writes a temporary file beside the final name, with its owner metadata, syncs it, and publishes it by a hard
link, which fails when the name is taken; then it syncs the folder. So an object is there whole or not at all, also
after a loss of power. Owner metadata is an extended attribute of the file, or, where the file system has none, a file
in the folder ``.owner`` beside it that is written and synced before the object is published (see ``sidecar``).

Symbolic links below the root are never followed. A folder whose last object is deleted is removed; a put that meets
this starts over.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from airflow_provider_segments.core.storage import attribute, folders, sidecar
from airflow_provider_segments.core.storage.base import (
    ListedObject,
    ObjectInfo,
    OwnedOutcome,
    check_key,
    check_keys,
    check_prefix,
    decode_owner,
    encode_owner,
    random_id,
)
from airflow_provider_segments.core.storage.local_owned import OwnedDeletion
from airflow_provider_segments.exceptions import (
    ObjectExistsError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageUnavailableError,
)

_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_ABSENT = (FileNotFoundError, NotADirectoryError)
_PAGE = 1000
_TRIES = 10


class LocalStore:
    """Objects below ``root``, which is made when it is first written to.

    ``mode`` is the permission bits of each object, whatever the umask says; folders that are made get those and the
    right to enter for whoever may read. By default only the owner's group may read, and nobody else.
    ``attributes=False`` keeps owner metadata in files even where the file system has extended attributes.
    ``new_id`` names temporary files; no two calls of it, in any process, may return the same.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        mode: int = folders.FILE_MODE,
        attributes: bool = True,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self.root = Path(root).absolute()
        self.mode = mode
        self._attributes = attributes
        self._new_id = new_id

    def __repr__(self) -> str:
        return f"LocalStore({str(self.root)!r})"

    @property
    def uri(self) -> str:
        """``file:///folder``."""
        return self.root.as_uri()

    def url(self, key: str) -> str:
        """``file:///folder/key``, nothing of it percent-encoded: Spark takes the path letter by letter."""
        return f"file://{self.root}/{check_key(key)}"

    def put_file(self, path: Path, key: str, *, owner: Mapping[str, str], consume: bool = False) -> ObjectInfo:
        """Copy the file (or link it, if that will do), sync it, publish it, sync its folder."""
        folder, name = _split(check_key(key))
        text = encode_owner(owner)
        with path.open("rb", buffering=0) as source, self._errors(key):
            for _ in range(_TRIES):
                # Not found: somebody else has removed the folder, or the temporary file, since we made it.
                with suppress(FileNotFoundError), folders.open_folder(self.root, folder, create=self.mode) as at:
                    given = path if consume else None
                    size = self._put(source.fileno(), given, at, name, text)
                    return ObjectInfo(key, size, dict(owner))
        raise StorageUnavailableError(f"{self.root / key}: its folder was removed {_TRIES} times during the put")

    def head(self, key: str) -> ObjectInfo | None:
        """Size and owner metadata. Raises :class:`CorruptRecordError` when the metadata is not readable."""
        folder, name = _split(check_key(key))
        with self._errors(key):
            try:
                with folders.open_folder(self.root, folder) as at, folders.open_file(at, name) as found:
                    state = os.fstat(found)
                    text = attribute.read(found)
                    text = sidecar.read(at, name, state) if text is None else text
            except _ABSENT:
                return None
        return ObjectInfo(key, state.st_size, decode_owner(text, str(self.root / key)))

    def open(self, key: str) -> BinaryIO:
        """The file."""
        folder, name = _split(check_key(key))
        with self._errors(key):
            try:
                with folders.open_folder(self.root, folder) as at:
                    return cast("BinaryIO", os.fdopen(folders.open_regular(at, name), "rb"))
            except _ABSENT:
                raise ObjectNotFoundError(f"{self.root / key} does not exist") from None

    def delete_owned(self, owners: Mapping[str, str]) -> OwnedOutcome:
        """Two system calls an object: read its owner, unlink it. Sync each folder once.

        A symbolic link, a folder, and whatever else is no file belong to somebody else.
        """
        check_keys(list(owners))
        by_folder: dict[str, dict[str, str]] = {}
        for key, owner in owners.items():
            folder, _, name = key.rpartition("/")
            by_folder.setdefault(folder, {})[name] = owner
        parts = [self._delete_owned_in(folder, expected) for folder, expected in by_folder.items()]
        return parts[0] if len(parts) == 1 else OwnedOutcome.merged(parts)

    def _delete_owned_in(self, folder: str, expected: Mapping[str, str]) -> OwnedOutcome:
        place, parts = f"{folder}/" if folder else "", tuple(folder.split("/")) if folder else ()
        deletion = OwnedDeletion()
        try:
            with folders.open_folder(self.root, parts) as at:
                deletion.run(at, expected)
                os.fsync(at)  # also when everything is missing: a run that died may have left that to us
        except _ABSENT:
            return OwnedOutcome((), tuple(place + name for name in expected), {}, {})
        except OSError as error:
            deletion = OwnedDeletion(failed=dict.fromkeys(expected, error.strerror or str(error)))
        outcome = deletion.outcome(expected, place, f"{self.root}/{place}")
        if outcome.deleted:
            _prune(self.root, parts)
        return outcome

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Walk the folder. Unfinished puts, metadata files and symbolic links are no objects."""
        pending = [check_prefix(prefix)]
        while pending:
            folder = pending.pop()
            parts = folder.split("/")[:-1]
            # A folder that is removed while we look belongs to the listing or not, as it happens.
            with (
                self._errors(folder),
                suppress(*_ABSENT),
                folders.open_folder(self.root, parts) as at,
                os.scandir(at) as entries,
            ):
                while page := _page(folder, entries, pending):
                    yield from page

    def discard_unfinished(self, prefix: str) -> int:
        """Remove temporary files, metadata of objects that are not there, and empty folders."""
        found = 0
        with self._errors(prefix):
            for folder in folders.deepest_first(self.root, check_prefix(prefix).split("/")[:-1]):
                with suppress(*_ABSENT), folders.open_folder(self.root, folder) as at:
                    found += sum(
                        folders.remove(at, name) for name in folders.names(at) if name.startswith(folders.TEMP)
                    )
                    found += sidecar.discard_unfinished(at)
                _prune(self.root, folder)
        return found

    def _put(self, source: int, given: Path | None, at: int, name: str, text: str) -> int:
        if _is_taken(at, name):
            raise FileExistsError(errno.EEXIST, "An object exists there, and objects are written once")
        temp = folders.TEMP + self._new_id()
        taken = folders.link_file(given, at, temp) if given is not None else None
        target = folders.create_file(at, temp, self.mode) if taken is None else taken
        try:
            size = folders.copy(source, target) if taken is None else os.fstat(taken).st_size
            if taken is not None:
                os.fchmod(taken, self.mode)
            attached = self._attributes and attribute.attach(target, text)
            os.fsync(target)
            state = os.fstat(target)
            if not attached:
                sidecar.write(at, name, state, text, temp, self.mode)
            _publish(at, temp, name, state)
        finally:
            os.close(target)
            folders.remove(at, temp)
        os.fsync(at)
        return size

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """The system's errors as ours, with the place."""
        where = self.root / key
        try:
            yield
        except StorageError:
            raise
        except FileExistsError as error:
            raise ObjectExistsError(f"{where} exists, and objects are written once") from error
        except OSError as error:
            kind = StorageAccessError if error.errno in _DENIED else StorageError
            raise kind(f"{where}: {error.strerror or error}") from error


def _split(key: str) -> tuple[tuple[str, ...], str]:
    *folder, name = key.split("/")
    return tuple(folder), name


def _is_taken(at: int, name: str) -> bool:
    """Return True if there is a file ``name``. A folder in its place is an error."""
    try:
        state = os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, "A folder stands in the place of the object")
    return True


def _publish(at: int, temp: str, name: str, state: os.stat_result) -> None:
    try:
        os.link(temp, name, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=False)
    except FileExistsError:
        sidecar.remove(at, name, state)
        raise


def _page(folder: str, entries: Iterator[os.DirEntry[str]], pending: list[str]) -> list[ListedObject] | None:
    """The next objects right in ``folder``, ``None`` after the last. Folders below it are added to ``pending``."""
    page: list[ListedObject] = []
    for entry in entries:
        name = entry.name
        if name[0] == ".":
            continue
        if entry.is_file(follow_symlinks=False):
            try:
                state = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # deleted since the folder was read
            page.append(ListedObject(folder + name, state.st_size, state.st_mtime_ns // 1_000_000))
            if len(page) == _PAGE:
                return page
        elif entry.is_dir(follow_symlinks=False):
            pending.append(f"{folder}{name}/")
    return page or None


def _prune(root: Path, folder: tuple[str, ...]) -> None:
    """Remove ``folder`` and what is above it, as far as it is empty. Best effort: an empty folder harms nobody."""
    with suppress(OSError):
        for depth in range(len(folder), 0, -1):
            with folders.open_folder(root, folder[:depth]) as at:
                sidecar.drop_if_empty(at)
            with folders.open_folder(root, folder[: depth - 1]) as above:
                os.rmdir(folder[depth - 1], dir_fd=above)
