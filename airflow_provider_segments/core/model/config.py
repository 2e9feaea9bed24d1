"""A table's config, in Pinot's own field names where Pinot has one.

Pinot's sections that we do not use (``tenants``, ``routing`` ...) are kept as they are. Our own section,
``segmentBuildConfig``, is checked strictly: an unknown key there is most likely a typing mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from airflow_provider_segments.core.model.interval import Granularity
from airflow_provider_segments.core.model.names import check_table_name, is_number
from airflow_provider_segments.core.model.period import parse_period
from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.exceptions import InvalidConfigError

INGESTION_TYPES = ("APPEND", "REFRESH")
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
TIME_FORMATS = ("TIMESTAMP", "EPOCH_SECONDS", "EPOCH_MILLIS", "EPOCH_MICROS")
TIME_UNITS = {"MINUTES": 60_000, "HOURS": 3_600_000, "DAYS": 86_400_000}
DAY_MS = 86_400_000

_COLUMN = re.compile(r"[^\x00-\x1f`]{1,128}")
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([KMGTP]?)B?", re.ASCII | re.IGNORECASE)
_BUILD_KEYS = {
    "segmentGranularity", "timeFormat", "targetRowsPerSegment", "compression", "onBadTime", "statisticsColumns",
    "segmentLocking",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableConfig:
    """How one table is built, kept and cleaned. Build one with :meth:`from_json`, which checks every value.

    ``time_format`` is TIMESTAMP (a date or timestamp column, or ISO 8601 text), EPOCH_SECONDS, EPOCH_MILLIS,
    EPOCH_MICROS, or a Spark datetime pattern for text. ``on_bad_time`` is ``refuse`` (fail the build) or ``reject``
    (put rows without a usable time into a reject folder). ``target_rows`` is the most rows one segment may hold.
    Periods and times are in milliseconds, ``quota_bytes`` in bytes; ``None`` means not set. ``segment_locking`` gives
    new segments of an APPEND table a place (version and partition id) under locks, so that pushes can overwrite time.
    ``upsert`` is set for a table that shows one row a key.
    """

    name: str
    ingestion_type: str = "APPEND"
    time_column: str | None = None
    time_format: str = "TIMESTAMP"
    granularity: Granularity = Granularity.ALL
    sort_columns: tuple[str, ...] = ()
    target_rows: int = 1_000_000
    compression: str = "zstd"
    on_bad_time: str = "refuse"
    statistics_columns: tuple[str, ...] = ()
    replaced_retention_ms: int = DAY_MS
    reverted_retention_ms: int = DAY_MS
    entry_retention_ms: int = DAY_MS
    time_retention_ms: int | None = None
    quota_bytes: int | None = None
    segment_locking: bool = False
    upsert: UpsertConfig | None = None
    raw: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), compare=False, repr=False)

    @property
    def is_refresh(self) -> bool:
        """Whether each push replaces the whole table (Pinot's REFRESH)."""
        return self.ingestion_type == "REFRESH"

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> TableConfig:
        """The config a JSON document describes. Raises :class:`InvalidConfigError` naming the field that is wrong."""
        if not isinstance(raw, Mapping):
            raise InvalidConfigError(f"a table config must be a JSON object, not {type(raw).__name__}")
        _check_storable(raw)
        name = check_table_name(_text(raw, "tableName"))
        segments = _section(raw, "segmentsConfig")
        ingestion = _section(_section(raw, "ingestionConfig"), "batchIngestionConfig")
        build = _section(raw, "segmentBuildConfig")
        unknown = sorted(set(build) - _BUILD_KEYS)
        if unknown:
            raise InvalidConfigError(
                f"table {name!r}: segmentBuildConfig has no field {', '.join(unknown)}; "
                f"it has {', '.join(sorted(_BUILD_KEYS))}"
            )
        kind = ingestion.get("segmentIngestionType") or segments.get("segmentPushType") or "APPEND"
        kind = _choice("segmentIngestionType", kind, INGESTION_TYPES, str.upper)
        time_column = _column(segments.get("timeColumnName"), "timeColumnName")
        granularity = Granularity.parse(build.get("segmentGranularity", "DAY" if time_column else "ALL"))
        if granularity is not Granularity.ALL and time_column is None:
            raise InvalidConfigError(
                f"table {name!r}: segmentGranularity {granularity.name} needs segmentsConfig.timeColumnName; "
                "without a time column it must be ALL"
            )
        locking = build.get("segmentLocking", False)
        if not isinstance(locking, bool) and locking != "concurrent":  # Druid's word for what is the only mode here
            raise InvalidConfigError(f"config field segmentLocking must be true or false, not {locking!r}")
        if locking and kind == "REFRESH":
            raise InvalidConfigError(
                f"table {name!r}: segmentLocking is for APPEND tables; each push of a REFRESH table replaces all of it"
            )
        upsert = UpsertConfig.from_json(raw, time_column)
        if upsert is not None and (locking or kind == "REFRESH"):
            raise InvalidConfigError(
                f"table {name!r}: an upsert table is an APPEND table without segmentLocking: its keys say what is newer"
            )
        time_format = _text(build, "timeFormat", "TIMESTAMP")
        if upsert is not None and segments.get("retentionTimeValue") is not None:
            upsert.check_retention(name, time_column, time_format)
        replaced_default = "1d" if kind == "REFRESH" else "4h"
        replaced_period = _text(segments, "replacedSegmentsRetentionPeriod", replaced_default)
        return cls(
            name=name,
            ingestion_type=kind,
            time_column=time_column,
            time_format=time_format,
            granularity=granularity,
            sort_columns=_columns(_section(raw, "tableIndexConfig"), "sortedColumn"),
            target_rows=_count(build, "targetRowsPerSegment", 1_000_000),
            compression=_choice("compression", build.get("compression", "zstd"), COMPRESSIONS, str.lower),
            on_bad_time=_choice("onBadTime", build.get("onBadTime", "refuse"), ("refuse", "reject"), str.lower),
            statistics_columns=_columns(build, "statisticsColumns"),
            replaced_retention_ms=parse_period(replaced_period),
            reverted_retention_ms=parse_period(_text(segments, "revertedSegmentsRetentionPeriod", replaced_period)),
            entry_retention_ms=parse_period(_text(segments, "lineageEntryCleanupRetentionPeriod", "1d")),
            time_retention_ms=_time_retention(segments),
            quota_bytes=_quota(_section(raw, "quota")),
            segment_locking=bool(locking),
            upsert=upsert,
            raw=MappingProxyType(dict(raw)),
        )

    def to_json(self) -> dict[str, Any]:
        """The document this config was made from, or one that says the same."""
        if self.raw:
            return dict(self.raw)
        segments: dict[str, Any] = {
            "replacedSegmentsRetentionPeriod": f"{self.replaced_retention_ms // 1000}s",
            "revertedSegmentsRetentionPeriod": f"{self.reverted_retention_ms // 1000}s",
            "lineageEntryCleanupRetentionPeriod": f"{self.entry_retention_ms // 1000}s",
        }
        if self.time_column:
            segments["timeColumnName"] = self.time_column
        if self.time_retention_ms is not None:
            segments |= {"retentionTimeUnit": "MINUTES", "retentionTimeValue": str(self.time_retention_ms // 60_000)}
        document: dict[str, Any] = {
            "tableName": self.name,
            "segmentsConfig": segments,
            "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": self.ingestion_type}},
            "tableIndexConfig": {"sortedColumn": list(self.sort_columns)},
            "segmentBuildConfig": {
                "segmentGranularity": self.granularity.name,
                "timeFormat": self.time_format,
                "targetRowsPerSegment": self.target_rows,
                "compression": self.compression,
                "onBadTime": self.on_bad_time,
                "statisticsColumns": list(self.statistics_columns),
            },
        }
        if self.segment_locking:
            document["segmentBuildConfig"]["segmentLocking"] = True
        if self.quota_bytes is not None:
            document["quota"] = {"storage": str(self.quota_bytes)}
        return document


def parse_size(text: str) -> int:
    """Bytes of a size as Pinot's ``quota.storage`` writes it (``10G``, ``512MB``, ``1024``); units are powers of 1024.

    Raises :class:`InvalidConfigError` for anything else.
    """
    found = _SIZE.fullmatch(str(text).strip())
    if found is None:
        raise InvalidConfigError(f"size {text!r} is not valid; write a number and one of K, M, G, T, P, as in 10G")
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2].upper() or " "))


def _check_storable(raw: Mapping[str, Any]) -> None:
    """Refuse what JSON in UTF-8 cannot hold, such as half of a surrogate pair, before anything is written."""
    try:
        json.dumps(dict(raw), ensure_ascii=False, allow_nan=False, default=dict).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfigError(f"a table config must be a JSON document of valid Unicode text: {error}") from None


def _section(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = raw.get(key)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise InvalidConfigError(f"config field {key} must be a JSON object, not {type(section).__name__}")
    return section


def _text(raw: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = raw.get(key, default)
    if not isinstance(value, str) or not value:
        raise InvalidConfigError(f"config field {key} must be a non-empty string, not {value!r}")
    return value


def _count(raw: Mapping[str, Any], key: str, default: int) -> int:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidConfigError(f"config field {key} must be a whole number above 0, not {value!r}")
    return value


def _choice(key: str, value: Any, allowed: tuple[str, ...], fold: Any) -> str:
    folded = fold(value) if isinstance(value, str) and value.isascii() else value
    if folded not in allowed:
        raise InvalidConfigError(f"config field {key} must be one of {', '.join(allowed)}, not {value!r}")
    return str(folded)


def _column(value: Any, key: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or _COLUMN.fullmatch(value) is None:
        raise InvalidConfigError(f"config field {key}: {value!r} is not a column name")
    return value


def _columns(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = raw.get(key) or []
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise InvalidConfigError(f"config field {key} must be a list of column names, not {value!r}")
    columns = tuple(column for name in names if (column := _column(name, key)) is not None)
    if len(set(columns)) != len(columns):
        raise InvalidConfigError(f"config field {key} names a column twice: {list(columns)}")
    return columns


def _time_retention(segments: Mapping[str, Any]) -> int | None:
    unit, value = segments.get("retentionTimeUnit"), segments.get("retentionTimeValue")
    if unit is None and value is None:
        return None
    if unit is None or value is None:
        raise InvalidConfigError("config fields retentionTimeUnit and retentionTimeValue must be set together")
    unit = _choice("retentionTimeUnit", unit, tuple(TIME_UNITS), str.upper)
    if isinstance(value, bool) or not is_number(str(value)) or int(value) < 1:
        raise InvalidConfigError(f"config field retentionTimeValue must be a whole number above 0, not {value!r}")
    return int(value) * TIME_UNITS[unit]


def _quota(quota: Mapping[str, Any]) -> int | None:
    storage = quota.get("storage")
    return None if storage is None else parse_size(storage)
