"""Events that cannot be compared with others are sorted out before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.exceptions import SourceDataError
from airflow_provider_segments.upsert.columns import OFFSET, PARTITION, PLACE_TYPES, REGION

REASON = "$reason"


@dataclass(frozen=True, slots=True)
class SortedOut:
    """``rows`` are usable; ``rejected`` are not, and say why in ``$reason``."""

    rows: pyarrow.Table
    rejected: pyarrow.Table


def sort_out(events: pyarrow.Table, config: TableConfig) -> SortedOut:
    """Sort ``events`` out. Raises :class:`SourceDataError` when a column is missing that every event needs, and, unless
    the table's config says ``onBadTime: reject``, for the first event that cannot be used."""
    upsert = config.upsert
    assert upsert is not None
    _check_columns(events, upsert)
    events = _with_place_types(events, config.name)
    reasons = numpy.full(events.num_rows, "", object)
    for name in (*upsert.primary_key, upsert.comparison_column, PARTITION, OFFSET, *_time(config)):
        reasons[_mask(pyarrow.compute.is_null(events.column(name)))] = f"{name} is null"
    if REGION in events.column_names:
        named = events.column(REGION).fill_null(upsert.regions[0])
        known = pyarrow.compute.is_in(named, pyarrow.array(upsert.regions))
        reasons[~_mask(known)] = f"{REGION} is not among upsertConfig.regions"
    bad = reasons != ""
    if bad.any() and config.on_bad_time != "reject":
        example = events.slice(int(numpy.flatnonzero(bad)[0]), 1).to_pylist()[0]
        raise SourceDataError(
            f"table {config.name!r}: {int(bad.sum())} of {len(bad)} events cannot be used: {reasons[bad][0]}; for "
            f"example {str(example)[:500]}. Correct them, or set onBadTime to reject"
        )
    rejected = events.filter(pyarrow.array(bad)).append_column(REASON, pyarrow.array(reasons[bad], pyarrow.string()))
    return SortedOut(events.filter(pyarrow.array(~bad)) if bad.any() else events, rejected)


def _check_columns(events: pyarrow.Table, upsert: UpsertConfig) -> None:
    needed = [*upsert.primary_key, upsert.comparison_column, PARTITION, OFFSET]
    if upsert.deletes is not None:
        needed.append(upsert.deletes)
    if missing := [name for name in needed if name not in events.column_names]:
        raise SourceDataError(
            f"events need the columns {', '.join(needed)}, and {', '.join(missing)} is missing: "
            f"they have {', '.join(events.column_names)}"
        )


def _with_place_types(events: pyarrow.Table, table: str) -> pyarrow.Table:
    """The events with ``$region``, ``$partition`` and ``$offset`` in the types that every segment has them in."""
    for name, kind in PLACE_TYPES.items():
        index = events.schema.get_field_index(name)
        if index < 0 or events.schema.field(index).type == kind:
            continue
        try:
            events = events.set_column(index, name, events.column(index).cast(kind))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
            raise SourceDataError(f"table {table!r}: column {name} cannot be read as {kind}: {error}") from error
    return events


def _time(config: TableConfig) -> tuple[str, ...]:
    return () if config.time_column is None else (config.time_column,)


def _mask(found: Any) -> Any:
    return found.fill_null(False).to_numpy()
