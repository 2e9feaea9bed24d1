"""``spark.readStream.format("segments_changes")``: the changes of an upsert table as a stream.

Options: ``zk_hosts``, ``storage_uri``, ``table``, ``since`` (the version to begin after), and if wanted ``cluster``.
Call :func:`.read.register` first. Each micro-batch has the changes of all versions that were published since the last
one, at most one change a key: see :mod:`airflow_provider_segments.upsert.changes`. Spark's checkpoint keeps the
versions of each micro-batch, and a batch that is run again reads the same changes. A stream whose version was taken
back by a rollback, or is below the floor, fails with that rule: begin another one from a version that is there.

There is one task for each key partition, whose changes must fit its memory. Like the format ``segments`` it holds no
reader's lease: what it reads is kept for ``replacedSegmentsRetentionPeriod`` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StringType, StructField, StructType

from airflow_provider_segments.core.model.upsert_config import UpsertConfig
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.upsert.record import require_record
from airflow_provider_segments.spark.changed_rows import Work, read_work, work_of
from airflow_provider_segments.spark.datasource import opened_table, required
from airflow_provider_segments.spark.row_validity import visible_schema
from airflow_provider_segments.spark.schema import schema_of
from airflow_provider_segments.upsert.changes import CHANGE, HAS_BEGUN, ChangedRows, changed_rows, check_since, paired

_VERSION = "version"


class SegmentsChanges(DataSource):
    """The Python data source; see the module."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "segments_changes"

    def schema(self) -> StructType:
        """The schema of the newest segment, and the column that says what became of a key."""
        with opened_table(self.options) as table:
            schema = visible_schema(schema_of(table.snapshot()), table.config())
        return StructType([*schema.fields, StructField(CHANGE, StringType())])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A reader of the changes."""
        return ChangeStreamReader(schema, dict(self.options))


@dataclass
class _KeyPartition(InputPartition):
    """The changed rows of one key partition, or of all, and where they are."""

    storage: ObjectStore
    tiered: ObjectStore | None
    config: UpsertConfig
    work: list[Work] = field(default_factory=list)


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are versions of the table. ``last`` is where a stream ends that only takes what is there."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self.options = options
        self.last: dict[str, int] | None = None
        self.arrow_schema = to_arrow_schema(schema, timezone="UTC")

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The version that the option names."""
        return {_VERSION: int(required(self.options, "since"))}

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802, ARG002
        """The newest version."""
        return self.last or self._newest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End with the version that is the newest now."""
        self.last = self._newest()

    def _newest(self) -> dict[str, int]:
        with opened_table(self.options) as table:
            return {_VERSION: require_record(table.lineage()).clock}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """The changes between two versions, by key partition. Raises what
        :func:`.upsert.changes.read_changes` raises."""
        since = start[_VERSION]
        if since == end[_VERSION]:
            return []
        with opened_table(self.options) as table:
            config = table.config().upsert
            taken = table.snapshot(mark=end[_VERSION])
            check_since(taken, config, since)
            assert config is not None
            taken.stores()  # a segment in a tiered storage that is not here is refused now, and not by a task
            found: dict[int, list[ChangedRows]] = {}
            for changed in changed_rows(taken, since):
                found.setdefault(changed.segment.key_partition, []).append(changed)
        if any(number < 0 for number in found):  # an ordinary push has rows of every key partition
            found = {-1: [changed for parts in found.values() for changed in parts]}
        return [_KeyPartition(taken.storage, taken.tiered, config, [*work_of(parts)]) for parts in found.values()]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The changes of one key partition."""
        assert isinstance(partition, _KeyPartition)
        rows = self.arrow_schema.remove(self.arrow_schema.get_field_index(CHANGE))
        rows = rows.append(pyarrow.field(HAS_BEGUN, pyarrow.bool_()))
        images = [read_work(work, partition.storage, partition.tiered, rows) for work in partition.work]
        yield from paired(pyarrow.concat_tables(images), partition.config).cast(self.arrow_schema).to_batches()
