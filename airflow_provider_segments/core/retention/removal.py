"""Telling readers of a removal before the first segment leaves the registry."""

from __future__ import annotations

import msgspec

from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.registry.registry import Root, StoredRoot
from airflow_provider_segments.core.replacement.context import Context
from airflow_provider_segments.core.zookeeper import SetData


def remember_removal(context: Context, stored: StoredLineage, settled_at: int) -> None:
    """Tell readers before the first segment goes: one that read an older lineage than ``stored`` takes a newer one, and
    no past before ``settled_at`` is put together any more."""
    root = context.registry.root()
    changed = Root(max(root.root.removed_at, stored.zxid), max(root.root.history_floor, settled_at))
    if changed != root.root:
        context.session.commit([set_root(context, root, changed)])


def set_root(context: Context, root: StoredRoot, changed: Root) -> SetData:
    """The compare-and-set of the registry's root."""
    return SetData(context.registry.path, msgspec.json.encode(changed), root.version)
