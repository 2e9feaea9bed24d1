"""Tables with locks, pushes under locks, and refusals by rule, for the regression tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_provider_segments.core.locking import LockRequest, LockType, granted_lock
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import parse_chunk
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import Delete
from airflow_provider_segments.exceptions import RefusedError
from tests.support.tables import stage

DAY, HOUR_9, MONTH = "2013-01-01", "2013-01-01T09", "2013-01"


def placed_table(store: SegmentStore, **segments_config: str) -> Table:
    """A table whose segments have versions."""
    document: dict[str, Any] = {
        "tableName": "t",
        "segmentsConfig": {"timeColumnName": "ts", **segments_config},
        "segmentBuildConfig": {"segmentLocking": True, "segmentGranularity": "DAY"},
    }
    store.apply_config(TableConfig.from_json(document))
    return store.table("t")


def lock(
    table: Table, chunk: str, lock_type: LockType = LockType.EXCLUSIVE, *, group: str = "run", task: str = "task"
) -> HeldLock:
    """A lock on a time chunk."""
    request = LockRequest(group=group, task=task, interval=parse_chunk(chunk), lock_type=lock_type)
    return HeldLock(granted_lock(table.name, table.locks.acquire(request)).lock_id, group, task)


def bring(table: Table, name: str, chunk: str, segments_from: Sequence[str] = (), **start: Any) -> str:
    """A whole push of one segment; returns its entry id."""
    entry_id = table.start(segments_from, **start).entry_id
    stage(table, entry_id, [name], chunks=[chunk])
    table.end(entry_id)
    return entry_id


def overwrite(table: Table, name: str, chunk: str) -> str:
    """The same in the place of what is older there, under a lock of its own that is given back."""
    held = lock(table, chunk, group=name)
    entry_id = bring(table, name, chunk, locks=[held])
    table.locks.release(held.group, held.task)
    return entry_id


def rewrite(table: Table, segments_from: list[str], *names: str) -> str:
    """The rows of some segments in others, each with a registry record of its own."""
    entry_id = table.start(segments_from, rewrite=DAY).entry_id
    for name in names:
        stage(table, entry_id, [name], stager=name, chunks=[DAY])
    table.end(entry_id)
    return entry_id


def lose(table: Table, entry_id: str, *names: str) -> None:
    """Registry records of an entry are gone, and not by our hands."""
    for shard in table._context.registry.of_entry(entry_id):
        if shard.name.stager in names:
            table.store.session.commit([Delete(shard.name.path, shard.version)])


def seen(table: Table) -> dict[str, int]:
    """The visible segments, and how many stretches of their time are visible (0: all of it)."""
    return {segment.name: len(segment.visible_in) for segment in table.snapshot().segments}


def assert_refused(rule: str, act: Callable[..., object], *args: object, **how: object) -> None:
    """It is refused by that rule."""
    with pytest.raises(RefusedError) as caught:
        act(*args, **how)
    assert caught.value.rule == rule, caught.value
