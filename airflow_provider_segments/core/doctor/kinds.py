"""Every kind of znode that this package writes: where it stands, and how it is decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_segments.core import audit, binding, table_config
from airflow_provider_segments.core.deletion import messages
from airflow_provider_segments.core.deletion.messages import UnreadableLetters
from airflow_provider_segments.core.doctor import kept
from airflow_provider_segments.core.lineage import codec, guard
from airflow_provider_segments.core.locking import state as lock_boxes
from airflow_provider_segments.core.model import ledger
from airflow_provider_segments.core.registry import leases, registry
from airflow_provider_segments.core.registry import shard as shards
from airflow_provider_segments.core.replication import comparisons, emission, region_states
from airflow_provider_segments.core.tiering import records as offloads
from airflow_provider_segments.core.upsert import marks
from airflow_provider_segments.core.upsert.record import record_of
from airflow_provider_segments.core.zookeeper import Node
from airflow_provider_segments.core.zookeeper.acl import Roles
from airflow_provider_segments.exceptions import CorruptRecordError

Reader = Callable[[str, bytes], object]
"""Decodes the bytes of the znode at a path. Raises :class:`CorruptRecordError`."""

PINOTS = frozenset(
    {
        "CONFIGS",
        "CONTROLLER",
        "CUSTOMIZEDVIEW",
        "EXTERNALVIEW",
        "IDEALSTATES",
        "INSTANCES",
        "LIVEINSTANCES",
        "STATEMODELDEFS",
    }
)
"""What Helix, and so a Pinot controller, keeps below a cluster."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of znode. ``place`` is its path below the cluster, with ``*`` for names; ``read`` decodes its bytes, and
    is absent where a znode's being there is all that counts."""

    name: str
    place: tuple[str, ...]
    read: Reader | None = None


def kind_of(parts: tuple[str, ...]) -> Kind | None:
    """The kind of the znode at ``parts`` below its cluster; ``None`` for one that this package does not write."""
    return next((kind for kind in KINDS if _fits(kind.place, parts)), None)


def _fits(place: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    return len(place) == len(parts) and all(wanted in ("*", part) for wanted, part in zip(place, parts, strict=True))


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _lineage(path: str, payload: bytes) -> object:
    lineage = codec.decode(payload, _last(path), path)
    return lineage, lineage.overwrites, lineage.rewrites, record_of(lineage)


def _shard(path: str, payload: bytes) -> object:
    parent, _, node = path.rpartition("/")
    return shards.decode(shards.parse_name(_last(parent), parent, node), payload, 0).records


def _chunk(path: str, _payload: bytes) -> object:
    parent, _, chunk = path.rpartition("/")
    return shards.chunk_interval(parent, chunk)


def _batch(path: str, payload: bytes) -> object:
    batch, malformed = ledger.decode_batch(payload, path)
    if malformed:
        raise CorruptRecordError(f"{path}: {len(malformed)} of its messages cannot be read: {malformed[0].problem}")
    return batch


def _dead(path: str, payload: bytes) -> object:
    letters = messages.decode_dead(payload, path)
    if isinstance(letters, UnreadableLetters):
        raise letters.error
    return letters


KINDS = (
    Kind("folder", ()),
    Kind("stores", ("STORES",), lambda path, payload: binding.decode(payload, path)),
    Kind("folder", ("PROPERTYSTORE",)),
    Kind("folder", ("PROPERTYSTORE", "CONFIGS")),
    Kind("folder", ("PROPERTYSTORE", "CONFIGS", "TABLE")),
    Kind(
        "config",
        ("PROPERTYSTORE", "CONFIGS", "TABLE", "*"),
        lambda path, payload: table_config.decode_config(payload, _last(path), path),
    ),
    Kind("folder", ("PROPERTYSTORE", "SEGMENT_LINEAGE")),
    Kind("lineage", ("PROPERTYSTORE", "SEGMENT_LINEAGE", "*"), _lineage),
    Kind("folder", ("ENTRIES",)),
    Kind("folder", ("ENTRIES", "*")),
    Kind(
        "guard",
        ("ENTRIES", "*", "*"),
        lambda path, payload: guard.decode(Node(payload, 0, 0, 0, 0), _last(path), path),
    ),
    Kind("folder", ("SEGMENTS",)),
    Kind("registry root", ("SEGMENTS", "*"), lambda path, payload: registry.decode_root(payload, path)),
    Kind("time chunk", ("SEGMENTS", "*", "*"), _chunk),
    Kind("shard", ("SEGMENTS", "*", "*", "*"), _shard),
    Kind("folder", ("LOCKS",)),
    Kind("lock box", ("LOCKS", "*"), lambda path, payload: lock_boxes.decode(payload, path)),
    Kind("fence", ("LOCKS", "*", "*")),
    Kind("folder", ("READERS",)),
    Kind("folder", ("READERS", "*")),
    Kind("lease", ("READERS", "*", "*"), lambda path, payload: leases.decode(payload, path)),
    Kind("folder", ("WATERMARKS",)),
    Kind("folder", ("WATERMARKS", "*")),
    Kind("held version", ("WATERMARKS", "*", "*"), lambda path, payload: marks.decode(payload, path)),
    Kind("folder", ("HEARTBEATS",)),
    Kind("folder", ("HEARTBEATS", "*")),
    Kind("heartbeat emission", ("HEARTBEATS", "*", "*"), lambda path, payload: emission.decode(payload, path)),
    Kind("folder", ("COMPARISONS",)),
    Kind("comparisons", ("COMPARISONS", "*"), lambda path, payload: comparisons.decode(payload, path)),
    Kind("folder", ("REGIONS",)),
    Kind("states of regions", ("REGIONS", "*"), lambda path, payload: region_states.decode(payload, path)),
    Kind("folder", ("OFFLOADS",)),
    Kind("folder", ("OFFLOADS", "*")),
    Kind("offload", ("OFFLOADS", "*", "*"), lambda path, payload: offloads.decode(payload, path)),
    Kind("claim of an offload", ("OFFLOADS", "*", "*", "claim")),
    Kind("folder", ("LOG",)),
    Kind("folder", ("LOG", "*")),
    Kind("event of the audit trail", ("LOG", "*", "*"), lambda path, payload: audit.decode(payload, path)),
    Kind("roles", ("ROLES",), lambda path, payload: Roles.decode(payload, path)),
    Kind("operators", ("OPERATORS",)),
    Kind("report of the doctor", ("DOCTOR",), lambda path, payload: kept.decode(payload, path)),
    Kind("folder", ("LEDGERS",)),
    Kind("folder", ("LEDGERS", "*")),
    Kind("folder", ("LEDGERS", "*", "*")),
    Kind("ledger of another component", ("LEDGERS", "*", "*", "*")),
    Kind("folder", ("DELETION",)),
    Kind("folder", ("DELETION", "PENDING")),
    Kind("folder", ("DELETION", "PENDING", "*")),
    Kind("deletion batch", ("DELETION", "PENDING", "*", "*"), _batch),
    Kind("folder", ("DELETION", "RETRY")),
    Kind("retry marker", ("DELETION", "RETRY", "*")),
    Kind("folder", ("DELETION", "CLAIMS")),
    Kind("claim", ("DELETION", "CLAIMS", "*")),
    Kind("folder", ("DELETION", "DEAD")),
    Kind("dead letters", ("DELETION", "DEAD", "*"), _dead),
    Kind("folder", ("DELETION", "SWEEPS")),
    Kind("sweep request", ("DELETION", "SWEEPS", "*"), lambda path, payload: ledger.decode_sweep(payload, path)),
)
"""All kinds. A znode of no kind is foreign: a test walks a cluster with everything in it and finds none."""
