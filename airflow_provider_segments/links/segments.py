"""The way from a push to its rollback."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.providers.common.compat.sdk import XCom
from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

DEFAULT_ROLLBACK_DAG = "segments_rollback"


class RollbackLink(BaseOperatorLink):
    """To the rollback DAG, with the table and the entry of this task in the query string.

    Airflow makes the link when the task ends, in the worker, and keeps it as an XCom.
    """

    name = "Roll back"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The link, or an empty string when the task has not come as far as an entry."""
        entry = XCom.get_value(ti_key=ti_key, key=getattr(operator, "entry_xcom_key", "return_value"))
        if not isinstance(entry, dict) or not entry.get("entry_id"):
            return ""
        wanted = {"table": entry.get("table") or getattr(operator, "table", ""), "entry_id": entry["entry_id"]}
        base = conf.get("api", "base_url", fallback="") or ""
        query = urlencode({"conf": json.dumps(wanted)})
        dag_id = conf.get("segments", "rollback_dag_id", fallback=DEFAULT_ROLLBACK_DAG)
        return f"{base.rstrip('/')}/dags/{dag_id}?{query}"
