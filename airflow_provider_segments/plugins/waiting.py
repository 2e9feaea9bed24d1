"""What waits for deletion, by table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_segments.core.model.ledger import DeletionBatch, decode_batch
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import CorruptRecordError
from airflow_provider_segments.plugins.models import WaitingTable

MOST_BATCHES = 200
"""Batches of deletion messages that the page reads; each holds at most a thousand messages."""


@dataclass(slots=True)
class Waiting:
    """What waits for deletion. ``is_whole`` is false when there were more batches than were read; ``dead`` counts the
    deletions that were given up."""

    batches: list[DeletionBatch] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_whole: bool = True
    dead: int = 0

    def bytes_of(self) -> dict[str, int]:
        """The bytes that wait, by table."""
        found: dict[str, int] = {}
        for batch in self.batches:
            found[batch.table] = found.get(batch.table, 0) + sum(ledger.bytes for ledger in batch.ledgers)
        return found

    def by_table(self) -> list[WaitingTable]:
        """What waits, the most bytes first."""
        tables = {batch.table: [one for one in self.batches if one.table == batch.table] for batch in self.batches}
        rows = [_row(name, batches) for name, batches in tables.items()]
        return sorted(rows, key=lambda row: -row.bytes)


def _row(table: str, batches: Sequence[DeletionBatch]) -> WaitingTable:
    return WaitingTable(
        table=table,
        objects=sum(len(batch.ledgers) for batch in batches),
        bytes=sum(ledger.bytes for batch in batches for ledger in batch.ledgers),
        oldest_ms=min(batch.at_ms for batch in batches),
        reasons=sorted({batch.reason for batch in batches if batch.reason}),
    )


def read_waiting(store: SegmentStore) -> Waiting:
    """Read the deletion queue. Batches that cannot be read are among its problems."""
    session, parent = store.session, store.paths.pending_deletions
    partitions = [f"{parent}/{number}" for number in session.children(parent)]
    below = session.children_many(partitions)
    paths = [f"{at}/{name}" for at, names in zip(partitions, below, strict=True) for name in names]
    waiting = Waiting(is_whole=len(paths) <= MOST_BATCHES, dead=store.queue.dead())
    read = paths[:MOST_BATCHES]
    for path, node in zip(read, session.get_many(read), strict=True):
        if node is None:
            continue
        try:
            batch, malformed = decode_batch(node.data, path)
        except CorruptRecordError as error:
            waiting.problems.append(str(error))
            continue
        waiting.batches.append(batch)
        waiting.problems += [f"{path}: {one.problem}" for one in malformed]
    return waiting
