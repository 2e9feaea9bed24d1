"""A cluster knows its stores: with another one nothing is deleted, acknowledged, written or taken for an orphan."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_segments.cli.main import main
from airflow_provider_segments.core import binding, moving
from airflow_provider_segments.core.binding import StoreRole, bound_stores
from airflow_provider_segments.core.storage.identity import KEY, read_identity
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import CorruptRecordError, WrongStoreError
from tests.deletion.support import World
from tests.support.tables import contents, make_table


@pytest.fixture
def world(make_world: Callable[..., World], kind: str) -> World:
    """A cluster on either storage, with a segment that is marked for deletion."""
    made = make_world(kind, tiered=True)
    table = made.table()
    made.push(table, ["a", "b"])
    made.mark(table, {"a"})
    return made


def test_the_first_stage_binds_the_cluster_and_later_ones_change_nothing(
    world: World,
    place: Callable[[str], LocalStore],
    kind: str,
) -> None:
    bound = bound_stores(world.store.cluster)
    assert list(bound) == ["primary"] and bound["primary"].id == read_identity(world.store.storage)
    node = world.store.session.get(world.store.paths.stores)
    again = SegmentStore(world.store.replace().cluster)
    again.cluster.checked.clear()
    assert again.table("t").start(["b"]).entry_id and again.deleter().drain().total("deleted") == 1
    assert world.store.session.get(world.store.paths.stores) == node


def test_a_drain_with_another_store_acknowledges_nothing(
    world: World,
    place: Callable[[str], LocalStore],
    kind: str,
) -> None:
    """There, every object is already gone: the queue would be empty and the objects orphans for ever."""
    other = place(kind)
    before = contents(world.store)
    wrong = world.with_storage(other)
    for act in (
        wrong.drain,
        lambda: wrong.table().reconcile(grace_ms=0, enqueue=True),
        lambda: wrong.table().open_stage(wrong.table().start(["b"]).entry_id),
        lambda: wrong.table().offload(older_than_ms=0, primary_lag_ms=0),
    ):
        with pytest.raises(WrongStoreError, match=r"storage rebind") as caught:
            act()
        assert other.uri in str(caught.value) and world.store.storage.uri in str(caught.value)
    assert (
        contents(world.store).items()
        >= {path: node for path, node in before.items() if "DELETION" in path or "STORES" in path}.items()
    )
    assert read_identity(other) is None, "a store is not bound by looking at it"
    assert world.drain().total("deleted") == 1


def test_a_store_of_another_cluster_is_told_apart_by_its_identity(
    world: World,
    make_world: Callable[..., World],
    kind: str,
) -> None:
    other = make_world(kind)
    other.push(other.table(), ["x"])
    with pytest.raises(WrongStoreError, match="is another store"):
        world.with_storage(other.store.storage).drain()


def test_without_the_check_a_drain_with_another_store_loses_the_queue(
    world: World,
    place: Callable[[str], LocalStore],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The revert test of the check."""
    monkeypatch.setattr(binding, "_compare", lambda *_: None)
    assert world.with_storage(place(kind)).drain().total("already_gone") == 1
    assert not world.store.queue.backlog().in_flight and len(world.stored()) == 2


def test_two_first_stages_at_once_bind_one_identity(make_world: Callable[..., World], kind: str) -> None:
    world = make_world(kind)
    table = world.table()
    entries = [table.start().entry_id for _ in range(6)]

    def first(number: int) -> None:
        mine = SegmentStore(world.store.replace().cluster)
        mine.table("t").open_stage(entries[number])

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(first, number) for number in range(6)]:
            done.result()
    assert bound_stores(world.store.cluster)["primary"].id == read_identity(world.store.storage)


def test_a_move_is_a_copy_and_a_rebind_where_the_identity_did_not_go_along(
    make_world: Callable[..., World],
    tmp_path: Path,
) -> None:
    world = make_world("files")
    table = world.table()
    world.push(table, ["a", "b"])
    old = world.store.storage
    assert isinstance(old, LocalStore)
    whole, parts = LocalStore(tmp_path / "whole"), LocalStore(tmp_path / "parts")
    shutil.copytree(old.root, whole.root)
    assert world.with_storage(whole).drain().deliveries == 0, "the identity went along: nothing needs to be said"
    shutil.copytree(old.root / "t", parts.root / "t")
    moved = world.with_storage(parts)
    with pytest.raises(WrongStoreError, match=f"has no object {KEY}"):
        moved.drain()
    done = moving.rebind(moved.store.cluster, StoreRole.PRIMARY)
    assert done.before is not None and done.before.uri == old.uri and done.looked_at == 2
    moved.push(moved.table(), ["c"])
    with pytest.raises(WrongStoreError):
        world.with_storage(LocalStore(old.root)).drain()


def test_a_rebind_to_a_store_without_the_objects_is_refused(world: World, tmp_path: Path) -> None:
    wrong = world.with_storage(LocalStore(tmp_path / "elsewhere"))
    before = contents(world.store)
    with pytest.raises(WrongStoreError, match="1 of 1 registered objects of table 't'"):
        moving.rebind(wrong.store.cluster, StoreRole.PRIMARY)
    assert contents(world.store) == before
    assert moving.rebind(wrong.store.cluster, StoreRole.PRIMARY, force=True).looked_at == 0
    assert wrong.store.deleter().drain().total("already_gone") == 1


def test_something_else_in_the_place_of_the_identity_is_not_written_over(store: SegmentStore, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"x")
    store.storage.put_file(body, KEY, owner={"application": "another"})
    table = make_table(store)
    entry_id = table.start().entry_id
    with pytest.raises(CorruptRecordError, match="not the identity of a store"):
        table.open_stage(entry_id)


def test_the_commands_show_and_change_the_binding(
    store: SegmentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEGMENTS_ZOOKEEPER", store.session.settings.hosts)
    monkeypatch.setenv("SEGMENTS_CLUSTER", store.paths.cluster)
    monkeypatch.setenv("SEGMENTS_STORAGE", store.storage.uri)
    table = make_table(store)
    assert main(["storage", "show"]) == 0 and "its first push" in capsys.readouterr().err
    table.open_stage(table.start().entry_id)
    assert main(["storage", "show"]) == 0 and store.storage.uri in capsys.readouterr().out
    elsewhere = (tmp_path / "elsewhere").as_uri()
    assert main(["drain", "--storage", elsewhere]) == 1
    assert "segments storage rebind" in capsys.readouterr().err
    assert main(["storage", "rebind", "--storage", elsewhere]) == 0
    assert store.storage.uri in capsys.readouterr().out
    assert main(["drain", "--storage", elsewhere]) == 0 and main(["drain"]) == 1
