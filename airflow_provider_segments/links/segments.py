"""The way from a task to its table on the page."""

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
        table = getattr(operator, "table", None)
        if not isinstance(table, str):
            return ""
        base = conf.get("api", "base_url", fallback="").rstrip("/")
        place = urlencode({"conn": getattr(operator, "segments_conn_id", ""), "table": table})
        return f"{base}/plugin/segments#{place}"
