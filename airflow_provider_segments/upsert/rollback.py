"""Going back to an earlier version of an upsert table, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage
from airflow_provider_segments.core.lineage.guard import StoredGuard
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.upsert.record import Head, Published, UpsertRecord, require_record, store_record
from airflow_provider_segments.core.zookeeper import Op
from airflow_provider_segments.exceptions import UpsertRefusedError

INGESTION = "upsert/"
"""How the identities of the entries of ingestion begin."""


@dataclass(frozen=True, slots=True)
class RolledBack:
    """``version`` is the new one; ``taken_back`` are the versions that nobody can read any more. ``positions`` are
    those that ingestion goes on from, ``waiting`` the pushes that will be resolved again."""

    version: int
    taken_back: tuple[int, ...]
    positions: dict[str, int]
    waiting: tuple[str, ...]


def roll_back(context: TableContext, version: int) -> RolledBack:
    """Take back every version above ``version``, with the source positions that belong to them.

    What readers see afterwards is what they saw at ``version``; ordinary pushes that were resolved later wait again,
    and what ingestion has in progress is reverted. The clock goes on: a number is never given twice. Raises
    :class:`UpsertRefusedError` (the rules of :meth:`.UpsertRecord.check_mark`, and ``too-old`` when an entry to revert
    has left the lineage), and what ``Retry.run`` raises.
    """
    rollback_id = context.clock.new_id()

    def attempt() -> RolledBack:
        stored = context.records.read()
        record = require_record(stored.lineage)
        done = next((one.version for one in record.published if one.entry_id == rollback_id), None)
        if done is not None:  # an earlier try has landed, and its reply was lost
            return RolledBack(done, (), dict(record.positions), record.waiting)
        record.check_mark(version, context.table)
        undone = [one for one in record.published if one.version > version]
        guards = _guards_to_close(context, stored.lineage, undone)
        now_ms = context.clock.now_ms()
        lineage = stored.lineage
        for entry_id in guards:
            lineage = lineage.put(lineage.entries[entry_id].moved_to(EntryState.REVERTED, now_ms))
        changed = rolled_back(record, version, rollback_id, now_ms)
        ops: list[Op] = [context.records.write(stored, store_record(lineage, changed))]
        for guard in guards.values():
            ops += context.close_guard(guard, rollback_id)
        context.session.commit(ops)
        numbers = tuple(one.version for one in undone)
        return RolledBack(changed.clock, numbers, dict(changed.positions), changed.waiting)

    return context.retried("rollback", attempt)


def rolled_back(record: UpsertRecord, version: int, rollback_id: str, now_ms: int) -> UpsertRecord:
    """The record after going back to ``version``. Pure.

    New heads: whatever was resolved before is refused. A version of its own, without rows: copies that readers have
    kept see that something changed.
    """
    undone = [one for one in record.published if one.version > version]
    again = [entry_id for one in undone for entry_id in one.bulks]
    return msgspec.structs.replace(
        record,
        clock=record.clock + 1,
        voids=(*record.voids, (version, record.clock)),
        positions=record.positions_at(version),
        cutoff=record.cutoff_at(version),
        heads=tuple(Head(rollback_id, head.generation + 1) for head in record.heads),
        published=(
            *(one for one in record.published if one.version <= version),
            Published(record.clock + 1, rollback_id, now_ms, is_rollback=True),
        ),
        waiting=tuple(dict.fromkeys([*again, *record.waiting])),
        stream=None if record.stream is None else record.stream.rolled_back(version),
    )


def _guards_to_close(context: TableContext, lineage: Lineage, undone: list[Published]) -> dict[str, StoredGuard]:
    """The guards of all entries that are reverted: those of later versions, and those that ingestion has in
    progress."""
    wanted = [one.entry_id for one in undone if not one.is_rollback]
    for entry_id in wanted:
        if entry_id not in lineage.entries:
            raise UpsertRefusedError(
                "too-old",
                "rollback refused: a version to take back has left the lineage",
                table=context.table,
                entry_id=entry_id,
                hint="Go back to a newer version, or lengthen replacedSegmentsRetentionPeriod for the future.",
            )
    running = [entry.entry_id for entry in lineage.in_state(EntryState.IN_PROGRESS)]
    guards = context.records.guards([*wanted, *running])
    return {
        entry_id: stored
        for entry_id, stored in guards.items()
        if entry_id in wanted or (stored.guard.identity or "").startswith(INGESTION)
    }
