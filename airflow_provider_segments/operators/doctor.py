"""A look at a whole cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_segments.operators.base import ClusterOperator, truth

if TYPE_CHECKING:
    from airflow.sdk import Context

FATAL: dict[str, tuple[str, ...]] = {"error": ("error",), "warning": ("error", "warning"), "never": ()}
"""Severities at which the task fails, by ``fail_on``."""


class DoctorOperator(ClusterOperator):
    """Look at everything of a cluster, say what is unreadable, inconsistent, foreign or lost, and keep the report.

    Airflow's page of segments shows the last report. Nothing else is written. Returns the number of findings by
    severity; they are in the XCom ``findings``::

        DoctorOperator(task_id="doctor", fail_on="warning")

    :param all_objects: Look at every registered object, not at some of each table. (templated)
    :param fail_on: The least severity at which the task fails: ``error``, ``warning``, or ``never``. (templated)
    """

    template_fields: Sequence[str] = (*ClusterOperator.template_fields, "all_objects", "fail_on")

    def __init__(self, *, all_objects: bool | str = False, fail_on: str = "error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.all_objects = all_objects
        self.fail_on = fail_on

    def execute(self, context: Context) -> dict[str, int]:
        """Look, and keep the report, also one that fails the task."""
        from airflow_provider_segments.core.doctor.examine import examine
        from airflow_provider_segments.core.doctor.kept import MOST_FINDINGS, keep_report

        if self.fail_on not in FATAL:
            raise AirflowFailException(f"fail_on is {self.fail_on!r}; use one of {', '.join(FATAL)}")
        with self.hook.get_conn() as store:
            report = examine(store.cluster, all_objects=truth(self.all_objects, "all_objects"))
            for one in report.findings:
                self.log.info("%s: %s: %s [%s]", one.severity.name.lower(), one.subject, one.detail, one.check)
            kept = keep_report(store.cluster, report)
        context["ti"].xcom_push(key="findings", value=[one.as_dict() for one in report.findings[:MOST_FINDINGS]])
        self.log.info("Looked at %d tables, %d znodes and %d objects", kept.tables, kept.znodes, kept.objects)
        if any(kept.counts[severity] for severity in FATAL[self.fail_on]):
            raise AirflowFailException(f"the doctor has found {kept.counts}; the log names them")
        return kept.counts
