"""The state of each region that was told last, on a real ZooKeeper: each change is told by one of those who look."""

from __future__ import annotations

from airflow_provider_segments.core.replication.heartbeat import Lag
from airflow_provider_segments.core.replication.region_states import note_states
from airflow_provider_segments.core.table import SegmentStore
from tests.support.sessions import LossySession, settings
from tests.support.tables import on_session

LATE, HEARD, NEVER = Lag("eu", 3001, 1000), Lag("eu", 3000, 1000), Lag("eu", None, 1000)


def told(store: SegmentStore, *lags: Lag) -> dict[str, str]:
    changed = note_states(store.cluster, "t", {lag.region: lag for lag in lags})
    return {region: lag.state for region, lag in changed.items()}


def test_each_change_is_told_once(store: SegmentStore) -> None:
    assert told(store, HEARD) == {}
    assert told(store, LATE) == {"eu": "silent"}
    assert told(store, NEVER) == {}, "silent is silent"
    assert told(store, HEARD) == {"eu": "heard"}
    assert told(store, HEARD) == {}
    assert told(store, Lag("eu", 0, 1000, is_ahead=True)) == {"eu": "clock ahead"}


def test_a_region_that_was_never_heard_is_told_at_first_sight(store: SegmentStore) -> None:
    assert told(store, NEVER) == {"eu": "silent"}


def test_a_region_that_the_config_does_not_name_any_more_is_forgotten(store: SegmentStore) -> None:
    us = Lag("us", None, 1000)
    assert told(store, LATE, us) == {"eu": "silent", "us": "silent"}
    assert told(store, us) == {}
    assert told(store, LATE, us) == {"eu": "silent"}


def test_a_change_is_told_also_if_the_reply_of_its_write_was_lost(store: SegmentStore, zk_hosts: str) -> None:
    with LossySession.connect(settings(zk_hosts)) as session:
        lossy = on_session(store, session)
        assert told(lossy, HEARD) == {}
        fates = ["after"]
        session.decide = lambda: fates.pop() if fates else ""
        assert told(lossy, LATE) == {"eu": "silent"}
        assert not fates
        fates = ["before"]
        assert told(lossy, HEARD) == {"eu": "heard"}
    assert told(store, HEARD) == {}
