"""Reading and changing a table's registry.

Shards only ever gain hidden segments (``stage``, whose entry is in progress) and lose hidden ones (clean-up). The root
znode ``SEGMENTS/<table>`` remembers removals, for readers: see :class:`Root`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.records import FORMAT, Record, RecordDecoder, encode
from airflow_provider_segments.core.model.segment import SegmentRecord, encode_record
from airflow_provider_segments.core.registry import shard as shards
from airflow_provider_segments.core.registry.shard import Shard, ShardName
from airflow_provider_segments.core.zookeeper import (
    ANY_VERSION,
    Check,
    CommitConflictError,
    Create,
    Delete,
    Op,
    SetData,
)
from airflow_provider_segments.core.zookeeper.operations import MAX_REQUEST, request_size
from airflow_provider_segments.exceptions import CorruptRecordError, OutcomeUnknownError, TableNotFoundError

_STREAMED = 64  # shards held at once by who goes through all of them
_GUARD_ROOM = 40_000  # bytes of a request kept for a guard with many stagers


class Root(Record, frozen=True, tag_field=FORMAT, tag=1):
    """What the registry's root remembers of removals.

    ``removed_at`` is the highest lineage zxid that made a removal legal. A reader whose lineage is older takes a newer
    one: it may miss what it should see. ``history_floor`` is the highest zxid at which an entry was completed or
    reverted whose traces are gone: no snapshot as of an earlier time can be put together any more.
    """

    removed_at: int
    history_floor: int

    @classmethod
    def new(cls) -> Root:
        """The root of a table that nothing was removed from."""
        return cls(0, 0)

    def removing(self, zxid: int) -> Root:
        """This root once the lineage at ``zxid`` has made a removal legal."""
        return msgspec.structs.replace(self, removed_at=max(self.removed_at, zxid))

    def with_floor(self, zxid: int) -> Root:
        """This root once what was visible before ``zxid`` can no longer be told."""
        return msgspec.structs.replace(self, history_floor=max(self.history_floor, zxid))


@dataclass(frozen=True, slots=True)
class StoredRoot:
    """The root as it was read; ``changed`` is the zxid of its last change, which is the last removal of all."""

    root: Root
    version: int
    changed: int


@dataclass(frozen=True, slots=True)
class RegistryRead:
    """Shards of some chunks, the root as it was after they were read, and the version it had before: what was removed
    or offloaded in between may be missed by the shards, and shows in the root."""

    shards: tuple[Shard, ...]
    root: StoredRoot
    version: int


_ROOT = RecordDecoder(Root, "registry root")


def encode_root(root: Root) -> bytes:
    """The root as it is stored."""
    return encode(root)


def decode_root(payload: bytes, where: str) -> Root:
    """The root in ``payload``. Raises :class:`CorruptRecordError`."""
    return _ROOT.decode(payload, where)


class Registry:
    """The registry of one table."""

    def __init__(self, cluster: Cluster, table: str) -> None:
        self._session = cluster.session
        self.table = table
        self.path = cluster.paths.registry(table)
        self._config_path = cluster.paths.config(table)

    def read(self, wanted: Callable[[ShardName], bool], interval: Interval | None = None) -> RegistryRead:
        """Shards ``wanted`` of the chunks that overlap ``interval`` (all without one), then the root.

        A shard that goes away in between is left out; whether that matters to the reader, the root says.
        Raises :class:`TableNotFoundError` and :class:`CorruptRecordError`.
        """
        root, chunks = self._session.get_with_children(self.path)
        names = [name for name in self._names_in(chunks, interval) if wanted(name)]
        return RegistryRead(tuple(self._read(names)), self.root(), -1 if root is None else root.version)

    def stream(self, wanted: Callable[[ShardName], bool]) -> Iterator[Shard]:
        """Shards ``wanted``, read some at a time: for who goes through a whole table and keeps nothing of it.

        Without the root, and over a while: for decisions that are checked again where they are written.
        """
        names = [name for name in self.shard_names() if wanted(name)]
        for start in range(0, len(names), _STREAMED):
            yield from self._read(names[start : start + _STREAMED])

    def _read(self, names: Sequence[ShardName]) -> list[Shard]:
        nodes = self._session.get_many([name.path for name in names])
        return [shards.decode(name, node.data, node.version) for name, node in zip(names, nodes, strict=True) if node]

    def shard_names(self, interval: Interval | None = None) -> list[ShardName]:
        """All shards of the chunks that overlap ``interval``, from two round trips of names."""
        return self._names_in(self._session.children(self.path), interval)

    def _names_in(self, every: Iterable[str], interval: Interval | None) -> list[ShardName]:
        """The shards of those of the chunks ``every`` that overlap ``interval``."""
        intervals = {chunk: shards.chunk_interval(self.path, chunk) for chunk in every}
        chunks = [chunk for chunk, time in intervals.items() if interval is None or time.overlaps(interval)]
        parents = [f"{self.path}/{chunk}" for chunk in chunks]
        below = self._session.children_many(parents)
        return [
            shards.parse_name(chunk, parent, node)
            for chunk, parent, nodes in zip(chunks, parents, below, strict=True)
            for node in nodes
        ]

    def of_entry(self, entry_id: str) -> tuple[Shard, ...]:
        """The shards staged into one entry, by whichever stager and attempt."""
        return self.read(lambda name: name.entry_id == entry_id).shards

    def shards_of(self, entry_ids: Collection[str]) -> list[Shard]:
        """The shards of some entries. Without the root: for who asks what is registered, not what is visible."""
        names = [name for name in self.shard_names() if name.entry_id in entry_ids]
        return self._read(names)

    def shards_named(self, names: Sequence[ShardName]) -> list[Shard]:
        """Those of the shards that are there. Without the root, as :meth:`shards_of`."""
        nodes = self._session.get_many([name.path for name in names])
        return [shards.decode(name, node.data, node.version) for name, node in zip(names, nodes, strict=True) if node]

    def root(self) -> StoredRoot:
        """The root record. Raises :class:`TableNotFoundError` when the table was never made, and
        :class:`CorruptRecordError`, also when the registry of a table is gone."""
        node = self._session.get(self.path)
        if node is None and self._session.get(self._config_path) is not None:
            raise CorruptRecordError(
                f"table {self.table!r}: its registry {self.path} is gone. Restore the znodes from a backup of "
                "ZooKeeper (docs/operations.md); nothing was changed"
            )
        if node is None:
            raise TableNotFoundError(f"table {self.table!r} is not in this cluster; apply its config first")
        return StoredRoot(decode_root(node.data, self.path), node.version, node.mzxid)

    def write_root(self, stored: StoredRoot, changed: Root) -> SetData:
        """The compare-and-set of the root."""
        return SetData(self.path, encode_root(changed), stored.version)

    def remember_removal(self, zxid: int, settled_at: int = 0) -> None:
        """Tell readers before the first segment goes: one that read an older lineage than that of ``zxid`` takes a
        newer one, and no past before the zxid ``settled_at`` is put together any more. Raises
        :class:`CommitConflictError`."""
        stored = self.root()
        changed = stored.root.removing(zxid).with_floor(settled_at)
        if changed != stored.root:
            self._session.commit([self.write_root(stored, changed)])

    def shard_payloads(
        self, entry_id: str, born: int, stager: str, attempt: int, by_chunk: Mapping[str, Sequence[SegmentRecord]]
    ) -> dict[str, bytes]:
        """Paths and contents of the shards for records. The same input gives the same shards."""
        payloads = {}
        for chunk, records in shards.share(by_chunk).items():
            for number, group in enumerate(shards.split([encode_record(record) for record in records])):
                path = f"{self.path}/{chunk}/{entry_id}.{stager}.{attempt}.{number}"
                payloads[path] = shards.encode(entry_id, born, group)
        return payloads

    def create_shards(self, payloads: Mapping[str, bytes], fence: Check) -> dict[str, bytes]:
        """Try to create each shard, in transactions that all check ``fence``; returns those that are not known to
        exist.

        An empty result means that every shard was created by this call. The caller decides what to do about the rest.
        """
        self.make_chunks(payloads)
        creates = [Create(path, data) for path, data in payloads.items()]
        batches = [[fence, *batch] for batch in pack(creates, request_size([fence]))]
        outcomes = self._session.commit_many(batches)
        return {
            op.path: op.data
            for ops, outcome in zip(batches, outcomes, strict=True)
            if isinstance(outcome, CommitConflictError | OutcomeUnknownError)
            for op in ops
            if isinstance(op, Create)
        }

    def in_one_request(self, payloads: Mapping[str, bytes]) -> list[Op] | None:
        """The operations that create the shards, when one request can hold them all beside a guard; else ``None``."""
        creates: list[Op] = [Create(path, data) for path, data in payloads.items()]
        if len(creates) > 900 or request_size(creates) > MAX_REQUEST - _GUARD_ROOM:
            return None
        return creates

    def make_chunks(self, shard_paths: Iterable[str]) -> None:
        """Make the chunks of these shards that are missing."""
        self._session.ensure({path.rpartition("/")[0] for path in shard_paths})

    def remove_empty_chunks(self) -> int:
        """Remove the znodes of time chunks without shards; returns how many went.

        ZooKeeper removes no znode that has children, and who registers into a chunk makes it in every attempt.
        """
        parents = [f"{self.path}/{chunk}" for chunk in self._session.children(self.path)]
        below = self._session.children_many(parents)
        empty = [parent for parent, shards_there in zip(parents, below, strict=True) if not shards_there]
        outcomes = self._session.commit_many([[Delete(parent, ANY_VERSION)] for parent in empty])
        return sum(not isinstance(outcome, Exception) for outcome in outcomes)

    def standing(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Contents of those of ``paths`` that exist."""
        listed = list(paths)
        nodes = self._session.get_many(listed)
        return {path: node.data for path, node in zip(listed, nodes, strict=True) if node is not None}


def pack(ops: Iterable[Op], overhead: int = 0) -> list[list[Op]]:
    """``ops`` in order, in groups that each fit into one request beside ``overhead`` bytes."""
    groups: list[list[Op]] = []
    room = 0
    for op in ops:
        size = request_size([op])
        if size > room or len(groups[-1]) >= 1000:
            groups.append([])
            room = MAX_REQUEST - overhead
        groups[-1].append(op)
        room -= size
    return groups
