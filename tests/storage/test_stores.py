"""What every object store promises."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from airflow_provider_segments.clock import system_now_ms
from airflow_provider_segments.core.storage.base import ObjectStore, encode_owner
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.exceptions import (
    InvalidConfigError,
    InvalidNameError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from tests.support.races import share_barrier, try_put

KEY = "flights/11111111-1111-1111-1111-111111111111/a.1.parquet"
PREFIX = KEY.rpartition("/")[0] + "/"
OWNER = {"application": "segments", "table": "flights", "note": 'quotes " and ü  two spaces\x7f\n'}


def test_what_was_put_is_read_back_with_size_and_owner(storage: ObjectStore, body: Path) -> None:
    """Bytes, size and owner metadata survive, also characters that no HTTP header can carry."""
    stored = storage.put_file(body, KEY, owner=OWNER)
    assert (stored.bytes, dict(stored.owner)) == (5000, OWNER)
    seen = storage.head(KEY)
    assert seen is not None
    assert (seen.bytes, dict(seen.owner)) == (5000, OWNER)
    with storage.open(KEY) as file:
        assert file.read() == body.read_bytes()


def test_an_object_is_written_once(storage: ObjectStore, body: Path, tmp_path: Path) -> None:
    """A second put is refused and changes nothing."""
    storage.put_file(body, KEY, owner=OWNER)
    other = tmp_path / "other"
    other.write_bytes(b"other")
    with pytest.raises(ObjectExistsError, match=r"a\.1\.parquet"):
        storage.put_file(other, KEY, owner={})
    seen = storage.head(KEY)
    assert seen is not None
    assert (seen.bytes, dict(seen.owner)) == (5000, OWNER)


def test_of_several_processes_that_put_one_key_one_wins(storage: ObjectStore, tmp_path: Path) -> None:
    """And what stands is whole: the winner's bytes with the winner's owner. They start at the same moment."""
    context = multiprocessing.get_context("spawn")
    for index in range(4):
        (tmp_path / f"body{index}").write_bytes(str(index).encode() * 70_000)
    work = [(storage, str(tmp_path / f"body{index}"), KEY, str(index)) for index in range(4)]
    with context.Pool(4, share_barrier, [context.Barrier(4)]) as pool:
        won = pool.starmap(try_put, work, chunksize=1)
    assert sum(won) == 1
    winner = str(won.index(True))
    seen = storage.head(KEY)
    assert seen is not None
    assert dict(seen.owner) == {"writer": winner}
    with storage.open(KEY) as file:
        assert file.read() == winner.encode() * 70_000


def test_a_listing_names_every_object_below_its_prefix_and_nothing_else(storage: ObjectStore, body: Path) -> None:
    """Sizes included; neighbours that share the beginning of the name excluded."""
    for key in ("t/e/a", "t/e/sub/b", "t/e2/c", "u/e/d"):
        storage.put_file(body, key, owner=OWNER)
    assert sorted(found[:2] for found in storage.list("t/e/")) == [("t/e/a", 5000), ("t/e/sub/b", 5000)]
    assert all(abs(found.modified_ms - system_now_ms()) < 60_000 for found in storage.list("t/e/"))
    assert list(storage.list("nothing/here/")) == []


def test_a_long_listing_comes_in_pages(storage: ObjectStore, tmp_path: Path) -> None:
    """More objects than two S3 pages hold, each once; and they go in as many requests."""
    small = tmp_path / "small"
    small.write_bytes(b"x")
    keys = [f"t/e/{number:04d}" for number in range(2500)]
    if isinstance(storage, LocalStore):  # 2,500 puts would wait for 10,000 syncs of the disk
        (storage.root / "t" / "e").mkdir(parents=True)
        for key in keys:
            (storage.root / key).write_bytes(b"x")
    else:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda key: storage.put_file(small, key, owner={}), keys))
    assert sorted(found[:2] for found in storage.list("t/e/")) == [(key, 1) for key in keys]
    outcome = storage.delete_owned(dict.fromkeys(keys, encode_owner({})))
    assert sorted(outcome.deleted) == keys
    assert list(storage.list("t/e/")) == []


def test_a_folder_is_no_object(storage: ObjectStore, body: Path) -> None:
    """Where an object's key goes on after it, nothing can be looked at, opened or deleted."""
    storage.put_file(body, "t/e/a", owner=OWNER)
    assert storage.head("t/e") is None
    assert storage.head("t/e/a/b") is None
    with pytest.raises(ObjectNotFoundError):
        storage.open("t/e")
    assert "t/e" not in storage.delete_owned({"t/e": encode_owner(OWNER)}).deleted
    assert storage.head("t/e/a") is not None


def test_owner_metadata_that_no_store_could_keep_is_refused(storage: ObjectStore, body: Path) -> None:
    """S3 takes 2 KB; a folder must not accept what a bucket refuses."""
    with pytest.raises(InvalidConfigError, match="1800"):
        storage.put_file(body, KEY, owner={"a": "x" * 1800})
    assert storage.head(KEY) is None


def test_nothing_unfinished_is_nothing_to_discard(storage: ObjectStore, body: Path) -> None:
    """Objects and their owners stay."""
    storage.put_file(body, KEY, owner=OWNER)
    assert storage.discard_unfinished(PREFIX) == 0
    seen = storage.head(KEY)
    assert seen is not None
    assert dict(seen.owner) == OWNER
    assert storage.discard_unfinished("no/such/") == 0


def test_an_address_spells_the_key_letter_by_letter(storage: ObjectStore) -> None:
    """Spark does not decode percent signs: it would look for a file that is called ``a%3Db``."""
    assert storage.url("t/e/a=b+c@d~e").endswith("/t/e/a=b+c@d~e")


def test_what_is_not_there_is_a_positive_answer(storage: ObjectStore) -> None:
    """``None`` from head, an error of its own from open."""
    assert storage.head(KEY) is None
    with pytest.raises(ObjectNotFoundError, match=r"a\.1\.parquet"):
        storage.open(KEY)


@pytest.mark.parametrize(
    "key", ["../up", "a/../../up", "/abs", "a//b", "", "a/", ".hidden", "a/.tmp-1", "a\nb", "x" * 901]
)
def test_a_key_that_climbs_or_hides_is_refused(storage: ObjectStore, body: Path, key: str) -> None:
    """By every operation, before anything is touched."""
    for refused in (
        lambda: storage.put_file(body, key, owner={}),
        lambda: storage.head(key),
        lambda: storage.open(key),
        lambda: storage.url(key),
        lambda: storage.delete_owned({key: "{}"}),
        lambda: list(storage.list(key + "/")),
    ):
        with pytest.raises(InvalidNameError):
            refused()


def test_arrow_reads_a_column_out_of_the_middle(storage: ObjectStore, tmp_path: Path) -> None:
    """The file seeks and reads ranges."""
    table = pyarrow.table({"a": list(range(200_000)), "b": [str(value) for value in range(200_000)]})
    path = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=10_000)
    storage.put_file(path, KEY, owner={})
    with storage.open(KEY) as file:
        parquet = pyarrow.parquet.ParquetFile(file)
        assert parquet.read_row_group(7, columns=["a"])["a"].to_pylist() == list(range(70_000, 80_000))


def test_a_store_travels_to_another_process(storage: ObjectStore, body: Path) -> None:
    """Pickled and opened again, it is the same store; its repr shows no secret."""
    storage.put_file(body, KEY, owner=OWNER)
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.uri == storage.uri
    assert copy.head(KEY) is not None
    assert "secret" not in repr(copy).lower()
