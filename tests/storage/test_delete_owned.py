"""Deleting only what says of itself that it may go: the same on every store, then what each store adds."""

from __future__ import annotations

import datetime
import errno
import itertools
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from airflow_provider_segments.core.storage import local_owned, open_store, s3_owned
from airflow_provider_segments.core.storage.base import ObjectStore, encode_owner
from airflow_provider_segments.core.storage.local import LocalStore
from airflow_provider_segments.core.storage.s3 import S3Store
from airflow_provider_segments.core.storage.s3_heads import Heads, Signer
from airflow_provider_segments.dev.s3 import S3Server
from airflow_provider_segments.exceptions import InvalidNameError
from tests.support.children import KILLED, dies
from tests.support.http_faults import CUT, CUT_BODY, LOSE_REPLY, PASS, FaultyProxy

MINE = {"application": "segments", "generation": "e:1:build:1", "note": 'quotes " and ü\x7f'}
TEXT = encode_owner(MINE)
OTHER = {**MINE, "generation": "e:2:build:1"}


def _put(storage: ObjectStore, body: Path, *keys: str, owner: dict[str, str] = MINE) -> list[str]:
    for key in keys:
        storage.put_file(body, key, owner=owner)
    return list(keys)


def _spoil_owner(storage: ObjectStore, key: str, text: str) -> None:
    """Give an object metadata that somebody else wrote."""
    if isinstance(storage, S3Store):
        metadata = {"segments-owner": text} if text else {}
        storage._client().put_object(Bucket=storage.bucket, Key=storage._full(key), Body=b"x", Metadata=metadata)
        return
    assert isinstance(storage, LocalStore)
    path = storage.root / key
    if storage._attributes:
        os.setxattr(path, "user.segments.owner", text.encode()) if text else os.removexattr(path, "user.segments.owner")
        return
    for sidecar in (path.parent / ".owner").glob(f"{path.name}.*"):
        sidecar.write_text(text) if text else sidecar.unlink()


# --- every store


def test_an_object_goes_when_it_says_of_itself_what_is_expected(storage: ObjectStore, body: Path) -> None:
    """And nothing else does; nothing of it is left behind."""
    keys = _put(storage, body, "t/e/a", "t/e/b", "t/f/c")
    outcome = storage.delete_owned(dict.fromkeys(keys[:2], TEXT))
    assert sorted(outcome.deleted) == ["t/e/a", "t/e/b"]
    assert (outcome.missing, outcome.foreign, outcome.failed) == ((), {}, {})
    assert [found.key for found in storage.list("t/")] == ["t/f/c"]
    if isinstance(storage, LocalStore):
        assert sorted(path.name for path in (storage.root / "t").iterdir()) == ["f"]


def test_metadata_that_is_spelled_otherwise_is_the_same(storage: ObjectStore, body: Path) -> None:
    """Another version may order or space its JSON in another way."""
    _put(storage, body, "t/e/a")
    _spoil_owner(storage, "t/e/a", '{ "b": "2",  "a": "1" }')
    assert storage.delete_owned({"t/e/a": encode_owner({"a": "1", "b": "2"})}).deleted == ("t/e/a",)


@pytest.mark.parametrize(
    "text", ["", "not json", "[]", '{"a": 1}', encode_owner(OTHER), encode_owner({**MINE, "more": ""}), "{}"]
)
def test_an_object_with_other_metadata_or_none_is_foreign_and_stays(
    storage: ObjectStore, body: Path, text: str
) -> None:
    """Another generation, one field more, not readable, absent: each is somebody else's, never missing."""
    _put(storage, body, "t/e/a")
    _spoil_owner(storage, "t/e/a", text)
    outcome = storage.delete_owned({"t/e/a": TEXT})
    assert list(outcome.foreign) == ["t/e/a"]
    assert (outcome.deleted, outcome.missing, outcome.failed) == ((), (), {})
    assert [found.key for found in storage.list("t/e/")] == ["t/e/a"]


def test_foreign_metadata_of_any_length_is_no_failure(storage: ObjectStore, body: Path) -> None:
    """It could otherwise hold up the queue: no put of ours makes it so long."""
    _put(storage, body, "t/e/a")
    _spoil_owner(storage, "t/e/a", '{"a":"%s"}' % ("x" * 1900))
    assert list(storage.delete_owned({"t/e/a": TEXT}).foreign) == ["t/e/a"]


def test_what_is_not_there_is_missing_and_asking_twice_is_harmless(storage: ObjectStore, body: Path) -> None:
    """Where S3's delete cannot tell, the look can. A key below an object is not there either."""
    keys = _put(storage, body, "t/e/a", "t/e/b")
    assert sorted(storage.delete_owned(dict.fromkeys(keys, TEXT)).deleted) == keys
    outcome = storage.delete_owned(dict.fromkeys(keys, TEXT))
    assert sorted(outcome.missing) == keys
    assert (outcome.deleted, outcome.foreign, outcome.failed) == ((), {}, {})
    _put(storage, body, "t/e/a")
    assert sorted(storage.delete_owned({"t/e/a/b": TEXT, "no/such/x": TEXT}).missing) == ["no/such/x", "t/e/a/b"]


def test_nothing_to_delete_is_nothing_done(storage: ObjectStore) -> None:
    """Also with no store there yet."""
    outcome = storage.delete_owned({})
    assert (outcome.deleted, outcome.missing, outcome.foreign, outcome.failed) == ((), (), {}, {})


@pytest.mark.parametrize("key", ["../up", "t/../../up", "/abs", "a//b", "", ".hidden", "t/.owner/a", "a\nb"])
def test_a_key_that_climbs_is_refused_before_anything_is_touched(storage: ObjectStore, body: Path, key: str) -> None:
    """A forged message deletes nothing, whatever else the call was about."""
    _put(storage, body, "t/e/a")
    with pytest.raises(InvalidNameError):
        storage.delete_owned({"t/e/a": TEXT, key: TEXT})
    assert storage.head("t/e/a") is not None


def test_every_key_of_a_mixed_call_is_in_exactly_one_answer(storage: ObjectStore, body: Path) -> None:
    """Enough keys for several connections; one kind does not disturb another."""
    mine = _put(storage, body, *(f"t/e/mine{number:02d}" for number in range(40)))
    others = _put(storage, body, *(f"t/e/other{number}" for number in range(5)), owner=OTHER)
    _put(storage, body, "t/e/none", "t/e/corrupt")
    _spoil_owner(storage, "t/e/none", "")
    _spoil_owner(storage, "t/e/corrupt", "{")
    gone = [f"t/g/gone{number}" for number in range(5)]
    wanted = [
        key for row in itertools.zip_longest(mine, others, gone, ["t/e/none", "t/e/corrupt"]) for key in row if key
    ]
    outcome = storage.delete_owned(dict.fromkeys(wanted, TEXT))
    assert sorted(outcome.deleted) == mine
    assert sorted(outcome.missing) == gone
    assert sorted(outcome.foreign) == sorted([*others, "t/e/none", "t/e/corrupt"])
    assert outcome.failed == {}
    assert '"e:2:build:1"' in outcome.foreign["t/e/other0"]
    assert sorted(found.key for found in storage.list("t/")) == sorted([*others, "t/e/none", "t/e/corrupt"])


# --- files


@pytest.fixture(params=[True, False], ids=["attributes", "sidecars"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> LocalStore:
    """A local store of each kind."""
    return LocalStore(tmp_path / "store", attributes=request.param)


def test_links_and_folders_are_foreign_and_what_a_link_points_to_stays(files: LocalStore, body: Path) -> None:
    """Even a link to an object that may go, and a folder that carries the right attribute."""
    _put(files, body, "t/e/a")
    (files.root / "t/e/link").symlink_to("a")
    (files.root / "t/e/broken").symlink_to("nowhere")
    (files.root / "t/e/folder").mkdir()
    os.setxattr(files.root / "t/e/folder", "user.segments.owner", TEXT.encode())
    os.mkfifo(files.root / "t/e/pipe")
    (files.root / "t/out").symlink_to(files.root / "t/e")
    outcome = files.delete_owned(dict.fromkeys(["t/e/link", "t/e/broken", "t/e/folder", "t/e/pipe", "t/out/a"], TEXT))
    assert sorted(outcome.foreign) == ["t/e/broken", "t/e/folder", "t/e/link", "t/e/pipe"]
    assert "symbolic link" in outcome.foreign["t/e/link"]
    assert "ymbolic links" in outcome.failed["t/out/a"]
    assert outcome.deleted == outcome.missing == ()
    assert len(os.listdir(files.root / "t/e")) - (not files._attributes) == 5


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOENT])
def test_an_owner_that_cannot_be_read_the_short_way_is_looked_at_with_care(
    files: LocalStore, body: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """No /proc, say: that is not "not there". The short way only ever confirms."""
    real = os.getxattr

    def refused(path: Any, *args: Any, **kwargs: Any) -> bytes:
        if isinstance(path, str):
            raise OSError(code, os.strerror(code))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "getxattr", refused)
    _put(files, body, "t/e/a")
    _put(files, body, "t/e/b", owner=OTHER)
    outcome = files.delete_owned({"t/e/a": TEXT, "t/e/b": TEXT, "t/e/c": TEXT})
    assert (outcome.deleted, outcome.missing, list(outcome.foreign)) == (("t/e/a",), ("t/e/c",), ["t/e/b"])


@pytest.mark.parametrize("call", ["getxattr", "unlink", "stat"])
def test_a_refused_system_call_fails_its_file_and_never_reads_as_missing(
    tmp_path: Path, body: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The others go all the same."""
    store = LocalStore(tmp_path / "store")
    _put(store, body, "t/e/a", "t/e/b")
    _put(store, body, "t/e/other", owner=OTHER)
    real = getattr(os, call)

    def refused(path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, int) or str(path).endswith("other" if call == "stat" else "b"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, call, refused)
    outcome = store.delete_owned(dict.fromkeys(["t/e/a", "t/e/b", "t/e/other"], TEXT))
    monkeypatch.undo()
    assert "t/e/a" in outcome.deleted
    assert outcome.missing == ()
    broken = "t/e/other" if call == "stat" else "t/e/b"
    assert "Permission denied" in outcome.failed[broken]
    assert store.head(broken) is not None


def test_a_folder_that_cannot_be_synced_fails_its_files_and_no_others(
    files: LocalStore, body: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may come back after a loss of power is not called deleted; run again, it is missing, and synced then."""
    keys = _put(files, body, "t/e/a", "t/e/b", "t/f/c")
    real, left = os.fsync, [1]

    def once(handle: int) -> None:
        if left.pop() if left else 0:
            raise OSError(errno.EIO, "Input/output error")
        real(handle)

    monkeypatch.setattr(os, "fsync", once)
    outcome = files.delete_owned(dict.fromkeys(keys, TEXT))
    assert outcome.deleted == ("t/f/c",)
    assert sorted(outcome.failed) == ["t/e/a", "t/e/b"]
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    assert sorted(files.delete_owned(dict.fromkeys(keys[:2], TEXT)).missing) == ["t/e/a", "t/e/b"]
    assert synced == [str(files.root / "t/e")]


def test_a_folder_is_synced_once_for_all_its_files(tmp_path: Path, body: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync costs as much as hundreds of deletes."""
    store = LocalStore(tmp_path / "store")
    keys = _put(store, body, *(f"t/e/{number}" for number in range(30)), "t/f/a")
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    assert len(store.delete_owned(dict.fromkeys(keys, TEXT)).deleted) == 31
    assert [Path(path).name for path in synced] == ["e", "f"]


def test_a_deletion_killed_at_any_system_call_can_be_run_again(files: LocalStore, body: Path) -> None:
    """Whatever it left, the second run ends with no object of ours; the other's is there all the time."""
    calls = ("getxattr", "unlink", "fsync", "open", "close", "rmdir", "stat")
    for index in itertools.count(1):
        keys = _put(files, body, "t/e/a", "t/f/b")
        if files.head("t/f/other") is None:
            _put(files, body, "t/f/other", owner=OTHER)
        keys.append("t/f/other")
        done = _killed_at(index, calls, partial(files.delete_owned, dict.fromkeys(keys, TEXT)))
        outcome = files.delete_owned(dict.fromkeys(keys, TEXT))
        assert sorted((*outcome.deleted, *outcome.missing)) == ["t/e/a", "t/f/b"]
        assert (list(outcome.foreign), outcome.failed) == (["t/f/other"], {})
        assert [found.key for found in files.list("t/")] == ["t/f/other"]
        if done:
            break
    assert index > 12


def _killed_at(index: int, names: tuple[str, ...], work: Callable[[], object]) -> bool:
    """Run ``work`` in a fork that dies at its ``index``-th call of ``names``; whether it came to its end."""

    def killed() -> None:
        left = itertools.count(index - 1, -1)
        for name in names:
            real = getattr(os, name)

            def counted(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
                if next(left) == 0:
                    os._exit(KILLED)
                return _real(*args, **kwargs)

            setattr(os, name, counted)
        work()

    return not dies(killed)


def test_the_short_way_is_what_makes_it_fast(tmp_path: Path, body: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two system calls an object, as long as nothing is odd: the careful look is not needed once."""
    store = LocalStore(tmp_path / "store")
    keys = _put(store, body, *(f"t/e/{number}" for number in range(9)))
    monkeypatch.setattr(local_owned.OwnedDeletion, "_with_care", lambda *_: pytest.fail("looked with care"))
    assert len(store.delete_owned(dict.fromkeys(keys, TEXT)).deleted) == 9


# --- S3


_PREFIXES = itertools.count(1)


@pytest.fixture
def bucket(s3_server: S3Server) -> S3Store:
    """An empty store on the real server."""
    return S3Store("tests", f"owned{next(_PREFIXES)}", **s3_server.options)


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 repeats a request as often as ever, and does not wait before it."""
    import botocore.endpoint

    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=lambda _: None))


def _through(proxy: FaultyProxy, bucket: S3Store, server: S3Server) -> S3Store:
    return S3Store("tests", bucket.prefix, **{**server.options, "endpoint_url": proxy.url})


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize("fault", [403, 500, 503, CUT, LOSE_REPLY])
@pytest.mark.parametrize("method", ["HEAD", "POST"])
def test_a_store_that_refuses_or_does_not_answer_deletes_nothing_and_calls_nothing_missing(
    s3_server: S3Server, bucket: S3Store, body: Path, method: str, fault: str | int
) -> None:
    """Trap T10, for the looks and for the deletes: every key is failed, and is tried again. Only a delete whose reply
    was lost has happened."""
    keys = _put(bucket, body, *(f"t/e/{number}" for number in range(6)))
    asked = [*keys, "t/e/gone"] if method == "HEAD" else keys
    with FaultyProxy(s3_server.endpoint_url, lambda m, *_: fault if m == method else PASS) as proxy:
        outcome = _through(proxy, bucket, s3_server).delete_owned(dict.fromkeys(asked, TEXT))
    assert sorted(outcome.failed) == sorted(asked)
    assert (outcome.deleted, outcome.missing, outcome.foreign) == ((), (), {})
    there = [found.key for found in bucket.list("t/e/")]
    assert sorted(there) == ([] if (method, fault) == ("POST", LOSE_REPLY) else keys)


@pytest.mark.parametrize("fault", [403, 404, 500, 503, CUT, LOSE_REPLY, CUT_BODY])
def test_one_bad_answer_to_a_quick_look_is_asked_again(
    s3_server: S3Server, bucket: S3Store, body: Path, fault: str | int
) -> None:
    """Also a 404: only boto3's second look may call something missing. Nothing is lost, nothing is deleted twice."""
    keys = _put(bucket, body, *(f"t/e/{number:02d}" for number in range(20)))
    looks = itertools.count(1)
    decide = lambda m, *_: fault if m == "HEAD" and next(looks) == 7 else PASS  # noqa: E731
    with FaultyProxy(s3_server.endpoint_url, decide) as proxy:
        outcome = _through(proxy, bucket, s3_server).delete_owned(dict.fromkeys(keys, TEXT))
    assert sorted(outcome.deleted) == keys
    assert (outcome.missing, outcome.foreign, outcome.failed) == ((), {}, {})


def test_a_missing_bucket_is_no_missing_object(s3_server: S3Server) -> None:
    """A HEAD says 404 to both: GET tells them apart."""
    store = open_store("s3://no-such-bucket", **s3_server.options)
    outcome = store.delete_owned({"t/e/a": TEXT, "t/e/b": TEXT})
    assert sorted(outcome.failed) == ["t/e/a", "t/e/b"]
    assert "create the bucket" in outcome.failed["t/e/a"]
    assert outcome.missing == ()


def test_wrong_credentials_fail_every_key(s3_server: S3Server, bucket: S3Store, body: Path) -> None:
    """And no credentials do, too."""
    _put(bucket, body, "t/e/a")
    wrong = S3Store("tests", bucket.prefix, endpoint_url=s3_server.endpoint_url, access_key="who", secret_key="hush")
    outcome = wrong.delete_owned({"t/e/a": TEXT})
    assert "credentials" in outcome.failed["t/e/a"]
    assert "hush" not in str(outcome)
    assert bucket.head("t/e/a") is not None


def test_more_than_one_request_of_deletes(bucket: S3Store, body: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests hold no more keys than S3 takes, and run beside the looks."""
    monkeypatch.setattr(s3_owned, "DELETE_BATCH", 10)
    keys = _put(bucket, body, *(f"t/e/{number:02d}" for number in range(45)))
    sizes: list[int] = []
    real = bucket._delete
    monkeypatch.setattr(bucket, "_delete", lambda batch: sizes.append(len(batch)) or real(batch))
    assert sorted(bucket.delete_owned(dict.fromkeys(keys, TEXT)).deleted) == keys
    assert sorted(sizes) == [5, 10, 10, 10, 10]
    assert list(bucket.list("t/")) == []


def test_quick_looks_confirm_by_themselves(bucket: S3Store, body: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed hangs on this: as long as nothing is odd, boto3 is not asked once. Characters that are escaped in an
    address are signed right."""
    keys = _put(bucket, body, *(f"t/e/a={number:02d}+b@c~d" for number in range(70)))
    monkeypatch.setattr(bucket, "head", lambda key: pytest.fail(f"boto3 was asked about {key}"))
    assert sorted(bucket.delete_owned(dict.fromkeys(keys, TEXT)).deleted) == keys


def test_without_quick_looks_the_outcome_is_the_same(
    bucket: S3Store, body: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a proxy boto3 does all of it."""
    _put(bucket, body, "t/e/a")
    _put(bucket, body, "t/e/b", owner=OTHER)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert bucket._heads() is None
    monkeypatch.undo()
    monkeypatch.setattr(bucket, "_heads", lambda: None)
    outcome = bucket.delete_owned(dict.fromkeys(["t/e/a", "t/e/b", "t/e/c"], TEXT))
    assert (outcome.deleted, list(outcome.foreign), outcome.missing) == (("t/e/a",), ["t/e/b"], ("t/e/c",))


@pytest.mark.parametrize("token", [None, "session/token=="])
def test_a_quick_look_is_signed_as_botocore_signs(monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    """The same headers, so the same signature, to the letter."""
    import botocore.auth

    at = datetime.datetime(2026, 5, 4, 3, 2, 1, tzinfo=datetime.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: at.replace(tzinfo=None))
    request = AWSRequest("HEAD", "https://bucket.s3.eu-west-1.amazonaws.com/t/e/a%3Db%2Bc%40~d")
    request.context["payload_signing_enabled"] = True
    S3SigV4Auth(Credentials("AKID", "secret", token), "s3", "eu-west-1").add_auth(request)
    ours = dict(
        Signer("AKID", "secret", token, "eu-west-1").headers(
            "bucket.s3.eu-west-1.amazonaws.com", "/t/e/a%3Db%2Bc%40~d", at.timestamp()
        )
    )
    assert ours["Authorization"] == request.headers["Authorization"]
    assert "secret" not in repr(Signer("AKID", "secret", "token", "r"))


@pytest.mark.parametrize(
    ("reply", "confirmed"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Amz-Meta-segments-owner: {}\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nx-amz-meta-segments-owner:{} \r\nConnection: close\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nx-amz-meta-segments-owner: {}\r\nx-amz-meta-segments-owner: {}\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nx-amz-meta-segments-owner: {}x\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nother: x-amz-meta-segments-owner: {}\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nx-amz-meta-segments-owner: {}\r\n\r\nbody", False),
        (b"HTTP/1.1 206 Partial\r\nx-amz-meta-segments-owner: {}\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nx-amz-meta-segments-owner: {}\r\n\r\n", False),
        (b"HTTP/1.1 404 Not Found\r\nx-amz-meta-segments-owner: {}\r\n\r\n", False),
        (b"HTTP/1.1 307 Redirect\r\nLocation: http://elsewhere/\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\n", False),
        (b"garbage\r\n\r\n", False),
        (b"", False),
    ],
)
def test_only_a_reply_that_is_understood_confirms(reply: bytes, confirmed: bool) -> None:
    """Anything else leaves the question to boto3."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        base = f"http://127.0.0.1:{listener.getsockname()[1]}/bucket/"
        heads = Heads(base, Signer("a", "b", None, "r"), "x-amz-meta-segments-owner", None, lambda: 0.0)
        assert list(heads.confirmed({"k": "{}"})) == (["k"] if confirmed else [])


def test_a_server_that_hangs_is_left_to_boto3() -> None:
    """A time-out is no answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        base = f"http://127.0.0.1:{listener.getsockname()[1]}/bucket/"
        heads = Heads(base, Signer("a", "b", None, "r"), "x-amz-meta-segments-owner", None, lambda: 0.0, 0.05)
        assert list(heads.confirmed({"k": "{}", "l": "{}"})) == []
        assert list(replace(heads, base="http://127.0.0.1:9/b/").confirmed({"k": "{}"})) == []


# --- versioned buckets


@pytest.fixture(scope="session")
def versioned(s3_server: S3Server) -> str:
    """A bucket that keeps versions."""
    s3_server.create_bucket("versioned")
    s3_server._client().put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    return "versioned"


def _versions(server: S3Server, prefix: str) -> tuple[int, int]:
    found = server._client().list_object_versions(Bucket="versioned", Prefix=prefix)
    return len(found.get("Versions", ())), len(found.get("DeleteMarkers", ()))


def test_a_versioned_bucket_gets_one_delete_marker_and_keeps_the_bytes(
    s3_server: S3Server, versioned: str, body: Path
) -> None:
    """To readers and to us the object is gone; asking again makes no second marker."""
    store = S3Store(versioned, "once", **s3_server.options)
    _put(store, body, "t/e/a")
    assert store.delete_owned({"t/e/a": TEXT}).deleted == ("t/e/a",)
    assert _versions(s3_server, "once/") == (1, 1)
    assert store.head("t/e/a") is None
    assert list(store.list("t/e/")) == []
    assert store.delete_owned({"t/e/a": TEXT}).missing == ("t/e/a",)
    assert _versions(s3_server, "once/") == (1, 1)


def test_in_a_versioned_bucket_only_the_newest_version_counts(s3_server: S3Server, versioned: str, body: Path) -> None:
    """An older version with the right owner does not make a newer one with another deletable."""
    store = S3Store(versioned, "newest", **s3_server.options)
    _put(store, body, "t/e/a")
    store.delete_owned({"t/e/a": TEXT})
    _put(store, body, "t/e/a", owner=OTHER)
    assert list(store.delete_owned({"t/e/a": TEXT}).foreign) == ["t/e/a"]
    assert _versions(s3_server, "newest/") == (2, 1)


def test_in_a_versioned_bucket_what_was_deleted_comes_back_with_its_owner_when_the_marker_goes(
    s3_server: S3Server, versioned: str, body: Path
) -> None:
    """Nothing here deletes a version: that is left to the bucket's life-cycle rule."""
    store = S3Store(versioned, "back", **s3_server.options)
    _put(store, body, "t/e/a")
    store.delete_owned({"t/e/a": TEXT})
    client = s3_server._client()
    marker = client.list_object_versions(Bucket=versioned, Prefix="back/")["DeleteMarkers"][0]
    client.delete_object(Bucket=versioned, Key=marker["Key"], VersionId=marker["VersionId"])
    seen = store.head("t/e/a")
    assert seen is not None
    assert dict(seen.owner) == MINE
