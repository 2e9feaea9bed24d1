"""The ``upsertConfig`` of a table, in Pinot's own field names where Pinot has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from airflow_provider_segments.core.model.period import parse_period
from airflow_provider_segments.exceptions import InvalidConfigError

MODES = ("NONE", "FULL", "PARTIAL")
STRATEGIES = ("OVERWRITE", "IGNORE", "INCREMENT", "APPEND", "UNION", "MIN", "MAX", "FORCE_OVERWRITE")
MAX_KEY_PARTITIONS = 256
_COMPARED_TIMES = ("TIMESTAMP", "EPOCH_SECONDS", "EPOCH_MILLIS", "EPOCH_MICROS")
_FIELDS = {
    "mode", "comparisonColumns", "comparisonColumn", "deleteRecordColumn", "outOfOrderRecordColumn",
    "dropOutOfOrderRecord", "metadataTTL", "partialUpsertStrategies", "defaultPartialUpsertStrategy",
    "keyPartitions", "regions", "keepVersions", "heartbeatInterval",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class UpsertConfig:
    """One row a key: how a table's rows are told apart, and which of them is the newest.

    ``primary_key`` are Pinot's ``schema.primaryKeyColumns``. Of two rows of a key the one with the greater
    ``comparison_column`` is seen. Rows of a key are kept together in one of ``key_partitions``. ``deletes`` names a
    boolean column that is true in a delete record, ``out_of_order`` a boolean column that is written true for rows that
    are never visible; without it such rows are counted and not written. ``regions`` are the names that a row's
    ``$region`` may have, in the order in which they win a tie. ``keep_versions`` is how many versions can be read and
    gone back to. ``heartbeat_ms`` is how often each region is to send a heartbeat, ``None`` for a table without.
    """

    mode: str
    primary_key: tuple[str, ...]
    comparison_column: str
    key_partitions: int = 4
    deletes: str | None = None
    out_of_order: str | None = None
    regions: tuple[str, ...] = ("",)
    keep_versions: int = 1000
    heartbeat_ms: int | None = None
    strategies: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    default_strategy: str = "OVERWRITE"

    @property
    def is_partial(self) -> bool:
        """Whether a new row is merged with the one it replaces."""
        return self.mode == "PARTIAL"

    def strategy_of(self, column: str) -> str:
        """How a partial update merges ``column``."""
        fixed = {*self.primary_key, self.comparison_column, self.deletes, self.out_of_order}
        return "OVERWRITE" if column in fixed else self.strategies.get(column, self.default_strategy)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], time_column: str | None) -> UpsertConfig | None:
        """The upsert part of a table config; ``None`` for a table that has none.

        The comparison column is by default ``time_column``. Raises :class:`InvalidConfigError`.
        """
        section = raw.get("upsertConfig") or {}
        if not isinstance(section, Mapping):
            raise InvalidConfigError("config field upsertConfig must be a JSON object")
        if unknown := sorted(set(section) - _FIELDS):
            raise InvalidConfigError(f"upsertConfig has no field {', '.join(unknown)}; it has {', '.join(_FIELDS)}")
        mode = _choice("mode", section.get("mode", "NONE"), MODES)
        if mode == "NONE":
            return None
        schema = raw.get("schema") or {}
        key = _names("schema.primaryKeyColumns", schema.get("primaryKeyColumns") if isinstance(schema, Mapping) else 0)
        if not key:
            raise InvalidConfigError("an upsert table needs schema.primaryKeyColumns: the columns that make a key")
        made = cls(
            mode=mode,
            primary_key=key,
            comparison_column=_comparison(section, time_column),
            key_partitions=_count(section, "keyPartitions", 4, MAX_KEY_PARTITIONS),
            deletes=_name(section, "deleteRecordColumn"),
            out_of_order=_name(section, "outOfOrderRecordColumn"),
            regions=_names("upsertConfig.regions", section.get("regions", [""]), empty=True),
            keep_versions=_count(section, "keepVersions", 1000, 10_000),
            heartbeat_ms=_interval(section),
            strategies=MappingProxyType(_strategies(section, mode)),
            default_strategy=_choice(
                "defaultPartialUpsertStrategy", section.get("defaultPartialUpsertStrategy", "OVERWRITE"), STRATEGIES
            ),
        )
        made._check(section)
        return made

    def check_change(self, new: UpsertConfig | None, table: str) -> None:
        """Raise :class:`InvalidConfigError` for what cannot be changed while there are rows: they were partitioned by
        the key, and compared in that order."""
        advice = f"make another table, and push the rows of {table!r} into it"
        if new is None:
            raise InvalidConfigError(f"table {table!r} is an upsert table and cannot become another one: {advice}")
        for name, before, after in (
            ("schema.primaryKeyColumns", self.primary_key, new.primary_key),
            ("upsertConfig.keyPartitions", self.key_partitions, new.key_partitions),
            ("upsertConfig.comparisonColumns", self.comparison_column, new.comparison_column),
            ("upsertConfig.mode", self.mode, new.mode),
            ("upsertConfig.deleteRecordColumn", self.deletes, new.deletes),
        ):
            if before != after:
                raise InvalidConfigError(
                    f"table {table!r}: {name} cannot be changed in place from {before!r} to {after!r}: {advice}"
                )
        if new.regions[: len(self.regions)] != self.regions:
            raise InvalidConfigError(
                f"table {table!r}: upsertConfig.regions may only grow at its end; rows have places in {self.regions!r}"
            )

    def check_retention(self, table: str, time_column: str | None, time_format: str) -> None:
        """Raise :class:`InvalidConfigError` where a time retention could bring old rows back: rows must be compared by
        their time, or a row that is older by time could be the newest of its key."""
        if self.comparison_column != time_column or time_format not in _COMPARED_TIMES:
            raise InvalidConfigError(
                f"table {table!r}: a time retention of an upsert table needs timeColumnName to be the comparison "
                f"column {self.comparison_column!r}, and timeFormat to be one of {', '.join(_COMPARED_TIMES)}; "
                "without them, end old rows with `segments upsert cutoff`"
            )

    def _check(self, section: Mapping[str, Any]) -> None:
        if self.comparison_column in self.primary_key:
            raise InvalidConfigError(f"comparison column {self.comparison_column!r} is a part of the key: nothing wins")
        if section.get("metadataTTL"):
            raise InvalidConfigError(
                "upsertConfig.metadataTTL: keys live as long as rows here; set segmentsConfig.retentionTimeUnit and "
                "retentionTimeValue"
            )
        if section.get("dropOutOfOrderRecord") and self.out_of_order:
            raise InvalidConfigError("upsertConfig has both dropOutOfOrderRecord and outOfOrderRecordColumn; set one")
        if self.heartbeat_ms is not None and "" in self.regions:
            raise InvalidConfigError("upsertConfig.heartbeatInterval needs upsertConfig.regions: who sends heartbeats")
        special = [name for name in (*self.primary_key, self.comparison_column, self.deletes) if name]
        if wrong := [name for name in self.strategies if name in special]:
            raise InvalidConfigError(f"partialUpsertStrategies must not name {wrong[0]!r}: it decides which row wins")


def _comparison(section: Mapping[str, Any], time_column: str | None) -> str:
    given = section.get("comparisonColumns", section.get("comparisonColumn")) or time_column
    columns = _names("upsertConfig.comparisonColumns", [given] if isinstance(given, str) else given)
    if len(columns) != 1:
        raise InvalidConfigError("an upsert table needs exactly one comparison column, or a time column")
    return columns[0]


def _strategies(section: Mapping[str, Any], mode: str) -> dict[str, str]:
    given = section.get("partialUpsertStrategies") or {}
    if not isinstance(given, Mapping):
        raise InvalidConfigError("config field upsertConfig.partialUpsertStrategies must be a JSON object")
    if given and mode != "PARTIAL":
        raise InvalidConfigError("upsertConfig.partialUpsertStrategies needs mode PARTIAL")
    return {str(name): _choice(f"partialUpsertStrategies.{name}", how, STRATEGIES) for name, how in given.items()}


def _interval(section: Mapping[str, Any]) -> int | None:
    given = section.get("heartbeatInterval")
    if given is None:
        return None
    interval = parse_period(given) if isinstance(given, str) else 0
    if interval <= 0:
        raise InvalidConfigError(f"upsertConfig.heartbeatInterval must be a period such as 1m, not {given!r}")
    return interval


def _choice(key: str, value: Any, allowed: tuple[str, ...]) -> str:
    folded = value.upper() if isinstance(value, str) else value
    if folded not in allowed:
        raise InvalidConfigError(f"upsertConfig.{key} must be one of {', '.join(allowed)}, not {value!r}")
    return str(folded)


def _count(section: Mapping[str, Any], key: str, default: int, most: int) -> int:
    value = section.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidConfigError(f"upsertConfig.{key} must be a whole number from 1 to {most}, not {value!r}")
    return value


def _name(section: Mapping[str, Any], key: str) -> str | None:
    value = section.get(key)
    return None if value is None else _names(f"upsertConfig.{key}", [value])[0]


def _names(key: str, value: Any, *, empty: bool = False) -> tuple[str, ...]:
    names = value if isinstance(value, list | tuple) else ([] if value is None else [value])
    if not all(isinstance(name, str) and (name or empty) for name in names) or len(set(names)) != len(names):
        raise InvalidConfigError(f"config field {key} must be a list of different names, not {value!r}")
    return tuple(names)
