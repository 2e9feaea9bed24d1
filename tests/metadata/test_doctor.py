"""The doctor names what is unreadable, inconsistent, foreign or lost; it changes nothing, and its exit code says how
bad it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_segments.cli import doctor as face
from airflow_provider_segments.cli.main import main
from airflow_provider_segments.core.doctor.examine import examine
from airflow_provider_segments.core.doctor.kept import MOST_FINDINGS, keep_report, read_report
from airflow_provider_segments.core.doctor.report import DoctorReport, Finding, Severity
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Create, Delete, SetData
from tests.deletion.support import World
from tests.support.tables import contents, make_table, object_path, push

FOREIGN = "0c1b0a7e-0000-4000-8000-000000000001"


@pytest.fixture
def table(store: SegmentStore) -> Table:
    """A table with a replacement."""
    made = make_table(store)
    push(made, ["a", "b"])
    push(made, ["c"], ["a"])
    return made


def found(store: SegmentStore, **how: bool) -> dict[str, Severity]:
    """The names of the checks that found something; nothing may have been written."""
    before = contents(store)
    report = examine(store.cluster, **how)
    assert contents(store) == before
    return {one.check: one.severity for one in report.findings if one.check != "open-to-all"}


def alter(store: SegmentStore, path: str, data: bytes) -> None:
    node = store.session.get(path)
    assert node is not None
    store.session.commit([SetData(path, data, node.version)])


def remove(store: SegmentStore, path: str) -> None:
    node = store.session.get(path)
    assert node is not None
    store.session.commit([Delete(path, node.version)])


def test_a_sound_cluster_has_no_findings(store: SegmentStore, table: Table) -> None:
    assert found(store) == {} == found(store, all_objects=True)
    report = examine(store.cluster, all_objects=True)
    assert (report.tables, report.objects, report.znodes["guard"]) == (1, 2, 2)


HARM: dict[str, tuple[Callable[[SegmentStore, Table], object], Severity]] = {
    "unreadable": (lambda store, table: alter(store, store.paths.registry("t"), b"\xff"), Severity.ERROR),
    "newer-format": (
        lambda store, table: alter(store, store.paths.registry("t"), b'{"format":9,"needs":"3.0"}'), Severity.ERROR,
    ),
    "foreign-znode": (lambda store, table: store.session.ensure([f"{store.paths.root}/NOTES"]), Severity.WARNING),
    "no-config": (lambda store, table: store.session.ensure([store.paths.entries("u")]), Severity.WARNING),
    "record-lost": (
        lambda store, table: remove(store, next(shard.name.path for shard in shards(table) if names(shard) == ["c"])),
        Severity.ERROR,
    ),
    "guard-without-entry": (
        lambda store, table: store.session.commit(
            [Create(store.paths.guard("t", FOREIGN), guard_of(store, table).replace(b'"COMPLETED"', b'"OPEN"'))]
        ),
        Severity.ERROR,
    ),
    "guard-differs": (
        lambda store, table: alter(
            store,
            store.paths.guard("t", next(iter(table.lineage().entries))),
            guard_of(store, table).replace(b'"COMPLETED"', b'"REVERTED"'),
        ),
        Severity.NOTE,
    ),
    "shard-without-guard": (
        lambda store, table: remove(store, store.paths.guard("t", next(iter(table.lineage().entries)))), Severity.ERROR,
    ),
    "fence-without-lock": (
        lambda store, table: (
            table.locks.acquire(request()),
            table.locks.release("g", "t"),
            store.session.ensure([f"{table.locks.path}/x"]),
        ),
        Severity.WARNING,
    ),
    "object-missing": (lambda store, table: object_of(table).unlink(), Severity.ERROR),
    "object-size": (lambda store, table: object_of(table).write_bytes(b"longer than it was"), Severity.ERROR),
    "dead-letters": (lambda store, table: dead_letter(store), Severity.WARNING),
    "marker-without-batch": (
        lambda store, table: store.session.ensure([f"{store.paths.deletion_retries}/5.1.gone.1"]), Severity.NOTE,
    ),
}  # fmt: skip


def shards(table: Table) -> list:  # type: ignore[type-arg]
    return list(table._context.registry.read(lambda _: True).shards)


def names(shard) -> list[str]:  # type: ignore[no-untyped-def]
    return [record.name for record in shard.records]


def request():  # type: ignore[no-untyped-def]
    from airflow_provider_segments.core.locking import LockRequest
    from airflow_provider_segments.core.model.interval import Interval

    return LockRequest(group="g", task="t", interval=Interval(0, 10))


def guard_of(store: SegmentStore, table: Table) -> bytes:
    node = store.session.get(store.paths.guard("t", next(iter(table.lineage().entries))))
    assert node is not None
    return node.data


def object_of(table: Table) -> Path:
    return object_path(table, table.snapshot().segments[0].key)


def dead_letter(store: SegmentStore) -> None:
    store.queue.prepare()
    store.session.ensure([f"{store.paths.dead_letters}/x.1"])


@pytest.mark.parametrize("check", HARM)
def test_each_harm_is_named(store: SegmentStore, table: Table, check: str) -> None:
    harm, severity = HARM[check]
    harm(store, table)
    seen = found(store, all_objects=True)
    assert seen.get(check) is severity, seen


def test_another_store_is_named_and_its_objects_are_not_missed(
    store: SegmentStore, table: Table, tmp_path: Path
) -> None:
    wrong = store.replace(storage=LocalStore(tmp_path / "elsewhere"))
    wrong.cluster.checked.clear()
    assert found(wrong) == {"wrong-store": Severity.ERROR}


def test_a_clock_behind_that_of_zookeeper_is_named(make_world: Callable[..., World]) -> None:
    """The world's clock stands years ago."""
    world = make_world("files")
    world.push(world.table(), ["a"])
    assert found(world.store)["clock"] is Severity.WARNING


def test_the_exit_code_says_how_bad(
    store: SegmentStore, table: Table, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEGMENTS_ZOOKEEPER", store.session.settings.hosts)
    monkeypatch.setenv("SEGMENTS_CLUSTER", store.paths.cluster)
    monkeypatch.setenv("SEGMENTS_STORAGE", store.storage.uri)
    monkeypatch.setattr(face, "_airflow", lambda: iter(()))  # whose database this is, is not this test's
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["worst"], told["tables"], told["znodes"]["shard"]) == ("note", 1, 3)
    store.session.ensure([f"{store.paths.root}/NOTES"])
    assert main(["doctor"]) == face.EXIT_WARNINGS == 10
    assert "warning: " in capsys.readouterr().out
    alter(store, store.paths.lineage("t"), b"[" * 100_000)
    assert main(["doctor", "--all"]) == face.EXIT_ERRORS == 11
    assert f"error: {store.paths.lineage('t')}" in capsys.readouterr().out
    monkeypatch.setenv("SEGMENTS_CLUSTER", "mistyped")
    assert main(["doctor"]) == 1


def test_a_report_is_kept_when_that_is_asked_for(
    store: SegmentStore, table: Table, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only then; the next one replaces it. What cannot be read is named, and never written over."""
    monkeypatch.setenv("SEGMENTS_ZOOKEEPER", store.session.settings.hosts)
    monkeypatch.setenv("SEGMENTS_CLUSTER", store.paths.cluster)
    monkeypatch.setenv("SEGMENTS_STORAGE", store.storage.uri)
    monkeypatch.setattr(face, "_airflow", lambda: iter(()))
    assert main(["doctor"]) == 0
    assert read_report(store.cluster) is None
    assert main(["doctor", "--keep"]) == 0
    first = read_report(store.cluster)
    assert first is not None
    assert (first.tables, first.counts["error"], first.counts["warning"]) == (1, 0, 0)
    alter(store, store.paths.registry("t"), b"\xff")
    assert main(["doctor", "--keep"]) == face.EXIT_ERRORS
    second = read_report(store.cluster)
    assert second is not None and second.at_ms >= first.at_ms
    assert second.counts["error"] > 0
    assert (second.findings[0].severity, second.findings[0].subject) == ("error", store.paths.registry("t"))
    alter(store, store.paths.doctor, b"\xff")
    assert main(["doctor", "--keep"]) == 1
    assert store.paths.doctor in capsys.readouterr().err
    node = store.session.get(store.paths.doctor)
    assert node is not None and node.data == b"\xff"


def test_a_long_report_keeps_its_worst_findings_and_counts_all(store: SegmentStore, table: Table) -> None:
    report = DoctorReport(store.paths.cluster)
    report.extend([Finding(Severity.NOTE, "x", "y", "z" * 5_000) for _ in range(MOST_FINDINGS)])
    report.extend([Finding(Severity.ERROR, "x", "y", "z")])
    kept = keep_report(store.cluster, report)
    assert kept == read_report(store.cluster)
    assert (len(kept.findings), kept.findings[0].severity) == (MOST_FINDINGS, "error")
    assert kept.counts == {"error": 1, "warning": 0, "note": MOST_FINDINGS}
    assert len(kept.findings[1].detail) <= 1_000


def test_java_and_the_pair_of_spark_packages_are_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert [one.check for one in (*face._java(), *face._spark())] == [], "the tests run on a machine that has both"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert [one.check for one in face._java()] == ["java"]
    monkeypatch.setattr(face, "_version", {"pyspark": "4.2.0", "pyspark-client": "4.1.0"}.get)
    assert [(one.check, one.severity) for one in face._spark()] == [("spark-packages", Severity.ERROR)]


def test_the_worst_finding_is_that_of_the_report() -> None:
    report = DoctorReport("c")
    assert report.worst is Severity.NOTE
    report.extend([Finding(severity, "x", "y", "z") for severity in (Severity.WARNING, Severity.ERROR, Severity.NOTE)])
    assert report.worst is Severity.ERROR
    assert [one["severity"] for one in report.as_dict()["findings"]] == ["error", "warning", "note"]  # type: ignore[attr-defined]
