"""Readers that count while things are killed: each read must show whole pushes only."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event

import pyarrow.parquet

from airflow_provider_segments.core.environment import connect
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import (
    ClusterNotFoundError,
    ContentionError,
    LeaseLostError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    StorageError,
    TableNotFoundError,
)
from airflow_provider_segments.upsert.reading import read_rows

PUSHED, APPENDED, UPSERTED = "chaos_pushed", "chaos_appended", "chaos_upserted"
OUTAGES = (ContentionError, LeaseLostError, MetadataUnavailableError, OutcomeUnknownError, StorageError)
"""What a reader may be told while something is down; it reads anew."""

_NOT_YET = (ClusterNotFoundError, TableNotFoundError)


@dataclass(slots=True)
class Finding:
    """What one reader has seen of its table."""

    table: str
    reads: int = 0
    outages: int = 0
    wrong: int = 0
    examples: list[str] = field(default_factory=list)


class WrongReadError(AssertionError):
    """A reader saw what no reader may see."""


def rows_of_push(number: int) -> int:
    """Different for each push."""
    return 2_000 + number


def rows_of_append(number: int) -> int:
    """Different for each append, so that half of one does not look like another."""
    return 200 + number


def observe(table: str, stop: Event, findings: MutableSequence[Finding]) -> None:
    """Read until ``stop``, then add the finding. Credentials come from the environment."""
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # of servers that were killed
    finding, look = Finding(table), LOOKS[table]()
    while not stop.is_set():
        try:
            with connect(os.environ["SEGMENTS_ZOOKEEPER"], os.environ["SEGMENTS_STORAGE"]) as store:
                while not stop.is_set():
                    finding.reads += look(store)
                    time.sleep(0.2)
        except WrongReadError as error:
            finding.wrong += 1
            finding.examples = [*finding.examples, str(error)][:5]
        except _NOT_YET:
            time.sleep(1)
        except OUTAGES:
            finding.outages += 1
    findings.append(finding)


def see_push(store: SegmentStore) -> tuple[int, int]:
    """Number and rows of the push that is visible. Raises :class:`WrongReadError` unless it is one."""
    pushes = _rows_by_push(store, PUSHED)
    if len(pushes) != 1:
        raise WrongReadError(f"rows of several pushes, or of none: {dict(pushes)}")
    return next(iter(pushes.items()))


def see_appends(store: SegmentStore) -> dict[int, int]:
    """Rows of each append that is visible."""
    return dict(_rows_by_push(store, APPENDED))


def _rows_by_push(store: SegmentStore, table: str) -> Counter[int]:
    pushes: Counter[int] = Counter()
    with store.table(table).snapshot(owner="chaos") as snapshot:
        for key in snapshot.files:
            with snapshot.storage.open(key) as file:
                pushes.update(pyarrow.parquet.read_table(file, columns=["push"])["push"].to_pylist())
    return pushes


def _look_at_pushes() -> Callable[[SegmentStore], int]:
    """One whole push, and never an older one than before."""
    newest = -1

    def look(store: SegmentStore) -> int:
        nonlocal newest
        if not len(store.table(PUSHED).snapshot()) and newest < 0:
            return 0
        number, rows = see_push(store)
        if rows != rows_of_push(number) or number < newest:
            raise WrongReadError(f"{rows} rows of push {number} of {rows_of_push(number)}, after push {newest}")
        newest = number
        return 1

    return look


def _look_at_appends() -> Callable[[SegmentStore], int]:
    """Each append whole or not at all, and none gone that was there: nothing is rolled back."""
    before: set[int] = set()

    def look(store: SegmentStore) -> int:
        nonlocal before
        visible = see_appends(store)
        parts = {number: rows for number, rows in visible.items() if rows != rows_of_append(number)}
        if parts or not before <= set(visible):
            raise WrongReadError(f"parts of appends: {parts}; gone: {sorted(before - set(visible))}")
        before = set(visible)
        return int(bool(before))

    return look


def _look_at_keys() -> Callable[[SegmentStore], int]:
    """One row a key, no key gone, and no older event than before."""
    before: dict[str, int] = {}

    def look(store: SegmentStore) -> int:
        nonlocal before
        if not store.table(UPSERTED).snapshot().segments:
            return 0
        rows = read_rows(store.table(UPSERTED), columns=["flight", "status"])
        seen = {row["flight"]: int(row["status"]) for row in rows.to_pylist()}
        older = [key for key, number in before.items() if seen.get(key, -1) < number]
        if len(seen) != len(rows) or older:
            raise WrongReadError(f"{len(rows)} rows of {len(seen)} keys; gone or older: {older[:5]}")
        before = seen
        return 1

    return look


LOOKS: dict[str, Callable[[], Callable[[SegmentStore], int]]] = {
    PUSHED: _look_at_pushes,
    APPENDED: _look_at_appends,
    UPSERTED: _look_at_keys,
}
"""Makes what a reader of a table does again and again: look, and return 1 if there was something to be seen. Raises
:class:`WrongReadError`."""
