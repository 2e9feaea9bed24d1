"""The connection type ``segments``: what a connection says, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_segments.core.model.config import TableConfig
from airflow_provider_segments.core.model.deletion_settings import DeletionSettings
from airflow_provider_segments.core.table import SegmentStore
from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.get_provider_info import get_provider_info
from airflow_provider_segments.hooks.segments import SegmentsHook
from airflow_provider_segments.hooks.settings import SegmentsConnection
from tests.airflow.helpers import make_table


def parse(host: str | None = "zk", extra: dict[str, Any] | None = None, **fields: Any) -> SegmentsConnection:
    given = {"storage_uri": "file:///data"} if extra is None else extra
    return SegmentsConnection.parse(
        Connection(conn_id="c", conn_type="segments", host=host, extra=json.dumps(given), **fields)
    )


@pytest.mark.parametrize(
    ("host", "port", "hosts"),
    [
        ("zk1:2181,zk2:2182", None, "zk1:2181,zk2:2182"),
        ("zk1, zk2", 2222, "zk1:2222,zk2:2222"),
        ("zk1,zk2:7/chroot/a", None, "zk1:2181,zk2:7/chroot/a"),
        ("[::1]:2181", None, "[::1]:2181"),
        ("[::1]", 2183, "[::1]:2183"),
    ],
)
def test_host_names_the_ensemble_and_port_fills_the_gaps(host: str, port: int | None, hosts: str) -> None:
    assert parse(host, port=port).zk_hosts == hosts


@pytest.mark.parametrize(
    ("host", "extra", "fields", "says"),
    [
        (None, None, {}, "has no host"),
        ("zk", {}, {}, "has no storage URI"),
        ("zk", None, {"login": "me"}, "user and password"),
        ("zk", {"storage_uri": "s3://b", "s3_access_key": "x"}, {}, "access key and S3 secret key"),
        ("zk", {"storage_uri": "s3://b", "tls": "perhaps"}, {}, "tls must be true or false"),
        ("zk", {"storage_uri": "s3://b", "tiered_s3_secret_key": "x"}, {}, "tiered S3 access key and tiered S3 secret"),
        ("zk", {"storage_uri": "s3://b", "tiered_storage_uri": "s3://b/"}, {}, "a place of their own"),
        ("zk", {"storage_uri": "s3://b", "reconsume_later": "soon"}, {}, "connection 'c': period 'soon' is not valid"),
        ("zk", {"storage_uri": "s3://b", "max_retry_delete_count": "-1"}, {}, "must be a whole number, not '-1'"),
        (
            "zk",
            {"storage_uri": "s3://b", "deletion_parallelism": 0},
            {},
            "connection 'c': deletion setting parallelism",
        ),
    ],
)
def test_unusable_connection_is_refused_with_its_field(
    host: str | None, extra: dict[str, Any] | None, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        parse(host, extra, **fields)


def test_extra_that_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="JSON object"):
        SegmentsConnection.parse(Connection(conn_id="c", conn_type="segments", host="zk", extra="[1]"))


FULL = {
    "storage_uri": "s3://bucket/prefix",
    "cluster": "other",
    "deployment": "eu",
    "file_mode": "600",
    "zk_auth": "sasl",
    "endpoint_url": "http://s3.test",
    "region": "eu-west-1",
    "s3_access_key": "AK-3fb2",
    "s3_secret_key": "SK-9d41",
    "s3_session_token": "ST-77c0",
    "tiered_storage_uri": "s3://cold/prefix",
    "tiered_endpoint_url": "http://cold.test",
    "tiered_region": "eu-north-1",
    "tiered_s3_access_key": "TA-11d0",
    "tiered_s3_secret_key": "TS-2e5f",
    "tiered_s3_session_token": "TT-90ab",
    "deletion_parallelism": 8,
    "reconsume_later": "1m",
    "max_retry_delete_count": "3",
    "max_lease_age": "0s",
    "tls": True,
    "tls_ca": "/ca.pem",
    "tls_cert": "/cert.pem",
    "tls_key": "/key.pem",
    "tls_key_password": "KP-51aa",
    "tls_verify": False,
}


def test_every_field_of_the_form_is_read() -> None:
    """A field that nobody reads is a promise that nobody keeps."""
    assert set(get_provider_info()["connection-types"][0]["conn-fields"]) == set(FULL)
    full = parse(extra=FULL, login="user", password="ZP-0e15")
    zookeeper = full.zookeeper
    assert (zookeeper.use_ssl, zookeeper.ca, zookeeper.certfile, zookeeper.keyfile) == (
        True,
        "/ca.pem",
        "/cert.pem",
        "/key.pem",
    )
    assert (zookeeper.verify_certs, zookeeper.keyfile_password) == (False, "KP-51aa")
    assert (zookeeper.username, zookeeper.password) == ("user", "ZP-0e15")
    assert full.storage_options == {
        "endpoint_url": "http://s3.test",
        "region": "eu-west-1",
        "access_key": "AK-3fb2",
        "secret_key": "SK-9d41",
        "session_token": "ST-77c0",
    }
    assert (full.cluster, full.file_mode) == ("other", "600")
    assert full.environment()["SEGMENTS_FILE_MODE"] == "600"
    assert full.tiered_uri == "s3://cold/prefix"
    assert full.tiered_options == {
        "endpoint_url": "http://cold.test",
        "region": "eu-north-1",
        "access_key": "TA-11d0",
        "secret_key": "TS-2e5f",
        "session_token": "TT-90ab",
    }
    assert full.deletion == DeletionSettings(
        parallelism=8, reconsume_later_ms=60_000, max_retry_delete_count=3, max_lease_age_ms=0
    )


def test_deletion_settings_that_are_not_given_are_the_defaults() -> None:
    assert parse().deletion == DeletionSettings()
    assert parse(extra={"storage_uri": "file:///d", "reconsume_later": ""}).deletion == DeletionSettings()


def test_connection_opens_its_two_stores_its_cluster_and_its_deletion_settings(
    connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Open no tiered store where the connection names none."""
    with SegmentsHook().get_conn() as store:
        assert (store.tiered, store.paths.cluster, store.deletion) == (
            None,
            connection["extra"]["cluster"],
            DeletionSettings(),
        )
        assert store.storage.uri == connection["extra"]["storage_uri"]
    cold = (tmp_path / "cold").as_uri()
    connection["extra"] |= {"tiered_storage_uri": cold, "deletion_parallelism": 3}
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(connection))
    with SegmentsHook().get_conn() as store:
        assert store.tiered is not None
        assert (store.tiered.uri, store.deletion.parallelism) == (cold, 3)


def test_tiered_store_without_options_of_its_own_is_opened_with_those_of_primary_storage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Take either the options of its own or those of primary storage, never some of each."""
    opened: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(
        "airflow_provider_segments.core.storage.open_store", lambda uri, file_mode, **how: opened.update({uri: how})
    )
    monkeypatch.setattr("airflow_provider_segments.core.table.SegmentStore.connect", lambda **_: None)
    extra = {"storage_uri": "s3://warm", "endpoint_url": "http://s3.test", "tiered_storage_uri": "s3://cold"}
    shared = parse(extra=extra)
    assert shared.tiered_options == {}
    assert shared.environment()["SEGMENTS_TIERED_URI"] == "s3://cold"
    shared.connect()
    assert opened == {"s3://warm": {"endpoint_url": "http://s3.test"}, "s3://cold": {"endpoint_url": "http://s3.test"}}
    parse(extra=extra | {"tiered_region": "eu-north-1"}).connect()
    assert opened["s3://cold"] == {"region": "eu-north-1"}


def test_connections_share_a_fingerprint_if_they_open_the_same_store_with_the_same_credentials() -> None:
    """Tell apart what must not share a session, whatever the connections are called, and show no secret."""
    same = SegmentsConnection.parse(
        Connection(conn_id="another", conn_type="segments", host="zk", extra=json.dumps(FULL))
    )
    prints = {parse(extra=FULL).fingerprint, same.fingerprint}
    assert len(prints) == 1
    others = [
        parse("zk2", FULL),
        parse(extra=FULL, login="user", password="ZP-0e15"),
        parse(extra=FULL, login="user", password="ZP-0e16"),
        *(parse(extra=FULL | {key: f"{FULL[key]}x"}) for key in ("cluster", "storage_uri", "s3_secret_key", "tls_ca")),
        parse(extra=FULL | {"tls_verify": True}),
    ]
    prints |= {one.fingerprint for one in others}
    assert len(prints) == 1 + len(others)
    assert not [secret for one in others for secret in one.secrets if secret in "".join(prints)]


def test_secrets_travel_in_the_environment_and_show_nowhere_else() -> None:
    full = parse(extra=FULL, login="user", password="ZP-0e15")
    environment = full.environment()
    assert environment["SEGMENTS_S3_SECRET_KEY"] == "SK-9d41"
    assert environment["SEGMENTS_ZK_PASSWORD"] == "ZP-0e15"
    assert not [secret for secret in full.secrets if secret in repr(full) or secret in repr(full.zookeeper)]
    assert set(full.secrets) == {"SK-9d41", "ST-77c0", "TS-2e5f", "TT-90ab", "ZP-0e15", "KP-51aa"}


def test_plain_connection_sets_no_tls_and_no_credentials() -> None:
    plain = parse()
    assert plain.environment() == {}
    assert plain.cluster == "segments"
    assert plain.zookeeper.use_ssl is False


def test_test_connection_really_connects(connection: dict[str, Any], store: SegmentStore, table_name: str) -> None:
    make_table(store, table_name)
    good, says = SegmentsHook().test_connection()
    assert good, says
    assert connection["host"] in says


@pytest.mark.slow  # it waits for the whole connect time-out
def test_test_connection_says_that_zookeeper_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from airflow_provider_segments.dev.zookeeper import free_port

    extra = {"storage_uri": tmp_path.as_uri()}
    described = {"conn_type": "segments", "host": "127.0.0.1", "port": free_port(), "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(described))
    good, says = SegmentsHook().test_connection()
    assert not good
    assert "did not answer" in says


def test_wrong_digest_is_refused_with_clear_words(connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Znodes made with a user and password are readable with these only."""
    connection |= {"login": "ada", "password": "right"}
    connection["extra"]["cluster"] = "guarded"
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(connection))
    with SegmentsHook().get_conn() as store:
        store.apply_config(TableConfig.from_json({"tableName": "guarded"}))
    assert SegmentsHook().test_connection()[0]
    monkeypatch.setenv("AIRFLOW_CONN_SEGMENTS_DEFAULT", json.dumps(connection | {"password": "wrong"}))
    good, says = SegmentsHook().test_connection()
    assert not good
    assert "credentials" in says
