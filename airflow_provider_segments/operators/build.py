"""The build of a push, as a Spark job."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.operators.base import truth

if TYPE_CHECKING:
    from airflow.sdk import Context


class BuildSegmentsOperator(SparkSubmitOperator):
    """Build segments from an input with Spark, and stage them in an entry. Readers see none of them before it ends.

    A ``SparkSubmitOperator`` that knows its application, the table and the store; whatever else that takes, such as
    ``conf`` or ``driver_memory``, can be given too. The job finds the Python and the ``spark-submit`` of the
    environment this package is installed in. Credentials of the ``segments`` connection reach it through its
    environment only. A retry stages anew, and what an earlier attempt staged no longer counts::

        BuildSegmentsOperator(
            task_id="build",
            table="flights",
            entry_id="{{ ti.xcom_pull(task_ids='start') }}",
            input="/data/flights.csv",
            input_format="csv",
            input_options={"header": "true", "inferSchema": "true"},
        )

    :param table: Name of the table. (templated)
    :param entry_id: The entry to stage in. (templated)
    :param input: Path, comma-separated paths, table name (``input_format="table"``) or query (``"sql"``). (templated)
    :param input_format: A Spark data source, ``table`` or ``sql``. (templated)
    :param input_options: Options of the data source, as an object or as JSON text. (templated)
    :param schema: Schema of the input as SQL would have it, ``a INT, b STRING``; default: Spark finds out. (templated)
    :param allow_empty: Whether an input without rows is no error. (templated)
    :param reject_folder: Where rows without a usable time go, if the table's config rejects them. (templated)
    :param stager: Name of this build, where several build into one entry.
    :param segments_conn_id: The ``segments`` connection. (templated)
    :param conn_id: The Spark connection.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "table",
        "entry_id",
        "input",
        "input_format",
        "input_options",
        "schema",
        "allow_empty",
        "reject_folder",
        "segments_conn_id",
    )
    ui_color = "#f7f3e8"

    def __init__(
        self,
        *,
        table: str,
        entry_id: str,
        input: str,  # noqa: A002 - the word a DAG author looks for
        input_format: str = "parquet",
        input_options: Mapping[str, str] | str | None = None,
        schema: str | None = None,
        allow_empty: bool | str = False,
        reject_folder: str | None = None,
        stager: str = "build",
        segments_conn_id: str = SegmentsHook.default_conn_name,
        name: str = "segments-build",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.table = table
        self.entry_id = entry_id
        self.input = input
        self.input_format = input_format
        self.input_options = input_options
        self.schema = schema
        self.allow_empty = allow_empty
        self.reject_folder = reject_folder
        self.stager = stager
        self.segments_conn_id = segments_conn_id

    def execute(self, context: Context) -> Any:
        """Submit the job and wait for its end."""
        from airflow_provider_segments.spark.environment import spark_environment

        hook = SegmentsHook(self.segments_conn_id)
        if self._hook is None:
            self._prepare(hook)
        # Not ``env_vars``: on YARN and Kubernetes the Spark hook would put them, secrets and all, on the command line.
        with _environment({**spark_environment(), **hook.job_environment()}):
            return super().execute(context)

    def _prepare(self, hook: SegmentsHook) -> None:
        """Fill in what a ``SparkSubmitOperator`` is usually told. Templates are rendered by now."""
        from airflow_provider_segments.spark.environment import spark_app_path, spark_submit_path

        self.application = self.application or str(spark_app_path("build_segments"))
        self.application_args = [*(self.application_args or []), *self._arguments(hook)]
        if self.input_format not in ("table", "sql"):  # those may be in a warehouse of the user's
            warehouse = str(Path(tempfile.gettempdir()) / "segments-spark-warehouse")
            self.conf = {"spark.sql.warehouse.dir": warehouse, **(self.conf or {})}
        if self._spark_binary is None:
            self._spark_binary = str(spark_submit_path())

    def on_kill(self) -> None:
        """End the JVM, and the Python driver it started: the driver alone would work on until it needs the JVM."""
        workers = self._descendants()
        super().on_kill()
        for worker in workers:
            worker.kill()

    def _descendants(self) -> list[Any]:
        import psutil  # type: ignore[import-untyped]

        submitted = getattr(self._hook, "_submit_sp", None)
        if submitted is None or submitted.poll() is not None:
            return []
        try:
            return list(psutil.Process(submitted.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    def _arguments(self, hook: SegmentsHook) -> list[str]:
        settings = hook.settings
        arguments = {
            "--zk-hosts": settings.zk_hosts,
            "--cluster": settings.cluster,
            "--storage-uri": settings.storage_uri,
            "--table": self.table,
            "--entry-id": self.entry_id,
            "--input": self.input,
            "--format": self.input_format,
            "--options": json.dumps(_options(self.input_options)),
            "--stager": self.stager,
            "--schema": self.schema,
            "--reject-folder": self.reject_folder,
        }
        flags = ["--allow-empty"] if truth(self.allow_empty, "allow_empty") else []
        return [part for name, value in arguments.items() if value is not None for part in (name, value)] + flags


def _options(given: Mapping[str, str] | str | None) -> dict[str, str]:
    options = json.loads(given or "{}") if isinstance(given, str) else dict(given or {})
    if not isinstance(options, dict):
        raise ValueError(f"input_options must be a JSON object, not {given!r}")
    return {str(key): str(value) for key, value in options.items()}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have child processes inherit ``variables`` for a while. A task runs in a process of its own."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
