"""The last comparisons of a table with those of other regions, for whoever looks. One znode a table.

Findings are rows of a table of their own; a comparison that finds nothing writes no row. So when a table was compared
last, and how far both had read, is kept here.
"""

from __future__ import annotations

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.records import Record, RecordDecoder
from airflow_provider_segments.core.replication.leapfrog import has_diverged
from airflow_provider_segments.core.zookeeper import Create, Op, SetData

MOST_OTHERS = 20
"""Other tables of which the last comparison is kept."""

FAIL_ON = ("any", "new", "never")
"""When a comparison fails: as long as the regions have diverged, when something was found that was not before, or
never."""


class ComparisonRecord(Record, frozen=True, omit_defaults=True):
    """The last comparison with ``other`` (see :func:`name_of_other`), at ``at_ms`` (epoch milliseconds).

    ``counts`` are keys by kind, and source partitions whose digests differ. ``behind`` are, by source partition, the
    offsets that this table had read less of than the other, ``other_behind`` the reverse. ``new`` counts the findings
    that no comparison had told before. ``entry_id`` is their push into the table ``findings``, empty when there was
    nothing to push.
    """

    other: str
    at_ms: int
    version: int
    other_version: int
    counts: dict[str, int] = {}
    behind: dict[str, int] = {}
    other_behind: dict[str, int] = {}
    new: int = 0
    findings: str = ""
    entry_id: str = ""

    @property
    def has_diverged(self) -> bool:
        """Whether anything was found that lag does not explain."""
        return has_diverged(self.counts)


class ComparisonsRecord(Record, frozen=True, tag_field=records.FORMAT, tag=1):
    """What is stored of a table: the last comparison with each other table, the newest first."""

    last: tuple[ComparisonRecord, ...]


_DECODER = RecordDecoder(ComparisonsRecord, "record of comparisons")


def decode(payload: bytes, where: str) -> ComparisonsRecord:
    """The record in ``payload``. Raises :class:`CorruptRecordError`."""
    return _DECODER.decode(payload, where)


def name_of_other(zk_hosts: str, cluster: str, table: str) -> str:
    """What the table of another region is called in the records of comparisons."""
    return f"table {table!r} in {cluster!r} at {zk_hosts}"


def read_comparisons(cluster: Cluster, table: str) -> tuple[ComparisonRecord, ...]:
    """The last comparison with each other table, the newest first. Raises :class:`CorruptRecordError`."""
    path = cluster.paths.comparisons(table)
    node = cluster.session.get(path)
    return () if node is None else decode(node.data, path).last


def keep_comparison(cluster: Cluster, table: str, done: ComparisonRecord) -> None:
    """Keep ``done`` as the last comparison with its other table. Raises :class:`CorruptRecordError` and what
    ``Retry.run`` raises."""
    path = cluster.paths.comparisons(table)
    cluster.session.ensure([path.rpartition("/")[0]])

    def attempt() -> None:
        node = cluster.session.get(path)
        before = ComparisonsRecord(last=()) if node is None else decode(node.data, path)
        others = [one for one in before.last if one.other != done.other]
        payload = records.encode(ComparisonsRecord(last=(done, *others[: MOST_OTHERS - 1]), unknown=before.unknown))
        op: Op = Create(path, payload) if node is None else SetData(path, payload, node.version)
        cluster.session.commit([op])

    cluster.retried(f"comparison of table {table!r}", attempt)
