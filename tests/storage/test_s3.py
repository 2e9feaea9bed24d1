"""S3's own promises: conditions, parts, refusals, lost replies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_segments.exceptions import (
    InvalidConfigError,
    ObjectExistsError,
    StorageAccessError,
    StorageError,
    StorageUnavailableError,
)
from airflow_provider_segments.storage import open_store, s3
from airflow_provider_segments.storage.embedded import S3Server
from tests.support.http_faults import CUT, LOSE_REPLY, PASS, FaultyProxy


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
    """A 403 is an access error in every operation (PIP-186 trap T10); a delete reports it for its keys."""
    with FaultyProxy(s3_server.endpoint_url, lambda *_: 403) as proxy:
        store = _through(proxy, s3_server, "denied")
        with pytest.raises(StorageAccessError):
            store.head("t/e/a")
        with pytest.raises(StorageAccessError):
            list(store.list("t/e/"))
        outcome = store.delete_many(["t/e/a", "t/e/b"])
        assert set(outcome.failed) == {"t/e/a", "t/e/b"}
        assert outcome.deleted == outcome.missing == ()


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
    "uri", ["", "relative/path", "ftp://host/x", "s3://", "s3:///prefix", "file://host/x", "s3://key:secret@bucket/x"]
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
