"""Which segments a lineage hides. Pure; order of entries never matters (Pinot SegmentLineageUtils)."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage


def is_settled(lineage: Lineage, entry_id: str) -> bool:
    """Return True if readers may look at what an entry staged: it is COMPLETED, or has left the lineage."""
    entry = lineage.get(entry_id)
    return entry is None or entry.state is EntryState.COMPLETED


def hidden_names(lineage: Lineage, fallen_back: Collection[str] = ()) -> set[str]:
    """Names no reader may see: COMPLETED hides its ``from``; IN_PROGRESS and REVERTED hide their ``to``.

    ``fallen_back`` are ids of COMPLETED entries that count as REVERTED (:mod:`.fallback`).
    """
    hidden: set[str] = set()
    for entry in lineage:
        completed = entry.state is EntryState.COMPLETED and entry.entry_id not in fallen_back
        hidden.update(entry.segments_from if completed else entry.segments_to)
    return hidden
