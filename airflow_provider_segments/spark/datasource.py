"""``spark.read.format("segments")``: a table through Arrow in the Python workers, wherever its objects are.

Options: ``zk_hosts``, ``storage_uri``, ``table``, and if wanted ``cluster``, ``as_of`` (a lineage entry), ``start`` and
``end`` (ISO 8601 or epoch milliseconds; they choose segments by time, whose rows are whole: filter on the time column,
or use :func:`.read.read_table`, which does). Credentials come from the environment (:mod:`.settings`) and are never
options: Spark shows those. Call :func:`.read.register` first. Filters on the columns are pushed down to segments, row
groups and rows. There is one partition for each 64 MiB of segments.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow
import pyarrow.dataset
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.model.interval import parse_time
from airflow_provider_segments.snapshot import Snapshot
from airflow_provider_segments.spark.filters import expression, may_match, usable
from airflow_provider_segments.spark.settings import StorageAccess, connect, storage_options
from airflow_provider_segments.store import DEFAULT_CLUSTER

_PARTITION_BYTES = 64 << 20
_BATCH_ROWS = 32_768


class ReadSegment(msgspec.Struct, frozen=True, array_like=True):
    """One segment to read: its object, its size and its column statistics."""

    key: str
    rows: int
    bytes: int
    columns: dict[str, list[Any]] | None = None


def pack_segments(snapshot: Snapshot) -> str:
    """The segments of ``snapshot`` as the value of the option ``segments``: it fixes what is read, to the file."""
    found = [ReadSegment(segment.key, segment.rows, segment.bytes, segment.columns) for segment in snapshot.segments]
    return base64.b64encode(zlib.compress(msgspec.json.encode(found), 1)).decode()


def _unpack(packed: str) -> list[ReadSegment]:
    return msgspec.json.decode(zlib.decompress(base64.b64decode(packed)), type=list[ReadSegment])


class SegmentsDataSource(DataSource):
    """The Python data source; see the module."""

    _found: tuple[StructType, list[ReadSegment]] | None = None

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "segments"

    def schema(self) -> StructType:
        """The schema of the newest segment. The snapshot taken for it is the one that is read."""
        self._found = self._resolve(None)
        return self._found[0]

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the snapshot."""
        if self._found is None:
            packed = self.options.get("segments")
            self._found = (schema, _unpack(packed)) if packed else self._resolve(schema)
        storage = StorageAccess(self._required("storage_uri"), storage_options())
        return SegmentsReader(schema, self._found[1], storage.uri)

    def _resolve(self, schema: StructType | None) -> tuple[StructType, list[ReadSegment]]:
        from airflow_provider_segments.spark.read import schema_of

        hosts, uri, name = self._required("zk_hosts"), self._required("storage_uri"), self._required("table")
        with connect(hosts, uri, self.options.get("cluster", DEFAULT_CLUSTER)) as store:
            table = store.table(name)
            table.config()
            start, end = _ms(self.options.get("start")), _ms(self.options.get("end"))
            snapshot = table.snapshot(start, end, as_of=self.options.get("as_of"))
            if schema is None:
                schema = schema_of(snapshot if len(snapshot) else table.snapshot(as_of=self.options.get("as_of")))
            return schema, _unpack(pack_segments(snapshot))

    def _required(self, option: str) -> str:
        value = self.options.get(option)
        if not value:
            raise InvalidConfigError(f'spark.read.format("segments") needs the option {option}')
        return str(value)


@dataclass
class _Group(InputPartition):
    """Segments that one task reads."""

    keys: list[str] = field(default_factory=list)
    bytes: int = 0


class SegmentsReader(DataSourceReader):
    """Reads segments with Arrow. Pickled with its filters to the executors; holds no secrets."""

    def __init__(self, schema: StructType, segments: list[ReadSegment], storage_uri: str) -> None:
        self.arrow_schema = to_arrow_schema(schema, timezone="UTC")
        self.segments = segments
        self.storage_uri = storage_uri
        self.filters: list[Filter] = []

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
            groups[-1].keys.append(segment.key)
            groups[-1].bytes += segment.bytes
        return list(groups) or [_Group()]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """The rows of one group."""
        assert isinstance(partition, _Group)
        store = StorageAccess(self.storage_uri, storage_options()).open()
        for key in partition.keys:
            with store.open(key) as file:
                yield from self._batches(pyarrow.PythonFile(file, mode="r"))

    def _batches(self, file: pyarrow.NativeFile) -> Iterator[pyarrow.RecordBatch]:
        fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(file)
        scanner = fragment.scanner(
            schema=self.arrow_schema,
            filter=expression(self.filters),
            batch_size=_BATCH_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
            use_threads=False,
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                columns = [column.cast(field.type) for column, field in zip(batch, self.arrow_schema, strict=True)]
                yield pyarrow.RecordBatch.from_arrays(columns, schema=self.arrow_schema)


def _ms(text: str | None) -> int | None:
    if not text:
        return None
    return int(text) if text.lstrip("-").isdecimal() and len(text.lstrip("-")) > 4 else parse_time(text)
