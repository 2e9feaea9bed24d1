"""What the operators that submit one of this package's Spark applications share."""

from __future__ import annotations

import json
import os
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException
from airflow.sdk.log import mask_secret

from airflow_provider_segments.core.model.variables import (
    INPUT_OPTIONS_VARIABLE,
    INPUT_VARIABLE,
    SPARK_CONF_VARIABLE,
)
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.operators.job_log import JobLog
from airflow_provider_segments.text import is_secret_name, mask

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.core.locking import LockBox


class SegmentsJobOperator(SparkSubmitOperator):
    """A ``SparkSubmitOperator`` that knows its application, the table and the store; whatever else that takes, such as
    ``conf`` or ``driver_memory``, can be given too. The job finds the Python and the ``spark-submit`` of the
    environment this package is installed in. Credentials of the ``segments`` connection, and entries of ``conf`` whose
    names tell of a secret, reach it through its environment only: every user of a machine can read its command lines.

    :param table: Name of the table. (templated)
    :param segments_conn_id: The ``segments`` connection. (templated)
    :param spark_log_level: Level of Spark's own log, which is quiet (``WARN``) unless something goes wrong. ``INFO``
        brings all of it back; ``None`` leaves log4j to its own configuration files.
    :param conn_id: The Spark connection.
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "table", "segments_conn_id")
    ui_color = "#f7f3e8"
    app: ClassVar[str]

    def __init__(
        self,
        *,
        table: str,
        segments_conn_id: str = SegmentsHook.default_conn_name,
        spark_log_level: str | None = "WARN",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.spark_log_level = spark_log_level
        self.table = table
        self.segments_conn_id = segments_conn_id
        self._secret_conf: dict[str, str] = {}

    @cached_property
    def segments_hook(self) -> SegmentsHook:
        """The hook. It opens nothing before it is asked to."""
        return SegmentsHook(self.segments_conn_id)

    @contextmanager
    def lock_box(self) -> Iterator[LockBox]:
        """The table's locks, through a ZooKeeper session that is closed at the end."""
        with self.segments_hook.get_conn() as store:
            yield store.table(self.table).locks

    @abstractmethod
    def job_arguments(self, context: Context) -> list[str]:
        """The application's arguments besides those that name the table and the store."""

    def job_variables(self) -> dict[str, str]:
        """What the application reads from its environment besides where the store is."""
        return {SPARK_CONF_VARIABLE: json.dumps(self._secret_conf)} if self._secret_conf else {}

    def secrets(self) -> list[str]:
        """Values among the arguments that must not be shown."""
        return secret_values(self.conf)

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """Render, and have Airflow mask the secrets before it stores or logs what was rendered."""
        super().render_template_fields(context, jinja_env)
        for secret in self.secrets():
            mask_secret(secret)

    def warehouse_of_its_own(self) -> bool:
        """Whether the job gets a warehouse folder away from the worker's present folder."""
        return True

    def execute(self, context: Context) -> Any:
        """Submit the job and wait for its end."""
        from airflow_provider_segments.spark.environment import spark_environment

        hook = self.segments_hook
        if self._hook is None:
            self._prepare(hook, context)
        # Not ``env_vars``: on YARN and Kubernetes the Spark hook would put them, secrets and all, on the command line.
        if self._hook is None:
            self._hook = self._get_hook()
        log = self._hook._log = JobLog(self._hook.log)
        variables = {**hook.job_environment(), **self.job_variables()}
        with _environment({**spark_environment(log_level=self.spark_log_level), **variables}):
            try:
                return super().execute(context)
            except AirflowException as error:
                raise log.explain(error) from None

    def on_kill(self) -> None:
        """End the JVM, and the Python driver it started: the driver alone would work on until it needs the JVM."""
        workers = self._descendants()
        super().on_kill()
        for worker in workers:
            worker.kill()

    def _prepare(self, hook: SegmentsHook, context: Context) -> None:
        """Fill in what a ``SparkSubmitOperator`` is usually told. Templates are rendered by now."""
        from airflow_provider_segments.spark.environment import spark_app_path, spark_submit_path

        settings = hook.settings
        self.application = self.application or str(spark_app_path(self.app))
        where = {
            "--zk-hosts": settings.zk_hosts,
            "--cluster": settings.cluster,
            "--storage-uri": settings.storage_uri,
            "--table": self.table,
        }
        self.application_args = [*(self.application_args or []), *as_options(where), *self.job_arguments(context)]
        if self.warehouse_of_its_own():
            warehouse = str(Path(tempfile.gettempdir()) / "segments-spark-warehouse")
            self.conf = {"spark.sql.warehouse.dir": warehouse, **(self.conf or {})}
        self._secret_conf = {key: str(value) for key, value in (self.conf or {}).items() if _is_secret(key, value)}
        self.conf = {key: value for key, value in (self.conf or {}).items() if key not in self._secret_conf}
        for secret in self._secret_conf.values():
            mask_secret(secret)
        if self._spark_binary is None:
            self._spark_binary = str(spark_submit_path())

    def _descendants(self) -> list[Any]:
        import psutil  # type: ignore[import-untyped]

        submitted = getattr(self._hook, "_submit_sp", None)
        if submitted is None or submitted.poll() is not None:
            return []
        try:
            return list(psutil.Process(submitted.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []


class InputJobOperator(SegmentsJobOperator):
    """A job that reads an input. The input and its options reach it through its environment only.

    :param input: What to read. (templated)
    :param input_format: How to read it: a Spark data source, or a word of the operator's own. (templated)
    :param input_options: Options of the data source, as an object or as JSON text. Take a password from a connection,
        ``{{ conn.warehouse.password }}``: what stands in a DAG or in the ``conf`` of its run, Airflow stores.
        (templated)
    :param schema: Schema of the input as SQL would have it, ``a INT, b STRING``. (templated)
    :param reject_folder: Where rows go that cannot be used, if the table's config rejects them. (templated)
    """

    template_fields: Sequence[str] = (
        *SegmentsJobOperator.template_fields,
        "input",
        "input_format",
        "input_options",
        "schema",
        "reject_folder",
    )

    def __init__(
        self,
        *,
        input: str,  # noqa: A002 - the word a DAG author looks for
        input_format: str = "parquet",
        input_options: Mapping[str, str] | str | None = None,
        schema: str | None = None,
        reject_folder: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.input = input
        self.input_format = input_format
        self.input_options = input_options
        self.schema = schema
        self.reject_folder = reject_folder

    def job_variables(self) -> dict[str, str]:
        """The input and its options too: a query, an address or an option may hold a password."""
        options = json.dumps(given_options(self.input_options))
        return {**super().job_variables(), INPUT_VARIABLE: self.input, INPUT_OPTIONS_VARIABLE: options}

    def secrets(self) -> list[str]:
        """Those of the conf, and those of the input's options."""
        return [*super().secrets(), *secret_values(given_options(self.input_options))]

    def input_arguments(self) -> dict[str, str | None]:
        """What the application is told about its input on the command line; not what is empty, as a template without a
        value is."""
        return {
            "--format": self.input_format,
            "--schema": self.schema or None,
            "--reject-folder": self.reject_folder or None,
        }


def secret_values(options: Mapping[str, Any] | None) -> list[str]:
    """Values of ``options`` that are secrets, as their names or their own form tell."""
    return [str(value) for key, value in (options or {}).items() if value and _is_secret(key, value)]


def _is_secret(key: object, value: object) -> bool:
    return is_secret_name(str(key)) or mask(str(value)) != str(value)


def as_options(arguments: Mapping[str, str | None]) -> list[str]:
    """Command-line options, without those that have no value."""
    return [part for name, value in arguments.items() if value is not None for part in (name, value)]


def given_options(given: Mapping[str, str] | str | None) -> dict[str, str]:
    """Options of a data source, given as an object or as JSON text. Raises :class:`ValueError`."""
    options = json.loads(given or "{}") if isinstance(given, str) else dict(given or {})
    if not isinstance(options, dict):
        raise ValueError("input_options must be a JSON object")
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
