"""Storage quota (Pinot's ``quota.storage``): a push that would make the table too large is refused when it is staged.

What counts is what the table occupies: all registered segments, visible, hidden and staged, in all their copies. So a
REFRESH table needs room for the snapshots that it keeps for a rollback, and for what was rolled back. What earlier
attempts of the same stager have staged does not count: it leaves with the ``end`` of their push, and a task that is run
again must not be refused for what it did before. Segments that are marked for deletion have left the registry and do
not count either.

Two pushes that are staged at the same moment do not see each other, and may together exceed the quota by the smaller of
the two; the next push is refused then. Keeping a total that every push has to change would let no two of them be
staged side by side, and for that a quota is not worth it.
"""

from __future__ import annotations

from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.exceptions import StageRefusedError


def check_quota(context: TableContext, entry_id: str, stager: str, new_bytes: int) -> None:
    """Raises :class:`StageRefusedError`, rule ``quota``, when ``new_bytes`` more would exceed the table's quota as its
    config says it now. Reads the whole registry."""
    quota = context.config().quota_bytes
    if quota is None:
        return
    read = context.registry.read(lambda name: (name.entry_id, name.stager) != (entry_id, stager))
    sizes = [record.stored_bytes for shard in read.shards for record in shard.records]
    wanted = sum(sizes) + new_bytes
    if wanted <= quota:
        return
    raise StageRefusedError(
        "quota",
        f"stage refused: with these {new_bytes:,} bytes the table would occupy {wanted:,} bytes in "
        f"{len(sizes):,} segments and these, and its quota.storage is {quota:,} bytes",
        table=context.table,
        entry_id=entry_id,
        hint="Run retention, mark what was rolled back for deletion, shorten retention periods, or raise the quota.",
    )
