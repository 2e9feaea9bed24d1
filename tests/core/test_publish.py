"""Publishing in one transaction: what it writes, what it refuses, and when it takes two steps."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_provider_segments.core import audit
from airflow_provider_segments.core.locking import Granted, LockRequest
from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.identity import HeldLock
from airflow_provider_segments.core.model.interval import Interval
from airflow_provider_segments.core.replacement import publish as publishing
from airflow_provider_segments.core.replacement import stage as staging
from airflow_provider_segments.core.replacement.stage import StageTicket
from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import operations
from airflow_provider_segments.exceptions import (
    EndRefusedError,
    LockRevokedError,
    RefusedError,
    StageRefusedError,
)
from tests.support.sessions import CountingSession, LossySession, settings
from tests.support.tables import (
    DAY_MS,
    JANUARY_1,
    build,
    make_table,
    named,
    object_path,
    on_session,
    push,
    registered,
    stage,
    states,
    unchanged,
    visible,
)

CHUNK = ("2013-01-01",)


@pytest.fixture
def table(store: SegmentStore) -> Table:
    """An APPEND table that shows ``a`` and ``b``."""
    made = make_table(store)
    push(made, ["a", "b"])
    return made


@pytest.fixture
def counting(zk_hosts: str) -> Iterator[CountingSession]:
    """A session that counts its writes."""
    with CountingSession.connect(settings(zk_hosts)) as session:
        yield session


def announce(table: Table, *segments_from: str, **how: object) -> StageTicket:
    """Start a push with its stage open."""
    ticket = table.start(segments_from, stager="build", **how).ticket  # type: ignore[arg-type]
    assert ticket is not None
    return ticket


def publish(table: Table, ticket: StageTicket, count: int = 2) -> set[str]:
    """Write objects and publish them; returns their names."""
    names = named(table, ticket.entry_id, count)
    ended = table.publish(ticket, build(table, ticket, names))
    assert set(ended.segments_to) == set(names)
    return set(names)


def locking(table: Table) -> None:
    """Have new segments get their versions under locks."""
    document = {**json.loads(json.dumps(dict(table.config().raw))), "segmentBuildConfig": {"segmentLocking": True}}
    table.store.apply_config(TableConfig.from_json(document))


def announce_locked(table: Table) -> tuple[StageTicket, str]:
    """Start a push that overwrites two days under a lock; its ticket and the lock's id."""
    locking(table)
    request = LockRequest(group="g", task="t", interval=Interval(JANUARY_1, JANUARY_1 + 2 * DAY_MS))
    granted = table.locks.acquire(request)
    assert isinstance(granted, Granted)
    lock_id = granted.lock.lock_id
    return announce(table, locks=[HeldLock(lock_id, "g", "t")]), lock_id


def assert_refused(rule: str, kind: type[RefusedError], table: Table, ticket: StageTicket, count: int = 2) -> None:
    """The publish is refused by that rule, and has not written one byte to ZooKeeper."""
    segments = build(table, ticket, named(table, ticket.entry_id, count))

    def act() -> None:
        with pytest.raises(kind) as caught:
            table.publish(ticket, segments)
        assert caught.value.rule == rule, caught.value

    unchanged(table.store, act)


def test_a_publish_is_two_writes_and_leaves_what_stage_and_end_would(
    store: SegmentStore, table: Table, counting: CountingSession
) -> None:
    before = push(table, 2, ["a"])
    fast = on_session(store, counting).table("t")
    fast.lineage()
    counting.writes = 0
    ticket = announce(fast, "b")
    assert visible(table) == {"b", *named(table, before, 2)}
    names = publish(fast, ticket)
    assert counting.writes == 2
    assert visible(table) == names | set(named(table, before, 2))
    assert set(states(table).values()) == {"COMPLETED"}
    mine, other = (table._context.guard(entry).guard for entry in (ticket.entry_id, before))
    assert mine.stages == other.stages and mine.state is other.state
    events = [event.record.action for event in audit.events(store.cluster, "t") if event.record.entry_id]
    assert events == ["ended", "started"] * 3
    table.revert(ticket.entry_id)
    assert visible(table) == {"b", *named(table, before, 2)}


def test_the_same_publish_again_succeeds_and_another_one_is_refused(table: Table) -> None:
    ticket = announce(table)
    names = named(table, ticket.entry_id, 2)
    segments = build(table, ticket, names)
    assert not table.publish(ticket, segments).already
    again = table.publish(ticket, segments)
    assert again.already and set(again.segments_to) == set(names)
    with pytest.raises(StageRefusedError, match="staged-differently"):
        table.publish(ticket, segments[:1])
    assert visible(table) == {"a", "b", *names}


@pytest.mark.parametrize("fate", ["before", "after"])
def test_a_publish_whose_reply_was_lost_is_done_once(
    store: SegmentStore, table: Table, zk_hosts: str, fate: str
) -> None:
    with LossySession.connect(settings(zk_hosts)) as session:
        lossy = on_session(store, session).table("t")
        for lost in (0, 1):  # the first write, which announces, or the second
            fates = iter([""] * lost + [fate])
            session.decide = lambda fates=fates: next(fates, "")  # type: ignore[misc]
            publish(lossy, announce(lossy, identity=f"push {lost}"))
            assert next(fates, None) is None
    assert len(visible(table)) == 2 + 4
    assert sorted(states(table).values()) == ["COMPLETED"] * 3


def test_a_retried_start_shuts_out_the_attempt_before(table: Table) -> None:
    first = announce(table, identity="me")
    second = announce(table, identity="me")
    assert (first.entry_id, first.attempt, second.attempt) == (second.entry_id, 1, 2)
    assert_refused("superseded", StageRefusedError, table, first)
    names = publish(table, second)
    assert visible(table) == {"a", "b", *names}
    assert_refused("completed", StageRefusedError, table, first)


def test_a_publish_into_a_reverted_entry_is_refused(table: Table) -> None:
    ticket = announce(table)
    table.abort(ticket.entry_id)
    assert_refused("reverted", StageRefusedError, table, ticket)


def test_a_publish_without_its_objects_is_refused(table: Table) -> None:
    ticket = announce(table)
    segments = build(table, ticket, named(table, ticket.entry_id, 2))
    object_path(table, ticket.prefix + segments[0].record.file).unlink()
    with pytest.raises(EndRefusedError, match="object-missing"):
        table.publish(ticket, segments)
    assert registered(table) == visible(table) == {"a", "b"}


def test_a_publish_of_nothing_must_be_meant(table: Table) -> None:
    ticket = announce(table, "a")
    assert_refused("nothing-staged", EndRefusedError, table, ticket, 0)
    table.publish(ticket, [], allow_empty=True)
    assert visible(table) == {"b"}


def test_a_publish_over_the_quota_is_refused(store: SegmentStore, table: Table) -> None:
    document = {**json.loads(json.dumps(dict(table.config().raw))), "quota": {"storage": "3B"}}
    store.apply_config(TableConfig.from_json(document))
    assert_refused("quota", StageRefusedError, table, announce(table))


def test_a_publish_whose_lock_was_revoked_is_refused(table: Table) -> None:
    ticket, lock_id = announce_locked(table)
    table.locks.revoke([lock_id], "somebody")
    segments = build(table, ticket, named(table, ticket.entry_id, 2))
    with pytest.raises(LockRevokedError):
        table.publish(ticket, segments)
    assert registered(table) == visible(table) == {"a", "b"}


def test_a_published_overwrite_hides_what_is_older_and_is_rolled_back(table: Table) -> None:
    ticket, _ = announce_locked(table)
    names = publish(table, ticket)
    assert visible(table) == names
    table.revert(ticket.entry_id)
    assert visible(table) == {"a", "b"}


def test_a_publish_gives_its_locks_back(table: Table) -> None:
    locking(table)
    names = publish(table, announce(table))
    assert visible(table) == {"a", "b", *names}
    assert not table.locks.locks()


def test_a_publish_that_one_request_cannot_hold_takes_two_steps(
    store: SegmentStore, table: Table, counting: CountingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lowered so that the segments fit into a request, and so does the lineage, but not both."""
    counted = on_session(store, counting).table("t")
    ticket = announce(counted)
    segments = build(table, ticket, named(table, ticket.entry_id, 20))
    monkeypatch.setattr(operations, "MAX_REQUEST", 4_000)
    counting.writes = 0
    counted.publish(ticket, segments)
    assert counting.writes == 1 + 3  # the first one is refused before it is sent
    assert len(visible(table)) == 2 + 20


def _left_by_an_earlier_attempt(table: Table) -> StageTicket:
    """The ticket of a second attempt, after the first one has registered two segments."""
    first = announce(table, identity="me")
    lost = build(table, first, named(table, first.entry_id, 2))
    guard = table._context.guard(first.entry_id).guard
    staging._begin(table._context, first, guard)
    payloads = staging.shard_payloads(table._context, first, lost)
    table._context.registry.make_chunks(payloads)
    staging._register(table._context, first, guard, payloads)
    return announce(table, identity="me")


def test_what_an_earlier_attempt_has_registered_never_becomes_visible(table: Table) -> None:
    ticket = _left_by_an_earlier_attempt(table)
    names = publish(table, ticket, 1)
    assert visible(table) == registered(table) == {"a", "b", *names}


def test_without_the_look_for_earlier_attempts_their_segments_become_visible(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert test of that check."""
    ticket = _left_by_an_earlier_attempt(table)
    monkeypatch.setattr(publishing, "_staged_by_others", lambda *_: ())
    publish(table, ticket, 1)
    assert sorted(table.snapshot().names) != sorted({"a", "b", *named(table, ticket.entry_id, 1)})


def test_what_another_stager_has_staged_is_published_with_it(
    store: SegmentStore, table: Table, counting: CountingSession
) -> None:
    counted = on_session(store, counting).table("t")
    ticket = announce(counted, "a")
    stage(table, ticket.entry_id, ["x"], stager="other", chunks=CHUNK)
    segments = build(table, ticket, named(table, ticket.entry_id, 1))
    counting.writes = 0
    ended = counted.publish(ticket, segments)
    assert counting.writes == 1
    assert set(ended.segments_to) == {"x", *named(table, ticket.entry_id, 1)}
    assert visible(table) == {"b", *ended.segments_to}
    table.revert(ticket.entry_id)
    assert visible(table) == {"a", "b"}


def test_a_publish_into_which_another_stager_still_builds_is_refused(table: Table) -> None:
    ticket = announce(table)
    other = table.open_stage(ticket.entry_id, "other")
    with pytest.raises(EndRefusedError, match="stage-unfinished"):
        table.publish(ticket, build(table, ticket, named(table, ticket.entry_id, 1)))
    assert visible(table) == {"a", "b"}
    table.stage(other, build(table, other, ["x"]))
    table.end(ticket.entry_id)
    assert visible(table) == {"a", "b", "x", *named(table, ticket.entry_id, 1)}


def test_a_publish_of_a_name_that_another_stager_has_staged_is_refused(table: Table) -> None:
    ticket = announce(table)
    stage(table, ticket.entry_id, named(table, ticket.entry_id, 1), stager="other", chunks=CHUNK)
    with pytest.raises(EndRefusedError, match="staged-twice"):
        table.publish(ticket, build(table, ticket, named(table, ticket.entry_id, 1)))
    assert visible(table) == {"a", "b"}


def test_what_another_stager_has_left_of_an_earlier_attempt_is_not_published(table: Table) -> None:
    ticket = announce(table)
    stage(table, ticket.entry_id, ["x"], stager="other", chunks=CHUNK)
    stage(table, ticket.entry_id, ["y"], stager="other", chunks=CHUNK)
    table.publish(ticket, build(table, ticket, named(table, ticket.entry_id, 1)))
    assert visible(table) == {"a", "b", "y", *named(table, ticket.entry_id, 1)}


def test_without_the_look_at_other_stagers_their_segments_are_not_the_entrys(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revert test of that look."""
    ticket = announce(table)
    stage(table, ticket.entry_id, ["x"], stager="other", chunks=CHUNK)
    monkeypatch.setattr(publishing, "_staged_by_others", lambda *_: ())
    ended = table.publish(ticket, build(table, ticket, named(table, ticket.entry_id, 1)))
    assert "x" not in ended.segments_to
