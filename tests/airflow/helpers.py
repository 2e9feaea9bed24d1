"""What several Airflow tests need."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.ledger import owner_metadata
from airflow_provider_segments.core.model.names import entry_tag
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

    from airflow_provider_segments.core.table import SegmentStore, Table
    from airflow_provider_segments.triggers.base import SegmentsTrigger

REPOSITORY = Path(__file__).parents[2]
HOME = Path(os.environ["AIRFLOW_HOME"])
RunDag = Callable[..., "DagRun"]


def states(run: DagRun) -> dict[str, str | None]:
    """State of each task instance of a run, by task id."""
    return {ti.task_id: str(ti.state) if ti.state else None for ti in run.get_task_instances()}


class TaskState(dict[str, Any]):
    """What Airflow's task state store offers an operator."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


def context(task_id: str = "task", run_id: str = "run", state: TaskState | None = None, **more: Any) -> Any:
    """A task's context, as far as the operators look at it. ``xcoms`` holds what they push."""
    from airflow.sdk.execution_time.context import OutletEventAccessors

    xcoms: dict[str, Any] = {}
    ti = SimpleNamespace(
        dag_id="dag",
        run_id=run_id,
        task_id=task_id,
        map_index=-1,
        xcom_push=lambda key, value: xcoms.update({key: value}),
    )
    return {
        "ti": ti,
        "task_state_store": TaskState() if state is None else state,
        "outlet_events": OutletEventAccessors(),
        "xcoms": xcoms,
        **more,
    }


def make_table(store: SegmentStore, name: str, kind: str = "REFRESH") -> Table:
    """A table without a time column."""
    config = {"tableName": name, "ingestionConfig": {"batchIngestionConfig": {"segmentIngestionType": kind}}}
    store.apply_config(TableConfig.from_json(config))
    return store.table(name)


def stage_rows(table: Table, entry_id: str, folder: Path, rows: dict[str, list[Any]], times: Any = (None, None)) -> str:
    """Stage one segment of ``rows``, as a build would, without Spark. Returns its name."""
    ticket = table.open_stage(entry_id)
    name = f"{table.name}_ALL_{entry_tag(entry_id)}_00000"
    file = f"{name}.{ticket.attempt}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    local = folder / file
    pyarrow.parquet.write_table(pyarrow.table(rows), local)
    table.storage.put_file(local, ticket.prefix + file, owner=owner_metadata(table.name, name, ticket.generation))
    payload = local.read_bytes()
    count = len(next(iter(rows.values())))
    record = SegmentRecord(name, file, count, len(payload), zlib.crc32(payload), *times)
    table.stage(ticket, [StagedSegment("ALL", record)])
    return name


async def first_event(trigger: SegmentsTrigger) -> dict[str, Any]:
    """The event of a trigger, as the triggerer asks for it: once."""
    async for event in trigger.run():
        return dict(event.payload)
    raise AssertionError("the trigger ended without an event")


async def fired(trigger: SegmentsTrigger, do: Callable[[], Any] | None = None, after: float = 0.5) -> dict[str, Any]:
    """The trigger's event, when ``do`` happens while it waits."""
    waiter = asyncio.ensure_future(first_event(trigger))
    if do is not None:
        await asyncio.sleep(after)
        assert not waiter.done()
        await asyncio.to_thread(do)
    return await asyncio.wait_for(waiter, 25)


def push_rows(table: Table, folder: Path, rows: dict[str, list[Any]], identity: str | None = None) -> str:
    """One whole push without Spark. Returns the entry's id."""
    entry_id = table.start(identity=identity).entry_id
    stage_rows(table, entry_id, folder, rows)
    table.end(entry_id)
    return str(entry_id)


class MetricsBackend:
    """A metrics backend of Airflow: what statsd or OpenTelemetry would be told. Counters are summed, gauges kept."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def incr(self, stat: str, count: int = 1, **_: Any) -> None:
        self.seen[stat] += count

    def gauge(self, stat: str, value: float, **_: Any) -> None:
        self.seen[stat] = int(value)

    def read(self, prefix: str = "segments.ledgers.") -> dict[str, int]:
        """Those below ``prefix`` that are not 0."""
        return {
            name.removeprefix(prefix): count for name, count in self.seen.items() if count and name.startswith(prefix)
        }
