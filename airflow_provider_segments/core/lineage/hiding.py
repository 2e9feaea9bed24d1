"""Which segments a lineage hides. Pure; order of entries never matters (Pinot SegmentLineageUtils)."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_segments.core.lineage.entries import EntryState, Lineage


def is_settled(lineage: Lineage, entry_id: str) -> bool:
    """Whether readers may look at what an entry staged: it is COMPLETED, or has left the lineage."""
    entry = lineage.get(entry_id)
    return entry is None or entry.state is EntryState.COMPLETED


def hidden_names(lineage: Lineage) -> set[str]:
    """Names no reader may see: COMPLETED hides its ``from``; IN_PROGRESS and REVERTED hide their ``to``."""
    hidden: set[str] = set()
    for entry in lineage:
        hidden.update(entry.segments_from if entry.state is EntryState.COMPLETED else entry.segments_to)
    return hidden


def route(lineage: Lineage | None, names: Iterable[str]) -> set[str]:
    """Of ``names``, those that are visible. Nothing is ever added, and unknown names are ignored."""
    return set(names) - (hidden_names(lineage) if lineage is not None else set())
