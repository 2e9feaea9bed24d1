"""What the columns of an input must be called to become segments of a table."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.exceptions import SourceDataError


def check_names(config: TableConfig, names: Sequence[str]) -> None:
    """Raise :class:`SourceDataError` unless every column can be called so."""
    if not names:
        raise SourceDataError(f"table {config.name!r}: the input has no columns")
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.casefold())) is not None:
            raise SourceDataError(
                f"table {config.name!r}: columns {other!r} and {name!r} are one name to readers that ignore case; "
                "rename one"
            )
        if not name or name.startswith("__segments_"):
            raise SourceDataError(f"table {config.name!r}: {name!r} cannot be a column's name here; rename it")
        seen[name.casefold()] = name


def check_wanted(config: TableConfig, names: Sequence[str]) -> None:
    """Raise :class:`SourceDataError` unless the sort and statistics columns of ``config`` are among ``names``."""
    for what, wanted in (("sort", config.sort_columns), ("statistics", config.statistics_columns)):
        if absent := [name for name in wanted if name not in names]:
            raise SourceDataError(
                f"table {config.name!r}: the input has no {what} column {absent[0]!r}; it has {', '.join(names)}"
            )


def check_time_column(config: TableConfig, names: Sequence[str]) -> None:
    """Raise :class:`SourceDataError` unless the time column of ``config``, if it has one, is among ``names``."""
    if config.time_column is not None and config.time_column not in names:
        raise SourceDataError(
            f"table {config.name!r}: the input has no time column {config.time_column!r}; "
            f"it has {', '.join(names) or 'no columns'}"
        )
