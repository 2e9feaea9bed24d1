"""Credentials in addresses are refused where they come in, and shown by no error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_segments.core.environment import connect
from airflow_provider_segments.core.storage import open_store
from airflow_provider_segments.core.zookeeper.settings import ZooKeeperSettings
from airflow_provider_segments.exceptions import InvalidConfigError
from airflow_provider_segments.hooks.settings import SegmentsConnection

SECRET = "gehe/im+7"


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": f"ada:{SECRET}@zk1:2181"},
        {"host": f"zk1:2181,ada:{SECRET}@zk2"},
        {"storage_uri": f"s3://AKIA:{SECRET}@bucket/x"},
        {"storage_uri": f"file://ada:{SECRET}@host/x"},
        {"storage_uri": f"s3://bucket/x?secret_key={SECRET}"},
        {"endpoint_url": f"https://AKIA:{SECRET}@s3.example.com"},
        {"endpoint_url": f"https://s3.example.com/?token={SECRET}"},
        {"tiered_storage_uri": f"s3://AKIA:{SECRET}@bucket/y"},
        {"tiered_endpoint_url": f"https://AKIA:{SECRET}@s3.example.com"},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_connection_with_credentials_in_an_address_is_refused(wrong: dict[str, Any]) -> None:
    """Before a job or a log gets to see it."""
    extra = {"storage_uri": "s3://bucket/x", **{key: value for key, value in wrong.items() if key != "host"}}
    connection = Connection(
        conn_id="c", conn_type="segments", host=wrong.get("host", "zk1:2181"), extra=json.dumps(extra)
    )
    with pytest.raises(InvalidConfigError, match="must not hold credentials") as refused:
        SegmentsConnection.parse(connection)
    assert "gehe" not in str(refused.value)
    assert "im+7" not in str(refused.value)


@pytest.mark.parametrize(
    "door",
    [
        lambda: ZooKeeperSettings(hosts=f"ada:{SECRET}@zk1:2181"),
        lambda: open_store(f"s3://AKIA:{SECRET}@bucket/x"),
        lambda: open_store(f"s3://bucket/x?secret_key={SECRET}"),
        lambda: open_store("s3://bucket/x", endpoint_url=f"https://AKIA:{SECRET}@s3.example.com"),
        lambda: open_store("s3://bucket/x", endpoint_url=f"ftp://s3.example.com/?password={SECRET}"),
        lambda: connect(f"ada:{SECRET}@zk1", "/x"),
        lambda: connect("zk1", f"s3://AKIA:{SECRET}@bucket/x"),
    ],
)
def test_an_address_with_credentials_opens_nothing_and_is_not_shown(door: Any) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        door()
    assert "gehe" not in str(refused.value)
    assert "im+7" not in str(refused.value)
