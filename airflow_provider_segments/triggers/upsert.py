"""Waits for an upsert table to reach a version, or a time, on a ZooKeeper watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_segments.triggers.base import SegmentsTrigger, when_changed

if TYPE_CHECKING:
    from airflow_provider_segments.core.table import SegmentStore, Table


def judge(table: Table, version: int | None, published_ms: int | None) -> dict[str, Any] | None:
    """The newest version when it is at least ``version`` and was published at or after ``published_ms``, else ``None``.

    Raises :class:`TableNotFoundError`, and :class:`UpsertRefusedError` for a table that is no upsert table.
    """
    from airflow_provider_segments.core.upsert.record import require_record

    record = require_record(table.lineage())
    last_ms = record.published[-1].at_ms if record.published else 0
    if record.clock < (version or 0) or last_ms < (published_ms or 0):
        return None
    return {"table": table.name, "version": record.clock, "published_ms": last_ms}


class UpsertMarkTrigger(SegmentsTrigger):
    """Fires when the table shows ``version`` or a later one, published at or after ``published_ms`` (epoch
    milliseconds). ``None`` asks for nothing.

    It watches the lineage, which holds the versions. See :func:`when_changed`.
    """

    def __init__(
        self, *, table: str, version: int | None = None, published_ms: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.version = version
        self.published_ms = published_ms

    def arguments(self) -> dict[str, Any]:
        """The table and the mark."""
        return {"table": self.table, "version": self.version, "published_ms": self.published_ms}

    async def wait(self, store: SegmentStore) -> dict[str, Any]:
        """Look whenever the lineage changes; the event is the newest version."""
        table = store.table(self.table)
        path = store.paths.lineage(self.table)
        return await when_changed(
            store, path, lambda: judge(table, self.version, self.published_ms), self.poll_interval
        )
