"""The build of a push: as a Spark job, or in the task itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from airflow_provider_segments.core.model.names import DEFAULT_STAGER
from airflow_provider_segments.exceptions import (
    InvalidConfigError,
    JobFailedError,
    NeedsSparkError,
    SourceDataError,
    TableNotFoundError,
)
from airflow_provider_segments.operators.base import truth
from airflow_provider_segments.operators.job import InputJobOperator, as_options, given_options
from airflow_provider_segments.operators.locks import given_locks, renewed

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.arrow.inputs import Source


_ENGINES = ("auto", "local", "spark")
_NO_RETRY = (SourceDataError, InvalidConfigError, TableNotFoundError)
_NANOSECONDS = "spark.sql.legacy.parquet.nanosAsLong"


class BuildSegmentsOperator(InputJobOperator):
    """Build segments from an input, and stage them in an entry. Readers see none of them before it ends.

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
    :param engine: ``local`` builds in the task's own process, in seconds; ``spark`` submits a Spark application, or,
        where ``conn_id`` is a ``spark_connect`` connection, has a Spark Connect server build, which runs already.
        ``auto`` is ``local`` for CSV and Parquet files of at most ``local_bytes`` together, if they are sure to become
        the segments that Spark would make of them, and ``spark`` for everything else; also where ``schema`` is given,
        or ``conf`` has ``spark.sql`` settings. Files that only Spark can see need ``spark``: the others refuse an
        input that is not there, as seen from the worker. (templated)
    :param local_bytes: The largest input, in bytes as stored, that ``auto`` builds without Spark. The task then takes
        some ten times as much memory.
    :param allow_empty: Whether an input without rows is no error. (templated)
    :param locks: Locks of the push: their leases are renewed while the job runs, and the job is ended as soon as one of
        them is lost, since nothing that it built could be staged any more. (templated)
    :param stager: Name of this build, where several build into one entry.
    :param conn_id: A ``spark`` connection, to submit to, or a ``spark_connect`` one. The workers of a Spark Connect
        server need this package; of ``conf`` it is given what begins with ``spark.sql.``, and other settings are
        refused, since they are the server's.
    """

    template_fields: Sequence[str] = (
        *InputJobOperator.template_fields,
        "entry_id",
        "engine",
        "allow_empty",
        "locks",
    )
    app = "build_segments"

    def __init__(
        self,
        *,
        entry_id: str,
        engine: str = "auto",
        local_bytes: int = 64 * 1024 * 1024,
        allow_empty: bool | str = False,
        locks: Any = (),
        stager: str = DEFAULT_STAGER,
        name: str = "segments-build",
        conn_id: str = "spark_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, conn_id=conn_id, **kwargs)
        self.spark_conn_id = conn_id
        self.entry_id = entry_id
        self.engine = engine
        self.local_bytes = local_bytes
        self.allow_empty = allow_empty
        self.locks = locks
        self.stager = stager
        self._session: Any = None

    @cached_property
    def _cancelled(self) -> threading.Event:
        """Set when a build in this process is to end. Made when it is asked for, since Airflow copies operators."""
        return threading.Event()

    def execute(self, context: Context) -> Any:
        """Look at the input, build it here or submit the job, and wait for its end."""
        if self.engine not in _ENGINES:
            raise AirflowFailException(f"engine must be one of {', '.join(_ENGINES)}, not {self.engine[:40]!r}")
        self._cancelled.clear()
        self._check_source()
        locks = given_locks(self.locks)
        if not locks:
            return self._build(context)
        with self.lock_box() as box, renewed(box, locks, self._stop_job):
            return self._build(context)

    def on_kill(self) -> None:
        """End the job; a build in this process ends by itself before it would stage.

        A Spark Connect server that is about to submit a job does so even then; its task is over, and nothing is staged.
        """
        self._cancelled.set()
        if self._session is not None:
            self._session.interruptAll()
        if self._hook is not None:
            super().on_kill()

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

    def _build(self, context: Context) -> Any:
        if self.engine == "spark" or (self.engine == "auto" and self._is_for_spark()):
            return self._build_with_spark(context)
        try:
            return self._build_here()
        except NeedsSparkError as error:
            if self.engine == "local":
                raise AirflowFailException(f"Not to be built without Spark: {error}. Use another engine") from error
            self.log.info("Spark builds it: %s", error)
        except _NO_RETRY as error:
            raise AirflowFailException(f"{type(error).__name__}: {error}") from error
        return self._build_with_spark(context)

    def _build_with_spark(self, context: Context) -> Any:
        """Through Spark Connect, or by a job of its own, as the connection says."""
        if not _is_spark_connect(self.spark_conn_id):
            return super().execute(context)
        from airflow_provider_segments.spark.connect import connected

        with connected(SparkConnectHook(self.spark_conn_id).get_connection_url()) as spark:
            self._session = spark
            try:
                return self._build_at_server(spark)
            except _NO_RETRY as error:
                raise AirflowFailException(f"{type(error).__name__}: {error}") from error
            finally:
                self._session = None

    def _build_at_server(self, spark: Any) -> None:
        from airflow_provider_segments.spark.build import build_segments, read_source

        for name, value in (self.conf or {}).items():
            if not name.startswith("spark.sql."):
                raise InvalidConfigError(f"{name} cannot be set: the Spark Connect server runs already")
            spark.conf.set(name, str(value))
        source = read_source(
            spark, self.input, self.input_format, given_options(self.input_options), self.schema or None
        )
        with self.segments_hook.get_conn() as store:
            build_segments(
                spark,
                store.table(self.table),
                self.entry_id,
                source,
                stager=self.stager,
                allow_empty=truth(self.allow_empty, "allow_empty"),
                reject_folder=self.reject_folder or None,
            )

    def _is_for_spark(self) -> bool:
        """Return True if the DAG says how Spark is to read the input."""
        return bool(self.schema) or any(str(name).startswith("spark.sql.") for name in self.conf or {})

    def _build_here(self) -> None:
        from airflow_provider_segments.local.build import build_segments

        with self.segments_hook.get_conn() as store:
            build_segments(
                store.table(self.table),
                self.entry_id,
                self._source(),
                stager=self.stager,
                allow_empty=truth(self.allow_empty, "allow_empty"),
                reject_folder=self.reject_folder or None,
                most_bytes=self.local_bytes if self.engine == "auto" else None,
                check_cancelled=self._check_cancelled,
            )

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise JobFailedError("the build was ended before it staged anything")

    def _source(self) -> Source:
        from airflow_provider_segments.arrow.inputs import Source

        settings = self.segments_hook.settings
        return Source(
            path=self.input,
            format=self.input_format,
            options=given_options(self.input_options),
            storage_options=settings.storage_options if settings.storage_uri.startswith("s3") else None,
            nanoseconds_as_numbers=str((self.conf or {}).get(_NANOSECONDS, "")).lower() == "true",
        )

    def _check_source(self) -> None:
        """Fail now for what the job would find minutes later. Raises :class:`AirflowFailException`: no retry makes the
        input better."""
        from airflow_provider_segments.validation.source import check_source

        if self.engine != "spark":
            self._check_is_there()
        if self.schema or self.input_format not in ("parquet", "csv"):
            return
        source = self._source()
        with self.segments_hook.get_conn() as store:
            config = store.table(self.table).config()
        try:
            seen = check_source(config, source)
        except SourceDataError as error:
            raise AirflowFailException(f"Refused before Spark was started: {error}") from error
        if seen is not None:
            self.log.info("The columns fit, as %s shows", seen)

    def _check_is_there(self) -> None:
        from airflow_provider_segments.arrow.inputs import FILE_FORMATS, absent_paths

        if self.input_format in FILE_FORMATS and (absent := absent_paths(self._source())):
            raise AirflowFailException(
                f"Refused before Spark was started: table {self.table!r}, nothing at {', '.join(absent):.300}, "
                "as seen from this worker. Correct the input; if only Spark can see it, set engine to 'spark'."
            )

    def _stop_job(self, why: Exception) -> None:
        """Called by the thread that renews. A job that is not running yet finds out when it stages."""
        self.log.error("The job is ended: %s", why)
        self.on_kill()


def _is_spark_connect(conn_id: str) -> bool:
    """Whether a connection is one to a Spark Connect server. One that is not there is none: a job is submitted then as
    Spark's own configuration says."""
    try:
        return str(BaseHook.get_connection(conn_id).conn_type) == SparkConnectHook.conn_type
    except AirflowNotFoundException:
        return False
