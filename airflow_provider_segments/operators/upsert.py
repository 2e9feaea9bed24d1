"""Upsert tables: a run of ingestion as a Spark job, and compaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.core.model.period import parse_period
from airflow_provider_segments.operators.base import Announcer, AnnouncingOperator
from airflow_provider_segments.operators.job import InputJobOperator, as_options
from airflow_provider_segments.operators.metrics import gauge_upsert

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.core.table import Table


_BEGAN = "segments_version_before"


class UpsertSegmentsOperator(Announcer, InputJobOperator):
    """Ingest all events that are there now into an upsert table, and resolve the pushes that wait, with Spark.

    What a run that was killed had published stays, and the next one goes on after it: every event counts once. Another
    ingestor of the table is waited for. New versions are an event of the table's asset; a run without any has none::

        UpsertSegmentsOperator(
            task_id="ingest",
            table="flight_status",
            input="s3a://events/flight_status",
            input_format="json",
            schema="flight_id STRING, status STRING, changed_at TIMESTAMP, `$partition` INT, `$offset` BIGINT",
            checkpoint="/var/lib/segments/flight_status",
        )

    :param input: The folder that files of events arrive in, or topics of Kafka, joined by commas. (templated)
    :param checkpoint: Spark's folder for the stream: the next run must find it. (templated)
    :param input_format: A file source of Spark, or ``kafka``: messages that are JSON objects. (templated)
    :param ingestor: Tells ingestors of one table apart. (templated)
    :param cache: Local folder for the key stores; by default in the user's cache folder. (templated)
    :param max_files: Most files of one micro-batch. (templated)
    :param wait: How long to wait for another ingestor, such as ``10m``. (templated)
    """

    template_fields: Sequence[str] = (
        *InputJobOperator.template_fields,
        "checkpoint",
        "ingestor",
        "cache",
        "max_files",
        "wait",
    )
    app = "upsert_segments"

    def __init__(
        self,
        *,
        schema: str,
        checkpoint: str,
        ingestor: str = "ingest",
        cache: str | None = None,
        max_files: int | str | None = None,
        wait: str = "10m",
        name: str = "segments-upsert",
        **kwargs: Any,
    ) -> None:
        super().__init__(schema=schema, name=name, **kwargs)
        self.checkpoint = checkpoint
        self.ingestor = ingestor
        self.cache = cache
        self.max_files = max_files
        self.wait = wait

    def execute(self, context: Context) -> Any:
        """Submit the job, wait for its end, and say how the table stands then."""
        before = self._version_before(context)
        done = super().execute(context)
        with self.segments_hook.get_conn() as store:
            table = store.table(self.table)
            gauge_upsert(table)
            self._announce_versions(context, table, before)
        if (kept := context.get("task_state_store")) is not None:
            kept.delete(_BEGAN)  # cleared and run again on purpose, it begins anew
        return done

    def _version_before(self, context: Context) -> int:
        """The version before the first attempt: what an attempt that failed has published was not announced."""
        from airflow_provider_segments.core.upsert.record import require_record

        kept = context.get("task_state_store")
        known = None if kept is None else kept.get(_BEGAN)
        if isinstance(known, int):
            return known
        with self.segments_hook.get_conn() as store:
            version = require_record(store.table(self.table).lineage()).clock
        if kept is not None:
            kept.set(_BEGAN, version)
        return version

    def _announce_versions(self, context: Context, table: Table, before: int) -> None:
        from airflow_provider_segments.core.upsert.record import require_record

        record, stored = require_record(table.lineage()), table.snapshot()
        if record.clock == before:
            return
        self.announce(
            context,
            table=self.table,
            change="upsert",
            entry_id=record.published[-1].entry_id if record.published else "",
            version_before=before,
            version=record.clock,
            stored_segments=len(stored),
            stored_rows=stored.rows,
            stored_bytes=stored.bytes,
        )

    def job_arguments(self, context: Context) -> list[str]:  # noqa: ARG002 - others need it
        """The stream, and who ingests."""
        arguments = {
            **self.input_arguments(),
            "--checkpoint": self.checkpoint,
            "--name": self.ingestor,
            "--cache": self.cache or None,
            "--max-files": str(self.max_files) if self.max_files else None,
            "--wait-seconds": f"{parse_period(self.wait) / 1000:g}",
        }
        return as_options(arguments)


class CompactUpsertOperator(AnnouncingOperator):
    """Merge small segments and update logs of an upsert table, and drop rows that no mark shows any more.

    It runs in the task's process, on Arrow. Ingestion and readers go on meanwhile. Returns what it did::

        CompactUpsertOperator(task_id="compact", table="flight_status", keep_versions=100)

    :param keep_versions: Give up the marks of all but so many of the newest versions first; by default the table's
        config alone says which marks can be read. (templated)
    """

    template_fields: Sequence[str] = (*AnnouncingOperator.template_fields, "keep_versions")

    def __init__(self, *, keep_versions: int | str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.keep_versions = keep_versions

    def execute(self, context: Context) -> dict[str, Any]:
        """Compact once."""
        from airflow_provider_segments.core.upsert.record import require_record
        from airflow_provider_segments.upsert.compaction import UpsertCompactor

        with self.open_table() as table:
            floor = None
            if self.keep_versions not in (None, ""):
                floor = max(require_record(table.lineage()).clock - int(str(self.keep_versions)), 0)
            done = UpsertCompactor(table).run(floor=floor)
            gauge_upsert(table)
        report = {name: getattr(done, name) for name in done.__slots__}
        self.log.info("Table %s: %s", self.table, report if done.entry_id else "there is nothing to compact")
        if done.entry_id:
            counts = {"segments": done.segments_to, "replaced": done.segments_from, "rows": done.rows_to}
            self.announce_change(context, change="compact", entry_id=done.entry_id, **counts)
        return report
