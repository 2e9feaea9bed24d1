"""S3's own promises: conditions, parts, refusals, lost replies."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.core.storage import open_store, s3
from airflow_provider_segments.dev.s3 import S3Server
from airflow_provider_segments.exceptions import (
    CorruptRecordError,
    InvalidConfigError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageAccessError,
    StorageError,
    StorageUnavailableError,
)
from tests.support.http_faults import CUT, CUT_BODY, LOSE_REPLY, PASS, FaultyProxy
from tests.support.owned import remove


def _through(proxy: FaultyProxy, server: S3Server, prefix: str) -> Any:
    return open_store(f"s3://tests/{prefix}", **{**server.options, "endpoint_url": proxy.url})


def test_a_large_file_goes_up_in_parts_and_is_still_written_once(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The condition holds at the completion of the upload."""
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 5 * 1024 * 1024)
    body = tmp_path / "body"
    body.write_bytes(b"x" * 12_000_000)
    store = open_store("s3://tests/parts", **s3_server.options)
    store.put_file(body, "t/e/a", owner={"a": "b"})
    seen = store.head("t/e/a")
    assert seen is not None
    assert (seen.bytes, dict(seen.owner)) == (12_000_000, {"a": "b"})
    with pytest.raises(ObjectExistsError):
        store.put_file(body, "t/e/a", owner={})
    assert store.discard_unfinished("t/e/") == 0, "the refused upload has left parts"


def _nth(method: str, word: str, fault: str | int, *, wanted: int = 1) -> Any:
    """Decides: ``fault`` for request number ``wanted`` of those with this method whose path holds ``word``."""
    seen = itertools.count(1)
    return lambda m, path, _: fault if m == method and word in path and next(seen) == wanted else PASS


@pytest.mark.parametrize("fault", [CUT, LOSE_REPLY, 500])
def test_an_upload_in_parts_whose_completion_meets_a_fault_is_done_once(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str | int
) -> None:
    """The reply to the completion is the one whose loss would look like somebody else's object."""
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 5 * 1024 * 1024)
    body = tmp_path / "body"
    body.write_bytes(b"x" * 6_000_000)
    with FaultyProxy(s3_server.endpoint_url, _nth("POST", "uploadId=", fault)) as proxy:
        store = _through(proxy, s3_server, f"completion-{fault}")
        store.put_file(body, "t/e/a", owner={"a": "b"})
        seen = store.head("t/e/a")
    assert seen is not None
    assert (seen.bytes, dict(seen.owner)) == (6_000_000, {"a": "b"})


def test_an_upload_in_parts_that_fails_leaves_no_parts(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are paid for, and no listing shows them."""
    monkeypatch.setattr(s3, "MULTIPART_BYTES", 5 * 1024 * 1024)
    body = tmp_path / "body"
    body.write_bytes(b"x" * 6_000_000)
    with FaultyProxy(s3_server.endpoint_url, _nth("PUT", "partNumber=2", 403)) as proxy:
        store = _through(proxy, s3_server, "no-parts")
        with pytest.raises(StorageAccessError):
            store.put_file(body, "t/e/a", owner={})
        assert store.discard_unfinished("t/e/") == 0
        assert store.head("t/e/a") is None


def test_parts_of_a_killed_upload_are_found_by_the_prefix_and_discarded(s3_server: S3Server) -> None:
    """Those of other prefixes stay."""
    store = open_store("s3://tests/killed", **s3_server.options)
    client = s3_server._client()
    for key in ("killed/t/e/a", "killed/t/e/b", "killed/t/e2/c"):
        client.create_multipart_upload(Bucket="tests", Key=key)
    assert [store.discard_unfinished("t/e/") for _ in range(2)] == [2, 0]
    assert store.discard_unfinished("t/e2/") == 1


def test_a_conflict_is_not_taken_for_an_object_that_exists(s3_server: S3Server, body: Path) -> None:
    """S3 answers 409 while another request is at work on the key; that one may fail. The put is sent again."""
    waits: list[float] = []
    with FaultyProxy(s3_server.endpoint_url, _nth("PUT", "", 409)) as proxy:
        store = s3.S3Store("tests", "conflict", **{**s3_server.options, "endpoint_url": proxy.url}, sleep=waits.append)
        store.put_file(body, "t/e/a", owner={})
    assert len(waits) == 1
    with FaultyProxy(s3_server.endpoint_url, lambda method, *_: 409 if method == "PUT" else PASS) as proxy:
        store = s3.S3Store("tests", "conflict", **{**s3_server.options, "endpoint_url": proxy.url}, sleep=waits.append)
        with pytest.raises(StorageUnavailableError, match="run it again"):
            store.put_file(body, "t/e/b", owner={})


def test_a_body_that_breaks_off_is_read_again(s3_server: S3Server, body: Path) -> None:
    """boto3 retries requests, not bodies."""
    with FaultyProxy(s3_server.endpoint_url, _nth("GET", "", CUT_BODY)) as proxy:
        store = _through(proxy, s3_server, "broken-body")
        store.put_file(body, "t/e/a", owner={})
        with store.open("t/e/a") as file:
            assert file.read() == body.read_bytes()


def test_a_reader_never_sees_a_mix_of_two_objects(s3_server: S3Server, tmp_path: Path) -> None:
    """An object that is replaced under a reader is an error, not other bytes."""
    store = open_store("s3://tests/mix", **s3_server.options)
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1" * 3_000_000)
    second.write_bytes(b"2" * 3_000_000)
    store.put_file(first, "t/e/a", owner={})
    with store.open("t/e/a") as file:
        assert file.read(10) == b"1" * 10
        remove(store, "t/e/a")
        store.put_file(second, "t/e/a", owner={})
        file.seek(2_900_000)
        with pytest.raises(StorageError):
            file.read(10)


def test_a_missing_bucket_is_never_taken_for_missing_objects(s3_server: S3Server, body: Path) -> None:
    """A HEAD says 404 to both. The bucket of a typing mistake holds no positive answer (PIP-186 trap T10)."""
    store = open_store("s3://no-such-bucket", **s3_server.options)
    for refused in (
        lambda: store.head("t/e/a"),
        lambda: store.open("t/e/a"),
        lambda: store.put_file(body, "t/e/a", owner={}),
        lambda: list(store.list("t/e/")),
    ):
        with pytest.raises(StorageError, match="create the bucket") as seen:
            refused()
        assert not isinstance(seen.value, ObjectNotFoundError)


def test_metadata_that_is_not_ours_is_corrupt_and_a_folder_marker_is_no_object(s3_server: S3Server) -> None:
    """Other tools write to buckets too."""
    store = open_store("s3://tests/foreign", **s3_server.options)
    client = s3_server._client()
    client.put_object(Bucket="tests", Key="foreign/t/e/", Body=b"")
    client.put_object(Bucket="tests", Key="foreign/t/e/a", Body=b"1", Metadata={"segments-owner": "not json"})
    assert [found[:2] for found in store.list("t/e/")] == [("t/e/a", 1)]
    with pytest.raises(CorruptRecordError, match="t/e/a"):
        store.head("t/e/a")


@pytest.mark.parametrize("fault", [CUT, LOSE_REPLY, 503, 500])
def test_a_put_that_meets_one_fault_is_done_once(s3_server: S3Server, tmp_path: Path, fault: str | int) -> None:
    """A lost reply is not taken for somebody else's object, and a refused request is sent again."""
    body = tmp_path / "body"
    body.write_bytes(b"hello")

    def once(method: str, _: str, count: int) -> str | int:
        return fault if method == "PUT" and count == 1 else PASS

    with FaultyProxy(s3_server.endpoint_url, once) as proxy:
        store = _through(proxy, s3_server, f"fault-{fault}")
        store.put_file(body, "t/e/a", owner={"a": "b"})
        seen = store.head("t/e/a")
        assert seen is not None
        assert dict(seen.owner) == {"a": "b"}
        with pytest.raises(ObjectExistsError):
            store.put_file(body, "t/e/a", owner={})


def test_refused_requests_are_never_taken_for_missing_objects(s3_server: S3Server) -> None:
    """A 403 is an access error in every operation (PIP-186 trap T10)."""
    with FaultyProxy(s3_server.endpoint_url, lambda *_: 403) as proxy:
        store = _through(proxy, s3_server, "denied")
        with pytest.raises(StorageAccessError):
            store.head("t/e/a")
        with pytest.raises(StorageAccessError):
            list(store.list("t/e/"))


def test_wrong_keys_and_no_keys_are_told_apart_from_a_missing_bucket(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each error says what to mend; none shows a secret."""
    wrong = open_store("s3://tests", endpoint_url=s3_server.endpoint_url, access_key="who", secret_key="hush-hush")
    with pytest.raises(StorageAccessError, match="credentials") as refused:
        wrong.head("t/e/a")
    assert "hush-hush" not in str(refused.value)
    with pytest.raises(StorageError, match="create the bucket"):
        list(open_store("s3://no-such-bucket", **s3_server.options).list("t/e/"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StorageAccessError, match="no S3 credentials"):
        open_store("s3://tests", endpoint_url=s3_server.endpoint_url).head("t/e/a")


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    """Not missing, and not an access error."""
    store = open_store("s3://tests", endpoint_url="http://127.0.0.1:9", access_key="a", secret_key="b")
    with pytest.raises(StorageUnavailableError):
        store.head("t/e/a")


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "relative/path",
        "ftp://host/x",
        "s3://",
        "s3:///prefix",
        "file://host/x",
        "s3://key:secret@bucket/x",
        "s3://bucket/x?y=1",
        "file:///x#y",
        "s3://B_/x",
        "s3://x/y",
    ],
)
def test_an_address_that_names_no_store_is_refused(uri: str) -> None:
    """Credentials in an address are refused too, and not repeated in the message."""
    with pytest.raises(InvalidConfigError) as refused:
        open_store(uri)
    assert "secret" not in str(refused.value)


def test_an_unknown_option_or_half_a_pair_of_keys_is_refused() -> None:
    """A typing mistake must not fall back to other credentials."""
    with pytest.raises(InvalidConfigError, match="acces_key"):
        open_store("s3://tests", acces_key="a")
    with pytest.raises(InvalidConfigError, match="together"):
        open_store("s3://tests", access_key="a")


def test_a_path_is_taken_letter_by_letter(tmp_path: Path) -> None:
    """No part of it is dropped as a fragment, and nothing is decoded."""
    store = open_store(f"{tmp_path}/a#b?c %20")
    assert str(getattr(store, "root", "")) == f"{tmp_path}/a#b?c %20"
    assert open_store(store.uri).uri == store.uri


@pytest.mark.parametrize("endpoint", ["nonsense", "ftp://host", "http://", "http://user:secret@host"])
def test_an_endpoint_that_cannot_be_one_is_refused(endpoint: str) -> None:
    """Before anything is sent, and without repeating a password."""
    with pytest.raises(InvalidConfigError, match=r"endpoint|credentials") as refused:
        open_store("s3://tests", endpoint_url=endpoint, access_key="a", secret_key="b")
    assert "secret" not in str(refused.value)


def test_a_profile_that_is_not_there_is_an_access_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every operation: a listing makes the client before it sends anything."""
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    store = open_store("s3://tests", endpoint_url="http://127.0.0.1:9")
    for refused in (lambda: store.head("t/e/a"), lambda: list(store.list("t/e/"))):
        with pytest.raises(StorageAccessError, match="no-such-profile"):
            refused()


@pytest.mark.slow
def test_the_server_keeps_its_data_over_a_stop_and_a_kill(tmp_path: Path, body: Path) -> None:
    """It stops within seconds and leaves no socket behind."""
    with S3Server(tmp_path / "s3") as server:
        server.create_bucket("kept")
        store = open_store("s3://kept", **server.options)
        store.put_file(body, "t/e/a", owner={"a": "b"})
        for end in (server.stop, server.kill):
            end()
            assert not [path for path in server._sockets() if path.exists()]
            server.start()
            assert [found.key for found in store.list("t/e/")] == ["t/e/a"]
            with store.open("t/e/a") as file:
                assert file.read() == body.read_bytes()
