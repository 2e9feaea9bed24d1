"""Checks of a push before readers see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_segments.core.model.interval import parse_time
from airflow_provider_segments.operators.base import SegmentsOperator, names_given, parse_names
from airflow_provider_segments.operators.locks import given_locks, renewed
from airflow_provider_segments.text import cut

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_segments.validation.checks import Expectations, Finding

_MOST_TEXT = 500


class ValidateSegmentsOperator(SegmentsOperator):
    """Check the segments that are staged in an entry, before they become visible. No Spark is started.

    All checks are evaluated; the task fails without a retry when one of them does not hold, and says of each what was
    expected and what was found, also in the XCom ``validation``, which the page shows. Needs the extra ``validate``
    (DuckDB)::

        ValidateSegmentsOperator(
            task_id="validate",
            table="flights",
            entry_id="{{ ti.xcom_pull(task_ids='start') }}",
            min_rows=300_000,
            max_null_rates={"dep_delay": 0.05},
            min_time="2013-01-01",
            max_time="2013-12-31T23:59:59",
            predicates=["distance > 0"],
            queries=[{"sql": "SELECT count(DISTINCT origin) FROM segments", "expect": 3}],
        )

    :param entry_id: The entry. (templated)
    :param min_rows: Fewest rows. (templated)
    :param max_rows: Most rows. (templated)
    :param columns: Columns that must be there. (templated)
    :param max_null_rates: Largest share of nulls by column, 0 to 1. (templated)
    :param min_time: Earliest time of the time column that is allowed, ISO 8601, UTC where it names no zone. (templated)
    :param max_time: Latest time of the time column that is allowed. (templated)
    :param predicates: SQL conditions that must be true for every row. (templated)
    :param queries: Objects with ``sql``, a query over the table ``segments``, and ``expect``, its result. (templated)
    :param locks: Locks of the push; their leases are renewed meanwhile. (templated)
    :param memory_limit: Most memory DuckDB may use, as in ``1GB``; it spills to disk beyond that.
    """

    template_fields: Sequence[str] = (
        *SegmentsOperator.template_fields,
        "entry_id",
        "min_rows",
        "max_rows",
        "columns",
        "max_null_rates",
        "min_time",
        "max_time",
        "predicates",
        "queries",
        "locks",
    )
    template_fields_renderers = {"queries": "json", "max_null_rates": "json"}

    def __init__(
        self,
        *,
        entry_id: str,
        min_rows: int | str | None = None,
        max_rows: int | str | None = None,
        columns: Sequence[str] = (),
        max_null_rates: Mapping[str, float] | None = None,
        min_time: str | None = None,
        max_time: str | None = None,
        predicates: Sequence[str] = (),
        queries: Sequence[Mapping[str, Any]] = (),
        locks: Any = (),
        memory_limit: str = "1GB",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.entry_id = entry_id
        self.min_rows = min_rows
        self.max_rows = max_rows
        self.columns = names_given(columns, "columns")
        self.max_null_rates = max_null_rates
        self.min_time = min_time
        self.max_time = max_time
        self.predicates = names_given(predicates, "predicates")
        self.queries = names_given(queries, "queries")
        self.locks = locks
        self.memory_limit = memory_limit

    def execute(self, context: Context) -> dict[str, Any]:
        """Check, and fail with every check that does not hold."""
        from airflow_provider_segments.validation.checks import validate

        expected = self._expectations()
        with self.open_table() as table, renewed(table.locks, given_locks(self.locks)):
            staged = table.staged(self.entry_id)
            findings = validate(staged, table.storage, expected, memory_limit=self.memory_limit)
        for finding in findings:
            self.log.info("%s %s", "ok    " if finding.ok else "FAILED", finding)
        counts = {"rows": staged.rows, "segments": len(staged)}
        named = {"table": self.table, "segments_conn_id": self.segments_conn_id, "entry_id": self.entry_id}
        findings_shown = [_shown(finding) for finding in findings]
        context["ti"].xcom_push(key="validation", value={**named, **counts, "findings": findings_shown})
        failed = [str(finding) for finding in findings if not finding.ok]
        if failed:
            raise AirflowFailException(
                f"table {self.table!r}, entry {self.entry_id}: {len(failed)} of {len(findings)} checks of the staged "
                "segments failed; readers have seen none of them:\n  - " + "\n  - ".join(failed)
            )
        return {**counts, "checks": len(findings)}

    def _expectations(self) -> Expectations:
        from airflow_provider_segments.validation.checks import Expectations, Query

        return Expectations(
            min_rows=_count(self.min_rows),
            max_rows=_count(self.max_rows),
            columns=tuple(parse_names(self.columns, "columns")),
            max_null_rates={column: float(rate) for column, rate in (self.max_null_rates or {}).items()},
            min_time_ms=parse_time(self.min_time) if self.min_time else None,
            max_time_ms=parse_time(self.max_time) if self.max_time else None,
            predicates=tuple(parse_names(self.predicates, "predicates")),
            queries=tuple(Query(str(query["sql"]), query["expect"]) for query in parse_names(self.queries, "queries")),
        )


def _shown(finding: Finding) -> dict[str, Any]:
    """A finding as plain data. Its texts are cut: a query may be long, and so may its result."""
    texts = {name: cut(getattr(finding, name), _MOST_TEXT) for name in ("check", "expected", "found")}
    return {**texts, "ok": finding.ok}


def _count(value: int | str | None) -> int | None:
    """A bound that may have come out of a template, where an empty string and ``None`` mean that there is none."""
    return None if value is None or str(value).strip() in ("", "None") else int(value)
