"""Short ways to ask a lock box for things in tests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_segments.core.locking import allocation
from airflow_provider_segments.core.locking import state as boxes
from airflow_provider_segments.core.locking.state import Box, Turn
from airflow_provider_segments.core.locking.types import (
    AllocationRequest,
    AllocationResult,
    Lock,
    LockGranularity,
    LockRequest,
    LockResult,
    LockType,
)
from airflow_provider_segments.core.model.interval import Interval, parse_time

DAY_MS = 86_400_000
START_MS = 1_356_998_400_000
"""2013-01-01."""
NOW_MS = 1_700_000_000_000
LEASE_MS = 60_000
KINDS = ("EXCLUSIVE", "SHARED", "APPEND", "REPLACE", "SEGMENT")
"""The types of time-chunk locks, and the one kind of segment lock."""


def days(first: int, end: int) -> Interval:
    """From the first day to before the end, counted from 2013-01-01."""
    return Interval(START_MS + first * DAY_MS, START_MS + end * DAY_MS)


def interval(text: str) -> Interval:
    """An interval such as ``2017-01-01/2017-02-01``, ``2017/2018`` or with times."""
    start, end = (parse_time(part if len(part) > 4 else f"{part}-01-01") for part in text.split("/"))
    return Interval(start, end)


def wanted(group: str, first: int = 0, end: int = 1, kind: str = "EXCLUSIVE", **other: Any) -> LockRequest:
    """A request of the group's task of the same name for days."""
    other = {"task": group, "lease_ms": LEASE_MS, **other}
    return LockRequest(group=group, interval=days(first, end), lock_type=LockType[kind], **other)


def segments(group: str, *partitions: int, first: int = 0, end: int = 1, **other: Any) -> LockRequest:
    """A request for a segment lock."""
    return wanted(group, first, end, granularity=LockGranularity.SEGMENT, partitions=frozenset(partitions), **other)


def of_kind(kind: str, group: str, first: int = 0, end: int = 1, **other: Any) -> LockRequest:
    """A request for a lock of a type, or for a ``SEGMENT`` lock on id 0."""
    if kind == "SEGMENT":
        return segments(group, 0, first=first, end=end, **other)
    return wanted(group, first, end, kind, **other)


def new_ids(
    group: str,
    key: str,
    count: int = 1,
    *,
    first: int = 0,
    end: int = 1,
    kind: str = "APPEND",
    chunk: Interval | None = None,
    **other: Any,
) -> AllocationRequest:
    """A request for ids in ``chunk`` under a lock on the days; without ``chunk``, in all of them."""
    lock = of_kind(kind, group, first, end, **other)
    return AllocationRequest(lock=lock, key=key, chunk=chunk or lock.interval, count=count)


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for a condition."""
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, "it never came true"
        time.sleep(0.02)


@dataclass
class PureBox:
    """A lock box without ZooKeeper: the pure functions, one after the other, on a clock moved by hand."""

    now_ms: int = NOW_MS
    box: Box = field(default_factory=Box.empty)
    ids: Any = field(default_factory=lambda: itertools.count(1))

    def turn(self) -> Turn:
        return Turn("t", self.now_ms, f"lock{next(self.ids)}")

    def acquire(self, request: LockRequest) -> LockResult:
        self.box, result = boxes.acquire(self.box, request, self.turn())
        return result

    def allocate(self, request: AllocationRequest) -> AllocationResult:
        self.box, result = allocation.allocate(self.box, request, self.turn())
        return result

    def active(self) -> list[Lock]:
        return [lock for lock in self.box.locks if lock.active]

    def revoked(self) -> list[Lock]:
        return [lock for lock in self.box.locks if not lock.active]
