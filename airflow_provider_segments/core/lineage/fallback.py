"""Falling back from a rewrite of which a segment was lost (Druid #6319: overshadowed segments come back).

A rewrite brought the rows of what it replaced. So when a registry record of it is lost, its inputs show the same rows:

* A rewrite **stands** while everything it brought is registered, or was replaced by an entry that stands.
* One that does not stand counts as rolled back, together with all that was built upon it: the rows of those are among
  what readers fall back to.
* Rows that were **replaced on purpose** must not come back. So nothing falls back if an entry that is no rewrite was
  built upon it: then the lost rows are gone, and the rest stays visible.

A rewrite can fall back until the clean-up marks it, before the first of its inputs leaves the registry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_provider_segments.core.lineage.entries import Lineage


def fallen_back(lineage: Lineage, registered: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Ids of the COMPLETED entries that count as rolled back.

    ``registered`` has the names that are registered under each rewrite that is asked about, by entry id. All that was
    built upon a rewrite must be among them: that is of its time chunk or a wider one.
    """
    missing = {
        entry_id: gap
        for entry_id, names in registered.items()
        if (gap := [name for name in lineage.entries[entry_id].segments_to if name not in names])
    }
    back: set[str] = set()
    before = -1
    while before != len(back):  # what one that no longer stands had replaced may be missed beneath it
        before = len(back)
        for entry_id, gap in missing.items():
            if any(_is_lost(lineage, name, back) for name in gap):
                upon = lineage.built_upon(lineage.entries[entry_id])
                if upon <= lineage.rewrites.keys():
                    back |= upon
    return frozenset(back)


def _is_lost(lineage: Lineage, name: str, back: Collection[str]) -> bool:
    """Return True if no entry that stands has replaced the segment."""
    replacement = lineage.replaced_by.get(name)
    return replacement is None or replacement.entry_id in back
