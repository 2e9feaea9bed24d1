"""What the operators on a table share."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import AssetAlias, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_segments.assets.segments import EVENTS_ALIAS, emit_event, segments_asset
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.links.segments import SegmentsTableLink
from airflow_provider_segments.operators.metrics import count_sent

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.core.table import Table


class ClusterOperator(BaseOperator):
    """Base of all operators: they have a connection.

    :param segments_conn_id: The ``segments`` connection. (templated)
    """

    template_fields: Sequence[str] = ("segments_conn_id",)
    ui_color = "#e8f0f7"

    def __init__(self, *, segments_conn_id: str = SegmentsHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.segments_conn_id = segments_conn_id

    @cached_property
    def hook(self) -> SegmentsHook:
        """The hook. It opens nothing before it is asked to."""
        return SegmentsHook(self.segments_conn_id)


class SegmentsOperator(ClusterOperator):
    """Base of the operators on one table.

    :param table: Name of the table. (templated)
    """

    template_fields: Sequence[str] = ("table", *ClusterOperator.template_fields)
    operator_extra_links = (SegmentsTableLink(),)

    def __init__(self, *, table: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table

    @contextmanager
    def open_table(self) -> Iterator[Table]:
        """The table, in a store that is closed at the end. What it has marked for deletion is counted."""
        with self.hook.get_conn() as store:
            table = store.table(self.table)
            try:
                yield table
            finally:
                count_sent(table.sent)


ALL_TABLES = "*"
"""All tables of the cluster: no table can have that name, and no template renders to it by mistake."""


class TablesOperator(ClusterOperator):
    """Base of the operators that do the same to one table or to every table of the cluster.

    Returns the report of each table by its name. A table that fails does not keep the others from their turn; the task
    fails at the end.

    :param table: Name of the table; ``*`` or ``None`` for all of them. What renders to nothing is refused. (templated)
    """

    template_fields: Sequence[str] = ("table", *ClusterOperator.template_fields)

    def __init__(self, *, table: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table

    @abstractmethod
    def work(self, table: Table) -> dict[str, Any]:
        """What is to be done to ``table``; returns its report as plain data."""

    def progress(self, name: str) -> Callable[[Any], None]:
        """Logs how far the work on a table is, now and then."""
        return spaced(lambda report: self.log.info("Table %s, so far: %s", name, report.as_dict()))

    def execute(self, context: Context) -> dict[str, Any]:
        """Do it to each table."""
        from airflow_provider_segments.exceptions import InvalidConfigError, SegmentsError, TableNotFoundError

        if self.table is not None and not self.table.strip():
            raise AirflowFailException("table is empty: name one, or give * for all tables of the cluster")
        reports: dict[str, Any] = {}
        errors: dict[str, SegmentsError] = {}
        with self.hook.get_conn() as store:
            every = self.table in (None, ALL_TABLES)
            names = [*store.tables(), *store.configs.strays()] if every else [str(self.table)]
            for name in names:
                try:
                    reports[name] = self._counted_work(store.table(name))
                except SegmentsError as error:
                    self.log.error("Table %s: %s", name, error)
                    errors[name] = error
        if len(names) == 1 and errors:
            [only] = errors.values()
            if isinstance(only, InvalidConfigError | TableNotFoundError):  # no retry makes it better
                raise AirflowFailException(str(only)) from only
            raise only
        if errors:
            context["ti"].xcom_push(key="reports", value=reports)
            raise SegmentsError(
                f"{len(errors)} of {len(names)} tables failed: {', '.join(sorted(errors))}; see the log"
            )
        return reports

    def _counted_work(self, table: Table) -> dict[str, Any]:
        try:
            return self.work(table)
        finally:
            count_sent(table.sent)


class AnnouncingOperator(SegmentsOperator):
    """Base of the operators that change what is visible: their success is an event of the table's asset.

    :param asset_events: Whether to emit the event, through the asset alias ``segments`` (or through an outlet the
        DAG declares for the table's asset).
    """

    def __init__(self, *, asset_events: bool = True, **kwargs: Any) -> None:
        outlets = list(kwargs.pop("outlets", None) or [])
        if asset_events:
            outlets.append(AssetAlias(name=EVENTS_ALIAS, group="segments"))
        super().__init__(outlets=outlets, **kwargs)
        self.asset_events = asset_events

    def announce(self, context: Context, **extra: Any) -> None:
        """Have an asset event of this table recorded when the task succeeds."""
        if self.asset_events:
            emit_event(context, self.outlets, segments_asset(self.table, self.hook.settings.cluster), extra)


def run_identity(context: Context, hook: SegmentsHook) -> str:
    """Name a DAG run: the deployment that the connection says, the DAG and the run. The run's locks belong to it.

    Two Airflows on one cluster may have runs of the same name: without the deployment they would take each other's
    entries and share their locks.
    """
    ti = context["ti"]
    return f"{hook.settings.deployment}/{ti.dag_id}/{ti.run_id}"


def task_identity(context: Context, hook: SegmentsHook, task_id: str | None = None) -> str:
    """Name the work of a task, or of another task of its run; not the attempt, so that a retry finds what it made."""
    ti = context["ti"]
    mapped = f"/{ti.map_index}" if ti.map_index is not None and ti.map_index >= 0 else ""
    return f"{run_identity(context, hook)}/{task_id or ti.task_id}{mapped}"


def names_given(value: Any, field: str) -> Any:
    """Return ``value`` unless it is text that can be no list of names: text would be taken for a list of its letters.

    A template and a JSON list pass; :func:`parse_names` makes a list of what they become. Raises :class:`ValueError`.
    """
    if isinstance(value, str) and "{{" not in value and "{%" not in value:
        return parse_names(value, field)
    return value


def parse_names(value: Sequence[str] | str, field: str) -> list[Any]:
    """A list that may have come out of a template as JSON text. Raises :class:`ValueError` for other text."""
    if not isinstance(value, str):
        return list(value)
    try:
        parsed = json.loads(value) if value.strip() else []
    except ValueError:
        parsed = None
    if not isinstance(parsed, list):
        raise ValueError(f"{field} must be a list, or a template of a JSON list, not {value!r:.200}")
    return parsed


def truth(value: bool | str, name: str) -> bool:
    """A flag that may have come out of a template. Raises :class:`ValueError` for text that is not a flag."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    raise ValueError(f"{name} must be true or false, not {value!r}")


def spaced(say: Callable[[Any], None], seconds: float = 10.0) -> Callable[[Any], None]:
    """``say``, but no more often than every so many seconds, and not before the first are over: for progress."""
    said = time.monotonic()

    def speak(what: Any) -> None:
        nonlocal said
        if time.monotonic() - said >= seconds:
            said = time.monotonic()
            say(what)

    return speak
