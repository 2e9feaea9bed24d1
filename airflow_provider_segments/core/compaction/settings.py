"""What a compaction makes of a table, and what it leaves alone."""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import Granularity
from airflow_provider_segments.exceptions import InvalidConfigError

AGGREGATES = ("sum", "count", "min", "max")
"""How a rollup joins the values of a column (``count`` sums counts that are there already)."""


class Policy(enum.Enum):
    """Which time chunks come first: the newest (Druid's order), or those with the most segments too many."""

    NEWEST_FIRST = "newest-first"
    MOST_FRAGMENTED_FIRST = "most-fragmented-first"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """How to compact a table. Make one with :meth:`of`, which takes what a table's config says.

    ``granularity`` is that of the outputs, never finer than the inputs' own. ``skip_offset_ms`` leaves alone what ends
    less than that before the end of the latest segment. ``max_input_bytes`` and ``max_input_segments`` bound one group,
    ``max_groups`` one run. ``deduplicate`` names key columns: of the rows of one key the last (in the order of the
    sort) is kept. ``rollup`` gives an aggregate for each column that is no key; all other columns are keys then. Both
    empty: every row is kept.
    """

    target_rows: int
    granularity: Granularity
    sort_columns: tuple[str, ...] = ()
    compression: str = "zstd"
    policy: Policy = Policy.NEWEST_FIRST
    skip_offset_ms: int = 0
    max_input_bytes: int = 1 << 40
    max_input_segments: int = 100_000
    max_groups: int = 1_000_000
    deduplicate: tuple[str, ...] = ()
    rollup: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name in ("target_rows", "max_input_bytes", "max_input_segments", "max_groups"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"compaction setting {name} must be above 0, not {getattr(self, name)}")
        if self.skip_offset_ms < 0:
            raise InvalidConfigError(f"compaction setting skip_offset_ms must not be negative: {self.skip_offset_ms}")
        if self.deduplicate and self.rollup:
            raise InvalidConfigError("a compaction either deduplicates or rolls up, not both")
        if unknown := [how for _, how in self.rollup if how not in AGGREGATES]:
            raise InvalidConfigError(f"rollup {unknown[0]!r} is unknown; use one of {', '.join(AGGREGATES)}")

    @classmethod
    def of(cls, config: TableConfig, **changes: Any) -> CompactionSettings:
        """What the table's config says, with ``changes``. Raises :class:`InvalidConfigError`."""
        settings = cls(
            target_rows=config.target_rows,
            granularity=config.granularity,
            sort_columns=config.sort_columns,
            compression=config.compression,
        )
        return replace(settings, **changes)

    @property
    def fingerprint(self) -> str:
        """16 digits that are the same for settings that make the same segments: written into each output, so that a
        chunk which is as these settings want it is not compacted again (Druid's ``lastCompactionState``)."""
        return _fingerprint_of(self)


@lru_cache(maxsize=64)
def _fingerprint_of(settings: CompactionSettings) -> str:
    """Asked for each segment of a table."""
    shape = {
        key: value
        for key, value in asdict(settings).items()
        if key in ("target_rows", "sort_columns", "compression", "deduplicate", "rollup")
    }
    shape["granularity"] = settings.granularity.name
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]
