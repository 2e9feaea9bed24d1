"""A cluster with every kind of znode in it, after a run with everything: the ground of the sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from airflow_provider_segments.core.doctor.kept import keep_report
from airflow_provider_segments.core.doctor.kinds import KINDS, kind_of
from airflow_provider_segments.core.doctor.report import DoctorReport
from airflow_provider_segments.core.lineage.entries import EntryState
from airflow_provider_segments.core.locking import LockRequest
from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.model.ledger import LedgerComponent, LedgerType, OffloadContext
from airflow_provider_segments.core.replication.comparisons import ComparisonRecord, keep_comparison
from airflow_provider_segments.core.replication.emission import HeartbeatEmitter
from airflow_provider_segments.core.replication.heartbeat import Lag
from airflow_provider_segments.core.replication.region_states import note_states
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.tiering import records as offloads
from airflow_provider_segments.core.tiering.records import OffloadRecord
from airflow_provider_segments.core.upsert.marks import HeldVersion
from airflow_provider_segments.core.zookeeper import Create
from airflow_provider_segments.core.zookeeper.acl import Roles
from tests.deletion.support import LATER, World, batch_of
from tests.support.tables import everything

HOUR = 3_600_000
OTHER = "other"
"""The table that nobody harms: it must be served whatever happens to the other one."""


@contextmanager
def busy(world: World) -> Iterator[World]:
    """Let everything happen: pushes, a replacement, a rollback, retention, an offload, deletions that are done, wait,
    are tried again and were given up; locks, leases and claims are held while the block runs."""
    table = world.table("t", replacedSegmentsRetentionPeriod="1h")
    other = world.table(OTHER)
    world.push(other, ["x", "y"])
    world.push(table, ["a", "b"])
    world.push(table, ["c"], ["a"])
    world.hand.advance(2 * HOUR)
    table.retain()
    world.drain()
    undone = world.push(table, ["d"])
    table.revert(undone)
    table.offload(older_than_ms=0, primary_lag_ms=0, max_segments=1)
    world.push(table, ["open"], end=False)
    with ExitStack() as held:
        _give_up(world)
        held.enter_context(table.snapshot(owner="a reader"))
        world.hand.advance(2 * HOUR)
        table.retain()
        world.drain()  # what the reader holds up gets a marker
        world.push(table, ["e"], ["c"])
        world.hand.advance(2 * HOUR)
        table.retain()
        _leave_what_a_killed_run_leaves(world)
        request = LockRequest(group="g", task="t", interval=Interval(0, HOUR))
        table.locks.acquire(request)
        claimed = world.store.queue.receive(1)
        _shut(world)
        yield world
        world.store.queue.release(claimed)


def _give_up(world: World) -> None:
    """Dead letters: the copies are in a tiered storage that is not there."""
    nowhere = OffloadContext("s3", "nowhere", "00000000-0000-4000-8000-0000000000aa")
    table = world.store.table("t")
    entry_id = next(entry.entry_id for entry in table.lineage().in_state(EntryState.COMPLETED))
    generation = world.generation(table, entry_id)
    batch = batch_of("t", entry_id, generation, "z", ledger_type=LedgerType.OFFLOAD_LEDGER, offload=nowhere)
    world.store.queue.send([batch])
    for _ in range(3):
        world.with_settings(max_retry_delete_count=1).drain()
        world.hand.advance(LATER)


def _leave_what_a_killed_run_leaves(world: World) -> None:
    """The record of an offload whose run was killed, a cursor in use, a report of a reader with copies."""
    session, paths = world.store.session, world.store.paths
    assert world.store.tiered is not None
    context = OffloadContext.at(world.store.tiered.uri, world.store.clock.new_id())
    session.ensure([paths.offloads("t")])
    record = OffloadRecord(context, (), world.hand.now_ms)
    path = f"{paths.offloads('t')}/{context.uuid}"
    session.commit([Create(path, offloads.encode(record)), Create(f"{path}/claim", b"me", ephemeral=True)])
    session.ensure([f"{paths.other_ledgers('t', LedgerComponent.MANAGED_CURSOR.value)}/cursor1"])
    session.ensure([paths.held_versions("t")])
    held = HeldVersion("reader", 1, True, world.hand.now_ms)
    session.commit([Create(paths.held_version("t", "reader"), records.encode(held))])
    HeartbeatEmitter(world.store.cluster, "t", "eu", "me").emit(1, lambda _: None)
    compared = ComparisonRecord(other="there", at_ms=world.hand.now_ms, version=1, other_version=1)
    keep_comparison(world.store.cluster, "t", compared)
    note_states(world.store.cluster, "t", {"eu": Lag("eu", None, HOUR)})
    keep_report(world.store.cluster, DoctorReport(paths.cluster))


def _shut(world: World) -> None:
    """The znodes of a cluster with roles. Processes that connect from now on follow them."""
    session, paths = world.store.session, world.store.paths
    roles = Roles(reader=("world:anyone",), operator=("sasl:me",))
    session.commit([Create(paths.roles, roles.encode()), Create(paths.operators, b"")])


def paths_by_kind(store: SegmentStore) -> dict[str, list[str]]:
    """The cluster's znodes by kind. Fails for one of no kind: whoever writes a new kind of znode names it."""
    found: dict[str, list[str]] = {}
    for path in everything(store.session, store.paths.root):
        parts = tuple(path.removeprefix(store.paths.root).strip("/").split("/")) if path != store.paths.root else ()
        kind = kind_of(parts)
        assert kind is not None, f"{path} is of no kind: name it in core/doctor/kinds.py"
        found.setdefault(kind.name, []).append(path)
    return found


def kinds_with_content() -> set[str]:
    """The kinds of znodes whose bytes are read."""
    return {kind.name for kind in KINDS if kind.read is not None}
