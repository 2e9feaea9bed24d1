"""What the operators on a table share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import AssetAlias, BaseOperator

from airflow_provider_segments.assets.segments import EVENTS_ALIAS, emit_event, segments_asset
from airflow_provider_segments.hooks.segments import SegmentsHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.store import Table


class SegmentsOperator(BaseOperator):
    """Base of the operators on one table.

    :param table: Name of the table. (templated)
    :param segments_conn_id: The ``segments`` connection. (templated)
    """

    template_fields: Sequence[str] = ("table", "segments_conn_id")
    ui_color = "#e8f0f7"

    def __init__(self, *, table: str, segments_conn_id: str = SegmentsHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.segments_conn_id = segments_conn_id

    @cached_property
    def hook(self) -> SegmentsHook:
        """The hook. It opens nothing before it is asked to."""
        return SegmentsHook(self.segments_conn_id)

    @contextmanager
    def open_table(self) -> Iterator[Table]:
        """The table, in a store that is closed at the end."""
        with self.hook.get_conn() as store:
            yield store.table(self.table)


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


def identity_of(context: Context, task_id: str | None = None) -> str:
    """Names the work of a task (or of another task of its run), not its attempt: every retry has the same identity."""
    ti = context["ti"]
    mapped = f"/{ti.map_index}" if ti.map_index is not None and ti.map_index >= 0 else ""
    return f"{ti.dag_id}/{ti.run_id}/{task_id or ti.task_id}{mapped}"


def truth(value: bool | str, name: str) -> bool:
    """A flag that may have come out of a template. Raises :class:`ValueError` for text that is not a flag."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    raise ValueError(f"{name} must be true or false, not {value!r}")
