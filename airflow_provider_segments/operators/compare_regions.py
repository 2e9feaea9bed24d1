"""Comparison of two regions, as a Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.operators.job import SegmentsJobOperator, as_options

if TYPE_CHECKING:
    from airflow.sdk import Context


class CompareRegionsOperator(SegmentsJobOperator):
    """Compare an upsert table with the one of another region that reads the same sources, with Spark.

    Keys that differ are pushed into a table of findings, and fail the task; a retry finds the same, so give it none.
    What lag explains is no finding. Both stores are opened with the credentials of ``segments_conn_id``::

        CompareRegionsOperator(task_id="compare", table="flight_status", other_conn_id="segments_us", retries=0)

    :param other_conn_id: The ``segments`` connection of the other region. (templated)
    :param other_table: The table's name there; by default the same. (templated)
    :param findings: The table of findings, made if it is not there; by default ``<table>_findings``. (templated)
    :param checkpoint: Compare at this time, as ISO 8601; by default the newest versions. (templated)
    :param region: The region whose checkpoint that is. (templated)
    """

    template_fields: Sequence[str] = (
        *SegmentsJobOperator.template_fields,
        "other_conn_id",
        "other_table",
        "findings",
        "checkpoint",
        "region",
    )
    app = "compare_regions"

    def __init__(
        self,
        *,
        other_conn_id: str,
        other_table: str | None = None,
        findings: str | None = None,
        checkpoint: str | None = None,
        region: str | None = None,
        name: str = "segments-compare-regions",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.other_conn_id = other_conn_id
        self.other_table = other_table
        self.findings = findings
        self.checkpoint = checkpoint
        self.region = region

    def job_arguments(self, context: Context) -> list[str]:  # noqa: ARG002 - others need it
        """Where the other region is, and what to compare at."""
        other = SegmentsHook(self.other_conn_id).settings
        return as_options(
            {
                "--other-zk-hosts": other.zk_hosts,
                "--other-cluster": other.cluster,
                "--other-storage-uri": other.storage_uri,
                "--other-table": self.other_table or None,
                "--findings": self.findings or f"{self.table}_findings",
                "--checkpoint": self.checkpoint or None,
                "--region": self.region or None,
            }
        )
