"""Where everything lives in ZooKeeper. The only place that joins znode paths."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_segments.core.model.names import check_cluster_name, check_entry_id, check_table_name


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """Paths of one cluster. Raises :class:`~.exceptions.InvalidNameError` for a name that must not become a path."""

    cluster: str

    def __post_init__(self) -> None:
        check_cluster_name(self.cluster)

    @property
    def root(self) -> str:
        """The cluster's own znode."""
        return f"/{self.cluster}"

    @property
    def stores(self) -> str:
        """Which object stores the cluster uses."""
        return f"/{self.cluster}/STORES"

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
        """Parent of the partitions of deletion batches, which are numbers."""
        return f"/{self.cluster}/DELETION/PENDING"

    @property
    def deletion_retries(self) -> str:
        """Parent of the markers of batches that wait for their next delivery."""
        return f"/{self.cluster}/DELETION/RETRY"

    @property
    def deletion_claims(self) -> str:
        """Parent of the ephemeral claims of consumers."""
        return f"/{self.cluster}/DELETION/CLAIMS"

    @property
    def dead_letters(self) -> str:
        """Parent of the dead letters."""
        return f"/{self.cluster}/DELETION/DEAD"

    @property
    def sweeps(self) -> str:
        """Parent of the requests to look under a prefix."""
        return f"/{self.cluster}/DELETION/SWEEPS"

    @property
    def doctor(self) -> str:
        """The doctor's last report."""
        return f"/{self.cluster}/DOCTOR"

    def ideal_state(self, table: str) -> str:
        """Where Helix keeps which servers of a Pinot cluster should have which segments of a table."""
        return f"/{self.cluster}/IDEALSTATES/{check_table_name(table)}"

    @property
    def roles(self) -> str:
        """Which identities have which role."""
        return f"/{self.cluster}/ROLES"

    def log(self, table: str) -> str:
        """Parent of the events of a table's audit trail. It outlives the table."""
        return f"/{self.cluster}/LOG/{check_table_name(table)}"

    @property
    def operators(self) -> str:
        """An empty znode that only operators may read."""
        return f"/{self.cluster}/OPERATORS"

    def readers(self, table: str) -> str:
        """Parent of the ephemeral leases of a table's readers."""
        return f"/{self.cluster}/READERS/{check_table_name(table)}"

    def lock_box(self, table: str) -> str:
        """A table's lock box; its children are the fences of the locks that are held."""
        return f"/{self.cluster}/LOCKS/{check_table_name(table)}"

    def offloads(self, table: str) -> str:
        """Parent of the records of a table's offloads that are under way."""
        return f"/{self.cluster}/OFFLOADS/{check_table_name(table)}"

    def other_ledgers(self, table: str, component: str) -> str:
        """Parent of a table's ledgers that are no segments: cursors or schemas. What stands there is in use."""
        return f"/{self.cluster}/LEDGERS/{check_table_name(table)}/{component}"

    def of_table(self, table: str) -> tuple[str, ...]:
        """Every znode that a table has of its own, each without those below it."""
        return (
            self.lineage(table),
            self.entries(table),
            self.registry(table),
            self.readers(table),
            self.lock_box(table),
            self.offloads(table),
            self.held_versions(table),
            self.emissions(table),
            self.comparisons(table),
            self.region_states(table),
            self.config(table),
        )

    def held_versions(self, table: str) -> str:
        """Parent of the versions that readers with copies of an upsert table have reported."""
        return f"/{self.cluster}/WATERMARKS/{check_table_name(table)}"

    def held_version(self, table: str, reader: str) -> str:
        """The version that one reader has reported."""
        return f"{self.held_versions(table)}/{check_table_name(reader)}"

    def emissions(self, table: str) -> str:
        """Parent of the states of the emitters of an upsert table's heartbeats."""
        return f"/{self.cluster}/HEARTBEATS/{check_table_name(table)}"

    def emission(self, table: str, region: str) -> str:
        """The state of the emitters of one region's heartbeats."""
        return f"{self.emissions(table)}/{check_table_name(region)}"

    def comparisons(self, table: str) -> str:
        """The last comparisons of an upsert table with those of other regions."""
        return f"/{self.cluster}/COMPARISONS/{check_table_name(table)}"

    def region_states(self, table: str) -> str:
        """The state of each region of an upsert table that was last told."""
        return f"/{self.cluster}/REGIONS/{check_table_name(table)}"

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

    @property
    def registries(self) -> str:
        """Parent of the tables' registries."""
        return f"/{self.cluster}/SEGMENTS"

    def registry(self, table: str) -> str:
        """A table's registry root; its children are the time chunks."""
        return f"{self.registries}/{check_table_name(table)}"
