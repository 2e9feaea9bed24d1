"""Queries of other engines at a mark: SQL text over *all* rows of upsert tables becomes SQL over those that are valid.

An engine that holds a copy of a table's rows with their validity (``read_rows(with_validity=True)`` or
``read_with_validity``) can answer at every mark from the floor up to that of the copy, without another copy. Pinot's
design adds a predicate to the query's WHERE; that is wrong for outer joins and for tables in subqueries. Here each
mention of the table becomes a subquery that holds the predicate, so the rest of the query needs no thought.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_segments.exceptions import UpsertRefusedError
from airflow_provider_segments.upsert.columns import VALID_FROM, VALID_UNTIL

if TYPE_CHECKING:
    from sqlglot import exp

_Name = tuple[str, str, str]
"""Catalog, schema and name."""

_AROUND = ("joins", "laterals", "pivots", "sample")
"""What hangs on a mention of a table and stays with the query."""

_STAR_EXCEPT = frozenset(["bigquery", "clickhouse", "databricks", "duckdb", "snowflake", "spark"])
"""Dialects in which ``*`` can leave columns out."""


@dataclass(frozen=True, slots=True)
class ReadAt:
    """How a query is to see a table: at version ``mark``, without the rows in which the column ``deletes`` is true."""

    mark: int
    deletes: str | None = None


def rewrite_query(sql: str, tables: Mapping[str, ReadAt], *, dialect: str) -> str:
    """``sql`` with each of ``tables`` read at its mark. A table's name is as the query writes it, ``t`` or ``s.t``;
    tables that are not named here are left alone, and so is a CTE of the same name. ``dialect`` is one of sqlglot's,
    such as ``duckdb``, ``trino`` or ``spark``.

    ``SELECT *`` leaves the two columns of validity out where the dialect has a word for that (``EXCLUDE``, ``EXCEPT``);
    in others name the columns.

    Raises :class:`UpsertRefusedError`: ``query-text`` for text that is not one query of that dialect, or that mentions
    a table where nobody can tell what is meant; ``query-table`` for a table that the query does not read: a name that
    was mistyped would show all rows.
    """
    query = _parsed(sql, tables, dialect)
    wanted = {_identity(_table(name, dialect), dialect): (name, at) for name, at in tables.items()}
    mentions = [(one, wanted[key]) for one in _read_tables(query) if (key := _identity(one, dialect)) in wanted]
    _check_understood(query, {id(one) for one, _ in mentions}, wanted, dialect)
    if unread := sorted(set(tables) - {name for _, (name, _) in mentions}):
        raise UpsertRefusedError("query-table", "the query does not read it", table=", ".join(unread))
    for mention, (_, at) in mentions:
        _narrow(mention, at, dialect)
    return query.sql(dialect=dialect)


def _parsed(sql: str, tables: Collection[str], dialect: str) -> exp.Query:
    import sqlglot
    from sqlglot import exp

    names = ", ".join(tables)
    try:
        parsed = sqlglot.parse(sql, dialect=dialect)
    except (sqlglot.errors.SqlglotError, ValueError) as error:
        raise UpsertRefusedError("query-text", f"the query is not {dialect}: {error}", table=names) from error
    if len(parsed) != 1 or not isinstance(parsed[0], exp.Query):
        raise UpsertRefusedError("query-text", f"the text is not one query of {dialect}", table=names)
    return parsed[0]


def _table(name: str, dialect: str) -> exp.Table:
    from sqlglot import exp

    return exp.to_table(name, dialect=dialect)


def _read_tables(query: exp.Query) -> list[exp.Table]:
    """Where the query reads tables; a name that means a CTE there is none."""
    from sqlglot import exp
    from sqlglot.optimizer.scope import traverse_scope

    sources = [source for scope in traverse_scope(query) for source in scope.sources.values()]
    return list({id(source): source for source in sources if isinstance(source, exp.Table)}.values())


def _check_understood(query: exp.Query, read: Collection[int], wanted: Collection[_Name], dialect: str) -> None:
    """Refuse a query that names a table elsewhere than where it reads it, or as a CTE: its rows would all be shown."""
    from sqlglot import exp

    ctes = {_identity(_table(cte.alias, dialect), dialect) for cte in query.find_all(exp.CTE)}
    for mention in query.find_all(exp.Table):
        name = _identity(mention, dialect)
        if name in wanted and name not in ctes and id(mention) not in read:
            raise UpsertRefusedError("query-text", "the query names it where it reads no table", table=mention.name)


def _identity(mention: exp.Table, dialect: str) -> _Name:
    """The table's name as the dialect compares it."""
    from sqlglot import exp
    from sqlglot.optimizer.normalize_identifiers import normalize_identifiers

    bare = exp.Table(this=mention.this, db=mention.args.get("db"), catalog=mention.args.get("catalog")).copy()
    plain = normalize_identifiers(bare, dialect=dialect)
    return plain.catalog, plain.db, plain.name


def _narrow(mention: exp.Table, at: ReadAt, dialect: str) -> None:
    """Put the rows that are valid at the mark in the place of a table, under the name that the query calls it by."""
    from sqlglot import exp

    def column(name: str) -> exp.Column:
        return exp.column(exp.to_identifier(name, quoted=True))

    until = column(VALID_UNTIL)
    valid = exp.and_(column(VALID_FROM) <= at.mark, exp.or_(until.is_(exp.null()), until > at.mark))
    if at.deletes is not None:
        valid = exp.and_(valid, exp.not_(exp.Coalesce(this=column(at.deletes), expressions=[exp.false()])))
    hidden = [exp.to_identifier(name, quoted=True) for name in (VALID_FROM, VALID_UNTIL)]
    star = exp.Star(except_=hidden) if dialect in _STAR_EXCEPT else exp.Star()
    called = mention.args.get("alias") or exp.TableAlias(this=mention.this)
    bare = exp.Table(this=mention.this, db=mention.args.get("db"), catalog=mention.args.get("catalog"))
    around = {name: value for name, value in mention.args.items() if name in _AROUND and value}
    rows = exp.select(star).from_(bare.copy()).where(valid)
    mention.replace(exp.Subquery(this=rows, alias=called.copy(), **around))
