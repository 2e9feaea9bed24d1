"""Clusters that were never made, strangers among the tables, and a Pinot controller on the same path."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_segments.cli.main import main
from airflow_provider_segments.core.lineage.entries import EntryState, LineageEntry
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import Create, SetData
from airflow_provider_segments.exceptions import ClusterNotFoundError, ConfigRefusedError, TableNotFoundError
from tests.support.tables import contents, make_table, push, unchanged, visible

FOREIGN = "0c1b0a7e-0000-4000-8000-000000000001"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def segments(
    zk_hosts: str, cluster: str, storage_uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """The ``segments`` command on the test's cluster."""
    monkeypatch.setenv("SEGMENTS_ZOOKEEPER", zk_hosts)
    monkeypatch.setenv("SEGMENTS_CLUSTER", cluster)
    monkeypatch.setenv("SEGMENTS_STORAGE", storage_uri)

    def run(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(args))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_cluster_that_was_never_made_is_an_error_that_names_those_that_were(store: SegmentStore) -> None:
    make_table(store)
    mistyped = f"{store.paths.cluster}x"
    with SegmentStore.connect(store.session.settings.hosts, mistyped, store.storage.uri) as wrong:
        for act in (
            wrong.tables,
            wrong.queue.backlog,
            lambda: wrong.deleter().drain(),
            lambda: list(wrong.queue.dead_letters()),
            wrong.table("t").config,
            wrong.table("t").retain,
        ):
            with pytest.raises(TableNotFoundError):
                act()
        with pytest.raises(ClusterNotFoundError, match=f"'{mistyped}' was never made") as caught:
            wrong.tables()
        assert f"Clusters like it: {store.paths.cluster}," in f"{caught.value},"
        assert wrong.session.get(f"/{mistyped}") is None, "looking has made nothing"


@pytest.mark.parametrize(
    "command",
    [
        ("tables",), ("lineage", "t"), ("deletions",), ("drain",), ("leases",), ("retention", "--all"),
        ("reconcile", "--all"), ("dead-letters", "list"), ("locks", "list", "t"), ("start", "t"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_command_takes_a_mistyped_cluster_for_an_empty_one(segments: Run, command: tuple[str, ...]) -> None:
    code, out, err = segments(*command)
    assert (code, out) == (1, "") and "was never made" in err, err


def test_applying_a_config_makes_a_cluster(segments: Run, tmp_path: Path) -> None:
    config = tmp_path / "t.json"
    config.write_text(json.dumps({"tableName": "t"}))
    assert segments("config", "apply", str(config))[0] == 0
    assert segments("tables") == (0, "t\n", "")


def test_strangers_among_the_table_configs_stop_no_table_and_are_reported(store: SegmentStore, segments: Run) -> None:
    table = make_table(store)
    push(table, ["a"])
    store.session.ensure([f"{store.paths.configs}/not a table", f"{store.paths.configs}/no_config_in_it"])
    assert store.tables() == ["no_config_in_it", "t"] and store.configs.strays() == ["not a table"]
    for command in (("leases",), ("retention", "--all"), ("reconcile", "--all", "--grace", "0s")):
        code, out, err = segments(*command)
        assert code == 1 and "not a table" in err and "Traceback" not in err
        assert "t: " in out or command == ("leases",)
    assert segments("tables")[0] == 0
    assert visible(table) == {"a"}


def test_all_goes_on_past_broken_tables_and_fails_at_the_end(store: SegmentStore, segments: Run) -> None:
    tables = [make_table(store, name) for name in ("a", "b", "c", "d")]
    for table in tables:
        push(table, [f"s_{table.name}"])
    for name, harm in (("b", b"\xff\xfe"), ("c", b"[" * 100_000)):
        path = store.paths.lineage(name)
        node = store.session.get(path)
        assert node is not None
        store.session.commit([SetData(path, harm, node.version)])
    for command in (("retention", "--all"), ("reconcile", "--all", "--grace", "0s"), ("retention", "b", "a")):
        code, out, err = segments(*command)
        assert code == 1 and "a: " in out
        broken = [line.partition(" ")[2].partition(":")[0] for line in err.splitlines()]
        assert broken == ["b", "c"][: 1 if "b" in command else 2]
    code, out, _ = segments("retention", "--all", "--json")
    assert code == 1 and [report["table"] for report in json.loads(out)] == ["a", "d"]
    assert visible(tables[0]) == {"s_a"} and visible(tables[3]) == {"s_d"}


def test_a_table_that_a_pinot_controller_manages_is_refused(store: SegmentStore) -> None:
    """Pinot's retention and our clean-up would each drop lineage entries that the other still needs."""
    table = make_table(store, "t_OFFLINE")
    push(table, ["a"])
    store.session.ensure([store.paths.ideal_state("t_OFFLINE"), store.paths.ideal_state("new_OFFLINE")])
    for name in ("t_OFFLINE", "new_OFFLINE"):
        before = contents(store)
        with pytest.raises(ConfigRefusedError, match="a Pinot controller manages the table") as caught:
            make_table(store, name)
        assert (caught.value.rule, caught.value.table) == ("pinot-manages", name)
        assert contents(store) == before
    make_table(store, "another")
    assert visible(table) == {"a"}


def test_an_entry_of_another_tool_about_segments_that_were_never_ours_can_be_reverted(store: SegmentStore) -> None:
    """Its segments are not in our registry, and never were: nothing was replaced and cleaned up here."""
    table = make_table(store)
    push(table, ["a"])
    records = table._context.records
    stored = records.read()
    foreign = LineageEntry.of(FOREIGN, ["theirs_1"], ["theirs_2"], EntryState.COMPLETED, 5)
    store.session.commit([records.write(stored, stored.lineage.put(foreign))])
    unchanged(store, lambda: table.preview_revert(FOREIGN))
    table.revert(FOREIGN)
    assert table.lineage().find(FOREIGN).state is EntryState.REVERTED and visible(table) == {"a"}


def test_an_entry_of_another_tool_about_our_segments_is_judged_as_ours(store: SegmentStore) -> None:
    table = make_table(store)
    push(table, ["a"])
    records = table._context.records
    stored = records.read()
    foreign = LineageEntry.of(FOREIGN, ["a"], ["gone"], EntryState.COMPLETED, 5)
    store.session.commit([records.write(stored, stored.lineage.put(foreign))])
    with pytest.raises(Exception, match="to-gone"):
        table.revert(FOREIGN)


def test_a_stray_child_of_a_registry_is_damage_of_its_table_only(store: SegmentStore) -> None:
    table, other = make_table(store), make_table(store, "u")
    push(other, ["b"])
    store.session.commit([Create(f"{store.paths.registry('t')}/2013-01-01T07:30")])
    with pytest.raises(Exception, match="2013-01-01T07:30 is no time chunk"):
        table.snapshot()
    assert visible(other) == {"b"}
