"""What docs/operations.md says to do when a table's lineage is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Create, Delete
from airflow_provider_segments.dev.zookeeper import EmbeddedZooKeeper
from airflow_provider_segments.exceptions import CorruptRecordError, SegmentsError
from tests.support.tables import make_table, named, push, unchanged, visible

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()


def test_a_lineage_comes_back_from_a_backup_as_the_page_says(
    store: SegmentStore, zk_hosts: str, tmp_path: Path
) -> None:
    """The block of the page is run as it stands, on the addresses of this test."""
    table = make_table(store)
    first = push(table)
    running = push(table, end=False)
    path = store.paths.lineage("t")
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with EmbeddedZooKeeper(tmp_path / "backup", sync=False) as server:
        with SegmentStore.connect(server.hosts, store.paths.cluster, store.storage.uri) as backup:
            backup.session.ensure([path.rpartition("/")[0]])
            node = store.session.get(path)
            assert node is not None
            backup.session.commit([Create(path, node.data)])
        table.end(running)
        late = push(table)
        gone = store.session.get(path)
        assert gone is not None
        store.session.commit([Delete(path, gone.version)])
        with pytest.raises(CorruptRecordError, match=r"docs/operations\.md"):
            table.snapshot()
        unchanged(store, lambda: _refused(table))
        code = block
        for wanted, here in (("/segments/", f"/{store.paths.cluster}/"), ("/flights", "/t")):
            code = code.replace(wanted, here)
        code = code.replace("127.0.0.1:2182", server.hosts).replace("zk1:2181", zk_hosts)
        code = "\n".join(line.removeprefix("   ") for line in code.splitlines())
        exec(code + "\nbackup.stop(), live.stop()", {})  # as a person would type it
    assert table.lineage().entries[running].state is EntryState.IN_PROGRESS
    assert late not in table.lineage().entries
    with pytest.raises(SegmentsError):
        table.end(running)
    table.revert(running, force=True)
    assert visible(table) == {*named(table, first, 2), *named(table, late, 2)}, "an absent entry counts as settled"
    removal = table.start(named(table, late, 2)).entry_id
    table.end(removal, allow_empty=True)
    assert visible(table) == set(named(table, first, 2))


def _refused(table: Table) -> None:
    """Clean-up refuses, too."""
    with pytest.raises(CorruptRecordError):
        table.retain()
