"""Upsert tables: a run of ingestion as a Spark job, and compaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.core.model.period import parse_period
from airflow_provider_segments.core.model.variables import INPUT_OPTIONS_VARIABLE, INPUT_VARIABLE
from airflow_provider_segments.operators.base import AnnouncingOperator
from airflow_provider_segments.operators.job import SegmentsJobOperator, as_options, given_options, secret_values
from airflow_provider_segments.operators.metrics import gauge_upsert

if TYPE_CHECKING:
    from airflow.sdk import Context


class UpsertSegmentsOperator(SegmentsJobOperator):
    """Ingest all events that are there now into an upsert table, and resolve the pushes that wait, with Spark.

    What a run that was killed had published stays, and the next one goes on after it: every event counts once. Another
    ingestor of the table is waited for::

        UpsertSegmentsOperator(
            task_id="ingest",
            table="flight_status",
            input="s3a://events/flight_status",
            input_format="json",
            schema="flight_id STRING, status STRING, changed_at TIMESTAMP, `$partition` INT, `$offset` BIGINT",
            checkpoint="/var/lib/segments/flight_status",
        )

    :param input: The folder that files of events arrive in, or topics of Kafka, joined by commas. (templated)
    :param schema: Schema of the events as SQL would have it. (templated)
    :param checkpoint: Spark's folder for the stream: the next run must find it. (templated)
    :param input_format: A file source of Spark, or ``kafka``: messages that are JSON objects. (templated)
    :param input_options: Options of the source, such as ``kafka.bootstrap.servers``, as an object or as JSON text. They
        reach the job through its environment. (templated)
    :param ingestor: Tells ingestors of one table apart. (templated)
    :param cache: Local folder for the key stores; by default in the user's cache folder. (templated)
    :param max_files: Most files of one micro-batch. (templated)
    :param reject_folder: Where events go that cannot be used, if the table's config rejects them. (templated)
    :param wait: How long to wait for another ingestor, such as ``10m``. (templated)
    """

    template_fields: Sequence[str] = (
        *SegmentsJobOperator.template_fields,
        "input",
        "schema",
        "checkpoint",
        "input_format",
        "input_options",
        "ingestor",
        "cache",
        "max_files",
        "reject_folder",
        "wait",
    )
    app = "upsert_segments"

    def __init__(
        self,
        *,
        input: str,  # noqa: A002 - the word a DAG author looks for
        schema: str,
        checkpoint: str,
        input_format: str = "parquet",
        input_options: Mapping[str, str] | str | None = None,
        ingestor: str = "ingest",
        cache: str | None = None,
        max_files: int | str | None = None,
        reject_folder: str | None = None,
        wait: str = "10m",
        name: str = "segments-upsert",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.input = input
        self.schema = schema
        self.checkpoint = checkpoint
        self.input_format = input_format
        self.input_options = input_options
        self.ingestor = ingestor
        self.cache = cache
        self.max_files = max_files
        self.reject_folder = reject_folder
        self.wait = wait

    def execute(self, context: Context) -> Any:
        """Submit the job, wait for its end, and say how the table stands then."""
        done = super().execute(context)
        with self.segments_hook.get_conn() as store:
            gauge_upsert(store.table(self.table))
        return done

    def job_arguments(self, context: Context) -> list[str]:  # noqa: ARG002 - others need it
        """The stream, and who ingests."""
        arguments = {
            "--format": self.input_format,
            "--schema": self.schema,
            "--checkpoint": self.checkpoint,
            "--name": self.ingestor,
            "--cache": self.cache or None,
            "--max-files": str(self.max_files) if self.max_files else None,
            "--reject-folder": self.reject_folder or None,
            "--wait-seconds": f"{parse_period(self.wait) / 1000:g}",
        }
        return as_options(arguments)

    def job_variables(self) -> dict[str, str]:
        """The input and its options: an address or an option may hold a password."""
        options = json.dumps(given_options(self.input_options))
        return {**super().job_variables(), INPUT_VARIABLE: self.input, INPUT_OPTIONS_VARIABLE: options}

    def secrets(self) -> list[str]:
        """Values among the arguments that must not be shown."""
        return [*super().secrets(), *secret_values(given_options(self.input_options))]


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
            self.announce(context, entry_id=done.entry_id)
        return report
