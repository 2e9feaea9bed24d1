"""A process of a newer version: run as ``python newer_version.py HOSTS CLUSTER STORAGE FOLDER SECONDS NAME``.

As ``newer`` it writes an optional field into every record that the present version does not know (a newer minor
version), and deletion messages of format 3, which only it can read (a newer format). As ``present`` it is this version.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from airflow_provider_segments.core.lineage import guard
from airflow_provider_segments.core.model import ledger, records
from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.registry import registry
from airflow_provider_segments.core.table import SegmentStore
from tests.deletion.support import World
from tests.support.tables import HandClock

PRESENT, FUTURE = b'{"format":2,', b'{"format":3,'


def become_newer() -> None:
    """Write what the next versions will."""
    encode, decode_batch = records.encode, ledger.decode_batch

    def with_field(record: Any) -> bytes:
        return msgspec.json.encode({**msgspec.json.decode(encode(record)), "later": "kept"})

    def of_the_future(message: Any) -> bytes:
        encoded = with_field(message)
        return encoded.replace(PRESENT, FUTURE, 1) if isinstance(message, ledger.DeletionBatch) else encoded

    for module in (records, guard.records):
        module.encode = with_field  # type: ignore[attr-defined]
    registry.encode = with_field  # type: ignore[attr-defined]
    ledger.encode = of_the_future
    ledger.decode_batch = lambda payload, where: decode_batch(payload.replace(FUTURE, PRESENT, 1), where)


def work(store: SegmentStore, folder: Path, seconds: float, name: str) -> dict[str, Any]:
    """Replace one's own segment again and again, retain and drain; return what was seen."""
    world = World(store, HandClock(), folder / f"body-{name}")
    table = store.table("t")
    end, number, left_alone, deleted = time.monotonic() + seconds, 0, 0, 0
    world.push(table, [f"{name}0"], [])
    while time.monotonic() < end:
        number += 1
        world.push(table, [f"{name}{number}"], [f"{name}{number - 1}"])
        table.retain()
        if name == "newer" and number % 8:
            continue  # so that the other one meets its messages
        report = store.deleter().drain(max_seconds=1)
        left_alone += report.left_alone
        deleted += report.total("deleted")
    return {"last": f"{name}{number}", "pushes": number, "left_alone": left_alone, "deleted": deleted}


def main() -> None:
    hosts, cluster, storage, folder, seconds, name = sys.argv[1:]
    if name == "newer":
        become_newer()
    settings = DeletionSettings(reconsume_later_ms=200)
    with SegmentStore.connect(hosts, cluster, storage, deletion=settings) as store:
        told = work(store, Path(folder), float(seconds), name)
        if name == "newer":
            (Path(folder) / "newer-waits").touch()
            while not (Path(folder) / "present-done").exists():
                time.sleep(0.05)
            until = time.monotonic() + 60
            while store.queue.backlog().in_flight and time.monotonic() < until:  # also what was put off
                told["deleted"] += store.deleter().drain().total("deleted")
                time.sleep(0.1)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
