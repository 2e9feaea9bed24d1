"""The file system's own promises: crashes, permissions, other people's files."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.core.storage import local
from airflow_provider_segments.core.storage.base import encode_owner
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.exceptions import ObjectExistsError, StorageAccessError, StorageError
from tests.support.children import KILLED, dies

KEY = "t/e/a.parquet"
_CALLS = ("close", "fsync", "link", "mkdir", "open", "rename", "rmdir", "setxattr", "unlink", "write")


def _die() -> None:
    os._exit(9)


def _fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The death of a process loses nothing that was written, so that a sweep need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("attributes", [True, False])
@pytest.mark.parametrize("consume", [False, True])
def test_a_put_killed_at_any_system_call_leaves_a_whole_object_or_none(
    tmp_path: Path, consume: bool, attributes: bool
) -> None:
    """Every call is enumerated."""
    body = tmp_path / "body"
    body.write_bytes(b"z" * 3_000_000)
    new = (3_000_000, {"a": "b"})
    for index in itertools.count(1):
        store = LocalStore(tmp_path / f"store{index}", attributes=attributes)
        put = partial(store.put_file, body, KEY, owner={"a": "b"}, consume=consume)
        if _disturbed(index, _die, put):
            break
        seen = store.head(KEY)
        assert (seen and (seen.bytes, dict(seen.owner))) in (None, new)
        assert [found[:2] for found in store.list("t/e/")] == ([(KEY, seen.bytes)] if seen else [])
        _only_the_object_is_left(store, seen is not None)
        if seen is None:
            put()
        seen = store.head(KEY)
        assert seen is not None
        assert (seen.bytes, dict(seen.owner)) == new
    assert index > (11 if consume else 15)


def test_a_file_that_is_given_away_is_linked_and_where_that_is_impossible_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, body, symbolic = LocalStore(tmp_path / "store"), tmp_path / "body", tmp_path / "symbolic"
    body.write_bytes(b"z" * 1000)
    symbolic.symlink_to(body)

    def put(name: str, path: Path) -> os.stat_result:
        store.put_file(path, f"t/e/{name}", owner={"a": "b"}, consume=True)
        stored = store.head(f"t/e/{name}")
        assert stored is not None and (stored.bytes, dict(stored.owner)) == (1000, {"a": "b"})
        assert not any(one.startswith(".tmp-") for one in os.listdir(store.root / "t" / "e"))
        return (store.root / "t" / "e" / name).lstat()

    own = body.stat().st_ino
    assert put("linked", body).st_ino == own
    copied = put("copied", symbolic)
    assert stat.S_ISREG(copied.st_mode) and copied.st_ino != own
    link = os.link

    def on_one_disk(source: Any, *rest: Any, **how: Any) -> None:
        if source == body:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, *rest, **how)

    monkeypatch.setattr(os, "link", on_one_disk)
    assert put("elsewhere", body).st_ino != own


def _only_the_object_is_left(store: LocalStore, there: bool) -> None:
    store.discard_unfinished("t/e/")
    store.discard_unfinished("t/")
    files = [path for path in store.root.rglob("*") if path.is_file()] if store.root.exists() else []
    assert [path for path in files if ".owner" not in path.parts] == ([store.root / KEY] if there else [])
    assert len(files) <= 2
    assert there or not store.root.exists() or os.listdir(store.root) == []


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("attributes", [True, False])
def test_a_put_that_fails_at_any_system_call_says_so_and_leaves_a_whole_object_or_none(
    tmp_path: Path, attributes: bool
) -> None:
    """A broken disk: the error is ours, and names the key."""
    body = tmp_path / "body"
    body.write_bytes(b"z" * 3_000_000)
    for index in itertools.count(1):
        store = LocalStore(tmp_path / f"store{index}", attributes=attributes)
        if _disturbed(index, _fail, lambda store=store: _refused(store, body)):
            break
        seen = store.head(KEY)
        assert seen is None or (seen.bytes, dict(seen.owner)) == (3_000_000, {"a": "b"})
    assert index > 15


def _refused(store: LocalStore, body: Path) -> None:
    try:
        store.put_file(body, KEY, owner={"a": "b"})
    except StorageError as error:
        assert "Input/output error" in str(error)
        assert "store" in str(error)
        os._exit(9)


def _disturbed(index: int, harm: Callable[[], None], work: Callable[[], Any]) -> bool:
    """Run ``work`` in a fork that comes to ``harm`` at its ``index``-th call of ``_CALLS``; whether it came to its end
    unharmed."""

    def disturbed() -> None:
        left = index
        for name in _CALLS:
            real = getattr(os, name)

            def counted(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    harm()
                return _real(*args, **kwargs)

            setattr(os, name, counted)
        work()
        if left <= 0:
            os._exit(KILLED)

    return not dies(disturbed)


def test_a_full_disk_leaves_nothing(tmp_path: Path, body: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the place, no object and no temporary file stays."""
    store = LocalStore(tmp_path / "store")
    store.put_file(body, "t/e/first", owner={})

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(StorageError, match=r"a\.parquet: No space left"):
            store.put_file(body, KEY, owner={})
    assert store.head(KEY) is None
    assert os.listdir(tmp_path / "store" / "t" / "e") == ["first"]


def test_what_a_user_may_not_touch_is_an_access_error(body: Path) -> None:
    """The real thing, as a user without rights: not "missing", and not a generic failure."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        store = LocalStore(root / "store")
        store.put_file(body, KEY, owner={})
        source = root / "body"
        source.write_bytes(b"x")
        (root / "store" / "t").chmod(0o700)
        if os.geteuid():
            (root / "store" / "t").chmod(0)
        try:
            assert _as_nobody(lambda: _all_are_denied(store, source))
        finally:
            (root / "store" / "t").chmod(0o700)
        assert store.head(KEY) is not None


def _all_are_denied(store: LocalStore, source: Path) -> None:
    for refused in (
        lambda: store.put_file(source, "t/e/new", owner={}),
        lambda: store.head(KEY),
        lambda: store.open(KEY),
        lambda: list(store.list("t/e/")),
        lambda: store.discard_unfinished("t/e/"),
    ):
        with pytest.raises(StorageAccessError, match="Permission denied"):
            refused()
    outcome = store.delete_owned({KEY: encode_owner({})})
    assert "Permission denied" in outcome.failed[KEY]
    assert outcome.deleted == outcome.missing == ()


def _as_nobody(work: Callable[[], None]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_links_and_unfinished_files_are_no_objects(tmp_path: Path) -> None:
    """A listing does not follow a link out of the root."""
    folder = tmp_path / "store" / "t" / "e"
    folder.mkdir(parents=True)
    (folder / ".tmp-1").write_bytes(b"half")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "out").symlink_to("/etc")
    assert list(LocalStore(tmp_path / "store").list("t/e/")) == []


def test_no_operation_follows_a_link_out_of_the_root(tmp_path: Path, body: Path) -> None:
    """A link among the folders, or in the place of the object, is an error that says so; what it points to stays."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"not yours")
    store = LocalStore(tmp_path / "store")
    store.put_file(body, KEY, owner={})
    (store.root / "t" / "link").symlink_to(outside)
    (store.root / "t" / "file").symlink_to(outside / "x")
    for key in ("t/link/x", "t/file"):
        for refused in (lambda key=key: store.head(key), lambda key=key: store.open(key)):
            with pytest.raises(StorageError, match=r"ymbolic links"):
                refused()
    with pytest.raises(StorageError, match="Symbolic links"):
        store.put_file(body, "t/link/new", owner={})
    assert "t/link/x" not in store.delete_owned({"t/link/x": encode_owner({})}).deleted
    with pytest.raises(ObjectExistsError):
        store.put_file(body, "t/file", owner={})
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"x": b"not yours"}


def test_a_listing_goes_on_when_objects_are_deleted_meanwhile(tmp_path: Path, body: Path) -> None:
    """The sweep of an aborted push and the check of another one may meet."""
    store = LocalStore(tmp_path / "store")
    for number in range(5):
        store.put_file(body, f"t/e/{number}", owner={})
    with os.scandir(store.root / "t" / "e") as entries:
        names = [entry.name for entry in entries]
    listing = store.list("t/e/")
    pages = local._page

    def late(folder: str, entries: Any, pending: list[str]) -> Any:
        held = list(entries)  # read from the folder, not looked at yet
        for name in names[1:]:
            (store.root / "t" / "e" / name).unlink(missing_ok=True)
        return pages(folder, iter(held), pending)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local, "_page", late)
        assert [found.key for found in listing] == [f"t/e/{names[0]}"]


def test_a_new_folder_is_synced_into_the_one_above_before_anything_is_called_stored(
    tmp_path: Path, body: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power takes the folder, and the object with it."""
    synced: set[str] = set()
    real = os.fsync

    def noted(handle: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", noted)
    store = LocalStore(tmp_path / "new" / "store")
    store.put_file(body, KEY, owner={})
    root = store.root
    assert {str(folder) for folder in (tmp_path, tmp_path / "new", root, root / "t", root / "t" / "e")} <= synced


def test_puts_survive_deletions_that_remove_their_folder(tmp_path: Path, body: Path) -> None:
    """An empty folder goes with its last object, and a put that meets this starts over: nothing is lost."""
    store = LocalStore(tmp_path / "store", attributes=False)

    def churn(writer: str) -> int:
        for number in range(40):
            key = f"t/e/{writer}{number}"
            store.put_file(body, key, owner={"n": key})
            seen = store.head(key)
            assert seen is not None
            assert dict(seen.owner) == {"n": key}
            assert store.delete_owned({key: encode_owner({"n": key})}).deleted == (key,)
        return 1

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(churn, "abc")) == 3
    store.discard_unfinished("t/")
    assert os.listdir(store.root) == []


@pytest.mark.parametrize("attributes", [True, False])
def test_a_put_whose_unfinished_file_is_discarded_starts_over(
    tmp_path: Path, body: Path, monkeypatch: pytest.MonkeyPatch, attributes: bool
) -> None:
    """A zombie that writes below a reverted entry's prefix gets a whole object with its owner, or none."""
    store = LocalStore(tmp_path / "store", attributes=attributes)
    real, swept = os.link, []

    def late(*args: Any, **kwargs: Any) -> None:
        if not swept:
            swept.append(store.discard_unfinished("t/e/"))
        real(*args, **kwargs)

    monkeypatch.setattr(os, "link", late)
    store.put_file(body, KEY, owner={"a": "b"})
    assert swept == [1 if attributes else 2]
    seen = store.head(KEY)
    assert seen is not None
    assert dict(seen.owner) == {"a": "b"}
    assert store.discard_unfinished("t/e/") == 0
