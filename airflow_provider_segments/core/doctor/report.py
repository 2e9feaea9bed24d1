"""What the doctor has found."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


class Severity(enum.IntEnum):
    """How bad a finding is. NOTE: worth knowing. WARNING: somebody should look. ERROR: something is damaged, lost or
    contradicts itself."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found: ``subject`` is a znode, an object, a table or a program, ``check`` the stable name of
    what was looked for."""

    severity: Severity
    check: str
    subject: str
    detail: str

    def as_dict(self) -> dict[str, str]:
        """Plain data."""
        return {
            "severity": self.severity.name.lower(),
            "check": self.check,
            "subject": self.subject,
            "detail": self.detail,
        }


@dataclass(slots=True)
class DoctorReport:
    """What one examination has looked at and found."""

    cluster: str
    znodes: Counter[str] = field(default_factory=Counter)
    tables: int = 0
    objects: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def worst(self) -> Severity:
        """The severity of the worst finding; NOTE without any."""
        return max((finding.severity for finding in self.findings), default=Severity.NOTE)

    def add(self, severity: Severity, check: str, subject: str, detail: object) -> None:
        """Note a finding."""
        self.findings.append(Finding(severity, check, subject, str(detail)))

    def extend(self, findings: Iterable[Finding]) -> None:
        """Note what was found elsewhere."""
        self.findings.extend(findings)

    def as_dict(self) -> dict[str, object]:
        """Plain data, for JSON, the worst findings first."""
        ordered = sorted(self.findings, key=lambda finding: -finding.severity)
        return {
            "cluster": self.cluster,
            "worst": self.worst.name.lower(),
            "tables": self.tables,
            "znodes": dict(sorted(self.znodes.items())),
            "objects": self.objects,
            "findings": [finding.as_dict() for finding in ordered],
        }
