"""``segments doctor``: the cluster, and the machine that works on it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_segments.cli.run import Call
from airflow_provider_segments.text import count

if TYPE_CHECKING:
    from airflow_provider_segments.core.doctor.report import DoctorReport, Finding

EXIT_WARNINGS, EXIT_ERRORS = 10, 11
_JAVA = 17
_DAGS = ("segments_retention", "segments_ledger_deletion")
_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}


def doctor(call: Call) -> None:
    """``segments doctor``"""
    from airflow_provider_segments.core.doctor.examine import examine
    from airflow_provider_segments.core.doctor.kept import keep_report
    from airflow_provider_segments.core.doctor.report import Severity

    report = examine(call.store.cluster, all_objects=call.args.all)
    report.extend(_machine())
    if call.args.keep:
        keep_report(call.store.cluster, report)
    call.exit_code = {Severity.WARNING: EXIT_WARNINGS, Severity.ERROR: EXIT_ERRORS}.get(report.worst, 0)
    if call.out.as_json:
        call.out.document(report.as_dict())
    else:
        _print(call, report)


def _print(call: Call, report: DoctorReport) -> None:
    for finding in sorted(report.findings, key=lambda finding: -finding.severity):
        word = finding.severity.name.lower()
        call.out.line(f"{word}: {finding.subject}: {finding.detail} [{finding.check}]")
    if report.findings:
        call.out.line()
    numbers = {name: sum(one.severity.name.lower() == name for one in report.findings) for name in _COLOURS}
    call.out.line(
        f"cluster {report.cluster}: {count(report.tables, 'table')}, {count(report.znodes.total(), 'znode')} read, "
        f"{count(report.objects, 'object')} looked at; "
        + ", ".join(count(number, name) for name, number in numbers.items())
    )


def _machine() -> Iterator[Finding]:
    """Programs that the jobs need, where they are installed at all."""
    yield from _java()
    yield from _spark()
    yield from _airflow()


def _java() -> Iterator[Finding]:
    from airflow_provider_segments.core.doctor.report import Finding, Severity

    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        yield Finding(Severity.WARNING, "java", "java", f"not found; Spark needs Java {_JAVA} or later")
        return
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except OSError as error:
        yield Finding(Severity.WARNING, "java", java, f"cannot be run: {error.strerror}")
        return
    version = re.search(r'version "(\d+)', told, re.ASCII)
    if version is None or int(version[1]) < _JAVA:
        shown = version[1] if version else told.strip()[:80]
        yield Finding(Severity.WARNING, "java", java, f"is version {shown}; Spark needs {_JAVA} or later")


def _spark() -> Iterator[Finding]:
    """Both packages install into one folder: of two versions, one half of each is there."""
    from airflow_provider_segments.core.doctor.report import Finding, Severity

    found = {name: _version(name) for name in ("pyspark", "pyspark-client")}
    if len(set(found.values())) > 1 and found["pyspark-client"] is not None:
        shown = ", ".join(f"{name} {version or 'is not installed'}" for name, version in found.items())
        yield Finding(Severity.ERROR, "spark-packages", "pyspark", f"{shown}: install both in the same version")


def _airflow() -> Iterator[Finding]:
    """The DAGs that let go of what is past its time, and delete it."""
    from airflow_provider_segments.core.doctor.report import Finding, Severity

    if importlib.util.find_spec("airflow") is None:
        return
    try:
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session

        with create_session() as session:
            paused = {dag_id: DagModel.get_dagmodel(dag_id, session=session) for dag_id in _DAGS}
    except Exception as error:  # Airflow raises what its database raises, and there may be none
        yield Finding(Severity.NOTE, "airflow", "airflow", f"its database cannot be read here: {type(error).__name__}")
        return
    for dag_id, dag in paused.items():
        if dag is None:
            yield Finding(Severity.WARNING, "dag-missing", dag_id, "the DAG is not there: add the example, or your own")
        elif dag.is_paused:
            yield Finding(Severity.WARNING, "dag-paused", dag_id, "the DAG is paused: what it does is not done")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
