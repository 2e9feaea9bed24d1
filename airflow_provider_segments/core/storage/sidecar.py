"""Owner metadata in files, for file systems without extended attributes.

The folder ``.owner`` beside the objects holds one file an object, written and synced before the object is published.
Its name holds the object's inode and modification time, which publishing does not change: so a put that loses the race
for a key, or dies before it publishes, has described its own bytes and nobody else's, and no lock is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from airflow_provider_segments.core.storage import folders

FOLDER = ".owner"
_LARGEST = 1 << 16


def write(
    at: int, name: str, published_as: os.stat_result, text: str, temp: str, mode: int = folders.FILE_MODE
) -> None:
    """Describe the object that will be published as ``name``; lasting before this returns. ``mode`` is the object's."""
    with suppress(FileExistsError):
        os.mkdir(FOLDER, folders.folder_mode(mode), dir_fd=at)
        os.chmod(FOLDER, folders.folder_mode(mode), dir_fd=at)
    os.fsync(at)
    with _opened(at) as sidecars:
        new = folders.create_file(sidecars, temp, mode)
        try:
            folders.write_all(new, text.encode())
            os.fsync(new)
            os.rename(temp, _name(name, published_as), src_dir_fd=sidecars, dst_dir_fd=sidecars)
        except BaseException:
            folders.remove(sidecars, temp)
            raise
        finally:
            os.close(new)
        os.fsync(sidecars)


def read(at: int, name: str, found: os.stat_result) -> bytes:
    """What describes the object ``name`` whose state is ``found``; ``{}`` when nothing does."""
    try:
        with _opened(at) as sidecars, folders.open_file(sidecars, _name(name, found)) as handle:
            return os.read(handle, _LARGEST)
    except FileNotFoundError:
        return b"{}"


def remove(at: int, name: str, found: os.stat_result) -> None:
    """Remove what describes the object that was ``found``, if anything does."""
    with suppress(FileNotFoundError), _opened(at) as sidecars:
        folders.remove(sidecars, _name(name, found))


def discard_unfinished(at: int) -> int:
    """Remove temporary files, and what describes no file of the folder ``at``. Its own temporary files go first.

    Safe beside a running put: a description listed here was written after its file, so the file is in the folder now,
    or was a temporary file that is gone, and then that put starts over with a new one.
    """
    with suppress(FileNotFoundError), _opened(at) as sidecars:
        listed = folders.names(sidecars)
        with os.scandir(at) as entries:
            there = {_suffix(e.stat(follow_symlinks=False)) for e in entries if e.is_file(follow_symlinks=False)}
        return sum(folders.remove(sidecars, name) for name in listed if name.rpartition(".")[2] not in there)
    return 0


def drop_if_empty(at: int) -> None:
    """Remove the sidecar folder of ``at`` unless it describes something. A put that has just made it starts over."""
    with suppress(OSError):
        os.rmdir(FOLDER, dir_fd=at)


def _name(name: str, found: os.stat_result) -> str:
    return f"{name}.{_suffix(found)}"


def _suffix(found: os.stat_result) -> str:
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}"


@contextmanager
def _opened(at: int) -> Iterator[int]:
    handle = os.open(FOLDER, folders.FOLDER | os.O_NOFOLLOW, dir_fd=at)
    try:
        yield handle
    finally:
        os.close(handle)
