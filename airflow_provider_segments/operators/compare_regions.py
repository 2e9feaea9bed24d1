"""Comparison of two regions, as a Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import AssetAlias

from airflow_provider_segments.assets.segments import EVENTS_ALIAS, emit_event, segments_asset
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.links.segments import SegmentsFindingsLink, SegmentsTableLink
from airflow_provider_segments.operators.job import SegmentsJobOperator, as_options

if TYPE_CHECKING:
    from airflow.sdk import Context


class CompareRegionsOperator(SegmentsJobOperator):
    """Compare an upsert table with the one of another region that reads the same sources, with Spark.

    Keys that differ are pushed into a table of findings, once, and fail the task; a retry finds the same, so give it
    none. What lag explains is no finding. Both stores are opened with the credentials of ``segments_conn_id``::

        CompareRegionsOperator(task_id="compare", table="flight_status", other_conn_id="segments_us", retries=0)

    A task that succeeds and has pushed findings is an event of the asset of the table of findings; Airflow drops the
    events of tasks that fail. So to have a DAG of your own run once for each new difference, never fail here, and
    schedule that DAG on ``segments_asset("flight_status_findings")``.

    Returns what was found: ``counts`` by kind, how many of them are ``new``, and the ``entry_id`` of their push.

    :param other_conn_id: The ``segments`` connection of the other region. (templated)
    :param other_table: The table's name there; by default the same. (templated)
    :param findings: The table of findings, made if it is not there; by default ``<table>_findings``. (templated)
    :param fail_on: ``any``: fail as long as the regions have diverged. ``new``: only when something was found that no
        comparison has found before. ``never``: do not fail for what was found. (templated)
    :param checkpoint: Compare at this time, as ISO 8601; by default the newest versions. (templated)
    :param region: The region whose checkpoint that is. (templated)
    """

    template_fields: Sequence[str] = (
        *SegmentsJobOperator.template_fields,
        "other_conn_id",
        "other_table",
        "findings",
        "fail_on",
        "checkpoint",
        "region",
    )
    operator_extra_links = (SegmentsTableLink(), SegmentsFindingsLink())
    app = "compare_regions"

    def __init__(
        self,
        *,
        other_conn_id: str,
        other_table: str | None = None,
        findings: str | None = None,
        fail_on: str = "any",
        checkpoint: str | None = None,
        region: str | None = None,
        name: str = "segments-compare-regions",
        **kwargs: Any,
    ) -> None:
        outlets = [*(kwargs.pop("outlets", None) or []), AssetAlias(name=EVENTS_ALIAS, group="segments")]
        super().__init__(name=name, outlets=outlets, **kwargs)
        self.other_conn_id = other_conn_id
        self.other_table = other_table
        self.findings = findings
        self.fail_on = fail_on
        self.checkpoint = checkpoint
        self.region = region

    @property
    def findings_table(self) -> str:
        """The table of findings."""
        return self.findings or f"{self.table}_findings"

    def execute(self, context: Context) -> Any:
        """Submit the job, wait for its end, and say what it has found."""
        from airflow_provider_segments.core.replication.comparisons import name_of_other, read_comparisons

        super().execute(context)
        other = SegmentsHook(self.other_conn_id).settings
        name = name_of_other(other.zk_hosts, other.cluster, self.other_table or self.table)
        with self.segments_hook.get_conn() as store:
            done = next(one for one in read_comparisons(store.cluster, self.table) if one.other == name)
        told = {"counts": done.counts, "new": done.new, "entry_id": done.entry_id}
        if done.entry_id:
            asset = segments_asset(self.findings_table, self.segments_hook.settings.cluster)
            emit_event(context, self.outlets, asset, {"change": "findings", **told})
        return told

    def job_arguments(self, context: Context) -> list[str]:  # noqa: ARG002 - others need it
        """Where the other region is, and what to compare at."""
        other = SegmentsHook(self.other_conn_id).settings
        return as_options(
            {
                "--other-zk-hosts": other.zk_hosts,
                "--other-cluster": other.cluster,
                "--other-storage-uri": other.storage_uri,
                "--other-table": self.other_table or None,
                "--findings": self.findings_table,
                "--fail-on": self.fail_on,
                "--checkpoint": self.checkpoint or None,
                "--region": self.region or None,
            }
        )
