"""What readers of a table see, and what they would see under another lineage: asked before a rollback is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from airflow_provider_segments.core.lineage.entries import Lineage
from airflow_provider_segments.core.lineage.records import StoredLineage
from airflow_provider_segments.core.model.segment import SegmentRecord
from airflow_provider_segments.core.registry.registry import StoredRoot
from airflow_provider_segments.core.registry.shard import Shard
from airflow_provider_segments.core.replacement.context import TableContext
from airflow_provider_segments.core.snapshot import View, Visibility
from airflow_provider_segments.core.zookeeper import Check, CommitConflictError


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of what readers see. A segment that an overwrite hides in part counts whole, as in a snapshot."""

    segments: int
    rows: int
    bytes: int

    @classmethod
    def of(cls, records: Iterable[SegmentRecord]) -> Totals:
        """The totals of ``records``."""
        listed = list(records)
        return cls(len(listed), sum(one.rows for one in listed), sum(one.bytes for one in listed))

    def as_dict(self) -> dict[str, int]:
        """Plain data, for XCom and JSON."""
        return {"segments": self.segments, "rows": self.rows, "bytes": self.bytes}


@dataclass(slots=True)
class Forecast:
    """The registry as the tries of one rollback have seen it.

    To read a whole registry takes longer than many an append, so while those go on each try would else be overtaken.
    A later try reads the shards that are new. The others have changed only if the registry's root did: every removal
    changes the root first.
    """

    context: TableContext
    entry_id: str
    root: StoredRoot | None = None
    shards: dict[str, Shard] = field(default_factory=dict)

    def look(self, stored: StoredLineage) -> None:
        """Read what is settled under ``stored``, and what the entry brought. Raises :class:`CommitConflictError` when a
        clean-up has removed something on a newer lineage than that, and what reading the registry raises."""
        view = View(stored.lineage, stored.zxid)
        read = self.context.registry.read(
            lambda name: name.path not in self.shards and (name.entry_id == self.entry_id or view.may_show(name))
        )
        known, self.root = self.root, read.root
        if read.root.root.removed_at > stored.zxid or known not in (None, read.root):
            self.root = None
            self.shards.clear()
            raise CommitConflictError(Check(self.context.registry.path, read.root.version), "removed meanwhile")
        self.shards.update((shard.name.path, shard) for shard in read.shards)

    def visible(self, lineage: Lineage, zxid: int) -> Visibility:
        """What readers would see if the table had ``lineage``. ``zxid`` is that of the lineage that was looked at."""
        view = View(lineage, zxid)
        return Visibility(view, [shard for shard in self.shards.values() if view.may_show(shard.name)])

    def totals(self, lineage: Lineage, zxid: int) -> Totals:
        """The totals of :meth:`visible`."""
        return Totals.of(record for _, shown in self.visible(lineage, zxid).blocks for record in shown)

    def registered(self) -> set[str]:
        """Names of the segments that were read."""
        return {record.name for shard in self.shards.values() for record in shard.records}

    def unremoved(self) -> Check:
        """The check that nothing was removed since."""
        assert self.root is not None, "look first"
        return Check(self.context.registry.path, self.root.version)
