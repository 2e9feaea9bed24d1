"""Objects in a file system can be read by those whom the store's mode lets, and by nobody else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_segments.core.environment import connect, worker_environment
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.exceptions import InvalidConfigError


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """What the process would take away, or leave to everyone."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}


@pytest.mark.parametrize(
    ("mode", "file", "folder"), [(None, 0o640, 0o750), ("600", 0o600, 0o700), ("0644", 0o644, 0o755)]
)
@pytest.mark.parametrize("how", ["copied", "linked", "with files for owners"])
def test_objects_have_the_configured_mode_whatever_the_umask(
    tmp_path: Path, umask: int, mode: str | None, file: int, folder: int, how: str
) -> None:
    """Also objects that are linked into place, files of owner metadata, and all folders that are made for them."""
    source = tmp_path / "source"
    source.write_bytes(b"x")
    source.chmod(0o666)
    store = open_store((tmp_path / "store").as_uri(), file_mode=mode)
    assert isinstance(store, LocalStore)
    if how == "with files for owners":
        store = LocalStore(store.root, mode=store.mode, attributes=False)
    store.put_file(source, "t/e/o.parquet", owner={"a": "b"}, consume=how == "linked")
    found = _modes(tmp_path / "store")
    assert found["t/e/o.parquet"] == file
    for path, bits in found.items():
        assert bits == (folder if (tmp_path / "store" / path).is_dir() else file), path
    info = store.head("t/e/o.parquet")
    assert info is not None
    assert info.owner == {"a": "b"}


@pytest.mark.parametrize(
    "bad", ["0", "440", "755", "777", "rw-r-----", "0o640", "64", "06400", "-640", "\u0666\u0664\u0660"]
)
def test_a_mode_that_is_none_is_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(InvalidConfigError, match="file mode"):
        open_store(str(tmp_path), file_mode=bad)


def test_the_mode_comes_from_the_environment_and_reaches_workers(
    zk_hosts: str, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEGMENTS_FILE_MODE", "600")
    with connect(zk_hosts, str(tmp_path), cluster) as store:
        assert isinstance(store.storage, LocalStore)
        assert store.storage.mode == 0o600
    assert worker_environment()["SEGMENTS_FILE_MODE"] == "600"
