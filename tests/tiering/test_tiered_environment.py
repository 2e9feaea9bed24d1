"""The tiered store that the environment describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_segments.core.environment import connect, tiered_options, tiered_store, worker_environment
from airflow_provider_segments.exceptions import InvalidConfigError

PRIMARY = {"SEGMENTS_S3_ACCESS_KEY": "a", "SEGMENTS_S3_SECRET_KEY": "b", "SEGMENTS_S3_ENDPOINT_URL": "http://one:1"}
OWN = {"SEGMENTS_TIERED_S3_ACCESS_KEY": "c", "SEGMENTS_TIERED_S3_SECRET_KEY": "d"}


def test_there_is_none_unless_its_address_is_given() -> None:
    """Credentials alone open nothing."""
    assert tiered_store(PRIMARY | OWN) is None
    found = tiered_store(PRIMARY | {"SEGMENTS_TIERED_URI": "s3://cold/here"})
    assert found is not None and found.uri == "s3://cold/here"
    with pytest.raises(InvalidConfigError, match="is not supported"):
        tiered_store({"SEGMENTS_TIERED_URI": "ftp://cold"})


def test_it_has_the_primary_stores_options_or_its_own_and_never_some_of_both() -> None:
    """A key of one store is not sent to the endpoint of the other."""
    assert tiered_options(PRIMARY) == {"access_key": "a", "secret_key": "b", "endpoint_url": "http://one:1"}
    assert tiered_options(PRIMARY | OWN) == {"access_key": "c", "secret_key": "d"}
    assert tiered_options({}) == {}


def test_planning_workers_get_all_of_it() -> None:
    """Whatever is set, and nothing else."""
    given = PRIMARY | OWN | {"SEGMENTS_TIERED_URI": "s3://cold/here"}
    assert worker_environment(given | {"HOME": "/home/somebody"}) == dict(sorted(given.items()))


def test_a_store_opened_from_the_environment_has_it(
    zk_hosts: str, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As commands and jobs open it."""
    monkeypatch.setenv("SEGMENTS_TIERED_URI", (tmp_path / "cold").as_uri())
    with connect(zk_hosts, (tmp_path / "hot").as_uri(), cluster) as store:
        assert store.tiered is not None and store.tiered.uri == (tmp_path / "cold").as_uri()
