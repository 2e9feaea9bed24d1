"""Queries over all rows of an upsert table, rewritten to see a mark: they give what the rows at that mark give."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.upsert.ingest import UpsertIngestor
from airflow_provider_segments.upsert.query_rewrite import ReadAt, rewrite_query
from airflow_provider_segments.upsert.reading import read_rows
from tests.upsert.world import Event, to_arrow, upsert_config

VERSIONS = 6
QUERIES = [
    "SELECT * FROM t",
    "SELECT count(*), sum(ts) FROM T",
    "SELECT x.k, y.v FROM t AS x JOIN t y USING (k) WHERE x.ts > 100",
    "SELECT names.k, t.v FROM names LEFT JOIN t ON names.k = t.k AND t.ts > 200",
    "SELECT * FROM names NATURAL JOIN t",
    "SELECT k FROM names WHERE NOT EXISTS (SELECT 1 FROM t z WHERE z.k = names.k)",
    "SELECT k FROM names WHERE k IN (SELECT k FROM t)",
    "WITH t AS (SELECT * FROM t WHERE ts > 150) SELECT count(*) FROM t",
    "WITH a AS (SELECT k, max(ts) AS top FROM t GROUP BY k) SELECT a.k FROM a JOIN t ON a.k = t.k AND a.top = t.ts",
    "SELECT k, row_number() OVER (ORDER BY ts, k) FROM t UNION ALL SELECT k, 0 FROM t WHERE v > 'v3'",
    "SELECT (SELECT max(v) FROM t) AS top, count(*) FROM (SELECT k FROM t GROUP BY k)",
    "FROM t SELECT k ORDER BY ts LIMIT 3",
]


@pytest.fixture
def table(store: SegmentStore, tmp_path: Path) -> Table:
    """Forty keys in six versions, some of them deleted."""
    rnd = random.Random(4)
    store.apply_config(upsert_config())
    ingestor = UpsertIngestor(store.table("t"), cache=tmp_path / "cache")
    for version in range(VERSIONS):
        rows = [
            Event(rnd.randrange(400), 0, version * 50 + at, f"k{rnd.randrange(40)}", f"v{version}.{at}", at % 9 == 0)
            for at in range(50)
        ]
        ingestor.ingest(to_arrow(rows))
    return store.table("t")


@pytest.fixture
def engine(table: Table) -> Iterator[duckdb.DuckDBPyConnection]:
    """An engine with one copy of all rows, and a plain table."""
    with duckdb.connect() as connection:
        connection.register("t", read_rows(table, with_validity=True).drop_columns(["$partition", "$offset"]))
        connection.sql("CREATE TABLE names AS SELECT 'k' || range AS k FROM range(0, 60)")
        yield connection


def answer(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    return sorted(map(str, connection.sql(sql).fetchall()))


def test_a_rewritten_query_gives_what_the_rows_of_its_mark_give(
    table: Table, engine: duckdb.DuckDBPyConnection
) -> None:
    differ = 0
    for mark in range(1, VERSIONS + 1):
        with duckdb.connect() as plain:
            plain.register("t", read_rows(table, mark=mark))
            plain.sql("CREATE TABLE names AS SELECT 'k' || range AS k FROM range(0, 60)")
            for sql in QUERIES:
                rewritten = rewrite_query(sql, {"t": ReadAt(mark, "deleted")}, dialect="duckdb")
                assert answer(engine, rewritten) == answer(plain, sql), (mark, rewritten)
                differ += answer(engine, sql) != answer(plain, sql)
    assert differ > VERSIONS * len(QUERIES) // 2, "the queries must need the rewrite"


def test_a_predicate_in_the_where_alone_would_be_wrong(table: Table, engine: duckdb.DuckDBPyConnection) -> None:
    """As the design had it: an outer join loses the rows without a partner."""
    outer = "SELECT names.k, t.v FROM names LEFT JOIN t ON names.k = t.k"
    mark = 3
    where = f' WHERE "$validFrom" <= {mark} AND ("$validUntil" IS NULL OR "$validUntil" > {mark})'
    rewritten = rewrite_query(outer, {"t": ReadAt(mark, "deleted")}, dialect="duckdb")
    assert len(answer(engine, outer + where)) < len(answer(engine, rewritten)) == 60


def test_names_are_compared_as_the_dialect_does() -> None:
    at = {"sales.Orders": ReadAt(7)}
    for sql in ("SELECT k FROM sales.orders", "SELECT o.k FROM SALES.ORDERS AS o, orders"):
        assert rewrite_query(sql, at, dialect="duckdb").count("$validFrom") == 2  # hidden, and compared
    assert rewrite_query("SELECT k FROM sales.orders", at, dialect="trino").count("$validFrom") == 1
    assert "`$validFrom` <= 7" in rewrite_query("SELECT k FROM sales.orders", at, dialect="spark")


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        ("SELECT * FRO t", "query-text"),
        ("SELECT 1 FROM t; SELECT 2 FROM t", "query-text"),
        ("INSERT INTO t SELECT 1", "query-text"),
        ("DELETE FROM t", "query-text"),
        ("CREATE TABLE u AS SELECT * FROM t", "query-text"),
        ("SELECT * FROM tt", "query-table"),
        ("SELECT * FROM other.t", "query-table"),
        ("WITH t AS (SELECT 1 AS k) SELECT * FROM t", "query-table"),
    ],
)
def test_what_cannot_be_rewritten_is_refused(sql: str, rule: str) -> None:
    with pytest.raises(UpsertRefusedError) as refused:
        rewrite_query(sql, {"t": ReadAt(3)}, dialect="duckdb")
    assert refused.value.rule == rule
