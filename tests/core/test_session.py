"""The ZooKeeper session against a real server, over good and bad networks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_segments.core.table import SegmentStore, Table
from airflow_provider_segments.core.zookeeper import (
    Check,
    CommitConflictError,
    Create,
    Delete,
    SetData,
    ZooKeeperSession,
    ZooKeeperSettings,
)
from airflow_provider_segments.core.zookeeper.retry import Retry
from airflow_provider_segments.dev.zookeeper import free_port
from airflow_provider_segments.exceptions import (
    ContentionError,
    InvalidConfigError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    RecordTooLargeError,
)
from tests.support.sessions import CountingSession, settings
from tests.support.tables import (
    build,
    contents,
    make_table,
    named,
    on_session,
    push,
    registered,
    stage,
    states,
    visible,
)
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture
def session(zk_hosts: str, cluster: str) -> Iterator[ZooKeeperSession]:
    """A session whose chroot is the test's own."""
    with ZooKeeperSession.connect(settings(f"{zk_hosts}/{cluster}")) as opened:
        yield opened


@pytest.fixture
def proxy(zk_hosts: str) -> Iterator[TcpProxy]:
    """A network that can be made bad."""
    with TcpProxy(zk_hosts) as opened:
        yield opened


def conflict(session: ZooKeeperSession, *ops: Any) -> tuple[str, str]:
    with pytest.raises(CommitConflictError) as caught:
        session.commit(ops)
    return caught.value.op.path, caught.value.reason


def test_a_set_at_the_version_that_was_read_succeeds_and_at_any_other_changes_nothing(
    session: ZooKeeperSession,
) -> None:
    session.commit([Create("/a", b"1")])
    session.commit([SetData("/a", b"2", 0)])
    assert conflict(session, SetData("/a", b"3", 0)) == ("/a", "bad-version")
    node = session.get("/a")
    assert node is not None and (node.data, node.version) == (b"2", 1)
    assert node.mzxid > node.czxid


def test_creating_what_exists_is_a_conflict(session: ZooKeeperSession) -> None:
    """Treating "exists" as a lost compare-and-set is what keeps two first writers from erasing each other."""
    session.commit([Create("/a", b"1")])
    assert conflict(session, Create("/a", b"2")) == ("/a", "exists")


def test_writing_below_or_to_what_does_not_exist_is_a_conflict(session: ZooKeeperSession) -> None:
    assert conflict(session, SetData("/none", b"", 0)) == ("/none", "no-node")
    assert conflict(session, Create("/none/below", b"")) == ("/none/below", "no-node")
    assert conflict(session, Delete("/none", 0)) == ("/none", "no-node")
    session.commit([Create("/full"), Create("/full/below")])
    assert conflict(session, Delete("/full", 0)) == ("/full", "not-empty")


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_transaction_is_all_or_nothing_and_names_the_operation_that_failed(
    session: ZooKeeperSession, broken: int
) -> None:
    """kazoo returns a transaction's errors instead of raising them, and blames the others for side effects."""
    session.commit([Create("/a", b"1"), Create("/b"), Create("/c")])
    ops: list[Any] = [SetData("/a", b"2", 0), Delete("/b", 0), Check("/c", 0)]
    ops[broken] = type(ops[broken])(*[7 if value == 0 else value for value in vars_of(ops[broken])])
    path, reason = conflict(session, *ops, Create("/d"))
    assert (path, reason) == (ops[broken].path, "bad-version")
    assert [node and node.data for node in session.get_many(["/a", "/b", "/c", "/d"])] == [b"1", b"", b"", None]


def vars_of(op: Any) -> list[Any]:
    return [getattr(op, name) for name in op.__slots__]


def test_independent_transactions_each_report_their_own_outcome(session: ZooKeeperSession) -> None:
    session.commit([Create("/5")])
    outcomes = session.commit_many([[Create(f"/{number}")] for number in range(20)])
    assert [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Exception)] == [5]
    assert isinstance(outcomes[5], CommitConflictError)
    assert len(session.children("/")) >= 20


def test_thousands_of_reads_keep_their_order(session: ZooKeeperSession) -> None:
    session.commit_many([[Create(f"/n{number}", b"%d" % number)] for number in range(0, 300, 2)])
    nodes = session.get_many([f"/n{number % 300}" for number in range(6000)])
    assert all((node is None) == bool(number % 2) for number, node in enumerate(nodes))
    assert all(int(node.data) == number % 300 for number, node in enumerate(nodes) if node)
    assert session.children_many(["/n0", "/none"]) == [[], []]


def test_a_write_that_zookeeper_could_not_take_is_refused_before_it_is_sent(session: ZooKeeperSession) -> None:
    """Sent, it would come back as a lost connection, and nobody would know why."""
    session.commit([Create("/a", b"")])
    before = session.session_id
    with pytest.raises(RecordTooLargeError, match=r"over ZooKeeper's limit.*its largest record is /big with 1,050,000"):
        session.commit([SetData("/a", b"x", 0), Create("/big", bytes(1_050_000))])
    node = session.get("/a")
    assert node is not None and node.version == 0
    assert session.session_id == before


def test_the_largest_write_that_is_let_through_is_taken(session: ZooKeeperSession) -> None:
    session.commit([Create("/big", bytes(1_039_800))])
    node = session.get("/big")
    assert node is not None and len(node.data) == 1_039_800


def test_no_server_is_one_clear_error(storage_uri: str) -> None:
    hosts = f"127.0.0.1:{free_port()}"
    with pytest.raises(MetadataUnavailableError, match=f"ZooKeeper at {hosts} did not answer within 0.5 s; check that"):
        SegmentStore.connect(zookeeper=ZooKeeperSettings(hosts=hosts, connect_timeout=0.5), storage_uri=storage_uri)


@pytest.mark.parametrize(
    "wrong", [{"hosts": " "}, {"hosts": "h:1", "username": "u"}, {"hosts": "h:1", "password": "p"}]
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError):
        ZooKeeperSettings(**wrong)


def test_a_password_does_not_show_in_the_settings() -> None:
    assert "secret" not in repr(ZooKeeperSettings(hosts="h:1", username="u", password="secret"))


def test_znodes_made_with_credentials_are_closed_to_everybody_else(zk_hosts: str, cluster: str) -> None:
    """Without credentials and with wrong ones: an error that says so, for reads, single writes and transactions."""
    mine = settings(zk_hosts, username="ann", password="right")
    with ZooKeeperSession.connect(mine) as ann:
        ann.ensure([f"/{cluster}/deep"])
        ann.commit([Create(f"/{cluster}/a", b"1")])
    for other in ({}, {"username": "ann", "password": "wrong"}):
        with ZooKeeperSession.connect(settings(zk_hosts, **other)) as eve:
            for attempt in (
                lambda: eve.get(f"/{cluster}/a"),
                lambda: eve.commit([SetData(f"/{cluster}/a", b"2", 0)]),
                lambda: eve.commit([Check(f"/{cluster}/deep", 0), Create(f"/{cluster}/b")]),
                lambda: eve.ensure([f"/{cluster}/deep/er"]),
            ):
                with pytest.raises(MetadataUnavailableError, match=r"denied access|other (digest )?credentials"):
                    attempt()
    with ZooKeeperSession.connect(mine) as ann:
        node = ann.get(f"/{cluster}/a")
        assert node is not None and (node.data, node.version) == (b"1", 0)
        assert ann.children(f"/{cluster}") == ["a", "deep"]


def test_a_whole_push_works_with_credentials_and_below_a_chroot(zk_hosts: str, cluster: str, storage_uri: str) -> None:
    mine = settings(f"{zk_hosts}/{cluster}/deep", username="ann", password="right")
    with SegmentStore.connect(zookeeper=mine, cluster="inner", storage_uri=storage_uri) as store:
        table = make_table(store)
        table.revert(push(table), allow_empty=True)
        push(table)
        assert len(visible(table)) == 2
    with ZooKeeperSession.connect(settings(zk_hosts, username="ann", password="right")) as outside:
        assert outside.children(f"/{cluster}/deep/inner/SEGMENTS/t") == ["2013-01-01", "2013-01-02"]


@pytest.mark.parametrize("event", ["create", "change", "delete"])
def test_a_watch_tells_once_of_the_next_change(session: ZooKeeperSession, event: str) -> None:
    if event != "create":
        session.commit([Create("/a")])
    told = threading.Semaphore(0)
    session.watch("/a", lambda: told.release())
    write = {"create": Create("/a"), "change": SetData("/a", b"2", 0), "delete": Delete("/a", 0)}[event]
    session.commit([write])
    assert told.acquire(timeout=5)
    if event == "create":
        session.commit([SetData("/a", b"3", 0)])
    assert not told.acquire(timeout=0.1)


def test_a_forgotten_watch_is_silent(session: ZooKeeperSession) -> None:
    told = threading.Event()
    session.watch("/a", told.set)()
    session.commit([Create("/a")])
    session.get("/a")
    assert not told.wait(0.1)


def test_a_watch_also_tells_of_a_lost_connection(proxy: TcpProxy, cluster: str) -> None:
    with ZooKeeperSession.connect(settings(proxy.hosts, session_timeout=1.0)) as session:
        told = threading.Event()
        session.watch(f"/{cluster}", told.set)
        proxy.refuse()
        assert told.wait(30)


def test_reads_outlive_a_broken_connection(proxy: TcpProxy, cluster: str) -> None:
    with ZooKeeperSession.connect(settings(proxy.hosts)) as session:
        session.ensure([f"/{cluster}"])
        for _ in range(5):
            proxy.cut()
            assert session.get(f"/{cluster}") is not None


def test_a_read_without_an_answer_ends_in_a_clear_error(proxy: TcpProxy) -> None:
    with ZooKeeperSession.connect(settings(proxy.hosts, session_timeout=1.0, operation_timeout=0.5)) as session:
        proxy.refuse()
        with pytest.raises(MetadataUnavailableError, match=r"did not answer a read within 0\.5 s"):
            session.get("/")


@pytest.mark.parametrize("landed", [True, False], ids=["the reply was lost", "the request was lost"])
def test_a_connection_lost_in_a_compare_and_set_is_an_unknown_outcome(
    proxy: TcpProxy, cluster: str, landed: bool
) -> None:
    """Neither "done" nor "refused": both would be wrong half of the time."""
    with ZooKeeperSession.connect(settings(proxy.hosts)) as session:
        session.ensure([f"/{cluster}"])
        session.commit([Create(f"/{cluster}/a", b"1")])
        cut_at(proxy, b"NEW", reply_only=landed)
        with pytest.raises(OutcomeUnknownError, match=f"broke while /{cluster}/a was being written"):
            session.commit([SetData(f"/{cluster}/a", b"NEW", 0)])
        proxy.heal()
        node = session.get(f"/{cluster}/a")
        assert node is not None and node.data == (b"NEW" if landed else b"1")


def cut_at(proxy: TcpProxy, marker: bytes, *, reply_only: bool) -> None:
    """Cut the network when a request with ``marker`` comes by: before it arrives, or between it and its reply."""

    def look(block: bytes) -> None:
        if marker not in block:
            return
        proxy.on_request = lambda _: None
        if not reply_only:
            proxy.cut()
            return
        proxy.drop_replies()
        threading.Timer(0.1, lambda: (proxy.heal(), proxy.cut())).start()

    proxy.on_request = look


class Cutting(CountingSession):
    """Swallows the reply of the ``at``-th write on the wire, then cuts the connection."""

    proxy: TcpProxy
    at = 0

    def before(self) -> None:
        if self.writes == self.at:
            self.proxy.drop_replies()
            threading.Timer(0.05, lambda: (self.proxy.heal(), self.proxy.cut())).start()


class Step:
    """One step of the protocol on a table of its own: how to prepare it, do it, and tell that it was done once."""

    def __init__(self, store: SegmentStore, name: str) -> None:
        self.table = make_table(store, name)
        self.old = push(self.table)
        self.before = visible(self.table)

    def announce(self) -> str:
        return self.table.start(sorted(self.before), identity="me").entry_id


class Start(Step):
    def prepare(self) -> None:
        pass

    def act(self, table: Table) -> None:
        assert table.start(sorted(self.before), identity="me").entry_id

    def check(self) -> None:
        assert sorted(states(self.table).values()) == ["COMPLETED", "IN_PROGRESS"]
        assert (
            len(self.table.store.session.children(f"/{self.table.store.paths.cluster}/ENTRIES/{self.table.name}")) == 2
        )
        assert visible(self.table) == self.before


class Stage(Step):
    def prepare(self) -> None:
        self.entry_id = self.announce()

    def act(self, table: Table) -> None:
        ticket = table.open_stage(self.entry_id)
        names = named(table, self.entry_id, 3)
        assert table.stage(ticket, build(table, ticket, names, chunks=("2013-01-01", "2013-02-01"))).segments == 3

    def check(self) -> None:
        assert sorted(self.table.staged(self.entry_id).names) == named(self.table, self.entry_id, 3)
        assert visible(self.table) == self.before
        self.table.end(self.entry_id)
        assert visible(self.table) == set(named(self.table, self.entry_id, 3)) == registered(self.table) - self.before


class End(Step):
    """It also drops what is not in ``to``."""

    def prepare(self) -> None:
        self.entry_id = self.announce()
        stage(self.table, self.entry_id, named(self.table, self.entry_id, 3))

    def act(self, table: Table) -> None:
        assert table.end(self.entry_id, named(table, self.entry_id, 2)).entry_id == self.entry_id

    def check(self) -> None:
        assert states(self.table)[self.entry_id] == "COMPLETED"
        assert visible(self.table) == set(named(self.table, self.entry_id, 2)) == registered(self.table) - self.before


class Revert(Step):
    def prepare(self) -> None:
        self.entry_id = self.announce()
        stage(self.table, self.entry_id, named(self.table, self.entry_id, 2))
        self.table.end(self.entry_id)

    def act(self, table: Table) -> None:
        assert table.revert(self.entry_id).hidden == tuple(named(table, self.entry_id, 2))

    def check(self) -> None:
        assert states(self.table) == {self.old: "COMPLETED", self.entry_id: "REVERTED"}
        assert visible(self.table) == self.before


@pytest.mark.parametrize("step", [Start, Stage, End, Revert])
def test_a_step_whose_replies_are_lost_is_done_exactly_once(
    store: SegmentStore, proxy: TcpProxy, step: Callable[..., Any]
) -> None:
    """For every write of the step, over a real socket: the write lands, its reply does not, the step finds its own
    work."""
    with Cutting.connect(settings(proxy.hosts)) as session:
        session.proxy = proxy
        remote = on_session(store, session)
        for at in range(1, 50):
            case = step(store, f"t{at}")
            case.prepare()
            session.writes, session.at = 0, at
            case.act(remote.table(case.table.name))
            case.check()
            if session.writes < at:
                assert at > 1
                return
    raise AssertionError("the step never ran out of writes")


@pytest.mark.parametrize("landed", [True, False])
def test_an_outcome_that_stays_unknown_is_never_reported_as_nothing_changed(
    store: SegmentStore, proxy: TcpProxy, landed: bool
) -> None:
    """The write was sent, then the network went away for good. MetadataUnavailableError would say that nothing was
    changed, and its caller would clean up what may have been published."""
    table = make_table(store)
    entry_id = push(table)
    with ZooKeeperSession.connect(settings(proxy.hosts, session_timeout=1.0, operation_timeout=1.0)) as session:
        remote = on_session(store, session, Retry(attempts=3)).table("t")

        def look(block: bytes) -> None:
            if b"REVERTED" in block:
                proxy.on_request = lambda _: None
                proxy.drop_replies() if landed else proxy.refuse()
                threading.Timer(0.1, proxy.refuse).start()

        proxy.on_request = look
        with pytest.raises(OutcomeUnknownError):
            remote.revert(entry_id, allow_empty=True)
    assert states(table)[entry_id] == ("REVERTED" if landed else "COMPLETED")
    assert contents(store)


class Losing(CountingSession):
    """Somebody else always wins: the lineage changes right before every write of ours."""

    rival: ZooKeeperSession
    path = ""

    def before(self) -> None:
        node = self.rival.get(self.path)
        assert node is not None
        self.rival.commit([SetData(self.path, node.data, node.version)])


def test_a_step_that_always_loses_ends_bounded_and_has_changed_nothing(store: SegmentStore, zk_hosts: str) -> None:
    table = make_table(store)
    push(table)
    with Losing.connect(settings(zk_hosts)) as session:
        session.rival, session.path = store.session, store.paths.lineage("t")
        remote = on_session(store, session, Retry(attempts=5, base=0.0)).table("t")
        with pytest.raises(ContentionError, match="start on table 't': other writers won all 5 attempts; nothing was"):
            remote.start()
    assert session.writes == 5
    assert list(states(table).values()) == ["COMPLETED"]
