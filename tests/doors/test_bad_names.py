"""Bad names through every door: none escapes, none ends in a traceback."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.sdk import Connection

from airflow_provider_segments.assets.segments import segments_asset
from airflow_provider_segments.cli.main import main
from airflow_provider_segments.core.locking import LockRequest
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import ALL_TIME
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper.paths import ClusterPaths
from airflow_provider_segments.core.zookeeper.settings import ZooKeeperSettings
from airflow_provider_segments.exceptions import SegmentsError
from airflow_provider_segments.hooks.settings import SegmentsConnection
from airflow_provider_segments.operators.replace import StartReplaceSegmentsOperator
from airflow_provider_segments.operators.retention import RetentionCleanupOperator
from airflow_provider_segments.spark import build, compact
from tests.doors.names import BAD_NAMES
from tests.support.tables import contents, make_table

Door = Callable[[SegmentStore, str, Path], object]
SPARK = ["--zk-hosts", "localhost:1", "--storage-uri", "file:///s"]


def _cli(*arguments: str) -> int:
    try:
        return main(list(arguments))
    except SystemExit as left:
        return int(left.code or 0)


def _stage(store: SegmentStore, segment: str, file: str, chunk: str, stager: str = "build") -> object:
    table = store.table("t")
    ticket = table.open_stage(table.start().entry_id, stager)
    return table.stage(ticket, [StagedSegment(chunk, SegmentRecord(segment, file, 1, 1, 1))])


def _connection(**extra: str) -> SegmentsConnection:
    extra = {"storage_uri": "file:///x", **extra}
    return SegmentsConnection.parse(Connection(conn_id="c", conn_type="segments", host="zk", extra=json.dumps(extra)))


def _apply(store: SegmentStore, folder: Path, bad: str) -> object:
    file = folder / "config.json"
    file.write_text(json.dumps({"tableName": bad}))
    return _cli("config", "apply", str(file))


DOORS: dict[str, Door] = {
    "cli lineage TABLE": lambda store, bad, folder: _cli("lineage", bad),
    "cli snapshot TABLE": lambda store, bad, folder: _cli("snapshot", bad),
    "cli snapshot --as-of": lambda store, bad, folder: _cli("snapshot", "t", "--as-of", bad),
    "cli timeline TABLE": lambda store, bad, folder: _cli("timeline", bad),
    "cli start TABLE": lambda store, bad, folder: _cli("start", bad),
    "cli start --to": lambda store, bad, folder: _cli("start", "t", "--from-none", "--to", bad),
    "cli start --from": lambda store, bad, folder: _cli("start", "t", "--from", bad),
    "cli stage TABLE": lambda store, bad, folder: _cli("stage", bad, "latest", "x"),
    "cli stage ENTRY": lambda store, bad, folder: _cli("stage", "t", bad, "x"),
    "cli end ENTRY": lambda store, bad, folder: _cli("end", "t", bad),
    "cli revert ENTRY": lambda store, bad, folder: _cli("revert", "t", bad),
    "cli locks list TABLE": lambda store, bad, folder: _cli("locks", "list", bad),
    "cli locks revoke LOCK": lambda store, bad, folder: _cli("locks", "revoke", "t", bad),
    "cli mark SEGMENT": lambda store, bad, folder: _cli("mark", "t", bad),
    "cli config show TABLE": lambda store, bad, folder: _cli("config", "show", bad),
    "cli config apply": lambda store, bad, folder: _apply(store, folder, bad),
    "cli --cluster": lambda store, bad, folder: _cli("lineage", "t", f"--cluster={bad}") if bad else 2,
    "cli dead-letters redrive": lambda store, bad, folder: _cli("dead-letters", "redrive", bad),
    "api table": lambda store, bad, folder: store.table(bad),
    "api config": lambda store, bad, folder: store.apply_config(TableConfig.from_json({"tableName": bad})),
    "api start to": lambda store, bad, folder: store.table("t").start([], [bad]),
    "api stage segment": lambda store, bad, folder: _stage(store, bad, "f.parquet", "2013-01-01"),
    "api stage chunk": lambda store, bad, folder: _stage(store, "s", "f.parquet", bad),
    "api stager": lambda store, bad, folder: _stage(store, "s", "f.parquet", "2013-01-01", bad),
    "api end to": lambda store, bad, folder: store.table("t").end(store.table("t").start().entry_id, [bad]),
    "api revert": lambda store, bad, folder: store.table("t").revert(bad),
    "api snapshot as of": lambda store, bad, folder: store.table("t").snapshot(as_of=bad),
    "api cluster": lambda store, bad, folder: ClusterPaths(bad),
    "api lock table": lambda store, bad, folder: store.table(bad).locks.acquire(
        LockRequest(group="g", task="t", interval=ALL_TIME)
    ),
    "local key": lambda store, bad, folder: store.storage.put_file(folder / "in", f"t/../{bad}", owner={}),
    "local prefix": lambda store, bad, folder: list(store.storage.list(f"../{bad}/")),
    "s3 bucket": lambda store, bad, folder: open_store("s3://" + bad.replace("/", "") + "^/x"),
    "s3 key": lambda store, bad, folder: open_store("s3://bucket/p").url(f"t/../{bad}"),
    "operator table": lambda store, bad, folder: store.table(
        StartReplaceSegmentsOperator(task_id="x", table=bad).table
    ),
    "operator retention table": lambda store, bad, folder: store.table(
        RetentionCleanupOperator(task_id="x", table=bad).table or ""
    ),
    "asset table": lambda store, bad, folder: segments_asset(bad, "c"),
    "asset cluster": lambda store, bad, folder: segments_asset("t", bad),
    "connection cluster": lambda store, bad, folder: ClusterPaths(
        _connection(cluster=bad or "/").cluster.strip() or "/"
    ),
    "hosts": lambda store, bad, folder: ZooKeeperSettings(hosts=f"\x00{bad}"),
    "spark build --table": lambda store, bad, folder: store.table(
        build.parse_arguments([*SPARK, f"--table={bad}", "--entry-id=e", "--input=i"], {}).table
    ),
    "spark compact --table": lambda store, bad, folder: store.table(
        compact._parser().parse_args([*SPARK, f"--table={bad}", "--identity=i"]).table
    ),
}


GOOD_HERE = {
    *(
        (what, "connection cluster")
        for what in ("blank", "a leading blank", "a trailing blank", "a trailing line break")
    ),
    ("comma", "cli start --to"),
    *(("one too long", door) for door in ("cli start --to", "api start to", "api stage segment")),
    ("an option", "cli dead-letters redrive"),
}
"""What is no bad name at one door: a connection's fields lose blanks at their ends, as forms do; a comma separates two
segments; a segment's name may be longer than a table's; ``redrive --all`` is a command."""


def test_bad_names_through_every_door(
    store: SegmentStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    zk_hosts: str,
) -> None:
    """Every name through every door ends in an error of ours, in printable text of at most a screen; ZooKeeper holds
    no name of theirs, and no file appears outside of the store."""
    make_table(store)
    (tmp_path / "in").write_bytes(b"x")
    for name, value in {"ZOOKEEPER": zk_hosts, "CLUSTER": store.paths.cluster, "STORAGE": store.storage.uri}.items():
        monkeypatch.setenv(f"SEGMENTS_{name}", value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("airflow_provider_segments.cli.parser.open_store", _lend(store, monkeypatch))
    figures: Counter[str] = Counter()
    wrong: list[str] = []
    for what, bad in BAD_NAMES.items():
        for door, go in DOORS.items():
            if (what, door) in GOOD_HERE:
                continue
            figures["tries"] += 1
            capsys.readouterr()
            try:
                outcome = go(store, bad, tmp_path)
                refused = isinstance(outcome, int) and outcome in (1, 2) and door.startswith("cli")
                said = capsys.readouterr().err
            except SegmentsError as error:
                refused, said = True, str(error)
            except Exception as error:
                refused, said = False, f"{type(error).__name__}: {error!r}"
            figures["refused"] += refused
            tidy = (
                all(line.isprintable() for line in said.split("\n")) and "Traceback" not in said and len(said) < 4_000
            )
            if not refused or not tidy:
                wrong.append(f"{what} through {door}: {said[:120]!r}")
    assert not wrong, "\n".join(wrong[:40])
    strange = [path for path in contents(store) if ".." in path or not path.isascii() or not path.isprintable()]
    assert not strange
    assert sorted(path.name for path in tmp_path.iterdir()) in (["config.json", "in"], ["config.json", "in", "objects"])
    assert not Path("escaped").exists()
    assert store.tables() == ["t"]
    assert len(BAD_NAMES) >= 60
    assert len(DOORS) >= 30
    with capsys.disabled():
        print(f"\n{len(BAD_NAMES)} names x {len(DOORS)} doors: {dict(figures)}")


def _lend(store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SegmentStore]:
    """The command line's store is this one, so that not every try opens a session; another cluster gets its own
    paths, checked as ever."""
    from airflow_provider_segments.core.cluster import Cluster

    def opened(args: object, environ: object = os.environ) -> SegmentStore:
        cluster = getattr(args, "cluster", None)
        base = store.cluster
        paths = base.paths if cluster is None else ClusterPaths(cluster)
        return _Lent(Cluster(base.session, paths, base.storage, clock=base.clock, retry=base.retry))

    return opened


class _Lent(SegmentStore):
    def close(self) -> None:
        """It is the test's."""
        with contextlib.suppress(AttributeError):
            self.storage  # noqa: B018
