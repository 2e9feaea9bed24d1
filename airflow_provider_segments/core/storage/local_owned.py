"""Deleting what says of itself that it may be deleted, in one folder of a local store."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from airflow_provider_segments.core.storage import attribute, folders, sidecar
from airflow_provider_segments.core.storage.base import OwnedOutcome, decode_owner, foreign_owner
from airflow_provider_segments.exceptions import CorruptRecordError

_THREADS = 8
_SIDE_BY_SIDE = 64  # files from which on threads are worth their start


@dataclass(slots=True)
class OwnedDeletion:
    """What became of the files of one folder, by name; those in neither are deleted."""

    missing: list[str] = field(default_factory=list)
    foreign: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def run(self, at: int, expected: Mapping[str, str]) -> None:
        """Delete from the folder ``at`` the files that are described as ``expected`` says, by name.

        Many files are dealt with by several threads: an unlink waits for the disk more than it works.
        """
        if len(expected) < _SIDE_BY_SIDE:
            self._one_after_the_other(at, expected)
            return
        names = list(expected)
        shares = [OwnedDeletion() for _ in range(_THREADS)]
        with ThreadPoolExecutor(_THREADS) as pool:
            working = [
                pool.submit(share._one_after_the_other, at, {name: expected[name] for name in names[number::_THREADS]})
                for number, share in enumerate(shares)
            ]
        for share, one in zip(shares, working, strict=True):
            one.result()
            self.missing += share.missing
            self.foreign |= share.foreign
            self.failed |= share.failed

    def _one_after_the_other(self, at: int, expected: Mapping[str, str]) -> None:
        """``/proc/self/fd`` leads to the very folder that is open, and its last step is not followed where it is a
        link. The short way only ever confirms: what it cannot read, for whatever reason, is looked at with care."""
        place = f"/proc/self/fd/{at}/"
        for name, text in expected.items():
            try:
                if _attribute(place + name) == text.encode():
                    os.unlink(name, dir_fd=at)
                else:
                    self._with_care(at, name, text)
            except FileNotFoundError:
                self.missing.append(name)
            except IsADirectoryError:
                self.foreign[name] = "no owner: it is a folder"
            except OSError as error:
                self.failed[name] = error.strerror or str(error)

    def outcome(self, expected: Mapping[str, str], place: str, where: str) -> OwnedOutcome:
        """With keys instead of names: ``place`` is what they begin with, ``where`` how the path begins."""
        left = {*self.missing, *self.foreign, *self.failed}
        return OwnedOutcome(
            tuple(place + name for name in expected if name not in left),
            tuple(place + name for name in self.missing),
            {place + name: found for name, found in self.foreign.items()},
            {place + name: f"{where}{name}: {why}" for name, why in self.failed.items()},
        )

    def _with_care(self, at: int, name: str, text: str) -> None:
        """Raises FileNotFoundError when there is nothing by that name, and OSError when it cannot be known."""
        state = os.stat(name, dir_fd=at, follow_symlinks=False)
        if not stat.S_ISREG(state.st_mode):
            self.foreign[name] = f"no owner: it is {_kind(state.st_mode)}"
            return
        with folders.open_file(at, name) as handle:
            state = os.fstat(handle)
            attached = attribute.read(handle)
            found = sidecar.read(at, name, state) if attached is None else attached
        try:
            foreign = foreign_owner(decode_owner(found, name), text)
        except CorruptRecordError as error:
            foreign = str(error)
        if foreign:
            self.foreign[name] = foreign
            return
        os.unlink(name, dir_fd=at)
        if attached is None:
            sidecar.remove(at, name, state)  # after its object, which is nobody's without it


def _attribute(path: str) -> bytes | None:
    try:
        return os.getxattr(path, attribute.NAME, follow_symlinks=False)
    except OSError:
        return None


def _kind(mode: int) -> str:
    return "a symbolic link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "no regular file"
