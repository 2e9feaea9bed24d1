"""``spark.read.format("segments")``: a table through Arrow in the Python workers, wherever its objects are.

Options: ``zk_hosts``, ``storage_uri``, ``table``, and if wanted ``cluster``, ``as_of`` (a lineage entry), ``mark`` (a
version of an upsert table), or instead of it ``checkpoint`` (a time) and ``region``, ``start`` and ``end`` (they choose
segments by time, whose rows are whole: filter on the time column, or use :func:`.read.read_table`, which does). Times
are ISO 8601 or epoch milliseconds. Credentials come from the environment
(:mod:`airflow_provider_segments.core.environment`) and are never options: Spark shows those. Call
:func:`.read.register` first. Filters on the columns are pushed down to segments, row groups and rows. There is one
partition for each 64 MiB of segments.

It holds no reader's lease: Spark resolves it in a planning worker, whose ZooKeeper session ends with the planning.
What it reads is kept for ``replacedSegmentsRetentionPeriod`` only; a query that may take longer uses
:func:`.read.read_table` or :func:`.read.leased_table`.
"""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy
import pyarrow
import pyarrow.compute
import pyarrow.dataset
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from airflow_provider_segments.arrow.times import arrow_times
from airflow_provider_segments.core.environment import connect
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.interval import parse_time
from airflow_provider_segments.core.model.names import is_number
from airflow_provider_segments.core.model.variables import DEFAULT_CLUSTER
from airflow_provider_segments.core.snapshot import Snapshot
from airflow_provider_segments.core.storage.base import ObjectStore
from airflow_provider_segments.core.table import Table
from airflow_provider_segments.exceptions import InvalidConfigError, SourceDataError
from airflow_provider_segments.spark.filters import expression, may_match, usable
from airflow_provider_segments.spark.merging import visible_rows
from airflow_provider_segments.spark.row_validity import dead_rows, visible_schema
from airflow_provider_segments.spark.schema import schema_of

_PARTITION_BYTES = 64 << 20
_BATCH_ROWS = 32_768


class ReadSegment(msgspec.Struct, frozen=True, array_like=True):
    """One segment to read: its object, its size and its column statistics, whether it is in tiered storage, and, as
    ``[start, end)`` in milliseconds, in which parts of its time it is visible (empty: all of it). ``dead`` are, for an
    upsert table, the numbers of the rows that are not valid at the mark (64-bit, ascending)."""

    key: str
    rows: int
    bytes: int
    columns: dict[str, list[Any]] | None = None
    tiered: bool = False
    visible_in: tuple[tuple[int, int], ...] = ()
    dead: builtins.bytes = b""


@dataclass(frozen=True)
class _Found:
    """What is to be read, and from where. ``time`` is the time column and its format, where rows have to be told by
    it."""

    storage: ObjectStore
    tiered: ObjectStore | None
    segments: list[ReadSegment]
    time: tuple[str, str] | None = None
    deletes: str | None = None

    @classmethod
    def of(cls, snapshot: Snapshot, config: TableConfig | None = None) -> _Found:
        """``config`` where nobody else filters the rows of segments that are visible in a part of their time only."""
        time = (config.time_column, config.time_format) if config and config.time_column and snapshot.cuts else None
        dead = dead_rows(snapshot)
        snapshot.stores()  # a segment in a tiered storage that is not here is refused now, and not by a task
        return cls(
            snapshot.storage,
            snapshot.tiered,
            [
                ReadSegment(
                    each.key,
                    each.rows,
                    each.bytes,
                    each.columns,
                    each.tiered is not None,
                    tuple((part.start_ms, part.end_ms) for part in each.visible_in),
                    dead.get(each.name, b""),
                )
                for each in snapshot.segments
            ],
            time,
            config.upsert.deletes if config is not None and config.upsert is not None else None,
        )


class SegmentsDataSource(DataSource):
    """The Python data source; see the module."""

    _found: _Found | None = None

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "segments"

    def schema(self) -> StructType:
        """The schema of the newest segment. The snapshot taken for it is the one that is read."""
        self._found, schema = self._resolve(with_schema=True)
        assert schema is not None
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the snapshot."""
        if self._found is None:
            self._found, _ = self._resolve(with_schema=False)
        return SegmentsReader(schema, self._found)

    def _resolve(self, *, with_schema: bool) -> tuple[_Found, StructType | None]:
        start, end = _ms(self.options.get("start")), _ms(self.options.get("end"))
        as_of = self.options.get("as_of")
        mark = int(self.options["mark"]) if self.options.get("mark") else None
        with opened_table(self.options) as table:
            config = table.config()
            mark = table.mark_at(mark, _ms(self.options.get("checkpoint")), self.options.get("region"))
            snapshot = table.snapshot(start, end, as_of=as_of, mark=mark)
            if not with_schema:
                return _Found.of(snapshot, config), None
            whole = snapshot if start is None and end is None else table.snapshot(as_of=as_of, mark=snapshot.mark)
            return _Found.of(snapshot, config), visible_schema(schema_of(whole), config)


@contextmanager
def opened_table(options: Mapping[str, str]) -> Iterator[Table]:
    """The table that the options of a data source name, in a store that is closed at the end. Raises
    :class:`InvalidConfigError` for an option that is missing."""
    hosts, uri, name = (required(options, option) for option in ("zk_hosts", "storage_uri", "table"))
    with connect(hosts, uri, options.get("cluster", DEFAULT_CLUSTER)) as store:
        yield store.table(name)


def required(options: Mapping[str, str], option: str) -> str:
    """The value of an option. Raises :class:`InvalidConfigError` when it is missing."""
    value = options.get(option)
    if not value:
        raise InvalidConfigError(f"the data source needs the option {option}")
    return str(value)


def bound_to(snapshot: Snapshot, config: TableConfig) -> type[SegmentsDataSource]:
    """A data source that reads exactly ``snapshot``, through the object store it was taken from.

    Store and segments travel in the pickled class: options would show up in the query's plan. Spark looks a source up
    by its name again whenever it plans a query, so each snapshot has a name of its own, and always the same.
    """
    # The caller filters by time; rows that an upsert table hides only the reader of a file can tell.
    found = replace(_Found.of(snapshot, config), time=None)
    urls = "\n".join([found.storage.uri, str(snapshot.mark), *snapshot.urls])
    identity = hashlib.sha256(urls.encode()).hexdigest()[:32]

    class BoundSegments(SegmentsDataSource):
        """Pickled by value, with what it is bound to."""

        _found = found

        @classmethod
        def name(cls) -> str:
            return f"segments_at_{identity}"

    return BoundSegments


@dataclass
class _Group(InputPartition):
    """Segments that one task reads."""

    segments: list[ReadSegment] = field(default_factory=list)
    bytes: int = 0


class SegmentsReader(DataSourceReader):
    """Reads segments with Arrow. Pickled with its filters to the executors; each task gets its own segments only."""

    def __init__(self, schema: StructType, found: _Found) -> None:
        self.arrow_schema = to_arrow_schema(schema, timezone="UTC")
        self.segments = found.segments
        self.storage = found.storage
        self.tiered = found.tiered
        self.time = found.time
        self.deletes = found.deletes
        self.filters: list[Filter] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "segments": []}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep what Arrow can judge. All of them go back: Spark judges the rows that are left once more."""
        self.filters = [one for one in filters if usable(one, self.arrow_schema)]
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Groups of the segments that the filters leave."""
        groups: list[_Group] = []
        for segment in self.segments:
            if not all(may_match(one, segment.columns, segment.rows) for one in self.filters):
                continue
            if not groups or groups[-1].bytes + segment.bytes > _PARTITION_BYTES:
                groups.append(_Group())
            groups[-1].segments.append(segment)
            groups[-1].bytes += segment.bytes
        return list(groups) or [_Group()]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The rows of one group."""
        assert isinstance(partition, _Group)
        for segment in partition.segments:
            store = self.tiered if segment.tiered and self.tiered is not None else self.storage
            with store.open(segment.key) as file:
                yield from self._batches(pyarrow.PythonFile(file, mode="r"), segment)

    def _batches(self, file: pyarrow.NativeFile, segment: ReadSegment) -> Iterator[pyarrow.RecordBatch]:
        fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(file)
        cut = self.time is not None and segment.visible_in
        schema = self._with_time(fragment.physical_schema) if cut else self.arrow_schema
        scanner = fragment.scanner(
            schema=self._with_deletes(schema, fragment.physical_schema),
            # A filtered scan does not tell which row of the file a row is; Spark judges the rows again in any case.
            filter=None if segment.dead else expression(self.filters),
            batch_size=_BATCH_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
            use_threads=False,
        )
        dead, at = numpy.frombuffer(segment.dead, numpy.int64), 0
        for batch in scanner.to_batches():
            found = self._visible(batch, segment.visible_in) if cut else batch
            if segment.dead:
                found, at = found.filter(_alive(dead, at, batch.num_rows)), at + batch.num_rows
            if self.deletes is not None and self.deletes in found.schema.names:
                found = found.filter(pyarrow.compute.invert(found.column(self.deletes).fill_null(False)))
            if found.num_rows:
                columns = [found.column(field.name).cast(field.type) for field in self.arrow_schema]
                yield pyarrow.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def _with_deletes(self, schema: pyarrow.Schema, stored: pyarrow.Schema) -> pyarrow.Schema:
        """The schema with the column that tells delete records, which the query may not have asked for."""
        if self.deletes is None or self.deletes in schema.names or self.deletes not in stored.names:
            return schema
        return schema.append(stored.field(self.deletes))

    def _with_time(self, stored: pyarrow.Schema) -> pyarrow.Schema:
        """The schema with the time column, which the query may not have asked for."""
        assert self.time is not None
        column = self.time[0]
        return (
            self.arrow_schema if column in self.arrow_schema.names else self.arrow_schema.append(stored.field(column))
        )

    def _visible(self, batch: pyarrow.RecordBatch, parts: Sequence[tuple[int, int]]) -> pyarrow.RecordBatch:
        """The rows in those parts of time. Raises :class:`SourceDataError` where only Spark can read the times."""
        assert self.time is not None
        column, time_format = self.time
        times = arrow_times(pyarrow.chunked_array([batch.column(column)]), time_format)
        if times is None:
            raise SourceDataError(
                f"a segment is visible in a part of its time only, and Arrow cannot read the times in {column!r}; "
                "read the table with read_table"
            )
        return batch.filter(visible_rows(times, parts))


def _alive(dead: numpy.ndarray[Any, Any], first: int, count: int) -> pyarrow.Array:
    """For ``count`` rows of a file from row ``first`` on, whether each is not among ``dead``."""
    mask = numpy.ones(count, bool)
    low, high = numpy.searchsorted(dead, (first, first + count))
    mask[dead[low:high] - first] = False
    return pyarrow.array(mask)


def _ms(text: str | None) -> int | None:
    if not text:
        return None
    return int(text) if is_number(text.lstrip("-")) and len(text.lstrip("-")) > 4 else parse_time(text)
