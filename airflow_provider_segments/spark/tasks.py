"""What runs in Spark's tasks when a push is built.

Imports little, for every Python worker that Spark starts imports it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow

from airflow_provider_segments.arrow.writing import WriteJob, write_partition
from airflow_provider_segments.core.model.segment import SegmentRecord, StagedSegment


class Written(NamedTuple):
    """What tasks have written. A task that runs twice counts twice."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


def task(job: WriteJob, written: Any) -> Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """What ``mapInArrow`` calls for each partition: gives a row for each segment, and adds it to ``written``."""

    def write(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for segment in write_partition(job, batches, context.partitionId(), context.taskAttemptId()):
            written.add(Written(segment.record.rows, 1, segment.record.bytes))
            payload = pyarrow.array([msgspec.json.encode((segment.chunk, segment.record))], pyarrow.binary())
            yield pyarrow.record_batch([payload], names=["segment"])

    return write


def decode(payload: bytes) -> StagedSegment:
    """A segment that a task reported."""
    return StagedSegment(*msgspec.json.decode(bytes(payload), type=tuple[str, SegmentRecord]))
