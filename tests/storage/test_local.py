"""The file system's own promises: crashes, permissions, other people's files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.exceptions import ObjectExistsError, StorageAccessError, StorageError
from airflow_provider_segments.storage.local import LocalStore

KEY = "t/e/a.parquet"
_CALLS = ("mkdir", "open", "fsync", "setxattr", "link", "unlink", "replace")


@pytest.mark.parametrize("attributes", [True, False])
def test_a_put_killed_at_any_system_call_leaves_a_whole_object_or_none(tmp_path: Path, attributes: bool) -> None:
    """Every call that writes is enumerated; after each death a second put succeeds, or finds the object whole."""
    body = tmp_path / "body"
    body.write_bytes(b"z" * 3_000_000)
    deaths = 0
    for index in range(1, 100):
        store = LocalStore(tmp_path / f"store{index}", attributes=attributes)
        if _survives(index, lambda store=store: store.put_file(body, KEY, owner={"a": "b"})):
            break
        deaths += 1
        seen = store.head(KEY)
        if seen is None:
            assert list(store.list("t/e/")) == []
            store.put_file(body, KEY, owner={"a": "b"})
            seen = store.head(KEY)
        assert seen is not None
        assert (seen.bytes, dict(seen.owner)) == (3_000_000, {"a": "b"})
        assert list(store.list("t/e/")) == [(KEY, 3_000_000)]
        with pytest.raises(ObjectExistsError):
            store.put_file(body, KEY, owner={})
    assert deaths >= 6


def _survives(index: int, work: Callable[[], Any]) -> bool:
    """Run ``work`` in a fork that dies at its ``index``-th call of ``_CALLS``; whether it came to its end."""
    child = os.fork()
    if child == 0:
        left = index
        for name in _CALLS:
            real = getattr(os, name)

            def counted(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os._exit(9)
                return _real(*args, **kwargs)

            setattr(os, name, counted)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 0


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the place, no object and no temporary file stays."""
    body = tmp_path / "body"
    body.write_bytes(b"x")
    store = LocalStore(tmp_path / "store")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            store.put_file(body, KEY, owner={})
    assert store.head(KEY) is None
    assert os.listdir(tmp_path / "store" / "t" / "e") == []


def test_a_folder_that_may_not_be_written_is_an_access_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not "missing", and not a generic failure."""
    body = tmp_path / "body"
    body.write_bytes(b"x")

    def denied(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", denied)
        with pytest.raises(StorageAccessError, match="Permission denied"):
            LocalStore(tmp_path / "store").put_file(body, KEY, owner={})
    assert LocalStore(tmp_path / "store").head(KEY) is None


def test_links_and_unfinished_files_are_no_objects(tmp_path: Path) -> None:
    """A listing does not follow a link out of the root."""
    folder = tmp_path / "store" / "t" / "e"
    folder.mkdir(parents=True)
    (folder / ".tmp-1").write_bytes(b"half")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "out").symlink_to("/etc")
    assert list(LocalStore(tmp_path / "store").list("t/e/")) == []
