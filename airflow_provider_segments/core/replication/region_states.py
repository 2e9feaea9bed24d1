"""The state of each region that was last told to somebody, so that a change is told once. One znode a table.

Whoever looks at the regions of a table, every minute and from wherever, notes what it sees. The one whose write changes
a state tells the change. So an alarm comes once, also if several look, or one of them starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from airflow_provider_segments.core.cluster import Cluster
from airflow_provider_segments.core.model import records
from airflow_provider_segments.core.model.records import Record, RecordDecoder
from airflow_provider_segments.core.replication.heartbeat import HEARD, Lag
from airflow_provider_segments.core.zookeeper import Create, Op, SetData


class RegionStates(Record, frozen=True, tag_field=records.FORMAT, tag=1):
    """The state of each region (see :attr:`.Lag.state`), as it was last told. ``write_id`` names the last write."""

    states: dict[str, str] = {}
    write_id: str = ""


_DECODER = RecordDecoder(RegionStates, "states of regions")


def decode(payload: bytes, where: str) -> RegionStates:
    """The states in ``payload``. Raises :class:`CorruptRecordError`."""
    return _DECODER.decode(payload, where)


def note_states(cluster: Cluster, table: str, lags: Mapping[str, Lag]) -> dict[str, Lag]:
    """Keep the state of each region in ``lags``; returns those whose state has changed since it was kept last.

    Every change is returned to one caller, which tells it. A region of which nothing was kept counts as heard, so that
    one that never was is told, too. Raises :class:`CorruptRecordError` and what ``Retry.run`` raises.
    """
    path, write_id = cluster.paths.region_states(table), cluster.clock.new_id()
    cluster.session.ensure([path.rpartition("/")[0]])
    states = {region: lag.state for region, lag in lags.items()}
    changed: dict[str, Lag] = {}

    def attempt() -> None:
        node = cluster.session.get(path)
        last = RegionStates() if node is None else decode(node.data, path)
        if last.write_id == write_id:
            return  # an earlier attempt was applied, and its reply was lost
        changed.clear()
        changed.update({region: lag for region, lag in lags.items() if last.states.get(region, HEARD) != lag.state})
        if last.states != states:
            payload = records.encode(msgspec.structs.replace(last, states=states, write_id=write_id))
            op: Op = Create(path, payload) if node is None else SetData(path, payload, node.version)
            cluster.session.commit([op])

    cluster.retried(f"states of the regions of table {table!r}", attempt)
    return changed
