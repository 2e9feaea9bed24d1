"""Files and folders of a local store, reached step by step from its root, so that no symbolic link is followed.

Everything works on descriptors: between two calls no other process can put a link in a folder's place.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

FILE_MODE = 0o640
"""Who may read and write an object unless the store says otherwise: its owner both, its group read, nobody else."""
TEMP = ".tmp-"
"""How the name of a temporary file begins. No part of a key begins with a dot, so no object has such a name."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
"""How a folder is opened."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EACCES}


@contextmanager
def open_folder(root: Path, parts: Sequence[str], *, create: int | None = None) -> Iterator[int]:
    """A descriptor of the folder ``parts`` below ``root``. A symbolic link among ``parts`` is ``ELOOP``. ``create`` is
    the mode of the files for which folders are made where they are missing."""
    if create is not None:
        _make_root(root, folder_mode(create))
    at = os.open(root, FOLDER)
    try:
        for part in parts:
            below = _step(at, part) if create is None else _make_and_step(at, part, folder_mode(create))
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


@contextmanager
def open_file(at: int, name: str) -> Iterator[int]:
    """A descriptor of the regular file ``name``. Nothing else by that name is found; a symbolic link is ``ELOOP``."""
    handle = open_regular(at, name)
    try:
        yield handle
    finally:
        os.close(handle)


def open_regular(at: int, name: str) -> int:
    """Like :func:`open_file`, for a caller who closes it."""
    handle = os.open(name, _READ, dir_fd=at)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise FileNotFoundError(errno.ENOENT, "Not a file", name)


def folder_mode(file_mode: int) -> int:
    """The mode of a folder of such files: whoever may read them may enter it, and its owner may do everything."""
    return file_mode | 0o700 | (file_mode & 0o444) >> 2


def create_file(at: int, name: str, mode: int = FILE_MODE) -> int:
    """A descriptor for writing the new file ``name``. The mode is just that, whatever the process's umask says."""
    handle = os.open(name, _NEW, mode, dir_fd=at)
    os.fchmod(handle, mode)
    return handle


def link_file(source: Path, at: int, name: str) -> int | None:
    """A descriptor of the regular file ``source`` under the new name ``name``, too; ``None`` where the file system
    cannot do that, or it is on another one."""
    try:
        os.link(source, name, dst_dir_fd=at, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINK:
            return None
        raise
    try:
        return open_regular(at, name)
    except OSError:  # a symbolic link
        remove(at, name)
        return None


def copy(source: int, target: int) -> int:
    """Copy all of ``source`` to ``target``; returns the bytes copied. May be called again: it starts at byte 0."""
    done = 0
    while chunk := os.pread(source, _CHUNK, done):
        write_all(target, chunk)
        done += len(chunk)
    return done


def write_all(target: int, data: bytes) -> None:
    """Write all of ``data``: one write may take a part of it only."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]


def remove(at: int, name: str) -> bool:
    """Remove the file ``name``; false when there is none."""
    try:
        os.unlink(name, dir_fd=at)
    except (FileNotFoundError, IsADirectoryError):
        return False
    return True


def names(at: int) -> list[str]:
    """What the folder ``at`` holds, hidden names too."""
    with os.scandir(at) as entries:
        return [entry.name for entry in entries]


def deepest_first(root: Path, top: Sequence[str]) -> list[tuple[str, ...]]:
    """``top`` and all folders below it but the hidden ones, each before the folder that holds it."""
    found = [tuple(top)]
    for folder in found:  # it grows while we walk
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            open_folder(root, folder) as at,
            os.scandir(at) as entries,
        ):
            found += [(*folder, e.name) for e in entries if e.name[0] != "." and e.is_dir(follow_symlinks=False)]
    return found[::-1]


def _make_root(root: Path, mode: int) -> None:
    """Like ``mkdir -p``, and each new name lasts."""
    missing = [folder for folder in (root, *root.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir(mode)
            folder.chmod(mode)
        above = os.open(folder.parent, FOLDER)
        try:
            os.fsync(above)
        finally:
            os.close(above)


def _make_and_step(at: int, part: str, mode: int) -> int:
    try:
        return _step(at, part)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(part, mode, dir_fd=at)
            os.chmod(part, mode, dir_fd=at)  # mkdir leaves out what the umask does
        # Whoever made it: its name must last before anything in it may be called stored.
        os.fsync(at)
        return _step(at, part)


def _step(at: int, part: str) -> int:
    try:
        return os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=at)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(part, dir_fd=at, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, "Symbolic links are not followed", part) from None
        raise
