"""The doctor's last report, for whoever looks at the cluster later. One znode, which the next report replaces."""

from __future__ import annotations

from collections import Counter

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.doctor.report import DoctorReport, Severity
from airflow_provider_segments.core.model.records import FORMAT, Record, RecordDecoder, encode
from airflow_provider_segments.core.zookeeper import Create, Op, SetData
from airflow_provider_segments.text import cut

MOST_FINDINGS = 200
"""Findings that are kept, the worst first; ``counts`` has all of them."""

_LONGEST = 1_000  # characters of a subject or a detail


class KeptFinding(Record, frozen=True):
    """A finding as it is stored: see :class:`.report.Finding`."""

    severity: str
    check: str
    subject: str
    detail: str


class KeptReport(Record, frozen=True, tag_field=FORMAT, tag=1):
    """A report as it is stored: when it was made (epoch milliseconds) and by whom, how much was looked at, how many
    findings there are by severity, and the worst of them."""

    at_ms: int
    actor: str
    tables: int
    znodes: int
    objects: int
    counts: dict[str, int]
    findings: tuple[KeptFinding, ...]


_DECODER = RecordDecoder(KeptReport, "report of the doctor")


def decode(payload: bytes, where: str) -> KeptReport:
    """The report in ``payload``. Raises :class:`CorruptRecordError`."""
    return _DECODER.decode(payload, where)


def read_report(cluster: Cluster) -> KeptReport | None:
    """The last report that was kept, if any. Raises :class:`CorruptRecordError`."""
    node = cluster.session.get(cluster.paths.doctor)
    return None if node is None else decode(node.data, cluster.paths.doctor)


def keep_report(cluster: Cluster, report: DoctorReport) -> KeptReport:
    """Keep ``report`` as the last one. Raises :class:`CorruptRecordError` when the last one cannot be read, and what
    ``Retry.run`` raises."""
    path, kept = cluster.paths.doctor, _kept(cluster, report)

    def attempt() -> None:
        node = cluster.session.get(path)
        if node is not None:
            decode(node.data, path)  # what is damaged, or of a newer format, is never written over
        op: Op = Create(path, encode(kept)) if node is None else SetData(path, encode(kept), node.version)
        cluster.session.commit([op])

    cluster.retried("report of the doctor", attempt)
    return kept


def _kept(cluster: Cluster, report: DoctorReport) -> KeptReport:
    counts = Counter(finding.severity for finding in report.findings)
    worst = sorted(report.findings, key=lambda finding: -finding.severity)[:MOST_FINDINGS]
    return KeptReport(
        at_ms=cluster.clock.now_ms(),
        actor=cluster.actor,
        tables=report.tables,
        znodes=report.znodes.total(),
        objects=report.objects,
        counts={severity.name.lower(): counts[severity] for severity in reversed(Severity)},
        findings=tuple(
            KeptFinding(
                severity=finding.severity.name.lower(),
                check=finding.check,
                subject=cut(finding.subject, _LONGEST),
                detail=cut(finding.detail, _LONGEST),
            )
            for finding in worst
        ),
    )
