"""Text that others wrote is shown escaped, masked and short, whatever shows it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_provider_segments import exceptions
from airflow_provider_segments.cli.main import main
from airflow_provider_segments.core.locking import LockRequest, LockType
from airflow_provider_segments.core.model.interval import ALL_TIME
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.core.zookeeper import Create, SetData
from airflow_provider_segments.exceptions import LockDeniedError, SegmentsError
from airflow_provider_segments.text import MAX_MESSAGE, cut, escape, for_message, is_secret_name, mask
from tests.support.tables import make_table

HOSTILE = "\x1b[2J\x1b[1;1Hall is well\nforged row\r\u202e\x07\x9b1A"
PLAIN = "PLACEHOLDER"


def _forge(store: SegmentStore, path: str) -> None:
    """Write the hostile text into a record, as some other program could."""
    node = store.session.get(path)
    assert node is not None
    forged = node.data.replace(PLAIN.encode(), json.dumps(HOSTILE)[1:-1].encode())
    assert forged != node.data, path
    store.session.commit([SetData(path, forged, node.version)])


@pytest.fixture
def environment(zk_hosts: str, cluster: str, storage_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ZOOKEEPER": zk_hosts, "CLUSTER": cluster, "STORAGE": storage_uri}.items():
        monkeypatch.setenv(f"SEGMENTS_{name}", value)


def test_no_command_prints_a_control_character_of_others(
    store: SegmentStore, environment: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lock group, task and revoker, lease owner, dead letters: written past our checks, into ZooKeeper itself."""
    table = make_table(store)
    lock = table.locks.acquire(LockRequest(group=f"g {PLAIN}", task=f"t {PLAIN}", interval=ALL_TIME))
    revoked = LockRequest(group=f"r {PLAIN}", task="t", interval=ALL_TIME, lock_type=LockType.EXCLUSIVE, priority=80)
    table.locks.revoke([getattr(lock, "lock").lock_id], f"by {PLAIN}")  # noqa: B009
    table.locks.acquire(revoked)
    _forge(store, store.paths.lock_box("t"))
    store.session.ensure([store.paths.readers("t"), store.paths.dead_letters])
    store.session.commit([Create(f"{store.paths.readers('t')}/x", json.dumps({"owner": HOSTILE}).encode())])
    store.session.commit([Create(f"{store.paths.dead_letters}/1-{os.getpid()}", json.dumps([HOSTILE]).encode())])
    capsys.readouterr()
    commands = [
        ["tables"], ["lineage", "t"], ["snapshot", "t"], ["timeline", "t"], ["locks", "list", "t"], ["leases"],
        ["deletions"], ["dead-letters", "list"], ["locks", "release", "t", "--group", HOSTILE],
        ["locks", "revoke", "t", HOSTILE], ["lineage", HOSTILE], ["revert", "t", HOSTILE],
    ]  # fmt: skip
    shown = ""
    for command in commands:
        main(command)
        printed = capsys.readouterr()
        for line in (printed.out + printed.err).split("\n"):
            assert line.isprintable(), (command, line)
        shown += printed.out
    assert "\\x1b[2J" in shown
    assert not [line for line in shown.split("\n") if line.startswith("forged row")]
    for command in commands[:8]:
        main([*command, "--json"])
        assert json.loads(capsys.readouterr().out) is not None


def test_an_error_about_others_locks_is_one_short_printable_line(store: SegmentStore) -> None:
    from airflow_provider_segments.core.locking import granted_lock

    table = make_table(store)
    table.locks.acquire(LockRequest(group=f"g {PLAIN}", task="t", interval=ALL_TIME))
    _forge(store, store.paths.lock_box("t"))
    with pytest.raises(LockDeniedError) as denied:
        granted_lock("t", table.locks.acquire(LockRequest(group="h", task="t", interval=ALL_TIME)))
    assert str(denied.value).isprintable()
    assert "\\x1b[2J" in str(denied.value)


def _every_error() -> list[type[SegmentsError]]:
    found = [kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, SegmentsError)]
    assert len(found) > 25
    return found


@pytest.mark.parametrize("kind", _every_error(), ids=lambda kind: kind.__name__)
def test_every_error_is_printable_masked_and_at_most_a_screen(kind: type[SegmentsError]) -> None:
    text = f"{HOSTILE} s3://AKIA:geheim@bucket/x {'x' * 100_000} what to do next"
    if issubclass(kind, exceptions.RefusedError):
        error: SegmentsError = kind("rule", text, table=HOSTILE, hint="what to do next")
    else:
        error = kind(text)
    assert str(error).isprintable()
    assert len(str(error)) <= MAX_MESSAGE
    assert "geheim" not in str(error)
    assert str(error).endswith("what to do next")
    assert error.args == (str(error),)


def test_a_usage_error_is_short_and_printable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["tables", HOSTILE, "x" * 100_000])
    said = capsys.readouterr().err
    assert len(said) < 3 * MAX_MESSAGE
    assert all(line.isprintable() for line in said.split("\n"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:se/cr/et@bucket/x", "s3://***@bucket/x"),
        ("http://user:pw@h:9000/x", "http://***@h:9000/x"),
        ("https://token@h/x", "https://***@h/x"),
        ("http://127.0.0.1:9000/bucket/a@b", "http://127.0.0.1:9000/bucket/a@b"),
        ("s3://bucket/a@b/c", "s3://bucket/a@b/c"),
        ("zk1:2181,user:pw@zk2:2181", "zk1:2181,***@zk2:2181"),
        ("jdbc:postgresql://h/db?user=a&password=geheim&x=1", "jdbc:postgresql://h/db?user=a&password=***&x=1"),
        ("{'password': 'ge heim', 'a': 1}", "{'password': ***, 'a': 1}"),
        ('{"fs.s3a.secret.key": "geheim"}', '{"fs.s3a.secret.key": ***}'),
        ("fs.s3a.access.key=AKIA b", "fs.s3a.access.key=*** b"),
        ("the password must be given: without it", "the password must be given: without it"),
    ],
)
def test_secrets_in_addresses_and_after_telling_names_are_masked(text: str, shown: str) -> None:
    assert mask(text) == shown
    assert for_message(for_message(text)) == for_message(text)


def test_names_that_tell_a_secret() -> None:
    for name in ["password", "sfPassword", "fs.s3a.secret.key", "fs.s3a.access.key", "sig", "pem_private_key", "TOKEN"]:
        assert is_secret_name(name), name
    for name in ["header", "nullValue", "dbtable", "user", "key", "url", "inferSchema", "sep"]:
        assert not is_secret_name(name), name


def test_escaping_leaves_printable_text_alone_and_is_done_once() -> None:
    for text in ["", "a \\ b", "\u00e9\u4e2d\U0001f4a5"]:
        assert escape(text) == text
    assert escape(HOSTILE).isprintable()
    assert escape(escape(HOSTILE)) == escape(HOSTILE)
    assert escape("\ud800") == "\\ud800"


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    short = cut("begin" + "x" * 10_000 + "end", 200)
    assert len(short) <= 200
    assert short.startswith("begin")
    assert short.endswith("end")


def test_a_message_of_a_megabyte_is_made_at_once(tmp_path: Path) -> None:
    """No pattern takes time that grows with the square of the text."""
    import time

    for letter in ("a", "=", "password", "@", ":", "a:", "://"):
        began = time.process_time()
        for_message(letter * 1_000_000)
        assert time.process_time() - began < 1.0, letter
