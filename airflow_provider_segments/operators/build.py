"""The build of a push, as a Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_segments.operators.base import truth
from airflow_provider_segments.operators.job import InputJobOperator, as_options, given_options
from airflow_provider_segments.operators.locks import given_locks, renewed
from airflow_provider_segments.text import for_message

if TYPE_CHECKING:
    from airflow.sdk import Context


_NANOSECONDS = "spark.sql.legacy.parquet.nanosAsLong"


class BuildSegmentsOperator(InputJobOperator):
    """Build segments from an input with Spark, and stage them in an entry. Readers see none of them before it ends.

    A retry stages anew, and what an earlier attempt staged no longer counts::

        BuildSegmentsOperator(
            task_id="build",
            table="flights",
            entry_id="{{ ti.xcom_pull(task_ids='start') }}",
            input="/data/flights.csv",
            input_format="csv",
            input_options={"header": "true", "inferSchema": "true"},
        )

    :param entry_id: The entry to stage in. (templated)
    :param input: Path, comma-separated paths, table name (``input_format="table"``) or query (``"sql"``). (templated)
    :param input_format: A Spark data source, ``table`` or ``sql``. (templated)
    :param schema: Schema of the input; default: Spark finds out. (templated)
    :param allow_empty: Whether an input without rows is no error. (templated)
    :param locks: Locks of the push: their leases are renewed while the job runs, and the job is ended as soon as one of
        them is lost, since nothing that it built could be staged any more. (templated)
    :param stager: Name of this build, where several build into one entry.
    """

    template_fields: Sequence[str] = (
        *InputJobOperator.template_fields,
        "entry_id",
        "allow_empty",
        "locks",
    )
    app = "build_segments"

    def __init__(
        self,
        *,
        entry_id: str,
        allow_empty: bool | str = False,
        locks: Any = (),
        stager: str = "build",
        name: str = "segments-build",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.entry_id = entry_id
        self.allow_empty = allow_empty
        self.locks = locks
        self.stager = stager

    def execute(self, context: Context) -> Any:
        """Look at the input, submit the job and wait for its end."""
        self._check_source()
        locks = given_locks(self.locks)
        if not locks:
            return super().execute(context)
        with self.lock_box() as box, renewed(box, locks, self._stop_job):
            return super().execute(context)

    def warehouse_of_its_own(self) -> bool:
        """Tables and queries may be in a warehouse of the user's."""
        return self.input_format not in ("table", "sql")

    def job_arguments(self, context: Context) -> list[str]:  # noqa: ARG002 - others need it
        """The entry and the input."""
        arguments = {
            "--entry-id": self.entry_id,
            "--stager": self.stager,
            **self.input_arguments(),
        }
        flags = ["--allow-empty"] if truth(self.allow_empty, "allow_empty") else []
        return [*as_options(arguments), *flags]

    def _check_source(self) -> None:
        """Fail now for what the job would find minutes later. Raises :class:`AirflowFailException`: no retry makes the
        input better."""
        from airflow_provider_segments.exceptions import SourceDataError
        from airflow_provider_segments.validation.source import Source, check_source

        if self.schema or self.input_format not in ("parquet", "csv"):
            return
        settings = self.segments_hook.settings
        source = Source(
            path=self.input,
            format=self.input_format,
            options=given_options(self.input_options),
            storage_options=settings.storage_options if settings.storage_uri.startswith("s3") else None,
            nanoseconds_as_numbers=str((self.conf or {}).get(_NANOSECONDS, "")).lower() == "true",
        )
        with self.segments_hook.get_conn() as store:
            config = store.table(self.table).config()
        try:
            seen = check_source(config, source)
        except SourceDataError as error:
            raise AirflowFailException(f"Refused before Spark was started: {error}") from error
        self.log.info(
            "Looked at %s: %s", for_message(self.input), "nothing that can be looked at" if seen is None else seen
        )

    def _stop_job(self, why: Exception) -> None:
        """Called by the thread that renews. A job that is not running yet finds out when it stages."""
        if self._hook is not None:
            self.log.error("The job is ended: %s", why)
            self.on_kill()
