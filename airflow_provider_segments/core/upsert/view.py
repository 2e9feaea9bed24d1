"""Which segments and update logs of an upsert table a mark shows. Pure.

The lineage has chosen what is COMPLETED and not replaced. Of that, a mark L leaves out what waits to be resolved and
every version above L. Which *rows* of the segments are seen, the update logs tell: a row is valid at L if and only if
``valid_from <= L`` and (``valid_until`` is null or ``valid_until > L``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_segments.core.lineage.entries import Lineage
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.upsert.record import UpsertRecord, waiting_bulks

Blocks = tuple[tuple[Shard, Sequence[SegmentRecord]], ...]


@dataclass(frozen=True, slots=True)
class MarkedBlocks:
    """The segments that a mark shows, and the update logs that say which of their rows it shows. ``held_back`` are
    segments that wait to be resolved."""

    segments: Blocks
    update_logs: Blocks
    held_back: Blocks


def at_mark(lineage: Lineage, record: UpsertRecord, blocks: Blocks, mark: int) -> MarkedBlocks:
    """What ``mark``, which :meth:`UpsertRecord.check_mark` has allowed, shows of ``blocks``."""
    versions = record.versions()
    waiting = {*waiting_bulks(lineage, record), *record.waiting}

    def chosen(wanted: Callable[[str, SegmentRecord], bool]) -> Blocks:
        found = ((shard, [one for one in records if wanted(shard.name.entry_id, one)]) for shard, records in blocks)
        return tuple((shard, records) for shard, records in found if records)

    def is_shown(entry_id: str) -> bool:
        return entry_id not in waiting and versions.get(entry_id, 0) <= mark

    return MarkedBlocks(
        chosen(lambda entry_id, one: not one.is_update_log and is_shown(entry_id)),
        chosen(lambda entry_id, one: one.is_update_log and is_shown(entry_id)),
        chosen(lambda entry_id, one: not one.is_update_log and entry_id in waiting),
    )


def is_valid(valid_from: int | None, valid_until: int | None, mark: int) -> bool:
    """Return True if a row is seen at ``mark``: its interval is half open, and a row that lost has none."""
    return valid_from is not None and valid_from <= mark and (valid_until is None or valid_until > mark)


def segment_versions(record: UpsertRecord, entry_ids: Iterable[str]) -> dict[str, int]:
    """The version that the rows of each entry begin with; 0 for what was published at or below the floor."""
    versions = record.versions()
    return {entry_id: versions.get(entry_id, 0) for entry_id in entry_ids}
