"""Where everything lives in ZooKeeper. The only place that joins znode paths."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_segments.model.names import check_entry_id, check_table_name


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """Paths of one cluster. Raises :class:`~.exceptions.InvalidNameError` for a name that must not become a path."""

    cluster: str

    def __post_init__(self) -> None:
        check_table_name(self.cluster)

    @property
    def configs(self) -> str:
        """Parent of the table configs."""
        return f"/{self.cluster}/PROPERTYSTORE/CONFIGS/TABLE"

    @property
    def lineages(self) -> str:
        """Parent of the lineages."""
        return f"/{self.cluster}/PROPERTYSTORE/SEGMENT_LINEAGE"

    @property
    def pending_deletions(self) -> str:
        """Parent of the deletion messages that wait."""
        return f"/{self.cluster}/DELETION/PENDING"

    def config(self, table: str) -> str:
        """A table's config."""
        return f"{self.configs}/{check_table_name(table)}"

    def lineage(self, table: str) -> str:
        """A table's lineage."""
        return f"{self.lineages}/{check_table_name(table)}"

    def entries(self, table: str) -> str:
        """Parent of the guards of a table's lineage entries."""
        return f"/{self.cluster}/ENTRIES/{check_table_name(table)}"

    def guard(self, table: str, entry_id: str) -> str:
        """The guard of one lineage entry."""
        return f"{self.entries(table)}/{check_entry_id(entry_id)}"

    def registry(self, table: str) -> str:
        """A table's registry root; its children are the time chunks."""
        return f"/{self.cluster}/SEGMENTS/{check_table_name(table)}"
