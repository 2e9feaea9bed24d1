"""Partial updates: a new row is merged, column by column, with the row it takes the place of (Pinot's strategies).

The *chain* of a winner is what it is merged from: the newest whole row of its key, then the events of the batch that
are newer, oldest first. Whole rows are the one that readers see, and those of ordinary pushes. A delete record begins a
chain anew: nothing of what was there before comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy
import pyarrow

from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.upsert.columns import SOURCE_COLUMNS
from airflow_provider_segments.upsert.events import Column, IngestionUpsertEvents
from airflow_provider_segments.upsert.resolve import replays_and_order

WINNER, AT = "$winner", "$at"
"""Columns of the rows to merge: the number of the row's winner, and its place in the chain."""

_LAST = "last({0} ORDER BY {at}) FILTER ({0} IS NOT NULL)"
_LISTS = "flatten(list({0} ORDER BY {at}) FILTER ({0} IS NOT NULL))"
_MERGED = {
    "OVERWRITE": _LAST,
    "FORCE_OVERWRITE": "last({0} ORDER BY {at})",
    "IGNORE": "first({0} ORDER BY {at}) FILTER ({0} IS NOT NULL)",
    "INCREMENT": "sum({0})",
    "MIN": "min({0})",
    "MAX": "max({0})",
    "APPEND": _LISTS,
    "UNION": f"list_sort(list_distinct({_LISTS}))",
}


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """The rows of all chains, each chain from its oldest row on: ``winner`` is the number of the row's winner,
    ``segment`` and ``row`` say where the row is."""

    winner: Column
    segment: Column
    row: Column


def chains(batch: IngestionUpsertEvents, holders: IngestionUpsertEvents, winners: Column, whole: Column) -> Chains:
    """The chains of ``winners``, which are row numbers of ``batch`` in rising order. ``whole`` is a mask of the batch:
    rows that are merged with nothing older."""
    both = IngestionUpsertEvents.concat([holders, batch])
    order, same_key, replay = replays_and_order(both)
    kept, first = order[~replay], ~same_key[~replay]
    places = numpy.arange(len(kept))
    begins = first | numpy.concatenate([numpy.ones(len(holders), bool), whole])[kept]
    begin = numpy.maximum.accumulate(numpy.where(begins, places, 0))
    key = numpy.cumsum(first) - 1
    last = numpy.flatnonzero(numpy.append(first[1:], True)) if len(kept) else places
    at = numpy.searchsorted(winners, kept[last] - len(holders))
    known = numpy.zeros(len(last), bool)
    within = at < len(winners)
    known[within] = winners[at[within]] == kept[last][within] - len(holders)
    wanted = known[key] & (places >= begin[last][key])
    rows = both.take(kept[wanted])
    return Chains(at[key[wanted]], rows.segment, rows.row)


def merged(rows: pyarrow.Table, config: UpsertConfig) -> pyarrow.Table:
    """One row for each winner, in the order of their numbers: ``rows`` merged as the config says for each column.

    ``rows`` have ``$winner`` and ``$at``. A delete record that is not the winner itself contributes nothing. Where
    a value is null, the other one stays, except with FORCE_OVERWRITE. Raises :class:`SourceDataError` for a column
    that cannot be merged in its way, and for a sum that its type cannot hold.
    """
    names = [name for name in rows.column_names if name not in (WINNER, AT)]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", rows)
        types = {name: kind for name, kind, *_ in connection.execute("DESCRIBE rows").fetchall()}
        picked = ", ".join(f"{_expression(name, types[name], config)} AS {_quoted(name)}" for name in names)
        last = f"max({_quoted(AT)}) OVER (PARTITION BY {_quoted(WINNER)})"
        counted = "true" if config.deletes is None else f"NOT coalesce({_quoted(config.deletes)}, false)"
        try:
            query = (
                f"SELECT {picked} FROM (SELECT *, {last} AS newest FROM rows) "  # noqa: S608 - names are quoted
                f"WHERE {counted} OR {_quoted(AT)} = newest GROUP BY {_quoted(WINNER)} ORDER BY {_quoted(WINNER)}"
            )
            found: pyarrow.Table = connection.sql(query).to_arrow_table()
        except (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.BinderException) as error:
            raise SourceDataError(f"partial update: {str(error).splitlines()[0]}") from None
    return found.cast(pyarrow.schema([rows.schema.field(name) for name in names]))


def _expression(name: str, kind: str, config: UpsertConfig) -> str:
    strategy = "FORCE_OVERWRITE" if name in SOURCE_COLUMNS else config.strategy_of(name)
    if strategy in ("APPEND", "UNION") and not kind.endswith("[]"):
        raise SourceDataError(f"column {name!r} is {kind}; partialUpsertStrategies {strategy} needs a list")
    value = _MERGED[strategy].format(_quoted(name), at=_quoted(AT))
    return value if kind == '"NULL"' else f"CAST({value} AS {kind})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
