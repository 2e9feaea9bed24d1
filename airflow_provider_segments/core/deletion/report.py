"""Counting what the second phase does, by ledger type: PIP-186's metrics.

Every delivery of a message is counted once as received and once as what became of it, so
``acknowledged = received - retried - open`` holds at every moment; a dead letter is acknowledged too, once it stands in
the dead letters. Messages that end are in exactly one of deleted, already_gone, mismatch, stale, malformed and dead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from airflow_provider_segments.core.model.ledger import LedgerType

ENDINGS = ("deleted", "already_gone", "mismatch", "stale", "malformed", "dead")
"""How a message can end."""
RETRIES = ("waiting", "failed")
"""Why a message is delivered again: somebody may need its ledger, or an attempt failed."""


@dataclass(slots=True)
class DeletionReport:
    """Totals of one drain. ``counts`` has (what, ledger type); ``received`` counts deliveries of messages, ``open``
    those whose settlement did not count because the claim was lost; ``bytes`` is what was freed; ``swept`` counts
    prefixes looked under and ``found`` the ledgers found there; ``left_alone`` counts batches and requests of a newer
    format, or too large for any transaction; ``errors`` has the last error of some kinds."""

    counts: Counter[tuple[str, LedgerType]] = field(default_factory=Counter)
    received: Counter[LedgerType] = field(default_factory=Counter)
    open: int = 0
    bytes: int = 0
    swept: int = 0
    found: int = 0
    foreign: int = 0
    left_alone: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    next_due_ms: int | None = None
    in_flight: int = 0
    stopped: str = ""

    def add(self, what: str, kind: LedgerType, number: int = 1) -> None:
        """Count ``number`` messages."""
        if number:
            self.counts[what, kind] += number

    def total(self, *what: str) -> int:
        """Messages counted as one of ``what``, of both ledger types."""
        return sum(number for (name, _), number in self.counts.items() if name in what)

    @property
    def acknowledged(self) -> int:
        """Deliveries that were the message's last."""
        return self.total(*ENDINGS)

    @property
    def retried(self) -> int:
        """Deliveries that were put off."""
        return self.total(*RETRIES)

    @property
    def deliveries(self) -> int:
        """Messages received, again and again."""
        return sum(self.received.values())

    def merge(self, other: DeletionReport) -> None:
        """Add what another batch or drain has counted."""
        self.counts.update(other.counts)
        self.received.update(other.received)
        self.open += other.open
        self.bytes += other.bytes
        self.swept += other.swept
        self.found += other.found
        self.foreign += other.foreign
        self.left_alone += other.left_alone
        self.note(other.errors)

    def note(self, errors: Mapping[str, int]) -> None:
        """Remember why messages were put off; at most 20 reasons."""
        for reason, number in errors.items():
            if reason in self.errors or len(self.errors) < 20:
                self.errors[reason] = self.errors.get(reason, 0) + number

    def as_dict(self) -> dict[str, object]:
        """Plain numbers, for XCom, JSON and logs."""
        by_type = {
            kind.value: {what: number for (what, one), number in sorted(self.counts.items(), key=str) if one is kind}
            | {"received": self.received[kind]}
            for kind in LedgerType
            if self.received[kind]
        }
        return {
            "received": self.deliveries,
            "acknowledged": self.acknowledged,
            "retried": self.retried,
            "open": self.open,
            **{what: self.total(what) for what in (*ENDINGS, *RETRIES)},
            "bytes": self.bytes,
            "swept": self.swept,
            "found": self.found,
            "foreign": self.foreign,
            "left_alone": self.left_alone,
            "in_flight": self.in_flight,
            "next_due_ms": self.next_due_ms,
            "stopped": self.stopped,
            "by_type": by_type,
            "errors": dict(self.errors),
        }


def merged(reports: Iterable[DeletionReport]) -> DeletionReport:
    """The sum of ``reports``."""
    whole = DeletionReport()
    for report in reports:
        whole.merge(report)
    return whole
