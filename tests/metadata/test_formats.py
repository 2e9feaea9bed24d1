"""Two versions on one cluster, as in a rolling upgrade: nothing is lost, dropped or written over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import NewerRecordError
from tests.support.tables import alter_record, everything, make_table, visible

SCRIPT = Path(__file__).parent / "newer_version.py"


def run_both(store: SegmentStore, folder: Path, seconds: float) -> dict[str, Any]:
    """Let both versions work side by side; returns what each has told."""
    arguments = [store.session.settings.hosts, store.paths.cluster, store.storage.uri, str(folder), str(seconds)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    both = {
        name: subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments, name], stdout=subprocess.PIPE, text=True, env=environ
        )
        for name in ("newer", "present")
    }
    try:
        told = {"present": json.loads(both["present"].communicate(timeout=seconds + 120)[0])}
        (folder / "present-done").touch()
        told["newer"] = json.loads(both["newer"].communicate(timeout=120)[0])
    finally:
        for process in both.values():
            process.kill()
    assert [process.returncode for process in both.values()] == [0, 0]
    return told


def check_together(store: SegmentStore, folder: Path, seconds: float) -> dict[str, Any]:
    table = make_table(store, replacedSegmentsRetentionPeriod="0s")
    told = run_both(store, folder, seconds)
    assert set(table.snapshot().names) == {told["newer"]["last"], told["present"]["last"]}
    assert told["present"]["left_alone"], "the present version met messages of the newer one"
    assert not list(store.queue.dead_letters()), "and neither dropped them nor gave them up"
    report = table.reconcile(grace_ms=0)
    assert (report.missing.count, report.orphans.count) == (0, 0)
    kept = [
        path for path, node in everything(store.session, store.paths.root).items() if b'"later":"kept"' in node.data
    ]
    assert kept, "fields of the newer version are still there"
    return told


def test_two_versions_side_by_side_lose_nothing(store: SegmentStore, tmp_path: Path) -> None:
    check_together(store, tmp_path, 6)


@pytest.mark.slow
def test_two_versions_side_by_side_for_a_minute(
    store: SegmentStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = check_together(store, tmp_path, 60)
    with capsys.disabled():
        print(f"\n{told}")


@pytest.fixture
def newer_root(store: SegmentStore) -> Iterator[bytes]:
    """A table whose registry a newer version has taken over."""
    make_table(store)
    yield alter_record(store, store.paths.registry("t"), format=2, needs="3.0")


def test_a_registry_root_of_a_newer_format_is_not_written_over(store: SegmentStore, newer_root: bytes) -> None:
    table = store.table("t")
    for act in (table.snapshot, lambda: table.start(), table.retain, lambda: table.reconcile(grace_ms=0)):
        try:
            act()
        except NewerRecordError as error:
            assert "to 3.0 or later" in str(error)
    with pytest.raises(NewerRecordError, match=r"to 3\.0 or later"):
        visible(table)
    node = store.session.get(store.paths.registry("t"))
    assert node is not None and node.data == newer_root
