"""Retention of one table: the clean-up of its lineage, and the expiry of what its time retention no longer keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.retention import cleanup, expiry
from airflow_provider_segments.core.retention.cleanup import CleanedUp
from airflow_provider_segments.core.retention.expiry import Expired, Skipped
from airflow_provider_segments.core.retention.rules import Freed


@dataclass(frozen=True, slots=True)
class Marked:
    """Segments that one entry hid, marked for deletion."""

    freed: Freed
    reason: str


@dataclass(slots=True)
class RetentionReport:
    """What a pass did, or, of a dry run, would do now. ``aborted``, ``dropped`` and ``kept`` map entries to reasons.

    Bytes are those of all copies of the segments, in primary and in tiered storage.
    """

    table: str
    dry_run: bool = False
    aborted: dict[str, str] = field(default_factory=dict)
    marked: dict[str, Marked] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    expired: list[Expired] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def add(self, done: CleanedUp) -> None:
        """Take over what the lineage clean-up did, or would do."""
        self.aborted = {entry_id: done.reasons[entry_id] for entry_id in done.aborted}
        self.dropped = {entry_id: done.reasons[entry_id] for entry_id in done.dropped}
        self.marked = {
            entry_id: Marked(Freed(segments, done.bytes[entry_id]), done.reasons[entry_id])
            for entry_id, segments in done.marked.items()
        }
        touched = {*self.aborted, *self.dropped, *self.marked}
        self.kept = {entry_id: reason for entry_id, reason in done.reasons.items() if entry_id not in touched}

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON and XCom."""
        marked = sum((one.freed for one in self.marked.values()), Freed())
        expired = sum((one.freed for one in self.expired), Freed())
        return {
            "table": self.table,
            "dry_run": self.dry_run,
            "aborted": dict(self.aborted),
            "expired": [{"entry_id": one.entry_id, **_freed(one.freed), "reason": one.reason} for one in self.expired],
            "marked": {key: {**_freed(one.freed), "reason": one.reason} for key, one in self.marked.items()},
            "dropped": dict(self.dropped),
            "kept": dict(self.kept),
            "skipped": [{**_freed(one.freed), "reason": one.reason, "entry_id": one.entry_id} for one in self.skipped],
            "totals": {
                "aborted": len(self.aborted),
                "expired_segments": expired.segments,
                "expired_bytes": expired.bytes,
                "marked_segments": marked.segments,
                "marked_bytes": marked.bytes,
                "dropped": len(self.dropped),
            },
        }


def retain(context: TableContext, *, dry_run: bool = False) -> RetentionReport:
    """One pass: the clean-up of the lineage in its two cycles, then the time retention. With ``dry_run`` what it would
    do now, by the same decisions and without writing anything.

    A pass that was cut off is run again. Raises :class:`TableNotFoundError`, :class:`CorruptRecordError`,
    :class:`ContentionError`, and what ``Retry.run`` raises.
    """
    report = RetentionReport(context.table, dry_run)
    if dry_run:
        planned = cleanup.plan(context)
        report.add(planned.report())
        report.expired, report.skipped = expiry.plan(context, planned.outcome)
    else:
        done = cleanup.run(context)
        report.add(done)
        if done.removed:
            return report
        report.expired, report.skipped = expiry.expire(context)
    return report


def _freed(freed: Freed) -> dict[str, int]:
    return {"segments": freed.segments, "bytes": freed.bytes}
