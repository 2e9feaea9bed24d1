"""What staged segments must look like, and how they do.

Counts, nulls and SQL are evaluated by DuckDB over the Parquet files, in bounded memory and without access to anything
but those files. Time bounds come from the segments' records, which the build took from the data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_segments.core.model.interval import format_ms
from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.validation.dataset import dataset_of

if TYPE_CHECKING:
    from airflow_provider_segments.core.snapshot import Snapshot
    from airflow_provider_segments.core.storage.base import ObjectStore

_MOST_ROWS = 10_000  # of a query's result; the comparison needs them all, a message shows the first


@dataclass(frozen=True, slots=True)
class Query:
    """A SQL query over the table ``segments`` and the value, row or rows it must return."""

    sql: str
    expect: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """What a push must satisfy. Every bound is inclusive; times are UTC milliseconds.

    ``max_null_rates`` are shares from 0 to 1. ``predicates`` are SQL conditions that must be true for every row; a
    condition that is NULL for a row is not true.
    """

    min_rows: int | None = None
    max_rows: int | None = None
    columns: tuple[str, ...] = ()
    max_null_rates: Mapping[str, float] = field(default_factory=dict)
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    predicates: tuple[str, ...] = ()
    queries: tuple[Query, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was expected and what was found."""

    check: str
    expected: str
    found: str
    ok: bool

    def __str__(self) -> str:
        return f"{self.check}: expected {self.expected}, found {self.found}"


def validate(
    snapshot: Snapshot, storage: ObjectStore, expected: Expectations, *, memory_limit: str = "1GB", threads: int = 2
) -> list[Finding]:
    """Every check of ``expected`` and its outcome, in a fixed order. Raises storage errors, not for a failed check."""
    found = _Rows(snapshot, storage, memory_limit, threads)
    try:
        findings = [_as_registered(snapshot, found)]
        findings += _row_counts(found, expected)
        findings += _columns(found, expected)
        findings += _nulls(found, expected)
        findings += _times(snapshot, expected)
        findings += [_predicate(found, predicate) for predicate in expected.predicates]
        findings += [_query(found, query) for query in expected.queries]
    finally:
        found.close()
    return findings


class _Rows:
    """The staged rows behind SQL."""

    def __init__(self, snapshot: Snapshot, storage: ObjectStore, memory_limit: str, threads: int) -> None:
        import duckdb

        self._spill = tempfile.TemporaryDirectory(prefix="segments-validate-")
        self._db = duckdb.connect(
            config={"memory_limit": memory_limit, "threads": threads, "temp_directory": self._spill.name}
        )
        dataset = dataset_of(snapshot, storage)
        self.columns: tuple[str, ...] = () if dataset is None else tuple(dataset.schema.names)
        if dataset is not None:
            self._db.register("segments", dataset)
        self.count = 0 if dataset is None else int(dataset.count_rows())
        # A predicate is the DAG author's, but it may come out of a template: it sees the staged rows and nothing else.
        self._db.execute("SET TimeZone = 'UTC'")
        self._db.execute("SET enable_external_access = false")
        self._db.execute("SET lock_configuration = true")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query, or at most as many as a message can show. Raises :class:`InvalidConfigError` for bad SQL."""
        import duckdb

        if not self.columns:
            raise InvalidConfigError("nothing is staged, so there are no columns to ask about")
        try:
            return [tuple(row) for row in self._db.execute(sql).fetchmany(_MOST_ROWS)]
        except duckdb.Error as error:
            raise InvalidConfigError(f"SQL failed: {str(error).splitlines()[0]}") from error

    def close(self) -> None:
        """Free the memory and the spill folder."""
        self._db.close()
        self._spill.cleanup()


def _as_registered(snapshot: Snapshot, found: _Rows) -> Finding:
    return Finding(
        "rows in the files", f"{snapshot.rows:,} as registered", f"{found.count:,}", found.count == snapshot.rows
    )


def _row_counts(found: _Rows, expected: Expectations) -> Iterator[Finding]:
    if expected.min_rows is not None:
        yield Finding("rows", f"at least {expected.min_rows:,}", f"{found.count:,}", found.count >= expected.min_rows)
    if expected.max_rows is not None:
        yield Finding("rows", f"at most {expected.max_rows:,}", f"{found.count:,}", found.count <= expected.max_rows)


def _columns(found: _Rows, expected: Expectations) -> Iterator[Finding]:
    for column in expected.columns:
        there = column in found.columns
        yield Finding(f"column {column}", "present", "present" if there else f"only {_names(found.columns)}", there)


def _nulls(found: _Rows, expected: Expectations) -> Iterator[Finding]:
    known = [column for column in expected.max_null_rates if column in found.columns]
    counted = "".join(f", count({_quoted(column)})" for column in known)
    row = found.ask(f"SELECT count(*){counted} FROM segments")[0] if known else (0,)  # noqa: S608 - quoted names
    nulls = {column: row[0] - filled for column, filled in zip(known, row[1:], strict=True)}
    for column, most in expected.max_null_rates.items():
        check, wanted = f"null rate of {column}", f"at most {most:.6g}"
        if column not in nulls:
            yield Finding(check, wanted, f"no such column, only {_names(found.columns)}", ok=False)
            continue
        rate = nulls[column] / row[0] if row[0] else 0.0
        yield Finding(check, wanted, f"{rate:.6g} ({nulls[column]:,} of {row[0]:,} rows)", rate <= most)


def _times(snapshot: Snapshot, expected: Expectations) -> Iterator[Finding]:
    starts = [segment.min_time_ms for segment in snapshot.segments if segment.min_time_ms is not None]
    ends = [segment.max_time_ms for segment in snapshot.segments if segment.max_time_ms is not None]
    if expected.min_time_ms is not None:
        found = min(starts, default=None)
        yield Finding(
            "earliest time",
            f"{format_ms(expected.min_time_ms)} or later",
            _time(found),
            found is not None and found >= expected.min_time_ms,
        )
    if expected.max_time_ms is not None:
        found = max(ends, default=None)
        yield Finding(
            "latest time",
            f"{format_ms(expected.max_time_ms)} or earlier",
            _time(found),
            found is not None and found <= expected.max_time_ms,
        )


def _predicate(found: _Rows, predicate: str) -> Finding:
    check = f"rows where not ({predicate})"
    try:
        count = found.ask(f"SELECT count(*) FROM segments WHERE ({predicate}\n) IS NOT TRUE")[0][0]  # noqa: S608
    except InvalidConfigError as error:
        return Finding(check, "0", str(error), ok=False)
    return Finding(check, "0", f"{count:,}", count == 0)


def _query(found: _Rows, query: Query) -> Finding:
    try:
        rows = found.ask(query.sql)
    except InvalidConfigError as error:
        return Finding(query.sql, repr(query.expect), str(error), ok=False)
    value = _simplest(rows)
    return Finding(query.sql, _shown(query.expect), _shown(value), _same(value, query.expect))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _simplest(rows: Sequence[tuple[Any, ...]]) -> Any:
    """A single value for one row of one column, one row as a list, else a list of rows."""
    if len(rows) != 1:
        return [list(row) for row in rows]
    return rows[0][0] if len(rows[0]) == 1 else list(rows[0])


def _same(found: Any, expected: Any) -> bool:
    """Equal, where text may stand for a date, a time or a decimal: templates and JSON have only text for those."""
    if isinstance(expected, str) and not isinstance(found, str | list) and found is not None:
        return str(found).lower() == expected.lower()
    if isinstance(expected, list | tuple) and isinstance(found, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    return bool(found == expected)


def _time(at_ms: int | None) -> str:
    return "no times" if at_ms is None else format_ms(at_ms)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(columns[:20]) + (" ..." if len(columns) > 20 else "") if columns else "no columns"


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
