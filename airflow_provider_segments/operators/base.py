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

from airflow_provider_segments.assets.segments import EVENTS_ALIAS, emit_event, is_segments_asset, segments_asset
from airflow_provider_segments.core.model.names import is_table_name
from airflow_provider_segments.core.model.variables import DEFAULT_CLUSTER
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


class Announcer:
    """What the operators have in common that change what readers see: a change is an event of the table's asset.

    Airflow records an event of every asset among a task's outlets when the task succeeds, whatever it did. So the
    table's own asset leaves the outlets before the work, and comes back when there is a change to announce.

    :param asset_events: Whether to emit events: through the table's asset, which is an outlet where ``table`` is no
        template, and otherwise through the asset alias ``segments``.
    :param asset_cluster: The connection's cluster, as far as it is known when the DAG is parsed: it is a part of the
        asset's URI. Where the connection names another one, its asset gets the events, through the alias.
    """

    outlets: list[Any]
    segments_conn_id: str

    def __init__(
        self,
        *,
        table: str | None = None,
        asset_events: bool = True,
        asset_cluster: str = DEFAULT_CLUSTER,
        **kwargs: Any,
    ) -> None:
        outlets = list(kwargs.pop("outlets", None) or [])
        if asset_events and table is not None and is_table_name(table):
            asset = segments_asset(table, asset_cluster)
            outlets += [asset] if asset not in outlets else []
        if asset_events:
            outlets.append(AssetAlias(name=EVENTS_ALIAS, group="segments"))
        super().__init__(table=table, outlets=outlets, **kwargs)  # type: ignore[call-arg]
        self.asset_events = asset_events
        self.asset_cluster = asset_cluster
        self._withheld: list[Any] = []

    def pre_execute(self, context: Any) -> None:
        """Take the assets of tables out of the outlets: nothing has changed yet."""
        super().pre_execute(context)  # type: ignore[misc]
        if self.asset_events:
            self._withheld = [one for one in self.outlets if is_segments_asset(one)]
            self.outlets = [one for one in self.outlets if not is_segments_asset(one)]

    def announce(self, context: Context, *, table: str, **extra: Any) -> None:
        """Have an event of that table's asset recorded when the task succeeds."""
        if not self.asset_events:
            return
        asset = segments_asset(table, SegmentsHook(self.segments_conn_id).settings.cluster)
        declared = [one for one in self._withheld if one.uri == asset.uri and one not in self.outlets]
        self.outlets = [*self.outlets, *declared]
        emit_event(context, self.outlets, asset, extra)


class AnnouncingOperator(Announcer, SegmentsOperator):
    """Base of the operators on one table that change what readers of it see."""

    def announce_change(self, context: Context, **extra: Any) -> None:
        """Have an event of this table's asset recorded when the task succeeds."""
        self.announce(context, table=self.table, **extra)


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
