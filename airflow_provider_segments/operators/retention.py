"""What a table's age asks for: retention, offloading, and a look whether everything is where it should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_segments import text
from airflow_provider_segments.core.model.period import parse_period
from airflow_provider_segments.operators.base import Announcer, TablesOperator, truth
from airflow_provider_segments.operators.metrics import count

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.core.table import Table


class RetentionCleanupOperator(Announcer, TablesOperator):
    """Let go of what is past its time: replaced and reverted segments, aborted pushes, expired time chunks.

    One pass, as the tables' configs say. It marks for deletion; :class:`.deletion.DeletePendingLedgersOperator`
    deletes. Returns the retention report of each table. Where time chunks have expired, readers see fewer rows, and an
    event of the table's asset says so::

        RetentionCleanupOperator(task_id="retention")

    :param table: Name of the table; ``None`` for all of them. (templated)
    :param dry_run: Change nothing, say what would go and why. (templated)
    """

    template_fields: Sequence[str] = (*TablesOperator.template_fields, "preview")

    def __init__(self, *, dry_run: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.preview = dry_run  # BaseOperator has a method called dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        """One pass of each table, and an event of each in which something has expired."""
        reports = super().execute(context)
        for name, report in reports.items():
            if report["expired"] and not report["dry_run"]:
                totals = report["totals"]
                self.announce(
                    context,
                    table=name,
                    change="retention",
                    entry_ids=[one["entry_id"] for one in report["expired"]],
                    expired_segments=totals["expired_segments"],
                    expired_bytes=totals["expired_bytes"],
                )
        return reports

    def work(self, table: Table) -> dict[str, Any]:
        """One pass of one table."""
        dry_run = truth(self.preview, "dry_run")
        report: dict[str, Any] = table.retain(dry_run=dry_run).as_dict()
        for line in _lines(report):
            self.log.info("Table %s: %s", table.name, line)
        self.log.info(
            "Table %s%s: %s", table.name, ", dry run, nothing was changed" if dry_run else "", report["totals"]
        )
        return report


class OffloadSegmentsOperator(TablesOperator):
    """Copy old segments to tiered storage; after a lag, mark their primary copies for deletion.

    The connection says where tiered storage is. Every copy is verified by its checksum before it counts::

        OffloadSegmentsOperator(task_id="offload", older_than="30d", primary_lag="1d")

    :param table: Name of the table; ``None`` for all of them. (templated)
    :param older_than: Age a segment must have, as in ``30d`` or ``12h``. (templated)
    :param primary_lag: How long both copies stay after that. (templated)
    :param max_segments: Most segments to copy in one run of a table. (templated)
    """

    template_fields: Sequence[str] = (*TablesOperator.template_fields, "older_than", "primary_lag", "max_segments")

    def __init__(
        self, *, older_than: str, primary_lag: str = "1d", max_segments: int | str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.older_than = older_than
        self.primary_lag = primary_lag
        self.max_segments = max_segments

    def work(self, table: Table) -> dict[str, Any]:
        """One pass of one table."""
        report: dict[str, Any] = table.offload(
            older_than_ms=parse_period(self.older_than),
            primary_lag_ms=parse_period(self.primary_lag),
            max_segments=None if self.max_segments in (None, "") else int(self.max_segments or 0),
            progress=self.progress(table.name),
        ).as_dict()
        self.log.info("Table %s: %s", table.name, report)
        return report


class ReconcileOperator(TablesOperator):
    """Compare storage with registry, lineage, queue and dead letters. Deletes nothing.

    Returns the report of each table, which is also in the XCom ``reports`` when the task fails::

        ReconcileOperator(task_id="reconcile", grace="1d")

    :param table: Name of the table; ``None`` for all of them. (templated)
    :param grace: Objects younger than this are left alone: a push may be writing them. (templated)
    :param enqueue: Queue what nothing refers to for deletion, with all its checks. (templated)
    :param fail_on_missing: Fail when objects of registered segments are not in storage: readers will.
    """

    template_fields: Sequence[str] = (*TablesOperator.template_fields, "grace", "enqueue")

    def __init__(
        self, *, grace: str = "1d", enqueue: bool | str = False, fail_on_missing: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.grace = grace
        self.enqueue = enqueue
        self.fail_on_missing = fail_on_missing

    def execute(self, context: Context) -> dict[str, Any]:
        """Look at each table."""
        reports = super().execute(context)
        missing = {name: report["missing"]["count"] for name, report in reports.items() if report["missing"]["count"]}
        if missing and self.fail_on_missing:
            context["ti"].xcom_push(key="reports", value=reports)
            raise AirflowFailException(
                f"registered segments have no object in storage: {missing}; the reports name some"
            )
        return reports

    def work(self, table: Table) -> dict[str, Any]:
        """One look at one table."""
        report: dict[str, Any] = table.reconcile(
            grace_ms=parse_period(self.grace),
            enqueue=truth(self.enqueue, "enqueue"),
            progress=self.progress(table.name),
        ).as_dict()
        count({"orphans_enqueued": report["enqueued"]})
        self.log.info("Table %s: %s", table.name, report)
        return report


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    """What a retention pass did with each entry, and why."""
    for what in ("aborted", "dropped", "kept"):
        for entry_id, why in report[what].items():
            yield f"{what} entry {entry_id}: {why}"
    for entry_id, one in report["marked"].items():
        segments = text.count(one["segments"], "segment")
        yield f"marked {segments} that entry {entry_id} hid, {one['bytes']} bytes: {one['reason']}"
    for what in ("expired", "skipped"):
        for one in report[what]:
            segments = text.count(one["segments"], "segment")
            yield f"{what} {segments}, {one['bytes']} bytes (entry {one['entry_id']}): {one['reason']}"
