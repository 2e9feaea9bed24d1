"""Roles on a real ZooKeeper with digest, SASL and TLS: what whoever holds which role can do."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from airflow_provider_segments.cli.main import main
from airflow_provider_segments.core import access
from airflow_provider_segments.core.deletion.dead_letters import redrive
from airflow_provider_segments.core.locking import LockRequest
from airflow_provider_segments.core.model.interval import ALL_TIME
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import ZooKeeperSession
from airflow_provider_segments.core.zookeeper.acl import Roles
from airflow_provider_segments.core.zookeeper.settings import ZooKeeperSettings
from airflow_provider_segments.exceptions import AccessDeniedError, InvalidConfigError, MetadataUnavailableError
from tests.doors.secure import PASSWORDS, SecureZooKeeper, secure_zookeeper
from tests.support.tables import everything, make_table, push, visible

KINDS = ("digest", "sasl", "tls")
TRUST = Path(__file__).resolve().parents[2] / "docs" / "trust.md"


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZooKeeper]:
    with secure_zookeeper(tmp_path_factory.mktemp("secure")) as server:
        yield server


@pytest.mark.parametrize("kind", KINDS)
def test_a_push_and_its_rollback_by_three_users(
    zookeeper: SecureZooKeeper, cluster: str, tmp_path: Path, kind: str
) -> None:
    """The operator makes and shuts the cluster, the writer pushes, the reader reads, the operator rolls back; nobody
    else gets as far as a name."""
    with zookeeper.store("operator", kind, cluster, tmp_path) as operator:
        make_table(operator)
    zookeeper.apply_roles(kind, cluster, tmp_path)
    with zookeeper.store("writer", kind, cluster, tmp_path) as writer:
        first = push(writer.table("t"))
        entry = push(writer.table("t"))
        assert len(visible(writer.table("t"))) == 4
        with pytest.raises(AccessDeniedError, match="needs the role of an operator"):
            writer.table("t").revert(entry)
    with zookeeper.store("reader", kind, cluster, tmp_path) as reader:
        with reader.table("t").snapshot() as taken:
            assert taken.rows == 4
            assert len(reader.table("t").leases()) == 1
        assert not reader.table("t").leases()
        with pytest.raises(AccessDeniedError):
            reader.table("t").start()
    with zookeeper.store("operator", kind, cluster, tmp_path) as operator:
        operator.table("t").revert(entry)
        assert {name.split("_")[1] for name in visible(operator.table("t"))} == {first.replace("-", "")[:16]}
        assert access.check(operator.cluster).ok
    for who in ("stranger", None):
        with pytest.raises(AccessDeniedError), zookeeper.store(who, kind, cluster, tmp_path):
            pass


def test_a_wrong_password_opens_nothing(zookeeper: SecureZooKeeper, cluster: str, tmp_path: Path) -> None:
    """SASL refuses at once; with digest, another password is another user."""
    with zookeeper.store("operator", "digest", cluster, tmp_path) as operator:
        make_table(operator)
    zookeeper.apply_roles("digest", cluster, tmp_path)
    for auth in ("digest", "sasl"):
        wrong = ZooKeeperSettings(
            hosts=zookeeper.hosts, username="operator", password="wrong", auth=auth, connect_timeout=15
        )
        with pytest.raises(MetadataUnavailableError) as refused:
            SegmentStore.connect(cluster=cluster, storage_uri=str(tmp_path), zookeeper=wrong)
        assert "wrong" not in str(refused.value)


def test_a_server_whose_certificate_is_not_trusted_is_refused(zookeeper: SecureZooKeeper, tmp_path: Path) -> None:
    """Without the certificate, and under a name that it is not for."""
    for hosts, ca in ((zookeeper.tls_hosts, None), (zookeeper.hosts, zookeeper.ca)):
        settings = ZooKeeperSettings(hosts=hosts, use_ssl=True, ca=ca, connect_timeout=5)
        with pytest.raises(MetadataUnavailableError):
            ZooKeeperSession.connect(settings)


def test_an_open_cluster_is_told_of_loudly_when_credentials_are_given(
    zookeeper: SecureZooKeeper,
    cluster: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Switching credentials on protects nothing that exists; ``acl apply`` does, and ``acl check`` says so."""
    with zookeeper.store(None, "plain", cluster, tmp_path) as nobody:
        push(make_table(nobody))
    with caplog.at_level(logging.WARNING), zookeeper.store("operator", "digest", cluster, tmp_path):
        pass
    assert "is open: anyone who reaches ZooKeeper can change or erase it" in caplog.text
    caplog.clear()
    variables = {"ZOOKEEPER": zookeeper.hosts, "CLUSTER": cluster, "STORAGE": tmp_path.as_uri()}
    variables |= {"ZK_USERNAME": "operator", "ZK_PASSWORD": PASSWORDS["operator"]}
    for name, value in variables.items():
        monkeypatch.setenv(f"SEGMENTS_{name}", value)
    assert main(["acl", "check"]) == 1
    printed = capsys.readouterr()
    assert "can be changed by anyone" in printed.err
    assert f"open to anyone: /{cluster}" in printed.out
    roles = zookeeper.roles("digest")
    flags = [f"--{role}={getattr(roles, role)[0]}" for role in ("reader", "writer", "operator")]
    assert main(["acl", "apply", *flags]) == 0
    assert main(["acl", "check"]) == 0
    capsys.readouterr()
    assert main(["acl", "apply", "--json"]) == 0
    assert '"changed": 0' in capsys.readouterr().out
    caplog.clear()
    with caplog.at_level(logging.WARNING), zookeeper.store("operator", "digest", cluster, tmp_path):
        pass
    assert not caplog.text
    with pytest.raises(AccessDeniedError), zookeeper.store(None, "plain", cluster, tmp_path):
        pass


def test_roles_cannot_lock_out_whoever_sets_them(zookeeper: SecureZooKeeper, cluster: str, tmp_path: Path) -> None:
    with zookeeper.store("writer", "digest", cluster, tmp_path) as store:
        make_table(store)
        before = everything(store.session, f"/{cluster}")
        with pytest.raises(InvalidConfigError, match="not among the operators"):
            access.apply(store.cluster, zookeeper.roles("digest"))
        with pytest.raises(InvalidConfigError, match="no roles to apply"):
            access.apply(store.cluster)
        assert everything(store.session, f"/{cluster}") == before


@pytest.mark.parametrize(
    "bad", ["", "anyone", "digest:a", "digest:a:b", "sasl:", "world:anyone", "sasl:a b", "sasl:\x1b"]
)
def test_what_is_no_identity_has_no_role(bad: str) -> None:
    with pytest.raises(InvalidConfigError):
        Roles(operator=(bad,))


def test_an_identity_is_made_without_a_password_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORDS['writer']}\n"))
    assert main(["acl", "id", "writer"]) == 0
    settings = ZooKeeperSettings(hosts="localhost", username="writer", password=PASSWORDS["writer"])
    assert capsys.readouterr().out.strip() == settings.identities[0]


@dataclass(frozen=True)
class Prepared:
    """What the operator has made for one try: a completed push, and one in progress."""

    operator: SegmentStore
    completed: str
    running: str
    lease: str
    message: str


Try = Callable[[SegmentStore, Prepared], object]


def _forge_lineage(store: SegmentStore, made: Prepared) -> object:
    path = store.paths.lineage("t")
    node = made.operator.session.get(path)
    assert node is not None
    return store.session._client.set(path, node.data)


ACTIONS: dict[str, Try] = {
    "see tables, lineage, locks and what is queued": lambda store, made: [
        store.tables(),
        store.table("t").lineage(),
        store.table("t").locks.locks(),
        list(store.queue.dead_letters()),
    ],
    "read a snapshot under a lease": lambda store, made: store.table("t").snapshot().__enter__().lease.release(),  # type: ignore[union-attr]
    "make or change a table": lambda store, made: make_table(store, f"n{made.completed[:8]}"),
    "start, stage and end a push": lambda store, made: push(store.table("t")),
    "abort a push in progress": lambda store, made: store.table("t").abort(made.running),
    "take and release a lock": lambda store, made: [
        store.table("t").locks.acquire(LockRequest(group="g", task="t", interval=ALL_TIME, priority=90)),
        store.table("t").locks.release_group("g"),
    ],
    "roll a completed push back": lambda store, made: store.table("t").revert(made.completed),
    "retention and clean-up": lambda store, made: store.table("t").retain(),
    "mark leftovers for deletion": lambda store, made: store.table("t").mark_ledgers(["absent"], missing_ok=True),
    "delete what is marked": lambda store, made: store.deleter().drain(),
    "redrive and purge dead letters": lambda store, made: redrive(store.queue),
    "drop a table": lambda store, made: store.table(f"d{made.completed[:8]}").drop(),
    "change roles and permissions": lambda store, made: access.apply(store.cluster, _roles_of(made.operator)),
    "by hand: write the lineage of a table": _forge_lineage,
    "by hand: erase the lineage of a table": lambda store, made: store.session._client.delete(
        store.paths.lineage(f"d{made.completed[:8]}")
    ),
    "by hand: end another reader's lease": lambda store, made: store.session._client.delete(made.lease),
    "by hand: leave a znode that holds up deletions": lambda store, made: store.session._client.create(
        f"{store.paths.readers('t')}/x{made.completed}", b"{}"
    ),
    "by hand: queue a message of deletion": lambda store, made: store.session._client.create(
        f"{made.message.rpartition('/')[0]}/{made.completed}.1",
        b"{}",
        acl=_roles_of(made.operator).acls(("DELETION", "PENDING", "0", "m")),
    ),
    "by hand: take a message of deletion away": lambda store, made: store.session._client.delete(made.message),
    "by hand: write the roles": lambda store, made: store.session._client.set(
        store.paths.roles, _roles_of(made.operator).encode()
    ),
    "by hand: open a znode to everyone": lambda store, made: store.session._client.set_acls(
        store.paths.entries("t"), OPEN_ACL_UNSAFE
    ),
}


def _roles_of(operator: SegmentStore) -> Roles:
    roles = access.read_roles(operator.session, operator.paths)
    assert roles is not None
    return roles


def _prepare(operator: SegmentStore) -> Prepared:
    table = operator.table("t")
    completed = push(table)
    running = table.start().entry_id
    make_table(operator, f"d{completed[:8]}")
    lease = table.snapshot().__enter__().lease
    assert lease is not None
    parent = f"{operator.paths.pending_deletions}/0"
    operator.session.ensure([parent])
    message = f"{parent}/m{completed}.1"
    operator.session._client.create(message, b"{}", acl=_roles_of(operator).acls(("DELETION", "PENDING", "0", "m")))
    return Prepared(operator, completed, running, lease.path, message)


def _may(store: SegmentStore, act: Try, made: Prepared) -> bool:
    """Whether it happens. Any other refusal than one of access fails the test."""
    try:
        act(store, made)
    except (AccessDeniedError, NoAuthError, InvalidConfigError):
        return False
    return True


def _table_of(zookeeper: SecureZooKeeper, cluster: str, storage: Path) -> str:
    with zookeeper.store("operator", "digest", cluster, storage) as operator:
        make_table(operator)
        push(operator.table("t"))
    zookeeper.apply_roles("digest", cluster, storage)
    people = {"outsider": None, "stranger": "stranger", "reader": "reader", "writer": "writer", "operator": "operator"}
    found: dict[str, dict[str, bool]] = {name: {} for name in ACTIONS}
    with zookeeper.store("operator", "digest", cluster, storage) as operator:
        for person, who in people.items():
            settings = zookeeper.settings(who, "digest")
            with ZooKeeperSession.connect(settings) as session:
                store = operator.replace(session=session)
                if who in ("reader", "writer", "operator"):
                    access.adopt(session, store.paths)
                for name, act in ACTIONS.items():
                    found[name][person] = _may(store, act, _prepare(operator))
        report = access.apply(operator.cluster)
        assert not report.open, "what the operator opened by hand is shut again"
        assert [path for path in report.different if "/READERS/t/x" not in path and "/PENDING/" not in path] == []
        assert operator.table("t").leases(), "a lease that its owner alone may read counts"
    head = f"| action | {' | '.join(people)} |\n|{' --- |' * (len(people) + 1)}\n"
    rows = [
        f"| {name} | {' | '.join('yes' if found[name][person] else 'no' for person in people)} |" for name in ACTIONS
    ]
    return head + "\n".join(rows) + "\n"


def test_the_table_of_the_trust_page_is_what_zookeeper_does(
    zookeeper: SecureZooKeeper, cluster: str, tmp_path: Path
) -> None:
    """Outsider, stranger, reader, writer and operator try every kind of action; the page says what came of it."""
    table = _table_of(zookeeper, cluster, tmp_path)
    text = TRUST.read_text()
    written = re.search(r"<!-- roles -->\n(.*?)<!-- /roles -->", text, re.DOTALL)
    assert written is not None
    if os.environ.get("WRITE_TRUST_TABLE"):
        TRUST.write_text(text[: written.start(1)] + table + text[written.end(1) :])
        return
    assert written[1] == table
