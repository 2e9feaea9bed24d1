"""The way from a task to its tables on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.providers.common.compat.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class SegmentsTableLink(BaseOperatorLink):
    """Opens the table that a task has worked on. Airflow asks for it when the task has ended, in its worker, where its
    templates are rendered."""

    name = "Segments table"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """The address of the table's page; empty for an operator without a table."""
        return _table_page(operator, getattr(operator, "table", None))


class SegmentsFindingsLink(BaseOperatorLink):
    """Opens the table of findings of a task that compares regions."""

    name = "Findings"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """The address of the findings' page; empty for an operator without a table of findings."""
        return _table_page(operator, getattr(operator, "findings_table", None))


def _table_page(operator: BaseOperator, table: object) -> str:
    if not isinstance(table, str):
        return ""
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    place = urlencode({"conn": getattr(operator, "segments_conn_id", ""), "table": table})
    return f"{base}/plugin/segments#{place}"
